"""Memory: a store in dictionaries, for tests, simulation and nodes without a disk."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from datalattice.cells import Value, close_cells, novelty, value_hash
from datalattice.errors import StoreClosed
from datalattice.store.base import (
    Any_,
    Commit,
    Expected,
    Store,
    announced_parts,
    check_cells,
    check_hash,
    reachable,
    with_top,
)
from datalattice.store.cache import CACHE_BYTES_MAX


class MemoryStore(Store):
    """Cells in memory; they end with the object."""

    def __init__(self, *, cache_bytes: int = CACHE_BYTES_MAX) -> None:
        super().__init__(cache_bytes)
        self._lock = threading.Lock()
        self._encodings: dict[bytes, bytes] = {}
        self._staged: set[bytes] = set()
        self._root: bytes | None = None
        self._sequence = 0
        self._closed = False

    def get_encoding(self, hash: bytes, *, verify: bool = True) -> bytes | None:
        """Return the encoding of a cell, or None; there is nothing to verify in memory."""
        self._check_open()
        return self._encodings.get(check_hash(hash))

    def get_encodings(self, hashes: Iterable[bytes], *, verify: bool = True) -> list[bytes | None]:
        """Return the encodings of cells in the order of `hashes`, None for the absent ones."""
        return [self.get_encoding(hash, verify=verify) for hash in hashes]

    def has(self, hash: bytes) -> bool:
        """Return whether the cell is here."""
        self._check_open()
        return check_hash(hash) in self._encodings

    def lengths(self, hashes: Iterable[bytes]) -> dict[bytes, int]:
        """Return the lengths of the encodings of those of `hashes` that are here."""
        self._check_open()
        cells = self._encodings
        return {hash: len(cells[hash]) for hash in hashes if hash in cells}

    def announced(self, hash: bytes) -> bool:
        """Return whether the cell may be served to others: a commit announced it."""
        return self.has(hash) and hash not in self._staged

    def root_hash(self) -> bytes | None:
        """Return the hash of the last root, None when none was ever committed."""
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
            shown = tops if announced is None else announced_parts(announced, self)
            if self._staged:
                below = reachable(shown, self._staged_encoding)
                self._staged.difference_update(below)
            public = {hash for hash, _, _ in shown}
            # Announced once, a cell stays announced.
            self._staged -= public
            for hash, encoding, _ in tops:
                if hash not in public and hash not in self._encodings:
                    self._staged.add(hash)
                self._encodings[hash] = encoding
            # The same root again makes no new number.
            if root != self._root:
                self._sequence += 1
            self._root = root
            close_cells(parts, self)
            return Commit(root, parts, self._sequence)

    def _staged_encoding(self, hash: bytes) -> bytes | None:
        return self._encodings[hash] if hash in self._staged else None

    def put_encodings(self, cells: Iterable[tuple[bytes, bytes]]) -> int:
        """Stage cells given as (hash, encoding), as `Store.put_encodings`."""
        self._check_open()
        count = 0
        with self._lock:
            for hash, encoding in cells:
                if hash not in self._encodings:
                    self._encodings[hash] = encoding
                    self._staged.add(hash)
                    count += 1
        return count

    def heal(self, cells: Iterable[tuple[bytes, bytes]]) -> int:
        """Store cells that are missing here, from any source; return how many."""
        self._check_open()
        healed = check_cells(cells)
        with self._lock:
            self._encodings.update(healed)
        return len(healed)

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
