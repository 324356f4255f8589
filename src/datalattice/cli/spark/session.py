"""Session: what the commands `lattice spark ...` have in common: Spark, progress and the report.

with spark_job("merge", master, memory, package, quiet=json) as job:
    report = merge(job.spark, ..., progress=job.progress)
print_report(report.as_json(), as_json=json)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from datalattice.cli.render import Bars, Step, print_pairs, progress_bars, show
from datalattice.cli.running import size_text

if TYPE_CHECKING:
    from datalattice.pipeline import SparkSession

MEMORY: Final = "2g"

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        help="Where Spark runs: local[N], spark://HOST:PORT, or sc://HOST:PORT (Spark Connect). "
        "Default: local, on all cores.",
        show_default=False,
    ),
]
MemoryOption = Annotated[
    str, typer.Option("--memory", help="Memory of the driver's JVM: a number and k, m, g or t.")
]
PackageOption = Annotated[
    Path | None,
    typer.Option(
        "--package",
        help="Archive of this package for the workers of a cluster, as examples/cluster/pack.py "
        "makes it; with --master spark://...",
        show_default=False,
    ),
]


@dataclass(slots=True)
class SparkJob:
    """A session for one command, and its bars: one for each step of the job."""

    spark: SparkSession
    bars: Bars
    began: float
    steps: dict[str, Step] = field(default_factory=dict)

    def progress(self, step: str, done: int, total: int | None) -> None:
        """Show how far a step is; what jobs take as `progress`."""
        if step not in self.steps:
            self.steps[step] = self.bars.add(step)
        self.steps[step].to(done, total)

    @property
    def seconds(self) -> float:
        """Seconds since the session was there."""
        return round(time.monotonic() - self.began, 3)


@contextmanager
def spark_job(
    name: str, master: str | None, memory: str, package: Path | None, *, quiet: bool
) -> Iterator[SparkJob]:
    """Give a session for a command; progress is shown on a terminal, unless `quiet`.

    Raises: UsageError: Spark or Java is not to be had, or an option is not of its form.
    """
    from datalattice.pipeline.jobs import job_session

    with progress_bars(quiet=quiet) as bars:
        starting = bars.add("Spark starts", 1)
        title = f"lattice spark {name}"
        with job_session(title, master=master, memory=memory, package=package) as spark:
            starting.advance()
            yield SparkJob(spark, bars, time.monotonic())


def print_report(document: Mapping[str, object], *, as_json: bool) -> None:
    """Print a job's report: one JSON document, or names and values.

    Units: values whose name begins or ends with `bytes` are bytes, and printed with a unit.
    """
    pairs = {name.replace("_", " "): _shown(name, value) for name, value in document.items()}
    show(as_json, dict(document), lambda: print_pairs(pairs))


def _shown(name: str, value: object) -> object:
    if isinstance(value, (int, float)) and "bytes" in (name[:5], name[-5:]):
        return size_text(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return value
