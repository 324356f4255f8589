"""Collecting: give back the room of cells that nothing reaches, while commits go on.

What stays: everything that is reached from the present root, from pins, leases and remembered
roots, and from all that is younger than the *grace*: cells written in that time, and the root that
was the present one when it began. So a value that was the root within the grace stays, and so does
what a writer staged and has not committed yet.

    1  turn over     the log goes on in a new segment; the older ones are looked at
    2  mark          follow all that stays; a bit for each 32 bytes of the store
    3  choose        the segments of which too little is alive
    4  copy          the live cells of those go into new packs, like any commit
    5  catch up      the lock is taken: what was committed, pinned, leased or put meanwhile is
                     marked, and copied, too; then every unmarked cell counts as gone, all at once
    6  record        which segments are dropped and which other cells are gone (`garbage`)
    7  sweep         the index forgets them, a batch at a time
    8  drop          the files are removed

Why nothing that is needed is lost. A store holds no cell without all cells below it: what the marks
reach is closed. Whatever is written after step 1 is marked through in step 2 or 5, and step 5 ends
under the lock, so no commit comes between its last look and the moment when unmarked cells are
gone. A later commit that leans on one of those finds it missing: it stores the cell again if it has
it, or fails with `MissingData` (`CellStore`); it cannot lean on it unnoticed. Pins and leases are
made under the lock that is held from step 5 to 7.

A process that ends before step 6 leaves a store in which everything is as it was, and some cells
are there twice. After step 6 the next opening does steps 7 and 8. Nothing is done to a store that
is damaged: behind a hole nobody can tell what is reached.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Final

from datalattice.cells import branch_hashes
from datalattice.errors import Corruption, StoreFailed
from datalattice.store.committer import Cells, Committer
from datalattice.store.disk import Disk
from datalattice.store.garbage import (
    OFFSET_BITS,
    SWEEP_ENTRIES,
    Marks,
    Removed,
    Run,
    remove_dropped,
    write_removed,
)
from datalattice.store.hashindex import STAGED, HashIndex, Position
from datalattice.store.logstate import LogState
from datalattice.store.packing import SEGMENT_HEADER_BYTES, locate, read_segment_header
from datalattice.store.recovery import Gap, LogReader
from datalattice.store.segments import SegmentReader, segment_numbers, segment_path

GRACE_MS: Final = 60 * 60 * 1_000
"""What is younger than this stays, if nothing else is said."""

LIVE_SHARE: Final = 0.75
"""A segment is dropped when less than this part of it is alive."""

SMALL_PARTS: Final = 16
"""A segment whose live cells fill less than this part of a full one is small ..."""

SMALL_MAX: Final = 8
"""... and small ones are put together when there are more than these."""

MARK_CELLS: Final = 1_024
"""Cells that are followed in one step."""

COPY_BYTES: Final = 1 << 20
"""Cells are copied in packs of about this size, each under the lock."""

CELL_BYTES: Final = 34
"""What a pack has for a cell beside its encoding."""

FREED_BYTES_MIN: Final = 4_096
"""Less is not worth the trouble."""

CATCH_UP_PACKS: Final = 64
"""Packs that are left to be looked at under the lock; as long as there are more, others go on."""

CATCH_UP_ROUNDS: Final = 20
"""So often at most: a writer that is faster than the mark is then made to wait."""

MARK_RESIDENT_BYTES: Final = 32 * 1024 * 1024
MARK_RESIDENT_READS: Final = 256
"""As of checks: a mark reads all that is alive."""

Progress = Callable[[str, int, int], None]
"""Called with what is done, how much of it, and of how much: "mark", cells, cells here."""

_sha3: Final = hashlib.sha3_256


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection found and did."""

    cells_live: int = 0
    """Cells that stay."""
    cells_dead: int = 0
    """Cells that nothing reaches."""
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


@dataclass(slots=True)
class Roots:
    """What is followed. Functions, since they are asked again at the end."""

    tops: Callable[[], Iterable[bytes]]
    """Hashes of roots: pinned, leased, remembered, put a moment ago. One that is not here is
    passed over."""
    start: Position
    """All packs behind this are young."""
    root: bytes | None
    """The root there."""


@dataclass(slots=True)
class _Work:
    """Where a collection stands."""

    begin: int
    """The first segment that is not looked at."""
    seen: Position
    """Up to here young packs were followed."""
    marks: Marks = field(default_factory=Marks)
    live: dict[int, int] = field(default_factory=dict)
    """Bytes of the marked cells of each segment."""
    sizes: dict[int, int] = field(default_factory=dict)
    cells: int = 0
    dead: int = 0
    chosen: set[int] = field(default_factory=set)
    late: list[bytes] = field(default_factory=list)
    """Cells of chosen segments that were marked after those were chosen."""
    staged: dict[int, list[int]] = field(default_factory=dict)
    """Offsets of staged cells in the segments that are kept."""
    packed: dict[int, bytes] = field(default_factory=dict)
    """Marks of the segments that are kept, as the record has them, if nothing came since."""
    copied: int = 0


class Collector:
    """One collection of one store; see the module."""

    def __init__(
        self,
        *,
        disk: Disk,
        folder: str,
        store_id: bytes,
        index: HashIndex,
        state: LogState,
        roots: Roots,
        removed: Removed,
        segment_bytes: int,
        now_ms: int,
        progress: Progress | None = None,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._store_id = store_id
        self._index = index
        self._state = state
        self._roots = roots
        self.removed = removed
        """The record, the one before until the new one is written."""
        self.dropped: list[int] = []
        """Segments whose files were removed."""
        self._now_ms = now_ms
        self._segment_bytes = segment_bytes
        self._progress = progress
        self._segments = SegmentReader(
            disk,
            folder,
            resident_bytes=MARK_RESIDENT_BYTES,
            resident_reads=MARK_RESIDENT_READS,
        )
        self._total = index.count()
        self._began_s = time.monotonic()
        numbers = self._numbers()
        self._work = _Work(numbers[-1] + 1 if numbers else 1, roots.start)

    def look(self) -> Collected:
        """Find out what a collection would do, and change nothing.

        Raises: as `run`.
        """
        self._mark()
        self._choose()
        self._work.dead = max(0, self._index.count() - self._work.cells)
        freed = sum(self._work.sizes[n] - self._work.live.get(n, 0) for n in self._work.chosen)
        before = sum(self._work.sizes.values())
        return replace(self._report(before, before - freed), is_dry=True)

    def run(
        self,
        committer: Committer,
        *,
        frozen: Callable[[], AbstractContextManager[None]],
        write_pending: Callable[[], None],
        swept: Callable[[], None],
    ) -> Collected:
        """Collect.

        `frozen` keeps pins and leases from changing. Called under the lock: `write_pending`, which
        writes what is staged in memory, and `swept`, when unmarked cells are gone.
        Raises: StoreFailed: cells are damaged or missing, heal the store first; or the disk
                refuses. StoreFull: there is no room for the copies.
        """
        work = self._work
        before = sum(self._file_sizes(self._numbers()).values())
        self._mark()
        self._choose()
        if not work.chosen:
            return self._report(before, before)
        with committer.lock:
            write_pending()
            work.begin = committer.turn_over()
        self._catch_up()
        self._choose()
        for hashes in self._survey():
            with committer.lock:
                self._copy(committer, hashes)
        self._pack_marks()
        with frozen():
            self._follow(self._roots.tops())
            self._catch_up()
            with committer.lock:
                write_pending()
                self._finish_marks(committer)
                self._record()
                self._index.condemn(self.condemns)
                swept()
            self.sweep(committer)
        after = sum(self._file_sizes(self._numbers()).values())
        return replace(self._report(before, after), cells_live=self._index.count())

    def condemns(self, place: int) -> bool:
        """Return whether the cell at a place is gone."""
        return place >> 42 < self._work.begin and not self._work.marks.has(place)

    def sweep(self, committer: Committer) -> None:
        """Take what is gone out of the index, and remove the files of dropped segments.

        Raises: StoreFull, StoreFailed: it cannot be written. Then what is gone counts as gone all
                the same, and this has to be done again.
        """
        after = b""
        done = 0
        while batch := self._index.batch(after, SWEEP_ENTRIES):
            after = batch[-1][0]
            gone = [hash for hash, place in batch if self.condemns(place)]
            if gone:
                with committer.lock:
                    self._index.sweep(gone, self.condemns)
            done += len(batch)
            self._tell("sweep", done, max(done, self._total))
        with committer.lock:
            committer.check()
            self._index.flush(self._state.watermark())
            self._index.condemn(None)
        self.dropped = remove_dropped(self._disk, self._folder, self.removed)

    # --- marking --------------------------------------------------------------------------------

    def _mark(self) -> None:
        """Follow the roots, and what is young."""
        top = self._state.root
        self._follow([] if top is None else [top], must_be_here=True)
        self._follow([] if self._roots.root is None else [self._roots.root])
        self._follow(self._roots.tops())
        self._catch_up()
        self._tell("mark", self._work.cells, self._work.cells)

    def _catch_up(self) -> None:
        """Follow the packs that were published since the last look, until few are left."""
        for _ in range(CATCH_UP_ROUNDS):
            if self._follow_packs() <= CATCH_UP_PACKS:
                return

    def _follow_packs(self) -> int:
        """Follow the packs that were published since the last look; return how many."""
        work = self._work
        target = self._state.position.sequence
        if work.seen.sequence >= target:
            return 0
        log = LogReader(self._disk, self._folder, self._store_id, work.seen, self.removed)
        count = 0
        for found in log.read():
            number = found.sequence if isinstance(found, Gap) else found.end.sequence
            if number > target:
                break
            if isinstance(found, Gap):
                path = segment_path(self._folder, found.segment)
                raise _damaged(f"{path} at byte {found.offset}: {found.reason}")
            count += 1
            self._follow(found.hashes)
            if found.root is not None:
                self._follow([found.root])
            work.seen = found.end
            if number == target:
                break
        return count

    def _follow(self, hashes: Iterable[bytes], *, must_be_here: bool = False) -> None:
        """Mark the cells with these hashes, if they are here, and all below them."""
        tops = list(hashes)
        if must_be_here:
            stack = tops
        else:
            places = self._index.find_many(tops)
            stack = [hash for hash, place in zip(tops, places, strict=True) if place >= 0]
        told = self._work.cells
        while stack:
            batch = stack[-MARK_CELLS:]
            del stack[-MARK_CELLS:]
            batch.sort()  # neighbours in the index
            for hash, place in zip(batch, self._index.find_many(batch), strict=True):
                if place < 0:
                    raise _damaged(f"the cell 0x{hash.hex()}, which others refer to, is not here")
                if self._work.marks.add(place):
                    stack += self._look_below(hash, place)
            if self._work.cells - told >= MARK_CELLS:
                told = self._work.cells
                self._tell("mark", told, max(told, self._total))

    def _look_below(self, hash: bytes, place: int) -> list[bytes]:
        """Count a cell as live; return what it refers to."""
        work = self._work
        segment = place >> 42
        work.cells += 1
        work.live[segment] = work.live.get(segment, 0) + ((place >> 1) & 0x3FFF) + CELL_BYTES
        if segment in work.chosen:
            work.late.append(hash)
        work.packed.pop(segment, None)
        return branch_hashes(self._read(hash, place))

    def _read(self, hash: bytes, place: int) -> bytes:
        try:
            data = self._segments.read(place)
        except Corruption as error:
            raise _damaged(str(error)) from error
        if _sha3(data).digest() != hash:
            segment, offset, _ = locate(place)
            path = segment_path(self._folder, segment)
            raise _damaged(f"{path} at byte {offset}: cell 0x{hash.hex()} does not fit its hash")
        return data

    # --- copying --------------------------------------------------------------------------------

    def _numbers(self) -> list[int]:
        """Return the numbers of the segments that are not dropped."""
        numbers = segment_numbers(self._disk, self._folder)
        return [number for number in numbers if not self.removed.dropped(number)]

    def _file_sizes(self, numbers: list[int]) -> dict[int, int]:
        sizes = {}
        for number in numbers:
            file = self._disk.open(segment_path(self._folder, number))
            try:
                sizes[number] = file.size()
            finally:
                file.close()
        return sizes

    def _choose(self) -> None:
        """Choose the segments that are worth dropping."""
        work = self._work
        numbers = [number for number in self._numbers() if number < work.begin]
        work.sizes = self._file_sizes(numbers)
        work.chosen = set()
        small = []
        for number, size in work.sizes.items():
            live = work.live.get(number, 0)
            if self._first_pack(number) is None:
                continue  # its header is damaged: nobody can tell which packs would be missing
            if live < LIVE_SHARE * size:
                work.chosen.add(number)
            elif live * SMALL_PARTS < self._segment_bytes:
                small.append(number)
        if len(small) > SMALL_MAX:
            work.chosen.update(small)
        freed = sum(work.sizes[number] - work.live.get(number, 0) for number in work.chosen)
        if freed < FREED_BYTES_MIN:
            work.chosen.clear()

    def _first_pack(self, number: int) -> int | None:
        """Return the number of the first pack of a segment, as its header has it."""
        file = self._disk.open(segment_path(self._folder, number))
        try:
            header = read_segment_header(file.read(0, SEGMENT_HEADER_BYTES))
        finally:
            file.close()
        return None if header is None else header[3]

    def _survey(self) -> Iterator[list[bytes]]:
        """Go through the index: count dead cells, note staged ones, yield those to be copied."""
        work = self._work
        after = b""
        wanted: list[bytes] = []
        size = done = 0
        while batch := self._index.batch(after, SWEEP_ENTRIES):
            after = batch[-1][0]
            for hash, place in batch:
                segment = place >> 42
                if segment >= work.begin:
                    continue
                if not work.marks.has(place):
                    work.dead += 1
                elif segment in work.chosen:
                    wanted.append(hash)
                    size += (place >> 1) & 0x3FFF
                    if size >= COPY_BYTES:
                        yield wanted
                        wanted, size = [], 0
                elif place & STAGED:
                    work.staged.setdefault(segment, []).append((place >> 15) & OFFSET_BITS)
            done += len(batch)
            self._tell("copy", done, max(done, self._total))
        if wanted:
            yield wanted

    def _copy(self, committer: Committer, hashes: list[bytes]) -> None:
        """Write cells of chosen segments again; the caller holds the lock."""
        committer.settle()  # the index is up to date: what is staged, and where everything is
        work = self._work
        cells: dict[bytes, bytes] = {}
        marks: list[bool] = []
        for hash, place in zip(hashes, self._index.find_many(hashes), strict=True):
            if place >= 0 and place >> 42 in work.chosen and hash not in cells:
                cells[hash] = self._read(hash, place)
                marks.append(place & STAGED != 0)
        if not cells:
            return
        committer.write(
            Cells.chosen(cells, marks, False), Cells.chosen(cells, marks, True), [], None
        )
        committer.settle()
        self._state.staged -= sum(marks)  # they were counted where they were before
        work.copied += len(cells)

    def _finish_marks(self, committer: Committer) -> None:
        """Mark and copy what is new since the last look; the caller holds the lock."""
        committer.settle()
        self._follow(self._roots.tops())
        self._follow_packs()
        late, self._work.late = self._work.late, []
        self._copy(committer, late)
        # The root once more: the pack that said so may go.
        nothing = Cells([], [])
        committer.write(nothing, nothing, [], committer.head)
        committer.settle()

    # --- the record -----------------------------------------------------------------------------

    def _pack_marks(self) -> None:
        """Prepare the marks of the segments that are kept, for the record."""
        work = self._work
        for number in work.sizes:
            if number not in work.chosen and number not in work.packed:
                work.packed[number] = work.marks.pack(number, work.staged.get(number, ()))

    def _record(self) -> None:
        """Write the record; the caller holds the lock."""
        self._pack_marks()
        work = self._work
        runs = [self._run_of(number) for number in sorted(work.chosen)]
        removed = Removed(
            work.begin, self.removed.with_dropped(runs), self._now_ms, dict(work.packed)
        )
        write_removed(self._disk, self._folder, self._store_id, removed)
        self.removed = removed

    def _run_of(self, number: int) -> Run:
        first = self._first_pack(number)
        run = next((run for run in self.removed.runs if run.first == number + 1), None)
        if run is not None:
            behind: int | None = run.sequence
        else:
            behind = self._first_pack(next(n for n in self._numbers() if n > number))
        if first is None or behind is None:
            raise _damaged(f"{segment_path(self._folder, number)}: a damaged segment header")
        return Run(number, number, first, behind)

    # --- the report -----------------------------------------------------------------------------

    def _tell(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(what, done, total)

    def _report(self, before: int, after: int) -> Collected:
        work = self._work
        return Collected(
            cells_live=work.cells,
            cells_dead=work.dead,
            bytes_live=sum(work.live.values()),
            bytes_before=before,
            bytes_after=after,
            segments=len(work.sizes),
            dropped=len(work.chosen),
            copied=work.copied,
            seconds=time.monotonic() - self._began_s,
        )


def _damaged(what: str) -> StoreFailed:
    return StoreFailed(
        f"{what}; nothing was collected: behind a hole nobody can tell what is needed, "
        "so heal the store first"
    )
