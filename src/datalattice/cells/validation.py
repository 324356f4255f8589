"""Validation: the complete check of a value, by `check_cell` over all its cells, children first.

Source: CAD003; docs/cells.md "Decoding".
"""

from __future__ import annotations

from typing import Final

from datalattice.cells.cell import Ref, Value, encode, value_hash
from datalattice.cells.facts import Fact, Facts
from datalattice.cells.message import branch_kids
from datalattice.cells.scan import scan_top
from datalattice.cells.sound import examine
from datalattice.errors import MissingData
from datalattice.limits import EMBEDDED_BYTES_MAX


def validate(value: Value) -> list[bytes]:
    """Check that `value` and all below it is canonical.

    Return the hashes of the branches that are not here.

    Faults that can be seen are raised even when other branches are missing.
    Raises: BadFormat: some part has the wrong kind, length, order or place.
    """
    found = _Found()
    # Kids, and encodings of cells whose kids are all done. A chain of cells can be millions long.
    stack: list[tuple[bytes, object, bytes]] = [(value_hash(value), value, b"")]
    entered: set[bytes] = set()
    while stack:
        hash, kid, encoding = stack.pop()
        if encoding:
            found.check(hash, encoding)
            continue
        if hash in entered:
            continue
        entered.add(hash)
        try:
            cell = kid.resolve() if isinstance(kid, Ref) else kid
        except MissingData as error:
            found.absent.update(dict.fromkeys(error.hashes))
            continue
        encoding = encode(cell)
        scan_top(encoding)
        if isinstance(kid, Ref) and len(encoding) <= EMBEDDED_BYTES_MAX:
            found.short.add(hash)
        stack.append((hash, None, encoding))
        stack.extend((below, child, b"") for below, child in branch_kids(cell))
    return list(found.absent)


class _Found(Facts):
    """What was found out about the cells of one value."""

    def __init__(self) -> None:
        self.absent: Final[dict[bytes, None]] = {}
        self.short: Final[set[bytes]] = set()
        self._facts: Final[dict[bytes, Fact]] = {}

    def check(self, hash: bytes, encoding: bytes) -> None:
        """Check a cell after all below it."""
        fact, _absent = examine(encoding, self, self.short)
        self._facts[hash] = fact

    def of(self, hash: bytes) -> Fact:
        """Return the fact of a cell that was met."""
        fact = self._facts.get(hash)
        if fact is None:
            raise MissingData([hash])
        return fact
