"""Jobs that need more than one process, as functions of a Spark session.

Each returns a DataFrame or a report, takes `progress` (see `pipeline.spark.progress`), and is a
command `lattice spark JOB`. Tasks run the same code over cells as a node does, so results have
the same hashes.
"""

from __future__ import annotations

from datalattice.pipeline.jobs.audit import AuditReport as AuditReport, audit as audit
from datalattice.pipeline.jobs.compact import (
    CompactReport as CompactReport,
    Keyless as Keyless,
    compact as compact,
)
from datalattice.pipeline.jobs.diff import diff as diff
from datalattice.pipeline.jobs.export import ExportReport as ExportReport, export as export
from datalattice.pipeline.jobs.gc import GcReport as GcReport, gc as gc
from datalattice.pipeline.jobs.inputs import resolve_input as resolve_input
from datalattice.pipeline.jobs.load import (
    LoadReport as LoadReport,
    check_load_target as check_load_target,
    load as load,
)
from datalattice.pipeline.jobs.merge import (
    FAN_IN as FAN_IN,
    MergeJobReport as MergeJobReport,
    merge as merge,
)
from datalattice.pipeline.jobs.running import (
    job_session as job_session,
    spark_errors as spark_errors,
)
from datalattice.pipeline.spark.progress import watching_tasks as watching_tasks
from datalattice.pipeline.spark.tags import cancel_tagged as cancel_tagged, tagged as tagged
