"""Parcels: what a task hands to the driver, one behind the other in a file.

    with ParcelWriter(path) as parcels:           # in a task
        parcels.put(CELLS, b"", ends, data)
        digest = parcels.digest
    with ParcelReader(path) as parcels:           # on the driver
        for place, parcel in parcels.all(digest):
            ...

A parcel is items of bytes, laid end to end, and a head that says what they are. Each is checked by
SHA-256 over itself and the checksum before, so the last checksum, which goes with the task's
message, stands for the file: nothing in it was changed, left out or put in another order. Nothing
is synced: what a crash of the machine takes away is made again with its batch.

All integers are little-endian. A parcel is: kind (4 bytes), length of the head 4, number of items
4, bytes of the items 4; the head; where each item ends (4 each); the items; the checksum 32.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, Self

from datalattice.errors import BadFormat, Corruption, LimitExceeded
from datalattice.store import write_error

if TYPE_CHECKING:
    from typing_extensions import Buffer

CELLS: Final = 1
"""Cells as items: each its hash and its encoding; those below a cell come before it."""

CELLS_BYTES: Final = 1024 * 1024
"""Cells that make a parcel, about."""

PARCEL_BYTES_MAX: Final = 64 * 1024 * 1024
"""A parcel behind its header, at most: no sink makes one of half the size, and what a damaged
header says is not believed."""

HASH_BYTES: Final = 32
FIRST: Final = bytes(32)
"""What the first checksum follows."""

_HEADER: Final = struct.Struct("<IIII")
_INT: Final = 4


class Parcel(NamedTuple):
    """Items that came together."""

    kind: int
    head: bytes
    ends: list[int]
    """For each item where it ends in `data`; it begins where the one before ends."""
    data: bytes


class Place(NamedTuple):
    """Where a parcel stands in a file that was read before, and its checksum then."""

    offset: int
    before: bytes
    digest: bytes


class _File:
    """An open file of parcels: a context that gives it back."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path: Final = path
        self._file: Final = file

    def close(self) -> None:
        """Give the file back."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ParcelWriter(_File):
    """Writes a file of parcels."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, path.open("xb", buffering=0))
        self.digest = FIRST
        """The checksum of all that was put."""

    def put(self, kind: int, head: bytes, ends: Buffer, data: Buffer) -> None:
        """Write a parcel. ends: 32-bit integers in the order of this machine.

        Raises: StoreFull, StoreFailed: the disk refuses; the file is of no use then.
                LimitExceeded: the parcel is too large.
        """
        places = memoryview(ends).cast("B")
        if sys.byteorder == "big":
            swapped = array("i", places.tobytes())
            swapped.byteswap()
            places = memoryview(swapped).cast("B")
        items = memoryview(data).cast("B")
        rest = len(head) + len(places) + len(items)
        if rest > PARCEL_BYTES_MAX:
            raise LimitExceeded(f"a parcel has at most {PARCEL_BYTES_MAX} bytes, got {rest}")
        front = _HEADER.pack(kind, len(head), len(places) // _INT, len(items)) + head
        parts = (front, places, items)
        self.digest = _checksum(self.digest, parts)
        try:
            for part in (*parts, self.digest):
                _write(self._file, part)
        except OSError as error:
            raise write_error(error, str(self._path.parent)) from error

    def put_items(self, kind: int, head: bytes, items: Sequence[bytes]) -> None:
        """Write a parcel of these items."""
        self.put(kind, head, array("i", accumulate(map(len, items))), b"".join(items))

    def put_cells(self, cells: Sequence[tuple[bytes, bytes]]) -> None:
        """Write cells as (hash, encoding), those below a cell before it, in several parcels."""
        items: list[bytes] = []
        size = 0
        for hash, encoding in cells:
            items.append(hash + encoding)
            size += HASH_BYTES + len(encoding)
            if size >= CELLS_BYTES:
                self.put_items(CELLS, b"", items)
                items, size = [], 0
        if items:
            self.put_items(CELLS, b"", items)


class ParcelReader(_File):
    """Reads a file of parcels.

    Raises: OSError: there is none.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, path.open("rb", buffering=0))
        self._size: Final = os.fstat(self._file.fileno()).st_size

    def all(self, digest: bytes) -> Iterator[tuple[Place, Parcel]]:
        """Yield all parcels and where they are, one in memory at a time.

        Raises: Corruption: the file is not the one that has this checksum; what was yielded before
                is not to be used then.
        """
        at, before = 0, FIRST
        while at < self._size:
            parcel, found, end = self._read(at, before)
            yield Place(at, before, found), parcel
            at, before = end, found
        if before != digest:
            raise self._damaged()

    def again(self, place: Place) -> Parcel:
        """Return a parcel that was read before.

        Raises: Corruption: it is another one now.
        """
        parcel, found, _ = self._read(place.offset, place.before)
        if found != place.digest:
            raise self._damaged()
        return parcel

    def _read(self, at: int, before: bytes) -> tuple[Parcel, bytes, int]:
        """Return (the parcel at a place, its checksum, where the next one begins)."""
        self._file.seek(at)
        header = self._bytes(_HEADER.size, at)
        kind, head_size, count, size = _HEADER.unpack(header)
        rest = head_size + _INT * count + size
        if rest > PARCEL_BYTES_MAX:
            raise self._damaged()
        body = memoryview(self._bytes(rest + HASH_BYTES, at + _HEADER.size))
        digest = _checksum(before, (header, body[:rest]))
        if body[rest:] != digest:
            raise self._damaged()
        places = array("i", bytes(body[head_size : rest - size]))
        if sys.byteorder == "big":
            places.byteswap()
        parcel = Parcel(
            kind, bytes(body[:head_size]), places.tolist(), bytes(body[rest - size : rest])
        )
        return parcel, digest, at + _HEADER.size + rest + HASH_BYTES

    def _bytes(self, count: int, at: int) -> bytes:
        if at + count > self._size:
            raise self._damaged()
        parts: list[bytes] = []
        while count:
            part = self._file.read(count)
            if not part:
                raise self._damaged()
            parts.append(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _damaged(self) -> Corruption:
        return Corruption(
            f"{self._path}: what a task staged is not there any more as it was written"
        )


def cells_of(parcel: Parcel) -> list[tuple[bytes, bytes]]:
    """Return the cells of a parcel as (hash, encoding)."""
    data = parcel.data
    begin = 0
    cells = []
    for end in parcel.ends:
        inside = begin + HASH_BYTES
        cells.append((data[begin:inside], data[inside:end]))
        begin = end
    return cells


def items_of(parcel: Parcel) -> list[bytes]:
    """Return the items of a parcel."""
    return [parcel.data[i:j] for i, j in zip([0, *parcel.ends], parcel.ends, strict=False)]


def misshapen() -> BadFormat:
    """Return the error that parcels are not those of the sink that reads them."""
    return BadFormat("what a task staged is not what this version of the sink stages")


def _checksum(before: bytes, parts: Sequence[Buffer]) -> bytes:
    sum = hashlib.sha256(before)
    for part in parts:
        sum.update(part)
    return sum.digest()


def _write(file: BinaryIO, data: Buffer) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
