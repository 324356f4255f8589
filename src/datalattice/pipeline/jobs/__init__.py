"""Jobs that need more than one process, as functions of a Spark session.

Each returns a DataFrame or a report, takes `progress` (see `pipeline.spark.progress`), and is a
command `lattice spark JOB`. Tasks run the same code over cells as a node does, so results have
the same hashes.
"""

from __future__ import annotations

from datalattice.pipeline.jobs.audit import AuditReport, audit
from datalattice.pipeline.jobs.compact import CompactReport, Keyless, compact
from datalattice.pipeline.jobs.diff import diff
from datalattice.pipeline.jobs.export import ExportReport, export
from datalattice.pipeline.jobs.gc import GcReport, gc
from datalattice.pipeline.jobs.inputs import resolve_input
from datalattice.pipeline.jobs.load import LoadReport, load
from datalattice.pipeline.jobs.merge import FAN_IN, MergeJobReport, merge
from datalattice.pipeline.jobs.running import job_session, spark_errors
from datalattice.pipeline.spark.progress import watching_tasks
from datalattice.pipeline.spark.tags import cancel_tagged, tagged

__all__ = [
    "FAN_IN",
    "AuditReport",
    "CompactReport",
    "ExportReport",
    "GcReport",
    "Keyless",
    "LoadReport",
    "MergeJobReport",
    "audit",
    "cancel_tagged",
    "compact",
    "diff",
    "export",
    "gc",
    "job_session",
    "load",
    "merge",
    "resolve_input",
    "spark_errors",
    "tagged",
    "watching_tasks",
]
