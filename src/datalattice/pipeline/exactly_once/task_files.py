"""Files in which tasks hand data to the driver: a sequence of parcels.

    with ParcelWriter(path) as parcels:           # in a task
        parcels.put(CELLS, b"", ends, data)
        digest = parcels.digest
    with ParcelReader(path) as parcels:           # on the driver
        for ref, parcel in parcels.all(digest):
            ...

A parcel is a head, which describes it, and a sequence of byte items. Its checksum is SHA-256 over
the previous checksum and the parcel. So the last checksum covers the contents, completeness and
order of the whole file; the task's commit message contains it. Files are not synced: Spark computes
a batch again if a crash of the machine loses it.

    kind 4 | head length H 4 | item count N 4 | items length L 4      little-endian
    head H | end of each item in the items, N times 4 | items L | checksum 32
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
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, Self

from datalattice.errors import BadFormat, Corruption, LimitExceeded
from datalattice.limits import HASH_BYTES
from datalattice.store import write_error

if TYPE_CHECKING:
    from typing_extensions import Buffer

CELLS: Final = 1
"""Kind whose items are cells: each a hash and an encoding, children before parents."""

CELLS_BYTES: Final = 1024 * 1024
"""Approximate size of a parcel of cells."""

PARCEL_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest parcel without its header, twice the size that any sink makes. It bounds the memory that
the reader allocates for a damaged header."""

_FIRST: Final = bytes(32)
"""The checksum before the first parcel."""

_HEADER: Final = struct.Struct("<IIII")
_INT: Final = 4


class Parcel(NamedTuple):
    """One parcel; see the module's layout."""

    kind: int
    head: bytes
    ends: list[int]
    """End of each item in `data`; an item begins where the one before ends."""
    data: bytes


class ParcelRef(NamedTuple):
    """Offset of a parcel that was read before, with the checksums before and after it."""

    offset: int
    before: bytes
    digest: bytes


class _TaskFile:
    """An open file of parcels; a context manager that closes it."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path: Final = path
        self._file: Final = file

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ParcelWriter(_TaskFile):
    """Writes a new file of parcels."""

    def __init__(self, path: Path) -> None:
        # "x": a second attempt of a task must not write into the file of the first.
        super().__init__(path, path.open("xb", buffering=0))
        self.digest = _FIRST
        """The checksum after the last parcel."""

    def put(self, kind: int, head: bytes, ends: Buffer, data: Buffer) -> None:
        """Write a parcel. ends: 32-bit integers in this machine's byte order.

        Raises: StoreFull, StoreFailed: a write failed; the file is unusable then.
                LimitExceeded: the parcel is larger than `PARCEL_BYTES_MAX`.
        """
        # The layout is little-endian; columns of Arrow come in the byte order of the machine.
        end_bytes = memoryview(ends).cast("B")
        if sys.byteorder == "big":
            swapped = array("i", end_bytes.tobytes())
            swapped.byteswap()
            end_bytes = memoryview(swapped).cast("B")
        items = memoryview(data).cast("B")
        rest = len(head) + len(end_bytes) + len(items)
        # The reader refuses longer ones, so they must not be written.
        if rest > PARCEL_BYTES_MAX:
            raise LimitExceeded(f"a parcel has at most {PARCEL_BYTES_MAX} bytes, got {rest}")
        front = _HEADER.pack(kind, len(head), len(end_bytes) // _INT, len(items)) + head
        parts = (front, end_bytes, items)
        # Chained: a parcel that is moved, repeated or left out changes all later checksums.
        self.digest = _checksum(self.digest, parts)
        try:
            for part in (*parts, self.digest):
                _write(self._file, part)
        except OSError as error:
            # A full disk is an error of its own, with its remedy.
            raise write_error(error, str(self._path.parent)) from error

    def put_items(self, kind: int, head: bytes, items: Sequence[bytes]) -> None:
        """Write a parcel of `items`."""
        self.put(kind, head, array("i", accumulate(map(len, items))), b"".join(items))

    def put_cells(self, cells: Sequence[tuple[bytes, bytes]]) -> None:
        """Write cells as (hash, encoding), children before parents, in several parcels."""
        items: list[bytes] = []
        size = 0
        for hash, encoding in cells:
            items.append(hash + encoding)
            size += HASH_BYTES + len(encoding)
            # Several parcels, because a reader holds one of them in memory.
            if size >= CELLS_BYTES:
                self.put_items(CELLS, b"", items)
                items, size = [], 0
        if items:
            self.put_items(CELLS, b"", items)


class ParcelReader(_TaskFile):
    """Reads a file of parcels. Raises: OSError: the file cannot be opened."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, path.open("rb", buffering=0))
        self._size: Final = os.fstat(self._file.fileno()).st_size

    def all(self, digest: bytes) -> Iterator[tuple[ParcelRef, Parcel]]:
        """Yield the parcels with their references, one in memory at a time.

        Raises: Corruption: the file does not have this checksum. It may be raised after the last
                parcel; discard what was yielded then.
        """
        # The chain of checksums begins anew with each reading.
        at, before = 0, _FIRST
        while at < self._size:
            parcel, found, end = self._read(at, before)
            yield ParcelRef(at, before, found), parcel
            at, before = end, found
        # A file that was cut at the end of a parcel has valid checksums but another last one.
        if before != digest:
            raise self._damaged()

    def again(self, ref: ParcelRef) -> Parcel:
        """Return a parcel that was read before. Raises: Corruption: the file has changed."""
        # Checked again: between two reads the file may change on a shared file system.
        parcel, found, _ = self._read(ref.offset, ref.before)
        if found != ref.digest:
            raise self._damaged()
        return parcel

    def _read(self, at: int, before: bytes) -> tuple[Parcel, bytes, int]:
        """Return (parcel at an offset, its checksum, offset of the next parcel)."""
        self._file.seek(at)
        header = self._bytes(_HEADER.size, at)
        kind, head_size, count, size = _HEADER.unpack(header)
        rest = head_size + _INT * count + size
        # Before the checksum is known, so a damaged header must not decide how much is read.
        if rest > PARCEL_BYTES_MAX:
            raise self._damaged()
        body = memoryview(self._bytes(rest + HASH_BYTES, at + _HEADER.size))
        digest = _checksum(before, (header, body[:rest]))
        if body[rest:] != digest:
            raise self._damaged()
        ends = array("i", bytes(body[head_size : rest - size]))
        if sys.byteorder == "big":
            ends.byteswap()
        parcel = Parcel(
            kind, bytes(body[:head_size]), ends.tolist(), bytes(body[rest - size : rest])
        )
        return parcel, digest, at + _HEADER.size + rest + HASH_BYTES

    def _bytes(self, count: int, at: int) -> bytes:
        # The size when the file was opened: a file that grows is not the one that its task
        # reported.
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
        return Corruption(f"{self._path}: the file differs from what its task wrote")


def parcel_cells(parcel: Parcel) -> list[tuple[bytes, bytes]]:
    """Return the cells of a parcel as (hash, encoding)."""
    data = parcel.data
    begin = 0
    cells = []
    for end in parcel.ends:
        inside = begin + HASH_BYTES
        cells.append((data[begin:inside], data[inside:end]))
        begin = end
    return cells


def parcel_items(parcel: Parcel) -> list[bytes]:
    """Return the items of a parcel."""
    return [parcel.data[i:j] for i, j in zip([0, *parcel.ends], parcel.ends, strict=False)]


def misshapen() -> BadFormat:
    """Return the error for parcels that the reading sink does not know."""
    return BadFormat("the staged parcels are not of this version of the sink")


def _checksum(before: bytes, parts: Sequence[Buffer]) -> bytes:
    sum = hashlib.sha256(before)
    for part in parts:
        sum.update(part)
    return sum.digest()


def _write(file: BinaryIO, data: Buffer) -> None:
    left = memoryview(data)
    # An unbuffered write may take a part only, on a disk that is nearly full for example.
    while left:
        left = left[file.write(left) :]
