"""Rows of the Spark format for queues: all columns of 100-byte records, beside the same in Parquet.

Read and written on one core and on two. The records are random bytes, which no file format can
compress. Spark runs as docs/scale.md advises for much data: with all compilers of the JVM, which
make Parquet and lattice alike faster than the quick start of `spark_session` does, and with Unix
sockets to Python. "jvm" among the peers is the share of the processors' time outside Python.

On one core means one core of the machine: driver, JVM and Python's workers are bound to it. What
Spark calls one core, local[1], is one task at a time, whose JVM and Python run beside each other;
it is the row spark-read-task. Rows "unverified" are read with verify=false: Parquet's pages are
not checked either, unless that is asked for. What a second core can give at most is the peer
"machine": two processes that hash beside each other, against one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from figures import Row, row as figure

import datalattice
from datalattice.apps.queue import Topics
from datalattice.client import write_key
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, root_lattice
from datalattice.pipeline import end_session, register, spark_session
from datalattice.store import CellStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORD_BYTES = 100
RECORDS = 4_000_000
"""So many that the fixed cost of a job, about 0.1 s, hardly counts."""
WRITTEN_RECORDS = 1_000_000
QUICK_RECORDS = 200_000
BATCH_RECORDS = 10_000
WARM_RUNS = 4
"""Runs before those that are measured: until then the JVM's compilers are at work."""
HASHING = """
import hashlib
leaf = bytes(1_700)  # about 16 such records
for _ in range(300_000):
    hashlib.sha3_256(leaf).digest()
"""


def build_queue(folder: Path, records: int, record_bytes: int = RECORD_BYTES) -> None:
    """Write a store with one partition of `records` different records of random bytes."""
    keys = KeyPair(bytes(32))
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=keys))
    queue = Topics.at(root, keys.public_key).partition("bench", 0)
    with CellStore.open(folder) as store:
        for first in range(0, records, BATCH_RECORDS):
            stop = min(first + BATCH_RECORDS, records)
            queue.offer_many(
                [
                    hashlib.shake_128(i.to_bytes(8, "big")).digest(record_bytes)
                    for i in range(first, stop)
                ]
            )
            store.commit(root.get())


def session(cores: int, memory: str = "2g") -> SparkSession:
    """Return a session whose JVM compiles as far as it can."""
    spark = spark_session("bench", cores=cores, memory=memory, quick_start=False)
    register(spark)
    return spark


def cpu_seconds() -> dict[str, float]:
    """Return the processor time that this process's JVM and Python workers have used."""
    if not Path("/proc/self/stat").exists():
        return {}
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            head, _, tail = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue  # it has just ended
        fields = tail.split()
        pid = int(entry.name)
        names[pid] = head.partition("(")[2]
        parents[pid] = int(fields[1])
        spent[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    found = {"jvm": 0.0, "python": 0.0}
    for pid, seconds in spent.items():
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid() and pid != above:
            found["jvm" if names[pid] == "java" else "python"] += seconds
    return found


def seconds_of(work: Callable[[], None], runs: int) -> tuple[float, float]:
    """Return (median seconds, share of the processors' time outside Python), warm."""
    times: list[float] = []
    shares: list[float] = []
    for run in range(WARM_RUNS + runs):
        before = cpu_seconds()
        begin = time.perf_counter()
        work()
        spent = time.perf_counter() - begin
        after = cpu_seconds()
        if run >= WARM_RUNS:
            times.append(spent)
            used = {name: after[name] - before[name] for name in after}
            shares.append(used["jvm"] / max(sum(used.values()), 0.01) if used else 0.0)
    return statistics.median(times), statistics.median(shares)


def read_all(frame: DataFrame) -> Callable[[], None]:
    """Return a call that reads every column of every row."""
    return lambda: frame.write.format("noop").mode("overwrite").save()


def row(name: str, records: int, seconds: float, share: float, peers: dict[str, float]) -> Row:
    """Return a row of the bench."""
    beside = {
        "MB/s": records * RECORD_BYTES / seconds / 1e6,
        **{peer: records / spent for peer, spent in peers.items()},
        "jvm": share,
    }
    return figure(name, records / seconds, "records/s", beside)


@contextmanager
def one_core(*, pinned: bool) -> Iterator[None]:
    """Bind this process, and what it starts meanwhile, to one core."""
    if not pinned:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def machine_scaling() -> float:
    """Return how much more two processes of this machine hash than one; reading mostly hashes."""

    def seconds(count: int) -> float:
        begin = time.perf_counter()
        workers = [subprocess.Popen([sys.executable, "-c", HASHING]) for _ in range(count)]
        assert all(worker.wait() == 0 for worker in workers)
        return time.perf_counter() - begin

    return 2 * min(seconds(1) for _ in range(3)) / min(seconds(2) for _ in range(3))


def read_rows(
    name: str, spark: SparkSession, folder: Path, records: int, runs: int
) -> Iterator[Row]:
    """Yield the rows of reading, their peer among them."""
    reader = spark.read.format("lattice.queue").option("valueFormat", "bytes")
    queue = reader.load(str(folder / "store"))
    unverified = reader.option("verify", "false").load(str(folder / "store"))
    parquet = str(folder / "parquet")
    if not Path(parquet).exists():
        queue.write.parquet(parquet)
    same = spark.read.parquet(parquet)
    assert same.count() == records
    peer, _ = seconds_of(read_all(same), runs)
    for what, frame in (("read", queue), ("unverified", unverified)):
        seconds, share = seconds_of(read_all(frame), runs)
        yield row(f"spark-{what}-{name}", records, seconds, share, {"parquet": peer})


def duckdb_row(folder: Path, records: int, runs: int) -> Row:
    """Return the row of DuckDB, which reads the queue in place, beside the Parquet files."""
    import duckdb

    with datalattice.open(folder, read_only=True) as node:
        log = node.queue("bench", owner=KeyPair(bytes(32)).public_key)
        query = "select count(*), sum(octet_length(value)), max(timestamp) from"

        def seconds(source: str) -> float:
            begin = time.perf_counter()
            reader = log.to_arrow(values="bytes")  # noqa: F841 - DuckDB finds it by its name
            found = duckdb.sql(f"{query} {source}").fetchone()
            assert found is not None
            assert found[:2] == (records, records * RECORD_BYTES)
            return time.perf_counter() - begin

        ours, parquet = (
            statistics.median(seconds(source) for _ in range(runs))
            for source in ("reader", f"'{folder}/parquet/*.parquet'")
        )
    return row("duckdb-read", records, ours, 0.0, {"parquet": parquet})


def write_rows(name: str, spark: SparkSession, folder: Path, records: int) -> Row:
    """Return the row of writing, its peer among it."""
    records = min(records, WRITTEN_RECORDS)
    same = spark.read.parquet(str(folder / "parquet"))
    values = same.where(f"offset < {records}").select("value")

    def write() -> None:
        home = Path(tempfile.mkdtemp(dir=folder))
        write_key(home / "key", KeyPair(bytes(32)))
        writer = values.write.format("lattice.queue").option("topic", "copy")
        writer.option("valueFormat", "bytes").mode("append").save(str(home))
        shutil.rmtree(home)

    def write_parquet() -> None:
        values.write.mode("overwrite").parquet(str(folder / "copy"))

    seconds, share = seconds_of(write, 1)
    peer, _ = seconds_of(write_parquet, 1)
    peers = {"parquet": peer, "offer_many": offer_seconds(folder, records)}
    return row(f"spark-write-{name}", records, seconds, share, peers)


def offer_seconds(folder: Path, records: int) -> float:
    """Return the seconds that one process takes to offer as many records, without Spark."""
    listed = [hashlib.shake_128(i.to_bytes(8, "big")).digest(RECORD_BYTES) for i in range(records)]
    home = Path(tempfile.mkdtemp(dir=folder))
    keys = KeyPair(bytes(32))
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=keys))
    queue = Topics.at(root, keys.public_key).partition("copy", 0)
    begin = time.perf_counter()
    with CellStore.open(home / "store") as store:
        for first in range(0, records, BATCH_RECORDS):
            queue.offer_many(listed[first : first + BATCH_RECORDS])
            store.commit(root.get())
    spent = time.perf_counter() - begin
    shutil.rmtree(home)
    return spent


def measured(
    name: str, folder: Path, records: int, runs: int, *, cores: int, pinned: bool = False
) -> Iterator[Row]:
    """Yield the rows of one session."""
    with one_core(pinned=pinned):
        spark = session(cores)
        try:
            yield from read_rows(name, spark, folder, records, runs)
            if name != "task":
                yield write_rows(name, spark, folder, records)
        finally:
            end_session(spark)


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows of this group."""
    records = QUICK_RECORDS if quick else RECORDS
    runs = 3
    folder = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    try:
        build_queue(folder / "store", records)
        yield from measured("task", folder, records, runs, cores=1)
        yield duckdb_row(folder, records, runs)
        single: dict[str, Row] = {}
        if hasattr(os, "sched_setaffinity"):
            for found in measured("1", folder, records, runs, cores=1, pinned=True):
                single[found["row"].removesuffix("-1")] = found
                yield found
        machine = machine_scaling()
        for found in measured("2", folder, records, runs, cores=2):
            one = single.get(found["row"].removesuffix("-2"))
            if one is not None:
                peers = found["peers"]
                peers["scaling"] = found["value"] / one["value"]
                peers["parquet's"] = peers["parquet"] / one["peers"]["parquet"]
                peers["machine"] = machine
            yield found
    finally:
        shutil.rmtree(folder)
