"""Commands `lattice spark ...`: jobs over more data than one process is for."""

from __future__ import annotations

import typer

from datalattice.cli.spark.audit import audit
from datalattice.cli.spark.gc import gc

app = typer.Typer(
    help="Jobs on Spark: merge, compare, check, load and export more than one process is for."
)
app.command("audit")(audit)
app.command("gc")(gc)
