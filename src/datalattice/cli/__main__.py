"""Runs the command as `python -m datalattice.cli`: how examples start nodes."""

from datalattice.cli import start

start()
