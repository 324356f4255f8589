"""Collecting: give back the room of cells that nothing reaches, while commits go on.

What stays: everything that is reached from the present root, from pins, leases and remembered
roots, and from all that is younger than the *grace*: cells written in that time, and the root that
was the present one when it began. So a value that was the root within the grace stays, and so does
what a writer staged and has not committed yet.

    1  mark          follow all that stays; a bit for each 32 bytes of the store (`marking`)
    2  choose        the segments of which too little is alive; if there are none, that is all
    3  turn over     the log goes on in a new segment; only older ones are dropped
    4  copy          the live cells of those go into new packs, like any commit
    5  catch up      the lock is taken: what was committed, pinned, leased or put meanwhile is
                     marked, and copied, too; then every unmarked cell counts as gone, all at once
    6  record        which segments are dropped and which other cells are gone (`garbage`)
    7  sweep         the index forgets them, a batch at a time
    8  drop          the files are removed

Why nothing that is needed is lost. A store holds no cell without all cells below it: what the marks
reach is closed. Whatever is written meanwhile is marked through in step 1 or 5, and step 5 ends
under the lock, so no commit comes between its last look and the moment when unmarked cells are
gone. A later commit that leans on one of those finds it missing: it stores the cell again if it has
it, or fails with `MissingData` (`CellStore`); it cannot lean on it unnoticed. Pins and leases are
made under the lock that is held from step 5 to 7.

A process that ends before step 6 leaves a store in which everything is as it was, and some cells
are there twice. After step 6 the next opening does steps 7 and 8. Copies take room before any is
given back: where the disk has little, the segments with the least alive are dropped first, no more
than half of the free room has copies of, and then it begins again with the others.

Nothing is done to a store that
is damaged: behind a hole nobody can tell what is reached.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Final

from datalattice.store.files import StoreFolder
from datalattice.store.gc.marking import MarkRoots, PriorMark, Progress, StoreMarker, damaged
from datalattice.store.log.committer import CellBatch, Committer
from datalattice.store.log.hashindex import STAGED, HashIndex
from datalattice.store.log.logstate import LogState
from datalattice.store.log.removed import (
    OFFSET_BITS,
    SWEEP_ENTRIES,
    DroppedRun,
    RemovedRecord,
    delete_dropped,
    write_removed,
)
from datalattice.store.log.segments import first_pack, segment_numbers, segment_path, segment_size

GRACE_MS: Final = 60 * 60 * 1_000
"""What is younger than this stays, if nothing else is said."""

LIVE_SHARE: Final = 0.75
"""A segment is dropped when less than this part of it is alive."""

SMALL_PARTS: Final = 16
"""A segment whose live cells fill less than this part of a full one is small ..."""

SMALL_MAX: Final = 8
"""... and small ones are put together when there are more than these."""

COPY_BYTES: Final = 1 << 20
"""Cells are copied in packs of about this size, each under the lock."""

COPY_CELLS_MAX: Final = 256
"""Cells that are copied at a time where their lengths are not known: a pack has room for so many of
any length."""

ROOM_PARTS: Final = 2
"""Copies take one part in so many of the free room; what the index writes takes room, too."""

FREED_BYTES_MIN: Final = 4_096
"""Less is not worth the trouble."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection found and did."""

    cells_live: int = 0
    """Cells that stay."""
    cells_dead: int = 0
    """Cells that nothing reached."""
    cells_removed: int = 0
    """Of these, those that were removed: none where no segment was worth dropping."""
    bytes_live: int = 0
    """Bytes of the live cells in the segments that were looked at."""
    bytes_before: int = 0
    """Length of all segments when it began ..."""
    bytes_after: int = 0
    """... and when it was done."""
    segments: int = 0
    """Segments that were looked at."""
    dropped: int = 0
    """Segments that were dropped."""
    copied: int = 0
    """Live cells of dropped segments that were written again."""
    leases_ended: int = 0
    """Leases that were removed because their time was over."""
    seconds: float = 0.0
    is_dry: bool = False
    """Whether nothing was changed: `dropped` is what would be."""

    def followed_by(self, other: Collected) -> Collected:
        """Return this one and a later round of it as one."""
        return replace(
            other,
            cells_dead=max(self.cells_dead, self.cells_removed + other.cells_dead),
            cells_removed=self.cells_removed + other.cells_removed,
            bytes_before=self.bytes_before,
            segments=max(self.segments, other.segments),
            dropped=self.dropped + other.dropped,
            copied=self.copied + other.copied,
            seconds=self.seconds + other.seconds,
        )


@dataclass(slots=True)
class _Work:
    """Where a collection stands."""

    begin: int
    """The first segment that is not looked at."""
    sizes: dict[int, int] = field(default_factory=dict)
    dead: int = 0
    chosen: set[int] = field(default_factory=set)
    staged: dict[int, array[int]] = field(default_factory=dict)
    """Offsets of staged cells in the segments that are kept."""
    packed: dict[int, bytes] = field(default_factory=dict)
    """Marks of the segments that are kept, as the record has them, if nothing came since."""
    copied: int = 0
    bytes_live: int = 0


class CollectionRun:
    """One collection of one store; see the module."""

    def __init__(
        self,
        *,
        folder: StoreFolder,
        store_id: bytes,
        index: HashIndex,
        state: LogState,
        roots: MarkRoots,
        removed: RemovedRecord,
        segment_bytes: int,
        now_ms: int,
        progress: Progress | None = None,
        known: PriorMark | None = None,
    ) -> None:
        self._folder = folder
        self._store_id = store_id
        self._index = index
        self._state = state
        self.removed = removed
        """The record, the one before until the new one is written."""
        self.dropped: list[int] = []
        """Segments whose files were removed."""
        self.is_partial = False
        """Whether segments that are worth dropping were left because their copies need room."""
        self._room_bytes: Callable[[], int] | None = None
        self._is_recorded = False
        self._now_ms = now_ms
        self._segment_bytes = segment_bytes
        self._progress = progress
        self._marker = StoreMarker(
            folder=folder,
            store_id=store_id,
            index=index,
            state=state,
            roots=roots,
            removed=removed,
            progress=progress,
            known=known,
        )
        self._total = index.count()
        self._began_s = time.monotonic()
        numbers = self._numbers()
        self._work = _Work(numbers[-1] + 1 if numbers else 1)

    def look(self) -> Collected:
        """Find out what a collection would do, and change nothing.

        Raises: as `run`.
        """
        self._marker.mark()
        self._choose()
        self._count_dead()
        freed = sum(self._work.sizes[n] - self._marker.live.get(n, 0) for n in self._work.chosen)
        before = sum(self._work.sizes.values())
        return replace(self._report(before, before - freed), is_dry=True)

    def run(
        self,
        committer: Committer,
        *,
        frozen: Callable[[], AbstractContextManager[None]],
        write_pending: Callable[[], None],
        swept: Callable[[], None],
        room_bytes: Callable[[], int],
    ) -> Collected:
        """Collect.

        `room_bytes` returns how much is free on the disk; copies take half of it at most, or those
        of one segment. `frozen` keeps pins and leases from changing. Called under the lock:
        `write_pending`, which writes what is staged in memory, and `swept`, when unmarked cells
        are gone.
        Raises: StoreFailed: cells are damaged or missing, heal the store first; or the disk
                refuses. StoreFull: there is no room for the copies.
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
            work.begin, orphans = committer.turn_over()
        self._marker.follow(orphans)
        self._marker.catch_up()
        self._choose()
        if not work.chosen:  # what was dead is needed again
            self._count_dead()
            return self._report(before, before)
        for hashes in self._survey():
            with committer.lock:
                self._copy(committer, hashes)
        self._pack_marks()
        with frozen():
            self._marker.follow_tops()
            self._marker.catch_up()
            for hashes in self._late():
                with committer.lock:
                    self._copy(committer, hashes)
            with committer.lock:
                write_pending()
                self._finish_marks(committer)
                # Before the record: a failure may leave it on the disk, and nothing that is
                # committed from here on may lean on what it says is gone.
                self._index.hide_removed(self.is_removed)
                swept()
            self.sweep(committer)
        committer.trim()
        after = sum(self._file_sizes(self._numbers()).values())
        return replace(self._report(before, after), cells_live=self._index.count())

    def _count_dead(self) -> None:
        self._work.dead = max(0, self._index.count() - self._marker.cells)

    def is_removed(self, location: int) -> bool:
        """Return whether the cell at a place is gone."""
        return location >> 42 < self._work.begin and not self._marker.marks.has(location)

    def sweep(self, committer: Committer) -> None:
        """Record what is gone, take it out of the index, and remove the files of dropped segments.

        Raises: StoreFull, StoreFailed: it cannot be written. Then what is gone counts as gone all
                the same, and this has to be done again.
        """
        if not self._is_recorded:
            self._record()
        after = b""
        done = 0
        while batch := self._index.batch(after, SWEEP_ENTRIES):
            after = batch[-1][0]
            gone = [hash for hash, location in batch if self.is_removed(location)]
            if gone:
                with committer.lock:
                    self._index.sweep(gone, self.is_removed)
            done += len(batch)
            self._tell("sweep", done, max(done, self._total))
        with committer.lock:
            committer.check()
            self._index.flush(self._state.watermark())
            self._index.hide_removed(None)
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
        for number, size in work.sizes.items():
            live = self._marker.live.get(number, 0)
            if first_pack(self._folder, number) is None:
                continue  # its header is damaged: nobody can tell which packs would be missing
            if live < LIVE_SHARE * size:
                work.chosen.add(number)
            elif live * SMALL_PARTS < self._segment_bytes:
                small.append(number)
        if len(small) > SMALL_MAX:
            work.chosen.update(small)
        freed = sum(work.sizes[number] - self._marker.live.get(number, 0) for number in work.chosen)
        if freed < FREED_BYTES_MIN:
            work.chosen.clear()
        if self._room_bytes is not None:
            self._leave_what_has_no_room(self._room_bytes() // ROOM_PARTS)
        self._marker.watched = work.chosen
        work.bytes_live = sum(self._marker.live.values())

    def _leave_what_has_no_room(self, room_bytes: int) -> None:
        """Leave the chosen segments with the most alive for later, until the copies have room."""
        work, live = self._work, self._marker.live
        order = sorted(work.chosen, key=lambda n: (live.get(n, 0) / work.sizes[n], n))
        self.is_partial = False
        size = 0
        for index, number in enumerate(order):
            size += live.get(number, 0)
            if index and size > room_bytes:
                work.chosen.difference_update(order[index:])
                self.is_partial = True
                return

    def _survey(self) -> Iterator[list[bytes]]:
        """Go through the index: count dead cells, note staged ones, yield those to be copied."""
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
                if location & STAGED and segment not in work.chosen:
                    work.staged.setdefault(segment, array("I")).append(
                        (location >> 15) & OFFSET_BITS
                    )
                if not self._marker.marks.has(location):
                    work.dead += 1
                elif segment in work.chosen:
                    wanted.append(hash)
                    size += (location >> 1) & 0x3FFF
                    if size >= COPY_BYTES:
                        yield wanted
                        wanted, size = [], 0
            done += len(batch)
            self._tell("copy", done, max(done, self._total))
        if wanted:
            yield wanted

    def _copy(self, committer: Committer, hashes: list[bytes]) -> None:
        """Write cells of chosen segments again; the caller holds the lock."""
        committer.flush_durable()  # then the index has every location and every staged bit
        work = self._work
        cells: dict[bytes, bytes] = {}
        marks: list[bool] = []
        for hash, location in zip(hashes, self._index.find_many(hashes), strict=True):
            if location >= 0 and location >> 42 in work.chosen and hash not in cells:
                cells[hash] = self._marker.read(hash, location)
                marks.append(location & STAGED != 0)
        if not cells:
            return
        committer.write(
            CellBatch.chosen(cells, marks, False), CellBatch.chosen(cells, marks, True), [], None
        )
        committer.flush_durable()
        self._state.staged -= sum(marks)  # they were counted where they were before
        work.copied += len(cells)

    def _late(self) -> Iterator[list[bytes]]:
        """Yield the cells of chosen segments that were marked since those were chosen."""
        late, self._marker.late = self._marker.late, []
        for first in range(0, len(late), COPY_CELLS_MAX):
            yield late[first : first + COPY_CELLS_MAX]

    def _finish_marks(self, committer: Committer) -> None:
        """Mark and copy what is new since the last look; the caller holds the lock."""
        committer.flush_durable()
        self._marker.follow_tops()
        self._marker.follow_packs()
        for hashes in self._late():
            self._copy(committer, hashes)
        # The root once more: the pack that said so may go.
        nothing = CellBatch([], [])
        committer.write(nothing, nothing, [], committer.head)
        committer.flush_durable()

    # --- the record -----------------------------------------------------------------------------

    def _pack_marks(self) -> None:
        """Prepare the marks of the segments that are kept, for the record."""
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
        removed = RemovedRecord(
            work.begin, self.removed.with_dropped(runs), self._now_ms, dict(work.packed)
        )
        write_removed(self._folder, self._store_id, removed)
        self.removed = removed
        self._is_recorded = True

    def _run_of(self, number: int) -> DroppedRun:
        first = first_pack(self._folder, number)
        run = next((run for run in self.removed.runs if run.first == number + 1), None)
        if run is not None:
            behind: int | None = run.sequence
        else:
            behind = first_pack(self._folder, next(n for n in self._numbers() if n > number))
        if first is None or behind is None:
            raise damaged(f"{segment_path(self._folder, number)}: a damaged segment header")
        return DroppedRun(number, number, first, behind)

    # --- the report -----------------------------------------------------------------------------

    def _tell(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(what, done, total)

    def _report(self, before: int, after: int) -> Collected:
        work = self._work
        return Collected(
            cells_live=self._marker.cells,
            cells_dead=work.dead,
            cells_removed=work.dead if work.chosen else 0,
            bytes_live=work.bytes_live,
            bytes_before=before,
            bytes_after=after,
            segments=len(work.sizes),
            dropped=len(work.chosen),
            copied=work.copied,
            seconds=time.monotonic() - self._began_s,
        )
