"""Topic: named partitions with metadata; LatticeMQ: topics by name."""

from __future__ import annotations

from typing import Final, Self

from datalattice.apps.queue.lattice import (
    META,
    PARTITIONS,
    QUEUE_SECTION,
    TopicLattice,
    read_topic_meta,
    topic_map_lattice,
    write_topic_meta,
)
from datalattice.apps.queue.metadata import checked_meta_key, put_metadata
from datalattice.apps.queue.queue import Queue
from datalattice.cells import (
    EMPTY_INDEX,
    Index,
    Keyword,
    Map,
    Value,
    brief,
    encode,
    html_table,
    references,
    to_cell,
    to_text,
    value_hash,
)
from datalattice.clock import Clock, SystemClock
from datalattice.crypto import sha3_256
from datalattice.cursors import LatticeCursor, RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import is_public_key

NUM_PARTITIONS: Final = Keyword("num-partitions")
VALUE_KEY: Final = Keyword("value")
PARTITIONS_MAX: Final = 2**31 - 1
"""Most partitions of a topic; the ids are then small integers everywhere."""

DEVICE_ID_MIN: Final = 2**32
DEVICE_ID_MAX: Final = 2**48
"""Ids of partitions of devices, the second one excluded."""

_ROUTE_BYTES: Final = 8


def partition_of(key: object, count: int) -> int:
    """Return the partition, 0 to `count` - 1, that records with `key` go to.

    The last 8 bytes of the key's value hash, as a signed big-endian number, floor-modulo `count`.

    Raises: UsageError: `key` is None, or `count` is not positive.
    Source: CAD040 "Key routing"; docs/queue.md "Choice of partition";
            docs/design/decisions.md "D-Q1".
    """
    if key is None:
        raise UsageError("routing needs a key; give one, or name the partition")
    checked_count(count)
    tail = value_hash(to_cell(key))[-_ROUTE_BYTES:]
    return int.from_bytes(tail, "big", signed=True) % count


def device_partition(identity: bytes) -> int:
    """Return the id of the partition that a device appends to, from the public key that proves it.

    A log has one writer, so several devices of one owner have a partition each. The id is from
    2**32 to 2**48: beyond those of numbered partitions, and exact as a number of JSON.
    Raises: UsageError: it is not a public key.
    Source: docs/design/forks.md "Queues"; docs/queue.md "Several devices".
    """
    if not is_public_key(identity):
        raise UsageError(f"a device is named by its public key, got {brief(identity)}")
    digest = sha3_256(b"partition of the device " + identity)
    return DEVICE_ID_MIN + int.from_bytes(digest[:6], "big") % (DEVICE_ID_MAX - DEVICE_ID_MIN)


def checked_count(count: object) -> int:
    """Return `count` when it can be a number of partitions.

    Raises: UsageError: it cannot.
    Source: CAD040 "setNumPartitions"; docs/queue.md "Topics".
    """
    if type(count) is int and 1 <= count <= PARTITIONS_MAX:
        return count
    raise UsageError(
        f"the number of partitions is an integer from 1 to {PARTITIONS_MAX}, got {count!r}"
    )


def _is_nameless(name: object) -> bool:
    return name is None or name == ""


def _in_order(ids: list[Value]) -> list[Value]:
    """Return partition ids or names in a stable order: integers, then the others by their text.

    Those of several cells come last, by their hashes: a few cells may stand for a text of any size.
    """

    def rank(value: Value) -> tuple[int, int, str]:
        if type(value) is int:
            return 0, value, ""
        if isinstance(value, str):
            return 1, 0, value
        if references(encode(value)):
            return 2, 0, value_hash(value).hex()
        return 1, 0, to_text(value)

    return sorted(ids, key=rank)


class Topic:
    """A topic over one cursor: partitions by id (normally 0 to n - 1) and metadata.

    Nothing is written by looking: a topic and its partitions appear with the first write.
    """

    __slots__ = ("_clock", "_cursor")

    def __init__(self, cursor: LatticeCursor, clock: Clock | None = None) -> None:
        self._cursor = cursor
        self._clock = clock or SystemClock()

    @classmethod
    def create(cls, clock: Clock | None = None) -> Self:
        """Return a new empty topic over a cursor of its own.

        Source: CAD040 "Topic"; docs/queue.md "Topics".
        """
        return cls(RootLattice(TopicLattice(), EMPTY_INDEX), clock)

    @property
    def cursor(self) -> LatticeCursor:
        """The cursor this topic works on."""
        return self._cursor

    def partition(self, partition_id: object) -> Queue:
        """Return the queue of one partition; `partition_id` is an integer or any cell.

        Source: CAD040 "partition"; docs/queue.md "Topics".
        """
        return Queue(self._cursor.path(PARTITIONS, to_cell(partition_id)), self._clock)

    def partitions(self) -> list[Value]:
        """Return the ids of the partitions that hold a state, integers first.

        Source: docs/queue.md "Topics".
        """
        topic = self._cursor.get()
        held = topic.get(PARTITIONS) if isinstance(topic, Index) else None
        return _in_order([key for key, _ in held.entries()]) if isinstance(held, Map) else []

    def get_meta(self, key: object) -> Value:
        """Return the metadata value of `key`; None when there is none.

        Source: CAD040 "getMeta"; docs/queue.md "Metadata".
        """
        return read_topic_meta(self._cursor.get()).values.get(to_cell(key))

    def set_meta(self, key: object, value: object) -> None:
        """Set the metadata value of `key`; the later write wins everywhere.

        Raises: UsageError: `key` is the reserved `:meta-stamps`.
        Source: CAD040 "setMeta"; docs/queue.md "Metadata"; docs/design/decisions.md "D2".
        """
        now_ms = self._clock.now_ms()
        key_cell, value_cell = checked_meta_key(to_cell(key)), to_cell(value)

        def changed(topic: Value) -> Value:
            base = topic if isinstance(topic, Index) else EMPTY_INDEX
            meta = put_metadata(read_topic_meta(base), key_cell, value_cell, now_ms)
            return write_topic_meta(base, meta)

        self._cursor.update(changed)

    def metadata(self) -> Map:
        """Return all metadata.

        Source: CAD040 "getMeta"; docs/queue.md "Metadata".
        """
        return read_topic_meta(self._cursor.get()).values

    @property
    def num_partitions(self) -> int:
        """How many partitions keys are spread over; 0 when that was never set.

        Source: CAD040 "getNumPartitions"; docs/queue.md "Topics".
        """
        count = self.get_meta(NUM_PARTITIONS)
        return count if type(count) is int else 0

    def set_num_partitions(self, count: int) -> None:
        """Set how many partitions keys are spread over.

        Source: CAD040 "setNumPartitions"; docs/queue.md "Topics".
        """
        self.set_meta(NUM_PARTITIONS, checked_count(count))

    def offer(self, key: object, value: object, headers: object = None) -> int:
        """Append a record to the partition of its key and return its offset there.

        Raises: UsageError: no number of partitions is set, or the key is None.
        Source: CAD040 "Topic offer"; docs/queue.md "Choice of partition";
                docs/design/decisions.md "D-Q1".
        """
        count = self.num_partitions
        if count <= 0:
            raise UsageError("the topic has no number of partitions; call set_num_partitions first")
        return self.partition(partition_of(key, count)).offer(value, key, headers)

    def fork(self) -> Topic:
        """Return a working copy; its writes arrive here with its `sync`.

        Source: CAD040 "fork"; docs/queue.md "Fork and sync".
        """
        return Topic(self._cursor.fork(), self._clock)

    def sync(self) -> None:
        """Bring the writes of a fork to its parent, or those of a root to where it is kept.

        Source: CAD040 "sync"; docs/queue.md "Fork and sync".
        """
        self._cursor.sync()

    def __repr__(self) -> str:
        return f"Topic(partitions={len(self.partitions())})"

    def _repr_html_(self) -> str:
        """Return what notebooks show: the partitions."""
        ids = self.partitions()
        states = ((one, self.partition(one).state()) for one in ids)
        rows = ((one, state.start, state.end) for one, state in states)
        title = f"Topic, partitions: {len(ids):,}"
        return html_table(title, ("partition", "start", "end"), rows, len(ids))


class LatticeMQ:
    """Topics by name over one cursor: one owner's part of the `:queue` section."""

    __slots__ = ("_clock", "_cursor")

    def __init__(self, cursor: LatticeCursor, clock: Clock | None = None) -> None:
        self._cursor = cursor
        self._clock = clock or SystemClock()

    @classmethod
    def create(cls, clock: Clock | None = None) -> Self:
        """Return an empty one over a cursor of its own.

        Source: CAD040 "LatticeMQ"; docs/queue.md "Owners".
        """
        lattice = topic_map_lattice()
        return cls(RootLattice(lattice, lattice.zero()), clock)

    @classmethod
    def at(cls, root: LatticeCursor, owner: object, clock: Clock | None = None) -> Self:
        """Return the topics of `owner`, a 32-byte public key or any owner cell, below a root.

        Writing needs a key in the cursor's context that the owner accepts; reading checks the
        owner's signature.

        Source: CAD024 "Root layout"; docs/queue.md "Owners".
        """
        return cls(root.path(QUEUE_SECTION, to_cell(owner), VALUE_KEY), clock)

    @property
    def cursor(self) -> LatticeCursor:
        """The cursor this object works on."""
        return self._cursor

    def topic(self, name: object) -> Topic:
        """Return the topic called `name`, a string or any cell.

        Source: CAD040 "LatticeMQ"; docs/queue.md "Owners".
        """
        if _is_nameless(name):
            raise UsageError("a topic needs a name, got none")
        return Topic(self._cursor.path(to_cell(name)), self._clock)

    def partition(self, topic: object, partition_id: object) -> Queue:
        """Return one partition of one topic.

        Source: CAD040 "LatticeMQ"; docs/queue.md "Owners".
        """
        return self.topic(topic).partition(partition_id)

    def topics(self) -> list[Value]:
        """Return the names of the topics that hold a state, in order.

        Foreign owners may have written names that no topic has: these are left out.
        Source: docs/queue.md "Topics".
        """
        held = self._cursor.get()
        names = [key for key, _ in held.entries()] if isinstance(held, Map) else []
        return _in_order([name for name in names if not _is_nameless(name)])

    def fork(self) -> LatticeMQ:
        """Return a working copy; its writes arrive here with its `sync`.

        Source: CAD040 "fork"; docs/queue.md "Fork and sync".
        """
        return LatticeMQ(self._cursor.fork(), self._clock)

    def sync(self) -> None:
        """Bring the writes of a fork to its parent, or those of a root to where it is kept.

        Source: CAD040 "sync"; docs/queue.md "Fork and sync".
        """
        self._cursor.sync()

    def __repr__(self) -> str:
        return f"LatticeMQ(topics={len(self.topics())})"


__all__ = ["META", "NUM_PARTITIONS", "LatticeMQ", "Topic", "partition_of"]
