"""Command `lattice spark merge`: many replicas become one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from datalattice.cli.command import Call
from datalattice.cli.disk.archive import EXIT_INCOMPLETE
from datalattice.cli.render import Result
from datalattice.cli.spark.session import (
    MEMORY,
    MasterOption,
    MemoryOption,
    PackageOption,
    report_of,
    spark_job,
)
from datalattice.client import read_key


def merge(
    call: Call,
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Exported files, stores, or folders of nodes; a folder perhaps with @ and a root: "
            "HEAD~2, a pin, a time, a hash."
        ),
    ],
    into: Annotated[
        Path | None, typer.Option("--into", help="Merge them into the folder of a node.")
    ] = None,
    store: Annotated[Path | None, typer.Option("--store", help="Make a new store.")] = None,
    archive: Annotated[
        Path | None, typer.Option("--archive", help="Write one file, as `disk export` does.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key", help="Key file that signs what its owner wrote apart. A node has its own."
        ),
    ] = None,
    staging: Annotated[
        Path | None,
        typer.Option(
            "--staging", help="A folder that all tasks reach. Default: beside the output."
        ),
    ] = None,
    fan_in: Annotated[
        int | None, typer.Option("--fan-in", min=2, max=64, help="Inputs that one task merges.")
    ] = None,
    master: MasterOption = None,
    memory: MemoryOption = MEMORY,
    package: PackageOption = None,
) -> Result:
    """Merge replicas in their order, as one process would, by many tasks.

    The result goes into a node's folder (through the node, if it runs), a new store, or a new file.
    What is malformed in an input is left out and named, with exit code 1.
    """
    from datalattice.pipeline.jobs import FAN_IN, resolve_input
    from datalattice.pipeline.jobs import merge as job

    for one in inputs:
        resolve_input(one)  # a missing one is refused at once, not when Spark has started
    with spark_job("merge", master, memory, package) as run:
        report = job(
            run.spark,
            inputs,
            into=None if into is None else str(into),
            store=None if store is None else str(store),
            archive=None if archive is None else str(archive),
            key=None if key is None else read_key(key),
            staging=None if staging is None else str(staging),
            fan_in=fan_in or FAN_IN,
            progress=run.progress,
        )
    notices = []
    if report.owner_forks:
        notices.append(
            f"{len(report.owner_forks)} owners wrote apart and no key here may sign for them: "
            "the first of their values was kept"
        )
    if report.dropped:
        notices.append(
            f"{report.dropped} entries were not merged: they are not valid or not allowed here"
        )
    notices += [f"left out: {one}" for one in report.refused]
    return report_of(report.as_json(), EXIT_INCOMPLETE if report.refused else 0, *notices)
