"""Doors: the check of cells that are imported into a store, before any of them is stored.

Cells of peers are checked by `sync.incomplete`. Those of archives, other stores, Etch files and
editors arrive children first and complete, so one unsound cell ends the import.

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


class CheckedCells:
    """The check that imported cells pass on their way into one store.

    scanned: each cell was decoded before; else that is done here.
    """

    def __init__(self, store: Store, *, scanned: bool) -> None:
        self._store: Final = store
        self._scanned: Final = scanned
        self._facts: Final = KnownFacts(self._load)

    def _load(self, hash: bytes) -> bytes | None:
        try:
            return self._store.get_encoding(hash)
        except Corruption:
            return None

    def check(self, cells: Iterable[tuple[bytes, bytes]]) -> None:
        """Check cells, given as (hash, encoding), children first.

        What they refer to came before them or is in the store.
        Raises: BadFormat: one is not sound; the text names it. MissingData: a cell is not here.
        """
        batch = dict(cells)
        if not self._scanned:
            for encoding in batch.values():
                decode(encoding)
        names = {hash: references(encoding) for hash, encoding in batch.items()}
        outside = {ref for refs in names.values() for ref in refs if ref not in batch}
        lengths = self._store.lengths(outside)
        short = {hash for hash, length in lengths.items() if length <= EMBEDDED_BYTES_MAX}
        short.update(hash for hash, cell in batch.items() if len(cell) <= EMBEDDED_BYTES_MAX)
        for hash, encoding in batch.items():
            try:
                self._facts.add(hash, check_cell(encoding, self._facts, short))
            except BadFormat as error:
                raise BadFormat(f"the cell 0x{hash.hex()} is not sound: {error}") from error
        self._facts.trim()

    def check_value(self, value: Value) -> None:
        """Check what of a value is not in the store yet.

        Raises: as `check`.
        """
        self.check((hash, encoding) for hash, encoding, _ in novelty(value, self._store))
        if is_embedded(value):
            check_cell(encode(value), self._facts)

    def put(self, cells: Iterable[tuple[bytes, bytes]]) -> int:
        """Check cells and stage them in the store; return how many were new.

        Raises: as `check` and `Store.put_encodings`; nothing of these cells is stored then.
        """
        batch = list(cells)
        self.check(batch)
        return self._store.put_encodings(batch)
