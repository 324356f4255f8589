"""Lanes: who works, who publishes, in which order, and what that does to the time-outs of peers."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from datalattice.errors import StoreClosed, StoreFull, UsageError
from datalattice.lattice import root_lattice
from datalattice.node.lanes import (
    BUSY_MS_MIN,
    DEADLINES_SPARE,
    LANE_THREADS_MAX,
    STRANGERS_TURN,
    TURN_ACTIONS_MAX,
    TURN_MS_MAX,
    Lane,
    LaneAction,
    LanePool,
    SteadyClock,
)
from datalattice.store import MemoryStore
from datalattice.sync import Effects, LatticeProtocol, LatticeReplica, Replicator
from datalattice.sync.effects import ASK_TIMEOUT_MS
from datalattice.testing.polling import LIMIT_S


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
    lane = Lane(
        LanePool(clock=clock),
        replicator,
        lambda effects, _done: seen.append(effects),
        lambda error: pytest.fail(str(error)),
    )
    # It asks one thing at once: to be told of changes.
    lane.submit(lambda node, now_ms: node.open("p", now_ms, outbound=True))
    lane._turn(lane._clock.now_ms())
    clock.advance(ASK_TIMEOUT_MS - BUSY_MS_MIN + 1)
    lane.submit(lambda _node, _now_ms: clock.advance(busy_ms))
    lane._turn(lane._clock.now_ms())
    assert [note.kind for effects in seen for note in effects.notes] == notes
    clock.advance(BUSY_MS_MIN)
    lane._turn(lane._clock.now_ms())
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

    def tick(self, _now_ms: int, _busy_ms: int = 0) -> None:
        self.deadline_ms = None
        self.ticks.set()

    def next_deadline(self) -> int | None:
        return self.deadline_ms

    def take_effects(self) -> Effects:
        return Effects()


@contextlib.contextmanager
def running(replicator: Counting, failed: list[Exception]) -> Iterator[Lane]:
    with pooled(2) as pool:
        lane = Lane(pool, cast("Replicator", replicator), lambda *_: None, failed.append)
        lane.start()
        try:
            yield lane
        finally:
            lane.stop()


@contextlib.contextmanager
def pooled(threads: int, clock: Clock | None = None) -> Iterator[LanePool]:
    pool = LanePool(threads, clock)
    try:
        yield pool
    finally:
        pool.close()
    assert not any(thread.is_alive() for thread in pool._threads)


def resting(pool: LanePool, node: Counting | None = None) -> Lane:
    """Return a lane that was not started yet."""
    return Lane(pool, cast("Replicator", node or Counting()), lambda *_: None, pytest.fail)  # type: ignore[arg-type]


def test_an_idle_lane_leaves_a_publication_to_the_thread_that_asks() -> None:
    node = Counting()
    with running(node, []) as lane:
        lane.publish()
    assert node.threads == [threading.get_ident()]


def test_a_publication_waits_in_line_behind_what_was_submitted() -> None:
    node = Counting()
    order: list[str] = []
    began, go = threading.Event(), threading.Event()

    def busy(_node: Replicator, _now_ms: int) -> None:
        began.set()
        go.wait(LIMIT_S)
        order.append("busy")

    with running(node, []) as lane:
        lane.submit(busy)
        assert began.wait(LIMIT_S)
        threads = [threading.Thread(target=lane.publish) for _ in range(3)]
        for thread in threads:
            thread.start()
        go.set()
        for thread in threads:
            thread.join(LIMIT_S)
    assert order == ["busy"]
    assert 1 <= len(node.threads) <= 3
    assert threading.get_ident() not in node.threads


def test_a_publication_does_not_overtake_what_peers_said() -> None:
    node = Counting()
    before: list[int] = []
    lane = resting(LanePool(1), node)
    lane.submit(lambda _node, _now_ms: before.append(len(node.threads)))
    # The lane has not begun, so whoever waits for it waits in vain.
    with pytest.raises(TimeoutError):
        lane.publish(timeout_s=0)
    assert node.threads == []
    lane.start()
    lane.stop()
    assert before == [0]
    assert len(node.threads) == 1


def test_a_thread_that_publishes_all_the_time_lets_others_have_their_turn() -> None:
    node = Counting()
    done = threading.Event()
    with running(node, []) as lane:
        lane.submit(lambda _node, _now_ms: done.set())
        while not done.is_set():
            lane.publish()
    assert done.is_set()


def test_a_failed_publication_is_raised_where_it_was_asked_for_and_reported() -> None:
    failed: list[Exception] = []
    error = StoreFull("no room")
    with running(Counting(error), failed) as lane:
        with pytest.raises(StoreFull):
            lane.publish()
        assert failed == [error]


def test_a_deadline_that_a_publication_brings_wakes_the_thread() -> None:
    node = Counting()
    node.owes = True
    with running(node, []) as lane:
        lane.publish()
        assert node.ticks.wait(LIMIT_S)


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
    with running(node, []) as lane:
        pass
    with pytest.raises(StoreClosed):
        lane.publish()
    assert node.threads == []


def test_strangers_wait_for_all_others() -> None:
    order: list[str] = []

    def say(word: str) -> LaneAction:
        return lambda _node, _now_ms: order.append(word)

    lane = resting(LanePool(1))
    for word in ("a", "b", "c"):
        lane.submit(say(word), stranger=True)
    lane.submit(say("peer"))
    lane.start()
    lane.stop()
    assert order == ["peer", "a", "b", "c"]


def test_strangers_have_their_turn_when_others_never_rest() -> None:
    done = threading.Event()
    node = Counting()
    with running(node, []) as lane:

        def again(_node: Replicator, _now_ms: int) -> None:
            if not done.is_set():
                lane.submit(again)

        lane.submit(again)
        lane.submit(lambda _node, _now_ms: done.set(), stranger=True)
        assert done.wait(LIMIT_S)


@pytest.mark.parametrize(("others_ms", "turns"), [(9, 5), (10, 4), (15, 3), (30, 2)])
def test_strangers_have_no_more_time_than_the_others_who_wait(others_ms: int, turns: int) -> None:
    clock = Clock()
    lane = resting(LanePool(1, clock))
    served: list[int] = []

    def toil(ms: int, name: int) -> LaneAction:
        def action(_node: Replicator, _now_ms: int) -> None:
            clock.advance(ms)
            served.extend([name] * name)

        return action

    lane.submit(toil(30, 1), stranger=True)
    lane.submit(toil(30, 1), stranger=True)
    # Others wait all the time: the line is never empty.
    lane.submit(toil(others_ms, 0))
    count = 0
    while len(served) < 2 and count < 9:
        lane.submit(toil(others_ms, 0))
        lane._turn(lane._clock.now_ms(), actions_max=1)
        count += 1
    assert count == turns


def test_a_replicator_knows_that_more_strangers_wait_while_one_has_its_turn() -> None:
    crowded: list[bool] = []

    def look(node: Replicator, _now_ms: int) -> None:
        crowded.append(node.crowded)

    lane = resting(LanePool(1))
    for is_stranger in (True, True, True, False):
        lane.submit(look, stranger=is_stranger)
    lane.start()
    lane.stop()
    assert crowded == [False, True, True, False]


def test_a_stranger_wakes_the_thread_however_often() -> None:
    with running(Counting(), []) as lane:
        for _ in range(100):
            done = threading.Event()
            lane.submit(lambda _node, _now_ms, done=done: done.set(), stranger=True)  # type: ignore[misc]
            assert done.wait(LIMIT_S)


@pytest.mark.parametrize(
    ("cost_ms", "count"),
    [(TURN_MS_MAX - 1, 2), (TURN_MS_MAX, 1), (TURN_MS_MAX + 1, 1)],
)
def test_the_time_of_strangers_in_one_turn_is_bounded(cost_ms: int, count: int) -> None:
    clock = Clock()
    done: list[int] = []

    def toil(_node: Replicator, now_ms: int) -> None:
        done.append(now_ms)
        clock.advance(cost_ms)

    lane = resting(LanePool(1, clock))
    for _ in range(5):
        lane.submit(toil, stranger=True)
    lane._turn(lane._clock.now_ms())
    assert len(done) == count


def test_a_fault_while_effects_are_handed_out_does_not_end_the_thread() -> None:
    failed: list[Exception] = []
    done = threading.Event()

    def deliver(_effects: Effects, told: Callable[[], None] | None) -> None:
        if told is not None:
            told()

    def fail() -> None:
        raise RuntimeError("nobody is there")

    with pooled(1) as pool:
        lane = Lane(pool, cast("Replicator", Counting()), deliver, failed.append)
        lane.start()
        lane.submit(lambda _node, _now_ms: None, fail)
        lane.submit(lambda _node, _now_ms: None, done.set)
        assert done.wait(LIMIT_S)
    assert [str(error) for error in failed] == ["nobody is there"]


# --- many lanes on a pool -----------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, LANE_THREADS_MAX + 1])
def test_a_pool_has_a_thread_and_no_more_than_four(count: int) -> None:
    with pytest.raises(UsageError, match=f"1 to {LANE_THREADS_MAX} threads"):
        LanePool(count)


@pytest.mark.parametrize(("cores", "count"), [(None, 1), (1, 1), (3, 3), (4, 4), (5, 4), (64, 4)])
def test_a_pool_has_no_more_threads_than_there_are_processors(
    cores: int | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    pool = LanePool()
    meeting = threading.Barrier(count + 1)

    def meet(_node: Replicator, _now_ms: int) -> None:
        meeting.wait(LIMIT_S)

    try:
        for _ in range(count + 3):
            lane = resting(pool)
            lane.start()
            lane.submit(meet)
            if pool.thread_count == count:
                break
        meeting.wait(LIMIT_S)  # so many actions go on at once
        extra = [resting(pool) for _ in range(8)]
        for lane in extra:
            lane.start()
            lane.submit(lambda _node, _now_ms: None)
        assert pool.thread_count == count
    finally:
        pool.close()


def test_five_hundred_lanes_have_four_threads() -> None:
    with pooled(LANE_THREADS_MAX) as pool:
        nodes = [Counting() for _ in range(500)]
        lanes = [resting(pool, node) for node in nodes]
        for lane in lanes:
            lane.start()
        assert pool.thread_count == 0  # there is nothing to do yet
        done: list[int] = []
        for _ in range(3):
            for number, lane in enumerate(lanes):
                lane.submit(lambda _node, _now_ms, number=number: done.append(number))  # type: ignore[misc]
        for lane in lanes:
            lane.publish(20)
        for lane in lanes:
            lane.stop()
        assert sorted(done) == sorted([*range(500)] * 3)
        assert all(len(node.threads) == 1 for node in nodes)
        assert 1 <= pool.thread_count <= LANE_THREADS_MAX


def test_a_pool_does_what_is_in_line_before_it_ends() -> None:
    done: list[int] = []
    with pooled(2) as pool:
        lanes = [resting(pool) for _ in range(20)]
        for number, lane in enumerate(lanes):
            if number % 2:
                lane.start()
            for _ in range(100):
                lane.submit(lambda _node, _now_ms, number=number: done.append(number))  # type: ignore[misc]
            lane.submit(lambda _node, _now_ms, number=number: done.append(number), stranger=True)  # type: ignore[misc]
    assert sorted(done) == sorted([*range(20)] * 101)
    lanes[0].submit(lambda _node, _now_ms: done.append(-1))
    assert -1 not in done
    with pytest.raises(StoreClosed):
        lanes[0].publish()
    with pytest.raises(StoreClosed):
        resting(pool)
    lanes[0].stop()
    pool.close()


def test_a_lane_cannot_wait_for_its_own_end() -> None:
    failed: list[Exception] = []
    with running(Counting(), failed) as lane:
        lane.submit(lambda _node, _now_ms: lane.stop())
    assert [type(error) for error in failed] == [UsageError]


def test_a_long_action_keeps_no_other_lane_from_running() -> None:
    with pooled(2) as pool:
        slow, quick = resting(pool), resting(pool)
        go, heard = threading.Event(), []
        slow.start()
        quick.start()
        slow.submit(lambda _node, _now_ms: heard.append(go.wait(LIMIT_S)))
        for _ in range(3):
            done = threading.Event()
            quick.submit(lambda _node, _now_ms, done=done: done.set())  # type: ignore[misc]
            assert done.wait(LIMIT_S)
        quick.publish(20)
        go.set()
        slow.stop()
        assert heard == [True]


class Order(list[str]):
    """What was said, in order."""

    def __init__(self) -> None:
        super().__init__()
        self._more = threading.Condition()

    def say(self, word: str) -> None:
        with self._more:
            self.append(word)
            self._more.notify_all()

    def wait(self, count: int) -> None:
        with self._more:
            assert self._more.wait_for(lambda: len(self) >= count, LIMIT_S)


@contextlib.contextmanager
def lined_up(
    clock: Clock | None = None,
    meanwhile: Callable[[], None] | None = None,
    expected: tuple[Order, int] | None = None,
) -> Iterator[LanePool]:
    """Yield a pool with one thread, which begins its work at the end of the block.

    clock:    by default one that stands still: the order depends on the time that actions take.
    expected: so many words are said in its lanes before they end.
    """
    with pooled(1, clock or Clock()) as pool:
        gate = resting(pool)
        began, go = threading.Event(), threading.Event()

        def wait(_node: Replicator, _now_ms: int) -> None:
            began.set()
            go.wait(LIMIT_S)
            if meanwhile is not None:
                meanwhile()

        gate.start()
        gate.submit(wait)
        assert began.wait(LIMIT_S)
        try:
            yield pool
        finally:
            go.set()
        if expected is not None:
            order, count = expected
            order.wait(count)  # for lanes that end have no turn in four to wait for


def saying(order: Order, word: str, clock: Clock | None = None, ms: int = 0) -> LaneAction:
    def action(_node: Replicator, _now_ms: int) -> None:
        order.say(word)
        if clock is not None:
            clock.advance(ms)

    return action


@pytest.mark.parametrize(
    ("count", "first"),
    [
        (TURN_ACTIONS_MAX - 1, TURN_ACTIONS_MAX - 1),
        (TURN_ACTIONS_MAX, TURN_ACTIONS_MAX),
        (TURN_ACTIONS_MAX + 1, TURN_ACTIONS_MAX),
    ],
)
def test_a_turn_has_so_many_actions(count: int, first: int) -> None:
    order = Order()
    with lined_up() as pool:
        lanes = [resting(pool), resting(pool)]
        for lane, word, times in zip(lanes, "ab", (count, 1), strict=True):
            lane.start()
            for _ in range(times):
                lane.submit(saying(order, word))
    assert order == ["a"] * first + ["b"] + ["a"] * (count - first)


@pytest.mark.parametrize(
    ("cost_ms", "expected"),
    [(TURN_MS_MAX - 1, "aab"), (TURN_MS_MAX, "aba"), (TURN_MS_MAX + 1, "aba")],
)
def test_a_turn_has_so_much_time(cost_ms: int, expected: str) -> None:
    order = Order()
    clock = Clock()
    with lined_up(clock) as pool:
        lanes = [resting(pool), resting(pool)]
        for lane, words in zip(lanes, ("aa", "b"), strict=True):
            lane.start()
            for word in words:
                lane.submit(saying(order, word, clock, cost_ms))
    assert "".join(order) == expected


def test_lanes_of_strangers_have_one_turn_in_four_while_others_wait() -> None:
    order = Order()
    with lined_up(expected=(order, 14)) as pool:
        for word in "xyz":
            lane = resting(pool)
            lane.start()
            for _ in range(2):
                lane.submit(saying(order, word), stranger=True)
        for number in range(8):
            lane = resting(pool)
            lane.start()
            lane.submit(saying(order, str(number)))
    assert STRANGERS_TURN == 4
    # The gate was the first turn of all. While others wait, a turn of strangers has one message.
    assert "".join(order) == "012x345y67zzxy"


def test_lanes_of_strangers_have_no_more_time_than_the_others_who_wait() -> None:
    order = Order()
    clock = Clock()
    with lined_up(clock, expected=(order, 12)) as pool:
        for word in "xy":
            lane = resting(pool)
            lane.start()
            lane.submit(saying(order, word, clock, 50), stranger=True)
        for number in range(10):
            lane = resting(pool)
            lane.start()
            lane.submit(saying(order, str(number), clock, 10))
    # x takes 50 ms, which are five turns of the others.
    assert "".join(order) == "012x34567y89"


def test_a_lane_of_strangers_comes_first_when_somebody_else_speaks_there() -> None:
    order = Order()
    with lined_up(expected=(order, 5)) as pool:
        lanes = [resting(pool) for _ in range(4)]
        for lane, word in zip(lanes, "abcd", strict=True):
            lane.start()
            lane.submit(saying(order, word), stranger=True)
        lanes[3].submit(saying(order, "D"))
    assert order == ["D", "d", "a", "b", "c"]


def test_deadlines_of_many_lanes_fire_in_order() -> None:
    clock = Clock()
    order: list[int] = []

    class Due(Counting):
        def tick(self, now_ms: int, busy_ms: int = 0) -> None:
            assert self.deadline_ms is not None
            assert self.deadline_ms <= now_ms
            order.append(self.deadline_ms)
            super().tick(now_ms, busy_ms)

    chance = random.Random(1)
    with pooled(1, clock) as pool:
        nodes = {1_000_000 + ms: Due() for ms in chance.sample(range(1, 10_000), 100)}
        for deadline_ms, node in nodes.items():
            node.deadline_ms = deadline_ms
        lanes = [resting(pool, node) for node in nodes.values()]
        times = sorted(nodes)
        bell = resting(pool)
        for lane in [*lanes, bell]:
            lane.start()
        for now_ms in (times[0] - 1, times[0], times[30], times[99]):
            clock.now = now_ms
            bell.submit(lambda _node, _now_ms: None)  # so that the thread looks at the clock
            expected = [ms for ms in times if ms <= now_ms]
            assert all(nodes[ms].ticks.wait(LIMIT_S) for ms in expected)
            assert order == expected
            assert [one.deadline_ms for one in nodes.values()].count(None) == len(expected)


def test_a_deadline_is_kept_while_other_lanes_work() -> None:
    with pooled(2) as pool:
        waiting, busy = Counting(), resting(pool)
        waiting.deadline_ms = pool.clock.now_ms() + 100
        heard: list[bool] = []
        resting(pool, waiting).start()
        busy.start()
        busy.submit(lambda _node, _now_ms: heard.append(waiting.ticks.wait(LIMIT_S)))
        busy.stop()
        assert heard == [True]


def test_an_earlier_deadline_wakes_whoever_waits_for_a_later_one() -> None:
    with pooled(1) as pool:
        late, early = Counting(), Counting()
        late.deadline_ms = pool.clock.now_ms() + 3_600_000
        resting(pool, late).start()
        lane = resting(pool, early)
        lane.start()
        early.owes = True
        lane.publish()
        assert early.ticks.wait(LIMIT_S)
        assert not late.ticks.is_set()


def test_deadlines_that_are_put_off_take_no_room() -> None:
    clock = Clock()
    with pooled(1, clock) as pool:
        nodes = [Counting() for _ in range(10)]
        lanes = [resting(pool, node) for node in nodes]
        for number in range(5_000):
            nodes[number % 10].deadline_ms = 10**9 + number
            lanes[number % 10].start()
        assert len(pool._deadlines) <= 2 * 10 + DEADLINES_SPARE
        clock.now = 2 * 10**9
        lanes[0].submit(lambda _replicator, _now_ms: None)  # a thread wakes, and reads the clock
        assert all(node.ticks.wait(LIMIT_S) for node in nodes)


def test_publications_that_move_no_deadline_enter_it_once() -> None:
    clock = Clock()
    with pooled(1, clock) as pool:
        node = Counting()
        lane = resting(pool, node)
        node.deadline_ms = 1_000
        lane.start()
        for _ in range(100):
            lane.publish()
        assert len(pool._deadlines) == 1
        clock.now = 1_000
        lane.submit(lambda _replicator, _now_ms: None)  # a thread wakes, and reads the clock
        assert node.ticks.wait(LIMIT_S)


def test_a_deadline_that_passes_during_a_publication_is_kept() -> None:
    clock = Clock()
    with pooled(1, clock) as pool:
        node = Counting()
        lane = resting(pool, node)
        node.deadline_ms = 1_000
        lane.start()
        assert pool._hold(lane) is None
        clock.now = 2_000
        with pool._lock:  # another thread looks for work meanwhile
            pool._next_deadline(clock.now)
            assert lane not in pool._ready, "a thread publishes in it"
        pool._give_back(lane)
        assert node.ticks.wait(LIMIT_S)


@pytest.mark.parametrize(("busy_ms", "excused"), [(BUSY_MS_MIN - 1, []), (BUSY_MS_MIN, [500])])
def test_the_time_a_lane_waited_for_a_thread_is_not_held_against_its_peers(
    busy_ms: int, excused: list[int]
) -> None:
    clock = Clock()
    found: list[int] = []

    class Patient(Counting):
        def tick(self, _now_ms: int, busy_ms: int = 0) -> None:
            found.append(busy_ms)

    with lined_up(clock, lambda: clock.advance(busy_ms)) as pool:
        lane = resting(pool, Patient())
        lane.start()
        lane.submit(lambda _node, _now_ms: None)
    assert found == excused


class Bell:
    """What wakes a thread of a pool; takes down how long it was waited for."""

    def __init__(self, waits: list[float]) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._waits = waits

    def acquire(self, timeout: float = -1) -> bool:
        self._waits.append(timeout)
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()


class Observed(LanePool):
    """A pool of one thread; `waits`: the seconds it meant to wait, -1: until it is called."""

    def __init__(self) -> None:
        super().__init__(1)
        self.waits: list[float] = []
        self._bell = Bell(self.waits)

    def _wait(self, bell: threading.Lock) -> tuple[Lane | None, int]:
        return super()._wait(cast("threading.Lock", self._bell))


def test_a_thread_that_has_nothing_to_do_sleeps_until_it_is_called() -> None:
    pool = Observed()
    lane = resting(pool)
    lane.start()
    for _ in range(10):
        done = threading.Event()
        lane.submit(lambda _node, _now_ms, done=done: done.set())  # type: ignore[misc]
        assert done.wait(LIMIT_S)
    pool.close()
    assert set(pool.waits) <= {-1}
    assert len(pool.waits) <= 11  # once before each call


def test_a_thread_that_has_nothing_to_do_sleeps_until_a_deadline() -> None:
    pool = Observed()
    node = Counting()
    node.deadline_ms = pool.clock.now_ms() + 3_600_000
    lane = resting(pool, node)
    lane.start()
    lane.publish()  # the deadline stays what it was, so nobody is called
    pool.close()
    # A thread that began only when the pool was closed may have had no deadline to wait for.
    timed = [seconds for seconds in pool.waits if seconds != -1]
    assert len(timed) <= 1
    assert all(0 < seconds <= 3_600 for seconds in timed)


class Careful(Counting):
    """A replica stand-in that only one thread may touch at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.alone = threading.Lock()
        self.writing = threading.Lock()
        self.written = 0  # by the threads that write
        self.durable = 0
        self.seen: list[tuple[int, int]] = []  # (who, number)
        self.is_busy = threading.Event()

    @contextlib.contextmanager
    def touched(self) -> Iterator[None]:
        assert self.alone.acquire(blocking=False), "two threads in one lane"
        try:
            yield
        finally:
            self.alone.release()

    def publish(self, _now_ms: int) -> None:
        with self.touched():
            written = self.written
            time.sleep(0)  # lets other threads run
            self.durable = written

    def tick(self, now_ms: int, busy_ms: int = 0) -> None:
        with self.touched():
            super().tick(now_ms, busy_ms)

    def note(self, who: int, number: int) -> None:
        with self.touched():
            self.seen.append((who, number))
            if len(self.seen) > 50:
                self.is_busy.set()
            if not number % 5:
                self.deadline_ms = time.monotonic_ns() // 1_000_000


class Hammer:
    """A thread that submits to lanes and publishes in them, in any order."""

    def __init__(self, who: int, lanes: list[Lane], nodes: list[Careful], count: int) -> None:
        self.who = who
        self.sent = [0] * len(lanes)  # what was submitted in each, before `stop` was called
        self.refused = False
        self._lanes, self._nodes, self._count = lanes, nodes, count
        self._chance = random.Random(who)
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            for _ in range(self._count):
                self._strike(self._chance.randrange(len(self._lanes)))
        except StoreClosed:
            self.refused = True
        except (AssertionError, TimeoutError) as error:
            self.error = error

    def _strike(self, place: int) -> None:
        lane, node, who, number = self._lanes[place], self._nodes[place], self.who, self.sent[place]
        stranger = who % 3 == 0
        lane.submit(lambda _node, _now_ms: node.note(who, number), stranger=stranger)
        self.sent[place] += 1
        if self._chance.random() < 0.3:
            with node.writing:
                node.written += 1
                mine = node.written
            lane.publish(60)
            assert node.durable >= mine


@pytest.mark.parametrize("threads", [1, 2, LANE_THREADS_MAX])
def test_under_the_hammer_nothing_is_lost_and_order_is_kept(threads: int) -> None:
    nodes = [Careful() for _ in range(7)]
    with pooled(threads) as pool:
        failed: list[Exception] = []
        lanes = [
            Lane(pool, cast("Replicator", one), lambda *_: None, failed.append) for one in nodes
        ]
        for lane in lanes:
            lane.start()
        hammers = [Hammer(who, lanes, nodes, 400) for who in range(8)]
        for hammer in hammers:
            hammer.thread.join()
            assert hammer.error is None
            assert not hammer.refused
    assert failed == []
    for place, node in enumerate(nodes):
        for hammer in hammers:
            mine = [number for who, number in node.seen if who == hammer.who]
            assert mine == list(range(hammer.sent[place]))


@pytest.mark.parametrize("ends", ["the lanes", "the pool"])
def test_an_end_under_the_hammer_loses_nothing_that_was_submitted_before(ends: str) -> None:
    nodes = [Careful() for _ in range(5)]
    with pooled(2) as pool:
        failed: list[Exception] = []
        lanes = [
            Lane(pool, cast("Replicator", one), lambda *_: None, failed.append) for one in nodes
        ]
        for lane in lanes:
            lane.start()
        hammers = [Hammer(who, lanes, nodes, 10**9) for who in range(6)]
        assert all(node.is_busy.wait(60) for node in nodes)
        before = [list(hammer.sent) for hammer in hammers]
        if ends == "the pool":
            pool.close()
        else:
            for lane in lanes:
                lane.stop()
        counts = [len(node.seen) for node in nodes]
        for hammer in hammers:
            hammer.thread.join()
            assert hammer.error is None
            assert hammer.refused
        assert [len(node.seen) for node in nodes] == counts
    assert failed == []
    for place, node in enumerate(nodes):
        for hammer, sent in zip(hammers, before, strict=True):
            mine = [number for who, number in node.seen if who == hammer.who]
            assert mine == list(range(len(mine)))
            assert len(mine) >= sent[place]
