"""Laws of cursors: against plain Python values, in any order of steps, and from many threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from datalattice.cells import (
    EMPTY_MAP,
    EMPTY_SET,
    Index,
    Keyword,
    Map,
    Set,
    Signed,
    Value,
    same,
    to_cell,
)
from datalattice.crypto import KeyPair
from datalattice.cursors import Cursor, LatticeCursor, Root, RootLattice
from datalattice.lattice import (
    VALUE_KEY,
    KeyedLattice,
    MapLattice,
    MaxLattice,
    MergeContext,
    OwnerLattice,
    SetLattice,
)

KEY = KeyPair(b"\x01" * 32)
SIGNING = MergeContext(key_pair=KEY)
NAMES = st.sampled_from(["a", "b", "c"])
DEEP = MapLattice(MapLattice(MaxLattice()))
OWNED = KeyedLattice({"o": OwnerLattice(DEEP)})
Plain = dict[str, dict[str, int]]


def cell(plain: Plain) -> Value:
    return to_cell(plain)


def joined(own: Plain, other: Plain) -> Plain:
    """Return the join of two plain values, written without any of the code under test."""
    keys = own.keys() | other.keys()
    return {
        key: {
            name: max(side.get(key, {}).get(name, 0) for side in (own, other))
            for name in own.get(key, {}).keys() | other.get(key, {}).keys()
        }
        for key in keys
    }


class Handle:
    """A cursor on a whole value, the plain value it should have, and that at its fork point."""

    def __init__(self, cursor: LatticeCursor, plain: Plain, parent: Handle | None) -> None:
        self.cursor = cursor
        self.plain = plain
        self.parent = parent
        self.fork_point = plain


class CursorMachine(RuleBasedStateMachine):
    """Trees of forks over a root, written at random depths, compared with plain dicts."""

    signed = False

    @initialize()
    def begin(self) -> None:
        if self.signed:
            self.root = RootLattice(OWNED, None, SIGNING)
            top = self.root.path("o", KEY.public_key, "value")
            top.set({})
        else:
            self.root = RootLattice(DEEP, {})
            top = self.root
        self.handles = [Handle(top, {}, None)]

    def pick(self, data: st.DataObject) -> Handle:
        return self.handles[data.draw(st.integers(0, len(self.handles) - 1), label="handle")]

    @rule(data=st.data(), key=NAMES, name=NAMES, number=st.integers(0, 9))
    def write(self, data: st.DataObject, key: str, name: str, number: int) -> None:
        handle = self.pick(data)
        write = data.draw(st.sampled_from(WRITES), label="write")
        write(handle.cursor, key, name, number)
        handle.plain = {**handle.plain, key: {**handle.plain.get(key, {}), name: number}}

    @rule(data=st.data(), key=NAMES, name=NAMES, number=st.integers(0, 9))
    def raise_to(self, data: st.DataObject, key: str, name: str, number: int) -> None:
        handle = self.pick(data)
        before = handle.plain.get(key, {}).get(name, 0)
        found = handle.cursor.path(key, name).accumulate_and_get(number, larger)
        assert found == max(before, number)
        if number > 0 or name in handle.plain.get(key, {}):
            inner = {**handle.plain.get(key, {}), name: max(before, number)}
            if inner != handle.plain.get(key, {}):
                handle.plain = {**handle.plain, key: inner}

    @rule(data=st.data(), key=NAMES, inner=st.dictionaries(NAMES, st.integers(0, 9), max_size=2))
    def replace_branch(self, data: st.DataObject, key: str, inner: dict[str, int]) -> None:
        handle = self.pick(data)
        old = handle.cursor.path(key).get_and_set(inner)
        before = handle.plain.get(key)
        assert same(old, None if before is None else to_cell(before))
        handle.plain = {**handle.plain, key: inner}

    @rule(data=st.data(), key=NAMES, right=st.booleans(), number=st.integers(0, 9))
    def compare(self, data: st.DataObject, key: str, right: bool, number: int) -> None:
        handle = self.pick(data)
        before = handle.plain.get(key)
        expected: object = before if right else {"other": 1}
        assert handle.cursor.path(key).compare_and_set(expected, {"set": number}) is right
        if right:
            handle.plain = {**handle.plain, key: {"set": number}}

    @rule(data=st.data(), other=st.dictionaries(NAMES, st.dictionaries(NAMES, st.integers(0, 9))))
    def merge(self, data: st.DataObject, other: Plain) -> None:
        handle = self.pick(data)
        handle.plain = joined(handle.plain, other)
        assert same(handle.cursor.merge(other), cell(handle.plain))

    @precondition(lambda self: len(self.handles) < 5)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        handle = self.pick(data)
        self.handles.append(Handle(handle.cursor.fork(), handle.plain, handle))

    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        handle = self.pick(data)
        parent = handle.parent
        if parent is None:
            assert same(handle.cursor.sync(), cell(handle.plain))
            return
        unchanged = parent.plain == handle.fork_point
        result = handle.plain if unchanged else joined(handle.plain, parent.plain)
        assert same(handle.cursor.sync(), cell(result))
        handle.plain = parent.plain = handle.fork_point = result

    @invariant()
    def agree(self) -> None:
        for handle in getattr(self, "handles", []):
            assert same(handle.cursor.get(), cell(handle.plain))
            for key, inner in handle.plain.items():
                assert same(handle.cursor.get(key), to_cell(inner))
                assert same(handle.cursor.path(key).get(), to_cell(inner))

    @invariant()
    def signatures_hold(self) -> None:
        if self.signed and hasattr(self, "root"):
            held = self.root.get("o", KEY.public_key)
            assert isinstance(held, Signed)
            assert held.verify()
            assert held.public_key == KEY.public_key


class SignedCursorMachine(CursorMachine):
    """The same below a signature."""

    signed = True


def larger(current: Value, number: Value) -> Value:
    assert isinstance(current, int)
    assert isinstance(number, int)
    return max(current, number)


def write_at_path(cursor: LatticeCursor, key: str, name: str, number: int) -> None:
    cursor.path(key, name).set(number)


def write_step_by_step(cursor: LatticeCursor, key: str, name: str, number: int) -> None:
    cursor.path(key).path(name).set(number)


def write_assoc(cursor: LatticeCursor, key: str, name: str, number: int) -> None:
    cursor.path(key).assoc(name, number)


def write_assoc_in(cursor: LatticeCursor, key: str, name: str, number: int) -> None:
    cursor.assoc_in(number, key, name)


def write_by_update(cursor: LatticeCursor, key: str, name: str, number: int) -> None:
    def change(value: Value) -> Value:
        assert isinstance(value, Map)
        inner = value.get(key, EMPTY_MAP)
        assert isinstance(inner, Map)
        return value.put(key, inner.put(name, number))

    cursor.update(change)


def write_in_a_short_fork(cursor: LatticeCursor, key: str, name: str, number: int) -> None:
    fork = cursor.fork()
    fork.path(key, name).set(number)
    fork.sync()


WRITES = [
    write_at_path,
    write_step_by_step,
    write_assoc,
    write_assoc_in,
    write_by_update,
    write_in_a_short_fork,
]

TestCursors = CursorMachine.TestCase
TestSignedCursors = SignedCursorMachine.TestCase


# --- threads ----------------------------------------------------------------------------------

THREADS = 4
ROUNDS = 60


@pytest.fixture(autouse=True)
def eager_switches() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[int], None]) -> None:
    """Run `work(number)` in several threads at once; what one raises is raised here."""
    failures: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        raise failure


def add(value: Value, item: Value) -> Value:
    found = EMPTY_SET if value is None else value
    assert isinstance(found, Set)
    return found.add(item)


def everything() -> Value:
    return to_cell({f"{thread}-{n}" for thread in range(THREADS) for n in range(ROUNDS)})


SETS = MapLattice(SetLattice())


def cursors() -> dict[str, Cursor]:
    owned = RootLattice(KeyedLattice({"o": OwnerLattice(SETS)}), None, SIGNING)
    return {
        "root": Root(None),
        "path": Root(EMPTY_MAP).path("s"),
        "root lattice": RootLattice(SetLattice()),
        "fork": RootLattice(SetLattice()).fork(),
        "descended": RootLattice(SETS).path("s"),
        "below a signature": owned.path("o", KEY.public_key, VALUE_KEY, "s"),
    }


@pytest.mark.parametrize("kind", cursors())
def test_no_write_of_any_thread_is_lost(kind: str) -> None:
    cursor = cursors()[kind]

    def work(thread: int) -> None:
        for n in range(ROUNDS):
            cursor.accumulate_and_get(f"{thread}-{n}", add)

    in_threads(work)
    assert same(cursor.get(), everything())


def test_compare_and_set_lets_exactly_one_thread_win() -> None:
    root = Root(0)
    wins: list[int] = []

    def work(_thread: int) -> None:
        for n in range(ROUNDS):
            while root.get() == n:
                if root.compare_and_set(n, n + 1):
                    wins.append(n)

    in_threads(work)
    assert root.get() == ROUNDS
    assert sorted(wins) == list(range(ROUNDS))


@pytest.mark.parametrize("below", [(), ("s",), ("o", KEY.public_key, "value", "s")], ids=len)
def test_forks_of_many_threads_bring_everything_together(below: tuple[Value, ...]) -> None:
    lattice = (
        SetLattice() if not below else KeyedLattice({"s": SetLattice(), "o": OwnerLattice(SETS)})
    )
    root = RootLattice(lattice, None, SIGNING)
    shared = root.path(*below)

    def work(thread: int) -> None:
        fork = shared.fork()
        for n in range(ROUNDS):
            fork.accumulate_and_get(f"{thread}-{n}", add)
            if n % 7 == thread:
                fork.sync()
        fork.sync()

    in_threads(work)
    assert same(shared.get(), everything())


def test_syncing_while_others_write_to_the_same_fork_loses_nothing() -> None:
    root = RootLattice(SetLattice(), EMPTY_SET)
    fork = root.fork()

    def work(thread: int) -> None:
        for n in range(ROUNDS):
            target: LatticeCursor = root if thread == 0 else fork
            target.accumulate_and_get(f"{thread}-{n}", add)
            if n % 5 == 0:
                fork.sync()

    in_threads(work)
    fork.sync()
    assert same(root.get(), everything())
    assert same(fork.get(), everything())


def test_a_slow_update_function_does_not_block_readers_or_writers() -> None:
    root = Root(0)
    inside, go_on = threading.Event(), threading.Event()
    runs: list[Value] = []

    def slow(value: Value) -> Value:
        runs.append(value)
        inside.set()
        assert go_on.wait(30)
        assert isinstance(value, int)
        return value + 1

    thread = threading.Thread(target=root.update, args=(slow,))
    thread.start()
    assert inside.wait(30)
    assert root.get() == 0
    root.set(10)
    go_on.set()
    thread.join()
    assert root.get() == 11
    assert runs == [0, 10]


def test_keywords_and_names_meet_in_one_place_from_all_threads() -> None:
    root = RootLattice(KeyedLattice({"s": SetLattice()}))

    def work(thread: int) -> None:
        key: Value = "s" if thread % 2 else Keyword("s")
        for n in range(ROUNDS):
            root.path(key).accumulate_and_get(f"{thread}-{n}", add)

    in_threads(work)
    assert same(root.get(), Index.of([(Keyword("s"), everything())]))
