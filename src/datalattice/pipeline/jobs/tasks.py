"""Run a function on many payloads, one Spark task each, and collect the answers.

    for answer in run_tasks(spark, partial(work, settings), payloads, "merge", progress):
        ...

The function belongs to one of our modules; payloads and answers are bytes. A driver in this process
and Spark Connect work alike: payloads are rows of `spark.range`, one row a partition, and answers
are rows of a DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from datalattice.arrow import record_batch
from datalattice.pipeline.spark.progress import OnStep, watching_tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TaskFunction = Callable[[bytes], bytes]
"""Maps a payload to an answer; runs in a task."""

PAYLOADS_MAX: Final = 10_000
"""Tasks of one Spark job; more payloads run as several jobs, one after another."""


def run_tasks(
    spark: SparkSession,
    work: TaskFunction,
    payloads: Sequence[bytes],
    step: str,
    progress: OnStep | None = None,
) -> list[bytes]:
    """Return the answers of `work` in the order of the payloads.

    progress: receives how many tasks of `step` are done.
    Cost:   the driver holds all payloads and answers in memory; keep them small.
    """
    answers: dict[int, bytes] = {}
    with watching_tasks(spark, step, progress):
        # Spark keeps an object for each task of a job: more run one job after another.
        for first in range(0, len(payloads), PAYLOADS_MAX):
            some = payloads[first : first + PAYLOADS_MAX]
            rows = mapped(spark, partial(_answers, work, list(some)), len(some), _ANSWER).collect()
            answers.update({first + row["task"]: bytes(row["answer"]) for row in rows})
    return [answers[task] for task in range(len(payloads))]


Batches = Callable[[int], "Iterator[pa.RecordBatch]"]
"""Yields the rows of the task with this number."""

_ANSWER: Final = "task BIGINT, answer BINARY"


def mapped(spark: SparkSession, rows: Batches, count: int, schema: str) -> DataFrame:
    """Return the rows of `count` tasks as a lazy DataFrame. schema: the columns in Spark's DDL."""
    # One row a partition, so one task for each number.
    numbers = spark.range(0, count, 1, max(1, count))
    return numbers.mapInArrow(partial(_mapped, rows), schema)


def _mapped(rows: Batches, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for task in batch.column(0).to_pylist():
            yield from rows(task)


def _answers(work: TaskFunction, payloads: list[bytes], task: int) -> Iterator[pa.RecordBatch]:
    yield record_batch([(task, work(payloads[task]))], _ANSWER)
