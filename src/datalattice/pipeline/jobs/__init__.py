"""Jobs: work on more data than one process is for, as functions of a Spark session.

Each returns a DataFrame or a report, takes `progress` (see `datalattice.pipeline.progress`), and is
a command `lattice spark JOB`. Tasks run the same code over cells as a node does, so what they make
has the same hashes.
"""

from __future__ import annotations

from datalattice.pipeline.jobs.compact import CompactReport, Keyless, compact
from datalattice.pipeline.jobs.export import ExportReport, export
from datalattice.pipeline.jobs.load import LoadReport, load

__all__ = [
    "CompactReport",
    "ExportReport",
    "Keyless",
    "LoadReport",
    "compact",
    "export",
    "load",
]
