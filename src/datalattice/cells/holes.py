"""Holes: the unsound cells of a foreign value, and the cells above them.

None of these is stored. The value can still be read, so that the sound parts beside a hole can be
merged: cells above holes are kept in memory only, and a `Hole` replaces each unsound cell.

Source: docs/design/foreign-data.md "Holes".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from datalattice.cells.cell import Cell, Loader, Ref, Value, can_branch, encode, value_hash
from datalattice.cells.message import decode_trusted
from datalattice.cells.scan import branch_hashes
from datalattice.errors import BadFormat
from datalattice.limits import EMBEDDED_BYTES_MAX


class Hole(Cell):
    """Replaces an unsound cell. It has a hash, but cannot become part of a value."""

    __slots__ = ("_reason",)

    _reason: str

    def __init__(self, hash: bytes, reason: str) -> None:
        super().__init__()
        self._hash = hash
        self._reason = reason
        self._kids = []

    def _build(self, depth: int) -> bytes:
        # Nothing that contains a hole can be encoded, so none is ever stored or sent.
        raise BadFormat(self._reason)


class Holes:
    """The unsound parts of one foreign value.

    bad:     hash to reason of the unsound cells.
    tainted: hash to encoding of the cells above them, each well formed by itself.
    """

    def __init__(
        self, bad: Mapping[bytes, str] | None = None, tainted: Mapping[bytes, bytes] | None = None
    ) -> None:
        self.bad: Final[dict[bytes, str]] = dict(bad or {})
        self.tainted: Final[dict[bytes, bytes]] = dict(tainted or {})

    def __bool__(self) -> bool:
        return bool(self.bad)

    def spoils(self, value: object) -> bool:
        """Return whether a value, or a kid known by hash, is or contains an unsound cell."""
        if not self.bad:
            return False
        # By its hash alone: a hole is not loaded to be recognised.
        if isinstance(value, Ref):
            return self._is_named(value.hash)
        if isinstance(value, Hole):
            return True
        if not can_branch(value):
            return False
        encoding = encode(value)
        # A branch is recognised by its hash, an embedded value by the references in it.
        if len(encoding) > EMBEDDED_BYTES_MAX:
            return self._is_named(value_hash(value))
        return self._are_named(encoding)

    def is_planted(self, value: Value) -> bool:
        """Return whether a merged value contains or references a hole.

        Cost:   the cells that the merge made; nothing is loaded.
        """
        if not self.bad:
            return False
        stack: list[object] = [value]
        seen: set[int] = set()
        while stack:
            kid = stack.pop()
            if isinstance(kid, Ref):
                if self._is_named(kid.hash):
                    return True
            elif isinstance(kid, Hole):
                return True
            elif isinstance(kid, Cell) and id(kid) not in seen:
                # By identity: a hash would have to be computed, and a merge shares its own cells.
                seen.add(id(kid))
                if kid._encoding is not None and self._is_named(kid.hash):
                    return True
                if kid._is_closed() and kid._encoding is not None:
                    if self._are_named(kid._encoding):
                        return True
                else:
                    stack.extend(kid._children())
        return False

    def loader(self, others: Loader) -> Loader:
        """Return a loader of the value: holes, the cells above them, and all others by `others`."""
        return _AroundHoles(self, others) if self.bad else others

    def reason(self) -> str:
        """Return the reason of the first unsound cell."""
        return next(iter(self.bad.values()), "")

    def _is_named(self, hash: bytes) -> bool:
        return hash in self.bad or hash in self.tainted

    def _are_named(self, encoding: bytes) -> bool:
        return any(self._is_named(hash) for hash in branch_hashes(encoding))


class _AroundHoles:
    """Loads the cells of a value that has holes."""

    def __init__(self, holes: Holes, others: Loader) -> None:
        self._holes: Final = holes
        self._others: Final = others

    def load(self, hash: bytes) -> Value:
        encoding = self._holes.tainted.get(hash)
        if encoding is not None:
            return decode_trusted(encoding, hash, self)
        # "An unsound cell reads as a hole: a value that no lattice takes"
        # (docs/design/foreign-data.md "Holes").
        reason = self._holes.bad.get(hash)
        return self._others.load(hash) if reason is None else Hole(hash, reason)


NO_HOLES: Final = Holes()
"""The holes of a sound value: none."""
