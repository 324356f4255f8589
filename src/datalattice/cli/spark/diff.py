"""Command `lattice spark diff`: which keys differ between two roots, and who signed them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from datalattice.cli.command import Call
from datalattice.cli.paths.past import KEY_DIGITS_SHOWN
from datalattice.cli.render import Listing, Result
from datalattice.cli.spark.session import (
    MEMORY,
    MasterOption,
    MemoryOption,
    PackageOption,
    spark_job,
)

if TYPE_CHECKING:
    from datalattice.pipeline import DataFrame

COUNT: Final = 100

_SIGNS: Final = {"added": "+", "removed": "-"}


def diff(
    call: Call,
    before: Annotated[
        str,
        typer.Argument(
            help="A store or a node's folder; perhaps with @ and a root: HEAD~2, a pin."
        ),
    ],
    after: Annotated[str, typer.Argument(help="The other one.")],
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Most rows that are listed.")
    ] = COUNT,
    master: MasterOption = None,
    memory: MemoryOption = MEMORY,
    package: PackageOption = None,
) -> Result:
    """Tell which keys differ between two roots, whose they are, and who signed them."""
    from datalattice.pipeline.jobs import diff as job
    from datalattice.pipeline.jobs import resolve_input, watching_tasks

    for one in (before, after):
        resolve_input(one)  # a missing one is refused at once, not when Spark has started
    with spark_job("diff", master, memory, package) as run:
        with watching_tasks(run.spark, "plan and count", run.progress):
            frame = job(run.spark, before, after)
            sums = _sums(frame)
        with watching_tasks(run.spark, "list", run.progress):
            rows = [row.asDict() for row in frame.limit(count).collect()] if count else []
        total = sum(one["count"] for one in sums)
        document = {"changes": total, "sums": sums, "rows": rows, "seconds": run.seconds}
    more = total - len(rows)
    notices = [f"{more} more; -n lists more of them"] if more > 0 else []
    return Result(document, [*map(_line, rows), _listing(sums)], notices=notices)


def _sums(frame: DataFrame) -> list[dict[str, Any]]:
    grouped = frame.groupBy("section", "owner", "change", "valid").count()
    rows = [row.asDict() for row in grouped.collect()]
    return sorted(rows, key=lambda row: [str(row[name]) for name in ("section", "owner", "change")])


def _listing(sums: list[dict[str, Any]]) -> Listing:
    rows = [
        (row["section"], _short(row["owner"]), row["change"], row["valid"], row["count"])
        for row in sums
    ]
    return Listing(("section", "owner", "change", "valid", "keys"), rows)


def _line(row: dict[str, Any]) -> str:
    path = " ".join([row["section"] or "", _short(row["owner"]), *row["path"]])
    values = " -> ".join(one for one in (row["before"], row["after"]) if one is not None)
    return f"{_SIGNS.get(row['change'], '~')} {' '.join(path.split())}  {values}"


def _short(owner: str | None) -> str:
    return (owner or "")[: KEY_DIGITS_SHOWN + 2]
