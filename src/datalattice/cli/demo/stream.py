"""Stream: Spark reads the replicated queues at hq and computes the figures.

The query is a stream over the `lattice.queue` source with a checkpoint, so a later run goes on
where an earlier one ended. It sums whole numbers by carrier and hour; after every micro-batch the
sums so far are handed over.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from datalattice.cli.demo.figures import LATE_MINUTES, Figure
from datalattice.cli.demo.flights import CARRIER, DELAY, HOUR, MISSING
from datalattice.cli.demo.sites import FLIGHTS_TOPIC
from datalattice.errors import DataLatticeError, Unavailable, UsageError

if TYPE_CHECKING:
    from datalattice.pipeline import DataFrame, SparkSession

DRIVER_MEMORY: Final = "1g"
TRIGGER_ROWS: Final = 100_000
"""Most records of one micro-batch: small enough to show progress, large enough to be quick."""

FIGURES: Final = """
    SELECT carrier, hour,
           count(*) AS flights,
           count(dep_delay) AS departed,
           coalesce(sum(dep_delay), 0) AS delay_minutes,
           count_if(dep_delay > :late) AS late
    FROM {flights}
    GROUP BY carrier, hour
"""
"""What Spark computes. A flight that was cancelled has no delay."""

Groups = list[tuple[str, int, Figure]]
"""Figures by (carrier, hour)."""


def check_spark() -> None:
    """Look whether Spark can run here, before anything is done that needs it later.

    Raises: UsageError: PySpark or a Java runtime is missing.
    """
    from datalattice.pipeline import find_java

    for module in ("pyspark", "pyarrow"):
        if find_spec(module) is None:
            raise UsageError(f"the demo needs {module}: pip install 'datalattice[demo]'")
    find_java()


def start_spark(cores: int | None) -> SparkSession:
    """Return a local Spark that knows the `lattice.queue` source.

    Raises: UsageError: PySpark or a Java runtime is missing.
    """
    from datalattice.pipeline import register, spark_session

    spark = spark_session("datalattice demo", cores=cores, memory=DRIVER_MEMORY)
    register(spark)
    return spark


def compute(
    spark: SparkSession,
    store: Path,
    checkpoint: Path,
    columns: Sequence[str],
    receive: Callable[[Groups], None],
) -> None:
    """Run the stream over everything in the store that it has not seen; return at its end.

    `receive` gets the figures so far after every micro-batch; one may come twice after an
    interruption.

    Raises: DataLatticeError: what `receive` or the source raised. Unavailable: Spark failed.
    """
    failures: list[DataLatticeError] = []
    from datalattice.pipeline import clear_errors

    rows = (
        spark.readStream.format("lattice.queue")
        .option("store", str(store))
        .option("topic", FLIGHTS_TOPIC)
        .option("columns", "value")
        .option("valueFormat", "string")
        .option("maxOffsetsPerTrigger", str(TRIGGER_ROWS))
        .load()
    )

    def hand_over(batch: DataFrame, _number: int) -> None:
        try:
            receive(_collected(batch))
        except DataLatticeError as error:
            failures.append(error)  # Spark would wrap it beyond recognition
            raise

    writer = (
        _figures(rows, columns)
        .writeStream.outputMode("complete")
        .foreachBatch(hand_over)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )
    try:
        with clear_errors():
            writer.start().awaitTermination()
    except DataLatticeError:
        raise
    except Exception as error:
        if failures:
            raise failures[0] from error
        words = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unavailable(f"Spark failed: {words}") from error


def _figures(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the query: each record is a line of the file, parsed and summed by Spark."""
    numbers = {DELAY: "INT", HOUR: "INT"}
    schema = ", ".join(f"`{name}` {numbers.get(name, 'STRING')}" for name in columns)
    flight = f"from_csv(value, '{schema}', map('nullValue', '{MISSING}', 'mode', 'FAILFAST'))"
    flights = rows.selectExpr(f"{flight} AS flight").selectExpr("flight.*")
    return flights.sparkSession.sql(FIGURES, {"late": LATE_MINUTES}, flights=flights)


def _collected(batch: DataFrame) -> Groups:
    return [
        (
            str(row[CARRIER]),
            int(row[HOUR]),
            Figure(
                int(row["flights"]),
                int(row["departed"]),
                int(row["delay_minutes"]),
                int(row["late"]),
            ),
        )
        for row in batch.collect()
    ]


def forget(checkpoint: Path) -> None:
    """Remove what the stream remembers, so that it begins again."""
    with suppress(FileNotFoundError):
        shutil.rmtree(checkpoint)
