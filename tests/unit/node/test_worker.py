"""Worker: who publishes, in which order, and what its own work does to the time-outs of peers."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from datalattice.errors import StoreClosed, StoreFull
from datalattice.lattice import root_lattice
from datalattice.node.worker import (
    BUSY_MS_MIN,
    STRANGERS_MS_MAX,
    Action,
    SteadyClock,
    Worker,
)
from datalattice.store import MemoryStore
from datalattice.sync import Effects, LatticeProtocol, LatticeReplica, Replicator
from datalattice.sync.effects import ASK_TIMEOUT_MS


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 0

    def now_ms(self) -> int:
        return self.now

    def advance(self, ms: int) -> None:
        self.now += ms


@pytest.mark.parametrize(
    ("busy_ms", "notes"),
    [(BUSY_MS_MIN - 1, ["timeout"]), (BUSY_MS_MIN, []), (2 * ASK_TIMEOUT_MS, [])],
)
def test_the_time_a_node_was_busy_is_not_held_against_its_peers(
    busy_ms: int, notes: list[str]
) -> None:
    clock = Clock()
    replica = LatticeReplica(MemoryStore(), root_lattice())
    replicator = Replicator(replica, LatticeProtocol(clock))
    seen: list[Effects] = []
    worker = Worker(
        replicator,
        lambda effects, _done: seen.append(effects),
        lambda error: pytest.fail(str(error)),
        clock,
    )
    # It asks one thing at once: to be told of changes.
    worker._turn([(lambda node, now_ms: node.open("p", now_ms, outbound=True), None)])
    clock.advance(ASK_TIMEOUT_MS - BUSY_MS_MIN + 1)
    worker._turn([(lambda _node, _now_ms: clock.advance(busy_ms), None)])
    assert [note.kind for effects in seen for note in effects.notes] == notes
    clock.advance(BUSY_MS_MIN)
    worker._turn([])
    assert [note.kind for effects in seen for note in effects.notes] == ["timeout"]


class Counting:
    """A replica stand-in of a replicator: says on which thread it published."""

    def __init__(self, error: Exception | None = None) -> None:
        self.threads: list[int] = []
        self.error = error
        self.owes = False
        self.crowded = False
        self.deadline_ms: int | None = None
        self.ticks = threading.Event()

    def publish(self, now_ms: int) -> None:
        self.threads.append(threading.get_ident())
        if self.owes:
            self.deadline_ms = now_ms
        if self.error is not None:
            raise self.error

    def tick(self, _now_ms: int) -> None:
        self.deadline_ms = None
        self.ticks.set()

    def next_deadline(self) -> int | None:
        return self.deadline_ms

    def take_effects(self) -> Effects:
        return Effects()


@contextlib.contextmanager
def running(replicator: Counting, failed: list[Exception]) -> Iterator[Worker]:
    worker = Worker(cast("Replicator", replicator), lambda *_: None, failed.append)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def test_an_idle_worker_leaves_a_publication_to_the_thread_that_asks() -> None:
    node = Counting()
    with running(node, []) as worker:
        worker.publish()
    assert node.threads == [threading.get_ident()]


def test_a_publication_waits_in_line_behind_what_was_submitted() -> None:
    node = Counting()
    order: list[str] = []
    began, go = threading.Event(), threading.Event()

    def busy(_node: Replicator, _now_ms: int) -> None:
        began.set()
        go.wait(10)
        order.append("busy")

    with running(node, []) as worker:
        worker.submit(busy)
        assert began.wait(10)
        threads = [threading.Thread(target=worker.publish) for _ in range(3)]
        for thread in threads:
            thread.start()
        go.set()
        for thread in threads:
            thread.join(10)
    assert order == ["busy"]
    assert 1 <= len(node.threads) <= 3
    assert threading.get_ident() not in node.threads


def test_a_publication_does_not_overtake_what_peers_said() -> None:
    node = Counting()
    before: list[int] = []
    worker = Worker(cast("Replicator", node), lambda *_: None, lambda _: None)
    worker.submit(lambda _node, _now_ms: before.append(len(node.threads)))
    # The worker has not begun, so whoever waits for it waits in vain.
    with pytest.raises(TimeoutError):
        worker.publish(timeout_s=0)
    assert node.threads == []
    worker.start()
    worker.stop()
    assert before == [0]
    assert len(node.threads) == 1


def test_a_thread_that_publishes_all_the_time_lets_others_have_their_turn() -> None:
    node = Counting()
    done = threading.Event()
    with running(node, []) as worker:
        worker.submit(lambda _node, _now_ms: done.set())
        while not done.is_set():
            worker.publish()
    assert done.is_set()


def test_a_failed_publication_is_raised_where_it_was_asked_for_and_reported() -> None:
    failed: list[Exception] = []
    error = StoreFull("no room")
    with running(Counting(error), failed) as worker:
        with pytest.raises(StoreFull):
            worker.publish()
        assert failed == [error]


def test_a_deadline_that_a_publication_brings_wakes_the_thread() -> None:
    node = Counting()
    node.owes = True
    with running(node, []) as worker:
        worker.publish()
        assert node.ticks.wait(10)


def test_timers_do_not_notice_that_the_wall_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    hour_ns = 3_600 * 10**9
    for step_ns in (-hour_ns, hour_ns):
        wall = itertools.count(1_800_000_000 * 10**9, step_ns)
        monkeypatch.setattr(time, "time_ns", lambda wall=wall: next(wall))
        monkeypatch.setattr(time, "time", lambda wall=wall: next(wall) / 10**9)
        clock = SteadyClock()
        times_ms = [clock.now_ms() for _ in range(3)]
        assert times_ms == sorted(times_ms)
        assert times_ms[-1] - times_ms[0] < hour_ns // 10**6


def test_nothing_is_published_after_the_end() -> None:
    node = Counting()
    with running(node, []) as worker:
        pass
    with pytest.raises(StoreClosed):
        worker.publish()
    assert node.threads == []


def test_strangers_wait_for_all_others() -> None:
    order: list[str] = []

    def say(word: str) -> Action:
        return lambda _node, _now_ms: order.append(word)

    worker = Worker(cast("Replicator", Counting()), lambda *_: None, lambda _: None)
    for word in ("a", "b", "c"):
        worker.submit(say(word), stranger=True)
    worker.submit(say("peer"))
    worker.start()
    worker.stop()
    assert order == ["peer", "a", "b", "c"]


def test_strangers_have_their_turn_when_others_never_rest() -> None:
    done = threading.Event()
    node = Counting()
    with running(node, []) as worker:

        def again(_node: Replicator, _now_ms: int) -> None:
            if not done.is_set():
                worker.submit(again)

        worker.submit(again)
        worker.submit(lambda _node, _now_ms: done.set(), stranger=True)
        assert done.wait(10)


@pytest.mark.parametrize(("others_ms", "turns"), [(9, 5), (10, 4), (15, 3), (30, 2)])
def test_strangers_have_no_more_time_than_the_others_who_wait(others_ms: int, turns: int) -> None:
    clock = Clock()
    worker = Worker(cast("Replicator", Counting()), lambda *_: None, lambda _: None, clock)
    served: list[int] = []

    def toil(ms: int, name: int) -> Action:
        def action(_node: Replicator, _now_ms: int) -> None:
            clock.advance(ms)
            served.extend([name] * name)

        return action

    worker.submit(toil(30, 1), stranger=True)
    worker.submit(toil(30, 1), stranger=True)
    # Others wait all the time: the queue is never empty.
    count = 0
    while len(served) < 2 and count < 9:
        worker._turn([(toil(others_ms, 0), None)])
        count += 1
    assert count == turns


def test_a_replicator_knows_that_more_strangers_wait_while_one_has_its_turn() -> None:
    crowded: list[bool] = []

    def look(node: Replicator, _now_ms: int) -> None:
        crowded.append(node.crowded)

    worker = Worker(cast("Replicator", Counting()), lambda *_: None, lambda _: None)
    for is_stranger in (True, True, True, False):
        worker.submit(look, stranger=is_stranger)
    worker.start()
    worker.stop()
    assert crowded == [False, True, True, False]


def test_a_stranger_wakes_the_thread_however_often() -> None:
    with running(Counting(), []) as worker:
        for _ in range(100):
            done = threading.Event()
            worker.submit(lambda _node, _now_ms, done=done: done.set(), stranger=True)  # type: ignore[misc]
            assert done.wait(10)


@pytest.mark.parametrize(
    ("cost_ms", "count"),
    [(STRANGERS_MS_MAX - 1, 2), (STRANGERS_MS_MAX, 1), (STRANGERS_MS_MAX + 1, 1)],
)
def test_the_time_of_strangers_in_one_turn_is_bounded(cost_ms: int, count: int) -> None:
    clock = Clock()
    done: list[int] = []

    def toil(_node: Replicator, now_ms: int) -> None:
        done.append(now_ms)
        clock.advance(cost_ms)

    worker = Worker(cast("Replicator", Counting()), lambda *_: None, lambda _: None, clock)
    for _ in range(5):
        worker.submit(toil, stranger=True)
    worker._queue.get_nowait()
    worker._turn([])
    assert len(done) == count


def test_a_fault_while_effects_are_handed_out_does_not_end_the_thread() -> None:
    failed: list[Exception] = []
    done = threading.Event()

    def deliver(_effects: Effects, told: Callable[[], None] | None) -> None:
        if told is not None:
            told()

    def fail() -> None:
        raise RuntimeError("nobody is there")

    worker = Worker(cast("Replicator", Counting()), deliver, failed.append)
    worker.start()
    try:
        worker.submit(lambda _node, _now_ms: None, fail)
        worker.submit(lambda _node, _now_ms: None, done.set)
        assert done.wait(20)
    finally:
        worker.stop()
    assert [str(error) for error in failed] == ["nobody is there"]
