"""Commands `lattice spark ...`: jobs on data that is too much for one process."""

from __future__ import annotations

import typer

from datalattice.cli.spark import moving, stores

app = typer.Typer(
    help="Jobs on Spark, for more data than one process can handle: merge, compare, check, load, "
    "export."
)
app.registered_commands += stores.app.registered_commands + moving.app.registered_commands
