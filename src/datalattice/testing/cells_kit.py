"""Cells kit: a dict of cells that is a loader and counts its loads."""

from __future__ import annotations

from typing import TypeVar

from datalattice.cells import Value, decode, encode, novelty
from datalattice.errors import MissingData

V = TypeVar("V", bound=Value)


class CellDict(dict[bytes, bytes]):
    """Encodings by their hashes."""

    loads = 0

    def load(self, hash: bytes) -> Value:
        """Return the value with this hash.

        Raises: MissingData: it is not here.
        """
        self.loads += 1
        if hash not in self:
            raise MissingData([hash])
        return decode(self[hash], self)

    def kept(self, value: V) -> V:
        """Keep a value; return it as if read from here, with nothing below it loaded."""
        for hash, encoding, _ in novelty(value, None):
            self[hash] = encoding
        found = decode(encode(value), self)
        assert isinstance(found, type(value))
        return found
