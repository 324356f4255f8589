"""Mark a store that is too large for one process, and write the list of cells that may go.

    report = gc(spark, "data/store", "data/sweep.list")      # then: lattice disk sweep

The driver marks the upper cells of the trees and stops when many cells wait. The store is divided
into parts, each with some consecutive segments. A *lead* is the hash of a cell that stays and that
another part has to mark. In each round every part follows its leads as the store's own mark does
(`store.gc.marking`). References to cells of other parts become leads of the next round. When no
leads are left, the marks are complete. The number of rounds is how often a path from a root changes
parts: at most about the depth of the trees, however many cells there are.

Marks stay with their part from round to round. If there are few leads, they go through the driver,
which follows them first and sends out what is left. If there are many, they are shuffled together
with the marks. Spark keeps the state of a round, a few bytes for each cell; the driver holds one
segment or a short list.

The store is only read. It may be written to meanwhile: a sweep follows everything new. A collection
that removes cells meanwhile fails the job.

Source: docs/spark-jobs.md "Garbage"; docs/store.md "Garbage".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from datalattice.arrow import record_batch
from datalattice.clock import Clock, SystemClock
from datalattice.limits import HASH_BYTES
from datalattice.pipeline.jobs.report import JobReport
from datalattice.pipeline.jobs.stores import (
    cores_of,
    for_tasks,
    opened,
    parts_of,
    store_folder,
    telling_removal,
)
from datalattice.pipeline.spark.failures import clear_errors
from datalattice.pipeline.spark.progress import OnStep, watching_tasks
from datalattice.store import CellStore, RealDisk
from datalattice.store.gc import (
    GRACE_MS,
    Extent,
    MarkFrontier,
    MarkStart,
    PartitionPlan,
    StorePartition,
    StorePartitionMarker,
    StorePartitionReader,
    SweptSegment,
    check_extent,
    extent_of,
    mark_frontier,
    mark_start,
    sweep_head,
    write_sweep_list,
)
from datalattice.store.log import Gap, LocationSet, LogPosition, locate

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

LEADS_MAX: Final = 8_192
"""Leads that are followed or sent together."""

HANDED_MAX: Final = 65_536
"""Most leads of a round, of all parts together, that go through the driver."""

SEGMENTS_COLLECTED: Final = 64
"""Results of up to this many segments are collected at once: 32 MB with segments of 64 MiB."""

STATE: Final = "part INT, segment INT, marks BINARY, hash BINARY"
"""A row of a part: the marks of one segment; or leads, as concatenated hashes; or one empty row, so
that every part has a row. Leads for the driver have `marks` NULL. Leads to be shuffled have empty
`marks`, and then the part's empty row has an empty `hash`."""

COUNTS: Final = ("cells_live", "cells_dead", "bytes_dead")
FOUND: Final = "segment INT, live BINARY, dead BINARY, " + ", ".join(f"{n} BIGINT" for n in COUNTS)


@dataclass(frozen=True, slots=True)
class GcReport(JobReport):
    """The result of a mark."""

    store: str
    list: str
    """The file of the sweep list."""
    root: str | None
    segments: int
    cells_live: int
    """Cells that stay."""
    cells_dead: int
    """Cells that may go."""
    bytes_dead: int
    parts: int
    rounds: int
    """How often leads were followed: once in the driver, then in tasks."""


def gc(
    spark: SparkSession,
    store: str,
    out: str,
    *,
    grace_ms: int = GRACE_MS,
    parts: int | None = None,
    progress: OnStep | None = None,
    clock: Clock | None = None,
) -> GcReport:
    """Mark the cells of a store that stay, and write the sweep list of those that may go.

    `CellStore.collect` with the same grace keeps the same cells. `lattice disk sweep` applies the
    list, also beside a writer.

    store: the folder of a store or of a node, at the same path on every worker.
    out: a path on the driver.
    parts: tasks of a round, by default about one for 256 MB.
    Raises: UsageError: there is no store, or an argument is malformed. StoreFailed: the store is
            damaged, or cells were removed meanwhile. StoreFull: no space for the list.
    Cost:   reads every cell that stays once, and every pack once more.
    """
    clock = clock or SystemClock()
    folder = store_folder(store)
    with CellStore.open(folder, read_only=True, clock=clock) as reader, clear_errors():
        time_ms = clock.now_ms()
        extent = extent_of(reader)
        plan = parts_of(extent, parts, cores_of(spark))
        # The same roots as `CellStore.collect`: HEAD, its history within the grace, pins and
        # leases.
        begin = mark_start(reader, extent, reader.roots_kept(grace_ms))
        with telling_removal(reader, extent):
            state, handed, rounds = _mark(spark, reader, extent, plan, begin, progress)
        task = SortTask(folder, for_tasks(extent), plan, handed)
        with watching_tasks(spark, "sort out", progress):
            found = state.mapInArrow(task, FOUND)
            # Few results fit the driver's memory; many are read one segment at a time.
            if len(extent.segments) <= SEGMENTS_COLLECTED:
                counts = found.collect()
                rows = iter(counts)
            else:
                found = found.localCheckpoint(eager=False)
                counts = found.select(*COUNTS).collect()
                rows = found.toLocalIterator()
        check_extent(reader, extent)
        live, dead, bytes_dead = (sum(row[name] for row in counts) for name in COUNTS)
        head = sweep_head(
            extent,
            begin.roots,
            time_ms=time_ms,
            grace_ms=grace_ms,
            cells=(live, dead),
            bytes_dead=bytes_dead,
            segments=len(counts),
        )
        lists = (SweptSegment(row[0], bytes(row[1]), bytes(row[2])) for row in rows)
        # "It is bound to the store by its id, and to the position in the log" (docs/spark-jobs.md,
        # Garbage): a sweep follows only what is new since.
        write_sweep_list(RealDisk(), out, head, lists)
        root = None if extent.root is None else "0x" + extent.root.hex()
        return GcReport(folder, out, root, len(counts), live, dead, bytes_dead, len(plan), rounds)


def _mark(
    spark: SparkSession,
    reader: CellStore,
    extent: Extent,
    plan: tuple[StorePartition, ...],
    begin: MarkStart,
    progress: OnStep | None,
) -> tuple[DataFrame, Handed | None, int]:
    """Return the marks of all parts as rows, those that the driver holds, and the rounds."""
    folder = reader.path
    parts = PartitionPlan(folder, plan)
    frontier = mark_frontier(reader, extent, begin.roots)
    handed: Handed | None = Handed.of(frontier, parts)
    state = spark.range(0, len(plan), 1, max(1, len(plan)))
    rounds = 1
    start: LogPosition | None = begin.start
    # The driver has marked everything, and no pack is young: no round is needed.
    if not frontier.waiting and begin.start.sequence >= extent.position.sequence:
        return state, handed, rounds
    most = HANDED_MAX // len(plan)
    while True:
        task = MarkTask(folder, for_tasks(extent), plan, start, handed, most)
        start = None
        rounds += 1
        with watching_tasks(spark, f"mark, round {rounds}", progress):
            # A checkpoint cuts the lineage; otherwise each round would repeat all earlier ones.
            state = state.mapInArrow(task, STATE).localCheckpoint(eager=False)
            leads = state.where("hash IS NOT NULL AND marks IS NULL").select("hash").collect()
        # An empty hash: a part has more leads than go through the driver, so they are shuffled.
        if any(not row[0] for row in leads):
            state = state.repartitionById(len(plan), "part")
            # Marks before leads: a lead to a marked cell is followed no further.
            state = state.sortWithinPartitions("part", state["segment"].asc_nulls_last())
            handed = None
            continue
        frontier = mark_frontier(
            reader, extent, (hash for row in leads for hash in hashes_in(row[0]))
        )
        handed = Handed.of(frontier, parts)
        if not frontier.waiting:
            return state, handed, rounds


@dataclass(frozen=True, slots=True)
class Handed:
    """What the driver sends to the parts of a round, by part number."""

    leads: dict[int, bytes]
    """Concatenated hashes."""
    marked: dict[int, list[int]]
    """Locations of marked cells."""

    @staticmethod
    def of(frontier: MarkFrontier, parts: PartitionPlan) -> Handed:
        """Return the marks and leads that the driver found, divided by parts."""
        marked: dict[int, list[int]] = {}
        for location in frontier.marked:
            marked.setdefault(parts.number(location), []).append(location)
        return Handed(by_part(frontier.waiting, parts), marked)


def by_part(cells: Iterable[tuple[bytes, int]], parts: PartitionPlan) -> dict[int, bytes]:
    """Return the concatenated hashes of cells, given as (hash, location), by part."""
    found: dict[int, list[bytes]] = {}
    for hash, location in cells:
        found.setdefault(parts.number(location), []).append(hash)
    return {number: b"".join(hashes) for number, hashes in found.items()}


def hashes_in(packed: bytes) -> list[bytes]:
    """Return the hashes in a concatenation."""
    return [bytes(packed[i : i + HASH_BYTES]) for i in range(0, len(packed), HASH_BYTES)]


class _MarkPart:
    """What a task received for one part."""

    def __init__(self, number: int, handed: Handed | None) -> None:
        self.number = number
        self.packed: dict[int, bytes] = {}
        """Packed marks by segment."""
        self.marked = [] if handed is None else handed.marked.get(number, [])
        self.leads = [] if handed is None else hashes_in(handed.leads.get(number, b""))

    def marks(self) -> LocationSet:
        """Return the marks of all segments."""
        marks = LocationSet()
        for segment, packed in self.packed.items():
            marks.unpack(segment, packed)
        for location in self.marked:
            marks.add(location)
        return marks


def _parts_in(batches: Iterable[pa.RecordBatch], handed: Handed | None) -> Iterator[_MarkPart]:
    """Yield the parts in the rows of a task, each again for every `LEADS_MAX` leads.

    handed: the driver's leads, which replace those in the rows.
    """
    part: _MarkPart | None = None
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        nothing = [None] * batch.num_rows  # the first round's rows have part numbers only
        for number, segment, marks, hashes in zip(*[*columns, *[nothing] * 3][:4], strict=True):
            # The driver has followed these leads, and sends what is left.
            if handed is not None and hashes is not None:
                continue
            if part is None or part.number != number:
                if part is not None:
                    yield part
                part = _MarkPart(number, handed)
            if segment is not None:
                part.packed[segment] = marks
            elif hashes is not None:
                part.leads += hashes_in(hashes)
                # Bounds memory: the part is yielded again for the next leads.
                if len(part.leads) >= LEADS_MAX:
                    yield part
                    part.leads = []
    if part is not None:
        yield part


@dataclass(frozen=True, slots=True)
class MarkTask:
    """One round in the parts of a task: rows of the state in, rows of the next state out."""

    folder: str
    extent: Extent
    plan: tuple[StorePartition, ...]
    start: LogPosition | None
    """Set in the first round: packs after this position are young, and stay."""
    handed: Handed | None = None
    most: int = 0
    """Most leads that a part may leave to the driver."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the round in the parts of a task."""
        with ExitStack() as held:
            marking: _Marking | None = None
            for part in _parts_in(batches, self.handed):
                if marking is None or marking.part is not part:
                    if marking is not None:
                        yield from marking.state()
                    marking = _Marking(self, part, held)
                    yield from marking.young()
                yield from marking.follow()
            if marking is not None:
                yield from marking.state()


class _Marking:
    """The marking of one part; the store is opened at the first lead."""

    def __init__(self, task: MarkTask, part: _MarkPart, held: ExitStack) -> None:
        self.part = part
        self._task = task
        self._held = held
        self._parts = PartitionPlan(task.folder, task.plan)
        self._marker: StorePartitionMarker | None = None
        self._has_many = False
        """Whether some leads were yielded already, to be shuffled."""

    def _open(self) -> StorePartitionMarker:
        if self._marker is None:
            task = self._task
            store = self._held.enter_context(opened(task.folder, task.extent))
            self._marker = StorePartitionMarker(store, task.extent, task.plan[self.part.number])
            # Marks of earlier rounds: a marked cell is read once in all rounds.
            self._marker.marks = self.part.marks()
        return self._marker

    def young(self) -> Iterator[pa.RecordBatch]:
        """Follow the young packs, in the first round."""
        start = self._task.start
        # Young cells stay in any case, so what they refer to must stay.
        if start is not None and start.segment <= self._task.plan[self.part.number].last:
            for _ in self._open().follow_young(start):
                yield from self._shuffled()

    def follow(self) -> Iterator[pa.RecordBatch]:
        """Follow the received leads."""
        if self.part.leads:
            self._open().follow(self.part.leads)
            yield from self._shuffled()

    def _shuffled(self) -> Iterator[pa.RecordBatch]:
        """Yield the leads to other parts once there are `LEADS_MAX`."""
        marker = self._marker
        if marker is None or len(marker.leads) < LEADS_MAX:
            return
        self._has_many = True
        leads = marker.take_leads()
        for first in range(0, len(leads), LEADS_MAX):
            packed = by_part(leads[first : first + LEADS_MAX], self._parts)
            yield record_batch(
                [(number, None, b"", hashes) for number, hashes in packed.items()], STATE
            )

    def state(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining leads, and the marks."""
        marker, packed = self._marker, self.part.packed
        leads = [] if marker is None else marker.take_leads()
        # All leads of a part go the same way: if some were yielded already, all are shuffled.
        is_much = self._has_many or len(leads) > self._task.most
        kind = b"" if is_much else None
        rows = [(to, None, kind, hashes) for to, hashes in by_part(leads, self._parts).items()]
        yield record_batch([*rows, (self.part.number, None, None, kind)], STATE)
        if marker is not None or self.part.marked:
            marks = marker.marks if marker is not None else self.part.marks()
            packed = {segment: marks.pack(segment) for segment in marks.segments()}
        for segment, data in packed.items():
            yield record_batch([(self.part.number, segment, data, None)], STATE)


@dataclass(frozen=True, slots=True)
class SortTask:
    """The last step: divide the cells of each segment into those that stay and those that go."""

    folder: str
    extent: Extent
    plan: tuple[StorePartition, ...]
    handed: Handed | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Sort the cells of a task's parts."""
        done: _MarkPart | None = None
        for part in _parts_in(batches, self.handed):
            if part is not done:
                done = part
                yield from self._sort_out(part)

    def _sort_out(self, part: _MarkPart) -> Iterator[pa.RecordBatch]:
        live = part.marks()
        dead = LocationSet()
        counts: dict[int, list[int]] = {number: [0, 0, 0] for number in live.segments()}
        with opened(self.folder, self.extent) as store:
            reader = StorePartitionReader(store, self.extent, self.plan[part.number])
            for pack in reader.packs():
                if isinstance(pack, Gap):
                    continue  # entries of the index that lead there are on no list, so they stay
                locations = [location for _, location in reader.cells(pack)]
                if not locations:
                    continue
                # `cells` has only cells that the index refers to: "cells that the list does not
                # mention stay".
                gone = [location for location in locations if not live.has(location)]
                count = counts.setdefault(locations[0] >> 42, [0, 0, 0])
                count[0] += len(locations) - len(gone)
                for location in gone:
                    dead.add(location)
                    count[2] += locate(location)[2]
                count[1] += len(gone)
        for segment, count in counts.items():
            row = segment, live.pack(segment), dead.pack(segment), *count
            yield record_batch([row], FOUND)
