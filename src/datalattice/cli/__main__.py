"""Runs the command as `python -m datalattice.cli`, as examples do to start nodes."""

from datalattice.cli import start

start()
