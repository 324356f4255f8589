"""Recovery: read packs from a position on, and distinguish a torn tail from damage.

A pack is *proven durable* if the position or the record of the log's end (`logend`) says so, if a
later pack says so in its header, or if a later segment exists (a segment is synced before the next
one begins). If a proven pack cannot be read, its bytes are damage: they are reported and left as
they are, and reading continues at the next good pack. If an unproven pack cannot be read, it was
never acknowledged: everything from there on is cut, complete packs too, because a commit is
acknowledged only after all commits before it.

Each pack repeats the trailer of the pack before it, so leftover bytes of a tail that was cut cannot
continue a newer log.

Source: docs/store.md "Recovery".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from datalattice.errors import Corruption, StoreVersion
from datalattice.store.disk import DiskFile
from datalattice.store.files import StoreFolder
from datalattice.store.log.hashindex import LogPosition
from datalattice.store.log.logstate import Pack
from datalattice.store.log.packing import (
    FLAG_ROOT,
    FORMAT_VERSION,
    PACK_HEADER_BYTES,
    PACK_MAGIC,
    SEGMENT_HEADER_BYTES,
    PackHeader,
    body_is_whole,
    list_bytes,
    read_entries,
    read_pack_header,
    read_segment_header,
    seed_of,
    sizes_fit,
    trailer_of,
)
from datalattice.store.log.removed import NOTHING_REMOVED, RemovedRecord
from datalattice.store.log.segments import segment_numbers, segment_path
from datalattice.store.records import Damage

SEARCH_BYTES: Final = 1 << 20
"""Bytes of a damaged segment that are searched at a time for the next pack."""


def _read_pack(header: PackHeader, rest: bytes, trailer: int | None) -> Pack:
    hashes, locations, promoted, spans = read_entries(header, rest)
    end = LogPosition(header.sequence, header.segment, header.offset + header.length, trailer)
    root = header.root if header.flags & FLAG_ROOT else None
    length, flags, staged, time_ms = header.length, header.flags, header.staged, header.time_ms
    return Pack(end, length, flags, root, hashes, locations, staged, promoted, spans, time_ms)


class Gap(NamedTuple):
    """Bytes where the pack `sequence` should be but is not."""

    segment: int
    offset: int
    sequence: int
    reason: str
    span: tuple[int, int] = (0, 0)
    """Begin and end, as the upper bits of a location; set by `StorePartitionReader`.

    If no good pack follows, it ends with the segment; if segments are gone, it begins before them.
    """


class LogReader:
    """Reads the packs of a store from a position on, in the order of the log."""

    def __init__(
        self,
        folder: StoreFolder,
        store_id: bytes,
        start: LogPosition,
        removed: RemovedRecord = NOTHING_REMOVED,
        *,
        last_segment: int | None = None,
        acknowledged: int = 0,
        whole: bool = True,
    ) -> None:
        """Read from `start` on, up to the end of `last_segment` if given.

        acknowledged: the packs up to this number are known to have been durable.
        whole: False reads which cells a pack has, and not the cells, so nothing is compared with
               the checksum of the pack.
        """
        self._folder = folder
        self._store_id = store_id
        self._removed = removed
        self._last_segment = last_segment
        self._whole = whole
        self._seed = seed_of(store_id)
        self.proven = max(start.sequence, acknowledged)
        """Every pack up to this one is known to have been durable."""
        self.end = start
        """The end of the last good pack that was read."""
        self._gapped = False

    def read(self) -> Iterator[Pack | Gap]:
        """Yield the packs and the gaps between them in order; no gap at a clean end.

        Raises: StoreVersion: a newer version wrote a segment. Corruption: a segment of another
                store.
        """
        begin = self.end
        numbers = [
            number
            for number in segment_numbers(self._folder)
            if number >= begin.segment and not self._removed.dropped(number)
        ]
        if self._last_segment is not None:
            # Other processes read the later segments of a divided store.
            numbers = [number for number in numbers if number <= self._last_segment]
        for number in numbers:
            file = self._folder.disk.open(segment_path(self._folder, number))
            try:
                offset = begin.offset if number == begin.segment else 0
                for found in self._read_segment(file, number, offset, last=number == numbers[-1]):
                    self._gapped = isinstance(found, Gap)
                    yield found
            finally:
                file.close()

    def _read_segment(
        self, file: DiskFile, segment: int, offset: int, *, last: bool
    ) -> Iterator[Pack | Gap]:
        if offset == 0:
            gap = self._begin_segment(file, segment)
            if gap is not None:
                if not last:
                    self.proven = max(self.proven, gap.sequence)
                yield gap
            offset = SEGMENT_HEADER_BYTES
        size = file.size()
        while offset < size:
            head = file.read(offset, PACK_HEADER_BYTES)
            if not any(head):
                return  # zeros: preallocated space after the last pack
            header = read_pack_header(head, self._seed, segment, offset)
            reason = self._why_not(header, size)
            if header is not None and not reason:
                size_read = header.length - header.bytes if self._whole else list_bytes(header)
                rest = file.read(offset + header.bytes, size_read)
                if body_is_whole(header, rest) if self._whole else len(rest) == size_read:
                    pack = _read_pack(header, rest, trailer_of(rest) if self._whole else None)
                    # A header states up to which pack the log was synced when it was written.
                    self.proven = max(self.proven, header.durable)
                    self.end = pack.end
                    yield pack
                    offset += header.length
                    continue
                reason = f"pack {header.sequence} does not fit its checksum"
            gap = Gap(segment, offset, self.end.sequence + 1, reason)
            # A segment is synced before the next one begins: here its packs were durable.
            if not last:
                self.proven = max(self.proven, gap.sequence)
            yield gap
            offset = self._search(file, segment, offset + 1, size)

    def _begin_segment(self, file: DiskFile, segment: int) -> Gap | None:
        """Read the header of a segment; return a gap where it is damaged or packs are missing."""
        header = read_segment_header(file.read(0, SEGMENT_HEADER_BYTES))
        expected = self.end.sequence + 1
        if header is None:
            return Gap(segment, 0, expected, "the header of the segment is damaged")
        version, store_id, number, first = header
        path = segment_path(self._folder, segment)
        # "A newer version is refused with `StoreVersion`", never cut as damage.
        if version > FORMAT_VERSION:
            raise StoreVersion(
                f"{path}: format version {version}; this package reads up to {FORMAT_VERSION}"
            )
        if store_id != self._store_id or number != segment:
            raise Corruption(
                f"{path}: this is segment {number} of another store; "
                "put the right file back or take this one away"
            )
        # The header is durable before its first pack is written, and all earlier packs before it.
        self.proven = max(self.proven, first - 1)
        run = self._removed.run_before(segment)
        if run is not None and run.sequence <= expected < run.next_sequence:
            # The record of removed cells explains this gap in the numbers.
            expected = run.next_sequence
            self.end = self.end._replace(sequence=run.next_sequence - 1, trailer=None)
        end = self.end
        trailer = end.trailer if first == expected else None
        self.end = LogPosition(max(first - 1, end.sequence), segment, SEGMENT_HEADER_BYTES, trailer)
        if first <= expected or self._gapped:
            return None
        return Gap(segment, 0, expected, f"the packs {expected} to {first - 1} are missing")

    def _why_not(self, header: PackHeader | None, size: int) -> str:
        """Return why the bytes at this offset are not the next pack, "" when they may be."""
        expected = self.end.sequence + 1
        if header is None:
            return f"pack {expected} should begin here"
        if header.version > FORMAT_VERSION:
            raise StoreVersion(
                f"{self._folder}: a pack of format version {header.version}; "
                f"this package reads up to {FORMAT_VERSION}"
            )
        # A leftover of an earlier, cut tail: numbers only grow along a log.
        if header.sequence < expected:
            return f"pack {header.sequence} lies where pack {expected} should"
        if not sizes_fit(header) or header.offset + header.length > size:
            return f"pack {header.sequence} is cut short"
        if self._gapped:
            return ""  # after a gap any greater number and any trailer may follow
        if header.sequence > expected:
            return f"the packs {expected} to {header.sequence - 1} are missing"
        # Each pack repeats the trailer of its predecessor: a stale tail cannot continue a new log.
        if self.end.trailer is not None and header.before != self.end.trailer:
            return f"pack {header.sequence} continues another log"
        return ""

    def _search(self, file: DiskFile, segment: int, offset: int, size: int) -> int:
        """Return where the next pack of a damaged segment begins, `size` when there is none."""
        while offset < size:
            chunk = file.read(offset, SEARCH_BYTES + PACK_HEADER_BYTES)
            # A value may have the same four bytes: a pack also has a valid checksum for its offset.
            at = chunk.find(PACK_MAGIC)
            while at >= 0:
                head = chunk[at : at + PACK_HEADER_BYTES]
                if read_pack_header(head, self._seed, segment, offset + at) is not None:
                    return offset + at
                at = chunk.find(PACK_MAGIC, at + 1)
            # Chunks overlap by one header, so a header at their border is found too.
            offset += SEARCH_BYTES
        return size


class Recovery:
    """Decides which packs of a log to keep, which damage to report, and which tail to cut."""

    def __init__(self, log: LogReader, folder: StoreFolder) -> None:
        self._log = log
        self._folder = folder
        self.damage: list[Damage] = []
        self.cut: Gap | None = None
        """The torn tail: the bytes from here on were never acknowledged."""
        self.lost: Damage | None = None
        """Proven packs that are missing at the end of the log."""
        self.end = log.end
        """The end of the last pack that is kept."""
        self.unproven_from: LogPosition | None = None
        """Where unproven packs begin that are complete, and therefore kept."""

    def packs(self) -> Iterator[Pack]:
        """Yield the packs to keep, in order; the attributes are complete afterwards.

        Memory: the packs that are not proven yet, which are few.
        """
        undecided: deque[Pack | Gap] = deque()
        for found in self._log.read():
            undecided.append(found)
            yield from self._keep_proven(undecided)
        # The header of a last, empty segment proves the packs before it.
        yield from self._keep_proven(undecided)
        # The rest is unproven: kept up to the first gap, and cut from there on.
        for found in undecided:
            if isinstance(found, Gap):
                # "It was never acknowledged, so it is cut, with everything after it."
                self.cut = found
                return
            if self.unproven_from is None:
                self.unproven_from = self.end
            yield from self._keep(found)
        self.end = self._log.end

    def _keep_proven(self, undecided: deque[Pack | Gap]) -> Iterator[Pack]:
        while undecided and self._number(undecided[0]) <= self._log.proven:
            yield from self._keep(undecided.popleft())

    def _number(self, found: Pack | Gap) -> int:
        return found.sequence if isinstance(found, Gap) else found.end.sequence

    def _keep(self, found: Pack | Gap) -> Iterator[Pack]:
        if isinstance(found, Gap):
            path = segment_path(self._folder, found.segment)
            # "If a proven pack is not intact, it is damaged": reported, and never cut.
            damage = Damage(path, found.offset, found.reason)
            self.damage.append(damage)
            self.lost = damage
        else:
            self.lost = None
            self.end = found.end
            yield found
