"""Sweeping: a mark made by other processes, its file, and how a store collects by it.

If a store is too large for one process, many processes mark it (`partitions`) and write their
result to a *sweep list*. The writer of the store collects by the list as by a mark of its own
(`collection`): it adopts the list, follows what was written since, copies, and removes.

    header       magic `DLSL`, version (2 bytes), flags 2, store id 16, Unix milliseconds 8, grace
                 in milliseconds 8, the position after the last pack that was marked: number 8,
                 segment 4, byte 4, trailer 4; the root there 32, digest of the record of removed
                 cells 32, digest of the roots that were followed 32, live cells 8, dead cells 8,
                 bytes of the dead ones 8, segments 4
    each segment number 4, lengths of what follows 4 and 4; the marks of live and of dead cells,
                 deflated as in the record of removed cells (`log.removed`)
    SHA3-256 of all that

Why no needed cell is lost. Only cells that the list calls dead are removed. Everything written
since lies after the position of the list and is followed as young, with all cells below it. A cell
before that position that is not on the list stays, with all cells below it. The set of live cells
in the list is closed: it has all cells below its cells. And the present root, pins, leases, former
roots and values put lately are followed as in every collection, down to live cells.

Source: docs/store.md "Garbage"; docs/spark-jobs.md.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from datalattice.errors import Corruption, StoreVersion, UsageError
from datalattice.store.disk import Disk
from datalattice.store.files import StoreFolder, replace_file
from datalattice.store.gc.marking import PriorMark
from datalattice.store.gc.partitions import Extent, removed_digest
from datalattice.store.log.hashindex import LogPosition
from datalattice.store.log.opening import why_unreached
from datalattice.store.log.packing import upper_bits
from datalattice.store.log.removed import LocationSet

SWEEP_VERSION: Final = 1

CLOCK_SKEW_MS: Final = 10 * 60 * 1_000
"""Greatest allowed clock difference between the machine that marked and the one that sweeps."""

READ_BYTES: Final = 1 << 20

_HEAD: Final = struct.Struct(">4sHH16sQQQIII32s32s32sQQQI")
_SEGMENT: Final = struct.Struct(">III")
_MAGIC: Final = b"DLSL"
_HAS_ROOT: Final = 1
_HAS_REMOVED: Final = 2
_HAS_TRAILER: Final = 4
_DIGEST_BYTES: Final = 32
_NO_HASH: Final = bytes(_DIGEST_BYTES)


class SweptSegment(NamedTuple):
    """The result of a mark for one segment."""

    number: int
    live: bytes
    """Marks of live cells, as `LocationSet.pack` returns them ..."""
    dead: bytes
    """... and of dead ones."""


@dataclass(frozen=True, slots=True)
class SweepHead:
    """The header of a sweep list."""

    store_id: bytes
    position: LogPosition
    root: bytes | None
    removed: bytes
    roots: bytes
    """Digest of the hashes of the roots that were followed."""
    time_ms: int
    grace_ms: int
    cells_live: int
    cells_dead: int
    bytes_dead: int
    segments: int


def roots_digest(hashes: Iterable[bytes]) -> bytes:
    """Return the digest of the roots of a mark, independent of their order."""
    # Sorted, each once: the order in which processes name the roots does not matter.
    return hashlib.sha3_256(b"".join(sorted(set(hashes)))).digest()


def sweep_head(
    extent: Extent,
    roots: Iterable[bytes],
    *,
    time_ms: int,
    grace_ms: int,
    cells: tuple[int, int],
    bytes_dead: int,
    segments: int,
) -> SweepHead:
    """Return the header of a list; `cells` are the numbers of live and of dead ones."""
    return SweepHead(
        extent.store_id,
        extent.position,
        extent.root,
        extent.removed,
        roots_digest(roots),
        time_ms,
        grace_ms,
        *cells,
        bytes_dead,
        segments,
    )


def write_sweep_list(
    disk: Disk, path: str, head: SweepHead, segments: Iterable[SweptSegment]
) -> None:
    """Write a sweep list in one durable step.

    Raises: StoreFull, StoreFailed: it cannot be written. UsageError: `segments` and the head differ
            in number.
    Memory: one segment at a time.
    """
    replace_file(disk, path, _chunks(head, segments))


def _chunks(head: SweepHead, segments: Iterable[SweptSegment]) -> Iterator[bytes]:
    digest = hashlib.sha3_256()
    chunk = _pack_head(head)
    count = 0
    # Each chunk is held back until the next one: the last must also carry the digest of all before
    # it.
    for number, live, dead in segments:
        digest.update(chunk)
        yield chunk
        chunk = _SEGMENT.pack(number, len(live), len(dead)) + live + dead
        count += 1
    # The header with the wrong number is written already; raising here prevents the rename.
    if count != head.segments:
        raise UsageError(f"a sweep list of {head.segments} segments was given {count}")
    digest.update(chunk)
    yield chunk + digest.digest()


def _pack_head(head: SweepHead) -> bytes:
    sequence, segment, offset, trailer = head.position
    # A missing hash is written as zeros, and the flags say that it is missing.
    flags = _HAS_ROOT * (head.root is not None) | _HAS_REMOVED * bool(head.removed)
    flags |= _HAS_TRAILER * (trailer is not None)
    position = (sequence, segment, offset, trailer or 0)
    hashes = (head.root or _NO_HASH, head.removed or _NO_HASH, head.roots)
    counts = (head.cells_live, head.cells_dead, head.bytes_dead, head.segments)
    times = (head.time_ms, head.grace_ms)
    return _HEAD.pack(
        _MAGIC, SWEEP_VERSION, flags, head.store_id, *times, *position, *hashes, *counts
    )


def _unpack_head(data: bytes) -> SweepHead:
    fields = _HEAD.unpack(data)
    flags, store_id, time_ms, grace_ms = fields[2:6]
    sequence, segment, offset, trailer = fields[6:10]
    root, removed, roots = fields[10:13]
    return SweepHead(
        store_id,
        LogPosition(sequence, segment, offset, trailer if flags & _HAS_TRAILER else None),
        root if flags & _HAS_ROOT else None,
        removed if flags & _HAS_REMOVED else b"",
        roots,
        time_ms,
        grace_ms,
        *fields[13:],
    )


class SweepList:
    """A sweep list in a file, verified by its checksum when it is opened."""

    def __init__(self, disk: Disk, path: str) -> None:
        """Open a list.

        Raises: UsageError: there is no such file, or it is not a sweep list. Corruption: it is
                damaged. StoreVersion: a newer version wrote it.
        """
        self._path = path
        try:
            self._file = disk.open(path)
        except FileNotFoundError:
            raise UsageError(f"{path}: there is no such sweep list") from None
        try:
            self.head = self._check()
        except IsADirectoryError:
            self._file.close()
            raise UsageError(f"{path}: a sweep list is a file, this is a folder") from None
        except BaseException:
            self._file.close()
            raise

    def _check(self) -> SweepHead:
        size = self._file.size()
        data = self._file.read(0, _HEAD.size)
        if data[:4] != _MAGIC or len(data) < _HEAD.size:
            raise UsageError(f"{self._path}: not a sweep list; `lattice spark gc` writes them")
        # Before the checksum: a newer version may compute another one, and is no damage.
        version = _HEAD.unpack(data)[1]
        if version > SWEEP_VERSION:
            raise StoreVersion(
                f"{self._path}: format version {version}; this package reads up to {SWEEP_VERSION}"
            )
        digest = hashlib.sha3_256()
        end = size - _DIGEST_BYTES
        for offset in range(0, end, READ_BYTES):
            digest.update(self._file.read(offset, min(READ_BYTES, end - offset)))
        # Verified when opened: a flipped bit would remove a cell that is needed.
        if digest.digest() != self._file.read(end, _DIGEST_BYTES):
            raise Corruption(
                f"{self._path}: the sweep list does not fit its checksum; make a new one"
            )
        return _unpack_head(data)

    def segments(self) -> Iterator[SweptSegment]:
        """Yield the marks of each segment."""
        at = _HEAD.size
        for _ in range(self.head.segments):
            number, live, dead = _SEGMENT.unpack(self._file.read(at, _SEGMENT.size))
            at += _SEGMENT.size
            data = self._file.read(at, live + dead)
            yield SweptSegment(number, data[:live], data[live:])
            at += live + dead

    def prior_mark(self) -> PriorMark:
        """Return the mark in the list. Memory: two bits for each 32 bytes of the store.

        Raises: Corruption: the checksum is right, but the marks cannot be decoded.
        """
        position = self.head.position
        prior = PriorMark(
            upper_bits(position.segment, position.offset), LocationSet(), LocationSet()
        )
        try:
            for number, live, dead in self.segments():
                prior.live.unpack(number, live)
                prior.dead.unpack(number, dead)
        except (struct.error, zlib.error) as error:
            raise Corruption(
                f"{self._path}: the marks of the sweep list are damaged ({error}); make a new one"
            ) from error
        return prior

    def check_fits(self, folder: StoreFolder, store_id: bytes, now_ms: int) -> None:
        """Check that the list is of this store, and that the store did not change in its range.

        Raises: UsageError: it does not; the text says why.
        """
        head = self.head
        if head.store_id != store_id:
            raise UsageError(
                f"{self._path}: the list of another store (id {head.store_id.hex()}, that of "
                f"{folder} is {store_id.hex()}); each store is swept by its own"
            )
        # A collection has moved cells since, so the locations in the list belong to other cells.
        if removed_digest(folder) != head.removed:
            raise self._stale(f"cells were removed from {folder} since it was made")
        # A shorter or another log: the marks would be of cells that are not here.
        reason = why_unreached(folder, head.position)
        if reason:
            raise self._stale(f"the log of {folder} is another one since ({reason})")
        # A time in the future would shorten the grace.
        if head.time_ms > now_ms + CLOCK_SKEW_MS:
            raise UsageError(
                f"{self._path}: made {(head.time_ms - now_ms) // 1_000} s in the future; set the "
                "clocks of this machine and of the one that marked, and make a new one"
            )

    def _stale(self, why: str) -> UsageError:
        return UsageError(f"{self._path}: the list is stale: {why}; make a new one")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
