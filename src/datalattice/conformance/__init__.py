"""Conformance: runs golden vector files against this installation.

For ourselves, and for anyone who ports the format:

    for report in run_paths(["vectors/"]):
        print(report.path, report.passed, report.failed)

Packages that bring new kinds of vectors register them with `register_kind`, new families of files
with `register_format`, and lattice types with `register_lattice_type`.
"""

from __future__ import annotations

# Importing these modules registers the kinds they run.
from datalattice.conformance import (
    cells,
    cursors,
    dlfs,
    etch,
    forks,
    grid,
    kv,
    lattices,
    node_player,
    queues,
    weaver_log,
    weaver_net,
    weaver_state,
)
from datalattice.conformance.notation import register_lattice_type
from datalattice.conformance.registry import (
    Case,
    Mismatch,
    Skipped,
    VectorFormat,
    known_kinds,
    register_format,
    register_kind,
    register_titled,
)
from datalattice.conformance.runner import (
    Failure,
    FileReport,
    list_files,
    run_file,
    run_paths,
)

__all__ = [
    "Case",
    "Failure",
    "FileReport",
    "Mismatch",
    "Skipped",
    "VectorFormat",
    "cells",
    "cursors",
    "dlfs",
    "etch",
    "forks",
    "grid",
    "known_kinds",
    "kv",
    "lattices",
    "list_files",
    "node_player",
    "queues",
    "register_format",
    "register_kind",
    "register_lattice_type",
    "register_titled",
    "run_file",
    "run_paths",
    "weaver_log",
    "weaver_net",
    "weaver_state",
]
