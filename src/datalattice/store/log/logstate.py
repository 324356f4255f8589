"""Log state: what a store is after the packs so far: its root, its staged cells, its index.

The packs of one commit that was split count only when the last of them, which carries the root, is
there. Parts that were never completed leave staged cells: stored, but not announced.
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
        self._sieve = RemovedFilter(removed)
        self._parts: list[Pack] = []
        self._whole = start.position  # behind the last pack that no later one has to complete
        self.position = start.position
        """Behind the last pack that was applied."""
        self.staged = start.staged
        """Cells that are staged, or more."""
        self.root = start.root
        """Hash of the root, None when none was ever committed."""

    def apply(self, pack: Pack) -> None:
        """Take a pack in."""
        self.position = pack.end
        if pack.end.segment < self._sieve.removed.begin:
            self._apply_sifted(pack)
            return
        if pack.is_part:
            self._parts.append(pack)
            return
        own = pack.parts if pack.root is not None else 0
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
        self.staged = max(0, self.staged - len(pack.promoted))
        if pack.root is not None:
            self.root = pack.root
        self._whole = pack.end

    def _apply_sifted(self, pack: Pack) -> None:
        """Take in a pack that a collection has looked at: it knows what counts, and how."""
        found = self._sieve.sift(pack.hashes, pack.locations)
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
        """Take in a part of no commit: cells that are here already stay where and what they are.

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
        """Take in the packs of a commit that was never completed; return the hashes of its cells.

        No commit is under way.
        """
        hashes = [hash for part in self._parts for hash in self._index_orphans(part)]
        self._parts.clear()
        self._whole = self.position
        return hashes

    def watermark(self) -> Watermark:
        """Return up to where the index is complete."""
        return Watermark(self._whole, self.staged, self.root)

    def restart(self, start: Watermark) -> None:
        """Forget what was applied: the index has it, up to `start`."""
        self._parts.clear()
        self._whole = self.position = start.position
        self.staged = start.staged
        self.root = start.root

    def move_to(self, position: Position) -> None:
        """Take note that the log goes on at a position, with no pack in between."""
        if self._whole == self.position:
            self._whole = position
        self.position = position
