"""Checking: every byte of a store against its checksums, every cell against its hash.

Theory of operation. The packs are read from the first to the last published one. Each must match
its checksum. Each cell that the index has there must be canonical and match its hash, and the cells
it refers to must be here. If the packs have every entry of the index, nothing is damaged, and
nothing can be missing below the root, because no cell lacks a cell below it. The check ends then;
it has taken constant memory.

Otherwise the remaining entries of the index are read too. Then all cells below the root are
followed, to distinguish lost cells from cells that are no longer needed. That takes a bit for each
32 bytes of the store.

Source: docs/store.md "Check".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Final

from datalattice.cells import KnownFacts, Value, branch_hashes, check_cell, decode, references
from datalattice.crypto import sha3_256
from datalattice.errors import BadFormat, Corruption, MissingData
from datalattice.limits import EMBEDDED_BYTES_MAX
from datalattice.store.base import announced_tops
from datalattice.store.files import StoreFolder
from datalattice.store.log.hashindex import BEGINNING, STAGED
from datalattice.store.log.logstate import Pack
from datalattice.store.log.opening import OpenLog
from datalattice.store.log.packing import locate
from datalattice.store.log.recovery import Gap, LogReader
from datalattice.store.log.removed import NOTHING_REMOVED, LocationSet, RemovedFilter, RemovedRecord
from datalattice.store.log.segments import (
    ROOM_BYTES,
    SegmentReader,
    segment_numbers,
    segment_path,
    segment_size,
)
from datalattice.store.records import CheckProgress, Damage

_PROGRESS_BYTES: Final = 1 << 20
"""Progress is reported after this many bytes."""

CHECKED_TOGETHER: Final = 256
"""Cells that are read and hashed together."""

UNINDEXED_MAX: Final = 100_000
"""Most cells remembered that are stored and not in the index."""


@dataclass(frozen=True, slots=True)
class MissingCell:
    """A cell that others refer to and that is not here.

    above: the hashes of the cells on the way from the root down to it. If the root does not reach
    it, the cell that refers to it.
    """

    hash: bytes
    above: tuple[bytes, ...]
    below_root: bool


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a check."""

    segments: int
    packs: int
    cells: int
    size_bytes: int
    damage: tuple[Damage, ...] = ()
    """Bytes that differ from those that were written, and that hold a needed cell."""
    scars: tuple[Damage, ...] = ()
    """Bytes that differ from those that were written, but hold no cell that is needed."""
    missing: tuple[MissingCell, ...] = ()
    endangered: tuple[tuple[bytes, int], ...] = ()
    """Intact cells, by hash and location, whose pack is damaged or that the index lacks."""
    unserved: tuple[bytes, ...] = ()
    """Cells that the root announces but that are still marked as staged."""
    useless: tuple[bytes, ...] = ()
    """Cells that the root does not reach, and that are damaged or lack a cell below them."""
    unsound: tuple[tuple[bytes, str], ...] = ()
    """Intact cells, by hash and reason, whose parts do not fit together."""

    @property
    def is_clean(self) -> bool:
        """Whether every cell, and everything that the root reaches, is intact and here."""
        return not (self.damage or self.missing or self.endangered or self.unserved)

    @property
    def wanted(self) -> tuple[bytes, ...]:
        """Hashes of the cells to fetch from another source, each once."""
        useless = set(self.useless)
        found = dict.fromkeys(one.hash for one in self.missing if one.below_root)
        found |= dict.fromkeys(one.hash for one in self.damage if one.hash is not None)
        return tuple(hash for hash in found if hash not in useless)


class StoreChecker:
    """One check of one store; see the module."""

    def __init__(
        self,
        folder: StoreFolder,
        log: OpenLog,
        acknowledged: int,
        progress: CheckProgress | None,
        removed: RemovedRecord | Damage,
        pinned: Sequence[bytes],
    ) -> None:
        self._folder = folder
        self._store_id = log.store_id
        self._index = log.index
        self._segments = SegmentReader(folder)
        self._state = log.state.watermark()
        self._acknowledged = acknowledged
        self._progress = progress
        # Without the record the store is still complete; removed cells then appear as scars.
        self._record_scar = removed if isinstance(removed, Damage) else None
        self._removed = removed if isinstance(removed, RemovedRecord) else NOTHING_REMOVED
        self._filter = RemovedFilter(self._removed)
        self._pinned = pinned
        self._packs = 0
        self._cells = 0
        self._done_bytes = 0
        self._total_bytes = 0
        self._reported_bytes = 0
        self._log_root: bytes | None = None
        self._gaps: list[tuple[Gap, int]] = []  # with the byte where the next good pack begins
        self._damaged: dict[bytes, Damage] = {}
        self._absent: dict[bytes, bytes] = {}  # hash -> a cell that refers to it
        self._unindexed: dict[bytes, int] = {}
        self._endangered: dict[bytes, int] = {}
        self._unserved: list[bytes] = []
        self._facts = KnownFacts(self._load)
        self._unsound: dict[bytes, str] = {}
        self._room_scars = [] if self._record_scar is None else [self._record_scar]
        self._lost_end: Damage | None = None

    def run(self) -> CheckReport:
        """Check everything.

        Raises: StoreVersion: a newer version wrote a part. Corruption: a segment of another store.
        """
        numbers = [
            number for number in segment_numbers(self._folder) if not self._removed.dropped(number)
        ]
        self._total_bytes = sum(segment_size(self._folder, number) for number in numbers)
        verified = self._check_packs()
        self._report_progress(self._total_bytes)
        self._cells = self._index.count()
        root = self._state.root
        suspect = self._gaps or self._absent or self._unindexed or self._lost_end
        has_lost_pins = min(self._index.find_many(list(self._pinned)), default=0) < 0
        # If every entry is in a good pack, nothing is missing below any root.
        if not suspect and not has_lost_pins and verified >= self._cells and self._log_root == root:
            scars = tuple(self._room_scars)
            return CheckReport(
                len(numbers),
                self._packs,
                self._cells,
                self._total_bytes,
                scars=scars,
                unsound=tuple(self._unsound.items()),
            )
        # Slow path: read what the packs did not account for, then follow the root.
        self._check_entries()
        reached, missing = self._walk(root)
        return self._report(len(numbers), reached, missing)

    # --- the packs ----------------------------------------------------------------------------

    def _check_packs(self) -> int:
        """Check the packs in order; return how many entries of the index they contain."""
        last = max(self._state.position.sequence, self._acknowledged)
        log = LogReader(self._folder, self._store_id, BEGINNING.position, self._removed)
        verified = 0
        gap: Gap | None = None
        behind = (0, 0)  # segment and byte after the last good pack
        for found in log.read():
            if isinstance(found, Gap):
                self._close_gap(gap, found.segment, found.offset)
                gap = found if found.sequence <= last else None
                if gap is None:
                    break
                continue
            # Packs after the last published one are being written, or were never acknowledged.
            if found.end.sequence > last:
                break
            begin = found.end.offset - found.length
            self._close_gap(gap, found.end.segment, begin)
            gap = None
            self._packs += 1
            if behind[0] != found.end.segment:
                self._check_room(*behind)
            behind = found.end.segment, found.end.offset
            verified += self._check_pack(found)
            self._advance(found.length)
            if found.end.sequence == last:
                break
        self._close_gap(gap, -1, 0)
        # If the index covers a gap at the end, its cells are checked one by one. Of packs that only
        # `end` knows, everything is lost.
        is_unknown = gap is None or last > self._state.position.sequence
        if log.end.sequence < last and is_unknown:
            path = segment_path(self._folder, behind[0])
            text = f"the acknowledged packs {log.end.sequence + 1} to {last} are missing"
            self._lost_end = Damage(path, behind[1], text)
        return verified

    def _check_room(self, segment: int, offset: int) -> None:
        """Check that nothing but zeros follows the last pack of a finished segment."""
        # Bytes after the last good pack may be a damaged pack, already reported as a gap.
        if any(gap.segment == segment and gap.offset >= offset for gap, _ in self._gaps):
            return
        if not segment:
            return
        path = segment_path(self._folder, segment)
        file = self._folder.disk.open(path)
        try:
            size = file.size()
            while offset < size:
                room = file.read(offset, ROOM_BYTES)
                if any(room):
                    at = offset + len(room) - len(room.lstrip(b"\0"))
                    self._room_scars.append(Damage(path, at, "zeros should be here"))
                    return
                self._advance(len(room))
                offset += len(room)
        finally:
            file.close()

    def _close_gap(self, gap: Gap | None, segment: int, offset: int) -> None:
        if gap is not None:
            self._gaps.append((gap, offset if segment == gap.segment else 1 << 62))

    def _advance(self, count: int) -> None:
        self._done_bytes += count
        if self._done_bytes - self._reported_bytes >= _PROGRESS_BYTES:
            self._report_progress(self._done_bytes)

    def _report_progress(self, done_bytes: int) -> None:
        self._reported_bytes = done_bytes
        if self._progress is not None:
            self._progress(done_bytes, max(done_bytes, self._total_bytes))

    def _check_pack(self, pack: Pack) -> int:
        if pack.root is not None:
            self._log_root = pack.root
        count = 0
        here: list[tuple[bytes, int]] = []
        for hash, location, known in zip(
            pack.hashes, pack.locations, self._index.find_many(pack.hashes), strict=True
        ):
            # Compared without the staged bit. Of a cell that is stored twice, the copy in the index
            # counts.
            if known >> 1 == location >> 1:
                count += 1
                if not self._is_gone(location):  # about to be swept
                    here.append((hash, location))
            elif known < 0 and len(self._unindexed) < UNINDEXED_MAX and not self._is_gone(location):
                self._unindexed[hash] = location
        for first in range(0, len(here), CHECKED_TOGETHER):
            self._check_cells(here[first : first + CHECKED_TOGETHER])
        return count

    def _is_gone(self, location: int) -> bool:
        """Return whether a collection has removed the cell at a location, or is about to."""
        return self._filter.is_removed(location) or self._index.is_removed(location)

    def _check_cells(self, cells: list[tuple[bytes, int]]) -> list[bool]:
        """Check cells, given as (hash, location); return of each whether it is intact."""
        found = self._segments.read_many(
            [location for _, location in cells], [hash for hash, _ in cells]
        )
        return [self._check_cell(*cell, data) for cell, data in zip(cells, found, strict=True)]

    def _check_cell(self, hash: bytes, location: int, data: bytes | None = None) -> bool:
        """Check one cell, and note the missing cells it refers to; return whether it is intact.

        data: its bytes, where they are known to have its hash.
        """
        reason = ""
        try:
            if data is None:
                data = self._segments.read(location)
                reason = "" if sha3_256(data) == hash else "the cell does not fit its hash"
            if not reason:
                decode(data)
        except Corruption as error:
            reason = str(error)
        except BadFormat as error:
            reason = f"not a canonical encoding: {error}"
        if reason or data is None:
            segment, offset, _ = locate(location)
            path = segment_path(self._folder, segment)
            self._damaged[hash] = Damage(path, offset, reason, hash)
            return False
        below = branch_hashes(data)
        short: set[bytes] = set()
        if below:
            for ref, known in zip(below, self._index.find_many(below), strict=True):
                if known < 0:
                    self._absent[ref] = hash
                elif locate(known)[2] <= EMBEDDED_BYTES_MAX:
                    short.add(ref)
        try:
            self._facts.add(hash, check_cell(data, self._facts, short))
        except BadFormat as error:
            self._unsound[hash] = str(error)
        except MissingData:
            return True  # reported as missing
        # Bounds the memory for facts about earlier cells.
        self._facts.trim()
        return True

    def load(self, hash: bytes) -> Value:
        """Return the value with this hash.

        Raises: MissingData: it is not here, or damaged.
        """
        encoding = self._load(hash)
        if encoding is None:
            raise MissingData([hash])
        return decode(encoding, self)

    def _load(self, hash: bytes) -> bytes | None:
        location = self._index.find(hash)
        try:
            return None if location < 0 else self._segments.read(location)
        except Corruption:
            return None  # `_check_cell` reports it

    # --- cells outside good packs -------------------------------------------------------

    def _check_entries(self) -> None:
        """Read every entry of the index, wherever it leads."""
        here = (one for one in self._index.entries() if not self._is_gone(one[1]))
        while cells := list(islice(here, CHECKED_TOGETHER)):
            for (hash, location), is_intact in zip(cells, self._check_cells(cells), strict=True):
                if is_intact and self._in_gap(location):
                    self._endangered[hash] = location

    def _in_gap(self, location: int) -> bool:
        segment, offset, _ = locate(location)
        if self._lost_end is not None:
            path = segment_path(self._folder, segment)
            if path == self._lost_end.file and offset >= self._lost_end.offset:
                return True
        return any(gap.segment == segment and gap.offset <= offset < end for gap, end in self._gaps)

    # --- the root -----------------------------------------------------------------------------

    def _walk(self, root: bytes | None) -> tuple[set[bytes], dict[bytes, MissingCell]]:
        """Follow the root and the pins down; return the damaged cells met, and the missing ones.

        Intact cells that the index lacks, or that are wrongly staged, are noted as endangered.
        """
        reached: set[bytes] = set()
        missing: dict[bytes, MissingCell] = {}
        seen = LocationSet()
        if root is not None:
            self._walk_from(root, seen, reached, missing, self._announced_by(root))
        for pinned in self._pinned:
            if pinned != root:
                self._walk_from(pinned, seen, reached, missing, set())
        return reached, missing

    def _announced_by(self, root: bytes) -> set[bytes]:
        """Return the cells that reach everything the root announces, if it is intact."""
        try:
            return set(announced_tops(self.load(root), self))
        except (MissingData, BadFormat):
            return set()  # the walk reports damaged and missing cells

    def _walk_from(
        self,
        root: bytes,
        seen: LocationSet,
        reached: set[bytes],
        missing: dict[bytes, MissingCell],
        announced: set[bytes],
    ) -> None:
        stack: list[_Step] = [(root, None, root in announced)]
        while stack:
            step = stack.pop()
            hash, _, is_served = step
            location = self._index.find(hash)
            if location < 0 and hash in self._unindexed:
                location = self._endangered[hash] = self._unindexed[hash]
                self._check_cell(hash, location)
            if hash in self._damaged:
                reached.add(hash)
                continue
            if location < 0:
                missing[hash] = MissingCell(hash, tuple(_above(step)), below_root=True)
                continue
            # Each cell once: what lies below was followed the first time.
            if not seen.add(location):
                continue
            # A cell that is marked as staged is not served to peers, although it is announced.
            if location & STAGED and is_served:
                self._unserved.append(hash)
            try:
                below = references(self._segments.read(location))
            except (Corruption, BadFormat) as error:  # damaged since it was checked
                segment, offset, _ = locate(location)
                path = segment_path(self._folder, segment)
                self._damaged[hash] = Damage(path, offset, str(error), hash)
                reached.add(hash)
                continue
            # The stack returns the last one first, so a cell is reached by an announced path before
            # a private one.
            further = [(ref, step, is_served or ref in announced) for ref in reversed(below)]
            stack.extend(sorted(further, key=itemgetter(2)))

    # --- the report ---------------------------------------------------------------------------

    def _report(
        self, segments: int, reached: set[bytes], missing: dict[bytes, MissingCell]
    ) -> CheckReport:
        # Damaged and not needed: healing drops the cell if no source has it.
        useless = [hash for hash in self._damaged if hash not in reached]
        for hash, parent in self._absent.items():
            if hash not in missing and hash not in self._damaged and hash not in self._endangered:
                missing[hash] = MissingCell(hash, (parent,), below_root=False)
                useless.append(parent)
        damage = list(self._damaged.values())
        scars = list(self._room_scars)
        held = self._held_by_gaps()
        for position, (gap, _) in enumerate(self._gaps):
            path = segment_path(self._folder, gap.segment)
            here = Damage(path, gap.offset, gap.reason)
            # A scar is "damaged bytes whose cells are stored elsewhere or needed no more"
            # (docs/store.md).
            (damage if position in held else scars).append(here)
        # The index knows a root whose pack is gone.
        if self._log_root != self._state.root:
            where = self._lost_end or (scars or damage or [Damage(self._folder.path, 0, "")])[-1]
            reason = "no intact pack sets the committed root"
            damage.append(Damage(where.file, where.offset, reason))
        elif self._lost_end is not None:
            damage.append(self._lost_end)
        return CheckReport(
            segments,
            self._packs,
            self._cells,
            self._total_bytes,
            tuple(damage),
            tuple(scars),
            tuple(missing.values()),
            tuple(self._endangered.items()),
            tuple(self._unserved),
            tuple(dict.fromkeys(useless)),
            tuple(self._unsound.items()),
        )

    def _held_by_gaps(self) -> set[int]:
        """Return the numbers of the gaps with cells that are still in the index."""
        found: set[int] = set()
        damaged = [(one.file, one.offset) for one in self._damaged.values()]
        whole = [locate(location)[:2] for location in self._endangered.values()]
        locations = damaged + [(segment_path(self._folder, s), offset) for s, offset in whole]
        for number, (gap, end) in enumerate(self._gaps):
            path = segment_path(self._folder, gap.segment)
            if any(path == file and gap.offset <= offset < end for file, offset in locations):
                found.add(number)
        return found


_Step = tuple[bytes, "_Step | None", bool]
"""A hash on the way down, the step before it, and whether it is announced."""


def _above(step: _Step) -> Iterator[bytes]:
    """Return the hashes that lead to a step, from the root down."""
    found: list[bytes] = []
    before = step[1]
    while before is not None:
        found.append(before[0])
        before = before[1]
    return reversed(found)
