"""Command `lattice spark audit`: every byte and cell of a store, checked by many tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer
from typer.exceptions import Exit

from datalattice.cli.folder import DirOption, JsonOption
from datalattice.cli.render import print_lines, print_notice, show
from datalattice.cli.spark.session import (
    MEMORY,
    MasterOption,
    MemoryOption,
    PackageOption,
    print_report,
    spark_job,
)
from datalattice.cli.spark.stores import PartsOption, StoreArgument, store_path

EXIT_FAILED: Final = 1

LINES_MAX: Final = 20
"""Faults that are printed; --json has more, --to has all."""


def audit(
    store: StoreArgument = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Write all faults to this new folder, as Parquet."),
    ] = None,
    parts: PartsOption = None,
    master: MasterOption = None,
    memory: MemoryOption = MEMORY,
    package: PackageOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Check everything in a store: packs, hashes, canonical form, references, signatures.

    Works beside a running node. Exit code 1 when there is a fault.
    """
    from datalattice.pipeline.jobs import audit as run_audit

    path = store_path(store, dir)
    with spark_job("audit", master, memory, package, quiet=json) as job:
        report = run_audit(job.spark, path, parts=parts, progress=job.progress)
        if to is not None:
            report.faults.write.parquet(str(to.absolute()))
        document = {**report.as_json(), "seconds": job.seconds}
    show(json, document, lambda: _print(document))
    if not document["clean"]:
        print_notice("the store has faults; `lattice disk heal` repairs it from peers")
        raise Exit(EXIT_FAILED)


def _print(document: dict[str, object]) -> None:
    faults = document.pop("faults")
    counts = document.pop("counts")
    assert isinstance(faults, list)
    assert isinstance(counts, dict)
    print_report({**document, **counts}, as_json=False)
    print_lines(
        f"{one['kind']}: {one['file']} at byte {one['offset']}: {one['detail']}"
        + (f" (cell {one['hash']})" if one["hash"] else "")
        for one in faults[:LINES_MAX]
    )
    more = sum(counts.values()) + int(str(document["scars"])) - LINES_MAX
    if more > 0:
        print_lines([f"{more} more; --json lists up to 1000, --to writes all"])
