"""Work with lattice data through Spark Connect: read, write, run jobs; print the results as JSON.

python tests/scripts/connect_session.py sc://127.0.0.1:15002 NODE-FOLDER ROWS.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import datalattice
from datalattice.errors import UsageError
from datalattice.pipeline import clear_errors, register
from datalattice.pipeline.jobs import compact, load


def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield where a task runs, and where it imported the package from."""
    where = {"executor": str(Path.cwd()), "package": str(Path(datalattice.__file__).parent)}
    for _ in batches:
        yield from pa.Table.from_pylist([where]).to_batches()


def streamed(spark: SparkSession, folder: str) -> list[list[str]]:
    """Copy a database by a stream; return keys and values of the copy."""
    query = (
        spark.readStream.format("lattice.kv")
        .options(database="latest", columns="key,value")
        .load(folder)
        .writeStream.format("lattice.kv")
        .options(database="copy", checkpointLocation=str(Path(folder, "checkpoint")))
        .trigger(availableNow=True)
        .start(folder)
    )
    query.awaitTermination()
    reader = spark.read.format("lattice.kv").options(database="copy", valueFormat="json")
    return [[row.key, row.value] for row in reader.load(folder).orderBy("key").collect()]


def main(address: str, folder: str, rows: str) -> dict[str, object]:
    """Return the data that was read, and the reports of the jobs."""
    spark = SparkSession.builder.remote(address).getOrCreate()
    steps: set[str] = set()
    try:
        register(spark)
        seen: dict[str, object] = {"session": type(spark).__module__}
        writer = spark.range(100).selectExpr("CAST(id % 10 AS STRING) AS key", "id AS value").write
        writer.format("lattice.queue").mode("append").option("topic", "numbers").save(folder)
        reader = spark.read.format("lattice.queue").option("valueFormat", "json")
        numbers = reader.options(topic="numbers", minPartitions=8).load(folder)
        places = numbers.mapInArrow(place, "executor STRING, package STRING")
        seen["executors"] = {row.executor: row.package for row in places.collect()}
        total = numbers.selectExpr("sum(CAST(value AS BIGINT))", "count(*)").collect()[0]
        seen["numbers"] = list(total)
        with clear_errors():
            seen["load"] = load(
                spark,
                [rows],
                store=folder,
                topic="rows",
                key="name",
                progress=lambda step, _done, _total: steps.add(step),
            ).as_json()
            seen["compact"] = compact(
                spark, store=folder, topic="rows", into_database="latest"
            ).as_json()
            seen["streamed"] = streamed(spark, folder)
            cells = spark.read.format("lattice.cells").load(folder)
            seen["cells"] = cells.select("hash").distinct().count() == cells.count() > 0
        try:
            with clear_errors():
                reader.option("topic", "nowhere").load(folder).collect()
        except UsageError as error:
            seen["error"] = str(error)
        seen["steps"] = sorted(steps)
        return seen
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])) + "\n")
