"""Mark a store that is too large for one process, and write the list of cells that may go.

    report = gc(spark, "data/store", "data/sweep.list")      # then: lattice disk sweep

The driver marks the upper cells of the trees and stops when many cells wait. The store is divided
into parts, each with some consecutive segments. A *lead* is the hash of a cell that stays and that
another part has to mark. In each round every part follows its leads as the store's own mark does
(`store.gc.marking`). References to cells of other parts become leads of the next round. When no
leads are left, the marks are complete. The number of rounds is how often a path from a root changes
parts: at most about the depth of the trees, however many cells there are.

In the first round a part also lists its cells that are not marked, and counts both kinds. A later
mark takes its cell off that list, so nothing is left to do when the marks are complete.

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
from typing import TYPE_CHECKING, Any, Final

from datalattice.arrow import record_batch
from datalattice.clock import Clock, SystemClock
from datalattice.limits import HASH_BYTES
from datalattice.pipeline.jobs.report import JobReport
from datalattice.pipeline.jobs.stores import (
    cores_of,
    for_tasks,
    opened,
    store_folder,
    store_partitions,
    telling_removal,
)
from datalattice.pipeline.spark.failures import clear_errors
from datalattice.pipeline.spark.progress import OnStep, watching_tasks
from datalattice.store import CellStore, RealDisk
from datalattice.store.gc import (
    GRACE_MS,
    Extent,
    MarkedSegment,
    MarkFrontier,
    MarkStart,
    PartitionPlan,
    StorePartition,
    StorePartitionMarker,
    SweptSegment,
    check_extent,
    extent_of,
    mark_frontier,
    mark_start,
    sweep_head,
    write_sweep_list,
)
from datalattice.store.log import LogPosition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

LEADS_MAX: Final = 8_192
"""Leads that are followed or sent together."""

HANDED_MAX: Final = 65_536
"""Most leads of a round, of all parts together, that go through the driver."""

COLLECTED_BYTES: Final = 4 * 1024 * 1024 * 1024
"""Results of a store of up to this size are collected at once: at most 32 MB."""

SEGMENTS_TOGETHER: Final = 64
"""Segments in one batch of the state."""

COUNTS: Final = ("cells_live", "cells_dead", "bytes_dead")
FOUND: Final = ("segment", "live", "dead", *COUNTS)
STATE: Final = (
    "part INT, segment INT, live BINARY, dead BINARY, "
    + ", ".join(f"{name} BIGINT" for name in COUNTS)
    + ", hash BINARY"
)
"""A row of a part: a `MarkedSegment`; or leads, as concatenated hashes; or one empty row, so that
every part has a row. Leads for the driver have `live` NULL. Leads to be shuffled have empty `live`,
and then the part's empty row has an empty `hash`."""

FOR_DRIVER: Final = "hash IS NOT NULL AND live IS NULL"
NOT_SHUFFLED: Final = "hash IS NULL OR live IS NULL"


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
    """Steps of the mark: one in the driver, then one for each round of tasks."""


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
    parts: tasks of a round, by default about one for 1 GB, and two for each of several cores.
    Raises: UsageError: there is no store, or an argument is malformed. StoreFailed: the store is
            damaged, or cells were removed meanwhile. StoreFull: no space for the list.
    Cost:   reads every cell that stays once, and which cells each pack has.
    """
    clock = clock or SystemClock()
    folder = store_folder(store)
    with CellStore.open(folder, read_only=True, clock=clock) as reader, clear_errors():
        time_ms = clock.now_ms()
        extent = extent_of(reader)
        plan = store_partitions(extent, parts, cores_of(spark))
        # The same roots as `CellStore.collect`: HEAD, its history within the grace, pins and
        # leases.
        begin = mark_start(reader, extent, reader.roots_kept(grace_ms))
        with telling_removal(reader, extent):
            state, told, rounds = _mark(spark, reader, extent, plan, begin, progress)
        counts = [row for row in told if row["segment"] is not None]
        rows = iter(counts)
        # Few results fit the driver's memory; many are read one segment at a time.
        if not _is_collected(extent):
            found = state.where("segment IS NOT NULL").select(*FOUND)
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
        lists = (
            SweptSegment(row["segment"], bytes(row["live"]), bytes(row["dead"])) for row in rows
        )
        # "It is bound to the store by its id, and to the position in the log" (docs/spark-jobs.md,
        # Garbage): a sweep follows only what is new since.
        write_sweep_list(RealDisk(), out, head, lists)
        root = None if extent.root is None else "0x" + extent.root.hex()
        return GcReport(folder, out, root, len(counts), live, dead, bytes_dead, len(plan), rounds)


def _is_collected(extent: Extent) -> bool:
    """Return whether each round returns the marks to the driver, too."""
    return sum(segment.size_bytes for segment in extent.segments) <= COLLECTED_BYTES


def _mark(
    spark: SparkSession,
    reader: CellStore,
    extent: Extent,
    plan: tuple[StorePartition, ...],
    begin: MarkStart,
    progress: OnStep | None,
) -> tuple[DataFrame, list[Any], int]:
    """Return the state of all parts, what it tells the driver, and the rounds."""
    folder = reader.path
    parts = PartitionPlan(folder, plan)
    frontier = mark_frontier(reader, extent, begin.roots, len(plan))
    handed: Handed | None = Handed.of(frontier, parts)
    state = spark.range(0, len(plan), 1, max(1, len(plan)))
    rounds = 1
    start: LogPosition | None = begin.start
    # "If a round has up to 65,536 such references, they go through the driver" (docs/spark-jobs.md,
    # Garbage): each part gets an equal share of that number.
    most = HANDED_MAX // max(1, len(plan))
    is_collected = _is_collected(extent)
    wanted = NOT_SHUFFLED if is_collected else FOR_DRIVER
    columns = (*FOUND, "hash") if is_collected else ("segment", "hash")
    while True:
        task = MarkTask(folder, for_tasks(extent), plan, start, handed, most)
        # Only the first round follows young packs and lists unmarked cells.
        start = None
        rounds += 1
        with watching_tasks(spark, f"mark, round {rounds}", progress):
            state = state.mapInArrow(task, STATE)
            # A checkpoint cuts the lineage; otherwise each round would repeat all earlier ones. A
            # single part has a single round, whose rows are read once if they are collected.
            if len(plan) > 1 or not is_collected:
                state = state.localCheckpoint(eager=False)
            told = state.where(wanted).select(*columns).collect()
        leads = [row["hash"] for row in told if row["hash"] is not None]
        # An empty hash: a part has more leads than go through the driver, so they are shuffled.
        if not all(leads):
            state = state.repartitionById(len(plan), "part")
            # Marks before leads: a lead to a marked cell is followed no further.
            state = state.sortWithinPartitions("part", state["segment"].asc_nulls_last())
            handed = None
            continue
        frontier = mark_frontier(
            reader, extent, (hash for packed in leads for hash in hashes_in(packed)), len(plan)
        )
        handed = Handed.of(frontier, parts)
        if not frontier.waiting and not frontier.marked:
            return state, told, rounds


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
        self.segments: list[MarkedSegment] = []
        """The marks of earlier rounds."""
        self.marked = [] if handed is None else handed.marked.get(number, [])
        self.leads = [] if handed is None else hashes_in(handed.leads.get(number, b""))


def _parts_in(batches: Iterable[pa.RecordBatch], handed: Handed | None) -> Iterator[_MarkPart]:
    """Yield the parts in the rows of a task, each again for every `LEADS_MAX` leads.

    handed: the driver's leads, which replace those in the rows.
    """
    part: _MarkPart | None = None
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        for number, *found in zip(*columns, strict=True):
            # The first round's rows have part numbers only.
            *marked, hashes = found or [None, None]
            # The driver has followed these leads, and sends what is left.
            if handed is not None and hashes is not None:
                continue
            if part is None or part.number != number:
                if part is not None:
                    yield part
                part = _MarkPart(number, handed)
            if marked[0] is not None:
                part.segments.append(MarkedSegment(*marked))
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
            self._marker.restore(self.part.segments)
            self._marker.mark(self.part.marked)
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
        if self.part.leads or self.part.marked:
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
            yield record_batch([_lead(*some, b"") for some in packed.items()], STATE)

    def state(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining leads, and the marks."""
        # The first round lists the cells that are not marked.
        if self._task.start is not None:
            self._open().find_dead()
        marker, number = self._marker, self.part.number
        leads = [] if marker is None else marker.take_leads()
        # All leads of a part go the same way: if some were yielded already, all are shuffled.
        is_much = self._has_many or len(leads) > self._task.most
        kind = b"" if is_much else None
        rows = [_lead(*some, kind) for some in by_part(leads, self._parts).items()]
        yield record_batch([*rows, (number, *[None] * len(FOUND), kind)], STATE)
        segments = self.part.segments if marker is None else marker.segments()
        for first in range(0, len(segments), SEGMENTS_TOGETHER):
            some = segments[first : first + SEGMENTS_TOGETHER]
            yield record_batch([(number, *segment, None) for segment in some], STATE)


def _lead(part: int, hashes: bytes, kind: bytes | None) -> tuple[object, ...]:
    return (part, None, kind, *[None] * (len(FOUND) - 2), hashes)
