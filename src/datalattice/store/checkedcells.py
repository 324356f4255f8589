"""Checked cells: imported cells are checked before any of them is stored.

`sync.incomplete` checks the cells of peers. The cells of archives, other stores, Etch files and
editors arrive complete and children first, and are checked here. An unsound cell is an error, or it
is kept apart with all cells above it, so that a merge can leave it out.

Source: docs/design/foreign-data.md "Structure".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from datalattice.cells import (
    KnownFacts,
    Value,
    check_cell,
    decode,
    encode,
    is_embedded,
    novelty,
    references,
)
from datalattice.errors import BadFormat, Corruption
from datalattice.limits import EMBEDDED_BYTES_MAX
from datalattice.store.base import Store

APART_BYTES_MAX: Final = 16_000_000
"""Most bytes of unsound cells, and of those above them, that are kept apart."""


class CheckedCells:
    """Checks imported cells on their way into one store.

    scanned: each cell was decoded before; otherwise it is decoded here.
    apart:   receives the encodings by hash of unsound cells and of those above them, which are not
             stored. None: an unsound cell is an error.
    """

    def __init__(
        self, store: Store, *, scanned: bool, apart: dict[bytes, bytes] | None = None
    ) -> None:
        self._store: Final = store
        self._scanned: Final = scanned
        self._apart: Final = apart
        self._apart_bytes = 0
        self._facts: Final = KnownFacts(self._load)

    def _load(self, hash: bytes) -> bytes | None:
        try:
            return self._store.get_encoding(hash)
        except Corruption:
            return None

    def check(self, cells: Iterable[tuple[bytes, bytes]]) -> None:
        """Check cells, given as (hash, encoding), children first.

        The cells they refer to came before them or are in the store.
        Raises: BadFormat: one is not sound, and the text names it; or the cells above unsound ones
                have more bytes than are kept apart. MissingData: a cell they refer to is missing.
        """
        batch = dict(cells)
        apart = self._apart
        if not self._scanned:
            for encoding in batch.values():
                decode(encoding)
        # A reference to a cell that is short enough to be embedded is unsound.
        names = {hash: references(encoding) for hash, encoding in batch.items()}
        outside = {ref for refs in names.values() for ref in refs if ref not in batch}
        # One look-up for all: an import checks thousands of references at a time.
        lengths = self._store.lengths(outside)
        short = {hash for hash, length in lengths.items() if length <= EMBEDDED_BYTES_MAX}
        short.update(hash for hash, cell in batch.items() if len(cell) <= EMBEDDED_BYTES_MAX)
        for hash, encoding in batch.items():
            # Every cell above an unsound cell is kept apart too, up to the root.
            if apart and not apart.keys().isdisjoint(names[hash]):
                self._keep_apart(hash, encoding)
                continue
            try:
                self._facts.add(hash, check_cell(encoding, self._facts, short))
            except BadFormat as error:
                if apart is None:
                    raise BadFormat(f"the cell 0x{hash.hex()} is not sound: {error}") from error
                self._keep_apart(hash, encoding)
        # Bounds the memory for facts about earlier cells.
        self._facts.trim()

    def _keep_apart(self, hash: bytes, encoding: bytes) -> None:
        assert self._apart is not None
        self._apart[hash] = encoding
        self._apart_bytes += len(encoding)
        # An archive may come from anybody: its unsound cells must not fill the memory.
        if self._apart_bytes > APART_BYTES_MAX:
            raise BadFormat(f"more than {APART_BYTES_MAX} bytes lie above unsound cells")

    def check_value(self, value: Value) -> None:
        """Check the cells of a value that are not in the store yet.

        Raises: as `check`.
        """
        self.check((hash, encoding) for hash, encoding, _ in novelty(value, self._store))
        # An embedded value is in no cell of `novelty`, so it is checked by itself.
        if is_embedded(value):
            check_cell(encode(value), self._facts)

    def put(self, cells: Iterable[tuple[bytes, bytes]]) -> int:
        """Check cells and stage the sound ones in the store; return how many were new.

        Raises: as `check` and `Store.put_encodings`; nothing of these cells is stored then.
        """
        batch = list(cells)
        # Checked before anything is stored: an error leaves the store as it was.
        self.check(batch)
        if self._apart:
            batch = [one for one in batch if one[0] not in self._apart]
        return self._store.put_encodings(batch)
