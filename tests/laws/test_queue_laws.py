"""Laws of the queue: against a plain list, and the merges of states that one leader made."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import permutations

from hypothesis import given, settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from datalattice.apps.kv import Database
from datalattice.apps.queue import (
    CONSUMERS_DATABASE,
    Consumer,
    Queue,
    QueueEntry,
    QueueLattice,
    TopicLattice,
    make_entry,
)
from datalattice.cells import Index, Keyword, Value, Vector, same, to_cell, value_hash
from datalattice.crypto import KeyPair
from datalattice.cursors import LatticeCursor, Taken
from datalattice.errors import DataLoss
from datalattice.lattice import Lattice
from datalattice.testing.bindings import MemoryBinding
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.lattice_kit import check_joins_rise, check_order

QUEUE = QueueLattice()
TOPIC = TopicLattice()
KEYS = KeyPair(bytes(range(32)))

META_KEYS = st.sampled_from(["a", "b", 1, True])
META_VALUES = st.sampled_from([None, 0, 1, 1.0, True, "x", "y"])
STEPS = st.one_of(
    st.tuples(st.just("offer"), st.integers(1, 40)),
    st.tuples(st.just("truncate"), st.integers(0, 60)),
    st.tuples(st.just("meta"), META_KEYS, META_VALUES),
    st.tuples(st.just("clock"), st.integers(-5, 20)),
)


def history(steps: list[tuple[object, ...]]) -> list[Value]:
    """Return every state that one leader goes through."""
    clock = StoppedClock(100)
    queue = Queue.create(clock)
    states = [queue.cursor.get()]
    for number, step in enumerate(steps):
        if step[0] == "offer":
            count = step[1]
            assert isinstance(count, int)
            queue.offer_many([f"{number}-{i}" for i in range(count)])
        elif step[0] == "truncate":
            distance = step[1]
            assert isinstance(distance, int)
            queue.truncate(queue.start_offset() + distance)
        elif step[0] == "meta":
            queue.set_meta(step[1], step[2])
        else:
            advance = step[1]
            assert isinstance(advance, int)
            clock.now = max(0, clock.now + advance)
        states.append(queue.cursor.get())
    return states


def assert_join(lattice: Lattice, values: list[Value]) -> None:
    """Assert that every order of merges gives one value, and the same object where none changes."""
    expected: Value = None
    for order in permutations(values):
        left: Value = lattice.zero()
        for value in order:
            left = lattice.merge(left, value)
        right: Value = lattice.zero()
        for value in reversed(order):
            right = lattice.merge(value, right)
        expected = left if expected is None else expected
        assert same(left, expected)
        assert same(right, expected)
    for value in [*values, None, lattice.zero(), expected]:
        assert lattice.merge(expected, value) is expected
        assert same(lattice.merge(value, expected), expected)
        if value is not None:
            assert lattice.merge(value, value) is value
            assert lattice.merge(value, lattice.zero()) is value
            assert lattice.merge(None, value) is value


@given(st.lists(STEPS, max_size=12), st.data())
def test_states_of_one_leader_form_a_chain(
    steps: list[tuple[object, ...]], data: st.DataObject
) -> None:
    states = history(steps)
    picked = data.draw(st.lists(st.sampled_from(range(len(states))), min_size=2, max_size=3))
    assert_join(QUEUE, [states[i] for i in picked])
    newest = states[max(picked)]
    oldest = states[min(picked)]
    assert QUEUE.merge(newest, oldest) is newest
    assert same(QUEUE.merge(oldest, newest), newest)


FORKED = st.tuples(st.lists(STEPS, max_size=6), st.lists(st.lists(STEPS, max_size=5), max_size=4))


def branches(
    before: list[tuple[object, ...]], after: list[list[tuple[object, ...]]]
) -> list[Value]:
    """Return the states of devices that each went on alone after the same beginning."""
    return [history([*before, *steps, ("offer", 1 + at)])[-1] for at, steps in enumerate(after)]


@given(FORKED)
def test_logs_that_fork_join_in_any_order_and_grouping(
    forked: tuple[list[tuple[object, ...]], list[list[tuple[object, ...]]]],
) -> None:
    states = branches(*forked)[:3]
    joined: Value = None
    for order in permutations(states):
        made: Value = None
        for state in order:
            made = QUEUE.merge(made, state)
        joined = made if joined is None else joined
        assert same(made, joined)
    if len(states) == 3:
        grouped = QUEUE.merge(states[0], QUEUE.merge(states[1], states[2]))
        assert same(grouped, joined)


@given(FORKED)
def test_logs_that_fork_are_in_a_total_order(
    forked: tuple[list[tuple[object, ...]], list[list[tuple[object, ...]]]],
) -> None:
    states = branches(*forked)
    check_order(QUEUE, states)
    check_joins_rise(QUEUE, states)


STAMPS = st.dictionaries(st.sampled_from("abc"), st.integers(-2, 3), max_size=3)
VALUES = st.dictionaries(st.sampled_from("abc"), META_VALUES, max_size=3)
METAS = st.builds(
    lambda values, stamps: values if stamps is None else {**values, Keyword("meta-stamps"): stamps},
    VALUES,
    st.none() | STAMPS,
)


@st.composite
def foreign_states(draw: st.DrawFn) -> Vector:
    """States that pass the check: one log, cut anywhere, with any metadata and stamps."""
    start = draw(st.integers(0, 40))
    end = draw(st.integers(start, 60))
    entries = Vector.of([make_entry(None, i, i) for i in range(start, end)])
    fields = [entries, draw(METAS), draw(st.integers(0, 3)), start]
    return Vector.of([to_cell(field) for field in fields])


@given(st.lists(foreign_states(), min_size=2, max_size=3))
def test_foreign_states_of_one_log_join(states: list[Value]) -> None:
    """A log cut away at a higher start and one that reaches further join by their bounds."""
    starts = [state[3] for state in states if isinstance(state, Vector)]
    assert len(starts) == len(states)
    merged = [s for s in states if QUEUE.check_foreign(s)]
    assert len(merged) == len(states)
    assert_join(QUEUE, merged)


@given(st.lists(foreign_states(), min_size=3, max_size=4))
def test_foreign_states_are_in_a_total_order(states: list[Value]) -> None:
    check_order(QUEUE, states)
    check_joins_rise(QUEUE, states)


@st.composite
def topics(draw: st.DrawFn) -> Index:
    parts: dict[Keyword, Value] = {}
    held = draw(st.dictionaries(st.integers(0, 2), foreign_states(), max_size=3))
    if draw(st.booleans()):
        parts[Keyword("partitions")] = to_cell(held)
    if draw(st.booleans()):
        parts[Keyword("meta")] = to_cell(draw(METAS))
    return Index.of(parts)


@given(st.lists(topics(), min_size=3, max_size=3))
def test_topics_are_in_a_total_order(values: list[Value]) -> None:
    some = [*values, TOPIC.merge(values[0], values[1])]
    check_order(TOPIC, some)
    check_joins_rise(TOPIC, some)


@given(st.lists(topics(), min_size=2, max_size=3))
def test_topics_join(values: list[Value]) -> None:
    assert_join(TOPIC, values)


class QueueAgainstList(RuleBasedStateMachine):
    """A queue and its forks beside plain lists with a start offset."""

    queues = Bundle("queues")

    def __init__(self) -> None:
        super().__init__()
        self.clock = StoppedClock(100)
        self.models: list[tuple[Queue, list[tuple[Value, Value, int]], list[int]]] = []

    def _add(self, queue: Queue, rows: list[tuple[Value, Value, int]], start: int) -> int:
        self.models.append((queue, list(rows), [start]))
        return len(self.models) - 1

    @rule(target=queues)
    def create(self) -> int:
        return self._add(Queue.create(self.clock), [], 0)

    @rule(at=queues, value=st.integers(), key=st.none() | st.text(max_size=3))
    def offer(self, at: int, value: int, key: str | None) -> None:
        queue, rows, start = self.models[at]
        assert queue.offer(value, key=key) == start[0] + len(rows)
        rows.append((key, value, self.clock.now))

    @rule(at=queues, values=st.lists(st.binary(max_size=5), max_size=40))
    def offer_many(self, at: int, values: list[bytes]) -> None:
        queue, rows, start = self.models[at]
        end = start[0] + len(rows)
        assert queue.offer_many(values) == range(end, end + len(values))
        rows.extend((None, value, self.clock.now) for value in values)

    @rule(at=queues, ahead=st.integers(-3, 50))
    def truncate(self, at: int, ahead: int) -> None:
        queue, rows, start = self.models[at]
        target = start[0] + ahead
        gone = min(max(ahead, 0), len(rows))
        assert queue.truncate(target) == gone
        del rows[:gone]
        start[0] = max(start[0], target)

    @rule(step=st.integers(-3, 10))
    def tick(self, step: int) -> None:
        self.clock.now = max(0, self.clock.now + step)

    @rule(target=queues, at=queues)
    def fork_write_and_sync(self, at: int) -> int:
        queue, rows, _ = self.models[at]
        fork = queue.fork()
        fork.offer("forked")
        assert queue.size() == len(rows)
        fork.sync()
        rows.append((None, "forked", self.clock.now))
        assert value_hash(fork.cursor.get()) == value_hash(queue.cursor.get())
        return at

    @rule(at=queues, first=st.integers(-5, 120), last=st.integers(-5, 120))
    def read_range(self, at: int, first: int, last: int) -> None:
        queue, rows, start = self.models[at]
        expected = [row[1] for i, row in enumerate(rows) if first <= start[0] + i <= last]
        assert list(queue.range(first, last)) == expected

    @invariant()
    def equal_to_the_lists(self) -> None:
        for queue, rows, start in self.models:
            assert queue.start_offset() == start[0]
            assert queue.end_offset() == start[0] + len(rows)
            assert list(queue) == [row[1] for row in rows]
            last = queue.peek_last_entry()
            if rows:
                assert isinstance(last, Vector)
                assert (last[0], last[1], last[2]) == rows[-1]
            else:
                assert last is None


QueueAgainstList.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
test_a_queue_behaves_like_a_list = QueueAgainstList.TestCase


# --- consumers ---


class ConsumerAgainstModel(RuleBasedStateMachine):
    """A topic of two partitions, its consumer, and what must come again.

    Whatever happens, delivery goes on with the first entry of each partition that is not done.
    `totals` are written in the batches that commit.
    """

    def __init__(self) -> None:
        super().__init__()
        self.node = MemoryBinding(KEYS, StoppedClock(100))
        self.appended = [0, 0]
        self.done = [0, 0]
        """The first offset of each partition that is not done."""
        self.delivered = [0, 0]
        """The first offset that was not delivered since the consumer was opened or put back."""
        self.totals = [0, 0]
        self.consumer = self._opened()

    def _opened(self) -> Consumer:
        self.begins = [self._start(0), self._start(1)]
        return self.node.topic("t").consumer("c", wait=False, commit_every=0.0)

    def _committed(self) -> dict[int, int]:
        """Return the durable positions; a partition of which nothing was done has none."""
        held = Database.at(self.node.base, self.node.own, CONSUMERS_DATABASE).hgetall("c")
        return {int(str(field).rsplit("/")[-1]): mark[0] for field, mark in held.entries()}  # type: ignore[index]

    def _assert_stored(self) -> None:
        stored = self._committed()
        assert [stored.get(p, self.begins[p]) for p in (0, 1)] == self.done

    def _start(self, partition: int) -> int:
        return self.node.topic("t")[partition].start_offset()

    def _put_back(self) -> None:
        """Delivery begins again at what is stored."""
        stored = self._committed()
        self.done = [stored.get(p, self.begins[p]) for p in (0, 1)]
        self.delivered = list(self.done)

    def _request(self) -> None:
        self.done = list(self.delivered)

    def _came(self, entries: Iterable[QueueEntry]) -> None:
        for entry in entries:
            partition = entry.partition
            assert entry.offset == self.delivered[partition]
            assert entry.value == entry.offset
            self.delivered[partition] += 1

    def _is_lost(self) -> bool:
        return any(self._start(p) > self.delivered[p] for p in (0, 1))

    def _taken(self, count: int) -> list[QueueEntry]:
        """Take entries; go on behind a loss as a user does."""
        self._request()
        try:
            return self.consumer.take(count)
        except DataLoss as loss:
            assert self._is_lost()
            self.consumer.seek({id: gone.stop for id, gone in loss.lost.items()})
            for id, gone in loss.lost.items():
                assert gone == range(self.done[id.partition], self._start(id.partition))
                self.done[id.partition] = gone.stop
            self.delivered = list(self.done)
            return []

    @rule(partition=st.integers(0, 1), count=st.integers(1, 5))
    def append(self, partition: int, count: int) -> None:
        begin = self.appended[partition]
        self.node.topic("t").offer_many(range(begin, begin + count), partition=partition)
        self.appended[partition] += count

    @rule(count=st.integers(1, 6))
    def take(self, count: int) -> None:
        self._came(self._taken(count))

    @rule(count=st.integers(1, 6))
    def take_and_finish(self, count: int) -> None:
        entries = self._taken(count)
        self._came(entries)
        if isinstance(entries, Taken):
            with entries:
                pass
            self.done = list(self.delivered)

    @rule(count=st.integers(1, 6))
    def fail_at_work(self, count: int) -> None:
        entries = self._taken(count)
        self._came(entries)
        if isinstance(entries, Taken):
            with suppress(ZeroDivisionError), entries:
                raise ZeroDivisionError
            self.delivered = list(self.done)

    @rule(count=st.integers(0, 4))
    def loop(self, count: int) -> None:
        """Take some in a loop, which is left by `break`."""
        if any(self._start(p) > self.done[p] for p in (0, 1)):
            return  # the loop would raise DataLoss, as `take` does in other rules
        self.delivered = list(self.done)
        for number, entry in enumerate(self.consumer):
            self._request()
            self._came([entry])
            if number >= count:
                return
        self._request()

    @rule()
    def commit(self) -> None:
        self.consumer.commit()
        self._request()
        self._assert_stored()

    @rule(count=st.integers(1, 6), fails=st.booleans(), crashes=st.booleans())
    def batch(self, count: int, fails: bool, crashes: bool) -> None:
        """Exactly once: the totals and the position are one root."""
        totals = list(self.totals)
        try:
            with self.node.batch():
                entries = self._taken(count)
                self._came(entries)
                for entry in entries:
                    totals[entry.partition] += 1
                    self._total(self.node.root, totals)
                self.consumer.commit()
                self._request()
                assert 1 // (not fails)
        except ZeroDivisionError:
            self._put_back()
        else:
            self.totals = totals
        if crashes:
            self.crash()

    def _total(self, root: LatticeCursor, totals: list[int]) -> None:
        Database.at(root, self.node.own, "totals")["sums"] = totals

    @rule()
    def crash(self) -> None:
        """End the process; what is not stored is forgotten."""
        self.consumer._release()
        self.consumer = self._opened()
        self._put_back()

    @rule()
    def close_and_open(self) -> None:
        self.consumer.close()
        begins = self.begins
        self.consumer = self._opened()
        stored = self._committed()
        assert [stored.get(p, begins[p]) for p in (0, 1)] == self.done
        self._put_back()

    @rule(partition=st.integers(0, 1), ahead=st.integers(-3, 8))
    def truncate(self, partition: int, ahead: int) -> None:
        queue = self.node.topic("t")[partition]
        queue.truncate(min(self.done[partition] + ahead, self.appended[partition]))

    @rule(start=st.sampled_from(["start", "end"]))
    def seek(self, start: str) -> None:
        self.consumer.seek(start)  # type: ignore[arg-type]
        present = self.node.topic("t").partitions()
        for partition in (0, 1):
            if partition in present:
                at_end = start == "end"
                self.done[partition] = (
                    self.appended[partition] if at_end else self._start(partition)
                )
        self.delivered = list(self.done)

    @invariant()
    def commits_are_never_ahead_of_what_is_done(self) -> None:
        assert all(at <= self.done[p] for p, at in self._committed().items())

    @invariant()
    def positions_are_those_of_the_model(self) -> None:
        position = {id.partition: at for id, at in self.consumer.position.items()}
        assert set(position) == set(self.node.topic("t").partitions())
        assert all(at == self.delivered[partition] for partition, at in position.items())

    @invariant()
    def what_it_calls_committed_is_durable(self) -> None:
        said = {id.partition: at for id, at in self.consumer.committed.items()}
        assert said == self._committed()

    @invariant()
    def totals_and_positions_are_one(self) -> None:
        held = Database.at(self.node.base, self.node.own, "totals").get("sums")
        assert (list(held) if isinstance(held, Vector) else [0, 0]) == self.totals

    def teardown(self) -> None:
        """Take what is left."""
        for _ in range(3):
            while entries := self._taken(100):
                self._came(entries)
        assert self.delivered == self.appended


ConsumerAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
test_a_consumer_delivers_whatever_is_not_done = ConsumerAgainstModel.TestCase
