"""Adapter `grid`: runs operations here or at another venue, and reads jobs.

A job that runs at another venue has a record here, whose `venue` and `remoteId` name the one there.
The effect key of the job here is the id of the request there, so that repeated requests make one
job there; a later attempt follows that job.

Source: docs/design/venue.md "Other venues".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from datalattice.actions import CancelJob, GetJob, InvokeOperation, JobRecord, MessageJob
from datalattice.cells import Map
from datalattice.clock import Clock, SystemClock
from datalattice.errors import (
    DataLatticeError,
    NoSuchPath,
    Unavailable,
    UsageError,
)
from datalattice.service.venue import (
    AUTH_REQUIRED,
    INPUT_REQUIRED,
    JobCaller,
    JobContext,
    JobStatus,
    Json,
    OperationFailed,
    OperationMetadata,
    PlainAdapter,
    RecoveryRule,
    VenueOperation,
    caller_of,
    cell_json,
    json_cell,
)
from datalattice.service.venue.adapters.hosts import HostUnreached
from datalattice.service.venue.adapters.inputs import members, sub_operation, text_member
from datalattice.service.venue.adapters.venues import MayCall, VenueCalls, VenueDoor, anybody

POLL_FIRST_S: Final = 0.3  # "first 300 ms, factor 1.5, at most 10 s"
POLL_FACTOR: Final = 1.5
POLL_MOST_S: Final = 10.0

QUICK_MS: Final = 250
"""Time that the first request waits for the end of the job: most jobs have ended by then."""

AWAY_S: Final = 300.0
"""Seconds that a venue which runs a job of this one may be away, by default."""

JOB_ID_BYTES_MAX: Final = 32  # "readers accept any length from 1 to 32 bytes"
DELEGATIONS_MAX: Final = 16
"""Most delegations of one call: "16 links a request"."""

_RUNS: Final = ("operation", "input", "venue", "ucans")
_ASKS: Final = ("id", "venue", "timeout", "ucans")
_KINDS: Final = {
    "run": ("Runs an operation, and returns its output", _RUNS, "operation"),
    "invoke": ("Starts a job, and returns its record", _RUNS, "operation"),
    "jobStatus": ("Returns the record of a job", _ASKS, "id"),
    "jobResult": ("Waits for the end of a job, and returns its output", _ASKS, "id"),
}
_TYPES: Final[Mapping[str, Json]] = {
    "operation": {"type": "string"},
    # The whole input is hidden: which of its members are secret is known at the other venue.
    "input": {"writeOnly": True},
    "venue": {"type": "string"},
    "id": {"type": "string"},
    "timeout": {"type": "integer", "minimum": 1},
    "ucans": {"type": "array", "items": {"type": "string"}, "writeOnly": True},
}


class OwnJobs(Protocol):
    """The jobs of this venue: its runner."""

    async def invoke(
        self,
        reference: str,
        input: Json,
        caller: JobCaller,
        *,
        timeout_ms: int | None = None,
        request_id: str | None = None,
    ) -> Map:
        """Start a job; return its record."""
        ...

    async def get(self, id: bytes, caller: JobCaller) -> Map:
        """Return the record of a job."""
        ...

    async def wait(self, id: bytes, caller: JobCaller, limit_s: float) -> Map:
        """Return the record when the job has ended, after `limit_s` seconds at the latest."""
        ...

    async def is_delegated(self, caller: str, venue: str, remote_id: str) -> bool:
        """Return whether a job of a caller here runs, or ran, as this job of another venue."""
        ...


@dataclass(frozen=True, slots=True)
class _Call:
    """The parsed input of a job. door: of the other venue; None: this venue."""

    kind: str
    operation: str
    input: Json
    id: bytes
    timeout_ms: int | None
    door: VenueDoor | None
    delegations: tuple[str, ...]


class GridAdapter(PlainAdapter):
    """Runs `grid:run`, `grid:invoke`, `grid:jobStatus` and `grid:jobResult`.

    jobs: returns those of this venue, when a job runs. venues: the others; None: there are none.
    may_call: raises for callers on whose behalf no other venue is called.
    away_s: seconds that the other venue may be away before the job here fails.
    """

    name = "grid"

    def __init__(
        self,
        jobs: Callable[[], OwnJobs],
        venues: VenueCalls | None = None,
        *,
        may_call: MayCall = anybody,
        away_s: float = AWAY_S,
        clock: Clock | None = None,
    ) -> None:
        self._jobs: Final = jobs
        self._venues: Final = venues
        self._may_call: Final = may_call
        self._away_s: Final = away_s
        self._clock: Final = clock or SystemClock()
        self._asked_for: Final[dict[bytes, tuple[_Call, JobRecord | None]]] = {}
        """The requests of jobs here to other venues, and the answers; None: no answer yet."""

    def operations(self) -> Sequence[VenueOperation]:
        """Return the four operations."""
        found = []
        for kind, (description, names, needed) in _KINDS.items():
            properties: dict[str, Json] = {name: _TYPES[name] for name in names}
            metadata: OperationMetadata = {
                "name": f"Grid {kind}",
                "description": f"{description}, here or at another venue",
                "operation": {
                    "adapter": f"grid:{kind}",
                    "input": {"type": "object", "properties": properties, "required": [needed]},
                },
            }
            # RETRY: a repeated request has the same effect key, so the job there is made once.
            has_effects = kind in {"run", "invoke"}
            found.append(VenueOperation(f"grid/{kind}", metadata, has_effects, RecoveryRule.RETRY))
        return found

    def check(self, meta: OperationMetadata, input: Json) -> None:
        """Refuse a malformed input, and a venue that may not be called."""
        self._read(meta, input)

    async def run(self, job: JobContext, meta: OperationMetadata, input: Json) -> Json:
        """Do the operation, here or at the other venue.

        Raises: OperationFailed: the other venue cannot be reached, or the job failed there.
                Unauthorized: no other venue is called on behalf of this caller.
        """
        call = self._read(meta, input)
        try:
            async with asyncio.timeout(call.timeout_ms and call.timeout_ms / 1_000):
                if call.door is None:
                    return await self._here(job, call)
                self._may_call(caller_of(job))
                output = await self._there(job, call, call.door)
                self._asked_for.pop(job.id, None)
                return output
        except DataLatticeError:
            # Kept for a job that was cancelled meanwhile: `cancel` needs it.
            if not job.cancelled:
                self._asked_for.pop(job.id, None)
            raise
        except TimeoutError:
            # "over it: error, job untouched"
            raise OperationFailed(f"no answer within {call.timeout_ms} ms") from None

    async def cancel(self, job: JobContext) -> None:
        """Cancel the job at the other venue, if one was requested."""
        if self._venues is None:
            return
        saved = job.saved if isinstance(job.saved, dict) else {}
        call, record = self._asked_for.pop(job.id, (None, None))
        if call is not None and call.door is not None:
            # Without an answer so far, the repeated request makes no second job and returns its id.
            record = record or await self._ask_for(job, call, call.door)
            door, remote_id, delegations = call.door, record.id, call.delegations
        elif "id" in saved:  # by an attempt before a restart
            door = self._venues.find(str(saved["venue"]))
            remote_id = bytes.fromhex(str(saved["id"]))
            delegations = _texts(saved["ucans"])
        else:
            return
        # "It is asked once: if it is away, the job there goes on" (docs/design/venue.md "Other
        # venues").
        await self._venues.call(door, CancelJob(id=remote_id), delegations=delegations)

    # --- the input --------------------------------------------------------------------------------

    def _read(self, meta: OperationMetadata, given: Json) -> _Call:
        kind = sub_operation(meta, _KINDS)
        _, names, _ = _KINDS[kind]
        fields = members(given, names)
        venue = text_member(fields, "venue", "")
        door = None
        if venue:
            if self._venues is None:
                raise UsageError(
                    "`venue`: this venue calls no others; its settings venue.grid.venues and "
                    "venue.grid.allow are empty"
                )
            door = self._venues.find(venue)
        timeout = fields.get("timeout")
        if timeout is not None and (type(timeout) is not int or timeout < 1):
            raise UsageError(f"`timeout` is a number of milliseconds, 1 or more, got {timeout!r}")
        delegations = _texts(fields.get("ucans"))
        runs = "operation" in names
        return _Call(
            kind,
            text_member(fields, "operation") if runs else "",
            fields.get("input"),
            b"" if runs else _job_id(text_member(fields, "id")),
            timeout,
            door,
            delegations,
        )

    # --- here -------------------------------------------------------------------------------------

    async def _here(self, job: JobContext, call: _Call) -> Json:
        caller = caller_of(job)
        if call.kind == "run":
            result = await job.invoke(call.operation, call.input, key="run")
            if result.status != JobStatus.COMPLETE:
                raise OperationFailed(result.error or f"job {result.id.hex()} is {result.status}")
            return result.output
        # "A venue that calls another one gives its effect key as the id" (docs/design/venue.md).
        if call.kind == "invoke":
            key = job.effect_key().hex()
            made = await self._jobs().invoke(call.operation, call.input, caller, request_id=key)
            return _json(made)
        if call.kind == "jobStatus":
            return _json(await self._jobs().get(call.id, caller))
        while True:
            record = await self._jobs().wait(call.id, caller, POLL_MOST_S)
            status = JobStatus(str(record["status"]))
            if status.is_terminal:
                output: Json = cell_json(record.get("output"))
                return _output_of(call.id, status, output, str(record.get("error")), "")

    # --- there ------------------------------------------------------------------------------------

    async def _there(self, job: JobContext, call: _Call, door: VenueDoor) -> Json:
        if call.kind in {"jobStatus", "jobResult"}:
            # To the other venue, this venue is the caller of all; so this one checks whose job it
            # is.
            if not await self._jobs().is_delegated(job.caller, str(door), call.id.hex()):
                raise NoSuchPath(f"no job of yours here has made job {call.id.hex()} at {door}")
            if call.kind == "jobStatus":
                return _shown(await self._job(door, call.id, call.delegations))
            return await self._result(job, door, call.id, call.delegations)
        saved = job.saved if isinstance(job.saved, dict) else {}
        if "id" in saved:  # by an earlier attempt
            record = await self._job(door, bytes.fromhex(str(saved["id"])), call.delegations)
        else:
            record = await self._begin(job, call, door)
        if call.kind == "invoke":
            return _shown(record)
        if JobStatus(record.status).is_terminal:
            return _result_of(record, door)
        return await self._result(job, door, record.id, call.delegations)

    async def _begin(self, job: JobContext, call: _Call, door: VenueDoor) -> JobRecord:
        """Start a job at the other venue; return its record, which the job here has durably."""
        # Before the request: a job that is cancelled meanwhile still has to cancel the one there.
        self._asked_for[job.id] = (call, None)
        record = await self._ask_for(job, call, door)
        self._asked_for[job.id] = (call, record)
        shown: dict[str, Json] = {"venue": str(door), "remoteId": record.id.hex()}
        saved: dict[str, Json] = {
            "venue": str(door),
            "id": record.id.hex(),
            "ucans": list(call.delegations),
        }
        await asyncio.gather(job.progress(shown), job.checkpoint(saved))  # in one commit
        return record

    async def _ask_for(self, job: JobContext, call: _Call, door: VenueDoor) -> JobRecord:
        """Request a job until the venue answers; the effect key makes it one job."""
        left_ms = None
        if job.deadline_ms is not None:
            # The job there ends with the job here; 0 would mean no deadline.
            left_ms = max(1, job.deadline_ms - self._clock.now_ms())
        request = InvokeOperation(
            operation=call.operation,
            input=json_cell(call.input, "input"),
            wait_ms=QUICK_MS if call.kind == "run" else 0,
            timeout_ms=left_ms,
        )
        away = _Away(self._away_s)
        # An earlier attempt may have reached the venue.
        may_be_made = job.attempt > 1
        while True:
            try:
                record = await self._called(
                    door, request, call.delegations, request_id=job.effect_key().hex()
                )
            except HostUnreached as error:
                # "Unreachable venue: FAILED within the connect limit, text not empty."
                if not may_be_made:
                    raise OperationFailed(f"{door} cannot be reached: {error}") from error
                await away.pause(door, error)
            except Unavailable as error:
                may_be_made = True
                await away.pause(door, error)
            else:
                return _checked(record, None, door)

    async def _result(
        self, job: JobContext, door: VenueDoor, id: bytes, delegations: tuple[str, ...]
    ) -> Json:
        """Wait for the end of a job at another venue; return its output.

        Questions of that job go to the caller of this one.
        """
        asked, pause_s, away = 0, POLL_FIRST_S, _Away(self._away_s)
        while True:
            try:
                record = await self._job(door, id, delegations)
                status = JobStatus(record.status)
                if status.is_terminal:
                    return _result_of(record, door)
                # "The job there asks for something: asks its caller, and passes the answer on"
                # (docs/design/venue.md). The key numbers the answers, so that each is given once.
                if status in (JobStatus.INPUT_REQUIRED, JobStatus.AUTH_REQUIRED):
                    kind = INPUT_REQUIRED if status == INPUT_REQUIRED else AUTH_REQUIRED
                    answer = await job.ask(record.message or f"job {id.hex()} waits", kind)
                    message = MessageJob(id=id, message=json_cell(answer, "message"))
                    key = job.effect_key(f"answer {asked}").hex()
                    await self._called(door, message, delegations, request_id=key)
                    asked, pause_s = asked + 1, POLL_FIRST_S
            # "The other venue stops: waits up to 300 s for it; then FAILED" (docs/design/venue.md).
            except Unavailable as error:
                await away.pause(door, error)
            else:
                away.ended()
                await asyncio.sleep(pause_s)
                pause_s = min(POLL_FACTOR * pause_s, POLL_MOST_S)

    async def _job(self, door: VenueDoor, id: bytes, delegations: tuple[str, ...]) -> JobRecord:
        return _checked(await self._called(door, GetJob(id=id), delegations), id, door)

    async def _called(
        self,
        door: VenueDoor,
        request: Any,
        delegations: tuple[str, ...],
        request_id: str | None = None,
    ) -> Any:
        """Return the answer of a venue.

        Raises: Unavailable: the request may be repeated. OperationFailed: the venue refuses it.
        """
        assert self._venues is not None
        try:
            return await self._venues.call(
                door, request, request_id=request_id, delegations=delegations
            )
        except (Unavailable, OperationFailed):
            raise
        except DataLatticeError as error:
            # "remote failure is a local failure with the remote text"
            raise OperationFailed(f"{door}: {error}"[:4_000]) from error


class _Away:
    """Pauses between requests to a venue that does not answer, for `limit_s` seconds at most."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s: Final = limit_s
        self._since: float | None = None
        self._pause_s = POLL_FIRST_S

    def ended(self) -> None:
        """Reset after an answer."""
        self._since, self._pause_s = None, POLL_FIRST_S

    async def pause(self, door: VenueDoor, error: Exception) -> None:
        """Wait before the next request. Raises: OperationFailed: it has been away for too long."""
        now = asyncio.get_running_loop().time()
        self._since = now if self._since is None else self._since
        if now - self._since >= self._limit_s:
            raise OperationFailed(
                f"{door} has not answered for {self._limit_s:g} s: {error}"
            ) from error
        await asyncio.sleep(min(self._pause_s, self._limit_s - (now - self._since)))
        self._pause_s = min(POLL_FACTOR * self._pause_s, POLL_MOST_S)


def _texts(given: Json) -> tuple[str, ...]:
    """Return delegations. Raises: UsageError: they are not a list of texts."""
    given = [] if given is None else given
    if (
        not isinstance(given, list)
        or len(given) > DELEGATIONS_MAX
        # One header carries all of them, separated by commas.
        or not all(isinstance(one, str) and one.isascii() and "," not in one for one in given)
    ):
        raise UsageError(f"`ucans` is a list of at most {DELEGATIONS_MAX} delegations, each a text")
    return tuple(map(str, given))


def _job_id(text: str) -> bytes:
    """Return the id of a job. Raises: UsageError."""
    with contextlib.suppress(ValueError):
        id = bytes.fromhex(text)
        if 0 < len(id) <= JOB_ID_BYTES_MAX:
            return id
    raise UsageError(f"`id` is the id of a job in hex, got {text!r:.100}")


def _checked(record: JobRecord, id: bytes | None, door: VenueDoor) -> JobRecord:
    """Return a record from another venue. Raises: OperationFailed: its id or status is wrong."""
    # "A record with another id or status fails the job" (docs/design/venue.md "Other venues").
    if not 0 < len(record.id) <= JOB_ID_BYTES_MAX or id not in (None, record.id):
        raise OperationFailed(f"{door} answered with another job than the requested one")
    if record.status not in JobStatus._value2member_map_:
        raise OperationFailed(f"{door} answered with a job whose status is {record.status!r:.80}")
    return record


def _result_of(record: JobRecord, door: VenueDoor) -> Json:
    output: Json = cell_json(record.output)
    return _output_of(record.id, JobStatus(record.status), output, record.error, f" at {door}")


def _output_of(id: bytes, status: JobStatus, output: Json, error: str, where: str) -> Json:
    """Return the output of a job that has ended. Raises: OperationFailed: it is not COMPLETE."""
    if status is JobStatus.COMPLETE:
        return output
    why = error or "the job has no error text"
    raise OperationFailed(
        why if status is JobStatus.FAILED else f"job {id.hex()}{where} is {status}: {why}"
    )


def _json(record: Map) -> Json:
    found: Json = cell_json(record)
    return found


def _shown(record: JobRecord) -> Json:
    """Return the record of a job of another venue as JSON, with the member names of records."""
    shown: dict[str, Json] = {
        "id": record.id.hex(),
        "status": record.status,
        "created": record.created,
        "updated": record.updated,
        "op": record.op,
        "caller": record.caller,
        "input": cell_json(record.input),
    }
    others: dict[str, Json] = {
        "opName": record.op_name,
        "name": record.name,
        "output": cell_json(record.output),
        "error": record.error,
        "message": record.message,
        "steps": cell_json(record.steps),
    }
    return shown | {name: value for name, value in others.items() if value not in (None, "")}
