"""Log state: a pack as the index sees it, and the state of a store after a pack.

Source: docs/store.md "Segments and packs", "Recovery".
"""

from __future__ import annotations

from typing import Final

from datalattice.store.log.hashindex import STAGED, HashIndex, LogPosition, Watermark
from datalattice.store.log.packing import FLAG_PART, PARTS_SHIFT, LogSpan
from datalattice.store.log.removed import NOTHING_REMOVED, RemovedFilter, RemovedRecord


class Pack:
    """A pack without its encodings: its end, its cells, the root it commits.

    A class compiles better than a NamedTuple.
    """

    __slots__ = (
        "end",
        "flags",
        "hashes",
        "length",
        "locations",
        "promoted",
        "root",
        "spans",
        "staged",
        "time_ms",
    )

    def __init__(
        self,
        end: LogPosition,
        length: int,
        flags: int,
        root: bytes | None,
        hashes: list[bytes],
        locations: list[int],
        staged: int,
        promoted: list[bytes],
        spans: list[LogSpan],
        time_ms: int,
    ) -> None:
        self.end: Final = end
        self.length: Final = length
        self.flags: Final = flags
        self.root: Final = root
        self.hashes: Final = hashes
        self.locations: Final = locations
        self.staged: Final = staged
        """The number of staged cells, which are the last ones."""
        self.promoted: Final = promoted
        """Hashes of staged cells of earlier packs that it announces."""
        self.spans: Final = spans
        """Parts of earlier packs whose cells it announces."""
        self.time_ms: Final = time_ms
        """When it was written, by the writer's clock."""

    @property
    def is_part(self) -> bool:
        """Whether a later pack completes the commit that this one belongs to."""
        return bool(self.flags & FLAG_PART)

    @property
    def parts(self) -> int:
        """How many packs before this one belong to the same commit."""
        return self.flags >> PARTS_SHIFT


class LogState:
    """The state of a store after a pack: root, number of staged cells, index.

    A large commit is split into several packs, which count only when the last one, with the root,
    is there. The cells of a commit that was never completed become staged cells.
    """

    def __init__(
        self, index: HashIndex, start: Watermark, removed: RemovedRecord = NOTHING_REMOVED
    ) -> None:
        self._index = index
        self._filter = RemovedFilter(removed)
        self._parts: list[Pack] = []
        self._whole = start.position  # the end of the last complete commit
        self.position = start.position
        """The end of the last pack that was applied."""
        self.staged = start.staged
        """Upper bound on the number of staged cells."""
        self.root = start.root
        """Hash of the root, None when none was ever committed."""

    def apply(self, pack: Pack) -> None:
        """Apply a pack."""
        self.position = pack.end
        # A collection has inspected this pack, so its record says which cells count.
        if pack.end.segment < self._filter.removed.begin:
            self._apply_filtered(pack)
            return
        # "Packs that count only when the last one, with the root, is there" (docs/store.md).
        if pack.is_part:
            self._parts.append(pack)
            return
        # A pack with a root says how many parts before it belong to the same commit.
        own = pack.parts if pack.root is not None else 0
        # Earlier parts belong to a commit that a crash or a failed write ended.
        orphans = len(self._parts) - own
        for number, part in enumerate(self._parts):
            if number < orphans:
                self._index_orphans(part)
            else:
                self._index_cells(part)
        self._index_cells(pack)
        self._parts.clear()
        if pack.spans:
            self._index.announce(pack.spans)
            self.staged = max(0, self.staged - sum([span.cells for span in pack.spans]))
        if pack.promoted:
            locations = self._index.find_many(pack.promoted)
            moved = {
                hash: location & ~STAGED
                for hash, location in zip(pack.promoted, locations, strict=True)
                if location >= 0 and location & STAGED
            }
            self._index.add(list(moved), list(moved.values()))
            # An upper bound: a cell is counted once, by its hash or in a span, though it may have
            # been staged twice.
            self.staged = max(0, self.staged - len(moved))
        if pack.root is not None:
            self.root = pack.root
        self._whole = pack.end

    def _apply_filtered(self, pack: Pack) -> None:
        """Apply a pack that a collection inspected: its record says which cells count."""
        found = self._filter.remaining(pack.hashes, pack.locations)
        hashes, locations, staged = (pack.hashes, pack.locations, 0) if found is None else found
        self._index.add(hashes, locations)
        self.staged += staged
        if pack.root is not None:
            self.root = pack.root
        self._whole = pack.end

    def _index_cells(self, pack: Pack) -> None:
        self.staged += pack.staged
        self._index.add(pack.hashes, pack.locations)

    def _index_orphans(self, pack: Pack) -> list[bytes]:
        """Index the cells of a part without its commit as staged; return the new ones."""
        known = self._index.find_many(pack.hashes)
        locations = {
            hash: location | STAGED
            for hash, location, before in zip(pack.hashes, pack.locations, known, strict=True)
            # A known cell may belong to a commit, so this copy must not make it a staged one.
            if before < 0
        }
        self.staged += len(locations)
        self._index.add(list(locations), list(locations.values()))
        return list(locations)

    def give_up_parts(self) -> list[bytes]:
        """Apply the packs of a commit that was never completed; return the hashes of its cells.

        No commit is under way.
        """
        hashes = [hash for part in self._parts for hash in self._index_orphans(part)]
        self._parts.clear()
        self._whole = self.position
        return hashes

    def watermark(self) -> Watermark:
        """Return up to where the index is complete, for its next flush."""
        return Watermark(self._whole, self.staged, self.root)

    def restart(self, start: Watermark) -> None:
        """Start again from `start`, up to which the index is complete."""
        self._parts.clear()
        self._whole = self.position = start.position
        self.staged = start.staged
        self.root = start.root

    def move_to(self, position: LogPosition) -> None:
        """Continue at a position, with no pack in between."""
        # Packs that wait for the end of their commit are not in the index, which ends before them.
        if self._whole == self.position:
            self._whole = position
        self.position = position
