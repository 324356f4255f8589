"""Log state: the state of a store after the packs so far: root, number of staged cells, index.

The packs of a commit that was split count only once the last of them, which carries the root, is
there. Parts of a commit that was never completed leave staged cells: stored, not announced.
"""

from __future__ import annotations

from datalattice.store.log.hashindex import STAGED, HashIndex, Position, Watermark
from datalattice.store.log.recovery import Pack
from datalattice.store.log.removed import NOTHING_REMOVED, RemovedFilter, RemovedRecord


class LogState:
    """Applies packs, in the order of the log, to an index."""

    def __init__(
        self, index: HashIndex, start: Watermark, removed: RemovedRecord = NOTHING_REMOVED
    ) -> None:
        self._index = index
        self._filter = RemovedFilter(removed)
        self._parts: list[Pack] = []
        self._whole = start.position  # behind the last pack that needs no later one
        self.position = start.position
        """Behind the last pack that was applied."""
        self.staged = start.staged
        """Upper bound on the number of staged cells."""
        self.root = start.root
        """Hash of the root, None when none was ever committed."""

    def apply(self, pack: Pack) -> None:
        """Apply a pack."""
        self.position = pack.end
        if pack.end.segment < self._filter.removed.begin:
            self._apply_filtered(pack)
            return
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
        promoted = [(hash, self._index.find(hash)) for hash in pack.promoted]
        moved = {
            hash: location & ~STAGED
            for hash, location in promoted
            if location >= 0 and location & STAGED
        }
        if moved:
            self._index.add(list(moved), list(moved.values()))
        # An upper bound: a cell may be staged twice, and promoted once.
        self.staged = max(0, self.staged - len(pack.promoted))
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
        """Apply a part without its commit: cells that are here already stay as they are.

        Return the hashes of the others.
        """
        known = self._index.find_many(pack.hashes)
        locations = {
            hash: location | STAGED
            for hash, location, before in zip(pack.hashes, pack.locations, known, strict=True)
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

    def move_to(self, position: Position) -> None:
        """Continue at a position, with no pack in between."""
        if self._whole == self.position:
            self._whole = position
        self.position = position
