"""Cache: recently used decoded cells by hash, bounded by an estimate of their memory.

Two generations approximate "least recently used". Cells enter the young generation. When it
reaches half of the bound it becomes the old one, and the cells of the previous old one are dropped.
A hit in the old generation moves the cell back to the young one. A hit in the young generation, the
common case, changes nothing, so it needs no lock.

A cache may have a *trial*: a small part with two generations of its own, which a loaded cell enters
first. The cell moves to the young generation when it is used while it is in the older generation of
the trial, or when it is loaded again after that. A write loads the cells on its path and replaces
them: if they stayed, Python's cycle collector would visit them many times, for half of the time of
10,000 writes. A trial suits a store that loads cells at little cost, since a cell that is used
often is loaded twice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from datalattice.cells import encode
from datalattice.forking import freed_in_child

CACHE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Default bound on the memory charged for a store's decoded cells."""

CELL_OVERHEAD_BYTES: Final = 400
"""Charged for a cell beside its encoding: its objects, its hash and the table entry."""

ENCODING_FACTOR: Final = 3
"""Charged for a byte of encoding: the encoding itself and the values that are decoded from it.

Measured: together with the overhead it is right for texts, blobs and inner nodes. Fully decoded
records and database entries take four times what they are charged, empty directories five times.
"""

TRIAL_BYTES: Final = 256 * 1024
"""The trial's part of the bound, for a store in memory."""

CELL_BYTES_MEAN: Final = 2_000
"""About the charge of a cell: a trial remembers as many hashes as the cache has room for cells."""


class CellCache:
    """The decoded cells of one store. trial_bytes: the trial's part of `bytes_max`; 0: no trial."""

    __slots__ = (
        "_aging",
        "_aging_bytes",
        "_bytes_max",
        "_dropped",
        "_lock",
        "_old",
        "_old_bytes",
        "_trial",
        "_trial_bytes",
        "_trial_bytes_max",
        "_young",
        "_young_bytes",
    )

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX, trial_bytes: int = 0) -> None:
        self._trial_bytes_max = trial_bytes
        self._bytes_max = bytes_max - trial_bytes
        self._lock = freed_in_child(threading.Lock())
        self._young: dict[bytes, object] = {}
        self._old: dict[bytes, object] = {}
        self._trial: dict[bytes, object] = {}
        self._aging: dict[bytes, object] = {}  # the older generation of the trial
        self._young_bytes = self._old_bytes = self._trial_bytes = self._aging_bytes = 0
        self._dropped: dict[bytes, None] = {}  # hashes of cells that left the trial

    def get(self, hash: bytes, default: object = None) -> object:
        """Return the cell, or `default`. Cost: one to four table look-ups."""
        # Without a lock: one dictionary look-up is atomic.
        found = self._young.get(hash)
        if found is None:
            found = self._trial.get(hash)
        if found is not None:
            return found
        found = self._old.get(hash)
        if found is None:
            found = self._aging.get(hash)
        if found is None:
            return default
        with self._lock:
            self._keep(hash, found, len(encode(found)))
        return found

    def add(self, hash: bytes, cell: object, encoding_bytes: int) -> None:
        """Add a cell that was loaded; its encoding has this length."""
        with self._lock:
            if not self._trial_bytes_max or hash in self._dropped:
                self._keep(hash, cell, encoding_bytes)
            elif hash not in self._trial and hash not in self._young:
                self._trial[hash] = cell
                self._trial_bytes += CELL_OVERHEAD_BYTES + ENCODING_FACTOR * encoding_bytes
                if self._trial_bytes * 2 >= self._trial_bytes_max:
                    self._end_trial()

    def _end_trial(self) -> None:
        if len(self._dropped) * CELL_BYTES_MEAN > self._bytes_max:
            self._dropped = {}
        self._dropped.update(dict.fromkeys(self._aging))
        self._aging, self._aging_bytes = self._trial, self._trial_bytes
        self._trial, self._trial_bytes = {}, 0

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
        """Add many cells that were written, given as (hash, encoding, cell)."""
        with self._lock:
            for hash, encoding, cell in parts:
                self._keep(hash, cell, len(encoding))

    def forget(self, hash: bytes) -> None:
        """Remove a cell; its charge stays until its generation goes."""
        with self._lock:
            # From all parts: a damaged cell must not be answered from memory.
            for part in (self._young, self._old, self._trial, self._aging):
                part.pop(hash, None)

    def clear(self) -> None:
        """Remove all cells."""
        with self._lock:
            self._young, self._old, self._trial, self._aging = {}, {}, {}, {}
            self._young_bytes = self._old_bytes = self._trial_bytes = self._aging_bytes = 0

    @property
    def charged_bytes(self) -> int:
        """Estimated memory of the cells."""
        return self._young_bytes + self._old_bytes + self._trial_bytes + self._aging_bytes
