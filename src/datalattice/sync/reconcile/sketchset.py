"""Sketched set: the ids of a set of hashes under one key, and the cells and sums made of them.

    id    = SipHash-2-4(key, hash), 64 bits; 0 becomes 1
    sum j = number of ids whose bit j of mix(id ^ the salt of sums) is 1, less those where it is 0

The mean square of the differences between the 64 sums of two sets estimates the number of ids in
which they differ, with a standard deviation of 18 %. Adding or removing a hash updates sums and
cells.

Large sets are summed and spread over cells with NumPy where it is installed, with the same result.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from itertools import islice
from math import ceil
from operator import xor
from typing import Any, Final, NamedTuple

from datalattice.crypto import blake3, siphash
from datalattice.limits import HASH_BYTES
from datalattice.sync.reconcile.sketchcells import mix, spread

ID_BYTES: Final = 8

SUMS: Final = 64
"""Sums of an estimate: one for each bit of an id."""

SKETCH_CELL_BYTES: Final = 12
"""Bytes of a cell: 8 of ids, 4 of their checks."""

_ARRAYS_FROM: Final = 2_000
"""Items from which NumPy is worth its calls."""

_BATCH: Final = 65_536
_CHECK_BYTES: Final = 4


@cache
def _arrays() -> Any:
    """Return the functions for many items at a time, None where NumPy is not installed."""
    try:
        from datalattice.sync.reconcile import sketcharrays  # noqa: PLC0415 - it loads NumPy
    except ImportError:
        return None
    return sketcharrays


def has_arrays() -> bool:
    """Return whether large sets are worked on with NumPy."""
    return _arrays() is not None


class SketchKey(NamedTuple):
    """Key of ids, and the salts of their checks, places and sums."""

    key: bytes
    checks: int
    places: int
    sums: int

    @classmethod
    def derive(cls, nonces: Sequence[bytes], attempt: int) -> SketchKey:
        """Return the key of an attempt, which depends on the nonces of both sides."""
        # "Unkeyed sketches can be blocked by two chosen items": with both nonces, neither side
        # alone can choose the key.
        seed = b"".join(nonces) + attempt.to_bytes(1, "big")
        salts = array("q", blake3(b"datalattice sketch salts" + seed)[:24])
        if sys.byteorder == "big":
            salts.byteswap()
        return cls(blake3(b"datalattice sketch ids" + seed)[:16], *salts)

    def id_of(self, hash: bytes) -> int:
        """Return the id of a hash, as a signed integer."""
        # 0 stands for an empty cell.
        return int.from_bytes(siphash(self.key, hash), "little", signed=True) or 1


class SketchedSet:
    """The ids, sums and cells of a set of hashes under one key."""

    def __init__(self, key: SketchKey, hashes: Iterable[bytes] = ()) -> None:
        self.key: Final = key
        self._hashes = bytearray()
        self._ids = array("q")
        self._states = array("q")
        self._places = array("q")
        self._ones = [0] * SUMS
        self._cells = array("q")
        self._checks = array("q")
        self.add(hashes)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> array[int]:
        """The ids, as signed integers, in no order. Not to be changed."""
        return self._ids

    @property
    def sums(self) -> array[int]:
        """The 64 sums."""
        return array("i", [2 * ones - len(self._ids) for ones in self._ones])

    def add(self, hashes: Iterable[bytes]) -> None:
        """Add hashes of 32 bytes that are not in the set."""
        source = iter(hashes)
        while batch := b"".join(islice(source, _BATCH)):
            ids = self._ids_of(batch)
            self._count(ids, 1)
            states, places = self._spread(ids)
            self._hashes += batch
            self._ids += ids
            self._states += states
            self._places += places  # kept, so that later cells go on from there

    def remove(self, hashes: Iterable[bytes]) -> None:
        """Remove hashes. Each costs one search through the ids.

        Raises: KeyError: one is not in the set.
        """
        for hash in hashes:
            try:
                at = self._ids.index(self.key.id_of(hash))
            except ValueError:
                raise KeyError(hash) from None
            id = self._ids[at : at + 1]
            self._count(id, -1)
            self._spread(id)  # XOR takes away what it added
            # The last item takes the free position: ids are in no order.
            self._hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES] = self._hashes[-HASH_BYTES:]
            del self._hashes[-HASH_BYTES:]
            for column in (self._ids, self._states, self._places):
                column[at] = column[-1]
                column.pop()

    def _ids_of(self, hashes: bytes) -> array[int]:
        if len(hashes) >= _ARRAYS_FROM * HASH_BYTES and (arrays := _arrays()) is not None:
            ids: array[int] = arrays.siphash_many(self.key.key, hashes)
            while 0 in ids:  # as `id_of` does
                ids[ids.index(0)] = 1
            return ids
        found = range(0, len(hashes), HASH_BYTES)
        return array("q", [self.key.id_of(hashes[at : at + HASH_BYTES]) for at in found])

    def _mixed(self, ids: array[int], salt: int, set_bits: int = 0) -> array[int]:
        if len(ids) >= _ARRAYS_FROM and (arrays := _arrays()) is not None:
            mixed: array[int] = arrays.mix_many(ids, salt, set_bits)
            return mixed
        return array("q", [mix(id ^ salt) | set_bits for id in ids])

    def _count(self, ids: array[int], sign: int) -> None:
        octets = self._mixed(ids, self.key.sums).tobytes()
        for column in range(ID_BYTES):
            at = column if sys.byteorder == "little" else ID_BYTES - 1 - column
            for value, count in Counter(octets[at::ID_BYTES]).items():
                for bit in range(8):
                    self._ones[8 * column + bit] += sign * count * (value >> bit & 1)

    def _spread(self, ids: array[int]) -> tuple[array[int], array[int]]:
        """Add ids to all cells made so far; return where their walks are then."""
        states = self._mixed(ids, self.key.places, 1)
        places = array("q", bytes(ID_BYTES * len(ids)))
        self._advance(ids, states, places)
        return states, places

    def _advance(self, ids: array[int], states: array[int], places: array[int]) -> None:
        if not self._cells:
            return  # the walks begin with the first cells that are made
        # A few items are quicker one by one.
        arrays = _arrays() if len(ids) >= _ARRAYS_FROM else None
        run = spread if arrays is None else arrays.spread_many
        salts = (self.key.checks, self.key.places)
        run(ids, states, places, salts, self._cells, self._checks)

    def cells(self, start: int, end: int) -> tuple[array[int], array[int]]:
        """Return the ids and the checks of the cells in start <= place < end."""
        lacking = end - len(self._cells)
        if lacking > 0:
            more = array("q", bytes(ID_BYTES * lacking))
            self._cells += more
            self._checks += more
            # Every id goes on to the new cells.
            self._advance(self._ids, self._states, self._places)
        return self._cells[start:end], self._checks[start:end]

    def find(self, ids: Collection[int]) -> dict[int, bytes]:
        """Return those of the ids that are here, with their hashes."""
        wanted = frozenset(ids)
        found = {}
        for at, id in enumerate(self._ids):
            if id in wanted:
                found[id] = bytes(self._hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES])
        return found


def estimate(own: Sequence[int], theirs: Sequence[int]) -> int:
    """Return the estimated number of ids in which two sets differ, from their sums."""
    return ceil(sum((a - b) ** 2 for a, b in zip(own, theirs, strict=True)) / SUMS)


def pack_integers(numbers: array[int]) -> bytes:
    """Return the integers of an array as little-endian bytes, in the array's item size."""
    if sys.byteorder == "little":  # the format is little-endian on every machine
        return numbers.tobytes()
    turned = numbers[:]
    turned.byteswap()
    return turned.tobytes()


def unpack_integers(kind: str, data: bytes) -> array[int]:
    """Return the array of type code `kind` that `pack_integers` wrote as `data`."""
    numbers = array(kind, data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def pack_cells(cells: array[int], checks: array[int]) -> bytes:
    """Return cells as bytes: the ids of all, then the checks of all."""
    return pack_integers(cells) + pack_integers(array("I", checks))


def unpack_cells(data: bytes) -> tuple[array[int], array[int]]:
    """Return (ids, checks) that `pack_cells` wrote as `data`, a multiple of 12 bytes."""
    middle = len(data) // SKETCH_CELL_BYTES * ID_BYTES  # all ids stand before all checks
    return unpack_integers("q", data[:middle]), array("q", unpack_integers("I", data[middle:]))


def combine(a: array[int], b: array[int]) -> array[int]:
    """Return the XOR of two arrays of equal length, item by item."""
    return array("q", map(xor, a, b))
