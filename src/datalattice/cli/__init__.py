"""CLI: the command `lattice`."""

from datalattice.cli.main import main

__all__ = ["main"]
