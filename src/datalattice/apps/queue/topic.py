"""Topic: named partitions with metadata; Topics: topics by name.

Source: CAD040; docs/queue.md "Choice of partition", "Several devices", "Topics", "Metadata", "Fork
    and sync", "Owners"; docs/design/decisions.md "D-Q1", "D2"; docs/design/forks.md "Queues";
    CAD024 "Root layout".
"""

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
"""Most partitions of a topic; every id then fits a signed 32-bit integer."""

DEVICE_ID_MIN: Final = 2**32
DEVICE_ID_MAX: Final = 2**48
"""Range of the ids of device partitions; DEVICE_ID_MAX is excluded."""

_ROUTE_BYTES: Final = 8


def partition_of(key: object, count: int) -> int:
    """Return the partition, 0 to `count` - 1, of records with `key`.

    It is the last 8 bytes of the key's value hash, a signed big-endian number, modulo `count`.

    Raises: UsageError: `key` is None, or `count` is not positive.
    """
    if key is None:
        raise UsageError(
            "`key` is None, so no partition can be chosen; give a key, or name the partition"
        )
    checked_count(count)
    tail = value_hash(to_cell(key))[-_ROUTE_BYTES:]
    return int.from_bytes(tail, "big", signed=True) % count


def device_partition(identity: bytes) -> int:
    """Return the id of the partition of a device, derived from the device's public key.

    A log has one writer, so each device of an owner has its own partition. The id is at least 2**32
    and below 2**48: above numbered partitions, and exact as a JSON number.
    Raises: UsageError: `identity` is not a public key.
    """
    if not is_public_key(identity):
        raise UsageError(f"`identity` is not a public key of 32 bytes: {brief(identity)}")
    digest = sha3_256(b"partition of the device " + identity)
    return DEVICE_ID_MIN + int.from_bytes(digest[:6], "big") % (DEVICE_ID_MAX - DEVICE_ID_MIN)


def checked_count(count: object) -> int:
    """Return `count` if it is a valid number of partitions.

    Raises: UsageError: it is not.
    """
    if type(count) is int and 1 <= count <= PARTITIONS_MAX:
        return count
    raise UsageError(
        f"the number of partitions is an integer from 1 to {PARTITIONS_MAX}, got {count!r}"
    )


def _is_nameless(name: object) -> bool:
    return name is None or name == ""


def _in_order(ids: list[Value]) -> list[Value]:
    """Return partition ids or names in a stable order: integers, then others by their text.

    Values of several cells come last, ordered by hash: their text may be of any size.
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

    Reading writes nothing: a topic and its partitions are created by their first write.
    """

    __slots__ = ("_clock", "_cursor")

    def __init__(self, cursor: LatticeCursor, clock: Clock | None = None) -> None:
        self._cursor = cursor
        self._clock = clock or SystemClock()

    @classmethod
    def create(cls, clock: Clock | None = None) -> Self:
        """Return a new empty topic over its own cursor."""
        return cls(RootLattice(TopicLattice(), EMPTY_INDEX), clock)

    @property
    def cursor(self) -> LatticeCursor:
        """The cursor below this topic."""
        return self._cursor

    def partition(self, partition_id: object) -> Queue:
        """Return the queue of one partition; `partition_id` is an integer or any cell."""
        return Queue(self._cursor.path(PARTITIONS, to_cell(partition_id)), self._clock)

    def partitions(self) -> list[Value]:
        """Return the ids of the partitions that have been written, integers first."""
        topic = self._cursor.get()
        held = topic.get(PARTITIONS) if isinstance(topic, Index) else None
        return _in_order([key for key, _ in held.entries()]) if isinstance(held, Map) else []

    def get_meta(self, key: object) -> Value:
        """Return the metadata value of `key`, None if it is absent."""
        return read_topic_meta(self._cursor.get()).values.get(to_cell(key))

    def set_meta(self, key: object, value: object) -> None:
        """Set the metadata value of `key`; on every node the latest write wins.

        Raises: UsageError: `key` is the reserved `:meta-stamps`.
        """
        now_ms = self._clock.now_ms()
        key_cell, value_cell = checked_meta_key(to_cell(key)), to_cell(value)

        def changed(topic: Value) -> Value:
            base = topic if isinstance(topic, Index) else EMPTY_INDEX
            meta = put_metadata(read_topic_meta(base), key_cell, value_cell, now_ms)
            return write_topic_meta(base, meta)

        self._cursor.update(changed)

    def metadata(self) -> Map:
        """Return all metadata."""
        return read_topic_meta(self._cursor.get()).values

    @property
    def num_partitions(self) -> int:
        """Number of partitions over which keys are spread; 0 if it was never set."""
        count = self.get_meta(NUM_PARTITIONS)
        return count if type(count) is int else 0

    def set_num_partitions(self, count: int) -> None:
        """Set the number of partitions over which keys are spread."""
        self.set_meta(NUM_PARTITIONS, checked_count(count))

    def offer(self, key: object, value: object, headers: object = None) -> int:
        """Append a record to the partition of its key and return its offset there.

        Raises: UsageError: the number of partitions is not set, or the key is None.
        """
        count = self.num_partitions
        if count <= 0:
            raise UsageError(
                "the topic's number of partitions is not set; call set_num_partitions first"
            )
        return self.partition(partition_of(key, count)).offer(value, key, headers)

    def fork(self) -> Topic:
        """Return a working copy; its writes arrive here with its `sync`."""
        return Topic(self._cursor.fork(), self._clock)

    def sync(self) -> None:
        """Bring the writes of a fork to its parent, or those of a root to where it is kept."""
        self._cursor.sync()

    def __repr__(self) -> str:
        return f"Topic(partitions={len(self.partitions())})"

    def _repr_html_(self) -> str:
        """Return the notebook's table of the partitions."""
        ids = self.partitions()
        states = ((one, self.partition(one).state()) for one in ids)
        rows = ((one, state.start, state.end) for one, state in states)
        title = f"Topic, partitions: {len(ids):,}"
        return html_table(title, ("partition", "start", "end"), rows, len(ids))


class Topics:
    """Topics by name over one cursor: one owner's part of the `:queue` section."""

    __slots__ = ("_clock", "_cursor")

    def __init__(self, cursor: LatticeCursor, clock: Clock | None = None) -> None:
        self._cursor = cursor
        self._clock = clock or SystemClock()

    @classmethod
    def create(cls, clock: Clock | None = None) -> Self:
        """Return an empty object without topics over its own cursor."""
        lattice = topic_map_lattice()
        return cls(RootLattice(lattice, lattice.zero()), clock)

    @classmethod
    def at(cls, root: LatticeCursor, owner: object, clock: Clock | None = None) -> Self:
        """Return the topics of `owner`, a 32-byte public key or another owner cell, below a root.

        Writing needs a signing key of the owner in the cursor's context; reading verifies the
        owner's signature.
        """
        return cls(root.path(QUEUE_SECTION, to_cell(owner), VALUE_KEY), clock)

    @property
    def cursor(self) -> LatticeCursor:
        """The cursor below this object."""
        return self._cursor

    def topic(self, name: object) -> Topic:
        """Return the topic called `name`, a string or any cell."""
        if _is_nameless(name):
            raise UsageError("the topic's name is empty; give a string or another cell")
        return Topic(self._cursor.path(to_cell(name)), self._clock)

    def partition(self, topic: object, partition_id: object) -> Queue:
        """Return one partition of one topic."""
        return self.topic(topic).partition(partition_id)

    def topics(self) -> list[Value]:
        """Return the names of the topics that have been written, in order.

        A foreign owner may have written nil or an empty name; these are left out.
        """
        held = self._cursor.get()
        names = [key for key, _ in held.entries()] if isinstance(held, Map) else []
        return _in_order([name for name in names if not _is_nameless(name)])

    def fork(self) -> Topics:
        """Return a working copy; its writes arrive here with its `sync`."""
        return Topics(self._cursor.fork(), self._clock)

    def sync(self) -> None:
        """Bring the writes of a fork to its parent, or those of a root to where it is kept."""
        self._cursor.sync()

    def __repr__(self) -> str:
        return f"Topics(topics={len(self.topics())})"


__all__ = ["META", "NUM_PARTITIONS", "Topic", "Topics", "partition_of"]
