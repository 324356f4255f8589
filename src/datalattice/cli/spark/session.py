"""Session: Spark, progress and the report, which the commands `lattice spark ...` share.

with spark_job(call, "merge") as job:
    report = merge(job.spark, ..., progress=job.progress)
return report_of(report.as_json())
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from datalattice.cli.command import Call
from datalattice.cli.render import Bars, CommandResult, ProgressBar, pair_lines, progress_bars
from datalattice.cli.units import size_text

if TYPE_CHECKING:
    from datalattice.pipeline import SparkSession


@dataclass(slots=True)
class SparkJob:
    """A session for one command, and its bars: one for each step of the job."""

    spark: SparkSession
    bars: Bars
    began: float
    steps: dict[str, ProgressBar] = field(default_factory=dict)

    def progress(self, step: str, done: int, total: int | None) -> None:
        """Show the progress of a step; jobs take this as `progress`."""
        if step not in self.steps:
            self.steps[step] = self.bars.add(step)
        self.steps[step].to(done, total)

    @property
    def seconds(self) -> float:
        """Seconds since the session had started, so without the start of Java."""
        return round(time.monotonic() - self.began, 3)


@contextmanager
def spark_job(call: Call, name: str) -> Iterator[SparkJob]:
    """Yield a session for a command; progress is shown on a terminal.

    Raises: UsageError: Spark or Java is not installed, or an option is malformed.
    """
    from datalattice.pipeline.jobs import job_session

    with progress_bars() as bars:
        starting = bars.add("Spark starts", 1)
        title = f"lattice spark {name}"
        with job_session(
            title, master=call.master, memory=call.memory, package=call.package
        ) as spark:
            starting.advance()
            # The time of the job begins here, because the start of Spark says nothing about it.
            yield SparkJob(spark, bars, time.monotonic())


def report_lines(document: Mapping[str, object]) -> list[str]:
    """Return the lines of a job's report; values named `bytes...` or `...bytes` have a unit."""
    return pair_lines(
        {name.replace("_", " "): _shown(name, value) for name, value in document.items()}
    )


def report_of(document: Mapping[str, object], code: int = 0, *notices: str) -> CommandResult:
    """Return a job's report as a result."""
    return CommandResult(dict(document), report_lines(document), code, notices)


def _shown(name: str, value: object) -> object:
    if isinstance(value, (int, float)) and "bytes" in (name[:5], name[-5:]):
        return size_text(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return value
