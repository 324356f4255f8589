"""Marking: follow and mark every cell that stays, with a bit for each 32 bytes of the store.

Cells are followed by hash, a thousand at a time in the order of the index. Each is compared with
its hash. The first damaged or missing cell ends the mark, because its references are unknown.

Source: docs/store.md "Garbage".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from datalattice.cells import branch_hashes, may_refer
from datalattice.crypto import sha3_256
from datalattice.errors import Corruption, StoreFailed
from datalattice.store.files import StoreFolder
from datalattice.store.log.hashindex import BEGINNING, HashIndex, LogPosition
from datalattice.store.log.opening import OpenLog
from datalattice.store.log.packing import CELL_ENTRY_BYTES, locate
from datalattice.store.log.recovery import Gap, LogReader
from datalattice.store.log.removed import LocationSet, RemovedRecord
from datalattice.store.log.segments import (
    SegmentReader,
    first_header,
    segment_numbers,
    segment_path,
)
from datalattice.store.records import CollectProgress

MARK_CELLS: Final = 1_024
"""Cells that are followed in one step."""

CATCH_UP_PACKS: Final = 64
"""Most packs that are followed under the lock; while there are more, commits continue."""

CATCH_UP_ROUNDS: Final = 20
"""Most rounds without the lock. If a writer is faster than the mark, it has to wait after them."""

CELL_BYTES: Final = CELL_ENTRY_BYTES
"""Bytes counted for a live or dead cell beside its encoding."""

LOCATION_SHIFT: Final = 15
"""The bits of a location from this one on are the segment and the byte."""


@dataclass(slots=True)
class MarkRoots:
    """The roots of a mark. Two are functions, because they are called again at its end."""

    kept: Callable[[], Iterable[bytes]]
    """Hashes of roots that are pinned or leased: a missing one is an error."""
    tops: Callable[[], Iterable[bytes]]
    """Hashes of former roots, and of values put within the grace. A missing one is skipped."""
    start: LogPosition
    """All packs after this are within the grace."""
    root: bytes | None
    """The root at `start`."""


@dataclass(frozen=True, slots=True)
class PriorMark:
    """The result of an earlier mark, for the cells before a position of the log."""

    end: int
    """That position, as the upper bits of a location."""
    live: LocationSet
    """Cells that stay; all cells below them are in the set too."""
    dead: LocationSet
    """Cells that nothing reached then. A cell in neither set was unknown."""


Begin = Callable[[], tuple[MarkRoots, PriorMark | None]]
"""Returns the roots of a collection, and the result of an earlier mark."""


def young_start(
    folder: StoreFolder, log: OpenLog, removed: RemovedRecord, since_ms: int
) -> tuple[LogPosition, bytes | None]:
    """Return where the packs begin that may be younger than a time, and the root there.

    Cost: reads the segment in which they begin, and those before it up to one with a root.
    """
    behind: LogPosition | None = None
    last = log.state.position
    for number in reversed(segment_numbers(folder)):
        if removed.dropped(number) or number > last.segment:
            continue
        header = first_header(folder, log.store_id, number)
        # All of the segment is younger, or it has no readable header.
        if behind is None and (header is None or header.time_ms > since_ms):
            continue
        begin = LogPosition(0 if header is None else header.sequence - 1, number, 0, None)
        reached: LogPosition | None = None
        root = root_there = None
        for found in LogReader(folder, log.store_id, begin, removed, last_segment=number).read():
            if isinstance(found, Gap):
                continue  # the mark that follows refuses a damaged log
            if found.end.sequence > last.sequence:
                break
            root = found.root or root
            # "A cell is as old as its pack". A clock may go back, but all packs before this one
            # were written earlier. So the last pack with an early enough time decides.
            if behind is not None or found.time_ms <= since_ms:
                reached, root_there = found.end, root
        behind = behind or reached
        if root_there is not None and behind is not None:
            return behind, root_there
    return behind or BEGINNING.position, None


class CellMarker:
    """Follows cells by hash down to the last one, and marks their locations."""

    def __init__(self, folder: StoreFolder, index: HashIndex) -> None:
        self._folder = folder
        self._index = index
        self._segments = SegmentReader(folder)
        self.marks = LocationSet()
        """The locations of cells that stay."""
        self.cells = 0

    def follow(self, hashes: Iterable[bytes], *, must_be_here: bool = False) -> None:
        """Mark the cells with these hashes that are here, and all cells below them.

        Raises: StoreFailed: a cell below them, or with `must_be_here` one of them, is missing or
                damaged.
        """
        tops = list(hashes)
        if must_be_here:
            stack = tops
        else:
            locations = self._find(tops)
            # Former roots and put values may be gone already: an earlier collection removed them.
            stack = [hash for hash, location in zip(tops, locations, strict=True) if location >= 0]
        reported = self.cells
        while stack:
            # From the end: depth first, so that the stack does not hold a level of a wide tree.
            batch = stack[-MARK_CELLS:]
            del stack[-MARK_CELLS:]
            batch.sort()  # index pages are then read in order
            locations = self._find(batch)
            if min(locations) < 0:
                raise absence_error(batch[next(i for i, at in enumerate(locations) if at < 0)])
            batch, locations = self._ours(batch, locations)
            # A marked cell was followed before, with all cells below it.
            new = self.marks.add_all(locations)
            batch, locations = [batch[i] for i in new], [locations[i] for i in new]
            self._count(batch, locations)
            for data in self.read_many(batch, locations):
                if may_refer(data):
                    stack += branch_hashes(data)
            if self.cells - reported >= MARK_CELLS:
                reported = self.cells
                self._report_cells(reported)

    def _find(self, hashes: list[bytes]) -> list[int]:
        return self._index.find_many(hashes)

    def _ours(self, hashes: list[bytes], locations: list[int]) -> tuple[list[bytes], list[int]]:
        """Return those hashes and locations that this object marks; other processes mark others."""
        return hashes, locations

    def _count(self, hashes: list[bytes], locations: list[int]) -> None:
        """Count cells that were marked just now."""
        self.cells += len(locations)

    def _report_cells(self, cells: int) -> None:
        """Report how many cells are marked."""

    def read_many(self, hashes: list[bytes], locations: list[int]) -> list[bytes]:
        """Return the bytes of cells, compared with their hashes.

        Raises: StoreFailed: a cell is damaged.
        """
        found = self._segments.read_many(locations, hashes)
        return [
            self._read(hashes[i], locations[i]) if data is None else data
            for i, data in enumerate(found)
        ]

    def _read(self, hash: bytes, location: int) -> bytes:
        try:
            data = self._segments.read(location)
        except Corruption as error:
            raise damage_error(str(error)) from error
        # A damaged cell has wrong references: following them, the mark would miss needed cells.
        if sha3_256(data) != hash:
            segment, offset, _ = locate(location)
            path = segment_path(self._folder, segment)
            raise damage_error(
                f"{path} at byte {offset}: cell 0x{hash.hex()} does not fit its hash"
            )
        return data


class StoreMarker(CellMarker):
    """Follows everything that stays in one store."""

    def __init__(
        self,
        folder: StoreFolder,
        log: OpenLog,
        roots: MarkRoots,
        removed: RemovedRecord,
        progress: CollectProgress | None,
        prior: PriorMark | None = None,
    ) -> None:
        super().__init__(folder, log.index)
        self._store_id = log.store_id
        self._state = log.state
        self._roots = roots
        self._removed = removed
        self._progress = progress
        self._total = log.index.count()
        self._seen = roots.start  # young packs were followed up to here
        self._prior = prior
        self.live: dict[int, int] = {}
        """Bytes of the marked cells of each segment."""
        self.watched: set[int] = set()
        self.late: list[bytes] = []
        """Cells of watched segments that were marked since `watched` was set."""
        self.changed: set[int] = set()
        """Segments with new marks since this was last emptied."""

    def mark(self) -> None:
        """Follow the roots, and every pack within the grace."""
        if self._prior is not None:
            self._adopt(self._prior)
        # A missing present root is damage. Roots from before may have been removed.
        top = self._state.root
        self.follow([] if top is None else [top], must_be_here=True)
        self.follow([] if self._roots.root is None else [self._roots.root])
        self.follow_tops()
        self.catch_up()
        self._report(self.cells, self.cells)

    def follow_tops(self) -> None:
        """Follow the present pins, leases and former roots, and values put within the grace.

        Raises: StoreFailed: a pinned or leased root is missing, or as `follow`.
        """
        kept = list(self._roots.kept())
        for hash, location in zip(kept, self._index.find_many(kept), strict=True):
            if location < 0:
                raise damage_error(
                    f"the root 0x{hash.hex()}, which a pin or lease keeps, is not here"
                )
        self.follow(kept)
        self.follow(self._roots.tops())

    def catch_up(self) -> None:
        """Follow the packs published since the last call, until few are left."""
        for _ in range(CATCH_UP_ROUNDS):
            # Few enough to follow the rest under the lock.
            if self.follow_packs() <= CATCH_UP_PACKS:
                return

    def follow_packs(self) -> int:
        """Follow the packs published since the last call; return their number."""
        target = self._state.position.sequence
        if self._seen.sequence >= target:
            return 0
        log = LogReader(self._folder, self._store_id, self._seen, self._removed)
        count = 0
        for found in log.read():
            number = found.sequence if isinstance(found, Gap) else found.end.sequence
            if number > target:
                break
            # The cells in a gap are unknown, and so are their references.
            if isinstance(found, Gap):
                path = segment_path(self._folder, found.segment)
                raise damage_error(f"{path} at byte {found.offset}: {found.reason}")
            count += 1
            self.follow(found.hashes)
            # The cell of the root may be in an earlier pack, when a former root is committed again.
            if found.root is not None:
                self.follow([found.root])
            self._seen = found.end
            if number == target:
                break
        return count

    def _report(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress("mark", done, total)

    def _report_cells(self, cells: int) -> None:
        self._report(cells, max(cells, self._total))

    def _count(self, hashes: list[bytes], locations: list[int]) -> None:
        self.cells += len(locations)
        live, watched = self.live, self.watched
        for hash, location in zip(hashes, locations, strict=True):
            segment = location >> 42
            live[segment] = live.get(segment, 0) + ((location >> 1) & 0x3FFF) + CELL_BYTES
            if segment in watched:
                self.late.append(hash)
            # Its packed marks are made again before the record is written.
            self.changed.add(segment)

    def _adopt(self, prior: PriorMark) -> None:
        """Adopt an earlier mark, and follow the cells that it did not know.

        Cells written or moved since then are in later packs, which `catch_up` follows.
        """
        unknown: list[bytes] = []
        for hash, location in self._index.entries():
            # After the position of the list: followed as young cells.
            if location >> LOCATION_SHIFT >= prior.end:
                continue
            if prior.live.has(location):
                if self.marks.add(location):
                    self._count([hash], [location])
            elif not prior.dead.has(location):
                # In neither set: the mark did not know it, so it stays.
                unknown.append(hash)
        self.follow(unknown)


def absence_error(hash: bytes) -> StoreFailed:
    """Return the error for a cell that others refer to and that is missing."""
    return damage_error(f"the cell 0x{hash.hex()}, which others refer to, is not here")


def damage_error(what: str) -> StoreFailed:
    """Return the error for the collection of a damaged store."""
    return StoreFailed(
        f"{what}; nothing was collected: what is below it cannot be followed, "
        "so heal the store first"
    )
