"""Memory: a store in dictionaries, for tests, simulation and nodes without a disk.

Source: docs/store.md "Calls", "Garbage".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Final

from datalattice.cells import EncodedCell, Value, branch_hashes, novelty, value_hash
from datalattice.clock import Clock
from datalattice.errors import MissingData, StoreClosed, UsageError
from datalattice.forking import freed_in_child
from datalattice.limits import HASH_BYTES
from datalattice.store.base import (
    Any_,
    Commit,
    Expected,
    Store,
    announced_parts,
    check_cells,
    children_first,
    reachable,
    with_top,
)
from datalattice.store.cache import CACHE_BYTES_MAX, TRIAL_BYTES, CellCache
from datalattice.store.records import GRACE_MS, Collected, CollectProgress, check_hash

PROGRESS_CELLS: Final = 1_024
"""Progress is reported after this many cells."""


class MemoryStore(Store):
    """Cells in memory; they end with the object."""

    def __init__(self, *, cache_bytes: int = CACHE_BYTES_MAX, clock: Clock | None = None) -> None:
        super().__init__(cache_bytes, clock)
        self._cache = CellCache(cache_bytes, min(TRIAL_BYTES, cache_bytes // 8))
        self._lock = freed_in_child(threading.Lock())
        self._encodings: dict[bytes, bytes] = {}
        self._size_bytes = 0
        self._staged: dict[bytes, bytes] = {}  # never announced
        self._trees: dict[bytes, list[bytes]] = {}  # of `put_tree` since the last commit
        self._touched: dict[bytes, int] = {}  # hashes of roots and of staged cells, and when
        self._has_collected = False
        self._root: bytes | None = None
        self._sequence = 0
        self._closed = False

    def get_encoding(self, hash: bytes, *, verify: bool = True) -> bytes | None:
        """Return the encoding of a cell, or None; there is nothing to verify in memory."""
        self._check_open()
        return self._encodings.get(check_hash(hash))

    def get_encodings(self, hashes: Iterable[bytes], *, verify: bool = True) -> list[bytes | None]:
        self._check_open()
        wanted = list(hashes)
        for hash in wanted:
            if type(hash) is not bytes or len(hash) != HASH_BYTES:
                check_hash(hash)
        return list(map(self._encodings.get, wanted))

    def has(self, hash: bytes) -> bool:
        self._check_open()
        return check_hash(hash) in self._encodings

    def lengths(self, hashes: Iterable[bytes]) -> dict[bytes, int]:
        self._check_open()
        cells = self._encodings
        return {hash: len(cells[hash]) for hash in hashes if hash in cells}

    def announced(self, hash: bytes) -> bool:
        return self.has(hash) and hash not in self._staged

    def root_hash(self) -> bytes | None:
        self._check_open()
        return self._root

    def _commit(
        self, value: Value, expected: Expected | Any_, announced: Sequence[Value] | None
    ) -> Commit | None:
        self._check_open()
        root = value_hash(value)
        with self._lock:
            if not isinstance(expected, Any_) and expected != self._root:
                return None
            parts = novelty(value, self)
            tops = with_top(parts, value, root)
            if self._has_collected:
                self._check_below({hash: encoding for hash, encoding, _ in tops})
            shown, hidden = tops, []
            if announced is not None:
                shown = announced_parts(announced, self)
                public = {hash for hash, _, _ in shown}
                # An announced cell stays announced (`Store`).
                hidden = [
                    one for one in tops if one[0] not in public and one[0] not in self._encodings
                ]
            if self._staged:
                for hash in (*self._newly_announced(shown), *[hash for hash, _, _ in shown]):
                    self._staged.pop(hash, None)
            self._trees = {}
            self._staged.update({hash: encoding for hash, encoding, _ in hidden})
            self._keep(tops)
            # Committing the same root again does not raise the number.
            if root != self._root:
                self._sequence += 1
            self._root = root
            self._adopt(parts)
            now_ms = self.clock.now_ms()
            self._touched[root] = now_ms
            self.history.note(root, now_ms)
        self.history.flush()
        return Commit(root, parts, self._sequence)

    def _newly_announced(self, shown: list[EncodedCell]) -> list[bytes]:
        """Return the staged cells below these; a tree that was put gives its cells, unread."""
        trees: list[bytes] = []

        def inside(hashes: list[bytes]) -> list[bytes | None]:
            trees.extend([hash for hash in hashes if hash in self._trees])
            return [None if hash in self._trees else self._staged.get(hash) for hash in hashes]

        found = reachable(shown, inside)
        return found + [hash for top in trees for hash in self._trees[top]]

    def _keep(self, cells: Iterable[tuple[bytes, bytes, Value]]) -> None:
        here, size = self._encodings, 0
        for hash, encoding, _ in cells:
            if hash not in here:
                size += len(encoding)
                here[hash] = encoding
        self._size_bytes += size

    def _touch(self, hash: bytes) -> None:
        self._touched[hash] = self.clock.now_ms()

    def put_encodings(self, cells: Iterable[tuple[bytes, bytes]]) -> int:
        self._check_open()
        with self._lock:
            new = {hash: cell for hash, cell in cells if hash not in self._encodings}
            if self._has_collected:
                self._check_below(new)
            self._encodings.update(new)
            self._size_bytes += sum(map(len, new.values()))
            self._staged.update(new)
            self._touched.update(dict.fromkeys(new, self.clock.now_ms()))
        return len(new)

    def put_tree(self, top: bytes, cells: list[tuple[bytes, bytes]]) -> int:
        count = self.put_encodings(cells)
        # A cell that was here already may have staged cells below it.
        if count == len(cells):
            self._trees[top] = [hash for hash, _ in cells]
        return count

    def _check_below(self, cells: dict[bytes, bytes]) -> None:
        """Check that all cells that new ones refer to are here or new.

        A value in memory may refer to cells that a collection has removed. As long as it removed
        none, every cell that this store has reported is still here.
        Raises: MissingData: one is missing; nothing was stored.
        """
        below = [ref for encoding in cells.values() for ref in branch_hashes(encoding)]
        absent = [ref for ref in below if ref not in cells and ref not in self._encodings]
        if absent:
            raise MissingData(list(dict.fromkeys(absent)))

    def heal(self, cells: Iterable[tuple[bytes, bytes]]) -> int:
        self._check_open()
        healed = check_cells(cells)
        with self._lock:
            self._keep((hash, encoding, None) for hash, encoding in healed.items())
        return len(healed)

    def size_bytes(self) -> int:
        """Return the length of all encodings."""
        return self._size_bytes

    def collect(
        self,
        *,
        grace_ms: int = GRACE_MS,
        dry_run: bool = False,
        progress: CollectProgress | None = None,
    ) -> Collected:
        self._check_open()
        if grace_ms < 0:
            raise UsageError(f"a grace is 0 or more milliseconds, got {grace_ms}")
        began_s = time.monotonic()
        # Under both locks: no commit, pin or lease comes between the mark and the removal.
        with self.pins.locked(), self._lock:
            ended = 0 if dry_run else self.pins.remove_ended()
            # "Everything younger than the grace" stays (docs/store.md "Garbage").
            since_ms = self.clock.now_ms() - grace_ms
            young = {hash: ms for hash, ms in self._touched.items() if ms >= since_ms}
            tops = [*([self._root] if self._root else []), *self.pins.roots()]
            # Former roots and staged cells may be gone: an earlier collection removed them.
            former = [one for one in (*self.history.roots(), *young) if one in self._encodings]
            live: set[bytes] = set()
            find = self._encodings.get
            cells = children_first(
                [*tops, *former], lambda hashes: [*map(find, hashes)], live.__contains__
            )
            for hash, _ in cells:
                live.add(hash)
                if progress is not None and len(live) % PROGRESS_CELLS == 0:
                    progress("mark", len(live), len(self._encodings))
            dead = [hash for hash in self._encodings if hash not in live]
            dead_bytes = sum(len(self._encodings[hash]) for hash in dead)
            before = self._size_bytes
            if not dry_run:
                # Touches older than the grace have no effect any more.
                self._touched = young
                self._has_collected = self._has_collected or bool(dead)
                for hash in dead:
                    del self._encodings[hash]
                    self._staged.pop(hash, None)
                self._size_bytes -= dead_bytes
                self._cache.clear()
        return Collected(
            cells_live=len(live),
            cells_dead=len(dead),
            cells_removed=0 if dry_run else len(dead),
            bytes_live=before - dead_bytes,
            bytes_dead=dead_bytes,
            bytes_before=before,
            bytes_after=before - dead_bytes,
            leases_ended=ended,
            seconds=time.monotonic() - began_s,
            is_dry=dry_run,
        )

    def sync(self) -> None:
        """Do nothing: memory is never durable."""
        self._check_open()

    def close(self) -> None:
        """Discard the cells."""
        self._closed = True
        self._cache.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")
