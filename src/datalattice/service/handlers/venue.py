"""Handlers of the actions on the venue."""

from __future__ import annotations

from itertools import islice
from typing import Final

from datalattice.actions import (
    PAGE_MAX,
    CancelJob,
    DeleteJob,
    Empty,
    GetJob,
    InvokeOperation,
    JobList,
    JobRecord,
    ListJobIds,
    ListOperations,
    MessageJob,
    OfferedOperation,
    OperationList,
    PauseJob,
    QueuedMessage,
    ResumeJob,
)
from datalattice.cells import Map, Value
from datalattice.errors import LimitExceeded, UnsupportedOperation, UsageError
from datalattice.service.registry import ServiceCall, handles, page
from datalattice.service.venue import (
    JobCaller,
    JobStatus,
    VenueHost,
    cell_json,
    json_cell,
    operation_of,
)

WAIT_MS_MAX: Final = 120_000
"""Longest wait for the end of a job that may be asked for."""
WAIT_S: Final = 10.0
"""Longest wait of one call: it holds a thread of its door. Then the job is told as it is."""


@handles(ListOperations)
def list_operations(call: ServiceCall, request: ListOperations) -> OperationList:
    """List what the venue offers."""
    found = []
    offered = _venue(call).runner.operations().items()
    behind = (one for one in offered if one[0] > request.after)
    for path, (asset, operation) in islice(behind, page(request.count, PAGE_MAX)):
        metadata, schemas = operation.metadata, operation_of(operation.metadata)
        found.append(
            OfferedOperation(
                path=path,
                asset=asset,
                name=str(metadata.get("name", "")),
                description=str(metadata.get("description", "")),
                input=json_cell(schemas.get("input"), "input"),
                output=json_cell(schemas.get("output"), "output"),
            )
        )
    return OperationList(operations=tuple(found))


@handles(InvokeOperation)
def invoke(call: ServiceCall, request: InvokeOperation) -> JobRecord:
    """Begin a job, and wait for its end if it is asked for."""
    venue, caller, wait_s = _venue(call), _caller(call), _seconds(request.wait_ms)
    record = venue.call(
        venue.runner.invoke(
            request.operation,
            cell_json(request.input),
            caller,
            timeout_ms=request.timeout_ms,
            request_id=call.request_id,
        )
    )
    if wait_s:
        id = bytes.fromhex(str(record["id"]))
        record = venue.call(venue.runner.wait(id, caller, wait_s))
    return _record(record)


@handles(ListJobIds)
def list_jobs(call: ServiceCall, request: ListJobIds) -> JobList:
    """List the caller's jobs."""
    venue = _venue(call)
    if request.status and request.status not in list(JobStatus):
        raise UsageError(f"status: one of {', '.join(JobStatus)}, got {request.status!r:.80}")
    found = venue.call(
        venue.runner.jobs(
            _caller(call),
            status=JobStatus(request.status) if request.status else None,
            before=request.before or None,
            count=request.count,
        )
    )
    return JobList(jobs=tuple(found))


@handles(GetJob)
def get_job(call: ServiceCall, request: GetJob) -> JobRecord:
    """Return a job."""
    venue, wait_s = _venue(call), _seconds(request.wait_ms)
    return _record(venue.call(venue.runner.wait(request.id, _caller(call), wait_s)))


@handles(CancelJob)
def cancel(call: ServiceCall, request: CancelJob) -> JobRecord:
    """End a job."""
    venue = _venue(call)
    return _record(venue.call(venue.runner.cancel(request.id, _caller(call))))


@handles(PauseJob)
def pause(call: ServiceCall, request: PauseJob) -> JobRecord:
    """Stop a job."""
    venue = _venue(call)
    return _record(venue.call(venue.runner.pause(request.id, _caller(call))))


@handles(ResumeJob)
def resume(call: ServiceCall, request: ResumeJob) -> JobRecord:
    """Run a paused job again."""
    venue = _venue(call)
    return _record(venue.call(venue.runner.resume(request.id, _caller(call))))


@handles(MessageJob)
def message(call: ServiceCall, request: MessageJob) -> QueuedMessage:
    """Give a job a message."""
    venue = _venue(call)
    given = cell_json(request.message)
    depth = venue.call(
        venue.runner.message(request.id, given, _caller(call), request_id=call.request_id)
    )
    return QueuedMessage(id=request.id, queue_depth=depth)


@handles(DeleteJob)
def delete(call: ServiceCall, request: DeleteJob) -> Empty:
    """Show a job no more."""
    venue = _venue(call)
    venue.call(venue.runner.delete(request.id, _caller(call)))
    return Empty()


def _venue(call: ServiceCall) -> VenueHost:
    if call.venue is None:
        raise UnsupportedOperation("this node runs no venue; its setting venue.enabled is false")
    return call.venue


def _caller(call: ServiceCall) -> JobCaller:
    """Return who asks, as records name them."""
    did = _venue(call).runner.did
    if call.is_operator:
        return JobCaller(call.caller or did, sees_all=True)
    # "Anonymous: caller is `<venue DID>:public`"
    return JobCaller(call.caller or f"{did}:public")


def _seconds(wait_ms: int) -> float:
    if wait_ms > WAIT_MS_MAX:
        raise LimitExceeded(f"wait_ms: at most {WAIT_MS_MAX}, got {wait_ms}")
    return min(wait_ms / 1_000, WAIT_S)


def _record(record: Map) -> JobRecord:
    def text(name: str) -> str:
        found: Value = record.get(name)
        return "" if found is None else str(found)

    def number(name: str) -> int:
        found = record.get(name)
        return found if isinstance(found, int) and found >= 0 else 0

    return JobRecord(
        id=bytes.fromhex(text("id")),
        status=text("status"),
        created=number("created"),
        updated=number("updated"),
        op=text("op"),
        op_name=text("opName"),
        name=text("name"),
        caller=text("caller"),
        input=record.get("input"),
        output=record.get("output"),
        error=text("error"),
        message=text("message"),
        steps=record.get("steps"),
    )
