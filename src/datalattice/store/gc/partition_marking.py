"""Partition marking: one store marked by several processes, each marking one of its partitions.

The planning process finds the roots (`mark_start`) and follows the top of the trees
(`mark_frontier`). Each worker process marks the cells of a partition with a `StorePartitionMarker`.

Source: docs/spark-jobs.md "Garbage".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from datalattice.cells import branch_hashes
from datalattice.store.gc.marking import (
    LOCATION_SHIFT,
    MARK_CELLS,
    CellMarker,
    MarkRoots,
    absence_error,
    damage_error,
)
from datalattice.store.gc.partitions import (
    Extent,
    StorePartition,
    StorePartitionReader,
    check_extent,
    record_damage,
)
from datalattice.store.log.hashindex import LogPosition
from datalattice.store.log.packing import SEGMENTS_MAX, locate
from datalattice.store.log.recovery import Gap
from datalattice.store.log.removed import LocationSet
from datalattice.store.reader import StoreReader


class StorePartitionMarker(CellMarker):
    """Marks the cells of one partition. References to cells of other partitions become *leads*.

    `find_dead` lists the unmarked cells of the partition; marking one later removes it from there.
    """

    def __init__(self, store: StoreReader, extent: Extent, partition: StorePartition) -> None:
        check_extent(store, extent)
        super().__init__(store._folder, store._index)
        self._store = store
        self._extent = extent
        self._partition = partition
        self._begin = partition.first << 42
        self._end = min((partition.last + 1) << 42, extent.end << LOCATION_SHIFT)
        self._dead = LocationSet()
        self._counts: dict[int, list[int]] = {}
        """By segment: cells that stay, cells that may go, and the bytes of these."""
        self._sent: set[bytes] = set()
        self.leads: list[tuple[bytes, int]] = []
        """(hash, location) of cells of other partitions that must be marked too."""

    def take_leads(self) -> list[tuple[bytes, int]]:
        """Return the leads that were found since the last call."""
        leads, self.leads = self.leads, []
        return leads

    def follow_young(self, start: LogPosition) -> Iterator[None]:
        """Follow the packs of the partition after a position; yield after each of them."""
        # Nothing in this partition is younger than the grace.
        if start.segment > self._partition.last or start.sequence >= self._extent.position.sequence:
            return
        reader = StorePartitionReader(self._store, self._extent, self._partition)
        for found in reader.packs():
            if isinstance(found, Gap):
                raise damage_error(
                    f"{reader.path(found.segment)} at byte {found.offset}: {found.reason}"
                )
            if found.end.sequence <= start.sequence:
                continue
            self.follow(found.hashes)
            if found.root is not None:
                self.follow([found.root])
            yield

    def _find(self, hashes: list[bytes]) -> list[int]:
        locations = self._index.find_many(hashes)
        if min(locations, default=0) < 0 and self._store.refresh():
            self._index = self._store._index
            locations = self._index.find_many(hashes)
        return locations

    def _ours(self, hashes: list[bytes], locations: list[int]) -> tuple[list[bytes], list[int]]:
        if self._begin <= min(locations) and max(locations) < self._end:
            return hashes, locations
        ours = []
        for i, location in enumerate(locations):
            if self._begin <= location < self._end:
                ours.append(i)
            # Written again since: the sweep follows every pack after the extent.
            elif location >> LOCATION_SHIFT < self._extent.end and hashes[i] not in self._sent:
                # A lead that is sent twice does no harm, so the memory of sent leads is bounded.
                if len(self._sent) >= SENT_MAX:
                    self._sent.clear()
                self._sent.add(hashes[i])
                self.leads.append((hashes[i], location))
        return [hashes[i] for i in ours], [locations[i] for i in ours]

    def _count(self, hashes: list[bytes], locations: list[int]) -> None:
        super()._count(hashes, locations)
        for location in locations if self._counts else ():
            if self._dead.discard(location):
                count = self._counts[location >> 42]
                count[0] += 1
                count[1] -= 1
                count[2] -= locate(location)[2]

    def mark(self, locations: list[int]) -> None:
        """Mark cells whose references another process follows."""
        self._count([], [locations[i] for i in self.marks.add_all(locations)])

    def find_dead(self) -> None:
        """List the unmarked cells of the partition: they may go, unless they are marked later."""
        # The index says of each cell whether it is here, so no checksum of a pack is needed.
        reader = StorePartitionReader(self._store, self._extent, self._partition, whole=False)
        for pack in reader.packs():
            # Entries of the index that lead to damage are on no list, so they stay.
            if isinstance(pack, Gap):
                continue
            # Marks are locations of the index, so only the other cells have to be looked up.
            left = self.marks.lacking(pack.locations)
            dead = [location for _, location in reader.cells(pack, left)]
            self._dead.add_all(dead)
            count = self._counts.setdefault(pack.end.segment, [0, 0, 0])
            count[0] += len(pack.locations) - len(left)
            count[1] += len(dead)
            count[2] += sum(locate(location)[2] for location in dead)

    def segments(self) -> list[MarkedSegment]:
        """Return which cells of each segment stay and may go, once `find_dead` was called."""
        return [
            MarkedSegment(
                n, self.marks.pack(n), self._dead.pack(n), *self._counts.get(n, (0, 0, 0))
            )
            for n in sorted({*self._counts, *self.marks.segments()})
        ]

    def restore(self, segments: Iterable[MarkedSegment]) -> None:
        """Continue from the result of `segments`."""
        for number, live, dead, *count in segments:
            self.marks.unpack(number, live)
            self._dead.unpack(number, dead)
            self._counts[number] = count


class MarkedSegment(NamedTuple):
    """Which cells of a segment stay, and which may go, as `LocationSet.pack` returns them."""

    number: int
    live: bytes
    dead: bytes
    cells_live: int
    cells_dead: int
    bytes_dead: int


SENT_MAX: Final = 1 << 18
"""Most sent leads that are remembered, so that few are sent twice."""


class MarkStart(NamedTuple):
    """Where the mark of a store starts."""

    roots: list[bytes]
    """Hashes of the roots that are followed ..."""
    locations: list[int]
    """... and where they are."""
    start: LogPosition
    """All packs after this are within the grace, and stay."""


def mark_start(store: StoreReader, extent: Extent, roots: MarkRoots) -> MarkStart:
    """Return where the mark of a store starts; `roots` is from `CellStore.roots_kept`.

    Raises: StoreFailed: the present root, or one that is kept, is missing, or the record of removed
            cells is damaged.
    """
    damage = record_damage(store)
    # Without the record, cells that count as removed would be marked as live.
    if damage is not None:
        raise damage_error(str(damage))
    kept = [*([] if extent.root is None else [extent.root]), *roots.kept()]
    others = [*([] if roots.root is None else [roots.root]), *roots.tops()]
    wanted = list(dict.fromkeys([*kept, *others]))
    locations = store._index.find_many(wanted)
    found = MarkStart([], [], roots.start)
    needed = set(kept)
    for hash, location in zip(wanted, locations, strict=True):
        if location >= 0:
            found.roots.append(hash)
            found.locations.append(location)
        # Former roots may have been removed by an earlier collection; kept ones may not.
        elif hash in needed:
            raise damage_error(
                f"the root 0x{hash.hex()}, which is the present one or is kept, is not here"
            )
    return found


WAITING_MIN: Final = 4_096
"""When this many cells wait, there is enough work for several processes."""

FRONTIER_MAX: Final = 16_384
"""About how many cells one process marks before it distributes the work."""


class MarkFrontier(NamedTuple):
    """How far one process came with a mark before it distributes the rest."""

    marked: list[int]
    """Locations of cells that stay, whose children are all marked or waiting."""
    waiting: list[tuple[bytes, int]]
    """(hash, location) of cells that are not marked yet."""


def mark_frontier(
    store: StoreReader, extent: Extent, hashes: Iterable[bytes], parts: int
) -> MarkFrontier:
    """Follow cells with these hashes, level by level, to the end or until many wait.

    parts: the number of workers. A single one follows all cells, so none are followed here.
    Raises: StoreFailed: the store is damaged.
    Memory: bounded, whatever the size of the store.
    """
    marker = StorePartitionMarker(store, extent, StorePartition(0, 0, SEGMENTS_MAX, 0))
    met: set[bytes] = set()
    waiting: list[tuple[bytes, int]] = []
    marked: list[int] = []
    below = set(hashes)
    while True:
        # In the order of hashes, so that pages of the index are read one after another.
        new = sorted(below - met)
        met.update(new)
        for hash, location in zip(new, marker._find(new), strict=True):
            if location < 0:
                raise absence_error(hash)
            if location >> LOCATION_SHIFT < extent.end:
                waiting.append((hash, location))
        if not waiting or parts == 1 or len(waiting) >= WAITING_MIN or len(marked) >= FRONTIER_MAX:
            return MarkFrontier(marked, waiting)
        batch, waiting = waiting[:MARK_CELLS], waiting[MARK_CELLS:]
        below = set()
        marked += [location for _, location in batch]
        for data in marker.read_many([hash for hash, _ in batch], [at for _, at in batch]):
            below.update(branch_hashes(data))
