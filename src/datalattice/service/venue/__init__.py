"""Venue: runs the jobs of a venue of the grid."""

from datalattice.errors import OperationFailed
from datalattice.service.venue.adapter import (
    AUTH_REQUIRED,
    BLOCKING_THREADS,
    INPUT_REQUIRED,
    Adapter,
    Blocking,
    BlockingAdapter,
    BlockingJob,
    EffectOutcome,
    JobContext,
    JobResult,
    Json,
    Known,
    Metadata,
    PlainAdapter,
    RecoveryRule,
    VenueOperation,
)
from datalattice.service.venue.catalogue import (
    Catalogue,
    DefinedElsewhere,
    ResolvedOperation,
    metadata_text,
    operation_of,
)
from datalattice.service.venue.committer import JobCommitter
from datalattice.service.venue.definitions import Definitions, OperationFinder
from datalattice.service.venue.host import VenueHost
from datalattice.service.venue.jobs import JobCaller, caller_of, effect_key
from datalattice.service.venue.live import VENUE_LIMITS, LiveJobs, VenueLimits
from datalattice.service.venue.pages import PAGE_MAX, JobPages
from datalattice.service.venue.records import (
    JSON_BYTES_MAX,
    GridJobs,
    JobBatch,
    JobStorage,
    PrivatePart,
    cell_json,
    json_cell,
)
from datalattice.service.venue.recovery import (
    FoundJob,
    RecoveryChoice,
    RecoveryStep,
    recovery_of,
    settle_check,
)
from datalattice.service.venue.runner import VenueRunner
from datalattice.service.venue.schedule import ScheduledCall, job_of_call, time_of_call
from datalattice.service.venue.transitions import (
    TRANSITIONS,
    JobEvent,
    JobStatus,
    TransitionRefused,
    is_allowed,
    status_of_job,
    step,
)

__all__ = [
    "AUTH_REQUIRED",
    "BLOCKING_THREADS",
    "INPUT_REQUIRED",
    "JSON_BYTES_MAX",
    "PAGE_MAX",
    "TRANSITIONS",
    "VENUE_LIMITS",
    "Adapter",
    "Blocking",
    "BlockingAdapter",
    "BlockingJob",
    "Catalogue",
    "DefinedElsewhere",
    "Definitions",
    "EffectOutcome",
    "FoundJob",
    "GridJobs",
    "JobBatch",
    "JobCaller",
    "JobCommitter",
    "JobContext",
    "JobEvent",
    "JobPages",
    "JobResult",
    "JobStatus",
    "JobStorage",
    "Json",
    "Known",
    "LiveJobs",
    "Metadata",
    "OperationFailed",
    "OperationFinder",
    "PlainAdapter",
    "PrivatePart",
    "RecoveryChoice",
    "RecoveryRule",
    "RecoveryStep",
    "ResolvedOperation",
    "ScheduledCall",
    "TransitionRefused",
    "VenueHost",
    "VenueLimits",
    "VenueOperation",
    "VenueRunner",
    "caller_of",
    "cell_json",
    "effect_key",
    "is_allowed",
    "job_of_call",
    "json_cell",
    "metadata_text",
    "operation_of",
    "recovery_of",
    "settle_check",
    "status_of_job",
    "step",
    "time_of_call",
]
