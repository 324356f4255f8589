"""Cache: recently used decoded cells by hash, bounded by an estimate of their memory.

Two generations approximate "least recently used". New cells enter the young generation. When it
reaches half of the bound it becomes the old one, and the cells of the previous old one are dropped.
A hit in the old generation moves the cell back to the young one. A hit in the young generation, the
common case, changes nothing, so it needs no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from datalattice.cells import encode

CACHE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Default bound on the memory charged for a store's decoded cells."""

CELL_OVERHEAD_BYTES: Final = 400
"""Charged for a cell beside its encoding: its objects, its hash and the table entry."""

ENCODING_FACTOR: Final = 3
"""Charged for a byte of encoding: the encoding itself and the values that are decoded from it.

Measured: together with the overhead it is right for texts, blobs and inner nodes. Fully decoded
records and database entries take four times what they are charged, empty directories five times.
"""


class CellCache:
    """The decoded cells of one store."""

    __slots__ = ("_bytes_max", "_lock", "_old", "_old_bytes", "_young", "_young_bytes")

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._young: dict[bytes, object] = {}
        self._old: dict[bytes, object] = {}
        self._young_bytes = 0
        self._old_bytes = 0

    def get(self, hash: bytes, default: object = None) -> object:
        """Return the cell, or `default`. Cost: one or two table look-ups."""
        # Without a lock: one dictionary look-up is atomic.
        found = self._young.get(hash)
        if found is not None:
            return found
        found = self._old.get(hash)
        if found is None:
            return default
        with self._lock:
            self._keep(hash, found, len(encode(found)))
        return found

    def add(self, hash: bytes, cell: object, encoding_bytes: int) -> None:
        """Add a cell whose encoding has this length."""
        with self._lock:
            self._keep(hash, cell, encoding_bytes)

    def _keep(self, hash: bytes, cell: object, encoding_bytes: int) -> None:
        # Charged once, however often it is added.
        if hash in self._young:
            return
        self._young[hash] = cell
        # An estimate: measuring the objects of a cell would cost more than it saves.
        self._young_bytes += CELL_OVERHEAD_BYTES + ENCODING_FACTOR * encoding_bytes
        # The young generation has half of the bound; the old one is dropped as a unit.
        if self._young_bytes * 2 >= self._bytes_max:
            self._old, self._old_bytes = self._young, self._young_bytes
            self._young, self._young_bytes = {}, 0

    def add_many(self, parts: Iterable[tuple[bytes, bytes, object]]) -> None:
        """Add many cells, given as (hash, encoding, cell)."""
        with self._lock:
            for hash, encoding, cell in parts:
                self._keep(hash, cell, len(encoding))

    def forget(self, hash: bytes) -> None:
        """Remove a cell; its charge stays until its generation goes."""
        with self._lock:
            # From both generations: a damaged cell must not be answered from memory.
            self._young.pop(hash, None)
            self._old.pop(hash, None)

    def clear(self) -> None:
        """Remove all cells."""
        with self._lock:
            self._young, self._old = {}, {}
            self._young_bytes = self._old_bytes = 0

    @property
    def charged_bytes(self) -> int:
        """Estimated memory of the cells."""
        return self._young_bytes + self._old_bytes
