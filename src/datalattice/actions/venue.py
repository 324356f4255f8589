"""Actions on the venue of a node: the operations that it offers, and the jobs that run them."""

from __future__ import annotations

from typing import Annotated, Final

from datalattice.actions.action import (
    DELETE,
    GET,
    POST,
    PUT,
    ActionKind,
    ActionRequest,
    Route,
    action,
)
from datalattice.actions.assets import ASSET
from datalattice.actions.common import PAGE, RESUME_NUMBER, Empty
from datalattice.actions.formats import CELL_FORMAT, HASH_FORMAT, HexFormat
from datalattice.cells import Value
from datalattice.protobuf import Field, Message

JOB_ID: Final = HexFormat("the id of a job")
CALL_HANDLE: Final = HexFormat("the handle of a scheduled call")

_JOBS = "venue/jobs/{caller}"
_OPERATIONS = "venue/operations"


class OfferedOperation(Message, name="datalattice.v1.OfferedOperation"):
    """An operation: its path, its asset, and the schemas of its input and output, nil for none."""

    path: Annotated[str, Field(1)] = ""
    asset: Annotated[bytes, Field(2, codec=HASH_FORMAT)] = b""
    name: Annotated[str, Field(3)] = ""
    description: Annotated[str, Field(4)] = ""
    input: Annotated[Value, Field(5, codec=CELL_FORMAT)] = None
    output: Annotated[Value, Field(6, codec=CELL_FORMAT)] = None


class OperationList(Message, name="datalattice.v1.OperationList"):
    """Operations, in the order of their paths."""

    operations: Annotated[tuple[OfferedOperation, ...], Field(1)] = ()


# The answer is the list itself, as other implementations of venues have it.
@action("venue.operations", ActionKind.QUERY, "r", _OPERATIONS, GET("/operations", "operations"))
class ListOperations(ActionRequest[OperationList], name="datalattice.v1.ListOperationsRequest"):
    """List the operations that the venue of this node offers, in the order of their paths.

    after: only those after this path, for the next page.
    """

    after: Annotated[str, Field(1)] = ""
    count: Annotated[int, Field(2, "uint32")] = PAGE


@action("venue.operation", ActionKind.QUERY, "r", _OPERATIONS, GET("/operations/{path...}"))
class GetOperation(ActionRequest[OfferedOperation], name="datalattice.v1.GetOperationRequest"):
    """Return an operation of the catalogue. path: such as "v/ops/json/merge"."""

    path: Annotated[str, Field(1)] = ""


class DidDocument(Message, name="datalattice.v1.DidDocument"):
    """A DID document as a value of JSON."""

    document: Annotated[Value, Field(1, codec=CELL_FORMAT)] = None


_DID_JSON = "application/did+json"


# Open to all: whoever checks a record of the venue needs its key.
@action(
    "venue.did",
    ActionKind.QUERY,
    "r",
    "",
    Route("GET", "/.well-known/did.json", answer="document", media=_DID_JSON, at_root=True),
)
class GetVenueDid(ActionRequest[DidDocument], name="datalattice.v1.GetVenueDidRequest"):
    """Return the DID document of this node's venue: its key, and the URLs of its doors."""


# Open to all: the document names the venue, and has nothing of the asset but its id.
@action(
    "venue.asset_did",
    ActionKind.QUERY,
    "r",
    "",
    Route("GET", "/a/{id}/did.json", answer="document", media=_DID_JSON, at_root=True),
)
class GetAssetDid(ActionRequest[DidDocument], name="datalattice.v1.GetAssetDidRequest"):
    """Return the DID document of an asset. Raises: NoSuchPath: the node does not hold it."""

    id: Annotated[bytes, Field(1, codec=ASSET)] = b""


class JobRecord(Message, name="datalattice.v1.JobRecord"):
    """A job. status: PENDING, STARTED, PAUSED, INPUT_REQUIRED, AUTH_REQUIRED, or an end status.

    created, updated: Unix milliseconds. op: the asset of the operation. op_name: the name that the
    caller gave. output: of a COMPLETE job. error: of a job that ended otherwise. message: what it
    waits for. venue, remote_id: the venue that runs it for this one, and its id there. resume: in
    `venue.watch`.
    """

    id: Annotated[bytes, Field(1, codec=JOB_ID)] = b""
    status: Annotated[str, Field(2)] = ""
    created: Annotated[int, Field(3, "uint64")] = 0
    updated: Annotated[int, Field(4, "uint64")] = 0
    op: Annotated[str, Field(5)] = ""
    op_name: Annotated[str, Field(6, json="opName")] = ""
    name: Annotated[str, Field(7)] = ""
    caller: Annotated[str, Field(8)] = ""
    input: Annotated[Value, Field(9, codec=CELL_FORMAT)] = None
    output: Annotated[Value, Field(10, codec=CELL_FORMAT)] = None
    error: Annotated[str, Field(11)] = ""
    message: Annotated[str, Field(12)] = ""
    steps: Annotated[Value, Field(13, codec=CELL_FORMAT)] = None
    venue: Annotated[str, Field(14)] = ""
    remote_id: Annotated[bytes, Field(16, codec=JOB_ID, json="remoteId")] = b""  # 15 is `resume`
    resume: Annotated[str, Field(RESUME_NUMBER)] = ""


# ONCE: each call without an id starts a further job.
@action("venue.invoke", ActionKind.ONCE, "x", _JOBS, Route("POST", "/invoke", 201, query=("wait",)))
class InvokeOperation(ActionRequest[JobRecord], name="datalattice.v1.InvokeOperationRequest"):
    """Run an operation as a job, which is durable when it returns.

    operation: "v/ops/json/merge", or an asset id. input: a value of JSON. wait_ms: how
    long to wait for the end of the job before answering; up to 120,000 is accepted, and more than
    10,000 counts as 10,000. wait: the same as 10,000.
    timeout_ms: time after which the job ends as TIMEOUT.
    Raises: NoSuchPath: there is no such operation. UsageError: it does not accept this input.
    """

    operation: Annotated[str, Field(1)] = ""
    input: Annotated[Value, Field(2, codec=CELL_FORMAT)] = None
    wait_ms: Annotated[int, Field(3, "uint32")] = 0
    timeout_ms: Annotated[int | None, Field(4, "uint64")] = None
    wait: Annotated[bool, Field(5)] = False


class JobList(Message, name="datalattice.v1.JobList"):
    """Ids of jobs, newest first."""

    jobs: Annotated[tuple[bytes, ...], Field(1, codec=JOB_ID)] = ()


# "A job belongs to its caller" (docs/grid.md): the scope has the DID of the caller.
@action("venue.jobs", ActionKind.QUERY, "r", _JOBS, GET("/jobs", "jobs"), is_tool=True)
class ListJobIds(ActionRequest[JobList], name="datalattice.v1.ListJobIdsRequest"):
    """List the caller's jobs, newest first; an administrator sees all.

    status: only jobs with this status. before: only those older than this job, for the next page.
    """

    status: Annotated[str, Field(1)] = ""
    before: Annotated[bytes, Field(2, codec=JOB_ID)] = b""
    count: Annotated[int, Field(3, "uint32")] = PAGE


@action("venue.job", ActionKind.QUERY, "r", _JOBS, GET("/jobs/{id}"), is_tool=True)
class GetJob(ActionRequest[JobRecord], name="datalattice.v1.GetJobRequest"):
    """Return a job. wait_ms: how long to wait for its end, as in `venue.invoke`."""

    id: Annotated[bytes, Field(1, codec=JOB_ID)] = b""
    wait_ms: Annotated[int, Field(2, "uint32")] = 0


@action(
    "venue.watch",
    ActionKind.STREAM,
    "r",
    _JOBS,
    Route("GET", "/jobs/{id}/sse", event="job-update"),
)
class WatchJob(ActionRequest[JobRecord], name="datalattice.v1.WatchJobRequest"):
    """Return a job, then again after each change until its end; a slow reader gets the newest.

    resume: the `updated` of a record; the stream begins with the first newer one.
    """

    id: Annotated[bytes, Field(1, codec=JOB_ID)] = b""
    resume: Annotated[str, Field(RESUME_NUMBER)] = ""


# EFFECT: a job that has ended stays unchanged, so a repeated call is harmless.
@action("venue.cancel", ActionKind.EFFECT, "x", _JOBS, PUT("/jobs/{id}/cancel"), is_tool=True)
class CancelJob(ActionRequest[JobRecord], name="datalattice.v1.CancelJobRequest"):
    """End a job as CANCELLED; a job that has ended stays unchanged."""

    id: Annotated[bytes, Field(1, codec=JOB_ID)] = b""


# EFFECT: repeated, it answers Conflict, and the job stays as it is; so does `venue.resume`.
@action("venue.pause", ActionKind.EFFECT, "x", _JOBS, PUT("/jobs/{id}/pause"))
class PauseJob(ActionRequest[JobRecord], name="datalattice.v1.PauseJobRequest"):
    """Stop a job until it is resumed. Raises: Conflict: it has ended, or is paused."""

    id: Annotated[bytes, Field(1, codec=JOB_ID)] = b""


@action("venue.resume", ActionKind.EFFECT, "x", _JOBS, PUT("/jobs/{id}/resume"))
class ResumeJob(ActionRequest[JobRecord], name="datalattice.v1.ResumeJobRequest"):
    """Run a paused job again, with its input. Raises: Conflict: it is not paused."""

    id: Annotated[bytes, Field(1, codec=JOB_ID)] = b""


class QueuedMessage(Message, name="datalattice.v1.QueuedMessage"):
    """A message was queued for a job. queue_depth: the number of messages that wait."""

    id: Annotated[bytes, Field(1, codec=JOB_ID)] = b""
    queue_depth: Annotated[int, Field(2, "uint32", json="queueDepth")] = 0
    queued: Annotated[bool, Field(3)] = True


# ONCE: repeated, it would give the job two messages.
@action(
    "venue.message", ActionKind.ONCE, "x", _JOBS, POST("/jobs/{id}", 202, "message"), is_tool=True
)
class MessageJob(ActionRequest[QueuedMessage], name="datalattice.v1.MessageJobRequest"):
    """Send a job a message: the answer to its question, or one that it reads later.

    Raises: Conflict: the job has ended. Backpressure: too many messages wait.
    """

    id: Annotated[bytes, Field(1, codec=JOB_ID)] = b""
    message: Annotated[Value, Field(2, codec=CELL_FORMAT)] = None


@action(
    "venue.delete",
    ActionKind.EFFECT,
    "x",
    _JOBS,
    DELETE("/jobs/{id}"),
    # The form that other implementations of venues have.
    aliases=(PUT("/jobs/{id}/delete"),),
)
class DeleteJob(ActionRequest[Empty], name="datalattice.v1.DeleteJobRequest"):
    """Cancel a job if it is live, and hide it on this node."""

    id: Annotated[bytes, Field(1, codec=JOB_ID)] = b""


class WaitingCall(Message, name="datalattice.v1.WaitingCall"):
    """A call that waits for its time. time: Unix milliseconds. operation: as the caller named it.

    caller: the caller of the job to come. job: the id that the job will have.
    """

    handle: Annotated[bytes, Field(1, codec=CALL_HANDLE)] = b""
    time: Annotated[int, Field(2, "uint64")] = 0
    operation: Annotated[str, Field(3)] = ""
    caller: Annotated[str, Field(4)] = ""
    job: Annotated[bytes, Field(5, codec=JOB_ID)] = b""


# ONCE: each call without an id makes a further scheduled call.
@action("venue.schedule", ActionKind.ONCE, "x", _JOBS, POST("/schedule", 201))
class ScheduleOperation(ActionRequest[WaitingCall], name="datalattice.v1.ScheduleOperationRequest"):
    """Schedule an operation: a job starts at a time, at most once.

    operation, input: as in `venue.invoke`. time_ms: Unix milliseconds; a past time means now.
    after_ms: milliseconds from now, instead of `time_ms`.
    Raises: as `venue.invoke`. Backpressure: too many calls wait.
    """

    operation: Annotated[str, Field(1)] = ""
    input: Annotated[Value, Field(2, codec=CELL_FORMAT)] = None
    time_ms: Annotated[int | None, Field(3, "uint64")] = None
    after_ms: Annotated[int | None, Field(4, "uint64")] = None


class WaitingCalls(Message, name="datalattice.v1.WaitingCalls"):
    """Scheduled calls, the next one first."""

    calls: Annotated[tuple[WaitingCall, ...], Field(1)] = ()


@action("venue.scheduled", ActionKind.QUERY, "r", _JOBS, GET("/schedule", "calls"))
class ListScheduled(ActionRequest[WaitingCalls], name="datalattice.v1.ListScheduledRequest"):
    """List the caller's scheduled calls, the next one first; an administrator sees all.

    after: only those after this one, for the next page.
    """

    after: Annotated[bytes, Field(1, codec=CALL_HANDLE)] = b""
    count: Annotated[int, Field(2, "uint32")] = PAGE


# EFFECT: a handle names one call, which can be cancelled once.
@action("venue.unschedule", ActionKind.EFFECT, "x", _JOBS, DELETE("/schedule/{handle}"))
class UnscheduleCall(ActionRequest[Empty], name="datalattice.v1.UnscheduleCallRequest"):
    """Cancel a scheduled call. Raises: NoSuchPath: no call of the caller has this handle."""

    handle: Annotated[bytes, Field(1, codec=CALL_HANDLE)] = b""
