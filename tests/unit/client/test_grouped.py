"""Edits of threads that come at the same time: one commit, and each its own outcome."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import datalattice
from datalattice.actions import KeyOperation, KeyWrite, OfferRecords, WriteKeys
from datalattice.client.edits import Change, ThreadTurn
from datalattice.client.folder import OwnKeys
from datalattice.client.grouped import GROUP_MAX, EditGroups
from datalattice.client.opendata import MemoryFolder
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import (
    Conflict,
    Corruption,
    DataLatticeError,
    MissingData,
    OutcomeUnknown,
    StoreFull,
    StoreLocked,
    UsageError,
)
from datalattice.service import OPERATOR, Service

PATIENCE_S = 50.0
KEYS = OwnKeys.of(KeyPair(bytes(32)))
OTHERS = OwnKeys.of(KeyPair(bytes(31) + b"\1"))


class Committed:
    """What a list of commits made of a root without a lattice, a tuple of values in it."""

    def __init__(self) -> None:
        self.turn = ThreadTurn()
        self.groups = EditGroups(self.turn, self.edit)
        self.roots: list[tuple[Any, ...]] = [()]
        self.check: Callable[[tuple[Any, ...]], None] = lambda _values: None

    def edit(self, keys: OwnKeys, change: Change[Any], wait_s: float) -> Any:
        with self.turn.held(wait_s, "test"):
            cursor = RootLattice(None, list(self.roots[-1]))
            result = change(cursor, keys.owner)
            made = tuple(held(cursor))
            self.check(made)
            self.roots.append(made)
            return result

    def run(self, *changes: Change[Any], keys: OwnKeys = KEYS) -> list[Any]:
        """Make changes in one group; return what came of each, in order."""
        outcomes: list[Any] = [None] * len(changes)

        def make(at: int) -> None:
            try:
                outcomes[at] = self.groups.edit(keys, changes[at], PATIENCE_S)
            except BaseException as error:  # noqa: BLE001 - it is the outcome
                outcomes[at] = error

        with self.all_wait() as start:
            for at in range(len(changes)):
                start(partial(make, at))
        return outcomes

    @contextmanager
    def all_wait(self) -> Iterator[Callable[[Callable[[], object]], None]]:
        """Give what starts a thread whose change waits; all begin at the end of the block."""
        with gathering(self.turn, self.groups) as start:
            yield start


@contextmanager
def gathering(
    turn: ThreadTurn, groups: EditGroups
) -> Iterator[Callable[[Callable[[], object]], None]]:
    threads: list[threading.Thread] = []

    def start(work: Callable[[], object]) -> None:
        waiting = groups.waiting
        threads.append(threading.Thread(target=work))
        threads[-1].start()
        while groups.waiting == waiting and threads[-1].is_alive():
            os.sched_yield()

    with turn.held(PATIENCE_S, "test"):
        yield start
    for thread in threads:
        thread.join()


def held(cursor: RootLattice) -> list[Any]:
    values: Any = cursor.get()
    return list(values)


def add(value: Any) -> Change[int]:
    """Return a change that adds a value; it returns how many were there."""

    def change(cursor: RootLattice, _own: KeyPair) -> int:
        values = held(cursor)
        cursor.set([*values, value])
        return len(values)

    return change


def failing(error: BaseException) -> Change[int]:
    """Return a change that writes something, and fails."""

    def change(cursor: RootLattice, own: KeyPair) -> int:
        add("no")(cursor, own)
        raise error

    return change


@pytest.fixture
def made() -> Committed:
    return Committed()


def test_those_that_wait_share_a_commit_in_their_order(made: Committed) -> None:
    assert made.run(*map(add, "abcde")) == [0, 1, 2, 3, 4]
    assert made.roots == [(), tuple("abcde")]


def test_one_alone_is_a_commit_at_once(made: Committed) -> None:
    assert [made.groups.edit(KEYS, add(one), 0.0) for one in "ab"] == [0, 1]
    assert made.roots == [(), ("a",), ("a", "b")]


def test_a_change_that_fails_does_so_alone(made: Committed) -> None:
    error = UsageError("bad")
    assert made.run(add("a"), failing(error), add("b")) == [0, error, 1]
    assert made.roots == [(), ("a", "b")]


def test_a_change_sees_those_before_it(made: Committed) -> None:
    def swap(expected: int) -> Change[int]:
        def change(cursor: RootLattice, own: KeyPair) -> int:
            if len(held(cursor)) != expected:
                raise Conflict("moved")
            return add(expected)(cursor, own)

        return change

    first, second, third = made.run(swap(0), swap(0), swap(1))
    assert (first, third) == (0, 1)
    assert isinstance(second, Conflict)
    assert made.roots[-1] == (0, 1)


def test_a_value_that_cannot_be_committed_fails_alone(made: Committed) -> None:
    def check(values: tuple[Any, ...]) -> None:
        if "bad" in values:
            raise UsageError("too large")

    made.check = check
    first, bad, last = made.run(add("a"), add("bad"), add("b"))
    assert (first, last) == (0, 1)
    assert isinstance(bad, UsageError)
    assert made.roots[-1] == ("a", "b")


def test_a_store_that_is_full_is_the_error_of_all(made: Committed) -> None:
    def check(_values: tuple[Any, ...]) -> None:
        raise StoreFull("no room")

    made.check = check
    own = UsageError("bad")
    first, bad, last = made.run(add("a"), failing(own), add("b"))
    assert bad is own
    assert isinstance(first, StoreFull)
    assert isinstance(last, StoreFull)
    made.check = lambda _values: None
    assert made.run(add("c")) == [0]
    assert made.roots == [(), ("c",)]


def test_what_is_gone_of_the_root_is_looked_for_again_alone(made: Committed) -> None:
    runs: list[int] = []

    def gone(cursor: RootLattice, own: KeyPair) -> int:
        runs.append(1)
        if len(runs) == 1:
            raise MissingData([bytes(32)])
        return add("late")(cursor, own)

    assert made.run(add("a"), gone, add("b")) == [0, 2, 1]
    assert made.roots == [(), ("a", "b"), ("a", "b", "late")]


def test_damage_is_told_as_it_was_met_first(made: Committed) -> None:
    found = [Corruption("segment at byte 7"), MissingData([bytes(32)])]

    def damaged(_cursor: RootLattice, _own: KeyPair) -> int:
        raise found.pop(0)

    (told,) = made.run(damaged)
    assert isinstance(told, Corruption)
    assert "at byte 7" in str(told)
    assert found == []


def test_who_waits_in_vain_is_not_written(made: Committed) -> None:
    with made.all_wait() as start:
        start(lambda: made.groups.edit(KEYS, add("a"), PATIENCE_S))
        with pytest.raises(StoreLocked, match="waited 0 s in vain for other threads"):
            other(lambda: made.groups.edit(KEYS, add("never"), 0.0))
        start(lambda: made.groups.edit(KEYS, add("b"), PATIENCE_S))
    assert made.roots == [(), ("a", "b")]


def other(work: Callable[[], object]) -> None:
    """Do work in another thread; raise what it raises."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except DataLatticeError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def test_a_leader_that_waits_in_vain_leaves_the_rest_to_the_next(made: Committed) -> None:
    outcomes: list[Any] = []

    def lead() -> None:
        with pytest.raises(StoreLocked):
            made.groups.edit(KEYS, add("never"), 0.05)

    with made.turn.held(PATIENCE_S, "test"):
        leader = threading.Thread(target=lead)
        leader.start()
        while not made.groups.waiting:
            os.sched_yield()
        next_one = threading.Thread(
            target=lambda: outcomes.append(made.groups.edit(KEYS, add("a"), PATIENCE_S))
        )
        next_one.start()
        leader.join()
    next_one.join()
    assert (outcomes, made.roots) == ([0], [(), ("a",)])


def test_a_signal_to_the_leader_stops_its_own_change_alone(made: Committed) -> None:
    signal = KeyboardInterrupt()
    first, *rest = made.run(failing(signal), add("a"), add("b"))
    assert first is signal
    assert rest == [0, 1]
    assert made.roots[-1] == ("a", "b")


def test_a_signal_during_the_commit_leaves_the_others_unsure(made: Committed) -> None:
    def check(_values: tuple[Any, ...]) -> None:
        raise KeyboardInterrupt

    made.check = check
    first, second = made.run(add("a"), add("b"))
    assert isinstance(first, KeyboardInterrupt)
    assert isinstance(second, OutcomeUnknown)
    made.check = lambda _values: None
    assert made.run(add("c")) == [0]


def test_a_thread_that_has_the_turn_writes_at_once(made: Committed) -> None:
    with made.all_wait() as start:
        start(lambda: made.groups.edit(KEYS, add("waits"), PATIENCE_S))
        assert made.groups.edit(KEYS, add("mine"), 0.0) == 0
    assert made.roots[-1] == ("mine", "waits")


def test_a_commit_is_of_one_owner(made: Committed) -> None:
    with made.all_wait() as start:
        for keys, value in ((KEYS, "a"), (OTHERS, "b"), (KEYS, "c")):
            start(partial(made.groups.edit, keys, add(value), PATIENCE_S))
    assert made.roots == [(), ("a", "c"), ("a", "c", "b")]


def test_a_commit_has_a_bound(made: Committed) -> None:
    assert sorted(made.run(*map(add, range(GROUP_MAX + 2)))) == list(range(GROUP_MAX + 2))
    assert [len(root) for root in made.roots] == [0, GROUP_MAX, GROUP_MAX + 2]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=8))
def test_a_group_gives_what_its_changes_give_one_by_one(steps: list[tuple[int, bool]]) -> None:
    changes = [failing(UsageError(str(n))) if fails else add(n) for n, fails in steps]
    together, alone = Committed(), Committed()
    found = together.run(*changes)
    for change, outcome in zip(changes, found, strict=True):
        if isinstance(outcome, UsageError):
            with pytest.raises(UsageError, match=str(outcome)):
                alone.groups.edit(KEYS, change, 0.0)
        else:
            assert alone.groups.edit(KEYS, change, 0.0) == outcome
    assert together.roots[-1] == alone.roots[-1]
    assert len(together.roots) <= 2


# --- a service on them ---


@pytest.fixture
def service() -> Iterator[tuple[Service, MemoryFolder]]:
    with datalattice.open(":memory:") as node:
        data = node._data
        assert isinstance(data, MemoryFolder)
        yield Service(node), data


def call_together(
    service: tuple[Service, MemoryFolder], requests: list[tuple[Any, str | None]]
) -> list[Any]:
    """Make requests with their ids in one group; return what came of each."""
    outcomes: list[Any] = [None] * len(requests)

    def call(at: int) -> None:
        request, id = requests[at]
        try:
            outcomes[at] = service[0].call(request, OPERATOR, request_id=id)
        except DataLatticeError as error:
            outcomes[at] = error

    with gathering(service[1]._threads, service[1]._groups) as start:
        for at in range(len(requests)):
            start(partial(call, at))
    return outcomes


def test_a_group_costs_one_signature_for_each_section_and_one_commit(
    service: tuple[Service, MemoryFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    signed: list[bytes] = []
    sign = KeyPair.sign

    def counted(self: KeyPair, message: bytes) -> bytes:
        signed.append(message)
        return sign(self, message)

    puts = [WriteKeys(database="d", writes=(KeyWrite(key=str(n), value=n),)) for n in range(9)]
    offers = [OfferRecords(topic="t", values=(n,)) for n in range(9)]
    monkeypatch.setattr(KeyPair, "sign", counted)
    call_together(service, [(one, None) for one in puts])
    assert len(signed) == 1
    call_together(service, [(one, f"offer-{at}") for at, one in enumerate(offers)])
    assert len(signed) == 3  # the queue, and the results that are kept


def test_an_id_that_comes_several_times_in_one_group_has_one_effect(
    service: tuple[Service, MemoryFolder],
) -> None:
    once = OfferRecords(topic="t", values=("once",))
    outcomes = call_together(service, [(once, "id"), (once, None), (once, "id"), (once, "id")])
    starts = [one.spans[0].start for one in outcomes]
    assert starts == [0, 1, 0, 0]
    found = service[0].call(once, OPERATOR, request_id="id")
    assert found.spans[0].start == 0
    assert call_together(service, [(once, None)])[0].spans[0].start == 2


def test_a_bad_write_of_a_group_keeps_no_result(service: tuple[Service, MemoryFolder]) -> None:
    text = WriteKeys(database="d", writes=(KeyWrite(key="a", value="text"),))
    more = WriteKeys(database="d", writes=(KeyWrite(key="a", operation=KeyOperation.INCR),))
    good, bad, last = call_together(service, [(text, "1"), (more, "2"), (text, "3")])
    assert isinstance(bad, DataLatticeError)
    assert (good.results, last.results) == ((None,), (None,))
    # "An error is not kept": the same request may succeed later.
    clear = WriteKeys(database="d", writes=(KeyWrite(key="a", operation=KeyOperation.DELETE),))
    service[0].call(clear, OPERATOR)
    assert service[0].call(more, OPERATOR, request_id="2").results == (1,)


def test_what_changes_share_is_made_and_written_once_a_commit() -> None:
    with datalattice.open(":memory:") as node:
        data = node._data
        assert isinstance(data, MemoryFolder)
        numbers = node.database("d")
        written: list[list[int]] = []

        def finish(shared: list[int]) -> None:
            written.append(shared)
            numbers["all"] = len(shared)

        def add_one(number: int) -> None:
            def work() -> None:
                shared = node.share("key", list[int], finish)
                assert shared is not None
                shared.append(number)
                if number == 2:
                    raise UsageError("after it was shared")

            node.atomically(work)

        def one(number: int) -> None:
            if number == 2:
                with pytest.raises(UsageError):
                    add_one(number)
            else:
                add_one(number)

        with gathering(data._threads, data._groups) as start:
            for number in range(4):
                start(partial(one, number))
        add_one(9)
        assert written == [[0, 1, 2, 3], [9]]
        assert numbers["all"] == 1
        with node.batch():
            assert node.share("key", list[int], finish) is None


def test_a_signal_behind_the_last_change_leaves_its_shared_part_to_the_next_commit() -> None:
    with datalattice.open(":memory:") as node:
        service = Service(node)
        once = OfferRecords(topic="t", values=("once",))
        data: Any = node._data
        commit = data._store.commit

        def stopped(*_given: object, **_named: object) -> None:
            raise KeyboardInterrupt

        data._store.commit = stopped
        with pytest.raises(KeyboardInterrupt):
            service.call(once, OPERATOR, request_id="id")
        data._store.commit = commit
        # Neither the record nor the result is there, so the same request has its effect now.
        assert service.call(once, OPERATOR, request_id="id").spans[0].start == 0
        assert service.call(once, OPERATOR, request_id="id").spans[0].start == 0
        assert len(node.queue("t")) == 1


def test_a_request_whose_answer_was_lost_behind_the_commit_is_found() -> None:
    with datalattice.open(":memory:") as node:
        service = Service(node)
        once = OfferRecords(topic="t", values=("once",))
        data: Any = node._data
        commit = data._store.commit

        def lost(*given: Any, **named: Any) -> None:
            commit(*given, **named)
            raise OutcomeUnknown("the connection broke")

        data._store.commit = lost
        with pytest.raises(OutcomeUnknown):
            service.call(once, OPERATOR, request_id="id")
        data._store.commit = commit
        assert service.call(once, OPERATOR, request_id="id").spans[0].start == 0
        assert len(node.queue("t")) == 1
