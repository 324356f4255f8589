"""Command `lattice spark merge`: many replicas become one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import Exit

from datalattice.cli.folder import JsonOption, read_key
from datalattice.cli.imported import EXIT_SHORT
from datalattice.cli.render import print_notice
from datalattice.cli.spark.session import (
    MEMORY,
    MasterOption,
    MemoryOption,
    PackageOption,
    print_report,
    spark_job,
)


def merge(
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
    json: JsonOption = False,
) -> None:
    """Merge replicas in their order, as one process would, by many tasks.

    The result goes into a node's folder (through the node, if it runs), a new store, or a new file.
    What is malformed in an input is left out and named, with exit code 1.
    """
    from datalattice.pipeline.jobs import FAN_IN, resolve_input
    from datalattice.pipeline.jobs import merge as job

    for one in inputs:
        resolve_input(one)  # what is not there is told at once, not when Spark has started
    with spark_job("merge", master, memory, package, quiet=json) as run:
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
    print_report(report.as_json(), as_json=json)
    if report.owner_forks:
        print_notice(
            f"{len(report.owner_forks)} owners wrote apart and nobody here may sign for them: "
            "the first of their values was kept"
        )
    if report.dropped:
        print_notice(
            f"{report.dropped} entries were not merged: they are not valid or not allowed here"
        )
    if report.refused:
        for one in report.refused:
            print_notice(f"left out: {one}")
        raise Exit(EXIT_SHORT)
