"""Laws of the lattice of nodes, on what drives write and on what strangers may send."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence

from hypothesis import given, strategies as st

from datalattice.apps.dlfs import DLFSLattice, Drive, make_directory, make_file, make_tombstone
from datalattice.cells import Index, Value, Vector, encode, same, to_text
from datalattice.errors import UsageError
from datalattice.lattice import key_of
from datalattice.testing.lattice_kit import check_joins_rise, check_order, check_total_order

LATTICE = DLFSLattice()
TIMES = st.integers(0, 6)
LONG = "n" * 100
NAMES = st.sampled_from(["a", "a", "b", "b", LONG, key_of(LONG), key_of(LONG + "x")])
METADATA = st.sampled_from([None, None, None, "m", "n"])
FURTHER = st.sampled_from([(), (), (), ("x",), (None, "y")])


@st.composite
def registers(draw: st.DrawFn) -> Value:
    if draw(st.booleans()):
        return make_tombstone(draw(TIMES))
    data = draw(st.sampled_from([b"", b"1", b"2"]))
    further = draw(FURTHER)
    fields = [None, data, draw(METADATA), draw(TIMES)]
    return Vector.of([*fields, None, *further] if further else fields)


@st.composite
def directories(draw: st.DrawFn, children: st.SearchStrategy[Value]) -> Value:
    """Any directory that passes the checks: its base need not fit what is in it."""
    entries = Index.of(draw(st.dictionaries(NAMES, children, max_size=2)))
    utime = draw(TIMES)
    deletions = draw(st.dictionaries(NAMES, TIMES, max_size=1)) if draw(st.booleans()) else {}
    if utime and draw(st.booleans()):
        deletions[""] = draw(st.integers(0, utime - 1))
    fields: list[Value] = [entries, None, draw(METADATA), utime]
    further = draw(FURTHER)
    if deletions or further:
        fields.append(Index.of(deletions) if deletions else None)
    return Vector.of([*fields, *further])


NODES = st.recursive(registers(), directories, max_leaves=5)
TREES = directories(NODES)


def shown(values: Sequence[Value]) -> str:
    return "\n".join(to_text(value) for value in values)


def agree(x: Value, y: Value, *inputs: Value) -> None:
    assert same(x, y), f"{to_text(x)}\n{to_text(y)}\nof\n{shown(inputs)}"


@given(NODES | TREES)
def test_a_node_joined_with_itself_is_itself(node: Value) -> None:
    assert LATTICE.check_foreign(node)
    assert LATTICE.merge(node, node) is node
    copy = Vector.of(list(node))  # type: ignore[call-overload]
    assert LATTICE.merge(node, copy) is node
    assert LATTICE.merge(node, LATTICE.zero()) is node
    agree(LATTICE.merge(LATTICE.zero(), node), node, node)
    agree(LATTICE.merge(None, node), node, node)


@given(NODES | TREES, NODES | TREES)
def test_either_side_joins_to_the_same(a: Value, b: Value) -> None:
    before = encode(a), encode(b)
    joined = LATTICE.merge(a, b)
    agree(joined, LATTICE.merge(b, a), a, b)
    assert LATTICE.check_foreign(joined)
    assert (encode(a), encode(b)) == before
    for side in (a, b):
        if same(joined, side):
            assert joined is side or same(a, b)
        again = LATTICE.merge(joined, side)
        agree(again, joined, a, b)


@given(NODES | TREES, NODES | TREES, NODES | TREES)
def test_any_order_joins_to_the_same(a: Value, b: Value, c: Value) -> None:
    left = LATTICE.merge(LATTICE.merge(a, b), c)
    right = LATTICE.merge(a, LATTICE.merge(b, c))
    agree(left, right, a, b, c)


@given(NODES | TREES, NODES | TREES, NODES | TREES)
def test_trees_are_in_a_total_order(a: Value, b: Value, c: Value) -> None:
    check_total_order(LATTICE, [a, b, c, LATTICE.merge(a, b)])


@given(NODES | TREES, NODES | TREES, NODES | TREES)
def test_a_tree_that_covers_another_is_the_greater(a: Value, b: Value, c: Value) -> None:
    some = [a, b, c, LATTICE.merge(a, b)]
    check_order(LATTICE, some)
    check_joins_rise(LATTICE, some)


def test_what_is_as_old_as_a_base_further_in_is_not_cut_with_a_lesser_one() -> None:
    inner = Vector.of([Index.of([("f", make_tombstone(3))]), None, None, 9, Index.of([("", 5)])])
    tree = Vector.of([Index.of([("d", inner)]), None, None, 9])
    joined = LATTICE.merge(tree, make_tombstone(1))
    check_joins_rise(LATTICE, [tree, make_tombstone(1)])
    assert isinstance(joined, Vector)
    agree(joined[0], tree[0], tree)


def test_a_directory_that_is_newer_than_its_base_by_a_malformed_one_alone_is_malformed() -> None:
    bad = Vector.of([Index.of([("f", make_tombstone(7))]), None, None, 2, Index.of([("", 8)])])
    tree = Vector.of([Index.of([("d", bad)]), None, None, 3, Index.of([("", 5)])])
    assert not LATTICE.check_foreign(tree)


def test_a_cut_spells_deletions_of_the_fifth_position_as_any_join_does() -> None:
    some = make_file(b"", 5)
    old = Vector.of([Index.of([("a", some)]), None, None, 5, Index.of([("a", 2)])])
    tree = Vector.of([Index.of([("d", old)]), None, None, 6])
    joined = LATTICE.merge(tree, make_tombstone(1))
    assert isinstance(joined, Vector)
    agree(joined[0], Index.of([("d", make_directory(Index.of([("a", some)]), 5))]), tree)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["mkdir", "write", "delete", "tree", "copy", "move", "meet", "wait"]),
        st.sampled_from(["a", "b", "a/a", "a/b", "b/a"]),
        st.sampled_from(["b", "a/b", "b/a", LONG, LONG + "x"]),
    ),
    max_size=25,
)


class Standing:
    """A clock that moves when it is told to, so that writes tie."""

    def __init__(self) -> None:
        self.time_ms = 0

    def now_ms(self) -> int:
        return self.time_ms


def perform(drives: list[Drive], clock: Standing, step: tuple[int, str, str, str]) -> None:
    number, operation, path, target = step
    drive = drives[number]
    act: dict[str, Callable[[], object]] = {
        "mkdir": lambda: drive.mkdir(path),
        "write": lambda: drive.write(path, target.encode()),
        "delete": lambda: drive.delete(path),
        "tree": lambda: drive.remove_tree(path),
        "copy": lambda: drive.copy(path, target),
        "move": lambda: drive.move(path, target),
        "meet": lambda: drive.replicate(drives[len(path) % 3]),
    }
    clock.time_ms += operation == "wait"
    with contextlib.suppress(UsageError):
        act.get(operation, lambda: None)()


@given(STEPS)
def test_replicas_of_a_drive_meet_in_any_order(steps: list[tuple[int, str, str, str]]) -> None:
    clock = Standing()
    drives = [Drive.create(clock) for _ in range(3)]
    for step in steps:
        before = [drive.cursor.get() for drive in drives]
        perform(drives, clock, step)
        own = drives[step[0]].cursor.get()
        # A replica's states form a chain: what it wrote covers what it had.
        agree(LATTICE.merge(own, before[step[0]]), own, own, before[step[0]])
    a, b, c = (drive.cursor.get() for drive in drives)
    joined = LATTICE.merge(LATTICE.merge(a, b), c)
    for x, y, z in itertools.permutations((a, b, c)):
        agree(LATTICE.merge(LATTICE.merge(x, y), z), joined, a, b, c)
        agree(LATTICE.merge(x, LATTICE.merge(y, z)), joined, a, b, c)
    for one in (a, b, c):
        assert LATTICE.merge(joined, one) is joined
