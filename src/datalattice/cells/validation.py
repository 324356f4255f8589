"""Validation: checks a value completely, with `check_cell` on all its cells, children first.

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
    """Check that `value` and all below it is canonical; return the hashes of missing branches.

    Faults that are visible are raised even if branches are missing.
    Raises: BadFormat: a part has a wrong type, length, order or position.
    """
    found = _Found()
    # Kids to visit, and encodings of cells whose kids are done. Chains can be millions long.
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
        # "A short child given by reference" is a fault (docs/cells.md "Decoding"): its parent must
        # embed it.
        if isinstance(kid, Ref) and len(encoding) <= EMBEDDED_BYTES_MAX:
            found.short.add(hash)
        stack.append((hash, None, encoding))
        stack.extend((below, child, b"") for below, child in branch_kids(cell))
    return list(found.absent)


class _Found(Facts):
    """The facts of the cells of one value, checked so far."""

    def __init__(self) -> None:
        self.absent: Final[dict[bytes, None]] = {}
        self.short: Final[set[bytes]] = set()
        self._facts: Final[dict[bytes, Fact]] = {}

    def check(self, hash: bytes, encoding: bytes) -> None:
        """Check a cell after all cells below it."""
        fact, _absent = examine(encoding, self, self.short)
        self._facts[hash] = fact

    def of(self, hash: bytes) -> Fact:
        """Return the fact of a checked cell."""
        fact = self._facts.get(hash)
        if fact is None:
            raise MissingData([hash])
        return fact
