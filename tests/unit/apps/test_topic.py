"""Topics, their metadata and routing, and topics below an owner's signature."""

from __future__ import annotations

import pytest

from datalattice.apps.queue import Topic, Topics, partition_of, topic_map_lattice
from datalattice.cells import Keyword, Map, Signed, same
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import NoSigningKey, UsageError
from datalattice.lattice import MergeContext, root_lattice
from datalattice.testing.clocks import StoppedClock

KEYS = KeyPair(bytes(range(32)))
STAMPS = Keyword("meta-stamps")


def test_looking_writes_nothing() -> None:
    mq = Topics.create(StoppedClock())
    before = mq.cursor.get()
    queue = mq.partition("events", 0)
    assert (queue.size(), queue.peek(0), mq.topics(), mq.topic("events").partitions()) == (
        0,
        None,
        [],
        [],
    )
    assert mq.topic("events").num_partitions == 0
    assert mq.cursor.get() is before


def test_topics_and_partitions_appear_with_the_first_write() -> None:
    mq = Topics.create(StoppedClock())
    mq.partition("events", 2).offer("x")
    mq.partition("events", 0).offer("y")
    mq.partition("events", "side").offer("z")
    mq.topic("alpha").set_meta("k", "v")
    assert mq.topics() == ["alpha", "events"]
    assert mq.topic("events").partitions() == [0, 2, "side"]
    assert mq.topic("events").partition(2).peek(0) == "x"
    assert repr(mq) == "<Topics: 2>"
    assert repr(mq.topic("events")) == "<Topic 'events': 3 partitions>"
    mq.topic("events").set_num_partitions(8)
    assert repr(mq.topic("events")) == "<Topic 'events': 8 partitions>", "those still empty, too"


def test_a_keyed_record_goes_to_the_partition_of_its_key() -> None:
    topic = Topic.create(StoppedClock())
    topic.set_num_partitions(4)
    for i in range(40):
        topic.offer(i, key=f"key{i % 8}")
    assert sum(topic.partition(p).size() for p in range(4)) == 40
    for i in range(8):
        home = partition_of(f"key{i}", 4)
        mine = [v for v in topic.partition(home) if isinstance(v, int) and v % 8 == i]
        assert mine == list(range(i, 40, 8))


def test_offers_count_offsets_within_the_partition() -> None:
    topic = Topic.create(StoppedClock())
    topic.set_num_partitions(1)
    assert [topic.offer(v, key="k") for v in "abc"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("key", "count", "partition"),
    [(-153, 7, 6), ("quartz-saffron", 7, 6), ("copper 94", 8, 5), (26225, 9, 8)],
)
def test_routing_is_the_floor_modulus_of_the_signed_hash_tail(
    key: object, count: int, partition: int
) -> None:
    assert partition_of(key, count) == partition
    assert partition_of(key, 1) == 0


def test_routing_refuses_what_it_cannot_route() -> None:
    topic = Topic.create(StoppedClock())
    with pytest.raises(UsageError, match="set_num_partitions"):
        topic.offer("v", key="k")
    with pytest.raises(UsageError, match="`key` is None"):
        partition_of(None, 3)
    for count in (0, -1, True, 2**31, "3"):
        with pytest.raises(UsageError, match="number of partitions"):
            topic.set_num_partitions(count)  # type: ignore[arg-type]
    topic.set_num_partitions(2**31 - 1)
    with pytest.raises(UsageError, match="`key` is None"):
        topic.offer("v")


def test_topic_metadata_stamps_what_it_replaces() -> None:
    clock = StoppedClock(10)
    topic = Topic.create(clock)
    stored = topic.cursor.path(Keyword("meta"))
    topic.set_meta("k", 1)
    assert same(stored.get(), Map.of({"k": 1}))
    topic.set_meta("k", 2)
    assert topic.get_meta("k") == 2
    assert same(stored.get(), Map.of({"k": 2, STAMPS: Map.of({"k": 10})}))


def test_the_stamps_of_metadata_are_hidden_and_not_written_by_hand() -> None:
    topic = Topic.create(StoppedClock(10))
    for one in (topic, topic.partition(0)):
        one.set_meta("k", 1)
        one.set_meta("k", 2)
        before = topic.cursor.get()
        assert one.get_meta(STAMPS) is None
        with pytest.raises(UsageError, match="use another key"):
            one.set_meta(STAMPS, {"k": 99})
        assert topic.cursor.get() is before
        one.set_meta("meta-stamps", "a String is a key like any other")
        assert one.get_meta("meta-stamps") == "a String is a key like any other"
    assert STAMPS not in topic.metadata()
    assert STAMPS not in topic.partition(0).state().meta.values


def test_a_partition_count_that_is_no_integer_reads_as_unset() -> None:
    topic = Topic.create(StoppedClock())
    topic.set_meta(Keyword("num-partitions"), "many")
    assert topic.num_partitions == 0


def test_forks_of_topics_and_of_all_topics_sync() -> None:
    mq = Topics.create(StoppedClock())
    fork = mq.fork()
    inner = fork.topic("t").fork()
    inner.partition(0).offer("x")
    assert fork.topic("t").partitions() == []
    inner.sync()
    assert fork.topic("t").partition(0).peek(0) == "x"
    assert mq.topics() == []
    fork.sync()
    assert mq.topics() == ["t"]


def test_a_topic_needs_a_name() -> None:
    for name in (None, ""):
        with pytest.raises(UsageError, match="name is empty"):
            Topics.create(StoppedClock()).topic(name)


def test_below_an_owner_every_write_is_signed() -> None:
    root = RootLattice(root_lattice(), context=MergeContext(key_pair=KEYS))
    mq = Topics.at(root, KEYS.public_key, StoppedClock())
    mq.partition("flights", 0).offer_many([b"a", b"b"])
    signed = root.get(Keyword("queue"), KEYS.public_key)
    assert isinstance(signed, Signed)
    assert signed.verify()
    assert signed.public_key == KEYS.public_key
    assert list(Topics.at(root, KEYS.public_key).partition("flights", 0)) == [b"a", b"b"]


def test_writing_without_a_key_leaves_all_as_it_was() -> None:
    root = RootLattice(root_lattice())
    queue = Topics.at(root, KEYS.public_key, StoppedClock()).partition("t", 0)
    with pytest.raises(NoSigningKey):
        queue.offer("x")
    assert queue.size() == 0


def test_a_replica_follows_its_leader_without_a_key() -> None:
    leader = RootLattice(root_lattice(), context=MergeContext(key_pair=KEYS))
    replica = RootLattice(root_lattice())
    queue = Topics.at(leader, KEYS.public_key, StoppedClock()).partition("t", 0)
    for value in ("a", "b", "c"):
        queue.offer(value)
        replica.merge(leader.get())
        assert same(replica.get(), leader.get())
    queue.truncate(2)
    replica.merge(leader.get())
    assert list(Topics.at(replica, KEYS.public_key).partition("t", 0)) == ["c"]


def test_topics_of_a_map_lattice_start_empty() -> None:
    assert Topics(RootLattice(topic_map_lattice())).topics() == []
