"""Rows of the jobs on Spark: audit, mark, merge and load, on one core and on two.

The peers are one process that does the same without Spark, by the same code where there is no other
way, and the work per second of processor time of all processes, the one figure that a busy machine
leaves alone. One core is one for everything, JVM and driver included (`spark_merge.on_cores`).
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import spark_merge
from figures import Row, row
from rows_spark import cpu_seconds

from datalattice.apps.queue import Topics
from datalattice.cells import branch_hashes, value_hash
from datalattice.client import write_key
from datalattice.crypto import KeyPair, sha3_256
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, root_lattice
from datalattice.pipeline.jobs import audit, gc, load
from datalattice.pipeline.jobs.audit import FACTS, AuditPlan, examine, read_facts
from datalattice.pipeline.jobs.stores import for_tasks, store_partitions
from datalattice.store import CellStore
from datalattice.store.gc import extent_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = (1, 2)
KEYS = KeyPair(bytes(32))
SEGMENT_BYTES = 4 * 1024 * 1024
"""Segments as short as this make many tasks of a store that is quickly built."""
BATCH_RECORDS = 10_000
LOAD_GROUPS = 8
"""Groups of rows in the file that is loaded."""
WARM_RUNS = 2
"""Audits and marks before those that are measured: the JVM's compilers take longer than the jobs on
this store; on a large store they hardly count."""
SHORT_RUNS = 3
"""Audits and marks that are measured, with Spark and without; their medians are the rows."""
FEW_ROWS = 16
"""Rows of a load so small that its time is the fixed cost of a load."""


def cells_below(store: CellStore, top: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the cells of a value with their hashes, each once."""
    seen = {top}
    waiting = [top]
    while waiting:
        hash = waiting.pop()
        encoding = store.get_encoding(hash)
        assert encoding is not None
        yield hash, encoding
        below = set(branch_hashes(encoding)) - seen
        seen |= below
        waiting += below


class Bench:
    """The inputs of the jobs, in a folder of their own, and how each job is measured."""

    def __init__(self, place: Path, quick: bool) -> None:
        self.place = place
        self.records = 100_000 if quick else 1_500_000
        self.stored = 100_000 if quick else 4_500_000
        """Records of the store that is audited and marked; those above are copied into others."""
        self.loaded = 20_000 if quick else 1_000_000
        self.keys, self.replicas, self.changes = (20_000, 8, 500) if quick else (200_000, 32, 1_000)
        self.store = place / "store"
        self.rows = place / "rows.parquet"
        self.few_rows = place / "few.parquet"
        self.cells = place / "cells.parquet"
        self.root = b""
        self.count = 0
        """Cells that are copied."""
        self.inputs: list[str] = []
        self.merged = ""
        self.one_process: dict[str, float] = {}

    def build(self) -> None:
        """Make the inputs of the jobs."""
        random = pa.array(
            [sha3_256(i.to_bytes(8, "big")).hex() for i in range(self.loaded)], pa.string()
        )
        numbers = pa.array(range(self.loaded), pa.int64())
        table = pa.table({"number": numbers, "text": random})
        # One task reads a group of rows: of a single one a second core would have nothing.
        pq.write_table(table, self.rows, row_group_size=self.loaded // LOAD_GROUPS)
        pq.write_table(table.slice(0, FEW_ROWS), self.few_rows)
        root = RootLattice(root_lattice(), None, MergeContext(key_pair=KEYS))
        queue = Topics.at(root, KEYS.public_key).partition("bench", 0)
        with CellStore.open(self.store, segment_bytes=SEGMENT_BYTES) as store:
            for first in range(0, self.stored, BATCH_RECORDS):
                queue.offer_many(
                    [
                        sha3_256(i.to_bytes(8, "big")) * 3
                        for i in range(first, first + BATCH_RECORDS)
                    ]
                )
                store.commit(root.get())
                if first + BATCH_RECORDS == self.records:
                    self.root = value_hash(root.get())
            found = list(cells_below(store, self.root))
        self.count = len(found)
        made = [pa.array(column, pa.binary()) for column in zip(*found, strict=True)]
        pq.write_table(pa.table(made, ["hash", "encoding"]), self.cells, row_group_size=4_096)
        place = self.place / "merge"
        self.inputs = spark_merge.build(place, self.keys, self.replicas, self.changes, 4)

    # --- one process ---

    def alone(self) -> None:
        """Measure one process without Spark."""
        self.one_process["audit"] = self._timed(self._audit_alone, SHORT_RUNS)
        self.one_process["gc"] = self._timed(self._mark_alone, SHORT_RUNS)
        self.merged, spent = spark_merge.in_sequence(self.place / "merge", self.inputs)
        self.one_process["merge"] = self.replicas * self.changes / spent
        self.one_process["load-queue"] = self._timed(self._offer_alone)
        self.one_process["load-cells"] = self._timed(self._put_alone)

    def _timed(self, work: Callable[[], int], runs: int = 1) -> float:
        rates = []
        for _ in range(runs):
            began = time.monotonic()
            rates.append(work() / (time.monotonic() - began))
        return statistics.median(rates)

    def _audit_alone(self) -> int:
        def run(_step: str, task: Any, count: int) -> Any:
            numbers = pa.record_batch([pa.array(range(count), pa.int64())], ["id"])
            found = [row for batch in task([numbers]) for row in batch.to_pylist()]
            return read_facts(row["detail"] for row in found if row["kind"] == FACTS)

        with CellStore.open(self.store, read_only=True) as store:
            extent = extent_of(store)
            work = AuditPlan(str(self.store), for_tasks(extent), store_partitions(extent, None))
            sums, faults = examine(store, work, run)
        assert not faults
        cells: int = sums.cells
        return cells

    def _mark_alone(self) -> int:
        with CellStore.open(self.store, read_only=True) as store:
            found = store.collect(grace_ms=0, dry_run=True)
        return found.cells_live + found.cells_dead

    def _offer_alone(self) -> int:
        root = RootLattice(root_lattice(), None, MergeContext(key_pair=KEYS))
        queue = Topics.at(root, KEYS.public_key).partition("rows", 0)
        with CellStore.open(self._new()) as store:
            for batch in pq.ParquetFile(self.rows).iter_batches(BATCH_RECORDS):
                queue.offer_many(batch.to_pylist())
                store.commit(root.get())
        return self.loaded

    def _put_alone(self) -> int:
        count = 0
        with CellStore.open(self._new()) as store:
            for batch in pq.ParquetFile(self.cells).iter_batches(4_096):
                rows = batch.to_pylist()
                assert all(sha3_256(row["encoding"]) == row["hash"] for row in rows)
                count += store.put_encodings([(row["hash"], row["encoding"]) for row in rows])
            store.pins.pin(self.root, "copy")
        return count

    # --- Spark ---

    def measured(self, spark: SparkSession, cores: int) -> Iterator[Row]:
        """Yield a row of each job."""
        few_s = few_cpu_s = 0.0
        for name, unit, work in (
            ("audit", "cells/s", self._audit),
            ("gc", "cells/s", self._mark),
            ("merge", "changes/s", self._merge),
            ("load-few", "", self._load_few),  # starts processes, too
            ("load-few", "", self._load_few),
            ("load-queue", "records/s", self._load),
            ("load-cells", "cells/s", self._put),
        ):
            is_short = name in ("audit", "gc")
            for _ in range(WARM_RUNS if is_short else 0):
                work(spark)
            runs = [self._spent(work, spark) for _ in range(SHORT_RUNS if is_short else 1)]
            count, spent, seconds = map(statistics.median, zip(*runs, strict=True))
            if name == "load-few":
                few_s, few_cpu_s = spent, seconds
                continue
            peers = {"one process": self.one_process[name], "a CPU second": count / seconds}
            if name == "load-queue":
                peers["without the time of a load of few"] = count / max(spent - few_s, 0.01)
                peers["a CPU second, without that"] = count / max(seconds - few_cpu_s, 0.01)
            yield row(f"spark-{name}-{cores}", count / spent, unit, peers)

    def _spent(
        self, work: Callable[[SparkSession], int], spark: SparkSession
    ) -> tuple[int, float, float]:
        """Return what `work` counted, and the seconds and the processor's seconds that it took."""
        used, own = cpu_seconds(), time.process_time()
        began = time.monotonic()
        count = work(spark)
        spent = time.monotonic() - began
        after = cpu_seconds()
        return count, spent, time.process_time() - own + sum(after.values()) - sum(used.values())

    def _audit(self, spark: SparkSession) -> int:
        report = audit(spark, str(self.store))
        assert report.is_clean
        return report.cells

    def _mark(self, spark: SparkSession) -> int:
        report = gc(spark, str(self.store), str(self._new() / "list"), grace_ms=0)
        return report.cells_live + report.cells_dead

    def _merge(self, spark: SparkSession) -> int:
        root, _, _ = spark_merge.by_spark(spark, self.place / "merge", self.inputs)
        assert root == self.merged
        return self.replicas * self.changes

    def _load(self, spark: SparkSession) -> int:
        return self._load_from(spark, self.rows)

    def _load_few(self, spark: SparkSession) -> int:
        return self._load_from(spark, self.few_rows)

    def _load_from(self, spark: SparkSession, file: Path) -> int:
        home = self._new()
        write_key(home / "key", KEYS)
        return load(spark, [str(file)], store=str(home), topic="rows").rows

    def _put(self, spark: SparkSession) -> int:
        writer = spark.read.parquet(str(self.cells)).write.format("lattice.cells")
        writer.options(root="0x" + self.root.hex(), pin="copy").mode("append").save(
            str(self._new() / "store")
        )
        return self.count

    def _new(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.place))


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows of this group."""
    place = Path(tempfile.mkdtemp(prefix="bench-jobs-"))
    try:
        bench = Bench(place, quick)
        bench.build()
        bench.alone()
        for cores in CORES:
            with spark_merge.on_cores(cores) as spark:
                yield from bench.measured(spark, cores)
    finally:
        shutil.rmtree(place)
