"""Runs the command as `python -m datalattice.cli`: how the demo starts its own processes."""

from datalattice.cli import start

start()
