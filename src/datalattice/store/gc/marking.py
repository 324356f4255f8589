"""Marking: following what stays in a store, with a bit for each 32 bytes of it.

Cells are followed by hash, a thousand at a time and in the order of the index, and each one is
compared with its hash: what a damaged cell refers to is not known. At the first hole it ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from datalattice.cells import branch_hashes
from datalattice.errors import Corruption, StoreFailed
from datalattice.store.files import StoreFolder
from datalattice.store.log.hashindex import HashIndex, Position
from datalattice.store.log.logstate import LogState
from datalattice.store.log.packing import locate
from datalattice.store.log.recovery import Gap, LogReader
from datalattice.store.log.removed import LocationSet, RemovedRecord
from datalattice.store.log.segments import SegmentReader, segment_path

MARK_CELLS: Final = 1_024
"""Cells that are followed in one step."""

CATCH_UP_PACKS: Final = 64
"""Packs that are left to be looked at under the lock; as long as there are more, others go on."""

CATCH_UP_ROUNDS: Final = 20
"""So often at most: a writer that is faster than the mark is then made to wait."""

CELL_BYTES: Final = 34
"""What a pack has for a cell beside its encoding."""

Progress = Callable[[str, int, int], None]
"""Called with what is done, how much of it, and of how much: "mark", cells, cells here."""

LOCATION_SHIFT: Final = 15
"""Segment and byte are the bits of a place from this one on."""

_sha3: Final = hashlib.sha3_256


@dataclass(slots=True)
class MarkRoots:
    """What is followed. Functions, since they are asked again at the end."""

    kept: Callable[[], Iterable[bytes]]
    """Hashes of roots that are pinned or leased: they have to be here."""
    tops: Callable[[], Iterable[bytes]]
    """Hashes of roots that are remembered, or were put a moment ago. One that is not here is
    passed over."""
    start: Position
    """All packs behind this are young."""
    root: bytes | None
    """The root there."""


@dataclass(frozen=True, slots=True)
class PriorMark:
    """What an earlier mark found out about the cells before some place of a store."""

    end: int
    """Segment and byte of that place, as the upper bits of a place have them."""
    live: LocationSet
    """Cells that stay: with each of them, all below it."""
    dead: LocationSet
    """Cells that nothing reached then. What is in neither of the two was not known."""


Begin = Callable[[], tuple[MarkRoots, PriorMark | None]]
"""Returns what a collection follows from, and what is known already."""


class CellMarker:
    """Follows cells by hash down to the last one, and marks their places."""

    def __init__(self, folder: StoreFolder, index: HashIndex) -> None:
        self._folder = folder
        self._index = index
        self._segments = SegmentReader(folder)
        self.marks = LocationSet()
        """The places of cells that stay."""
        self.cells = 0

    def follow(self, hashes: Iterable[bytes], *, must_be_here: bool = False) -> None:
        """Mark the cells with these hashes, if they are here, and all below them."""
        tops = list(hashes)
        if must_be_here:
            stack = tops
        else:
            locations = self._find(tops)
            stack = [hash for hash, location in zip(tops, locations, strict=True) if location >= 0]
        told = self.cells
        while stack:
            batch = stack[-MARK_CELLS:]
            del stack[-MARK_CELLS:]
            batch.sort()  # neighbours in the index
            for hash, location in zip(batch, self._find(batch), strict=True):
                if location < 0:
                    raise absent(hash)
                if self._is_ours(hash, location) and self.marks.add(location):
                    self._count(hash, location)
                    stack += branch_hashes(self.read(hash, location))
            if self.cells - told >= MARK_CELLS:
                told = self.cells
                self._tell_cells(told)

    def _find(self, hashes: list[bytes]) -> list[int]:
        return self._index.find_many(hashes)

    def _is_ours(self, hash: bytes, location: int) -> bool:
        """Return whether a cell is to be followed here."""
        return True

    def _count(self, hash: bytes, location: int) -> None:
        """Take note of a cell that was marked just now."""
        self.cells += 1

    def _tell_cells(self, cells: int) -> None:
        """Tell how many cells are marked."""

    def read(self, hash: bytes, location: int) -> bytes:
        """Return the bytes of a cell, compared with its hash.

        Raises: StoreFailed: they are damaged.
        """
        try:
            data = self._segments.read(location)
        except Corruption as error:
            raise damaged(str(error)) from error
        if _sha3(data).digest() != hash:
            segment, offset, _ = locate(location)
            path = segment_path(self._folder, segment)
            raise damaged(f"{path} at byte {offset}: cell 0x{hash.hex()} does not fit its hash")
        return data


class StoreMarker(CellMarker):
    """Follows what stays in one store."""

    def __init__(
        self,
        *,
        folder: StoreFolder,
        store_id: bytes,
        index: HashIndex,
        state: LogState,
        roots: MarkRoots,
        removed: RemovedRecord,
        progress: Progress | None,
        known: PriorMark | None = None,
    ) -> None:
        super().__init__(folder, index)
        self._store_id = store_id
        self._state = state
        self._roots = roots
        self._removed = removed
        self._progress = progress
        self._total = index.count()
        self._seen = roots.start  # up to here young packs were followed
        self._known = known
        self.live: dict[int, int] = {}
        """Bytes of the marked cells of each segment."""
        self.watched: set[int] = set()
        self.late: list[bytes] = []
        """Cells of watched segments that were marked since those are watched."""
        self.changed: set[int] = set()
        """Segments in which something was marked since this was emptied."""

    def mark(self) -> None:
        """Follow the roots, and what is young."""
        if self._known is not None:
            self._adopt(self._known)
        top = self._state.root
        self.follow([] if top is None else [top], must_be_here=True)
        self.follow([] if self._roots.root is None else [self._roots.root])
        self.follow_tops()
        self.catch_up()
        self._tell(self.cells, self.cells)

    def follow_tops(self) -> None:
        """Follow what is pinned, leased, remembered, or was put, at this moment.

        Raises: StoreFailed: a root that somebody keeps is not here, or as `follow`.
        """
        kept = list(self._roots.kept())
        for hash, location in zip(kept, self._index.find_many(kept), strict=True):
            if location < 0:
                raise damaged(f"the root 0x{hash.hex()}, which a pin or lease keeps, is not here")
        self.follow(kept)
        self.follow(self._roots.tops())

    def catch_up(self) -> None:
        """Follow the packs that were published since the last look, until few are left."""
        for _ in range(CATCH_UP_ROUNDS):
            if self.follow_packs() <= CATCH_UP_PACKS:
                return

    def follow_packs(self) -> int:
        """Follow the packs that were published since the last look; return how many."""
        target = self._state.position.sequence
        if self._seen.sequence >= target:
            return 0
        log = LogReader(self._folder, self._store_id, self._seen, self._removed)
        count = 0
        for found in log.read():
            number = found.sequence if isinstance(found, Gap) else found.end.sequence
            if number > target:
                break
            if isinstance(found, Gap):
                path = segment_path(self._folder, found.segment)
                raise damaged(f"{path} at byte {found.offset}: {found.reason}")
            count += 1
            self.follow(found.hashes)
            if found.root is not None:
                self.follow([found.root])
            self._seen = found.end
            if number == target:
                break
        return count

    def _tell(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress("mark", done, total)

    def _tell_cells(self, cells: int) -> None:
        self._tell(cells, max(cells, self._total))

    def _count(self, hash: bytes, location: int) -> None:
        segment = location >> 42
        self.cells += 1
        self.live[segment] = self.live.get(segment, 0) + ((location >> 1) & 0x3FFF) + CELL_BYTES
        if segment in self.watched:
            self.late.append(hash)
        self.changed.add(segment)

    def _adopt(self, known: PriorMark) -> None:
        """Take over what an earlier mark found; follow what it did not know of.

        A cell that was written, or moved, since then is met in the packs that came since.
        """
        unknown: list[bytes] = []
        for hash, location in self._index.entries():
            if location >> LOCATION_SHIFT >= known.end:
                continue
            if known.live.has(location):
                if self.marks.add(location):
                    self._count(hash, location)
            elif not known.dead.has(location):
                unknown.append(hash)
        self.follow(unknown)


def absent(hash: bytes) -> StoreFailed:
    """Return the refusal to collect a store without a cell that others refer to."""
    return damaged(f"the cell 0x{hash.hex()}, which others refer to, is not here")


def damaged(what: str) -> StoreFailed:
    """Return the refusal to collect a store that is not whole."""
    return StoreFailed(
        f"{what}; nothing was collected: behind a hole nobody can tell what is needed, "
        "so heal the store first"
    )
