"""Command `lattice spark gc`: mark a store in many tasks, and write down what may go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from datalattice.cli.command import Call
from datalattice.cli.render import Result, is_json
from datalattice.cli.spark.session import (
    MEMORY,
    MasterOption,
    MemoryOption,
    PackageOption,
    PartsOption,
    StoreArgument,
    report_of,
    spark_job,
    store_path,
)
from datalattice.cli.units import duration_ms


def gc(
    call: Call,
    to: Annotated[Path, typer.Option("--to", help="Write the sweep list to this file.")],
    store: StoreArgument = None,
    grace: Annotated[
        str, typer.Option("--grace", help="What is younger stays: 30s, 10m, 1h, 2d; 0: nothing.")
    ] = "1h",
    parts: PartsOption = None,
    master: MasterOption = None,
    memory: MemoryOption = MEMORY,
    package: PackageOption = None,
) -> Result:
    """Mark what a store needs, and write the list of what may go; removes nothing.

    `lattice disk sweep LIST` applies it. Works beside a running node.
    """
    from datalattice.pipeline.jobs import gc as run_gc

    grace_ms = duration_ms(grace)
    path = store_path(store, call)
    with spark_job("gc", master, memory, package) as job:
        report = run_gc(
            job.spark,
            path,
            str(to.absolute()),
            grace_ms=grace_ms,
            parts=parts,
            progress=job.progress,
        )
        document = {**report.as_json(), "seconds": job.seconds}
    notices = [] if is_json() else [f"nothing was removed yet; `lattice disk sweep {to}` does so"]
    return report_of(document, 0, *notices)
