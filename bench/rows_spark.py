"""Rows of the Spark source: all columns of 100-byte records, beside the same rows in Parquet."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datalattice.apps.queue import LatticeMQ
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, root_lattice
from datalattice.pipeline import register, spark_session
from datalattice.pipeline.queue import leaves
from datalattice.store import CellStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMPILED = not leaves.__file__.endswith(".py")
CORES = 2
RECORD_BYTES = 100
BATCH_RECORDS = 10_000
Row = dict[str, Any]


def build_queue(folder: Path, records: int) -> None:
    """Write a store with one partition of `records` records of 100 bytes, each another."""
    keys = KeyPair(bytes(32))
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=keys))
    queue = LatticeMQ.at(root, keys.public_key).partition("bench", 0)
    with CellStore.open(folder) as store:
        for first in range(0, records, BATCH_RECORDS):
            stop = min(first + BATCH_RECORDS, records)
            queue.offer_many([i.to_bytes(RECORD_BYTES, "little") for i in range(first, stop)])
            store.commit(root.get())


def records_per_second(frame: DataFrame, records: int, runs: int) -> float:
    """Return the median rate at which Spark gets every column of `frame`, after one read more."""
    rates = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        rates.append(records / (time.perf_counter() - begin))
    return statistics.median(rates[1:])


def measured(spark: SparkSession, folder: Path, records: int, runs: int) -> Row:
    """Return the row: the queue's rate, and Parquet's with the same rows."""
    queue = (
        spark.read.format("lattice.queue").option("valueFormat", "bytes").load(str(folder / "s"))
    )
    assert queue.count() == records
    parquet = str(folder / "parquet")
    queue.write.parquet(parquet)
    return {
        "row": "spark-queue-read",
        "value": records_per_second(queue, records, runs),
        "unit": "records/s",
        "peers": {"parquet": records_per_second(spark.read.parquet(parquet), records, runs)},
        "compiled": COMPILED,
    }


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows of this group."""
    records = 200_000 if quick else 1_000_000
    folder = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    try:
        build_queue(folder / "s", records)
        spark = spark_session("bench", cores=CORES)
        try:
            register(spark)
            yield measured(spark, folder, records, 3 if quick else 5)
        finally:
            spark.stop()
    finally:
        shutil.rmtree(folder)
