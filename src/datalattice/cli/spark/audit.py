"""Command `lattice spark audit`: every byte and cell of a store, checked by many tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from datalattice.cli.command import Call
from datalattice.cli.render import Result
from datalattice.cli.spark.session import (
    MEMORY,
    MasterOption,
    MemoryOption,
    PackageOption,
    PartsOption,
    StoreArgument,
    report_lines,
    spark_job,
    store_path,
)

EXIT_FAILED: Final = 1

LINES_MAX: Final = 20
"""Faults that are printed; --json has more, --to has all."""


def audit(
    call: Call,
    store: StoreArgument = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Write all faults to this new folder, as Parquet."),
    ] = None,
    parts: PartsOption = None,
    master: MasterOption = None,
    memory: MemoryOption = MEMORY,
    package: PackageOption = None,
) -> Result:
    """Check everything in a store: packs, hashes, canonical form, references, signatures.

    Works beside a running node. Exit code 1 when there is a fault.
    """
    from datalattice.pipeline.jobs import audit as run_audit

    path = store_path(store, call)
    with spark_job("audit", master, memory, package) as job:
        report = run_audit(job.spark, path, parts=parts, progress=job.progress)
        if to is not None:
            report.faults.write.parquet(str(to.absolute()))
        document = {**report.as_json(), "seconds": job.seconds}
    lines = _lines(dict(document))
    if document["clean"]:
        return Result(document, lines)
    advice = "the store has faults; `lattice disk heal` repairs it from peers"
    return Result(document, lines, EXIT_FAILED, [advice])


def _lines(document: dict[str, object]) -> list[str]:
    faults = document.pop("faults")
    counts = document.pop("counts")
    assert isinstance(faults, list)
    assert isinstance(counts, dict)
    lines = report_lines({**document, **counts})
    lines += [
        f"{one['kind']}: {one['file']} at byte {one['offset']}: {one['detail']}"
        + (f" (cell {one['hash']})" if one["hash"] else "")
        for one in faults[:LINES_MAX]
    ]
    more = sum(counts.values()) + int(str(document["scars"])) - LINES_MAX
    if more > 0:
        lines.append(f"{more} more; --json lists up to 1000, --to writes all")
    return lines
