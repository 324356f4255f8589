"""Garbage: mark a store that is too large for one process, and write down what may go.

    report = gc(spark, "data/store", "data/sweep.list")      # then: lattice store sweep

Theory of operation. The store is cut into stretches of segments, a part each. In a round every part
joins what it has marked so far with the *leads* that others found: cells of it that stay. It
follows them as the store's own mark does (`datalattice.store.marking`), as long as they stay in the
part; what leads out is a lead for the next round. With no leads left, what is marked is closed. The
rounds are as many as the most often that a way from a root leaves a part for another, which is
about the depth of the trees and not the number of cells.

A state of the rounds is a few bytes for each cell, kept by Spark; the driver has a segment at a
time. Nothing is changed in the store, which may be written to meanwhile: a sweep follows what is
new since. A collection that removes cells meanwhile ends the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from datalattice.clock import Clock, SystemClock
from datalattice.pipeline.failures import clear_errors
from datalattice.pipeline.jobs.report import Report
from datalattice.pipeline.jobs.stores import for_tasks, opened, parts_of, store_folder
from datalattice.pipeline.progress import Progress, watching_tasks
from datalattice.store import (
    GRACE_MS,
    Beginning,
    CellStore,
    Extent,
    Hole,
    Marks,
    Plan,
    Position,
    RealDisk,
    Stretch,
    StretchMarker,
    StretchReader,
    SweptSegment,
    beginning_of,
    check_extent,
    extent_of,
    locate,
    sweep_head,
    write_sweep_list,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS: Final = 8_192
"""Leads that are followed together, and handed on together."""

STATE: Final = "part INT, segment INT, marks BINARY, hash BINARY"
"""A row of a part: marks of a segment, or a lead, or nothing but a word that the part is there."""

FOUND: Final = (
    "segment INT, live BINARY, dead BINARY, cells_live BIGINT, cells_dead BIGINT, bytes_dead BIGINT"
)


@dataclass(frozen=True, slots=True)
class GcReport(Report):
    """What a mark found."""

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


def gc(
    spark: SparkSession,
    store: str,
    out: str,
    *,
    grace_ms: int = GRACE_MS,
    parts: int | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> GcReport:
    """Mark what stays in a store, and write the sweep list of what may go.

    What stays is what `CellStore.collect` leaves with the same grace. `lattice store sweep` applies
    the list, also beside a writer.

    Shapes: store: the folder of a store or of a node, at the same path on every worker; out: a path
            on the driver; parts: tasks of a round, by default about one for 256 MB.
    Raises: UsageError: no store, or an argument is not of its form. StoreFailed: the store is
            damaged, or cells were removed meanwhile. StoreFull: there is no room for the list.
    Cost:   reads every cell that stays once, and every pack once more.
    """
    clock = clock or SystemClock()
    folder = store_folder(store)
    with CellStore.open(folder, read_only=True, clock=clock) as reader, clear_errors():
        time_ms = clock.now_ms()
        extent = extent_of(reader)
        plan = parts_of(extent, parts)
        beginning = beginning_of(reader, extent, reader.roots_kept(grace_ms))
        state, rounds = _mark(spark, folder, extent, plan, beginning, progress)
        task = SortTask(folder, for_tasks(extent), plan)
        with watching_tasks(spark, "sort out", progress):
            found = _in_parts(_all_parts(spark, plan).unionByName(state), plan)
            found = found.mapInArrow(task, FOUND).localCheckpoint()
            sums = found.groupBy().sum("cells_live", "cells_dead", "bytes_dead").collect()[0]
            segments = found.count()
        check_extent(reader, extent)
        live, dead, bytes_dead = (value or 0 for value in sums)
        head = sweep_head(
            extent,
            beginning.roots,
            time_ms=time_ms,
            grace_ms=grace_ms,
            cells=(live, dead),
            bytes_dead=bytes_dead,
            segments=segments,
        )
        rows = found.select("segment", "live", "dead").toLocalIterator()
        lists = (SweptSegment(row[0], bytes(row[1]), bytes(row[2])) for row in rows)
        write_sweep_list(RealDisk(), out, head, lists)
        root = None if extent.root is None else "0x" + extent.root.hex()
        return GcReport(folder, out, root, segments, live, dead, bytes_dead, len(plan), rounds)


def _mark(
    spark: SparkSession,
    folder: str,
    extent: Extent,
    plan: tuple[Stretch, ...],
    beginning: Beginning,
    progress: Progress | None,
) -> tuple[DataFrame, int]:
    """Return the marks of all parts as rows, and how many rounds they took."""
    task = MarkTask(folder, for_tasks(extent), plan, beginning.start)
    parts = Plan(folder, plan)
    leads = [
        (parts.number(place), None, None, hash)
        for hash, place in zip(beginning.roots, beginning.places, strict=True)
    ]
    state = _all_parts(spark, plan)
    if leads:
        state = state.unionByName(spark.createDataFrame(leads, STATE))
    rounds = 0
    while True:
        rounds += 1
        with watching_tasks(spark, f"mark, round {rounds}", progress):
            # Without its past: each round would else begin with all those before it.
            state = _in_parts(state, plan).mapInArrow(task, STATE).localCheckpoint()
            left = state.where("hash IS NOT NULL").limit(1).count()
        if not left:
            return state, rounds
        task = MarkTask(folder, for_tasks(extent), plan, None)


def _all_parts(spark: SparkSession, plan: tuple[Stretch, ...]) -> DataFrame:
    rows = [(stretch.number, None, None, None) for stretch in plan]
    return spark.createDataFrame(rows, STATE)


def _in_parts(state: DataFrame, plan: tuple[Stretch, ...]) -> DataFrame:
    """Return the rows with each part in a task, its marks before its leads."""
    rows = state.repartitionById(max(1, len(plan)), "part")
    return rows.sortWithinPartitions("part", rows["segment"].asc_nulls_last())


class _Part:
    """What came to a task of one part."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.packed: dict[int, bytes] = {}
        """Marks of segments."""
        self.leads: list[bytes] = []

    def marks(self) -> Marks:
        """Return the marks of all segments."""
        marks = Marks()
        for segment, packed in self.packed.items():
            marks.unpack(segment, packed)
        return marks


def _parts_in(batches: Iterable[pa.RecordBatch]) -> Iterator[_Part]:
    """Yield the parts in the rows of a task, each one again and again with its next leads."""
    part: _Part | None = None
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("part", "segment", "marks", "hash")]
        for number, segment, marks, hash in zip(*columns, strict=True):
            if part is None or part.number != number:
                if part is not None:
                    yield part
                part = _Part(number)
            if segment is not None:
                part.packed[segment] = marks
            elif hash is not None:
                part.leads.append(hash)
                if len(part.leads) >= BATCH_ROWS:
                    yield part
                    part.leads = []
    if part is not None:
        yield part


@dataclass(frozen=True, slots=True)
class MarkTask:
    """One round in the parts of a task: rows of the state in, rows of the next one out."""

    folder: str
    extent: Extent
    plan: tuple[Stretch, ...]
    start: Position | None
    """In the first round: all packs behind this are young, and stay."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do the work of a task."""
        with ExitStack() as held:
            marking: _Marking | None = None
            for part in _parts_in(batches):
                if marking is None or marking.part is not part:
                    if marking is not None:
                        yield from marking.state()
                    marking = _Marking(self, part, held)
                    yield from marking.young()
                yield from marking.follow()
            if marking is not None:
                yield from marking.state()


class _Marking:
    """A part that is marked; the store is opened when there is something to follow."""

    def __init__(self, task: MarkTask, part: _Part, held: ExitStack) -> None:
        self.part = part
        self._task = task
        self._held = held
        self._parts = Plan(task.folder, task.plan)
        self._marker: StretchMarker | None = None

    def _open(self) -> StretchMarker:
        if self._marker is None:
            task = self._task
            store = self._held.enter_context(opened(task.folder, task.extent))
            self._marker = StretchMarker(store, task.extent, task.plan[self.part.number])
            self._marker.marks = self.part.marks()
        return self._marker

    def young(self) -> Iterator[pa.RecordBatch]:
        """Follow what is young, in the first round."""
        start = self._task.start
        if start is not None and start.segment <= self._task.plan[self.part.number].last:
            for _ in self._open().follow_young(start):
                yield from self._leads(BATCH_ROWS)

    def follow(self) -> Iterator[pa.RecordBatch]:
        """Follow the leads that came."""
        if self.part.leads:
            self._open().follow(self.part.leads)
            yield from self._leads(BATCH_ROWS)

    def _leads(self, least: int) -> Iterator[pa.RecordBatch]:
        """Yield what leads to other parts, when it is at least so much."""
        marker = self._marker
        if marker is None or len(marker.leads) < least:
            return
        leads = marker.take_leads()
        for first in range(0, len(leads), BATCH_ROWS):
            rows = leads[first : first + BATCH_ROWS]
            yield _batch([(self._parts.number(at), None, None, hash) for hash, at in rows])

    def state(self) -> Iterator[pa.RecordBatch]:
        """Yield the leads that are left, and the marks."""
        yield from self._leads(1)
        packed = self.part.packed
        if self._marker is not None:
            marks = self._marker.marks
            packed = {segment: marks.pack(segment) for segment in marks.segments()}
        for segment, data in packed.items():
            yield _batch([(self.part.number, segment, data, None)])


def _batch(rows: list[tuple[int, int | None, bytes | None, bytes | None]]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = (pa.int32(), pa.int32(), pa.binary(), pa.binary())
    columns = [
        pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=["part", "segment", "marks", "hash"])


@dataclass(frozen=True, slots=True)
class SortTask:
    """The end: the cells of each segment that stay, and those that go."""

    folder: str
    extent: Extent
    plan: tuple[Stretch, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do the work of a task."""
        done: _Part | None = None
        for part in _parts_in(batches):
            if part is not done:
                done = part
                yield from self._sort_out(part)

    def _sort_out(self, part: _Part) -> Iterator[pa.RecordBatch]:
        live = part.marks()
        dead = Marks()
        counts: dict[int, list[int]] = {number: [0, 0, 0] for number in part.packed}
        with opened(self.folder, self.extent) as store:
            reader = StretchReader(store, self.extent, self.plan[part.number])
            for pack in reader.packs():
                if isinstance(pack, Hole):
                    continue  # what the index finds there is on no list, and stays
                for _, place in reader.cells(pack):
                    count = counts.setdefault(place >> 42, [0, 0, 0])
                    if live.has(place):
                        count[0] += 1
                    elif dead.add(place):
                        count[1] += 1
                        count[2] += locate(place)[2]
        for segment, count in counts.items():
            yield _found(segment, live.pack(segment), dead.pack(segment), *count)


def _found(
    segment: int, live: bytes, dead: bytes, cells_live: int, cells_dead: int, bytes_dead: int
) -> pa.RecordBatch:
    import pyarrow as pa

    schema = pa.schema(
        [
            ("segment", pa.int32()),
            ("live", pa.binary()),
            ("dead", pa.binary()),
            ("cells_live", pa.int64()),
            ("cells_dead", pa.int64()),
            ("bytes_dead", pa.int64()),
        ]
    )
    row = (segment, live, dead, cells_live, cells_dead, bytes_dead)
    return pa.RecordBatch.from_arrays(
        [pa.array([value], field.type) for value, field in zip(row, schema, strict=True)],
        schema=schema,
    )
