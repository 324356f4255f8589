"""Progress of a job's tasks, reported while Spark runs them.

A job takes a function `progress`, and calls it with the name of a step, the number of finished
tasks and the number of all tasks. Spark reports task counts in two ways, one for a driver in this
process and one for Spark Connect. This module offers one function for both.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

OnStep = Callable[[str, int, int | None], object]
"""Called with (step, done, total); total is None while it is unknown."""

POLL_SECONDS: Final = 0.2
"""How often a driver in this process is polled."""

_GROUP: Final = "spark.jobGroup.id"
_groups: Final = itertools.count()


def ignore_progress(_step: str, _done: int, _total: int | None) -> None:
    """Ignore progress."""


@contextmanager
def watching_tasks(spark: SparkSession, step: str, progress: OnStep | None) -> Iterator[None]:
    """Report to `progress` the tasks that Spark runs for this thread inside the block."""
    if progress is None:
        yield
    # Recognized by name: importing Connect needs packages that a local Spark does not need.
    elif type(spark).__module__.startswith("pyspark.sql.connect"):
        with _watching_remote(spark, step, progress):
            yield
    else:
        with _watching_local(spark.sparkContext, step, progress):
            yield


@contextmanager
def _watching_remote(spark: SparkSession, step: str, progress: OnStep) -> Iterator[None]:
    def report(stages: Iterable[Any] | None, *_rest: object, **_named: object) -> None:
        found = list(stages or ())
        if found:
            done = sum(stage.num_completed_tasks for stage in found)
            progress(step, done, sum(stage.num_tasks for stage in found))

    # Connect calls the handler for every operation of the session, so it is removed afterwards.
    spark.registerProgressHandler(report)  # type: ignore[arg-type]  # called as it is here
    try:
        yield
    finally:
        spark.removeProgressHandler(report)  # type: ignore[arg-type]  # as above


@contextmanager
def _watching_local(context: SparkContext, step: str, progress: OnStep) -> Iterator[None]:
    """Poll the state of a job group in a separate thread."""
    # A new job group, so that jobs of other threads are not counted.
    group = f"datalattice-{next(_groups)}"
    before = context.getLocalProperty(_GROUP)
    context.setLocalProperty(_GROUP, group)
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(POLL_SECONDS):
            _tell(context, group, step, progress)

    asking = threading.Thread(target=ask, name="progress", daemon=True)
    asking.start()
    try:
        yield
    finally:
        ended.set()
        asking.join()
        # The caller's own job group is restored.
        context.setLocalProperty(_GROUP, before)  # type: ignore[arg-type]  # None removes it
    _tell(context, group, step, progress)


def _tell(context: SparkContext, group: str, step: str, progress: OnStep) -> None:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    ids = {stage for job in jobs if job is not None for stage in job.stageIds}
    stages = [stage for stage in map(tracker.getStageInfo, sorted(ids)) if stage is not None]
    # Before the first stage is planned there is no total to report.
    if stages:
        done = sum(stage.numCompletedTasks for stage in stages)
        progress(step, done, sum(stage.numTasks for stage in stages))
