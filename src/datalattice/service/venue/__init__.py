"""Venue: runs the jobs of a venue of the grid."""

from datalattice.errors import OperationFailed as OperationFailed
from datalattice.service.venue.adapter import (
    AUTH_REQUIRED as AUTH_REQUIRED,
    BLOCKING_THREADS as BLOCKING_THREADS,
    INPUT_REQUIRED as INPUT_REQUIRED,
    Adapter as Adapter,
    Blocking as Blocking,
    BlockingAdapter as BlockingAdapter,
    BlockingJob as BlockingJob,
    EffectOutcome as EffectOutcome,
    JobContext as JobContext,
    JobResult as JobResult,
    Json as Json,
    Known as Known,
    OperationMetadata as OperationMetadata,
    PlainAdapter as PlainAdapter,
    RecoveryRule as RecoveryRule,
    VenueOperation as VenueOperation,
)
from datalattice.service.venue.catalogue import (
    Catalogue as Catalogue,
    DefinedElsewhere as DefinedElsewhere,
    ResolvedOperation as ResolvedOperation,
    metadata_text as metadata_text,
    operation_of as operation_of,
)
from datalattice.service.venue.committer import JobCommitter as JobCommitter
from datalattice.service.venue.definitions import (
    Definitions as Definitions,
    OperationFinder as OperationFinder,
)
from datalattice.service.venue.host import VenueHost as VenueHost
from datalattice.service.venue.jobs import (
    JobCaller as JobCaller,
    caller_of as caller_of,
    effect_key as effect_key,
)
from datalattice.service.venue.live import (
    VENUE_LIMITS as VENUE_LIMITS,
    LiveJobs as LiveJobs,
    VenueLimits as VenueLimits,
)
from datalattice.service.venue.pages import JOBS_PAGE_MAX as JOBS_PAGE_MAX, JobPages as JobPages
from datalattice.service.venue.records import (
    JSON_BYTES_MAX as JSON_BYTES_MAX,
    GridJobs as GridJobs,
    JobBatch as JobBatch,
    JobStorage as JobStorage,
    PrivatePart as PrivatePart,
    cell_json as cell_json,
    json_cell as json_cell,
)
from datalattice.service.venue.recovery import (
    FoundJob as FoundJob,
    RecoveryChoice as RecoveryChoice,
    RecoveryStep as RecoveryStep,
    recovery_of as recovery_of,
    settle_check as settle_check,
)
from datalattice.service.venue.runner import VenueRunner as VenueRunner
from datalattice.service.venue.schedule import (
    ScheduledCall as ScheduledCall,
    job_of_call as job_of_call,
    time_of_call as time_of_call,
)
from datalattice.service.venue.transitions import (
    TRANSITIONS as TRANSITIONS,
    JobEvent as JobEvent,
    JobStatus as JobStatus,
    TransitionRefused as TransitionRefused,
    is_allowed as is_allowed,
    status_of_job as status_of_job,
    step as step,
)
