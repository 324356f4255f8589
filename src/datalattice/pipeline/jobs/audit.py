"""Audit a store: every byte against its checksums, every cell against its hash and its rules.

    report = audit(spark, "data/store")
    report.faults.show()

The store is divided into partitions of segments, one for each task. A task reads its packs as an
opening store does, and inspects those of their cells that the index refers to (`jobs.inspecting`).
If the packs have every entry of the index, and no pack is damaged or missing, the audit is done.
Otherwise tasks read the index by ranges of hashes, and inspect the entries that refer to damaged
packs. A damaged place that no entry refers to is a scar, not a fault. If the counts of entries
still do not add up, every entry is inspected.

The store may be written to meanwhile; newer cells are left out. A collection that removes cells
meanwhile fails the job.

Source: docs/spark-jobs.md "Audit".
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from datalattice.arrow import record_batch
from datalattice.errors import Corruption
from datalattice.limits import COUNT_MAX
from datalattice.pipeline.jobs.inspecting import CellFault, FoundFault, Inspector
from datalattice.pipeline.jobs.stores import (
    cores_of,
    for_tasks,
    opened,
    store_folder,
    store_partitions,
)
from datalattice.pipeline.spark.failures import clear_errors
from datalattice.pipeline.spark.progress import OnStep, watching_tasks
from datalattice.store import CellStore
from datalattice.store.gc import (
    LOCATION_SHIFT,
    Extent,
    StorePartition,
    StorePartitionReader,
    check_extent,
    entry_count,
    extent_of,
    missing_before,
    record_damage,
    upper_bits,
)
from datalattice.store.log import Gap, locate

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = "kind STRING, hash BINARY, file STRING, offset BIGINT, detail STRING"
"""A row for each fault, of the kinds of `CellFault`. `hash` is NULL if no single cell is meant."""

GAPS_MAX: Final = 10_000
"""With more damaged places, every entry of the index is inspected."""

SLICES_MAX: Final = 256
"""Most tasks that read the index; they divide it by the first byte of hashes."""

FAULTS_LISTED_MAX: Final = 1_000
"""Faults in the JSON document of a report; the DataFrame has all."""

BATCH_ROWS: Final = 1_024
"""Most rows of faults in one Arrow batch."""
FACTS: Final = "facts"
"""Kind of the row in which a task reports its counts."""

COLLECTED_MAX: Final = 100_000
"""Most faults of a step that the driver collects, about 20 MB. If there are more, the tasks run
again, and Spark keeps what they find."""

PackRange = tuple[int, int]
"""Begin and end of a range of packs, as the upper bits of a location."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit."""

    store: str
    root: str | None
    segments: int
    packs: int
    cells: int
    bytes: int
    signed: int
    """Signed values whose signature was checked."""
    counts: dict[str, int]
    """Number of faults by kind, without scars."""
    scars: int
    """Damaged places that no entry of the index leads to; a healed store may have some."""
    parts: int
    _faults: Callable[[], DataFrame] = field(repr=False, compare=False)

    @property
    def faults(self) -> DataFrame:
        """A row for each fault and scar."""
        return self._faults()

    @property
    def is_clean(self) -> bool:
        """Whether there is no fault."""
        return not self.counts

    def listed(self, most: int = FAULTS_LISTED_MAX) -> list[dict[str, object]]:
        """Return the first faults, ordered by kind, file and offset."""
        # A job of Spark takes 0.1 s even if there is nothing to sort.
        if not self.counts and not self.scars:
            return []
        rows = self.faults.orderBy("kind", "file", "offset", "detail").limit(most).collect()
        return [
            {
                **row.asDict(),
                "hash": None if row["hash"] is None else "0x" + bytes(row["hash"]).hex(),
            }
            for row in rows
        ]

    def as_json(self) -> dict[str, object]:
        """Return the report as a JSON document, with the first faults."""
        names = ("store", "root", "segments", "packs", "cells", "bytes", "signed", "counts")
        return {
            **{name: getattr(self, name) for name in names},
            "scars": self.scars,
            "parts": self.parts,
            "clean": self.is_clean,
            "faults": self.listed(),
        }


def audit(
    spark: SparkSession,
    store: str,
    *,
    parts: int | None = None,
    progress: OnStep | None = None,
) -> AuditReport:
    """Check everything in a store: packs, hashes, canonical form, references, signatures, roots.

    store: the folder of a store or of a node, at the same path on every worker.
    parts: number of tasks, by default about one for 1 GB, and two for each of several cores.
    Raises: UsageError: there is no store, or an argument is malformed. StoreFailed: cells were
            removed meanwhile. StoreVersion: a newer version wrote the store.
    Cost:   reads the store once; if it is damaged, also the index and the damaged places. A step
            that finds more than `COLLECTED_MAX` faults is done twice.
    """
    folder = store_folder(store)
    with CellStore.open(folder, read_only=True) as reader, clear_errors():
        extent = extent_of(reader)
        work = AuditPlan(
            folder, for_tasks(extent), store_partitions(extent, parts, cores_of(spark))
        )
        tasks = _SparkTasks(spark, progress)
        sums, rows = examine(reader, work, tasks)
        # A collection meanwhile would make its removed cells look like faults.
        check_extent(reader, extent)
        faults, counts = _counted(spark, tasks.frames, [*tasks.found, *rows])
        scars = counts.pop(CellFault.SCAR.value, 0)
        return AuditReport(
            folder,
            None if extent.root is None else "0x" + extent.root.hex(),
            len(extent.segments),
            sums.packs,
            sums.cells,
            sums.bytes,
            sums.signed,
            dict(sorted(counts.items())),
            scars,
            len(work.plan),
            faults,
        )


TaskCounts = list[dict[str, Any]]
"""The counts that tasks report, in task order."""

RunTasks = Callable[[str, "PacksTask | IndexTask", int], TaskCounts]
"""Runs a step, given its name, task and number of tasks; keeps the faults that the tasks find."""


def examine(reader: CellStore, work: AuditPlan, run: RunTasks) -> tuple[Sums, list[FoundFault]]:
    """Run the steps of an audit; return the counts, and the faults that no task found."""
    counts = run("audit", PacksTask(work), len(work.plan))
    sums = Sums(counts)
    # Packs in order have consecutive numbers: a gap in them is a missing pack.
    damaged = _damaged(counts, reader, work)
    # A power of two, so that slices divide the 256 first bytes of hashes evenly.
    slices = min(SLICES_MAX, 1 << len(work.plan).bit_length())
    # If the packs have every entry and none is damaged, the index needs no look of its own.
    if damaged or sums.cells < entry_count(reader):
        spans: tuple[PackRange, ...] | None = tuple(one.span for one in damaged)
        # The list of spans goes to every task, so it is bounded.
        if len(damaged) > GAPS_MAX:
            spans = None
            # Which of them entries lead to is then not found out, so none passes as a scar.
            for one in damaged:
                one.is_needed = True
        inside = run("index", IndexTask(work, spans, slices), slices)
        # There are more entries outside of the damage than cells in the packs, so some refer to no
        # cell.
        if spans is not None and _outside(inside, damaged) > sums.cells:
            spans = None
            inside = run("whole index", IndexTask(work, None, slices), slices)
        sums = Sums(inside, of_packs=sums.packs) if spans is None else Sums(counts + inside)
    rows = [one.found() for one in damaged]
    record = record_damage(reader)
    # A record of removed cells is not data, so its damage is a scar.
    if record is not None:
        rows.append(FoundFault(CellFault.SCAR, None, record.file, record.offset, record.reason))
    return sums, rows + list(_lost_roots(reader, work.extent))


class _SparkTasks:
    """Runs steps on Spark, and keeps the faults that the tasks find."""

    def __init__(self, spark: SparkSession, progress: OnStep | None) -> None:
        self._spark = spark
        self._progress = progress
        self.found: list[FoundFault] = []
        """The faults of steps that found at most `COLLECTED_MAX`."""
        self.frames: list[DataFrame] = []
        """The faults of the other steps."""

    def __call__(self, step: str, task: PacksTask | IndexTask, count: int) -> TaskCounts:
        """Run a step; see `RunTasks`."""
        ids = self._spark.range(0, count, 1, max(1, count))
        # Divided among the tasks: none of them knows how many the others find.
        most = COLLECTED_MAX // max(1, count)
        with watching_tasks(self._spark, step, self._progress):
            # Facts and faults in one job: Spark takes 0.1 s to keep and to filter a few rows.
            rows = ids.mapInArrow(replace(task, most=most), COLUMNS).collect()
            counts = read_facts(row["detail"] for row in rows if row["kind"] == FACTS)
            found = [row for row in rows if row["kind"] != FACTS]
            if len(found) == sum(fact["faults"] for fact in counts):
                self.found += map(_found, found)
            else:
                # Kept by Spark: counting and listing would each read the store again.
                every = ids.mapInArrow(task, COLUMNS).where(f"kind <> '{FACTS}'")
                self.frames.append(every.localCheckpoint())
        return counts


def _found(row: Any) -> FoundFault:
    hash = None if row["hash"] is None else bytes(row["hash"])
    return FoundFault(CellFault(row["kind"]), hash, row["file"], row["offset"], row["detail"])


def read_facts(texts: Iterable[str]) -> TaskCounts:
    """Return the counts that tasks reported, in task order."""
    return sorted((json.loads(text) for text in texts), key=lambda fact: int(fact["number"]))


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """What every task of an audit needs."""

    folder: str
    extent: Extent
    plan: tuple[StorePartition, ...]


class Sums:
    """Totals over all tasks."""

    def __init__(self, counts: TaskCounts, of_packs: int = 0) -> None:
        self.packs = of_packs + sum(fact["packs"] for fact in counts)
        self.cells = sum(fact["cells"] for fact in counts)
        self.bytes = sum(fact["bytes"] for fact in counts)
        self.signed = sum(fact["signed"] for fact in counts)


@dataclass(slots=True)
class _Damaged:
    """A range where packs are damaged or missing."""

    span: PackRange
    file: str
    offset: int
    reason: str
    is_needed: bool = False
    """Whether the index leads there, or acknowledged packs at the log's end are missing."""

    def found(self) -> FoundFault:
        """Return the place as a fault or a scar."""
        kind = CellFault.PACK if self.is_needed else CellFault.SCAR
        return FoundFault(kind, None, self.file, self.offset, self.reason)


def _damaged(counts: TaskCounts, reader: CellStore, work: AuditPlan) -> list[_Damaged]:
    """Return the ranges where packs are damaged or missing, in order."""
    found: list[_Damaged] = []
    behind, sequence, is_open = 0, 0, False
    file = work.folder
    for partition, fact in zip(work.plan, counts, strict=True):
        for first, stop, path, offset, text in fact["gaps"]:
            found.append(_Damaged((first, stop), path, offset, text))
        reason = "" if is_open else missing_before(reader, partition, sequence)
        if reason:
            begin = upper_bits(partition.first, 0)
            found.append(_Damaged((behind, begin), fact["begin"], 0, reason))
        behind, sequence, is_open, file = (
            fact["behind"],
            fact["sequence"],
            fact["open"],
            fact["file"],
        )
    last = work.extent.position.sequence
    # Tasks look places up by bisection.
    found.sort(key=lambda one: one.span)
    # Acknowledged packs are missing at the log's end, whether or not the index leads there.
    if sequence < last and is_open:
        found[-1].is_needed = True
    elif sequence < last:
        reason = f"the packs {sequence + 1} to {last} are missing"
        span = (behind, max(behind + 1, work.extent.end))
        offset = locate(behind << LOCATION_SHIFT)[1]
        found.append(_Damaged(span, file, offset, reason, is_needed=True))
    return found


def _outside(counts: TaskCounts, damaged: Sequence[_Damaged]) -> int:
    """Mark the damaged places that the index leads to; return how many entries lead elsewhere."""
    for fact in counts:
        # Only these are faults: damage "where the index does not lead" is a scar
        # (docs/spark-jobs.md, Audit).
        for number in fact["inside"]:
            damaged[number].is_needed = True
    return sum(fact["outside"] for fact in counts)


def _lost_roots(reader: CellStore, extent: Extent) -> Iterator[FoundFault]:
    """Yield the roots of HEAD, pins and leases that the store does not have."""
    kept = [] if extent.root is None else [(extent.root, "the root")]
    try:
        kept += [(pin.root_hash, f"the pin {pin.name!r}") for pin in reader.pins.all()]
        kept += [(one.root_hash, f"the lease {one.name}") for one in reader.pins.leases()]
    except Corruption as error:
        # The files of pins and leases may be damaged themselves.
        yield FoundFault(CellFault.ROOT, None, reader.path, 0, str(error))
    for hash, what in kept:
        if not reader.has(hash):
            yield FoundFault(CellFault.ROOT, hash, reader.path, 0, f"{what} is not in the store")


def _counted(
    spark: SparkSession, frames: list[DataFrame], found: list[FoundFault]
) -> tuple[Callable[[], DataFrame], dict[str, int]]:
    """Return the function that returns all faults as one DataFrame, and their number by kind."""
    # Two tasks may meet the same fault, in the packs and through the index.
    rows = list(dict.fromkeys(map(_row, found)))
    make = partial(spark.createDataFrame, rows, COLUMNS)
    if not frames:
        return make, dict(Counter(kind for kind, *_ in rows))
    every = reduce(type(frames[0]).unionByName, frames, make()).distinct().localCheckpoint()
    counts = {row[0]: row[1] for row in every.groupBy("kind").count().collect()}
    return lambda: every, counts


# --- in tasks -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PacksTask:
    """Inspects the packs of partitions; the input rows are partition numbers."""

    work: AuditPlan
    most: int | None = None
    """Most faults that are yielded for each input row; None: all."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Inspect the partitions of a task."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _as_batches(self._inspect(self.work.plan[number]), self.most)

    def _inspect(self, partition: StorePartition) -> Iterator[FaultRow]:
        work = self.work
        with opened(work.folder, work.extent) as store:
            reader = StorePartitionReader(store, work.extent, partition)
            inspector = Inspector(reader)
            packs = 0
            gaps: list[tuple[int, int, str, int, str]] = []
            for pack in reader.packs():
                if isinstance(pack, Gap):
                    path = reader.path(pack.segment)
                    gaps.append((*pack.span, path, pack.offset, pack.reason))
                    continue
                packs += 1
                yield from map(_row, inspector.inspect(reader.cells(pack)))
            yield from map(_row, inspector.finish())
            segment, offset = reader.behind
            yield _fact(
                number=partition.number,
                packs=packs,
                gaps=gaps,
                **inspector.counts(),
                sequence=reader.sequence,
                open=reader.is_open_ended,
                behind=upper_bits(segment, offset),
                begin=reader.path(partition.first),
                file=reader.path(segment),
            )


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Inspects entries of the index; the input rows are slice numbers."""

    work: AuditPlan
    spans: tuple[PackRange, ...] | None
    """Inspect only the entries that lead there; None: every entry."""
    slices: int
    most: int | None = None
    """As in `PacksTask`."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Inspect the slices of a task."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _as_batches(self._inspect(number), self.most)

    def _inspect(self, number: int) -> Iterator[FaultRow]:
        work = self.work
        width = SLICES_MAX // self.slices
        outside = 0
        inside: set[int] = set()
        begins = [span[0] for span in self.spans or ()]

        def wanted(entries: Iterator[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
            nonlocal outside
            for hash, location in entries:
                at = bisect_right(begins, location >> LOCATION_SHIFT) - 1
                if self.spans is None:
                    yield hash, location
                elif at >= 0 and location >> LOCATION_SHIFT < self.spans[at][1]:
                    inside.add(at)
                    yield hash, location
                else:
                    outside += 1

        with opened(work.folder, work.extent) as store:
            everything = StorePartition(0, 1, 1, 1)  # the reader serves the index only
            reader = StorePartitionReader(store, work.extent, everything)
            inspector = Inspector(reader)
            entries = reader.entries(number * width, number * width + width - 1)
            yield from map(_row, inspector.inspect(wanted(entries)))
            yield from map(_row, inspector.finish())
            counts = inspector.counts()
        yield _fact(number=number, packs=0, outside=outside, inside=sorted(inside), **counts)


FaultRow = tuple[str, bytes | None, str, int, str]


def _row(found: FoundFault) -> FaultRow:
    return found.kind.value, found.hash, found.file, found.offset, found.detail


def _fact(**facts: object) -> FaultRow:
    return FACTS, None, "", 0, json.dumps(facts)


def _as_batches(rows: Iterator[FaultRow], most: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the first `most` faults and the facts of a task."""
    left = COUNT_MAX if most is None else most

    def chosen() -> Iterator[FaultRow]:
        nonlocal left
        for row in rows:
            # Facts pass uncounted: by their sum the driver sees that faults were left out.
            left -= row[0] != FACTS
            if left >= 0 or row[0] == FACTS:
                yield row

    listed = chosen()
    while run := list(islice(listed, BATCH_ROWS)):
        yield record_batch(run, COLUMNS)
