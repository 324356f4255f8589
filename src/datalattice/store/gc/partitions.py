"""Partitions: one store read by several processes, each reading some of its segments.

The planning process notes an *extent*: what the store holds at one moment. It divides the extent
into partitions of consecutive segments. Each worker process opens the store and reads one partition
with a `StorePartitionReader`. Everything written after that moment is ignored. If a collection
removes cells meanwhile, the extent is invalid; `check_extent` detects that.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from datalattice.errors import StoreFailed, UsageError
from datalattice.store.files import StoreFolder
from datalattice.store.gc.marking import (
    LOCATION_SHIFT,
    damage_error,
)
from datalattice.store.log.hashindex import LogPosition
from datalattice.store.log.logstate import Pack
from datalattice.store.log.packing import upper_bits
from datalattice.store.log.recovery import Gap, LogReader
from datalattice.store.log.removed import (
    GARBAGE_FILE,
    NOTHING_REMOVED,
    RemovedFilter,
    RemovedRecord,
)
from datalattice.store.log.segments import (
    SegmentReader,
    first_pack,
    segment_numbers,
    segment_path,
    segment_size,
)
from datalattice.store.reader import StoreReader
from datalattice.store.records import Damage

_FIRST_BYTES: Final = 256
"""Number of values of the first byte of a hash."""


class ExtentSegment(NamedTuple):
    """A segment of an extent."""

    number: int
    size_bytes: int
    sequence: int
    """Number of its first pack; if its header is damaged, that of an earlier segment."""


class StorePartition(NamedTuple):
    """Consecutive segments of a store, for one process to read."""

    number: int
    first: int
    last: int
    sequence: int
    """Number of the first pack."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What a store holds at one moment."""

    store_id: bytes
    position: LogPosition
    """The end of the last pack that belongs to it."""
    root: bytes | None
    removed: bytes
    """Digest of the record of removed cells, empty when there is none."""
    segments: tuple[ExtentSegment, ...]

    @property
    def end(self) -> int:
        """Segment and byte after the last pack, as the upper bits of a location have them."""
        return upper_bits(self.position.segment, self.position.offset)

    def partitions(self, count: int) -> list[StorePartition]:
        """Return the segments in `count` partitions of about the same length, or in fewer.

        Raises: UsageError: count is less than 1.
        """
        if count < 1:
            raise UsageError(f"a store is read in 1 or more parts, got {count}")
        found: list[StorePartition] = []
        left = sum(segment.size_bytes for segment in self.segments)
        run: list[ExtentSegment] = []
        size = 0
        for index, segment in enumerate(self.segments, 1):
            run.append(segment)
            size += segment.size_bytes
            parts_left = count - len(found)
            is_last = index == len(self.segments)
            # A partition ends once it has its share of the bytes that are left.
            if is_last or (parts_left > 1 and size * parts_left >= left):
                found.append(
                    StorePartition(len(found), run[0].number, run[-1].number, run[0].sequence)
                )
                left -= size
                run, size = [], 0
        return found


class PartitionPlan:
    """Finds the partition of a cell."""

    def __init__(self, folder: str, partitions: Sequence[StorePartition]) -> None:
        self._folder = folder
        self._firsts = [partition.first for partition in partitions]
        self._lasts = [partition.last for partition in partitions]

    def number(self, location: int) -> int:
        """Return the number of the partition that a location lies in.

        Raises: StoreFailed: the segment is gone.
        """
        segment = location >> 42
        # Partitions are consecutive segments, so the last one that begins before it has it.
        at = bisect_right(self._firsts, segment) - 1
        if at < 0 or segment > self._lasts[at]:
            raise damage_error(f"{segment_path(self._folder, segment)}: the segment is gone")
        return at


def extent_of(store: StoreReader) -> Extent:
    """Return the extent of a store at this moment.

    Cost: reads the header of each segment.
    """
    store._check_open()
    store.refresh()
    folder = store._folder
    mark = store._state.watermark()
    removed = _removed(store)
    segments: list[ExtentSegment] = []
    sequence = 1
    for number in segment_numbers(folder):
        # Segments after the position are newer than the extent; dropped ones wait to be deleted.
        if number > mark.position.segment or removed.dropped(number):
            continue
        # With a damaged header the number of its first pack is unknown; the previous one is a lower
        # bound.
        sequence = first_pack(folder, number) or sequence
        # After the last pack is preallocated space, which is not read.
        is_last = number == mark.position.segment
        size = mark.position.offset if is_last else segment_size(folder, number)
        segments.append(ExtentSegment(number, size, sequence))
    return Extent(
        store._opened.store_id,
        mark.position,
        mark.root,
        removed_digest(folder),
        tuple(segments),
    )


def _removed(store: StoreReader) -> RemovedRecord:
    """Return the record of removed cells; a store without it is still complete."""
    found = store._removed()
    return NOTHING_REMOVED if isinstance(found, Damage) else found


def record_damage(store: StoreReader) -> Damage | None:
    """Return the damage of the record of removed cells, None when it is intact."""
    found = store._removed()
    return found if isinstance(found, Damage) else None


def entry_count(store: StoreReader) -> int:
    """Return the number of entries in the index of a store."""
    return store._index.count()


def removed_digest(folder: StoreFolder) -> bytes:
    """Return the digest of the record of removed cells, empty when there is none."""
    data = folder.read(GARBAGE_FILE)
    # Each collection replaces the record: with an equal digest, none came in between.
    return b"" if data is None else hashlib.sha3_256(data).digest()


def check_extent(store: StoreReader, extent: Extent) -> None:
    """Check that an extent is of this store, and that no cells were removed since.

    Raises: UsageError: it is another store's. StoreFailed: cells were removed.
    """
    folder = store._folder
    # A folder that was replaced has other cells at the same locations.
    if store._opened.store_id != extent.store_id:
        raise UsageError(f"{folder}: another store than the one that the work was planned for")
    if removed_digest(folder) != extent.removed:
        raise StoreFailed(f"{folder}: cells were removed from it meanwhile; begin again")


def missing_before(store: StoreReader, partition: StorePartition, sequence: int) -> str:
    """Return which packs are missing between the pack `sequence` and a partition; "" for none."""
    removed = _removed(store)
    expected = sequence + 1
    run = removed.run_before(partition.first)
    # A collection removed these packs on purpose: they are not missing.
    if run is not None and run.sequence <= expected < run.next_sequence:
        expected = run.next_sequence
    if partition.sequence <= expected:
        return ""
    return f"the packs {expected} to {partition.sequence - 1} are missing"


class StorePartitionReader:
    """Reads one partition of a store."""

    def __init__(
        self, store: StoreReader, extent: Extent, partition: StorePartition, *, whole: bool = True
    ) -> None:
        """`whole`: as of a `LogReader`."""
        check_extent(store, extent)
        self._store = store
        self._extent = extent
        self._partition = partition
        folder = store._folder
        removed = _removed(store)
        self._filter = RemovedFilter(removed)
        self._log = LogReader(
            folder,
            extent.store_id,
            LogPosition(partition.sequence - 1, partition.first, 0, None),
            removed,
            last_segment=partition.last,
            whole=whole,
        )
        self._segments = SegmentReader(folder)
        self.is_open_ended = False
        """Whether it ended in a gap."""

    @property
    def sequence(self) -> int:
        """Number of the last pack that was read."""
        return self._log.end.sequence

    @property
    def behind(self) -> tuple[int, int]:
        """Segment and byte after the last pack that was read."""
        return self._log.end.segment, self._log.end.offset

    def packs(self) -> Iterator[Pack | Gap]:
        """Yield the packs of the partition, and the gaps between them, in order.

        Raises: StoreVersion: a newer version wrote a segment. Corruption: a segment of another
                store.
        """
        last = self._extent.position.sequence
        gap: Gap | None = None
        behind = upper_bits(self._partition.first, 0)
        for found in self._log.read():
            number = found.sequence if isinstance(found, Gap) else found.end.sequence
            # Packs after the extent are ignored: other partitions end there too.
            if number > last:
                break
            # A gap ends where the next pack or gap begins.
            if gap is not None:
                yield _with_span(gap, behind, found)
            gap = found if isinstance(found, Gap) else None
            if isinstance(found, Pack):
                behind = upper_bits(found.end.segment, found.end.offset)
                yield found
                if number == last:
                    break
            elif found.offset:
                behind = upper_bits(found.segment, found.offset)
        if gap is not None:
            self.is_open_ended = True
            yield _with_span(gap, behind, None)

    def cells(self, pack: Pack, positions: Iterable[int] | None = None) -> list[tuple[bytes, int]]:
        """Return (hash, location) of the cells of a pack that the index finds in this pack.

        positions: of the cells in the pack that are looked up, by default all.
        """
        hashes, locations = pack.hashes, pack.locations
        if positions is not None:
            chosen = list(positions)
            hashes, locations = [hashes[i] for i in chosen], [locations[i] for i in chosen]
        known = self._store._index.find_many(hashes)
        if known == locations and self._filter.removed is NOTHING_REMOVED:
            return list(zip(hashes, known, strict=True))
        found = []
        for hash, location, at in zip(hashes, locations, known, strict=True):
            # Of several copies the one that the index names counts. Staged bits may differ.
            if at >> 1 == location >> 1 and not self._filter.is_removed(location):
                found.append((hash, at))
        return found

    def entries(self, first: int, last: int) -> Iterator[tuple[bytes, int]]:
        """Yield (hash, location) from the index for hashes with a first byte in [first, last]."""
        stop = bytes([last + 1]) if last + 1 < _FIRST_BYTES else None
        end = self._extent.end
        for hash, location in self._store._index.entries(bytes([first]), stop):
            # Entries written since the extent belong to no partition.
            if location >> LOCATION_SHIFT < end and not self._filter.is_removed(location):
                yield hash, location

    def locations(self, hashes: list[bytes]) -> list[int]:
        """Return the locations of cells, negative for those that are not here."""
        locations = self._store._index.find_many(hashes)
        # A cell that is not found may be newer than what this reader has seen of the log.
        if min(locations, default=0) < 0 and self._store.refresh():
            locations = self._store._index.find_many(hashes)
        return locations

    def read(self, location: int) -> bytes:
        """Return the bytes at a location; they are not verified.

        Raises: Corruption: there are none.
        """
        return self._segments.read(location)

    def read_many(
        self, cells: list[tuple[bytes, int]], *, verify: bool = True
    ) -> list[bytes | None]:
        """Return the bytes of cells, given as (hash, location), None where they cannot be read.

        verify: None also where they do not have their hash.
        """
        hashes = [hash for hash, _ in cells] if verify else None
        return self._segments.read_many([location for _, location in cells], hashes)

    def path(self, segment: int) -> str:
        """Return the path of a segment."""
        return segment_path(self._store._folder, segment)


def _with_span(gap: Gap, behind: int, follower: Pack | Gap | None) -> Gap:
    """Return a gap with its span, from `behind`, the end of the last good pack, to `follower`."""
    end = upper_bits(gap.segment + 1, 0)
    if isinstance(follower, Gap) and follower.segment == gap.segment:
        end = upper_bits(gap.segment, follower.offset)
    elif isinstance(follower, Pack) and follower.end.segment == gap.segment:
        end = upper_bits(gap.segment, follower.end.offset - follower.length)
    begin = upper_bits(gap.segment, gap.offset) if gap.offset else behind
    return gap._replace(span=(begin, end))
