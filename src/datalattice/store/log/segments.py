"""Segments: the append-only files of packs, written at the end and read anywhere.

A segment is synced and closed before the next one begins, so only the last segment can end in a
pack that was never acknowledged. After its packs a segment may have zeros, which are preallocated
space: to sync bytes inside a file costs about two thirds of a sync of a file that grows. Small
packs get such space; large packs would gain nothing.

Source: docs/store.md "Segments and packs", "Faults under a running process".
"""

from __future__ import annotations

import threading
from typing import Final

from mypy_extensions import i64

from datalattice.cells import CellRange, skip_cell
from datalattice.crypto import find_hashes, sha3_256_ends, sha3_256_many
from datalattice.errors import BadFormat, Corruption, StoreFull
from datalattice.forking import freed_in_child
from datalattice.store.disk import DiskFile, FileView
from datalattice.store.files import StoreFolder
from datalattice.store.log.packing import (
    OFFSET_MAX,
    PACK_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    SEGMENTS_MAX,
    PackHeader,
    read_pack_header,
    read_segment_header,
    seed_of,
    segment_header,
)

SEGMENT_BYTES: Final = 64 * 1024 * 1024
"""A segment takes no further pack once it is this long."""

PACK_BYTES_MAX = 8 * 1024 * 1024  # not Final, which is compiled in: tests have smaller packs
"""A longer commit is split into several packs, which bounds the memory of a reader."""

BEHIND_BYTES: Final = 1024 * 1024
"""Packs from this length on are written behind the caller, who makes the next one meanwhile."""

ROOM_BYTES: Final = 256 * 1024
"""Space is preallocated up to the next multiple of this."""

ROOM_PACK_BYTES_MAX: Final = 32 * 1024
"""Packs up to this length get preallocated space after them."""

OPEN_SEGMENTS_MAX: Final = 256
"""Most segments of one reader that are open at a time: each costs a file descriptor."""

_RUN_BYTES_MAX: Final = 512 * 1024
"""Most bytes that are read at a time for several cells."""

GAP_BYTES_MAX: Final = 2_048
"""Two cells this far apart are read at a time, with what is between them."""

_BETWEEN_MAX: Final = 4_096
"""Most cells that are hashed to find some of them."""

SEGMENTS: Final = "segments"
_SUFFIX: Final = ".seg"

assert SEGMENT_HEADER_BYTES + SEGMENT_BYTES + 2 * PACK_BYTES_MAX < OFFSET_MAX
assert ROOM_PACK_BYTES_MAX <= ROOM_BYTES <= SEGMENT_BYTES


def segment_path(folder: StoreFolder | str, segment: int) -> str:
    """Return the path of a segment of the store at `folder`."""
    return f"{folder}/{SEGMENTS}/{segment:08d}{_SUFFIX}"


def segment_numbers(folder: StoreFolder) -> list[int]:
    """Return the numbers of the segment files, in order; files with other names are ignored."""
    names = folder.disk.names(f"{folder}/{SEGMENTS}")
    stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
    # Copies that an operator left beside them have other names.
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())


def segment_size(folder: StoreFolder, segment: int) -> int:
    """Return the length of a segment's file in bytes. Raises: OSError."""
    return folder.size(f"{SEGMENTS}/{segment:08d}{_SUFFIX}")


def segment_head(folder: StoreFolder, segment: int) -> tuple[int, bytes, int, int] | None:
    """Return the header of a segment (`read_segment_header`); None: damaged, or no such file."""
    data = folder.read(f"{SEGMENTS}/{segment:08d}{_SUFFIX}", SEGMENT_HEADER_BYTES)
    return None if data is None else read_segment_header(data)


def first_pack(folder: StoreFolder, segment: int) -> int | None:
    """Return the number of a segment's first pack, from its header; None: the header is damaged."""
    header = segment_head(folder, segment)
    return None if header is None else header[3]


def first_header(folder: StoreFolder, store_id: bytes, segment: int) -> PackHeader | None:
    """Return the header of a segment's first pack; None: damaged, or there is no pack."""
    data = folder.read(
        f"{SEGMENTS}/{segment:08d}{_SUFFIX}", SEGMENT_HEADER_BYTES + PACK_HEADER_BYTES
    )
    if data is None:
        return None
    at = SEGMENT_HEADER_BYTES
    return read_pack_header(data[at:], seed_of(store_id), segment, at)


class SegmentWriter:
    """Appends packs to the last segment. One thread at a time; any thread may call `file`."""

    def __init__(self, folder: StoreFolder, store_id: bytes, segment_bytes: int) -> None:
        self._folder = folder
        self._store_id = store_id
        self._segment_bytes = segment_bytes
        self._file: DiskFile | None = None
        self._retired: list[DiskFile] = []
        self._mine: list[int] = []  # segments that this writer may cut or remove
        self.segment = 0
        self.offset = 0
        """Where the next pack goes."""
        self._size = 0

    def resume(self, segment: int, offset: int) -> None:
        """Go on after the last good pack of an existing segment."""
        self._file = self._folder.disk.open(segment_path(self._folder, segment), write=True)
        self._mine.append(segment)
        self.segment = segment
        self.offset = offset
        # A writer that died may have left preallocated zeros, which this one uses.
        self._size = self._file.size()

    def skip_to(self, segment: int) -> None:
        """Let the next pack begin a segment with a greater number than `segment`."""
        self._drop_file()
        self.segment = segment

    def make_room(self, length: int, sequence: int) -> None:
        """Begin a new segment when a pack of `length` bytes does not fit into this one.

        `sequence` is the number of that pack. The content of the old segment is durable afterwards.
        """
        if self._file is not None:
            # An empty segment takes a pack of any length.
            if self.offset + length <= self._segment_bytes or self.offset <= SEGMENT_HEADER_BYTES:
                return
            self.finish()
        segment = self.segment + 1
        # A location has 20 bits for the segment.
        if segment >= SEGMENTS_MAX:
            raise StoreFull(f"{self._folder}: a store has at most {SEGMENTS_MAX} segments")
        self._mine.append(segment)
        file = self._folder.disk.open(segment_path(self._folder, segment), create=True)
        file.write(0, segment_header(self._store_id, segment, sequence))
        # Durable with its name before any pack: a later segment proves those before it durable.
        file.sync()
        self._folder.disk.sync_folder(f"{self._folder}/{SEGMENTS}")
        self._file = file
        self.segment = segment
        self.offset = self._size = SEGMENT_HEADER_BYTES

    def finish(self) -> None:
        """Let the next pack begin a new segment. The old one is durable afterwards."""
        # An empty segment takes the next pack itself.
        if self._file is not None and self.offset > SEGMENT_HEADER_BYTES:
            self.trim()
            self._file.sync()
            self._retired.append(self._file)  # another thread may be syncing it just now
            self._file = None

    def rewind(self, segment: int, offset: int, before: bytes) -> None:
        """Cut all that this writer wrote after an offset, and continue in a new segment.

        before: the bytes that must be before the offset.
        After a failed sync the content after the offset is unknown, and the kernel may believe that
        it is on the disk.
        Raises: OSError: the disk refuses. Corruption: what was durable is not there.
        """
        self.close()
        # Later segments hold only packs that were never acknowledged: they are deleted.
        while self._mine and self._mine[-1] > segment:
            path = segment_path(self._folder, self._mine[-1])
            if self._folder.disk.exists(path):
                self._folder.disk.remove(path)
            self.segment = self._mine.pop() - 1
        if segment in self._mine:
            path = segment_path(self._folder, segment)
            file = self._folder.disk.open(path, write=True)
            try:
                file.truncate(offset)
                file.sync()
                if file.read(offset - len(before), len(before)) != before:
                    raise Corruption(f"{path} at byte {offset}: what was durable is not there")
            finally:
                file.close()
            self.segment = segment
        self._folder.disk.sync_folder(f"{self._folder}/{SEGMENTS}")

    def append(self, parts: list[bytes], length: int) -> None:
        """Write a pack of `length` bytes, in parts, after the last one.

        It is durable once `file` is synced. If it is long it may fail behind the caller: then the
        sync raises that, and so does every write before it.
        """
        file = self._file
        assert file is not None, "make_room comes first"
        end = self.offset + length
        # For small packs only: a large one takes long to write anyway.
        if end > self._size and length <= ROOM_PACK_BYTES_MAX:
            # One write with zeros up to the next multiple: the following packs do not extend it.
            self._size = -(-end // ROOM_BYTES) * ROOM_BYTES
            file.write(self.offset, b"".join([*parts, bytes(self._size - end)]))
        elif length < BEHIND_BYTES:
            file.write(self.offset, b"".join(parts))
        else:
            # Begun writes hold at most one segment in memory: it is synced before the next begins.
            file.begin_write(self.offset, parts)
        self._size = max(self._size, end)
        self.offset = end

    def file(self) -> DiskFile | None:
        """Return the file with packs that are not durable yet, for its `sync`."""
        return self._file

    def trim(self) -> None:
        """Cut the preallocated space after the last pack."""
        if self._file is not None and self._size > self.offset:
            self._file.truncate(self.offset)
            self._size = self.offset

    def close(self) -> None:
        """Close the files; syncs nothing."""
        self._drop_file()
        self.close_retired()

    def close_retired(self) -> None:
        """Close files of finished segments; no thread is syncing them now."""
        while self._retired:
            self._retired.pop().close()

    def _drop_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class HashedCells:
    """Cells that were read together, with their hashes."""

    def __init__(self, data: bytes, ends: list[int]) -> None:
        self._data = data
        self._ends = ends
        self._digests = sha3_256_ends(data, ends)

    def find(self, hashes: list[bytes]) -> list[CellRange | None]:
        """Return the cells with these hashes, None for those that are not among them."""
        ends = self._ends
        found: list[CellRange | None] = []
        for number in find_hashes(self._digests, hashes):
            if number < 0:
                found.append(None)
            else:
                begin: i64 = ends[number - 1] if number > 0 else 0
                found.append(CellRange(self._data, begin, ends[number]))
        return found


class SegmentReader:
    """Reads encodings by location, from files that are opened when they are needed.

    They are read, not mapped: touching a mapped file that was cut short, or has a bad sector,
    kills the process (SIGBUS).
    """

    def __init__(self, folder: StoreFolder, *, open_max: int = OPEN_SEGMENTS_MAX) -> None:
        self._folder = folder
        self._open_max = open_max
        self._views: dict[int, FileView] = {}
        self._lock = freed_in_child(threading.Lock())

    def read(self, location: int) -> bytes:
        """Return the bytes at a location; they are not verified.

        Raises: Corruption: the segment is gone, too short, or cannot be read there.
        """
        # [segment 20 bits][offset 27][length 14][staged 1].
        length = (location >> 1) & 0x3FFF
        offset = (location >> 15) & 0x7FFFFFF
        view = self._views.get(location >> 42)
        if view is None:
            view = self._open(location >> 42)
        try:
            data = view.read(length, offset)
        except OSError as error:
            path = segment_path(self._folder, location >> 42)
            raise Corruption(f"{path} at byte {offset}: {error.strerror or error}") from error
        # A cut file: bytes beyond its end are never returned as zeros.
        if len(data) < length:
            path = segment_path(self._folder, location >> 42)
            end = offset + length
            raise Corruption(f"{path} at byte {end}: the file ends before, at {offset + len(data)}")
        return data

    def read_many(
        self, locations: list[int], hashes: list[bytes] | None = None
    ) -> list[bytes | None]:
        """Return the bytes at each location, None where they cannot be read; skip negative ones.

        Cells that lie beside each other are read together.
        hashes: of the cells there, which are hashed together; None also where one does not fit.
        """
        found = self._read_runs(locations)
        if hashes is not None:
            digests = sha3_256_many([b"" if data is None else data for data in found])
            if digests != hashes:
                for i in range(len(hashes)):
                    if digests[i] != hashes[i]:
                        found[i] = None
        return found

    def read_between(self, first: int, last: int, count: int, below: int = 0) -> HashedCells | None:
        """Return the cells from one location to another; None if too much lies between them.

        first, last: where the first and the last of `count` siblings lie, in either order.
        below: about how many bytes the cells below them have, if these are of use as well.
        """
        low: i64 = min(first, last)
        high: i64 = max(first, last)
        begin: i64 = (low >> 15) & 0x7FFFFFF
        end: i64 = ((high >> 15) & 0x7FFFFFF) + ((high >> 1) & 0x3FFF)
        longer: i64 = max((low >> 1) & 0x3FFF, (high >> 1) & 0x3FFF)
        # Siblings have about the same length: over a longer range there are other cells between.
        if low < 0 or low >> 42 != high >> 42 or end - begin > 2 * (longer * count + below):
            return None
        data = self._read_run(low >> 42, begin, end)
        ends: list[int] = []
        at: i64 = 0
        try:
            while at < len(data) and len(ends) < _BETWEEN_MAX:
                at = skip_cell(data, at)
                if at <= len(data):
                    ends.append(at)
        except (BadFormat, IndexError):
            pass  # a pack ends in between; hashes tell which bytes are cells
        return HashedCells(data, ends)

    def _read_runs(self, locations: list[int]) -> list[bytes | None]:
        found: list[bytes | None] = [None] * len(locations)
        # Most come in the order in which they lie, or backwards: sorting them is a pass.
        order = sorted(range(len(locations)), key=locations.__getitem__)
        count = len(order)
        at = 0
        while at < count:
            first: i64 = locations[order[at]]
            stop = at + 1
            if first >= 0:
                begin: i64 = (first >> 15) & 0x7FFFFFF
                end: i64 = begin + ((first >> 1) & 0x3FFF)
                while stop < count:
                    following: i64 = locations[order[stop]]
                    offset: i64 = (following >> 15) & 0x7FFFFFF
                    behind: i64 = offset + ((following >> 1) & 0x3FFF)
                    # Reading a few bytes too many costs less than another call of the system.
                    if (
                        following >> 42 != first >> 42
                        or offset > end + GAP_BYTES_MAX
                        or behind - begin > _RUN_BYTES_MAX
                    ):
                        break
                    end = max(end, behind)
                    stop += 1
                data = self._read_run(first >> 42, begin, end)
                for place in order[at:stop]:
                    where: i64 = locations[place]
                    low: i64 = ((where >> 15) & 0x7FFFFFF) - begin
                    high: i64 = low + ((where >> 1) & 0x3FFF)
                    if high <= len(data):
                        found[place] = data[low:high]
            at = stop
        return found

    def _read_run(self, segment: int, begin: i64, end: i64) -> bytes:
        """Return the bytes from `begin` to before `end`; fewer where they cannot be read."""
        view = self._views.get(segment)
        try:
            if view is None:
                view = self._open(segment)
            return view.read(end - begin, begin)
        except (OSError, Corruption):
            return b""  # `read` tells of each cell what is wrong with it

    def _open(self, segment: int) -> FileView:
        path = segment_path(self._folder, segment)
        with self._lock:
            try:
                view = self._folder.disk.view(path)
            except FileNotFoundError:
                raise Corruption(f"{path}: the segment is gone") from None
            self._views.pop(segment, None)
            if len(self._views) >= self._open_max:
                # Dictionaries keep their order: this is the view that was opened first.
                self._views.pop(next(iter(self._views)))
            self._views[segment] = view
            return view

    def drop(self, segments: list[int]) -> None:
        """Close deleted segments, so that the file system frees their space."""
        with self._lock:
            for segment in segments:
                self._views.pop(segment, None)

    def forget(self) -> None:
        """Close all files, each once the last read from it has ended."""
        with self._lock:
            self._views.clear()
