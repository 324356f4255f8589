"""Commands `lattice spark merge`, `diff`, `audit` and `gc`: jobs over replicas and whole stores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from datalattice.cli.command import SPARK, Call, command
from datalattice.cli.disk.archive import EXIT_INCOMPLETE
from datalattice.cli.disk.garbage import GRACE, GraceOption
from datalattice.cli.paths.past import KEY_DIGITS_SHOWN
from datalattice.cli.render import EXIT_FAILED, CommandResult, Listing, is_json
from datalattice.cli.spark.session import report_lines, report_of, spark_job
from datalattice.cli.units import duration_ms
from datalattice.client import read_key

if TYPE_CHECKING:
    from datalattice.pipeline import DataFrame

app = typer.Typer()


_DIFF_COUNT: Final = 100

_FAULTS_MAX: Final = 20
"""Faults that are printed; --json prints more, --to writes all."""

_SIGNS: Final = {"added": "+", "removed": "-"}

StoreFolderArgument = Annotated[
    Path | None,
    typer.Argument(
        help="Folder of a store, or of a node. Default: the store of the folder (--dir).",
        show_default=False,
    ),
]
PartsOption = Annotated[
    int | None,
    typer.Option(
        "--parts", help="Divide the store into this many tasks. Default: one per 1 GB.", min=1
    ),
]


def _store_path(store: Path | None, call: Call) -> str:
    """Return the folder of a command, absolute: workers have another working directory."""
    return str((call.existing.path if store is None else store).absolute())


@command(app, "merge", SPARK)
def merge(
    call: Call,
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Exported files, stores, or folders of nodes. After a folder there may be @ and a "
            "root: HEAD~2, a pin, a time, a hash."
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
            "--key", help="Key file that signs merged writes of its owner. A node uses its own."
        ),
    ] = None,
    staging: Annotated[
        Path | None,
        typer.Option(
            "--staging", help="A folder that all tasks can reach. Default: next to the output."
        ),
    ] = None,
    fan_in: Annotated[
        int | None, typer.Option("--fan-in", min=2, max=64, help="Inputs that one task merges.")
    ] = None,
) -> CommandResult:
    """Merge replicas in the given order, in many tasks; the result is that of one process.

    It is written to a node's folder (through the node, if it runs), a new store, or a new file.
    Malformed parts of an input are left out and named; the exit code is then 1.
    """
    from datalattice.pipeline import jobs

    for one in inputs:
        jobs.resolve_input(one)  # a missing one is refused at once, not when Spark has started
    with spark_job(call, "merge") as job:
        report = jobs.merge(
            job.spark,
            inputs,
            into=None if into is None else str(into),
            store=None if store is None else str(store),
            archive=None if archive is None else str(archive),
            key=None if key is None else read_key(key),
            staging=None if staging is None else str(staging),
            fan_in=fan_in or jobs.FAN_IN,
            progress=job.progress,
        )
    notices = []
    if report.owner_forks:
        notices.append(
            f"{len(report.owner_forks)} owners have two values and no key here may sign for them: "
            "the first value of each was kept"
        )
    if report.dropped:
        notices.append(
            f"{report.dropped} entries were not merged: they are not valid or not allowed here"
        )
    notices += [f"left out: {one}" for one in report.refused]
    return report_of(report.as_json(), EXIT_INCOMPLETE if report.refused else 0, *notices)


@command(app, "diff", SPARK)
def diff(
    call: Call,
    before: Annotated[
        str,
        typer.Argument(help="A store or a node's folder; @ and a root may follow: HEAD~2, a pin."),
    ],
    after: Annotated[str, typer.Argument(help="The other one.")],
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="List at most this many rows.")
    ] = _DIFF_COUNT,
) -> CommandResult:
    """List the keys that differ between two roots, with their owners and signers."""
    from datalattice.pipeline import jobs

    for one in (before, after):
        jobs.resolve_input(one)  # a missing one is refused at once, not when Spark has started
    with spark_job(call, "diff") as job:
        with jobs.watching_tasks(job.spark, "plan and count", job.progress):
            frame = jobs.diff(job.spark, before, after)
            sums = _sums(frame)
        with jobs.watching_tasks(job.spark, "list", job.progress):
            # Bounded, because a comparison may find millions of rows.
            rows = [row.asDict() for row in frame.limit(count).collect()] if count else []
        total = sum(one["count"] for one in sums)
        document = {"changes": total, "sums": sums, "rows": rows, "seconds": job.seconds}
    more = total - len(rows)
    notices = [f"{more} more; -n lists more of them"] if more > 0 else []
    return CommandResult(document, [*map(_diff_line, rows), _sums_listing(sums)], notices=notices)


def _sums(frame: DataFrame) -> list[dict[str, Any]]:
    grouped = frame.groupBy("section", "owner", "change", "valid").count()
    rows = [row.asDict() for row in grouped.collect()]
    # Sorted, because the order of the tasks differs between runs.
    return sorted(rows, key=lambda row: [str(row[name]) for name in ("section", "owner", "change")])


def _sums_listing(sums: list[dict[str, Any]]) -> Listing:
    rows = [
        (row["section"], _short(row["owner"]), row["change"], row["valid"], row["count"])
        for row in sums
    ]
    return Listing(("section", "owner", "change", "valid", "keys"), rows)


def _diff_line(row: dict[str, Any]) -> str:
    path = " ".join([row["section"] or "", _short(row["owner"]), *row["path"]])
    values = " -> ".join(one for one in (row["before"], row["after"]) if one is not None)
    return f"{_SIGNS.get(row['change'], '~')} {' '.join(path.split())}  {values}"


def _short(owner: str | None) -> str:
    return (owner or "")[: KEY_DIGITS_SHOWN + 2]


@command(app, "audit", ("dir", *SPARK))
def audit(
    call: Call,
    store: StoreFolderArgument = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Write all faults to this new folder, as Parquet."),
    ] = None,
    parts: PartsOption = None,
) -> CommandResult:
    """Check everything in a store: packs, hashes, canonical form, references, signatures.

    A node may be running. Exit code 1 if there is a fault.
    """
    from datalattice.pipeline import jobs

    path = _store_path(store, call)
    with spark_job(call, "audit") as job:
        report = jobs.audit(job.spark, path, parts=parts, progress=job.progress)
        if to is not None:
            # While Spark runs: all faults are a frame, of which the report has only the first.
            report.faults.write.parquet(str(to.absolute()))
        document = {**report.as_json(), "seconds": job.seconds}
    lines = _audit_lines(dict(document))
    if document["clean"]:
        return CommandResult(document, lines)
    advice = "the store has faults; `lattice disk heal` repairs it from peers"
    return CommandResult(document, lines, EXIT_FAILED, [advice])


def _audit_lines(document: dict[str, object]) -> list[str]:
    faults = document.pop("faults")
    counts = document.pop("counts")
    assert isinstance(faults, list)
    assert isinstance(counts, dict)
    lines = report_lines({**document, **counts})
    lines += [
        f"{one['kind']}: {one['file']} at byte {one['offset']}: {one['detail']}"
        + (f" (cell {one['hash']})" if one["hash"] else "")
        for one in faults[:_FAULTS_MAX]
    ]
    # Only the counts are of all faults; the list has a limit of its own.
    more = sum(counts.values()) + int(str(document["scars"])) - _FAULTS_MAX
    if more > 0:
        lines.append(f"{more} more; --json lists up to 1000, --to writes all")
    return lines


@command(app, "gc", ("dir", *SPARK))
def gc(
    call: Call,
    to: Annotated[Path, typer.Option("--to", help="Write the sweep list to this file.")],
    store: StoreFolderArgument = None,
    grace: GraceOption = GRACE,
    parts: PartsOption = None,
) -> CommandResult:
    """Find the cells that a store needs, and write the list of the others; removes nothing.

    `lattice disk sweep LIST` removes those. A node may be running.
    """
    from datalattice.pipeline import jobs

    grace_ms = duration_ms(grace)  # before Spark starts, which takes seconds
    path = _store_path(store, call)
    with spark_job(call, "gc") as job:
        report = jobs.gc(
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
