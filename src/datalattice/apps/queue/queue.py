"""Queue: one partition, a log with absolute offsets, over one cursor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Self

from datalattice.apps.queue import state as states
from datalattice.apps.queue.entries import Batch, entry_stamp_ms, entry_value, entry_values
from datalattice.apps.queue.lattice import QueueLattice
from datalattice.apps.queue.metadata import checked_meta_key
from datalattice.apps.queue.state import QueueState, checked_offset, read_state
from datalattice.cells import EMPTY_VECTOR, Value, Vector, html_table, to_cell
from datalattice.clock import Clock, SystemClock, present_ms
from datalattice.cursors import LatticeCursor, RootLattice
from datalattice.errors import UsageError

CHUNK: Final = 1_024
"""Records that iteration reads at a time."""

HTML_RECORDS_MAX: Final = 10
"""Records that a notebook shows of a queue."""


class Queue:
    """One partition of a topic.

    Records are read by absolute offset and stay until they are truncated; readers keep their own
    next offset. Every write is one atomic update of the cursor, so threads may share a queue
    object. One queue has one leader: only one process (or one fork at a time) should append to it.
    """

    __slots__ = ("_clock", "_cursor")

    def __init__(self, cursor: LatticeCursor, clock: Clock | None = None) -> None:
        self._cursor = cursor
        self._clock = clock or SystemClock()

    @classmethod
    def create(cls, clock: Clock | None = None) -> Self:
        """Return a new empty queue over a cursor of its own.

        Source: CAD040 "create"; docs/queue.md "Owners".
        """
        return cls(RootLattice(QueueLattice(), QueueLattice().zero()), clock)

    @property
    def cursor(self) -> LatticeCursor:
        """The cursor this queue works on."""
        return self._cursor

    def state(self) -> QueueState:
        """Return the parts of the present value: one consistent snapshot of all of them.

        Source: CAD040 "Queue"; docs/queue.md "State".
        """
        return read_state(self._cursor.get())

    # --- append -----------------------------------------------------------------------------

    def offer(self, value: object, key: object = None, headers: object = None) -> int:
        """Append one record and return its absolute offset.

        A value of None is a tombstone: a compaction removes the key.

        Raises: TypeMismatch: `headers` is not a mapping. NoSigningKey: below an owner without a
                key.
        Source: CAD040 "offer"; docs/queue.md "Appending".
        """
        return self._append([value], [key], None if headers is None else [headers]).start

    def offer_many(
        self,
        values: Iterable[object],
        keys: Iterable[object] | None = None,
        headers: Iterable[object] | None = None,
    ) -> range:
        """Append many records in one update and return their offsets.

        The result equals single offers under an unmoving clock. `keys` and `headers` run beside
        `values`, one for each.

        Cost:   below a signing boundary one signature for the whole batch.
        Raises: UsageError: `keys` or `headers` of another length. Nothing is appended then.
        Source: docs/queue.md "Appending".
        """
        return self._append(values, keys, headers)

    def _append(
        self,
        values: Iterable[object],
        keys: Iterable[object] | None,
        headers: Iterable[object] | None,
    ) -> range:
        now_ms = present_ms(self._clock)
        batch = Batch(values, now_ms, keys, headers)
        if not batch.count:
            end = self.end_offset()
            return range(end, end)
        state = self._cursor.update_and_get(lambda value: states.append(value, batch, now_ms))
        end = read_state(state).end
        return range(end - batch.count, end)

    def advance(self, before: QueueState, entries: Vector) -> bool:
        """Put `entries` in place of the log of `before`, a snapshot; return whether that was done.

        For writers of more records than memory holds: they append to the entries of a snapshot,
        store what they have as they go, and write the end of it here in one update. False, and
        nothing is written, when records came or went meanwhile.

        Raises: UsageError: `entries` are fewer than those of the snapshot.
        Source: docs/queue.md "Appending".
        """
        if len(entries) < len(before.entries):
            raise UsageError(
                f"a log of {len(before.entries)} records cannot go on as one of {len(entries)}"
            )
        now_ms = present_ms(self._clock)
        done = False

        def step(value: Value) -> Value:
            nonlocal done
            made = states.advance(value, before, entries, now_ms)
            done = made is not None
            return made if done else value

        self._cursor.update(step)
        return done

    # --- read -------------------------------------------------------------------------------

    def peek(self, offset: int) -> Value:
        """Return the value of the record at `offset`; None when there is none.

        Source: CAD040 "peek"; docs/queue.md "Reading".
        """
        return entry_value(self.peek_entry(offset))

    def peek_entry(self, offset: int) -> Value:
        """Return the record at `offset`; None when it is before the start or not yet appended.

        Source: CAD040 "peekEntry"; docs/queue.md "Reading".
        """
        checked_offset("offset", offset)
        state = self.state()
        if not state.start <= offset < state.end:
            return None
        return state.entries[offset - state.start]

    def peek_first(self) -> Value:
        """Return the value of the oldest record; None when the queue is empty.

        Source: CAD040 "peekFirst"; docs/queue.md "Reading".
        """
        return entry_value(self.peek_first_entry())

    def peek_first_entry(self) -> Value:
        """Return the oldest record; None when the queue is empty.

        Source: CAD040 "peekFirst"; docs/queue.md "Reading".
        """
        entries = self.state().entries
        return entries[0] if entries else None

    def peek_last(self) -> Value:
        """Return the value of the newest record; None when the queue is empty.

        Source: CAD040 "peekLast"; docs/queue.md "Reading".
        """
        return entry_value(self.peek_last_entry())

    def peek_last_entry(self) -> Value:
        """Return the newest record; None when the queue is empty.

        Source: CAD040 "peekLast"; docs/queue.md "Reading".
        """
        entries = self.state().entries
        return entries[-1] if entries else None

    def range(self, first: int, last: int) -> Vector:
        """Return the values from `first` to `last`, both included, as far as they are there.

        Source: CAD040 "range"; docs/queue.md "Reading".
        """
        state, low, high = self._clamped(first, last)
        values = entry_values(state.entries, low, high)
        return Vector.of(values) if values else EMPTY_VECTOR

    def iter_entries(self, first: int | None = None, last: int | None = None) -> Iterator[Value]:
        """Yield the records from `first` to `last`, both included, as they are at the call.

        Cost:   leaf by leaf: memory does not grow with the length of the range.
        Source: CAD040 "range"; docs/queue.md "Reading".
        """
        state, low, high = self._clamped(first, last)
        return state.entries.iter_range(low, high)

    def _clamped(self, first: int | None, last: int | None) -> tuple[QueueState, int, int]:
        """Return the state, and the positions in its entries that a range of offsets covers."""
        state = self.state()
        low = state.start if first is None else max(checked_offset("first", first), state.start)
        end = state.end if last is None else min(checked_offset("last", last) + 1, state.end)
        return state, low - state.start, max(low, end) - state.start

    def start_offset(self) -> int:
        """Return the offset of the oldest record; where there is none, of the next one.

        Source: CAD040 "startOffset"; docs/queue.md "Reading".
        """
        return self.state().start

    def end_offset(self) -> int:
        """Return the offset that the next record gets.

        Source: CAD040 "endOffset"; docs/queue.md "Reading".
        """
        return self.state().end

    def size(self) -> int:
        """Return how many records are there.

        Source: CAD040 "size"; docs/queue.md "Reading".
        """
        return len(self.state().entries)

    def is_empty(self) -> bool:
        """Return whether no record is there.

        Source: CAD040 "isEmpty"; docs/queue.md "Reading".
        """
        return not self.state().entries

    def __len__(self) -> int:
        return self.size()

    def __bool__(self) -> bool:
        return True  # an empty queue is still a queue

    def __iter__(self) -> Iterator[Value]:
        entries = self.state().entries
        for at in range(0, len(entries), CHUNK):
            yield from entry_values(entries, at, at + CHUNK)

    # --- metadata and maintenance -----------------------------------------------------------

    def get_meta(self, key: object) -> Value:
        """Return the metadata value of `key`; None when there is none.

        Source: CAD040 "getMeta"; docs/queue.md "Metadata".
        """
        return self.state().meta.values.get(to_cell(key))

    def set_meta(self, key: object, value: object) -> None:
        """Set the metadata value of `key`; the later write wins everywhere.

        Raises: UsageError: `key` is the reserved `:meta-stamps`.
        Source: CAD040 "setMeta"; docs/queue.md "Metadata"; docs/design/decisions.md "D2".
        """
        now_ms = present_ms(self._clock)
        key_cell, value_cell = checked_meta_key(to_cell(key)), to_cell(value)
        self._cursor.update(lambda state: states.set_meta(state, key_cell, value_cell, now_ms))

    def truncate(self, start: int) -> int:
        """Remove the records before offset `start` and return how many were removed.

        `start` may lie past the end: the next record then gets it. Offsets never come back.

        Cost:   see `state.truncate`: cheap when the records removed are a multiple of a high power
                of 16.
        Source: CAD040 "truncate"; docs/queue.md "Truncation".
        """
        checked_offset("start", start)
        now_ms = present_ms(self._clock)
        before = read_state(
            self._cursor.get_and_update(lambda state: states.truncate(state, start, now_ms))
        )
        return min(max(start - before.start, 0), len(before.entries))

    # --- fork and sync ----------------------------------------------------------------------

    def fork(self) -> Queue:
        """Return a working copy; its writes arrive here with its `sync`.

        Source: CAD040 "fork"; docs/queue.md "Fork and sync".
        """
        return Queue(self._cursor.fork(), self._clock)

    def sync(self) -> None:
        """Bring the writes of a fork to its parent, or those of a root to where it is kept.

        Source: CAD040 "sync"; docs/queue.md "Fork and sync".
        """
        self._cursor.sync()

    def __repr__(self) -> str:
        state = self.state()
        return f"Queue(start={state.start}, end={state.end})"

    def _repr_html_(self) -> str:
        """Return what notebooks show: the last records."""
        state = self.state()
        first = max(state.start, state.end - HTML_RECORDS_MAX)
        rows: list[tuple[object, ...]] = []
        for offset in range(first, state.end):
            entry = state.entries[offset - state.start]
            stamp_ms = entry_stamp_ms(entry)
            whole = entry if isinstance(entry, Vector) and stamp_ms is not None else (None, entry)
            rows.append((offset, stamp_ms, whole[0], whole[1]))
        title = f"Queue, offsets {state.start:,} to {state.end:,}, the last {len(rows)}"
        return html_table(title, ("offset", "Unix ms", "key", "value"), rows)
