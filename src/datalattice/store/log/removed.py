"""Removed: the record of the cells that collections removed, so that none of them reappears.

A collection drops some segments. It removes other unreached cells from the index only: their bytes
remain in segments that are kept. The index may be made again from the segments at any time. Then
this record says which packs are missing on purpose, and which cells do not count: such a cell may
refer to a dropped cell, and a store never holds a cell without the cells below it.

    garbage       header: magic `DLGB`, version (2 bytes), zero 2, first segment that was not
                  inspected 4, runs 4, segments 4, Unix milliseconds 8
                  runs of dropped segments: first 4, last 4, number of the first pack 8, number of
                  the first pack after them 8
                  each kept segment: number 4, length of what follows 4; deflated: bytes of the
                  bitmap 4, short cells 4, staged cells 4; a bit for each 32 bytes in which a cell
                  begins that counts; offsets (4 each) of short cells that count, and of staged
                  cells
                  CRC-32 of all that 4, begun with that of the store id

The record is written before anything is removed, and the files are deleted last. So while a dropped
file exists, the steps in between may be unfinished (`finish_removal`).

Source: docs/store.md "Garbage".
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from mypy_extensions import i64

from datalattice.errors import Corruption, StoreVersion
from datalattice.store.disk import write_error
from datalattice.store.files import StoreFolder
from datalattice.store.log.hashindex import STAGED, HashIndex
from datalattice.store.log.packing import SEGMENTS_MAX, seed_of
from datalattice.store.log.segments import (
    SEGMENTS,
    first_pack,
    segment_numbers,
    segment_path,
)

GARBAGE_FILE: Final = "garbage"
GARBAGE_VERSION = 1  # not Final, which is compiled in: a test writes another
DAMAGED_RECORD: Final = "the record of removed cells is damaged"

GRANULE_BITS: Final = 5
SHORT_CELL_BYTES: Final = 1 << GRANULE_BITS
"""Cells longer than this never begin in the same 32 bytes, so one bit for 32 bytes is exact.
Shorter cells are listed; they are few, because short values are embedded in their parents."""

SWEEP_ENTRIES: Final = 8_192
"""Entries of the index that are scanned, and removed, in one step."""

_HEAD: Final = struct.Struct(">4sHHIIIQ")
_RUN: Final = struct.Struct(">IIQQ")
_SEGMENT: Final = struct.Struct(">II")
_SIZES: Final = struct.Struct(">III")
_CRC: Final = struct.Struct(">I")
_MAGIC: Final = b"DLGB"
OFFSET_MASK: Final = 0x7FFFFFF


class DroppedRun(NamedTuple):
    """Consecutive segments that were dropped."""

    first: int
    last: int
    sequence: int
    """Number of their first pack."""
    next_sequence: int
    """Number of the first pack of the segment after them."""


class LocationSet:
    """A set of locations of cells, with a bit for each 32 bytes of the segments that have any."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self._short: dict[int, set[int]] = {}

    def add(self, location: i64) -> bool:
        """Add a location; return whether it was new."""
        segment: i64 = location >> 42
        offset: i64 = (location >> 15) & OFFSET_MASK
        # Two cells of at most 32 bytes may begin in the same granule, so these are listed.
        if (location >> 1) & 0x3FFF <= SHORT_CELL_BYTES:
            short = self._short.setdefault(segment, set())
            if offset in short:
                return False
            short.add(offset)
            return True
        page = self._pages.get(segment)
        if page is None:
            page = self._pages[segment] = bytearray()
        # One bit for each 32 bytes of the segment.
        at: i64 = offset >> (GRANULE_BITS + 3)
        bit: i64 = 1 << ((offset >> GRANULE_BITS) & 7)
        if at >= len(page):
            # Grows in steps of 4 KiB, which cover 1 MiB of a segment.
            page.extend(bytes(at + 4_096 - len(page)))
        elif page[at] & bit:
            return False
        page[at] |= bit
        return True

    def add_all(self, locations: list[int]) -> list[int]:
        """Add locations; return the positions in `locations` of those that were new."""
        return [position for position in range(len(locations)) if self.add(locations[position])]

    def lacking(self, locations: list[int]) -> list[int]:
        """Return the positions in `locations` of those that were not added."""
        return [position for position in range(len(locations)) if not self.has(locations[position])]

    def discard(self, location: i64) -> bool:
        """Remove a location; return whether it was there."""
        if not self.has(location):
            return False
        segment: i64 = location >> 42
        offset: i64 = (location >> 15) & OFFSET_MASK
        if (location >> 1) & 0x3FFF <= SHORT_CELL_BYTES:
            self._short[segment].discard(offset)
        else:
            bit: i64 = 1 << ((offset >> GRANULE_BITS) & 7)
            self._pages[segment][offset >> (GRANULE_BITS + 3)] &= ~bit
        return True

    def has(self, location: i64) -> bool:
        """Return whether a location was added."""
        segment: i64 = location >> 42
        offset: i64 = (location >> 15) & OFFSET_MASK
        if (location >> 1) & 0x3FFF <= SHORT_CELL_BYTES:
            return offset in self._short.get(segment, ())
        page = self._pages.get(segment)
        at: i64 = offset >> (GRANULE_BITS + 3)
        if page is None or at >= len(page):
            return False
        return page[at] & (1 << ((offset >> GRANULE_BITS) & 7)) != 0

    def segments(self) -> list[int]:
        """Return the numbers of the segments with locations that were added."""
        return sorted({*self._pages, *self._short})

    def pack(self, segment: int, staged: Iterable[int] = ()) -> bytes:
        """Return the marks of a segment, and the offsets of its staged cells, for the record."""
        page = bytes(self._pages.get(segment, b""))
        short = sorted(self._short.get(segment, ()))
        marked = sorted(staged)
        sizes = _SIZES.pack(len(page), len(short), len(marked))
        offsets = struct.pack(f">{len(short) + len(marked)}I", *short, *marked)
        # Level 1: bitmaps are mostly runs, and a store may have thousands of segments.
        return zlib.compress(sizes + page + offsets, 1)

    def unpack(self, segment: int, data: bytes) -> array[int]:
        """Add what `pack` returned; return the offsets of staged cells, sorted."""
        plain = zlib.decompress(data)
        page_bytes, short_count, staged_count = _SIZES.unpack_from(plain)
        at = _SIZES.size
        self._pages[segment] = bytearray(plain[at : at + page_bytes])
        at += page_bytes
        self._short[segment] = set(struct.unpack_from(f">{short_count}I", plain, at))
        at += 4 * short_count
        return array("I", struct.unpack_from(f">{staged_count}I", plain, at))


class CellSet:
    """A set of cells of one store, by location, or by hash if a cell has no location."""

    def __init__(self, location_of: Callable[[bytes], int]) -> None:
        """`location_of` returns the location of a cell, negative where it has none."""
        self._location_of = location_of
        self._locations = LocationSet()
        self._hashes: set[bytes] = set()

    def add(self, hash: bytes) -> bool:
        """Add a cell; return whether it was new."""
        location = self._location_of(hash)
        if location >= 0:
            return self._locations.add(location)
        is_new = hash not in self._hashes
        self._hashes.add(hash)
        return is_new


@dataclass(frozen=True)
class RemovedRecord:
    """The record. `NOTHING_REMOVED` for a store that was never collected."""

    begin: int = 0
    """The first segment that no collection has inspected: from it on all cells count."""
    runs: tuple[DroppedRun, ...] = ()
    time_ms: int = 0
    kept: dict[int, bytes] | None = None
    """Deflated marks of each segment that was kept."""

    def dropped(self, segment: int) -> bool:
        """Return whether a segment was dropped on purpose."""
        # Runs are sorted and disjoint, so one look-up decides.
        at = bisect_left(self.runs, segment, key=lambda run: run.last)
        return at < len(self.runs) and self.runs[at].first <= segment

    def run_before(self, segment: int) -> DroppedRun | None:
        """Return the dropped segments right before a segment, None when there are none."""
        at = bisect_left(self.runs, segment - 1, key=lambda run: run.last)
        if at < len(self.runs) and self.runs[at].last == segment - 1:
            return self.runs[at]
        return None

    def with_dropped(self, dropped: Iterable[DroppedRun]) -> tuple[DroppedRun, ...]:
        """Return the runs together with further ones, those that touch as one."""
        out: list[DroppedRun] = []
        for run in sorted([*self.runs, *dropped]):
            if out and out[-1].last + 1 == run.first:
                # Adjacent runs become one, so the record stays short over many collections.
                last = out.pop()
                out.append(DroppedRun(last.first, run.last, last.sequence, run.next_sequence))
            else:
                out.append(run)
        return tuple(out)


NOTHING_REMOVED: Final = RemovedRecord()


class RemovedFilter:
    """Decides by the record which cells count. The marks of a segment are unpacked when needed."""

    def __init__(self, removed: RemovedRecord) -> None:
        self.removed = removed
        self._marks = LocationSet()
        self._staged: dict[int, array[int]] = {}

    def _knows(self, segment: int) -> bool:
        """Unpack the marks of a segment; return False when there are none."""
        if segment in self._staged:
            return True
        data = (self.removed.kept or {}).get(segment)
        if data is None:
            return False
        self._staged[segment] = self._marks.unpack(segment, data)
        return True

    def is_removed(self, location: int) -> bool:
        """Return whether the cell at a location was removed."""
        segment = location >> 42
        # Segments begun after the collection were not inspected: all their cells count.
        if segment >= self.removed.begin:
            return False
        if self._knows(segment):
            return not self._marks.has(location)
        # A segment without marks was dropped, or the record does not know it.
        return self.removed.dropped(segment)

    def remaining(
        self, hashes: list[bytes], locations: list[int]
    ) -> tuple[list[bytes], list[int], int] | None:
        """Return (hashes, locations, staged cells) of those cells of a pack that count.

        None: the record says nothing about them.
        """
        if not locations or not self._knows(locations[0] >> 42):
            return None
        out_hashes: list[bytes] = []
        out_locations: list[int] = []
        staged_count = 0
        staged = self._staged[locations[0] >> 42]
        for hash, location in zip(hashes, locations, strict=True):
            if self._marks.has(location):
                offset = (location >> 15) & OFFSET_MASK
                at = bisect_left(staged, offset)
                is_staged = at < len(staged) and staged[at] == offset
                staged_count += is_staged
                out_hashes.append(hash)
                # The staged bit of the record is newer than that of the pack.
                out_locations.append(location & ~STAGED | is_staged)
        return out_hashes, out_locations, staged_count


def write_removed(folder: StoreFolder, store_id: bytes, removed: RemovedRecord) -> None:
    """Replace the record in one durable step.

    Raises: StoreFull, StoreFailed: it cannot be written.
    """
    kept = removed.kept or {}
    head = _HEAD.pack(
        _MAGIC, GARBAGE_VERSION, 0, removed.begin, len(removed.runs), len(kept), removed.time_ms
    )
    parts = [head, *(_RUN.pack(*run) for run in removed.runs)]
    for segment, data in sorted(kept.items()):
        parts += [_SEGMENT.pack(segment, len(data)), data]
    # [head][each run of dropped segments][each kept segment: number 4, length 4, its marks].
    body = b"".join(parts)
    folder.replace(GARBAGE_FILE, body + _CRC.pack(zlib.crc32(body, seed_of(store_id))))


def read_removed(folder: StoreFolder, store_id: bytes) -> RemovedRecord:
    """Return the record; `NOTHING_REMOVED` when there is none.

    Raises: Corruption: it is damaged. StoreVersion: a newer version wrote it.
    """
    path = f"{folder}/{GARBAGE_FILE}"
    data = folder.read(GARBAGE_FILE)
    if data is None:
        return NOTHING_REMOVED
    body = data[:-4]
    is_complete = len(data) >= _HEAD.size + 4 and data[:4] == _MAGIC
    if not is_complete or _CRC.pack(zlib.crc32(body, seed_of(store_id))) != data[-4:]:
        raise Corruption(f"{path} at byte 0: {DAMAGED_RECORD}")
    _, version, _, begin, run_count, kept_count, time_ms = _HEAD.unpack_from(body)
    if version > GARBAGE_VERSION:
        raise StoreVersion(
            f"{path}: format version {version}; this package reads up to {GARBAGE_VERSION}"
        )
    at = _HEAD.size
    runs = tuple(DroppedRun(*_RUN.unpack_from(body, at + i * _RUN.size)) for i in range(run_count))
    at += run_count * _RUN.size
    kept: dict[int, bytes] = {}
    for _ in range(kept_count):
        segment, length = _SEGMENT.unpack_from(body, at)
        at += _SEGMENT.size
        kept[segment] = body[at : at + length]
        at += length
    return RemovedRecord(begin, runs, time_ms, kept)


def read_removed_head(folder: StoreFolder) -> bytes:
    """Return the first bytes of the record, which each collection changes; b"" without a record."""
    return folder.read(GARBAGE_FILE, _HEAD.size) or b""


def read_swept_before(folder: StoreFolder) -> int:
    """Return the first segment that no collection inspected: from it on all cells count."""
    head = read_removed_head(folder)
    if not head:
        return 0
    # A record that is cut off says nothing about any segment.
    return int(_HEAD.unpack(head)[3]) if len(head) == _HEAD.size else SEGMENTS_MAX


def known_removed(folder: StoreFolder, store_id: bytes) -> RemovedRecord:
    """Return the record for a new collection; unrecorded missing segments count as dropped.

    A collection continues only if everything that is reached is here, so a missing segment has
    nothing that is needed. This restores a lost or damaged record.
    """
    try:
        removed = read_removed(folder, store_id)
    except Corruption:
        removed = NOTHING_REMOVED
    numbers = [n for n in segment_numbers(folder) if not removed.dropped(n)]
    gone: list[DroppedRun] = []
    for before, number in zip([0, *numbers], numbers, strict=False):
        absent = [n for n in range(before + 1, number) if not removed.dropped(n)]
        behind = first_pack(folder, number)
        # With a damaged header the numbers of the missing packs are unknown.
        if absent and behind is not None:
            sequence = first_pack(folder, before) if before else 1
            gone.append(DroppedRun(absent[0], absent[-1], sequence or 1, behind))
    return replace(removed, runs=removed.with_dropped(gone)) if gone else removed


def delete_dropped(folder: StoreFolder, removed: RemovedRecord) -> list[int]:
    """Delete the files of dropped segments that still exist; return their numbers.

    Raises: StoreFailed: one cannot be deleted.
    """
    numbers = [n for n in segment_numbers(folder) if removed.dropped(n)]
    try:
        for number in numbers:
            folder.disk.remove(segment_path(folder, number))
        if numbers:
            folder.disk.sync_folder(f"{folder}/{SEGMENTS}")
    except OSError as error:
        raise write_error(error, folder.path) from error
    return numbers


def sweep_index(
    index: HashIndex,
    is_removed: Callable[[int], bool],
    lock: AbstractContextManager[object],
    on_batch: Callable[[int], None],
) -> None:
    """Remove the entries at removed locations from an index; `lock` is taken for each batch.

    Raises: StoreFull, StoreFailed: it cannot be written; what was removed stays removed.
    """
    after = b""
    while batch := index.batch(after, SWEEP_ENTRIES):
        after = batch[-1][0]
        gone = [hash for hash, location in batch if is_removed(location)]
        if gone:
            # Taken for a batch, so that commits do not wait for the whole scan. `sweep` asks again
            # under it: a cell may have been committed anew since it was listed.
            with lock:
                index.sweep(gone, is_removed)
        on_batch(len(batch))


def finish_removal(folder: StoreFolder, index: HashIndex, removed: RemovedRecord) -> bool:
    """Finish the removal in an index if a process ended before it had done so.

    Return whether there was anything to do. If so, flush the index before `delete_dropped`.
    """
    # Files are deleted last: if no dropped file exists, all earlier steps are done.
    if not any(removed.dropped(number) for number in segment_numbers(folder)):
        return False
    sweep_index(index, RemovedFilter(removed).is_removed, nullcontext(), lambda _: None)
    return True
