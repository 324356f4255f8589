"""Stream: Spark reads the replicated queues at hq and computes the figures.

The query is a stream over the `lattice.queue` source with a checkpoint, so a later run continues
where an earlier one ended. It sums whole numbers by carrier and hour. After every micro-batch the
demo gets the sums so far, and the micro-batch ends when the demo answers that they are written.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from datalattice.errors import DataLatticeError, UsageError
from flights.dataset import CARRIER, DELAY, HOUR, MISSING
from flights.figures import LATE_MINUTES, Figure
from flights.sites import FLIGHTS_TOPIC

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
"""The query that Spark runs. A cancelled flight has no delay."""

MESSAGE: Final = "datalattice "
"""Beginning of the lines for the demo, which distinguishes them from Java's output."""


@dataclass(frozen=True, slots=True)
class Task:
    """The input of the computation."""

    store: str
    checkpoint: str
    columns: list[str]
    cores: int | None


Groups = list[tuple[str, int, Figure]]
"""Figures by (carrier, hour)."""


def check_spark() -> None:
    """Check that Spark can run here, before the steps that precede it.

    Raises: UsageError: PySpark or a Java runtime is missing.
    """
    from datalattice.pipeline import find_java

    for module in ("pyspark", "pyarrow"):
        if find_spec(module) is None:
            raise UsageError(f"the demo needs {module}: pip install 'datalattice[demo]'")
    find_java()


def serve() -> None:
    """Run the process of Spark; `driver` describes the messages.

    It ends at once when its standard input ends; Spark's own processes end with it.
    """
    task = Task(**json.loads(sys.stdin.readline()))
    answers: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(answers,), daemon=True).start()

    def receive(groups: Groups) -> None:
        rows = [[carrier, hour, asdict(figure)] for carrier, hour, figure in groups]
        _tell(groups=rows)
        # The micro-batch ends only when the figures are written, so a checkpoint is never ahead of
        # them.
        answers.get()

    try:
        _run(task, receive)
    except DataLatticeError as error:
        _tell(error=str(error))
    except Exception as error:  # noqa: BLE001 - py4j and Spark raise exceptions of any type
        _tell(failure=(str(error).strip().splitlines() or [repr(error)])[0])
    else:
        _tell(done=True)


def _listen(answers: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        answers.put(line)
    os._exit(1)  # the demo has ended, so the running work has no receiver


def _tell(**message: object) -> None:
    print(MESSAGE + json.dumps(message), flush=True)


def _run(task: Task, receive: Callable[[Groups], None]) -> None:
    from datalattice.pipeline import clear_errors, end_session, register, spark_session

    spark = spark_session("datalattice demo", cores=task.cores, memory=DRIVER_MEMORY)
    try:
        register(spark)
        with clear_errors():
            _stream(spark, task, receive)
    finally:
        end_session(spark)


def _stream(spark: SparkSession, task: Task, receive: Callable[[Groups], None]) -> None:
    rows = (
        spark.readStream.format("lattice.queue")
        .option("store", task.store)
        .option("topic", FLIGHTS_TOPIC)
        .option("columns", "value")
        .option("valueFormat", "string")
        .option("maxOffsetsPerTrigger", str(TRIGGER_ROWS))
        .load()
    )
    query = (
        _figures(rows, task.columns)
        .writeStream.outputMode("complete")
        # "complete": each micro-batch gives the sums of everything so far, so one that is repeated
        # after an interruption gives the same figures, not twice as much.
        .foreachBatch(lambda batch, _number: receive(_collected(batch)))
        .option("checkpointLocation", task.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _figures(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the query: each record is a line of the file, parsed and summed by Spark."""
    numbers = {DELAY: "INT", HOUR: "INT"}
    schema = ", ".join(f"`{name}` {numbers.get(name, 'STRING')}" for name in columns)
    # FAILFAST: a line that does not parse fails the query instead of being counted as NULLs.
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
