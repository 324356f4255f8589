"""Reading by offsets, entries, and following one partition, several, and those of all owners."""

from __future__ import annotations

import asyncio
import gc
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from datalattice.apps.binding import Owner
from datalattice.apps.queue import Feed, PartitionId, Queue, QueueEntry, Topic
from datalattice.cells import Keyword, Map, Vector, same, to_cell
from datalattice.crypto import KeyPair
from datalattice.cursors import LatticeCursor, RootLattice
from datalattice.errors import DataLoss, TypeMismatch, UnsupportedOperation, UsageError
from datalattice.lattice import MergeContext, RecordsSkipped, root_lattice
from datalattice.testing.bindings import MemoryBinding
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.polling import LIMIT_S

KEYS = KeyPair(bytes(range(32)))
OTHER = KeyPair(bytes(range(1, 33)))


def queue_of(*values: object, start: int = 0) -> Queue:
    queue = Queue.create(StoppedClock())
    queue.truncate(start)
    queue.offer_many(values)
    return queue


def node(*others: KeyPair) -> MemoryBinding:
    return MemoryBinding(KEYS, StoppedClock(), *others)


# --- subscripts ---


def test_a_subscript_is_an_absolute_offset() -> None:
    queue = queue_of("a", "b", "c", start=10)
    assert [queue[10], queue[12], queue[-1], queue[-3]] == ["a", "c", "c", "a"]
    for absent in (0, 9, 13, -4):
        with pytest.raises(IndexError, match="3 records, from offset 10 to 12"):
            queue[absent]
    queue.truncate(11)
    with pytest.raises(IndexError):
        queue[10]


@pytest.mark.parametrize(
    ("bounds", "values"),
    [
        (slice(None), "abcd"),
        (slice(11, 13), "bc"),
        (slice(0, 12), "ab"),
        (slice(12, 99), "cd"),
        (slice(-2, None), "cd"),
        (slice(None, -3), "a"),
        (slice(-99, -99), ""),
        (slice(13, 11), ""),
        (slice(0, 5), ""),
        (slice(50, 60), ""),
        (slice(10, 14, 1), "abcd"),
    ],
)
def test_a_slice_is_half_open_and_clamped(bounds: slice, values: str) -> None:
    queue = queue_of(*"abcd", start=10)
    assert queue[bounds] == list(values)
    entries = list(queue.entries(bounds.start, bounds.stop))
    assert [entry.value for entry in entries] == list(values)
    assert [queue[entry.offset] for entry in entries] == list(values)


def test_a_step_and_in_are_refused() -> None:
    queue = queue_of("a")
    with pytest.raises(UsageError, match="no step"):
        queue[::2]
    with pytest.raises(UnsupportedOperation, match="would read all records"):
        assert "a" in queue
    with pytest.raises(TypeError):
        queue["a"]  # type: ignore[call-overload]


def test_the_range_of_the_seed_keeps_its_inclusive_end() -> None:
    queue = queue_of(*"abcd", start=10)
    assert list(queue.range(11, 12)) == ["b", "c"]


def test_a_queue_is_read_backwards_as_it_was_at_the_call() -> None:
    queue = queue_of(*range(2_500), start=7)
    backwards = reversed(queue)
    assert next(backwards) == 2_499
    queue.offer("later")
    queue.truncate(1_000)
    assert list(backwards) == list(range(2_498, -1, -1))


# --- entries ---


def test_an_entry_says_where_it_is_and_what_it_holds() -> None:
    here = node()
    here.clock.now = 90_061_001  # type: ignore[attr-defined]
    here.queue("log").offer("v", key="k", headers={"h": 1})
    (entry,) = here.queue("log").entries()
    assert (entry.topic, entry.owner, entry.partition) == ("log", Owner(KEYS.public_key), 0)
    assert (entry.offset, entry.key, entry.value) == (0, "k", "v")
    assert same(entry.headers, Map.of({"h": 1}))
    assert entry.time_ms == 90_061_001
    assert entry.time == datetime(1970, 1, 2, 1, 1, 1, 1_000, UTC)
    assert same(entry.cell, here.queue("log").peek_entry(0))
    assert repr(entry) == (
        f"<QueueEntry 0 of 'log'[0] of {KEYS.public_key.hex()[:8]}: key 'k', value 'v'>"
    )
    (again,) = here.queue("log").entries()
    assert again == entry
    assert hash(again) == hash(entry)
    assert again != QueueEntry(entry.id, 1, entry.cell)


def test_an_element_that_is_no_record_reads_as_an_empty_one() -> None:
    queue = queue_of()
    queue.cursor.set(to_cell([["odd"], {}, 0, 0]))
    (entry,) = queue.entries()
    assert (entry.key, entry.value, entry.time_ms, len(entry.headers)) == (None, None, 0, 0)
    assert entry.cell == "odd"


@pytest.mark.parametrize(("stamp", "year"), [(2**63 - 1, 9999), (-(2**63), 1)])
def test_a_time_that_no_calendar_has_is_the_nearest(stamp: int, year: int) -> None:
    entry = QueueEntry(queue_of().id, 0, Vector.of((None, 1, stamp, None)))
    assert entry.time.year == year
    assert entry.time_ms == stamp


def test_a_queue_that_stands_alone_has_no_topic_and_no_owner() -> None:
    assert queue_of().id == PartitionId(None, None, 0)
    topic = Topic.create()
    assert topic.partition(3).id == PartitionId(None, None, 3)


# --- starts ---


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("start", 10),
        ("end", None),
        (12, 12),
        (-1, 14),
        (-99, 10),
        (datetime.fromtimestamp(3, UTC), 13),
        (datetime.fromtimestamp(2.5, UTC), 13),
        (datetime.fromtimestamp(9, UTC), None),
        (timedelta(seconds=2), 12),
        (timedelta(days=1), 10),
    ],
)
def test_following_begins_where_it_is_told_to(start: object, first: int | None) -> None:
    clock = StoppedClock()
    queue: Queue = Queue.create(clock)
    queue.truncate(10)
    for second in range(5):
        clock.now = second * 1_000
        queue.offer(second)
    with queue.follow(start, wait=False) as entries:  # type: ignore[arg-type]
        assert [entry.offset for entry in entries] == (
            [] if first is None else list(range(first, 15))
        )


@pytest.mark.parametrize("start", ["middle", None, 1.5, True, datetime(2020, 1, 1)])  # noqa: DTZ001
def test_other_starts_are_refused(start: object) -> None:
    with pytest.raises(UsageError, match="start"):
        queue_of("a").follow(start)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match='`on_loss` is "raise" or "skip"'):
        queue_of("a").follow(on_loss="stop")  # type: ignore[arg-type]


# --- following ---


def test_a_loop_gets_each_entry_once_as_it_is_appended() -> None:
    queue = queue_of()
    count = 3_000
    writer = threading.Thread(target=lambda: [queue.offer(number) for number in range(count)])
    with queue.follow(timeout=LIMIT_S) as entries:
        writer.start()
        got = [next(entries) for _ in range(count)]
    writer.join()
    assert [entry.value for entry in got] == [entry.offset for entry in got] == list(range(count))


def test_a_log_longer_than_a_chunk_is_followed_to_its_end() -> None:
    queue = queue_of(*range(5_000))
    assert [entry.value for entry in queue.follow(wait=False)] == list(range(5_000))


def test_an_event_loop_follows_a_queue() -> None:
    queue = queue_of("old")

    async def follow() -> list[object]:
        async with queue.follow("end", timeout=LIMIT_S) as entries:
            await asyncio.to_thread(queue.offer_many, ["a", "b"])
            return [(await entries.__anext__()).value for _ in range(2)]

    assert asyncio.run(follow()) == ["a", "b"]


@pytest.mark.parametrize("waits", [True, False])
def test_truncation_while_following_is_a_loss_and_moves_nothing(waits: bool) -> None:
    queue = queue_of(*range(10))
    follow = queue.follow(wait=waits, timeout=5.0)
    assert [entry.value for entry in follow.poll()] == list(range(10))
    queue.offer_many(range(10, 20))
    queue.truncate(15)
    for _ in range(2):
        with pytest.raises(DataLoss, match="entries 10 to 14 of None") as caught:
            next(follow)
        assert caught.value.lost == {queue.id: range(10, 15)}
        assert caught.value.forked == {}


def test_a_loss_can_be_skipped_and_is_reported() -> None:
    here = node()
    queue = here.queue("log")
    queue.offer_many(range(10))
    queue.truncate(4)
    entries = queue.follow(2, wait=False, on_loss="skip")
    assert [entry.offset for entry in entries] == list(range(4, 10))
    assert here.reports == [RecordsSkipped(queue.cursor.context.path, 2, 4)]


def test_a_log_that_forked_while_it_was_followed_is_a_loss() -> None:
    queue, other = queue_of("a"), queue_of("a")
    follow = queue.follow(wait=False)
    queue.offer("b")
    assert len(follow.poll()) == 2
    other.offer_many(["x", "y", "z"])
    queue.cursor.merge(other.cursor.get())
    with pytest.raises(DataLoss, match="has forked: its entry 1 is not the one") as caught:
        follow.poll()
    assert caught.value.forked == {queue.id: 2}


# --- topics ---


def test_an_offer_goes_to_the_partition_of_its_key_or_to_the_named_one() -> None:
    topic = node().topic("t", 4)
    spread = topic.offer_many(range(100), keys=[f"k{n}" for n in range(100)])
    assert set(spread) == {0, 1, 2, 3}
    assert sum(len(offsets) for offsets in spread.values()) == 100
    for partition, offsets in spread.items():
        assert [topic[partition][at] for at in offsets] == topic[partition][:]
    assert topic.offer("v", key="k1", partition="side", headers={"h": 1}) == 0
    (entry,) = topic["side"].entries()
    assert (entry.key, entry.value) == ("k1", "v")
    assert same(entry.headers, Map.of({"h": 1}))
    assert topic.offer_many(["a", "b"], partition=2) == {2: range(len(spread[2]), len(topic[2]))}


def test_records_of_one_offer_are_appended_in_one_update() -> None:
    here = node()
    topic = here.topic("t", 3)
    states: list[object] = []
    end = here.base.subscribe(lambda: states.append(topic.num_partitions))
    topic.offer_many(range(50), keys=map(str, range(50)))
    end()
    assert states == [3]


def test_a_record_without_a_key_needs_a_topic_of_one_partition() -> None:
    here = node()
    assert here.topic("plain").offer("a") == 0
    assert here.topic("one", 1).offer("a") == 0
    assert here.topic("plain")[0][0] == here.topic("one")[0][0] == "a"
    with pytest.raises(UsageError, match="`key` is None"):
        here.topic("many", 2).offer("a")
    with pytest.raises(UsageError, match="number of partitions is not set"):
        here.topic("plain").offer("a", key="k")
    assert here.topic("many").partitions() == []
    with pytest.raises(UsageError, match="`keys` has 1 elements for 2 values"):
        here.topic("one").offer_many(["a", "b"], keys=["k"])
    assert here.topic("one").offer_many([]) == {}


def test_another_number_of_partitions_than_the_stored_one_is_an_error() -> None:
    here = node()
    topic, late = here.topic("t", 3), here.topic("t", 4)
    assert topic.num_partitions == 0  # looking writes nothing
    topic.offer("v", key="k")
    assert here.topic("t", 3).num_partitions == here.topic("t").num_partitions == 3
    with pytest.raises(UsageError, match="the topic has 3 partitions, not 4"):
        here.topic("t", 4)
    with pytest.raises(UsageError, match="the topic has 3 partitions, not 4"):
        late.offer("v", key="k")


def test_a_topic_is_followed_by_time_and_new_partitions_from_their_start() -> None:
    here = node()
    topic = here.topic("t")
    times = {0: [1, 4, 5], 1: [2, 3, 6], 2: [0, 9]}
    for partition, stamps in times.items():
        for stamp in stamps:
            here.clock.now = stamp  # type: ignore[attr-defined]
            topic.offer(stamp, partition=partition)
    follow = topic.follow(wait=False)
    assert [entry.value for entry in follow] == [0, 1, 2, 3, 4, 5, 6, 9] == list(topic)
    late = topic.follow("end", wait=False)
    topic.offer("first", partition="new")
    topic["new"].truncate(1)
    topic.offer("second", partition="new")
    topic.offer("more", partition=0)
    assert {entry.value for entry in follow} == {entry.value for entry in late}
    with pytest.raises(UsageError, match="needs one partition, and there are 4"):
        topic.follow(3)


def test_long_partitions_of_one_topic_come_in_order_and_complete() -> None:
    topic = node().topic("t")
    for partition, count in ((0, 3_000), (1, 10), (2, 1_025)):
        topic.offer_many(range(count), partition=partition)
    got: dict[object, list[object]] = {}
    for entry in topic.follow(wait=False):
        got.setdefault(entry.partition, []).append(entry.value)
    assert got == {0: list(range(3_000)), 1: list(range(10)), 2: list(range(1_025))}


# --- feeds ---


def test_a_feed_reads_the_topic_of_every_owner() -> None:
    here = node(OTHER)
    here.queue("log").offer("mine")
    feed = here.feed("log")
    follow = feed.follow(wait=False)
    assert [entry.value for entry in follow] == ["mine"]
    Queue.at(here.root, OTHER.public_key, "log", 3, clock=here.clock).offer("theirs")
    Queue.at(here.root, OTHER.public_key, "other", clock=here.clock).offer("elsewhere")
    (entry,) = follow
    assert (entry.value, entry.owner, entry.partition) == ("theirs", Owner(OTHER.public_key), 3)
    assert {owner.key for owner in feed.owners()} == {KEYS.public_key, OTHER.public_key}
    assert sorted(map(str, feed)) == ["mine", "theirs"]
    assert feed[entry.owner][3][:] == ["theirs"]
    assert list(Feed(here.root, "log", [OTHER.public_key])) == ["theirs"]
    assert Feed(here.root, "absent").owners() == []


def test_a_feed_of_an_empty_root_waits_for_the_first_owner() -> None:
    root: LatticeCursor = RootLattice(root_lattice(), None, MergeContext(key_pair=KEYS))
    follow = Feed(root, "log").follow("end", timeout=LIMIT_S)
    writer = threading.Thread(target=Queue.at(root, KEYS.public_key, "log").offer, args=("a",))
    writer.start()
    assert next(follow).value == "a"
    writer.join()


# --- typed handles ---


@dataclass
class Order:
    """A value of a typed queue."""

    name: str
    when: datetime


def test_a_typed_handle_reads_what_it_wrote() -> None:
    here = node()
    orders = Queue.at(here.root, here.own, "orders", of=Order)
    order = Order("tea", datetime(2026, 1, 2, tzinfo=UTC))
    assert orders.offer(order) == 0
    assert orders.offer_many([order, order]) == range(1, 3)
    assert orders[0] == orders[-1:][0] == orders.peek(1) == orders.peek_last() == order
    assert list(orders) == list(reversed(orders)) == [order] * 3
    assert [entry.value for entry in orders.entries()] == [order] * 3
    assert [entry.value for entry in orders.follow(wait=False)] == [order] * 3
    assert orders.peek(9) is None
    topic = Topic.at(here.root, here.own, "orders", of=Order)
    assert topic.offer_many(iter([order]), partition=0) == {0: range(3, 4)}
    assert list(topic) == list(Feed(here.root, "orders", of=Order)) == [order] * 4
    assert topic[0][0].name == "tea"
    with pytest.raises(TypeMismatch):
        orders.offer("tea")  # type: ignore[arg-type]


def test_a_stored_value_that_does_not_fit_is_an_error_of_that_entry_alone() -> None:
    here = node()
    here.queue("orders").offer_many([{"name": 5}, {"name": "tea", "when": "2026-01-02T00:00:00Z"}])
    orders = Queue.at(here.root, here.own, "orders", of=Order)
    bad, good = orders.follow(wait=False)
    with pytest.raises(TypeMismatch):
        str(bad.value)
    assert same(bad.cell, orders.peek_entry(0))
    assert good.value.name == "tea"


def test_followers_that_are_dropped_leave_no_subscription() -> None:
    here = node()
    queue = here.queue("log")
    queue.offer("a")
    assert [next(queue.follow()).value for _ in range(5)] == ["a"] * 5
    assert [next(here.feed("log").follow()).value for _ in range(5)] == ["a"] * 5
    gc.collect()
    assert here.listener_count == 0


def test_names_of_topics_are_checked() -> None:
    for make in (Queue.at, Topic.at):
        with pytest.raises(UsageError, match="topic's name is empty"):
            make(node().root, KEYS.public_key, "")
    with pytest.raises(UsageError, match="topic's name is empty"):
        Feed(node().root, None)
    assert Feed(node().root, Keyword("k")).name == Keyword("k")
