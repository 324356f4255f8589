"""Run a job on a Spark cluster whose workers get this package shipped.

    python examples/cluster/job.py spark://127.0.0.1:7077 data/store --package datalattice.tar.gz

Tasks read all queues of a store, decode every record and count it. Beside the counts they report
the executor in which they ran, and the path from which it imported the package.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

import datalattice
from datalattice.cells import decode_message, encode
from datalattice.pipeline import clear_errors, end_session, register, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA: Final = "topic STRING, records BIGINT, bytes BIGINT, executor STRING, package STRING"

# Tasks begin when all executors are registered; otherwise the first might run a small job alone.
EXECUTORS: Final = {"spark.scheduler.minRegisteredResourcesRatio": "1.0"}


def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the counts of records by topic, for each batch; runs in tasks."""
    place = {"executor": str(Path.cwd()), "package": str(Path(datalattice.__file__).parent)}
    for batch in batches:
        found: dict[str, list[int]] = {}
        for row in batch.to_pylist():
            topic = found.setdefault(row["topic"], [0, 0])
            topic[0] += 1
            # Encoded again, so that the job does real work on every record.
            topic[1] += len(encode(decode_message(row["value"])))
        rows = [{"topic": t, "records": n, "bytes": b} | place for t, (n, b) in found.items()]
        yield from pa.Table.from_pylist(rows).to_batches()


def run(spark: SparkSession, store: str, tasks: int) -> dict[str, object]:
    """Read all queues of a store in at least `tasks` tasks; return the counts and executors."""
    reader = spark.read.format("lattice.queue").option("columns", "topic,value")
    records = reader.option("minPartitions", tasks).load(store)
    topics: dict[str, dict[str, int]] = {}
    executors: dict[str, str] = {}
    for row in records.mapInArrow(counted, SCHEMA).collect():
        topic = topics.setdefault(row.topic, {"records": 0, "bytes": 0})
        topic["records"] += row.records
        topic["bytes"] += row.bytes
        executors[row.executor] = row.package
    return {"topics": topics, "executors": executors}


def main() -> None:
    """Run the job, and print its result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("master", help="spark://HOST:PORT, sc://HOST:PORT or local[N]")
    parser.add_argument("store", help="the folder of a store that the workers can open")
    parser.add_argument("--package", type=Path, help="the archive made by pack.py")
    parser.add_argument("--cores", type=int, help="of all workers together, default: all")
    options = parser.parse_args()
    spark = spark_session(
        "count records",
        cores=options.cores,
        memory="512m",
        master=options.master,
        package=options.package,
        config=EXECUTORS if options.master.startswith("spark:") else {},
    )
    try:
        register(spark)
        with clear_errors():
            print(json.dumps(run(spark, options.store, tasks=4 * (options.cores or 2)), indent=2))
    finally:
        end_session(spark)


if __name__ == "__main__":
    main()
