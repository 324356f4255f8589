"""Commands `lattice spark ...`: jobs over more data than one process is for."""

from __future__ import annotations

import typer

from datalattice.cli.spark.audit import audit
from datalattice.cli.spark.diff import diff
from datalattice.cli.spark.gc import gc
from datalattice.cli.spark.merge import merge
from datalattice.cli.spark.moving import compact, export, load

__all__ = ["app", "audit", "compact", "diff", "export", "gc", "load", "merge"]

app = typer.Typer(
    help="Jobs on Spark: merge, compare, check, load and export more than one process is for."
)
app.command("merge")(merge)
app.command("diff")(diff)
app.command("audit")(audit)
app.command("gc")(gc)
app.command("load")(load)
app.command("compact")(compact)
app.command("export")(export)
