"""Handlers of the actions on the venue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from datalattice.actions import (
    PAGE_MAX,
    ActionRequest,
    CancelJob,
    DeleteJob,
    DidDocument,
    Empty,
    GetAssetDid,
    GetJob,
    GetOperation,
    GetVenueDid,
    InvokeOperation,
    JobList,
    JobRecord,
    ListJobIds,
    ListOperations,
    ListScheduled,
    MessageJob,
    OfferedOperation,
    OperationList,
    PauseJob,
    QueuedMessage,
    ResumeJob,
    ScheduleOperation,
    UnscheduleCall,
    WaitingCall,
    WaitingCalls,
    WatchJob,
)
from datalattice.apps.grid import venue_document
from datalattice.cells import Map, Value
from datalattice.cursors import Stream, Wake
from datalattice.errors import LimitExceeded, NoSuchPath, UnsupportedOperation, UsageError
from datalattice.lattice import did_of
from datalattice.protobuf import Message
from datalattice.service.registry import ServiceCall, Streamed, handles, page
from datalattice.service.relay import Relay
from datalattice.service.venue import (
    JobCaller,
    JobStatus,
    VenueHost,
    VenueOperation,
    cell_json,
    job_of_call,
    json_cell,
    operation_of,
    status_of_job,
    time_of_call,
)

M = TypeVar("M", bound=Message)
_Q = TypeVar("_Q", bound=ActionRequest[Any])

_WAIT_MS_MAX: Final = 120_000
"""Greatest accepted `wait_ms`."""
_WAIT_S: Final = 10.0
"""Longest wait of one call, which holds a thread of its door; then it returns the live job."""

VERSION_DIGITS_MAX: Final = 20
"""Most digits of the `updated` of a record: 64 bits."""


def _at_venue(
    request: type[_Q],
) -> Callable[[Callable[[ServiceCall, _Q], M]], Callable[[ServiceCall, _Q], M]]:
    """Register the handler of a request at the venue; a program beside a node asks the node."""

    def register(handler: Callable[[ServiceCall, _Q], M]) -> Callable[[ServiceCall, _Q], M]:
        @handles(request)
        def done(call: ServiceCall, given: _Q) -> M:
            if _is_beside(call):
                answer: M = call.node.ask(given, call.asker, request_id=call.request_id)
                return answer
            return handler(call, given)

        return handler

    return register


def _is_beside(call: ServiceCall) -> bool:
    """Return whether another process, a node, may run the venue of this folder."""
    # The service of a node has events, also where the node runs no venue.
    return call.venue is None and call.events is None


@_at_venue(ListOperations)
def list_operations(call: ServiceCall, request: ListOperations) -> OperationList:
    """List the operations of the venue."""
    found = []
    offered = _venue(call).runner.operations().items()
    behind = (one for one in offered if one[0] > request.after)
    for path, (asset, operation) in islice(behind, page(request.count, PAGE_MAX)):
        found.append(_offered(path, asset, operation))
    return OperationList(operations=tuple(found))


def _offered(path: str, asset: bytes, operation: VenueOperation) -> OfferedOperation:
    metadata, schemas = operation.metadata, operation_of(operation.metadata)
    return OfferedOperation(
        path=path,
        asset=asset,
        name=str(metadata.get("name", "")),
        description=str(metadata.get("description", "")),
        input=json_cell(schemas.get("input"), "input"),
        output=json_cell(schemas.get("output"), "output"),
    )


@_at_venue(GetOperation)
def get_operation(call: ServiceCall, request: GetOperation) -> OfferedOperation:
    """Return one operation of the catalogue."""
    found = _venue(call).runner.operations().get(request.path)
    if found is None:
        raise NoSuchPath(f"there is no operation {request.path!r:.200}; see venue.operations")
    return _offered(request.path, *found)


@handles(GetVenueDid)
def get_venue_did(call: ServiceCall, request: GetVenueDid) -> DidDocument:
    """Return the DID document of the venue."""
    key = call.node.owner_key("own")
    assert isinstance(key, bytes), "the own key"
    # Without a door there is no endpoint that the document could name.
    url = next(iter(call.urls()), None)
    document = venue_document(did_of(key), key, url and f"{url.rstrip('/')}/api/v1")
    return DidDocument(document=json_cell(document, "document"))


@handles(GetAssetDid)
def get_asset_did(call: ServiceCall, request: GetAssetDid) -> DidDocument:
    """Return the DID document of an asset."""
    venue = call.node.venue()
    if venue.asset(request.id) is None:
        raise NoSuchPath(f"this node holds no asset {request.id.hex()}")
    id = f"{venue.did}/a/{request.id.hex()}"
    document = {"@context": "https://www.w3.org/ns/did/v1", "id": id, "controller": venue.did}
    return DidDocument(document=json_cell(document, "document"))


@_at_venue(InvokeOperation)
def invoke(call: ServiceCall, request: InvokeOperation) -> JobRecord:
    """Start a job, and wait for its end if the request says so."""
    venue, caller, wait_s = _venue(call), _caller(call), _seconds(request.wait_ms)
    # The longest wait of a call; a caller that wants more watches the job.
    if request.wait:
        wait_s = _WAIT_S
    record = venue.call(
        venue.runner.invoke(
            request.operation,
            cell_json(request.input),
            caller,
            timeout_ms=request.timeout_ms,
            request_id=call.request_id,
        )
    )
    # The job is durable by now: a caller that gives up waiting finds it among its jobs.
    if wait_s:
        id = bytes.fromhex(str(record["id"]))
        record = venue.call(venue.runner.wait(id, caller, wait_s))
    return _record(record)


@_at_venue(ListJobIds)
def list_jobs(call: ServiceCall, request: ListJobIds) -> JobList:
    """List the caller's jobs."""
    venue = _venue(call)
    # Refused here: an unknown status would match no job, like a status that no job has.
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


@_at_venue(GetJob)
def get_job(call: ServiceCall, request: GetJob) -> JobRecord:
    """Return a job."""
    venue, wait_s = _venue(call), _seconds(request.wait_ms)
    return _record(venue.call(venue.runner.wait(request.id, _caller(call), wait_s)))


@handles(WatchJob)
def watch_job(call: ServiceCall, request: WatchJob) -> Streamed[JobRecord]:
    """Return a job after each change."""
    if _is_beside(call):
        states: Relay[JobRecord] = Relay(call.node.follow(request, call.asker))
        return Streamed(states, lambda record: record)
    stream = _JobVersions(_venue(call), request.id, _caller(call), _version(request.resume))
    return Streamed(
        stream,
        _record,
        positions=stream,
        is_resumed=bool(request.resume),
        # "`id:` = `updated`": a reader finds the token in the record itself.
        token=lambda _name, position: str(position),
    )


def _version(token: str) -> int:
    """Return the `updated` of a token; -1: there is no token. Raises: UsageError."""
    if not token:
        return -1
    # `isdigit` alone accepts superscripts, which `int` refuses.
    if not (token.isascii() and token.isdigit() and len(token) <= VERSION_DIGITS_MAX):
        raise UsageError(f"resume: a number, the `updated` of the job, got {token!r:.80}")
    return int(token)


class _JobVersions(Stream[Map]):
    """The newest durable record of a job at each reading; a position is its `updated`."""

    def __init__(self, venue: VenueHost, id: bytes, caller: JobCaller, seen: int) -> None:
        """seen: the `updated` of the last record that the reader got; -1: none.

        Raises: NoSuchPath: there is no such job. Unauthorized: it is another caller's.
        """
        self._venue, self._id, self._caller = venue, id, caller
        # A version above the newest is of another job or of a state before a restore: begin anew.
        self._seen = seen if seen <= _updated(self._newest()) else -1
        super().__init__(_JobChanges(venue, id))

    def _newest(self) -> Map:
        return self._venue.call(self._venue.runner.get(self._id, self._caller))

    def _fetch(self) -> list[Map]:
        record = self._newest()
        status, updated = status_of_job(record), _updated(record)
        # No change follows an end. An unknown status is one of a later version: do not wait for it.
        if status is None or status.is_terminal:
            self.close()
        if updated <= self._seen:
            return []
        self._seen = updated
        return [record]

    def now(self) -> Value:
        return max(self._seen, 0)

    def after(self, items: Sequence[Map]) -> list[Value]:
        return [_updated(one) for one in items]

    def fresh_start(self) -> str:
        return "with the present record"


class _JobChanges:
    """A source that wakes its readers at each change of a job."""

    def __init__(self, venue: VenueHost, id: bytes) -> None:
        self._venue, self._id = venue, id

    def subscribe(self, wake: Wake) -> Wake:
        return self._venue.runner.watch(self._id, wake)


def _updated(record: Map) -> int:
    found = record.get("updated")
    return found if isinstance(found, int) else 0


@_at_venue(CancelJob)
def cancel(call: ServiceCall, request: CancelJob) -> JobRecord:
    """End a job."""
    venue = _venue(call)
    return _record(venue.call(venue.runner.cancel(request.id, _caller(call))))


@_at_venue(PauseJob)
def pause(call: ServiceCall, request: PauseJob) -> JobRecord:
    """Stop a job."""
    venue = _venue(call)
    return _record(venue.call(venue.runner.pause(request.id, _caller(call))))


@_at_venue(ResumeJob)
def resume(call: ServiceCall, request: ResumeJob) -> JobRecord:
    """Run a paused job again."""
    venue = _venue(call)
    return _record(venue.call(venue.runner.resume(request.id, _caller(call))))


@_at_venue(MessageJob)
def message(call: ServiceCall, request: MessageJob) -> QueuedMessage:
    """Send a job a message."""
    venue = _venue(call)
    given = cell_json(request.message)
    depth = venue.call(
        venue.runner.message(request.id, given, _caller(call), request_id=call.request_id)
    )
    return QueuedMessage(id=request.id, queue_depth=depth)


@_at_venue(DeleteJob)
def delete(call: ServiceCall, request: DeleteJob) -> Empty:
    """Hide a job."""
    venue = _venue(call)
    venue.call(venue.runner.delete(request.id, _caller(call)))
    return Empty()


@_at_venue(ScheduleOperation)
def schedule(call: ServiceCall, request: ScheduleOperation) -> WaitingCall:
    """Schedule a job."""
    venue, caller = _venue(call), _caller(call)
    handle = venue.call(
        venue.runner.schedule(
            request.operation,
            cell_json(request.input),
            request.time_ms,
            caller,
            after_ms=request.after_ms,
            request_id=call.request_id,
        )
    )
    return _waiting(handle, request.operation, caller.did)


@_at_venue(ListScheduled)
def scheduled(call: ServiceCall, request: ListScheduled) -> WaitingCalls:
    """List the caller's scheduled calls."""
    venue = _venue(call)
    found = venue.call(venue.runner.scheduled(_caller(call))).items()
    behind = (one for one in found if one[0] > request.after)
    return WaitingCalls(
        calls=tuple(
            _waiting(handle, one.reference or one.asset.hex(), one.owner)
            for handle, one in islice(behind, page(request.count, PAGE_MAX))
        )
    )


@_at_venue(UnscheduleCall)
def unschedule(call: ServiceCall, request: UnscheduleCall) -> Empty:
    """Cancel a scheduled call."""
    venue = _venue(call)
    venue.call(venue.runner.unschedule(request.handle, _caller(call)))
    return Empty()


def _waiting(handle: bytes, operation: str, caller: str) -> WaitingCall:
    return WaitingCall(
        handle=handle,
        time=time_of_call(handle),
        operation=operation,
        caller=caller,
        job=job_of_call(handle),
    )


def _venue(call: ServiceCall) -> VenueHost:
    if call.venue is None:
        raise UnsupportedOperation(
            "this node runs no venue: its setting venue.enabled is false; `lattice venue start` "
            "starts a node with a venue"
        )
    return call.venue


def _caller(call: ServiceCall) -> JobCaller:
    """Return the caller as jobs record it."""
    did = _venue(call).runner.did
    scopes = call.principal.scopes
    grants = None if scopes is None else tuple(map(str, scopes))
    if call.is_operator:
        return JobCaller(call.caller or did, sees_all=True, grants=grants)
    # "Anonymous: caller is `<venue DID>:public`"
    return JobCaller(call.caller or f"{did}:public", grants=grants)


def _seconds(wait_ms: int) -> float:
    if wait_ms > _WAIT_MS_MAX:
        raise LimitExceeded(f"wait_ms: at most {_WAIT_MS_MAX}, got {wait_ms}")
    return min(wait_ms / 1_000, _WAIT_S)


def _record(record: Map) -> JobRecord:
    def text(name: str) -> str:
        found: Value = record.get(name)
        return "" if found is None else str(found)

    # A member of another kind, which a later version may write, reads as empty.
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
        venue=text("venue"),
        remote_id=bytes.fromhex(text("remoteId")),
    )
