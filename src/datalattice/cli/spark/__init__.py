"""Commands `lattice spark ...`: jobs over more data than one process is for."""

from __future__ import annotations

import typer

from datalattice.cli.command import ANY, command
from datalattice.cli.spark.audit import audit
from datalattice.cli.spark.diff import diff
from datalattice.cli.spark.gc import gc
from datalattice.cli.spark.merge import merge
from datalattice.cli.spark.moving import compact, export, load

__all__ = ["app"]

app = typer.Typer(
    help="Jobs on Spark: merge, compare, check, load and export more than one process is for."
)
command(app, "merge")(merge)
command(app, "diff")(diff)
command(app, "audit", ANY)(audit)
command(app, "gc", ANY)(gc)
command(app, "load", ANY)(load)
command(app, "compact", ("dir", "owner", "as_of"))(compact)
command(app, "export", ANY)(export)
