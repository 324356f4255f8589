"""Commands `lattice spark ...`: jobs over more data than one process is for."""

from __future__ import annotations

import typer

app = typer.Typer(
    help="Jobs on Spark: merge, compare, check, load and export more than one process is for."
)
