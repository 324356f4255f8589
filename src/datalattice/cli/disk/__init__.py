"""Commands `lattice disk ...`: check and heal a store, free its space, move roots in and out."""

from __future__ import annotations

import typer

from datalattice.cli.disk import archive, checking, garbage

app = typer.Typer(help="The folder's store: check and heal it, free space, export and import.")
for _group in (checking.app, garbage.app, archive.app):
    app.registered_commands += _group.registered_commands
