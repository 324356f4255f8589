"""Commands `lattice spark ...`: jobs over more data than one process is for."""

from __future__ import annotations

import typer

from datalattice.cli.spark import moving, stores

app = typer.Typer(
    help="Jobs on Spark: merge, compare, check, load and export more than one process is for."
)
app.registered_commands += stores.app.registered_commands + moving.app.registered_commands
