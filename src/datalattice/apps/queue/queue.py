"""Queue: one partition of a topic, a log with absolute offsets, over one cursor.

Source: CAD040; docs/queue.md "Owners", "State", "Appending", "Reading", "Following", "Consumers",
    "Metadata", "Truncation", "Fork and sync"; docs/design/decisions.md "D2";
    docs/design/front-door.md "Handles".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from operator import index
from typing import Final, Self, cast, overload

from datalattice.apps.binding import Binding, bound, handle_text, owner_cell
from datalattice.apps.queue import state as states
from datalattice.apps.queue.consumer import Followable, Reach
from datalattice.apps.queue.entries import (
    NewRecords,
    entry_key,
    entry_stamp_ms,
    entry_value,
    entry_values,
)
from datalattice.apps.queue.following import (
    CHUNK,
    OnLoss,
    PartitionId,
    PartitionSet,
    QueueEntry,
    partition_id,
)
from datalattice.apps.queue.lattice import (
    QUEUE_SECTION,
    TOPIC_PARTITIONS_KEY,
    QueueLattice,
)
from datalattice.apps.queue.metadata import checked_meta_key
from datalattice.apps.queue.state import QueueState, checked_offset, held_offsets, read_state
from datalattice.apps.valuetypes import UNTYPED, T, ValueType, value_type
from datalattice.cells import (
    EMPTY_VECTOR,
    Index,
    Map,
    Value,
    Vector,
    counted,
    html_table,
    render,
    to_cell,
)
from datalattice.clock import Clock, SystemClock, present_ms
from datalattice.cursors import LatticeCursor, RootLattice, collector_paused
from datalattice.errors import UnsupportedOperation, UsageError
from datalattice.lattice import VALUE_KEY

SHOWN_VALUE_MAX: Final = 100
"""Characters of the last value in the `repr` of a queue."""

SHOWN_OWNERS_MAX: Final = 8
"""Owners that the `repr` of an empty queue looks at."""

HTML_RECORDS_MAX: Final = 10
"""Most records in a notebook's table of a queue."""


class Queue(Followable[T]):
    """One partition of a topic.

    Records are read by absolute offset and stay until they are truncated; each reader keeps its own
    next offset. Every write is one atomic update of the cursor, so threads may share a queue
    object. A queue has one writer: only one process, or one fork at a time, should append to it.
    """

    __slots__ = ("_binding", "_clock", "_cursor", "_type")

    def __init__(
        self,
        cursor: LatticeCursor,
        clock: Clock | None = None,
        *,
        of: type[T] | None = None,
        binding: Binding | None = None,
    ) -> None:
        """Make a handle; `of` is the Python type of its values, by default any (`valuetypes`)."""
        self._cursor = cursor
        self._clock = clock or SystemClock()
        self._type: ValueType[T] = value_type(of)
        self._binding = binding

    @classmethod
    def create(cls, clock: Clock | None = None) -> Self:
        """Return a new empty queue over its own cursor."""
        return cls(RootLattice(QueueLattice(), QueueLattice().zero()), clock)

    @classmethod
    def at(
        cls,
        root: LatticeCursor,
        owner: object,
        topic: object,
        partition: object = 0,
        *,
        of: type[T] | None = None,
        clock: Clock | None = None,
        binding: Binding | None = None,
    ) -> Self:
        """Return one partition of a topic of `owner`, an `Owner` or owner cell, below a root.

        Writing needs a signing key of the owner in the cursor's context; reading verifies the
        owner's signature and writes nothing.
        Raises: UsageError: the topic's name is empty.
        """
        path = (
            QUEUE_SECTION,
            owner_cell(owner),
            VALUE_KEY,
            checked_topic(topic),
            TOPIC_PARTITIONS_KEY,
        )
        return cls(root.path(*path, to_cell(partition)), clock, of=of, binding=binding)

    @property
    def id(self) -> PartitionId:
        """Topic, owner and partition of this queue, as far as its cursor's path has them."""
        return partition_id(self._cursor, self._binding)

    @property
    def cursor(self) -> LatticeCursor:
        """The cursor below this queue."""
        return self._cursor

    def state(self) -> QueueState:
        """Return a consistent snapshot of records, metadata, time and start offset."""
        return read_state(self._cursor.get())

    # --- append -----------------------------------------------------------------------------

    def offer(self, value: T, *, key: object = None, headers: object = None) -> int:
        """Append one record and return its absolute offset.

        A value of None is a tombstone: compaction removes its key.

        Raises: TypeMismatch: `headers` is not a mapping. NoSigningKey: the queue belongs to an
                owner, and the cursor's context has no key of that owner.
        """
        # `to_cell` happens in the batch.
        cell = value if self._type is UNTYPED else self._type.to_cell(value)
        return self._append([cell], [key], None if headers is None else [headers]).start

    def offer_many(
        self,
        values: Iterable[T],
        *,
        keys: Iterable[object] | None = None,
        headers: Iterable[object] | None = None,
    ) -> range:
        """Append many records in one update and return their offsets.

        All records get the same time. `keys` and `headers` have one element for each value.

        Cost:   one signature for the batch, if the queue belongs to an owner.
        Raises: UsageError: `keys` or `headers` differ in length from `values`; nothing is appended.
        """
        cells = values if self._type is UNTYPED else self._type.to_cells(values)
        return self._append(cells, keys, headers)

    def load(self, table: object, *, key: str | None = None, value: str | None = None) -> int:
        """Append the rows of an Arrow table, data frame or reader; return their number.

        key: the column of keys. value: the column of values; None: each record is a Map of all
        columns. Decimals and times become numbers and ISO text. A handle with a type reads each
        value as if it were stored. Each edit has up to 100,000 rows.
        Raises: UsageError: `table` is not a table, or a column is missing. TypeMismatch: a value
                does not read as the type. Others as `offer_many`.
        """
        count = 0
        # One edit for each part: an error in a later part leaves the rows before it appended.
        for keys, values in bound(self._binding, "load").rows_of(table, key, value):
            numbers = range(count, count + len(values))
            self.offer_many(self._type.from_rows(values, numbers), keys=keys)
            count = numbers.stop
        return count

    def _append(
        self,
        values: Iterable[object],
        keys: Iterable[object] | None,
        headers: Iterable[object] | None,
    ) -> range:
        now_ms = present_ms(self._clock)
        # Made before the update: `values` may be an iterator, which a second run would find empty.
        batch = NewRecords(values, now_ms, keys, headers)
        # Without records nothing is written: the state keeps its time and its signature.
        if not batch.count:
            end = self.end_offset()
            return range(end, end)
        end = 0

        def step(value: Value) -> Value:
            nonlocal end
            made, end = states.append(value, batch, now_ms)
            return made

        with collector_paused:  # records form no cycles, and many are new
            self._cursor.update(step)
        # Counted back from the end that the update made: another writer may have come first.
        return range(end - batch.count, end)

    def advance(self, before: QueueState, entries: Vector) -> bool:
        """Replace the log of the snapshot `before` by `entries`; return whether it was replaced.

        For writers of more records than fit in memory: they append to the entries of a snapshot,
        store finished cells on the way, and publish the result here in one update. Returns False
        and writes nothing if records were appended or truncated since the snapshot.

        Raises: UsageError: `entries` is shorter than the log of the snapshot.
        """
        if len(entries) < len(before.entries):  # a shorter log would truncate in silence
            raise UsageError(
                f"`entries` has {len(entries)} records, the log it extends {len(before.entries)}"
            )
        now_ms = present_ms(self._clock)
        done = False

        def step(value: Value) -> Value:
            nonlocal done
            made = states.advance(value, before, entries, now_ms)
            done = made is not None  # set on every run: the update may run twice
            return made if done else value

        self._cursor.update(step)
        return done

    # --- read -------------------------------------------------------------------------------

    def peek(self, offset: int) -> T | None:
        """Return the value of the record at `offset`, None if the queue does not hold it."""
        return self._value_of(self.peek_entry(offset))

    def peek_entry(self, offset: int) -> Value:
        """Return the record at `offset`, None if it is truncated or not yet appended."""
        checked_offset("offset", offset)
        state = self.state()  # "nil when offset < start or >= end"
        if not state.start <= offset < state.end:
            return None
        return state.entries[offset - state.start]

    def peek_first(self) -> T | None:
        """Return the value of the oldest record, None if the queue is empty."""
        return self._value_of(self.peek_first_entry())

    def peek_first_entry(self) -> Value:
        """Return the oldest record, None if the queue is empty."""
        entries = self.state().entries
        return entries[0] if entries else None

    def peek_last(self) -> T | None:
        """Return the value of the newest record, None if the queue is empty."""
        return self._value_of(self.peek_last_entry())

    def peek_last_entry(self) -> Value:
        """Return the newest record, None if the queue is empty."""
        entries = self.state().entries
        return entries[-1] if entries else None

    def range(self, first: int, last: int) -> Vector:
        """Return the values that the queue holds at offsets `first` to `last`, both included.

        The values are cells even if the handle has a type.
        """
        state = self.state()
        low = max(checked_offset("first", first), state.start)  # "clamped to [start, end-1]"
        # "Values as a Vector, both ends included": the seed's meaning of a range.
        end = min(checked_offset("last", last) + 1, state.end)
        values = entry_values(state.entries, low - state.start, max(low, end) - state.start)
        return Vector.of(values) if values else EMPTY_VECTOR

    def entries(self, start: int | None = None, stop: int | None = None) -> Iterator[QueueEntry[T]]:
        """Yield the entries at offsets `start` to `stop` - 1 that the queue holds at the call.

        Negative offsets count from the end, as in `queue[start:stop]`.
        Cost:   reads one leaf at a time; memory does not grow with the length of the range.
        """
        state = self.state()
        held, id = held_offsets(state, start, stop), self.id
        cells = state.entries.iter_range(held.start - state.start, held.stop - state.start)
        type = self._type
        return (QueueEntry(id, at, cell, type) for at, cell in zip(held, cells, strict=True))

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> list[T]: ...

    def __getitem__(self, at: int | slice) -> T | list[T]:
        """Return the value at an absolute offset, or those of a half-open range of offsets.

        Negative offsets count from the end. A range is clamped to the offsets that the queue holds.
        Raises: IndexError: the record is truncated or not yet appended. UsageError: a step.
        """
        state = self.state()
        if isinstance(at, slice):
            # "The values at offsets a to b - 1, as far as they are there; no step" (docs/queue.md
            # "Reading").
            if at.step not in (None, 1):
                raise UsageError(f"a range of offsets has no step, got {at.step!r}; slice the list")
            held = held_offsets(state, at.start, at.stop)
            return self._values(state.entries, held.start - state.start, held.stop - state.start)
        wanted = index(at)
        # Offsets are absolute: `queue[0]` is the record at offset 0, and gone once it is truncated.
        offset = wanted if wanted >= 0 else state.end + wanted
        if not state.start <= offset < state.end:
            raise IndexError(
                f"there is no record at {wanted}: the queue holds {len(state.entries)} records, "
                f"from offset {state.start} to {state.end - 1}"
            )
        return self._type.from_cell(entry_value(state.entries[offset - state.start]))

    def _values(self, entries: Vector, start: int, stop: int) -> list[T]:
        cells = entry_values(entries, start, stop)
        if self._type is UNTYPED:
            return cast("list[T]", cells)
        return [self._type.from_cell(cell) for cell in cells]

    def _value_of(self, entry: Value) -> T | None:
        return None if entry is None else self._type.from_cell(entry_value(entry))

    def start_offset(self) -> int:
        """Return the offset of the oldest record; of an empty queue, that of the next record."""
        return self.state().start

    def end_offset(self) -> int:
        """Return the offset of the next record to be appended."""
        return self.state().end

    def size(self) -> int:
        """Return the number of records in the queue."""
        return len(self.state().entries)

    def is_empty(self) -> bool:
        """Return whether the queue has no records."""
        return not self.state().entries

    def __len__(self) -> int:
        return self.size()

    def __bool__(self) -> bool:
        # Without this, `if queue:` would test for records rather than for None.
        return True

    def __iter__(self) -> Iterator[T]:
        entries = self.state().entries  # a snapshot: records appended meanwhile are not yielded
        for at in range(0, len(entries), CHUNK):
            yield from self._values(entries, at, at + CHUNK)

    def __reversed__(self) -> Iterator[T]:
        entries = self.state().entries
        for end in range(len(entries), 0, -CHUNK):
            yield from reversed(self._values(entries, max(end - CHUNK, 0), end))

    def __contains__(self, value: object) -> bool:
        raise UnsupportedOperation(
            "`in` would read all records of a queue; write any(... for value in queue) if you "
            "mean that"
        )

    def _reach(self) -> Reach:
        return tuple(self.id)

    def _partitions(self, on_loss: OnLoss) -> PartitionSet[T]:
        found = [(self.id, self._cursor)]
        return PartitionSet(
            self._cursor, lambda _before, _now: found, self._binding, on_loss, self._type
        )

    # --- metadata and maintenance -----------------------------------------------------------

    def get_meta(self, key: object) -> Value:
        """Return the metadata value of `key`, None if it is absent."""
        return self.state().meta.values.get(to_cell(key))

    def set_meta(self, key: object, value: object) -> None:
        """Set the metadata value of `key`; on every node the latest write wins.

        Raises: UsageError: `key` is the reserved `:meta-stamps`.
        """
        now_ms = present_ms(self._clock)  # "the clock value is taken once before the atomic update"
        key_cell, value_cell = checked_meta_key(to_cell(key)), to_cell(value)
        self._cursor.update(lambda state: states.set_meta(state, key_cell, value_cell, now_ms))

    def truncate(self, start: int) -> int:
        """Remove the records before offset `start` and return how many were removed.

        If `start` is past the end, the next record gets offset `start`. Offsets are never reused.

        Cost:   low if the number of removed records is a multiple of a high power of 16; see
                `state.truncate`.
        """
        checked_offset("start", start)
        now_ms = present_ms(self._clock)
        before = read_state(  # the state before tells how many were removed
            self._cursor.get_and_update(lambda state: states.truncate(state, start, now_ms))
        )
        return min(max(start - before.start, 0), len(before.entries))

    # --- fork and sync ----------------------------------------------------------------------

    def fork(self) -> Queue[T]:
        """Return a working copy; its `sync` merges its writes into this queue."""
        return Queue(self._cursor.fork(), self._clock, of=self._type.of, binding=self._binding)

    def sync(self) -> None:
        """Merge a fork's writes into its parent; of a root cursor, write it to its store."""
        with collector_paused:
            self._cursor.push()

    def __repr__(self) -> str:
        """Return the name, the owner, the offsets and the last value; never raises."""
        context = self._cursor.context
        path = context.path  # `..., topic, :partitions, partition`
        name = f"{render(path[-3])}[{render(path[-1])}]" if len(path) >= 3 else ""
        return handle_text("Queue", name, context.owner, self._binding, self._summary)

    def _summary(self) -> str:
        state = self.state()
        count = state.end - state.start
        if not count:
            others = self._others()
            return f"empty; also kept here: {', '.join(others)}" if others else "empty"
        last = render(entry_value(state.entries[count - 1]))[:SHOWN_VALUE_MAX]
        first = f"{state.start:,} to " if count > 1 else ""
        return f"{counted(count, 'record')}, {first}{state.end - 1:,}, last {last}"

    def _others(self) -> list[str]:
        """Return other owners with records in this partition: the caller may mean one of them."""
        topic, _, partition = self.id
        if self._binding is None or topic is None:
            return []
        root, own = self._binding.root, self._cursor.context.owner
        section = root.get(QUEUE_SECTION)
        owners = (key for key, _ in section.entries()) if isinstance(section, (Index, Map)) else ()
        path = (VALUE_KEY, topic, TOPIC_PARTITIONS_KEY, partition)
        return [
            str(self._binding.owner(key))
            # Bounded: a root may have thousands of owners.
            for key in islice(owners, SHOWN_OWNERS_MAX)
            if key != own and read_state(root.path(QUEUE_SECTION, key, *path).get()).end
        ]

    def _repr_html_(self) -> str:
        """Return the notebook's table of the last records."""
        state = self.state()
        first = max(state.start, state.end - HTML_RECORDS_MAX)
        rows: list[tuple[object, ...]] = []
        for offset in range(first, state.end):
            entry = state.entries[offset - state.start]
            stamp_ms = entry_stamp_ms(entry)
            is_record = stamp_ms is not None
            key, value = (entry_key(entry), entry_value(entry)) if is_record else (None, entry)
            rows.append((offset, stamp_ms, key, value))
        title = f"Queue, offsets {state.start:,} to {state.end:,}, the last {len(rows)}"
        return html_table(title, ("offset", "Unix ms", "key", "value"), rows)


def checked_topic(name: object) -> Value:
    """Return the name of a topic as a cell. Raises: UsageError: it is None or empty."""
    if name is None or name == "":  # an empty name would be a topic that no command can name
        raise UsageError("the topic's name is empty; give a string or another cell")
    return to_cell(name)
