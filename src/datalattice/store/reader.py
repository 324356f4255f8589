"""Reader: the part of a cell store that finds and reads cells, for readers and the writer.

Length: everything that reads one store, in one object.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from datalattice.cells import CellRange, CellRun, whole_cells
from datalattice.clock import Clock
from datalattice.crypto import sha3_256
from datalattice.errors import Corruption, StoreClosed
from datalattice.forking import freed_in_child, this_process
from datalattice.limits import HASH_BYTES
from datalattice.store.base import Store, children_first
from datalattice.store.checking import CheckReport, StoreChecker
from datalattice.store.disk import write_error
from datalattice.store.files import StoreFolder
from datalattice.store.kept.history import FolderHistory, Retention
from datalattice.store.kept.pins import FolderPins
from datalattice.store.log.folder import INDEX, LOCK_FILE
from datalattice.store.log.hashindex import NOWHERE, STAGED, LogPosition
from datalattice.store.log.locking import GenerationReader
from datalattice.store.log.logend import Loss, loss_of_reader, read_end
from datalattice.store.log.opening import OpenLog, open_reader, why_unreached
from datalattice.store.log.packing import SEGMENTS_MAX, locate
from datalattice.store.log.recovery import LogReader, Recovery
from datalattice.store.log.removed import (
    DAMAGED_RECORD,
    GARBAGE_FILE,
    CellSet,
    RemovedFilter,
    RemovedRecord,
    read_removed,
    read_swept_before,
)
from datalattice.store.log.segments import (
    HashedCells,
    SegmentReader,
    segment_numbers,
    segment_path,
    segment_size,
)
from datalattice.store.notes import FolderNotes, last_collection
from datalattice.store.records import CheckProgress, Damage, check_hash

REFRESH_TRIES: Final = 10
"""How often a refresh is repeated if a collection drops the segments that it reads."""

SIBLINGS_MIN: Final = 8
"""Fewer cells are looked up one by one."""

DIVIDED_MIN: Final = 32
"""Fewer siblings are not divided: where they lie in two places, each is looked up."""

SIBLINGS_MAX: Final = 1_024
"""More are divided wherever they lie: a cell is searched for among all that were read with it."""

CHECK_TRIES: Final = 10
"""The same for checks."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Figures of a store that need no reading of cells."""

    cells: int
    bytes: int
    """Length of all segments."""
    segments: int
    staged: int
    """Upper bound on the number of cells that no root ever reached."""
    roots: int
    """Former roots in the history, and the present one."""
    pins: int
    leases: int
    collected_ms: int | None
    """When the last collection ended; None: there was none."""
    dead_left: int
    """Unreached cells that it left because their segments were not worth dropping."""


class StoreReader(Store):
    """Cells by hash in a folder, for reading; `CellStore` adds writing."""

    def __init__(
        self,
        folder: StoreFolder,
        opened: OpenLog,
        *,
        read_only: bool,
        cache_bytes: int,
        clock: Clock,
        retention: Retention,
    ) -> None:
        super().__init__(cache_bytes, clock)
        self._folder = folder
        self._read_only = read_only
        self._opened = opened
        self._index = opened.index
        self._state = opened.state
        self._segments = SegmentReader(folder)
        self._closed = False
        self._pid = os.getpid()
        self._generation = GenerationReader(folder.disk, f"{folder}/{LOCK_FILE}")
        # Called when a retired store is garbage collected.
        self._held: list[Callable[[], None]] = []
        self._last_use: object | None = None
        # Whether a writer ever released its lock: until a refresh it may lack packs of other
        # writers.
        self._has_released = False
        self._damage = {(item.file, item.offset): item for item in opened.damage}
        # What the last `get_cells` read together with cells that are likely to be requested next.
        self._ahead: list[HashedCells] = []
        # By hash, the encoding of a cell, or the run that has it.
        self._pending: dict[bytes, bytes | CellRun] = {}  # staged, not written
        self._writing: dict[bytes, bytes | CellRun] = {}  # staged, written, not durable
        self._refresh_lock = freed_in_child(threading.Lock())
        self._removed_filter: RemovedFilter | None = None
        self._identity = folder.disk.engine_identity(f"{folder}/{INDEX}")
        self.notes = FolderNotes(folder, lambda: self._index)
        self.history = self._history = FolderHistory(
            folder, now_ms=self.clock.now_ms, writable=not read_only, retention=retention
        )
        self.pins = FolderPins(
            folder, now_ms=self.clock.now_ms, check_complete=self._check_complete
        )

    @property
    def path(self) -> str:
        """The store's folder."""
        return self._folder.path

    @property
    def read_only(self) -> bool:
        """Whether commits are refused."""
        return self._read_only

    @property
    def damage(self) -> tuple[Damage, ...]:
        return tuple(self._damage.values())

    @property
    def loss(self) -> Loss | None:
        """Acknowledged commits that are gone, until the loss is accepted; None: no loss.

        Raises: Corruption: a reader finds the record of the loss damaged.
        """
        # The writer found a loss when it opened the log; a reader has to compare.
        if not self._read_only:
            return self._opened.loss
        end = read_end(self._folder, self._opened.store_id)
        self.refresh()
        return loss_of_reader(self._folder, self._state.position, end)

    # --- reading ---

    def get_encoding(self, hash: bytes, *, verify: bool = True) -> bytes | None:
        location = self._find(hash)
        if location < 0:
            return self._find_pending(hash)
        return self._read(hash, location, verify=verify)

    def get_encodings(self, hashes: Iterable[bytes], *, verify: bool = True) -> list[bytes | None]:
        self._check_open()
        wanted = [check_hash(hash) for hash in hashes]
        if not verify or len(wanted) < SIBLINGS_MIN:
            return self._read_many(wanted, verify=verify)
        return [None if cell is None else cell.encoding() for cell in self._siblings(wanted, 0)]

    def get_cells(
        self, hashes: Sequence[bytes], *, verify: bool = True, below: int = 0
    ) -> list[CellRange | None]:
        self._check_open()
        wanted = [check_hash(hash) for hash in hashes]
        if not verify or len(wanted) < SIBLINGS_MIN:
            return whole_cells(self._read_many(wanted, verify=verify))
        return self._siblings(wanted, below)

    def _siblings(self, wanted: list[bytes], below: int) -> list[CellRange | None]:
        """Return cells that probably lie beside each other, compared with their hashes."""
        found: list[CellRange | None] = [None] * len(wanted)
        ahead, self._ahead = self._ahead, []
        for cells in ahead:
            for i, cell in enumerate(cells.find(wanted)):
                if cell is not None:
                    found[i] = cell
        left = [i for i, cell in enumerate(found) if cell is None]
        # Siblings are written together, so the bytes between two of them are probably the others.
        # To hash these bytes costs less than to look up each cell, and proves it.
        if len(left) >= SIBLINGS_MIN:
            siblings = [wanted[i] for i in left]
            first, last = self._index.find_many([siblings[0], siblings[-1]])
            between = self._read_between(siblings, first, last, below)
            for i, cell in zip(left, between, strict=True):
                found[i] = cell
            left = [i for i, cell in enumerate(found) if cell is None]
        if left:
            others = self._read_many([wanted[i] for i in left], verify=True)
            for i, cell in zip(left, whole_cells(others), strict=True):
                found[i] = cell
        return found

    def _read_between(
        self, wanted: list[bytes], first: int, last: int, below: int
    ) -> list[CellRange | None]:
        """Return siblings from the bytes between the first and the last; None for those elsewhere.

        first, last: where these two lie.
        """
        index = self._index
        # "Their bytes remain in segments that are kept" (`log.removed`): only the index says which
        # cells of a collected segment count.
        if min(first, last) >> 42 < index.swept_before:
            return [None] * len(wanted)
        # Siblings of two commits lie in two places; then the middle is not between the ends.
        if len(wanted) >= (2 if below else DIVIDED_MIN):
            stop = len(wanted) // 2
            before, after = index.find_many([wanted[stop - 1], wanted[stop]])
            is_apart = not (first <= before <= after <= last or first >= before >= after >= last)
            if is_apart or len(wanted) > SIBLINGS_MAX:
                # Usually a commit writes siblings from the last to the first, and the siblings of
                # the next commit lie behind all of these.
                if is_apart and first < last:
                    stop, before, after = self._first_behind(wanted, first, last)
                part = below * stop // len(wanted)
                return self._read_between(wanted[:stop], first, before, part) + (
                    self._read_between(wanted[stop:], after, last, below - part)
                )
        cells = self._segments.read_between(first, last, len(wanted), below)
        if cells is None:
            return [None] * len(wanted)
        # Cells are written beside those above them: what lies between siblings is below them.
        if below:
            self._ahead.append(cells)
        return cells.find(wanted)

    def _first_behind(self, wanted: list[bytes], first: int, last: int) -> tuple[int, int, int]:
        """Return the index of a sibling behind the first one whose predecessor is not behind it.

        first, last: where these two lie; the last lies behind the first.
        Returns: also where the predecessor and the sibling lie.
        """
        low, high = 0, len(wanted) - 1
        before, after = first, last
        while high - low > 1:
            middle = (low + high) // 2
            place = self._index.find_many([wanted[middle]])[0]
            if place > first:
                high, after = middle, place
            else:
                low, before = middle, place
        return high, before, after

    def _read_many(self, wanted: list[bytes], *, verify: bool) -> list[bytes | None]:
        """Look up and read each of several cells."""
        if self._pending or self._writing:
            waiting = [self._find_pending(hash) for hash in wanted]
            if None not in waiting:
                return waiting  # as after a large message, whose cells are merged next
        locations = self._index.find_many(wanted)
        found = self._segments.read_many(locations, wanted if verify else None)
        for i in range(len(wanted)):
            if found[i] is None:
                # Read alone: the cell has moved, is not in the log yet, is absent or damaged.
                location = locations[i]
                found[i] = (
                    self._read(wanted[i], location, verify=verify)
                    if location >= 0
                    else self.get_encoding(wanted[i], verify=verify)
                )
        return found

    def lengths(self, hashes: Iterable[bytes]) -> dict[bytes, int]:
        """Return the lengths of those of `hashes` that are here: one look-up for each."""
        self._check_open()
        wanted = list(hashes)
        found: dict[bytes, int] = {}
        may_wait = bool(self._pending or self._writing)
        for hash, location in zip(wanted, self._index.find_many(wanted), strict=True):
            waiting = self._find_pending(hash) if location < 0 and may_wait else None
            if location >= 0 or waiting is not None:
                found[hash] = locate(location)[2] if waiting is None else len(waiting)
        return found

    def _find(self, hash: bytes) -> int:
        if self._closed:
            self._check_open()
        if len(hash) != HASH_BYTES:
            check_hash(hash)
        location = self._index.find(hash)
        if location < 0 and self._follows():
            self.refresh()
            # Even if `refresh` found nothing new: another thread may have read the log meanwhile.
            location = self._index.find(hash)
        return location

    def _follows(self) -> bool:
        """Return whether the log may have packs that other processes wrote."""
        # A forked child reads what its parent wrote since, like a reader.
        if self._pid != this_process.id and not self._read_only:
            self._generation.forget()
            self._has_released = self._read_only = True
        return self._read_only or self._has_released

    def location_of(self, hash: bytes) -> int:
        """Return the location of a cell, negative where it is not stored or not yet durable."""
        return self._find(hash)

    def _find_pending(self, hash: bytes) -> bytes | None:
        if not self._pending and not self._writing:
            return None
        held = self._pending.get(hash) or self._writing.get(hash)
        return held.encoding(hash) if isinstance(held, CellRun) else held

    def _read(self, hash: bytes, location: int, *, verify: bool) -> bytes | None:
        """Return the bytes of a cell; None if a collection removed it meanwhile."""
        while True:
            try:
                data = self._segments.read(location)
                break
            except Corruption as error:
                # A collection may have dropped the segment since the look-up: look up again.
                if self._follows():
                    self._look()
                moved = self._index.find(hash)
                # The index still names this location: the bytes are damaged, not moved.
                if moved >> 1 == location >> 1:
                    self._quarantine(hash, location, str(error))
                    raise
                if moved < 0:
                    return self._find_pending(hash)
                location = moved
        # The checksums of packs are verified by `check`; a single cell is verified by its hash.
        if verify and sha3_256(data) != hash:
            raise Corruption(
                str(self._quarantine(hash, location, f"cell 0x{hash.hex()} does not fit its hash"))
            )
        return data

    def _quarantine(self, hash: bytes, location: int, reason: str) -> Damage:
        segment, offset, _ = locate(location)
        damage = Damage(segment_path(self._folder, segment), offset, reason, hash)
        self._damage[damage.file, damage.offset] = damage
        # "Cells of the damaged one count as missing, so a node fetches them again."
        self._index.forget(hash)
        # A decoded copy would hide the damage from healing.
        self._cache.forget(hash)
        if self.on_damage is not None:
            self.on_damage(damage)
        return damage

    def has(self, hash: bytes) -> bool:
        return self._find(hash) >= 0 or hash in self._pending or hash in self._writing

    def announced(self, hash: bytes) -> bool:
        location = self._find(hash)
        # Cells without a location are in memory, and those are staged too.
        return location >= 0 and not location & STAGED

    def root_hash(self) -> bytes | None:
        """Return the hash of the last root that is durable, None when none was ever committed.

        A reader reads the log's end first, so it sees every commit acknowledged before the call.
        """
        self._check_open()
        if self._read_only:
            self.refresh()
        return self._state.root

    def refresh(self) -> bool:
        """Read what the writer has written since; return whether there was anything.

        Readers do so by themselves when they need the root or lack a cell.
        """
        self._check_open()
        if not self._follows():
            return False
        # 72 bytes of the lock file instead of a look at the log: most refreshes end here.
        if self._read_only and self._generation.is_unchanged():
            return False
        return self._look()

    def _look(self) -> bool:
        """Read the log's end, as a reader; return whether there was anything new."""
        with self._refresh_lock:
            if not self._read_only:
                return False
            # Read before the log: if a commit comes in between, the generation differs at the next
            # refresh.
            found = self._generation.read()
            self._generation.forget()
            identity = self._folder.disk.engine_identity(f"{self._folder}/{INDEX}")
            # Another file of tables: made again by a writer, or the folder was replaced.
            if identity != self._identity:
                self._reopen(identity)
            before = self._state.position
            # Meanwhile each cell is looked up: the record is written before the index is swept.
            self._index.swept_before = SEGMENTS_MAX
            # A collection may drop segments while they are read; then the index has new locations.
            for _ in range(REFRESH_TRIES):
                damage = self._read_tail()
                if damage is not None:
                    break
            self._index.swept_before = read_swept_before(self._folder)
            self._damage.update({(item.file, item.offset): item for item in damage or ()})
            self._generation.remember(found)
            return self._state.position != before

    def _read_tail(self) -> list[Damage] | None:
        """Read the packs after the watermark; return the damage found.

        None: segments were dropped meanwhile, so they must be read again.
        """
        index, state = self._index, self._state
        before = state.position
        index.refresh()
        start = index.watermark()
        # The writer flushed the index, or cut its tail: begin again at the new watermark.
        if start != self._opened.start or self._is_taken_back(before):
            index.drop_recent()
            state.restart(start)
            self._opened.start = start
        log = LogReader(self._folder, self._opened.store_id, state.position)
        recovery = Recovery(log, self._folder)
        damage: list[Damage] | None = None
        try:
            for pack in recovery.packs():
                state.apply(pack)
            state.move_to(recovery.end)
            damage = recovery.damage + self._acknowledged_damage(recovery)
        except FileNotFoundError:
            damage = None
        # No damage: whatever the writer does meanwhile, what was read is right.
        if not damage and damage is not None:
            return damage
        index.refresh()
        # The index moved while the log was read: its segments may have been dropped.
        return None if index.watermark() != start else damage

    def _acknowledged_damage(self, recovery: Recovery) -> list[Damage]:
        """Return the damage of acknowledged packs; an unreadable later pack is being written."""
        cut = recovery.cut
        if cut is None:
            return []
        end = read_end(self._folder, self._opened.store_id)
        # Not acknowledged: the writer may be writing this pack at this moment.
        if end is None or end.position.sequence < cut.sequence:
            return []
        return [Damage(segment_path(self._folder, cut.segment), cut.offset, cut.reason)]

    def _is_taken_back(self, position: LogPosition) -> bool:
        """Return whether a writer whose sync failed has cut packs that were read up to here."""
        if why_unreached(self._folder, position):
            self._segments.forget()
            return True
        return False

    def _reopen(self, identity: str) -> None:
        """Follow a writer that made the index again, or another store in this folder."""
        before, self._opened = self._opened, open_reader(self._folder)
        self._opened.lock = before.lock
        old, self._index, self._state = self._index, self._opened.index, self._opened.state
        # Another store: cached cells, files and damage are of the old one.
        if self._opened.store_id != before.store_id:
            self._segments.forget()
            self._cache.clear()
            self._damage.clear()
        self._identity = identity
        # A retired store is closed by the last reference: that has to close the new index.
        if self._held:
            self._held[0] = self._index.close
        # The new index is in place: later reads use it.
        old.close()

    # --- the past ---

    def _check_complete(self, hash: bytes) -> None:
        if not self._read_only:
            self.sync()
        elif self._state.position.segment:
            # A reader may see what the writer wrote before it is durable.
            self._sync_segment(self._state.position.segment)
        # Always complete: a collection keeps the present root and the roots of the history.
        if hash == self.root_hash():
            return
        if any(entry.root_hash == hash for entry in self.history.entries()):
            return
        if hash in self._pinned():  # complete when it was pinned, and kept since
            return
        self._cache.clear()
        find = self._find
        if self._read_only:
            self._removed_filter = RemovedFilter(read_removed(self._folder, self._opened.store_id))
            find = self._find_kept
        seen = CellSet(find)
        for _ in children_first([hash], self.get_encodings, lambda one: not seen.add(one)):
            pass  # raises MissingData for the first cell that is not here

    def _find_kept(self, hash: bytes) -> int:
        """Find a cell, except one that a killed process had begun to remove."""
        location = self._find(hash)
        removed = self._removed_filter
        is_gone = location >= 0 and removed is not None and removed.is_removed(location)
        return NOWHERE if is_gone else location

    def _sync_segment(self, segment: int) -> None:
        try:
            file = self._folder.disk.open(segment_path(self._folder, segment))
        except FileNotFoundError:
            return  # dropped meanwhile; everything in it was durable
        try:
            # A reader pins a value durably, even if the writer has not synced it yet.
            file.sync()
        except OSError as error:
            raise write_error(error, self._folder) from error
        finally:
            file.close()

    def size_bytes(self) -> int:
        """Return the length of all segments. Cost: the length of each."""
        return sum([segment_size(self._folder, n) for n in segment_numbers(self._folder)])

    def stats(self) -> StoreStats:
        """Return what the store holds, and what keeps it. Cost: the length of each segment."""
        self._check_open()
        self.refresh()
        removed = self._removed()
        numbers = segment_numbers(self._folder)
        last = last_collection(self.notes)
        collected_ms = last["time_ms"]
        # Without the note, the record of removed cells has the time; it begins at 0 if empty.
        if not collected_ms and isinstance(removed, RemovedRecord) and removed.begin:
            collected_ms = removed.time_ms
        return StoreStats(
            cells=self._index.count(),
            bytes=self.size_bytes(),
            segments=len(numbers),
            staged=self._state.staged + len(self._pending),
            roots=len(self.history.entries()),
            pins=len(self.pins.all()),
            leases=len(self.pins.leases()),
            collected_ms=collected_ms,
            dead_left=last["dead_left"] or 0,
        )

    # --- checking ---

    def check(self, progress: CheckProgress | None = None) -> CheckReport:
        """Check every byte, every cell and every reference; return what is damaged or missing.

        Nothing is written. Others may read and write meanwhile. If the check finds nothing,
        `damage` is empty afterwards.
        Raises: Corruption: a segment belongs to another store. StoreVersion: of a newer version.
        Cost:   reads the whole store once, and what the root reaches again when something is wrong.
        """
        self._check_open()
        removed = self._removed()
        for attempt in range(CHECK_TRIES):
            report = self._check(removed, progress)
            before, removed = removed, self._removed()
            # A collection in between may have caused a finding, so the check is repeated.
            if report is not None and (removed == before or attempt == CHECK_TRIES - 1):
                break
            self.refresh()  # segments were dropped meanwhile
        if report is None:
            raise Corruption(f"{self._folder}: segments vanish while they are checked")
        # What was damaged before has been healed.
        if report.is_clean:
            self._damage.clear()
        return report

    def _removed(self) -> RemovedRecord | Damage:
        """Return the record of removed cells, or its damage."""
        try:
            return read_removed(self._folder, self._opened.store_id)
        except Corruption:
            return Damage(f"{self._folder}/{GARBAGE_FILE}", 0, DAMAGED_RECORD)

    def _check(
        self, removed: RemovedRecord | Damage, progress: CheckProgress | None
    ) -> CheckReport | None:
        end = read_end(self._folder, self._opened.store_id)
        acknowledged = 0 if end is None else end.position.sequence
        self.refresh()  # a reader now sees everything acknowledged that is still there
        try:
            return StoreChecker(
                self._folder, self._opened, acknowledged, progress, removed, self._pinned()
            ).run()
        except FileNotFoundError:
            return None

    def _pinned(self) -> list[bytes]:
        """Return the roots of pins and leases; none where those are damaged themselves."""
        try:
            return self.pins.roots()
        except Corruption:
            return []  # reading them raises elsewhere, and prevents collections

    def read_location(self, location: int) -> bytes:
        """Return the bytes at a location of a report; they are not verified.

        Raises: Corruption: there are none.
        """
        self._check_open()
        return self._segments.read(location)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(
                f"{self._folder}: the store is closed; values that were read from it load their "
                "cells through it, so use or commit them elsewhere before closing it"
            )
