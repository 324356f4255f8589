"""Collection: free the space of cells that nothing reaches, while commits continue.

A cell stays if it can be reached from the present root, from a pin, a lease or a former root in the
history, or from anything younger than the *grace*: the cells written in that time, and the root at
its beginning. So a value that was the root within the grace stays, and so do cells that a writer
has staged and not yet committed.

    1  mark          follow everything that stays; a bit for each 32 bytes of the store (`marking`)
    2  choose        the segments with too few live bytes; if there are none, the collection ends
    3  new segment   the log continues in a new segment; only older ones are dropped
    4  copy          the live cells of the chosen segments go into new packs, like any commit
    5  catch up      under the lock: what was committed, pinned, leased or put meanwhile is marked
                     and copied too; then every unmarked cell counts as removed, all at once
    6  record        which segments are dropped and which other cells are removed (`log.removed`)
    7  sweep         the index forgets them, a batch at a time
    8  delete        the files of dropped segments

Why no needed cell is lost. A store holds no cell without all cells below it, so the set of marked
cells is closed. Everything written meanwhile is marked in step 1 or 5. Step 5 ends under the lock,
so no commit comes between its last look and the removal. A later commit that refers to a removed
cell finds it missing: it stores the cell again if it has it, or raises `MissingData` (`CellStore`).
Pins and leases are taken under the lock that is held from step 5 to 7.

If the process ends before step 6, the store has all its cells, some of them twice. If it ends
later, the next opening does steps 7 and 8.

Copies take space before any space is freed. On a nearly full disk the segments with the fewest live
bytes come first, as many as their copies fit into half of the free space; further rounds follow.

A damaged store is not collected: what a damaged or missing cell refers to is unknown.

Source: docs/store.md "Garbage"; docs/design/garbage.md.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Final

from datalattice.store.files import StoreFolder
from datalattice.store.gc.marking import (
    CELL_BYTES,
    MarkRoots,
    PriorMark,
    StoreMarker,
    damage_error,
)
from datalattice.store.log.committer import NO_CELLS, CellBatch, Committer
from datalattice.store.log.hashindex import STAGED
from datalattice.store.log.opening import OpenLog
from datalattice.store.log.packing import (
    PACK_HEADER_BYTES,
    PACK_TRAILER_BYTES,
    SEGMENT_HEADER_BYTES,
)
from datalattice.store.log.removed import (
    OFFSET_MASK,
    SWEEP_ENTRIES,
    DroppedRun,
    RemovedRecord,
    delete_dropped,
    sweep_index,
    write_removed,
)
from datalattice.store.log.segments import first_pack, segment_numbers, segment_path, segment_size
from datalattice.store.records import Collected, CollectProgress

LIVE_SHARE: Final = 0.75
"""A segment is dropped when less than this part of it is alive."""

SMALL_PARTS: Final = 16
"""A segment is small if its live cells fill less than one part in this many of a full one ..."""

SMALL_MAX: Final = 8
"""... and small segments are merged when there are more than this."""

COPY_BYTES: Final = 1 << 20
"""Cells are copied in packs of about this size, each under the lock."""

COPY_CELLS_MAX: Final = 256
"""Cells copied at a time when their lengths are not known: this many of any length fit into a
pack."""

ROOM_PARTS: Final = 2
"""Copies take at most one part in this many of the free space: writing the index takes space
too."""

FREED_BYTES_MIN: Final = 4_096
"""A collection that would free less changes nothing."""


@dataclass(slots=True)
class _Work:
    """The state of a collection."""

    begin: int
    """The first segment that is not inspected."""
    sizes: dict[int, int] = field(default_factory=dict)
    dead: int = 0
    bytes_dead: int = 0
    chosen: set[int] = field(default_factory=set)
    staged: dict[int, array[int]] = field(default_factory=dict)
    """Offsets of staged cells in kept segments."""
    packed: dict[int, bytes] = field(default_factory=dict)
    """Marks of kept segments as the record has them, unless something was marked since."""
    copied: int = 0
    bytes_live: int = 0


class CollectionRun:
    """One collection of one store; see the module."""

    def __init__(
        self,
        *,
        folder: StoreFolder,
        log: OpenLog,
        roots: MarkRoots,
        removed: RemovedRecord,
        segment_bytes: int,
        now_ms: int,
        progress: CollectProgress | None = None,
        prior: PriorMark | None = None,
    ) -> None:
        self._folder = folder
        self._store_id = log.store_id
        self._index = index = log.index
        self._state = log.state
        self.removed = removed
        """The record; the previous one until the new one is written."""
        self.dropped: list[int] = []
        """Segments whose files were deleted."""
        self.is_partial = False
        """Whether segments worth dropping wait for a later round, since the disk was too full."""
        self._room_bytes: Callable[[], int] | None = None
        self._is_recorded = False
        self._now_ms = now_ms
        self._segment_bytes = segment_bytes
        self._on_progress = progress
        self._marker = StoreMarker(folder, log, roots, removed, progress, prior)
        self._total = index.count()
        self._began_s = time.monotonic()
        numbers = self._numbers()
        self._work = _Work(numbers[-1] + 1 if numbers else 1)

    def dry_run(self) -> Collected:
        """Return the figures of a collection, and change nothing.

        Raises: as `run`.
        """
        self._marker.mark()
        self._choose()
        self._count_dead()
        before = sum(self._work.sizes.values())
        return replace(self._report(before, before - self._freed_bytes()), is_dry=True)

    def _freed_bytes(self) -> int:
        """Return how many bytes shorter a collection makes the segment files."""
        work, live = self._work, self._marker.live
        # "Where no segment is worth dropping, nothing is removed" (docs/store.md "Garbage").
        if not work.chosen:
            return 0
        copies = sum(live.get(number, 0) for number in work.chosen)
        # Copies come in packs of COPY_BYTES. One more pack repeats the root, in a new segment.
        packs = -(-copies // COPY_BYTES) + 1
        copies += SEGMENT_HEADER_BYTES + packs * (PACK_HEADER_BYTES + PACK_TRAILER_BYTES)
        freed = sum(work.sizes[number] for number in work.chosen) - copies
        last = self._state.position
        if last.segment in work.sizes and last.segment not in work.chosen:
            freed += work.sizes[last.segment] - last.offset  # its preallocated space is cut
        return freed

    def run(
        self,
        committer: Committer,
        *,
        locked: Callable[[], AbstractContextManager[None]],
        write_pending: Callable[[], None],
        swept: Callable[[], None],
        room_bytes: Callable[[], int],
    ) -> Collected:
        """Collect.

        locked:        prevents changes of pins and leases.
        write_pending: writes the cells that are staged in memory; called under the lock.
        swept:         called under the lock, when unmarked cells count as removed.
        room_bytes:    returns the free bytes of the disk. Copies take half of them at most, or the
                       copies of one segment.
        Raises: StoreFailed: cells are damaged or missing, heal the store first; or the disk
                refuses. StoreFull: there is no space for the copies.
        """
        work = self._work
        self._room_bytes = room_bytes
        before = sum(self._file_sizes(self._numbers()).values())
        self._marker.mark()
        self._choose()
        if not work.chosen:
            self._count_dead()
            return self._report(before, before)
        with committer.lock:
            write_pending()
            # Step 3: packs from here on go to segments that this collection does not touch.
            work.begin, orphans = committer.turn_over()
        # Cells of failed commits enter the index only now: they count as young.
        self._marker.follow(orphans)
        self._marker.catch_up()
        self._choose()
        if not work.chosen:  # dead cells were committed again meanwhile
            self._count_dead()
            return self._report(before, sum(self._file_sizes(self._numbers()).values()))
        # Step 4. The lock is taken for each megabyte, so commits wait a moment at most.
        for hashes in self._survey():
            with committer.lock:
                self._copy(committer, hashes)
        self._pack_marks()
        with locked():
            self._marker.follow_tops()
            self._marker.catch_up()
            for hashes in self._late():
                with committer.lock:
                    self._copy(committer, hashes)
            with committer.lock:
                write_pending()
                # Step 5: under the lock no commit comes between this and the removal.
                self._finish_marks(committer)
                # Before the record is written: even if that write fails, the record may be on the
                # disk, and no later commit may refer to a cell that it calls removed.
                self._index.swept_before = work.begin
                self._index.hide_removed(self.is_removed)
                swept()
            # Steps 6 to 8. Pins and leases stay locked: one taken now could keep a removed cell.
            self.sweep(committer)
        committer.trim()
        after = sum(self._file_sizes(self._numbers()).values())
        return replace(self._report(before, after), cells_live=self._index.count())

    def _count_dead(self) -> None:
        work, marks = self._work, self._marker.marks
        work.dead = work.bytes_dead = 0
        for _, location in self._index.entries():
            if location >> 42 < work.begin and not marks.has(location):
                work.dead += 1
                work.bytes_dead += ((location >> 1) & 0x3FFF) + CELL_BYTES

    def is_removed(self, location: int) -> bool:
        """Return whether the cell at a location counts as removed."""
        # Later segments hold only copies and cells written meanwhile, and all of those are marked.
        return location >> 42 < self._work.begin and not self._marker.marks.has(location)

    def sweep(self, committer: Committer) -> None:
        """Record the removed cells, remove their entries, delete the files of dropped segments.

        Raises: StoreFull, StoreFailed: it cannot be written. Removed cells still count as removed
                then, and this has to be called again.
        """
        if not self._is_recorded:
            self._record()
        done = 0

        def on_batch(count: int) -> None:
            nonlocal done
            done += count
            self._report_progress("sweep", done, max(done, self._total))

        sweep_index(self._index, self.is_removed, committer.lock, on_batch)
        with committer.lock:
            committer.check()
            self._index.forget_spans(self.removed.dropped)
            self._index.flush(self._state.watermark())
            self._index.hide_removed(None)
        # Last: as long as one of these files exists, an opening repeats the steps before.
        self.dropped = delete_dropped(self._folder, self.removed)

    # --- copying --------------------------------------------------------------------------------

    def _numbers(self) -> list[int]:
        """Return the numbers of the segments that are not dropped."""
        numbers = segment_numbers(self._folder)
        return [number for number in numbers if not self.removed.dropped(number)]

    def _file_sizes(self, numbers: list[int]) -> dict[int, int]:
        return {number: segment_size(self._folder, number) for number in numbers}

    def _choose(self) -> None:
        """Choose the segments that are worth dropping."""
        work = self._work
        numbers = [number for number in self._numbers() if number < work.begin]
        work.sizes = self._file_sizes(numbers)
        work.chosen = set()
        small = []
        # Preallocated space after the last pack is not garbage, since the next commits fill it.
        last = self._state.position
        used = work.sizes | ({last.segment: last.offset} if last.segment in work.sizes else {})
        for number, size in used.items():
            live = self._marker.live.get(number, 0)
            if first_pack(self._folder, number) is None:
                continue  # the header is damaged, so nothing says which packs would be missing
            # "A segment of which less than three quarters is live is dropped" (docs/store.md
            # "Garbage"): at 75 %, three bytes are written to free one.
            if live < LIVE_SHARE * size:
                work.chosen.add(number)
            elif live * SMALL_PARTS < self._segment_bytes:
                small.append(number)
        # Many nearly empty segments cost a file and a header each.
        if len(small) > SMALL_MAX:
            work.chosen.update(small)
        freed = sum(used[number] - self._marker.live.get(number, 0) for number in work.chosen)
        # A collection writes packs and a record too: for less it would cost more than it frees.
        if freed < FREED_BYTES_MIN:
            work.chosen.clear()
        if self._room_bytes is not None:
            self._leave_what_has_no_room(self._room_bytes() // ROOM_PARTS)
        self._marker.watched = work.chosen
        work.bytes_live = sum(self._marker.live.values())

    def _leave_what_has_no_room(self, room_bytes: int) -> None:
        """Leave segments with the most live bytes for a later round, until the copies fit."""
        work, live = self._work, self._marker.live
        # The segments with the smallest live share free the most for their copies.
        order = sorted(work.chosen, key=lambda n: (live.get(n, 0) / work.sizes[n], n))
        self.is_partial = False
        size = 0
        for index, number in enumerate(order):
            size += live.get(number, 0)
            # "Or the copies of one segment": without it a nearly full disk could never be
            # collected.
            if index and size > room_bytes:
                work.chosen.difference_update(order[index:])
                self.is_partial = True
                return

    def _survey(self) -> Iterator[list[bytes]]:
        """Scan the index: count dead cells, note staged ones, yield those to be copied."""
        work = self._work
        after = b""
        wanted: list[bytes] = []
        size = done = 0
        while batch := self._index.batch(after, SWEEP_ENTRIES):
            after = batch[-1][0]
            for hash, location in batch:
                segment = location >> 42
                if segment >= work.begin:
                    continue
                # The record keeps the staged bit of cells whose packs stay.
                if location & STAGED and segment not in work.chosen:
                    work.staged.setdefault(segment, array("I")).append(
                        (location >> 15) & OFFSET_MASK
                    )
                if not self._marker.marks.has(location):
                    work.dead += 1
                    work.bytes_dead += ((location >> 1) & 0x3FFF) + CELL_BYTES
                elif segment in work.chosen:
                    wanted.append(hash)
                    size += (location >> 1) & 0x3FFF
                    if size >= COPY_BYTES:
                        yield wanted
                        wanted, size = [], 0
            done += len(batch)
            self._report_progress("copy", done, max(done, self._total))
        if wanted:
            yield wanted

    def _copy(self, committer: Committer, hashes: list[bytes]) -> None:
        """Write cells of chosen segments again; the caller holds the lock."""
        committer.flush_durable()  # then the index has every location and every staged bit
        work = self._work
        chosen = {
            hash: location
            for hash, location in zip(hashes, self._index.find_many(hashes), strict=True)
            if location >= 0 and location >> 42 in work.chosen
        }
        encodings = self._marker.read_many(list(chosen), list(chosen.values()))
        cells = dict(zip(chosen, encodings, strict=True))
        marks = [location & STAGED != 0 for location in chosen.values()]
        if not cells:
            return
        committer.write(
            CellBatch.chosen(cells, marks, False), CellBatch.chosen(cells, marks, True), [], None
        )
        committer.flush_durable()
        self._state.staged -= sum(marks)  # `flush_durable` counted the copies a second time
        work.copied += len(cells)

    def _late(self) -> Iterator[list[bytes]]:
        """Yield cells of chosen segments that were marked after these were chosen."""
        late, self._marker.late = self._marker.late, []
        for first in range(0, len(late), COPY_CELLS_MAX):
            yield late[first : first + COPY_CELLS_MAX]

    def _finish_marks(self, committer: Committer) -> None:
        """Mark and copy the cells written since `catch_up`; the caller holds the lock."""
        committer.flush_durable()
        self._marker.follow_tops()
        self._marker.follow_packs()
        for hashes in self._late():
            self._copy(committer, hashes)
        # The pack that committed the root may be in a dropped segment, so another pack repeats it.
        committer.write(NO_CELLS, NO_CELLS, [], committer.head)
        committer.flush_durable()

    # --- the record -----------------------------------------------------------------------------

    def _pack_marks(self) -> None:
        """Prepare the marks of kept segments for the record."""
        work = self._work
        changed, self._marker.changed = self._marker.changed, set()
        for number in work.sizes:
            if number not in work.chosen and (number in changed or number not in work.packed):
                work.packed[number] = self._marker.marks.pack(number, work.staged.get(number, ()))

    def _record(self) -> None:
        """Write the record."""
        self._pack_marks()
        work = self._work
        runs = [self._run_of(number) for number in sorted(work.chosen)]
        # New runs are merged with those of earlier collections.
        removed = RemovedRecord(
            work.begin, self.removed.with_dropped(runs), self._now_ms, dict(work.packed)
        )
        # Step 6, durable: from here on the next opening finishes what this process does not.
        write_removed(self._folder, self._store_id, removed)
        self.removed = removed
        self._is_recorded = True

    def _run_of(self, number: int) -> DroppedRun:
        first = first_pack(self._folder, number)
        # If the next segment was dropped earlier, only the record knows its first pack.
        run = next((run for run in self.removed.runs if run.first == number + 1), None)
        if run is not None:
            behind: int | None = run.sequence
        else:
            behind = first_pack(self._folder, next(n for n in self._numbers() if n > number))
        if first is None or behind is None:
            raise damage_error(f"{segment_path(self._folder, number)}: a damaged segment header")
        return DroppedRun(number, number, first, behind)

    # --- the report -----------------------------------------------------------------------------

    def _report_progress(self, step: str, done: int, total: int) -> None:
        if self._on_progress is not None:
            self._on_progress(step, done, total)

    def _report(self, before: int, after: int) -> Collected:
        work = self._work
        return Collected(
            cells_live=self._marker.cells,
            cells_dead=work.dead,
            cells_removed=work.dead if work.chosen else 0,
            bytes_live=work.bytes_live,
            bytes_dead=work.bytes_dead,
            bytes_before=before,
            bytes_after=after,
            segments=len(work.sizes),
            dropped=len(work.chosen),
            copied=work.copied,
            seconds=time.monotonic() - self._began_s,
        )
