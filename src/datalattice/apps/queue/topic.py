"""Topic: partitions by id, with metadata; Topics: topics by name.

Source: CAD040; docs/queue.md "Choice of partition", "Several devices", "Topics", "Metadata", "Fork
    and sync", "Owners"; docs/design/decisions.md "D-Q1", "D2"; docs/design/forks.md "Queues";
    docs/design/front-door.md "Handles"; CAD024 "Root layout".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Self

from datalattice.apps.binding import Binding, bound, handle_text, owner_cell
from datalattice.apps.queue import state as states
from datalattice.apps.queue.consumer import Followable, Reach
from datalattice.apps.queue.entries import NewRecords, list_argument, row_argument
from datalattice.apps.queue.following import (
    OnLoss,
    PartitionCursors,
    PartitionSet,
    changed_keys,
)
from datalattice.apps.queue.lattice import (
    QUEUE_SECTION,
    TOPIC_PARTITIONS_KEY,
    TopicLattice,
    read_topic_meta,
    topic_map_lattice,
    write_topic_meta,
)
from datalattice.apps.queue.metadata import checked_meta_key, put_metadata
from datalattice.apps.queue.queue import Queue, checked_topic
from datalattice.apps.valuetypes import UNTYPED, T, ValueType, value_type
from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    Keyword,
    Map,
    Value,
    brief,
    counted,
    encode,
    html_table,
    references,
    render,
    to_cell,
    to_text,
    value_hash,
)
from datalattice.clock import Clock, SystemClock, present_ms
from datalattice.crypto import sha3_256
from datalattice.cursors import LatticeCursor, RootLattice, collector_paused
from datalattice.errors import UsageError
from datalattice.lattice import VALUE_KEY, is_public_key

NUM_PARTITIONS: Final = Keyword("num-partitions")
PARTITIONS_MAX: Final = 2**31 - 1
"""Most partitions of a topic; every id then fits a signed 32-bit integer."""

DEVICE_ID_MIN: Final = 2**32
DEVICE_ID_MAX: Final = 2**48
"""Range of the ids of device partitions; DEVICE_ID_MAX is excluded."""

_ROUTE_BYTES: Final = 8  # "the last 8 bytes of the key cell's 32-byte value hash"


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
    # "h is the last 8 bytes of the key's value hash as a signed big-endian number, and the
    # remainder is never negative" (docs/queue.md "Choice of partition").
    tail = value_hash(to_cell(key))[-_ROUTE_BYTES:]
    return int.from_bytes(tail, "big", signed=True) % count  # Python's `%` is floorMod


def device_partition(identity: bytes) -> int:
    """Return the id of the partition of a device, derived from the device's public key.

    A log has one writer, so each device of an owner has its own partition. The id is at least 2**32
    and below 2**48: above numbered partitions, and exact as a JSON number.
    Raises: UsageError: `identity` is not a public key.
    """
    if not is_public_key(identity):
        raise UsageError(f"`identity` is not a public key of 32 bytes: {brief(identity)}")
    # "Each device appends to a partition of its own" (docs/queue.md "Several devices").
    # Hashed: the id says nothing about the key, and devices spread evenly.
    digest = sha3_256(b"partition of the device " + identity)
    return DEVICE_ID_MIN + int.from_bytes(digest[:6], "big") % (DEVICE_ID_MAX - DEVICE_ID_MIN)


def checked_count(count: object) -> int:
    """Return `count` if it is a valid number of partitions. Raises: UsageError: it is not."""
    if type(count) is int and 1 <= count <= PARTITIONS_MAX:
        return count
    raise UsageError(
        f"the number of partitions is an integer from 1 to {PARTITIONS_MAX}, got {count!r}"
    )


def _partitions_of(topic: Value) -> Map:
    held = topic.get(TOPIC_PARTITIONS_KEY) if isinstance(topic, Index) else None
    return held if isinstance(held, Map) else EMPTY_MAP


def _count_of(topic: Value) -> int:
    count = read_topic_meta(topic).values.get(NUM_PARTITIONS)
    return count if type(count) is int else 0  # "Integer in meta, 0 when unset or not an integer"


def _routed(key: object, count: int) -> int:
    """Return the partition of a key in a topic with `count` partitions, 0 if that is not set."""
    if count == 0 and key is not None:
        raise UsageError(
            "the topic's number of partitions is not set; give it as topic(name, partitions), or "
            "call set_num_partitions first"
        )
    # "A record without a key goes to partition 0 of a topic that has at most one partition"
    # (docs/queue.md "Topics").
    return 0 if count <= 1 else partition_of(key, count)


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


class Topic(Followable[T]):
    """A topic over one cursor: partitions by id (normally 0 to n - 1) and metadata.

    Reading writes nothing: a topic and its partitions are created by their first write. Iteration
    yields the values of all present partitions by time.
    """

    __slots__ = ("_binding", "_clock", "_count", "_cursor", "_type")

    def __init__(
        self,
        cursor: LatticeCursor,
        clock: Clock | None = None,
        *,
        partitions: int | None = None,
        of: type[T] | None = None,
        binding: Binding | None = None,
    ) -> None:
        self._cursor = cursor
        self._clock = clock or SystemClock()
        self._type: ValueType[T] = value_type(of)
        self._binding = binding
        self._count = None if partitions is None else checked_count(partitions)
        if partitions is not None:
            # Checked when the handle is made, not only at the first offer.
            self._wanted_count(self.num_partitions)

    @classmethod
    def create(cls, clock: Clock | None = None) -> Self:
        """Return a new empty topic over its own cursor."""
        return cls(RootLattice(TopicLattice(), EMPTY_INDEX), clock)

    @classmethod
    def at(
        cls,
        root: LatticeCursor,
        owner: object,
        name: object,
        partitions: int | None = None,
        *,
        of: type[T] | None = None,
        clock: Clock | None = None,
        binding: Binding | None = None,
    ) -> Self:
        """Return the topic `name` of `owner`, an `Owner` or owner cell, below a root.

        Args:   partitions: the number of partitions of the topic, stored by the first offer.
        Raises: UsageError: the topic has another number of partitions, or the name is empty.
        """
        path = (QUEUE_SECTION, owner_cell(owner), VALUE_KEY, checked_topic(name))
        return cls(root.path(*path), clock, partitions=partitions, of=of, binding=binding)

    @property
    def cursor(self) -> LatticeCursor:
        """The cursor below this topic."""
        return self._cursor

    def partition(self, partition_id: object) -> Queue[T]:
        """Return the queue of one partition; `partition_id` is an integer or any cell."""
        path = (TOPIC_PARTITIONS_KEY, to_cell(partition_id))
        cursor = self._cursor.path(*path)
        return Queue(cursor, self._clock, of=self._type.of, binding=self._binding)

    def __getitem__(self, partition_id: object) -> Queue[T]:
        return self.partition(partition_id)

    def partitions(self) -> list[Value]:
        """Return the ids of the partitions that have been written, integers first."""
        held = _partitions_of(self._cursor.get())
        return _in_order([key for key, _ in held.entries()])

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
        return _count_of(self._cursor.get())

    def set_num_partitions(self, count: int) -> None:
        """Set the number of partitions over which keys are spread."""
        self.set_meta(NUM_PARTITIONS, checked_count(count))

    # --- append ---

    def offer(
        self,
        value: T,
        *,
        key: object = None,
        headers: object = None,
        partition: object = None,
    ) -> int:
        """Append a record to the partition of its key, or to `partition`; return its offset there.

        A record without a key goes to partition 0 of a topic that has at most one.
        Raises: UsageError: there is neither a key nor a partition, and the topic has several.
        """
        given = None if headers is None else [headers]
        made = self.offer_many([value], keys=[key], headers=given, partition=partition)
        return next(iter(made.values())).start

    def offer_many(
        self,
        values: Iterable[T],
        *,
        keys: Iterable[object] | None = None,
        headers: Iterable[object] | None = None,
        partition: object = None,
    ) -> dict[Value, range]:
        """Append many records in one update, and return their offsets by partition.

        Each goes to the partition of its key, or all go to `partition`. `keys` and `headers` have
        one element for each value. All records get the same time.
        Raises: as `offer`. UsageError: `keys` or `headers` differ in length from `values`; nothing
                is appended.
        """
        # Converted before the update: a change may run again, and an iterator gives its items once.
        cells = values if self._type is UNTYPED else self._type.to_cells(values)
        rows = list_argument("values", cells)
        key_row, header_row = (
            row_argument("keys", keys, len(rows)),
            row_argument("headers", headers, len(rows)),
        )
        count = self._wanted_count(self.num_partitions)
        by_partition: dict[Value, list[int]] = {}
        for at in range(len(rows)):
            key = None if key_row is None else key_row[at]
            id = to_cell(partition) if partition is not None else _routed(key, count)
            by_partition.setdefault(id, []).append(at)
        now_ms = present_ms(self._clock)  # one reading: all records get the same time
        batches = {
            id: NewRecords(
                [rows[at] for at in positions],
                now_ms,
                None if key_row is None else [key_row[at] for at in positions],
                None if header_row is None else [header_row[at] for at in positions],
            )
            for id, positions in by_partition.items()
        }
        ends: dict[Value, int] = {}

        def changed(value: Value) -> Value:
            topic = value if isinstance(value, Index) else EMPTY_INDEX
            # The first offer stores the number of partitions. It is read again in the update, since
            # another writer may have stored one first.
            if count and self._wanted_count(_count_of(topic)) and not _count_of(topic):
                meta = put_metadata(read_topic_meta(topic), NUM_PARTITIONS, count, now_ms)
                topic = write_topic_meta(topic, meta)
            # All partitions change in one update, so readers see all records of the call or none.
            partitions = _partitions_of(topic)
            for id, batch in batches.items():
                made, ends[id] = states.append(partitions.get(id), batch, now_ms)
                partitions = partitions.put(id, made)
            return topic.put(TOPIC_PARTITIONS_KEY, partitions)

        if batches:
            with collector_paused:
                self._cursor.update(changed)
        return {id: range(ends[id] - batch.count, ends[id]) for id, batch in batches.items()}

    def load(self, table: object, *, key: str | None = None, value: str | None = None) -> int:
        """Append the rows of an Arrow table, data frame or reader; return their number.

        key: the column of keys. value: the column of values; None: each record is a Map of all
        columns. Decimals and times become numbers and ISO text. A handle with a type reads each
        value as if it were stored. Each edit has up to 100,000 rows.
        Raises: UsageError: `table` is not a table, or a column is missing. TypeMismatch: a value
                does not read as the type. Others as `offer_many`.
        """
        count = 0
        for keys, values in bound(self._binding, "load").rows_of(table, key, value):
            numbers = range(count, count + len(values))
            self.offer_many(self._type.from_rows(values, numbers), keys=keys)
            count = numbers.stop
        return count

    def _wanted_count(self, stored: int) -> int:
        """Return the number of partitions: the stored one, else that of the handle, else 0."""
        # "A handle with another number than the stored one is an error" (docs/queue.md "Topics"):
        # records of one key would be spread over two partitions.
        if self._count is not None and stored not in (0, self._count):
            raise UsageError(
                f"the topic has {stored} partitions, not {self._count}: the number is set once; "
                "leave it out, or use set_num_partitions"
            )
        return stored or self._count or 0

    # --- follow ---

    def __iter__(self) -> Iterator[T]:
        return (entry.value for entry in self.follow(wait=False))

    def _reach(self) -> Reach:
        id = self.partition(None).id
        return id.topic, id.owner, None

    def changed(self, before: Value, now: Value) -> PartitionCursors:
        """Yield the partitions that differ between two values of the topic, with their cursors."""
        for id in _in_order(changed_keys(_partitions_of(before), _partitions_of(now))):
            queue = self.partition(id)
            yield queue.id, queue.cursor

    def _partitions(self, on_loss: OnLoss) -> PartitionSet[T]:
        return PartitionSet(self._cursor, self.changed, self._binding, on_loss, self._type)

    # --- fork and sync ---

    def fork(self) -> Topic[T]:
        """Return a working copy; its `sync` merges its writes into this topic."""
        return Topic(
            self._cursor.fork(),
            self._clock,
            partitions=self._count,
            of=self._type.of,
            binding=self._binding,
        )

    def sync(self) -> None:
        """Merge a fork's writes into its parent; of a root cursor, write it to its store."""
        with collector_paused:
            self._cursor.push()

    def __repr__(self) -> str:
        """Return the name, the owner and the number of partitions; never raises."""
        context = self._cursor.context
        name = render(context.path[-1]) if context.path else ""
        return handle_text("Topic", name, context.owner, self._binding, self._summary)

    def _summary(self) -> str:
        # The stored number counts partitions without records, too.
        return counted(max(self.num_partitions, len(self.partitions())), "partition")

    def _repr_html_(self) -> str:
        """Return the notebook's table of the partitions."""
        ids = self.partitions()
        states = ((one, self.partition(one).state()) for one in ids)
        rows = ((one, state.start, state.end) for one, state in states)
        title = f"Topic, partitions: {len(ids):,}"
        return html_table(title, ("partition", "start", "end"), rows, len(ids))


class Topics:
    """Topics by name over one cursor: one owner's part of the `:queue` section."""

    __slots__ = ("_binding", "_clock", "_cursor")

    def __init__(
        self, cursor: LatticeCursor, clock: Clock | None = None, *, binding: Binding | None = None
    ) -> None:
        self._cursor = cursor
        self._clock = clock or SystemClock()
        self._binding = binding

    @classmethod
    def create(cls, clock: Clock | None = None) -> Self:
        """Return an object without topics over its own cursor."""
        lattice = topic_map_lattice()
        return cls(RootLattice(lattice, lattice.zero()), clock)

    @classmethod
    def at(
        cls,
        root: LatticeCursor,
        owner: object,
        clock: Clock | None = None,
        *,
        binding: Binding | None = None,
    ) -> Self:
        """Return the topics of `owner`, an `Owner` or owner cell, below a root.

        Writing needs a signing key of the owner in the cursor's context; reading verifies the
        owner's signature.
        """
        path = (QUEUE_SECTION, owner_cell(owner), VALUE_KEY)
        return cls(root.path(*path), clock, binding=binding)

    @property
    def cursor(self) -> LatticeCursor:
        """The cursor below this object."""
        return self._cursor

    def topic(self, name: object) -> Topic:
        """Return the topic called `name`, a string or any cell."""
        return Topic(self._cursor.path(checked_topic(name)), self._clock, binding=self._binding)

    def partition(self, topic: object, partition_id: object) -> Queue:
        """Return one partition of one topic."""
        return self.topic(topic).partition(partition_id)

    def topics(self) -> list[Value]:
        """Return the names of the topics that have been written, in order.

        A foreign owner may have written nil or an empty name; these are left out.
        """
        held = self._cursor.get()
        names = [key for key, _ in held.entries()] if isinstance(held, Map) else []
        return _in_order([name for name in names if name not in (None, "")])

    def fork(self) -> Topics:
        """Return a working copy; its `sync` merges its writes into these topics."""
        return Topics(self._cursor.fork(), self._clock, binding=self._binding)

    def sync(self) -> None:
        """Merge a fork's writes into its parent; of a root cursor, write it to its store."""
        with collector_paused:
            self._cursor.push()

    def __repr__(self) -> str:
        """Return the owner and the number of topics; never raises."""
        owner = self._cursor.context.owner
        return handle_text("Topics", "", owner, self._binding, lambda: f"{len(self.topics()):,}")


__all__ = ["NUM_PARTITIONS", "Topic", "Topics", "partition_of"]
