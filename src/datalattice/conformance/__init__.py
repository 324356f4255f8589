"""Conformance: runs golden vector files against this installation.

It checks this implementation, and shows anyone who writes another one what has to hold:

    for report in run_paths(["vectors/"]):
        print(report.path, report.passed, report.failed)

Packages that bring new kinds of vectors register them with `register_kind`, new families of files
with `register_format`, and lattice types with `register_lattice_type`.
"""

from __future__ import annotations

# Importing these modules registers the kinds they run.
from datalattice.conformance import (
    cells as cells,
    cursors as cursors,
    dlfs as dlfs,
    etch as etch,
    forks as forks,
    grid as grid,
    kv as kv,
    lattices as lattices,
    node_player as node_player,
    queues as queues,
    weaver_log as weaver_log,
    weaver_net as weaver_net,
    weaver_state as weaver_state,
)
from datalattice.conformance.checks import Mismatch as Mismatch
from datalattice.conformance.notation import register_lattice_type as register_lattice_type
from datalattice.conformance.registry import (
    Case as Case,
    Skipped as Skipped,
    VectorFormat as VectorFormat,
    known_kinds as known_kinds,
    register_format as register_format,
    register_kind as register_kind,
    register_titled as register_titled,
)
from datalattice.conformance.runner import (
    Failure as Failure,
    FileReport as FileReport,
    list_files as list_files,
    run_file as run_file,
    run_paths as run_paths,
)
