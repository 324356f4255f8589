"""Following: the entries of one or more partitions, in order, as they are appended.

A follower keeps the offset of the next entry of each partition. Entries of one partition come in
order, those of several by time among the present ones, so that a slow owner delays no other.

Source: docs/queue.md "Following"; docs/design/front-door.md "Handles".
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, Literal, NamedTuple

from datalattice.apps.binding import Binding, Owner
from datalattice.apps.queue.entries import entry_headers, entry_key, entry_stamp_ms, entry_value
from datalattice.apps.queue.state import QueueState, checked_offset, read_state
from datalattice.apps.valuetypes import UNTYPED, T, ValueType
from datalattice.cells import EMPTY_MAP, Map, Value, brief, same, value_hash
from datalattice.cursors import LatticeCursor, Stream
from datalattice.errors import DataLoss, UsageError
from datalattice.lattice import RecordsSkipped

Start = Literal["start", "end"] | int | datetime | timedelta
"""Where reading begins: an end of the log, an offset (a negative one counts from the end), the
first entry at or after a time, or a time span back from now."""

OnLoss = Literal["raise", "skip"]

CHUNK: Final = 1_024
"""Most entries that are read from a partition at a time."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_1_MS: Final = -62_135_596_800_000
_YEAR_9999_MS: Final = 253_402_300_799_999


class PartitionId(NamedTuple):
    """A partition of an owner's topic. A queue outside a root has no topic and no owner: None."""

    topic: Any
    owner: Owner | None
    partition: Any

    def __str__(self) -> str:
        owner = "" if self.owner is None else f" of {self.owner}"
        return f"{brief(self.topic)}[{brief(self.partition)}]{owner}"


class QueueEntry(Generic[T]):
    """One record of a queue, with its partition and offset.

    Shapes: cell: the record as it is stored. An element that is not a record has key and value
            None, no headers, and the time 0.
    """

    __slots__ = ("_type", "cell", "id", "offset")

    def __init__(
        self, id: PartitionId, offset: int, cell: Value, type: ValueType[T] = UNTYPED
    ) -> None:
        self.id: Final = id
        self.offset: Final = offset
        self.cell: Final = cell
        self._type: Final = type

    @property
    def topic(self) -> Any:
        """The name of the topic."""
        return self.id.topic

    @property
    def owner(self) -> Owner | None:
        """The owner of the topic; None for a queue outside a root."""
        return self.id.owner

    @property
    def partition(self) -> Any:
        """The id of the partition."""
        return self.id.partition

    @property
    def key(self) -> Any:
        """The key, None if the record has none."""
        return entry_key(self.cell)

    @property
    def value(self) -> T:
        """The value.

        Raises: TypeMismatch: the handle has a type (`of=`), and the stored value does not fit.
        """
        return self._type.from_cell(entry_value(self.cell))

    @property
    def headers(self) -> Map:
        """The headers; empty if the record has none."""
        return entry_headers(self.cell)

    @property
    def time_ms(self) -> int:
        """The time that the writer's clock gave, in Unix milliseconds."""
        return entry_stamp_ms(self.cell) or 0

    @property
    def time(self) -> datetime:
        """The time as an aware datetime in UTC, clamped to the years 1 to 9999."""
        # A writer may set any 64-bit number as the time.
        return _EPOCH + timedelta(milliseconds=min(max(self.time_ms, _YEAR_1_MS), _YEAR_9999_MS))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, QueueEntry)
            and (self.id, self.offset) == (other.id, other.offset)
            and same(self.cell, other.cell)
        )

    def __hash__(self) -> int:
        return hash((self.id, self.offset))

    def __repr__(self) -> str:
        value = brief(entry_value(self.cell))
        return f"<QueueEntry {self.offset} of {self.id}: key {brief(self.key)}, value {value}>"


def partition_id(cursor: LatticeCursor, binding: Binding | None) -> PartitionId:
    """Return the id in the path of a partition's cursor: `..., topic, :partitions, partition`."""
    path, owner = cursor.context.path, cursor.context.owner
    named = Owner(owner) if binding is None else binding.owner(owner)
    return PartitionId(
        path[-3] if len(path) >= 3 else None,
        None if owner is None else named,
        path[-1] if path else 0,
    )


def start_offset(state: QueueState, start: object, now_ms: int) -> int:
    """Return the offset that `start` means in a log.

    A time is found by binary search, which is exact if times never decrease.
    Raises: UsageError: `start` is of another kind.
    """
    if start == "start":
        return state.start
    if start == "end":
        return state.end
    if isinstance(start, datetime | timedelta):
        wanted_ms = unix_ms(start, now_ms)
        entries = range(len(state.entries))
        found = bisect_left(
            entries, wanted_ms, key=lambda at: entry_stamp_ms(state.entries[at]) or 0
        )
        return state.start + found
    if isinstance(start, int) and not isinstance(start, bool):
        checked_offset("start", start)
        # An offset below the start stays, so that the truncated records are reported as a loss. One
        # counted from the end stops at the start.
        return start if start >= 0 else max(state.end + start, state.start)
    raise UsageError(
        f'a start is "start", "end", an offset, a datetime or a timedelta, got {start!r}'
    )


def unix_ms(time: datetime | timedelta, now_ms: int) -> int:
    """Return a time, or a span back from `now_ms`, in Unix milliseconds.

    Raises: UsageError: the datetime has no time zone.
    """
    if isinstance(time, timedelta):
        return now_ms - time // timedelta(milliseconds=1)
    if time.tzinfo is None:  # without a zone the reader's machine would decide which moment it is
        raise UsageError(f"`start` has no time zone: {time!r}; use datetime.now(UTC) or similar")
    return (time - _EPOCH) // timedelta(milliseconds=1)


class Bookmark(NamedTuple):
    """A position in a log: the next offset, and the hash of the entry before it, if known."""

    next: int
    before: bytes | None = None


def bookmark_at(state: QueueState, offset: int) -> Bookmark:
    """Return the position `offset` in a log, which may not have the entry before it."""
    # Without the record before the position, a fork cannot be detected.
    is_held = state.start < offset <= state.end
    return Bookmark(
        offset, value_hash(state.entries[offset - 1 - state.start]) if is_held else None
    )


class PartitionReader(Generic[T]):
    """The position up to which one partition was read, and the entries read ahead of its user."""

    def __init__(self, id: PartitionId, cursor: LatticeCursor, type: ValueType[T]) -> None:
        self.id: Final = id
        self.cursor: Final = cursor
        self.ahead: Final[deque[QueueEntry[T]]] = deque()
        self._type: Final = type
        self.mark = Bookmark(0)
        self.has_more = True

    def state(self) -> QueueState:
        """Return the partition as it is now."""
        return read_state(self.cursor.get())

    def move(self, mark: Bookmark) -> None:
        """Continue at a position."""
        self.ahead.clear()  # read ahead from the old position
        self.mark, self.has_more = mark, True

    def has_forked(self, state: QueueState) -> bool:
        """Return whether the entry before the position differs from the one that was read."""
        here = bookmark_at(state, self.mark.next).before
        # Both hashes must be known: truncation alone is no fork.
        return self.mark.before is not None and here is not None and here != self.mark.before

    def read(self, state: QueueState) -> None:
        """Read up to `CHUNK` entries ahead."""
        begin, stop = self.mark.next, min(self.mark.next + CHUNK, state.end)
        if begin < stop:
            cells = state.entries.iter_range(begin - state.start, stop - state.start)
            id, type = self.id, self._type
            self.ahead.extend([QueueEntry(id, at, c, type) for at, c in enumerate(cells, begin)])
            self.mark = bookmark_at(state, stop)
        self.has_more = stop < state.end  # at the end, a change of the root sets it again


PartitionCursors = Iterable[tuple[PartitionId, LatticeCursor]]
Find = Callable[[Value, Value], PartitionCursors]
"""Yields the partitions, with their cursors, that may differ between two values of the root."""


def changed_keys(before: Value, now: Value) -> list[Value]:
    """Return the keys of the Map `now` that are new, or have another value than in `before`."""
    own = now if isinstance(now, Map) else EMPTY_MAP
    other = before if isinstance(before, Map) else EMPTY_MAP
    # A removed key is left out: it has nothing to read.
    return [key for key, is_here, *_ in own.differences(other) if is_here]


class PartitionSet(Generic[T]):
    """The readers of the partitions that `find` yields.

    Shapes: first: returns the position at which a new partition begins; by default its start.
    Cost:   a fetch reads the partitions that changed since the last one.
    """

    def __init__(
        self,
        root: LatticeCursor,
        find: Find,
        binding: Binding | None,
        on_loss: OnLoss,
        type: ValueType[T],
    ) -> None:
        if on_loss not in ("raise", "skip"):
            raise UsageError(f'`on_loss` is "raise" or "skip", got {on_loss!r}')
        self.root: Final = root
        self._find: Final = find
        self._binding: Final = binding
        self._on_loss: Final = on_loss
        self._type: Final = type
        self._seen: Value = None
        self.readers: Final[dict[PartitionId, PartitionReader[T]]] = {}
        self.first: Callable[[PartitionId, QueueState], Bookmark] = _first

    def refresh(self) -> None:
        """Make readers of new partitions."""
        self._note_changed(None, self.root.get())

    def _note_changed(self, before: Value, now: Value) -> None:
        for id, cursor in self._find(before, now):
            reader = self.readers.get(id)
            # "Partitions and owners that appear later are read from their start" (docs/queue.md
            # "Following").
            if reader is None:
                reader = self.readers[id] = PartitionReader(id, cursor, self._type)
                reader.move(self.first(id, reader.state()))
            reader.has_more = True  # its value differs, so there may be more

    def starts(self, start: Start, now_ms: int) -> dict[PartitionId, Bookmark]:
        """Return the position that `start` means in each present partition.

        Raises: UsageError: `start` is an offset, and the number of partitions is not 1.
        """
        self.refresh()
        # Offsets of different partitions are unrelated.
        if isinstance(start, int) and len(self.readers) != 1:
            raise UsageError(
                f"the offset {start!r} needs one partition, and there are {len(self.readers)}; "
                'use "start", "end" or a time, or read one partition'
            )
        states = {id: reader.state() for id, reader in self.readers.items()}
        return {id: bookmark_at(s, start_offset(s, start, now_ms)) for id, s in states.items()}

    def checked(self, positions: Mapping[Value, Bookmark]) -> dict[PartitionId, Bookmark]:
        """Return positions, given by the partition's id in its topic, by `PartitionId`.

        Raises: DataLoss: the log of a partition ends before its position, or is absent.
        """
        self.refresh()
        found = {id: positions[id.partition] for id in self.readers if id.partition in positions}
        forked = {id: at.next for id, at in found.items() if at.next > self.readers[id].state().end}
        gone = positions.keys() - {id.partition for id in found}
        forked |= {PartitionId(None, None, one): positions[one].next for one in gone}
        if forked:
            raise DataLoss(_loss_text({}, forked), {}, forked)
        return found

    def marks(self) -> dict[PartitionId, Bookmark]:
        """Return the position up to which each partition was read."""
        return {id: reader.mark for id, reader in self.readers.items()}

    def move(self, marks: Mapping[PartitionId, Bookmark]) -> None:
        """Continue at these positions; those of unknown partitions are ignored."""
        for id, mark in marks.items():
            if id in self.readers:
                self.readers[id].move(mark)

    def fetch(self) -> list[QueueEntry[T]]:
        """Return the next available entries by time; an empty list if there are none.

        Raises: DataLoss: entries were truncated before they were read, or a log has forked.
        """
        value = self.root.get()
        if value is not self._seen:
            self._note_changed(self._seen, value)
        # A reader reads again only when its entries are used up.
        states = {r.id: r.state() for r in self.readers.values() if r.has_more and not r.ahead}
        # Before `_seen` changes, so that the next call finds the same loss again.
        self._check_losses(states)
        for id, state in states.items():
            self.readers[id].read(state)
        self._seen = value
        return list(self._by_time())

    def _by_time(self) -> Iterator[QueueEntry[T]]:
        """Yield entries that were read ahead, until one reader has to read more."""
        # "Across them entries come by time of what is there now, and nothing waits for a slow
        # owner" (docs/design/front-door.md "Handles").
        filled = [reader for reader in self.readers.values() if reader.ahead]
        if len(filled) == 1:
            yield from filled[0].ahead
            filled[0].ahead.clear()
            return
        heads = [(reader.ahead[0].time_ms, at, reader) for at, reader in enumerate(filled)]
        heapq.heapify(heads)  # the index decides between equal times: readers are not compared
        while heads:
            _, order, reader = heads[0]
            yield reader.ahead.popleft()
            if reader.ahead:
                heapq.heapreplace(heads, (reader.ahead[0].time_ms, order, reader))
            elif reader.has_more:
                return  # its next entry may be older than those of the others
            else:
                heapq.heappop(heads)

    def _check_losses(self, states: dict[PartitionId, QueueState]) -> None:
        lost, forked = {}, {}
        for id, state in states.items():
            reader = self.readers[id]
            # "`\"raise\"` raises `DataLoss`, whose `lost` gives the offsets of each partition;
            # `\"skip\"` goes on behind them".
            if state.start > reader.mark.next:
                lost[id] = range(reader.mark.next, state.start)
            elif reader.has_forked(state):
                forked[id] = reader.mark.next
        if not lost and not forked:
            return
        if self._on_loss == "raise":
            raise DataLoss(_loss_text(lost, forked), lost, forked)
        for id in [*lost, *forked]:
            reader = self.readers[id]
            skipped = lost.get(id, range(reader.mark.next, reader.mark.next))
            # After the loss, or at the same offset of the new branch.
            reader.move(Bookmark(skipped.stop))
            context = reader.cursor.context
            report = context.report if self._binding is None else self._binding.report
            report(RecordsSkipped(context.path, skipped.start, skipped.stop))


def _first(_id: PartitionId, state: QueueState) -> Bookmark:
    return Bookmark(state.start)


def _loss_text(lost: dict[PartitionId, range], forked: dict[PartitionId, int]) -> str:
    texts = [
        f"entries {gone.start} to {gone.stop - 1} of {id} were truncated before they were read"
        for id, gone in lost.items()
    ]
    texts += [
        f"the log of {id} has forked: its entry {offset - 1} is not the one that was read"
        for id, offset in forked.items()
    ]
    return f"{'; '.join(texts)}; go on from another start, or use on_loss='skip'"


class Follow(Stream[QueueEntry[T]]):
    """The entries of a queue, topic or feed from a start on, as they are appended.

    Raises: DataLoss: on a request for the next entry, if it was truncated or the log has forked;
            see `on_loss` of `follow`.
    """

    def __init__(
        self,
        partitions: PartitionSet[T],
        start: Start | Mapping[Value, Bookmark],
        now_ms: int,
        *,
        wait: bool = True,
        timeout: float | None = None,
    ) -> None:
        self._partitions: Final = partitions
        if isinstance(start, Mapping):
            partitions.move(partitions.checked(start))
        else:
            partitions.move(partitions.starts(start, now_ms))
        self.begun: Final = partitions.marks()
        """The position of each partition at which it began."""
        super().__init__(partitions.root, wait=wait, timeout=timeout)

    def _fetch(self) -> list[QueueEntry[T]]:
        return self._partitions.fetch()
