"""Jobs: a live job in memory, and the `JobContext` of its adapter.

Source: docs/design/venue.md "Adapters".
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from datalattice.cells import Map, Value
from datalattice.errors import Conflict, LimitExceeded, OperationFailed, Unauthorized, UsageError
from datalattice.service.venue.adapter import (
    AUTH_REQUIRED,
    INPUT_REQUIRED,
    JobContext,
    JobResult,
    Json,
)
from datalattice.service.venue.catalogue import ResolvedOperation
from datalattice.service.venue.records import PrivatePart, cell_json, json_cell
from datalattice.service.venue.transitions import JobEvent, JobStatus, status_of_job

SHOWN_MEMBERS: Final = frozenset({"message", "output", "steps", "venue", "remoteId"})
"""Members of a record that `progress` may set."""

CHILDREN_MAX: Final = 1_000
"""Most jobs that one job invokes."""

_DEPTH_MAX: Final = 16
"""Greatest depth of jobs that invoke jobs."""


@dataclass(frozen=True, slots=True)
class JobCaller:
    """The caller of a venue.

    sees_all: an operator, who may see and change every job. grants: those that narrow the caller's
    credential, and what its jobs read; None: it is not narrowed.
    """

    did: str
    sees_all: bool = False
    grants: tuple[str, ...] | None = None


def caller_of(job: JobContext) -> JobCaller:
    """Return the caller of a job, with the grants that narrow it."""
    return JobCaller(job.caller, grants=job.grants)


class LiveJob:
    """A job that has not ended. `shown` is the durable record; `record` may be newer."""

    def __init__(
        self,
        id: bytes,
        record: Map,
        private: PrivatePart,
        operation: ResolvedOperation | None,
        shown: Map | None = None,
    ) -> None:
        """operation: None: it cannot be resolved."""
        self.id: Final = id
        self.record = record
        self.private = private
        self.operation: Final = operation
        self.shown = shown
        self.run: JobRun | None = None
        self.done: Final = asyncio.Event()
        self.wakes: Final[set[Callable[[], None]]] = set()
        self.timer: asyncio.TimerHandle | None = None
        self.accepted: asyncio.Future[None] | None = None
        """Done when the new job is durable; None: the job was found at the start of the venue."""

    @property
    def status(self) -> JobStatus:
        """The status of the newest record."""
        status = status_of_job(self.record)
        assert status is not None, self.record
        return status

    @property
    def caller(self) -> str:
        """The DID of the caller."""
        return str(self.record.get("caller"))


class JobKeeper(Protocol):
    """The owner of the live jobs. Awaited methods return when their change is durable."""

    @property
    def did(self) -> str:
        """The DID of the venue."""
        ...

    async def change(
        self, job: LiveJob, event: JobEvent, members: Mapping[str, Value] | None = None
    ) -> None:
        """Apply an event to a job. Raises: Conflict: the status of the job does not allow it."""
        ...

    async def keep(self, job: LiveJob, private: PrivatePart) -> None:
        """Replace the private part of a job."""
        ...

    async def invoke_child(self, parent: LiveJob, reference: str, input: Json, key: str) -> bytes:
        """Start a job that another one invokes; return its id."""
        ...

    async def ended(self, id: bytes) -> JobResult:
        """Wait for the end of a job and return it."""
        ...

    def cancel_soon(self, id: bytes, why: str) -> None:
        """Cancel a job if it is live."""
        ...


class JobRun:
    """One run of a job: the `JobContext` of its adapter."""

    def __init__(self, runner: JobKeeper, job: LiveJob) -> None:
        self._runner: Final = runner
        self.job: Final = job
        self.task: asyncio.Task[None] | None = None
        self.answer: asyncio.Future[Json] | None = None
        """Set by the answer of the caller, while `ask` waits for one."""
        self.messages: Final = asyncio.Lock()
        """Held while a message is offered to the adapter or taken by `ask`: only one gets it."""
        self._asked = 0

    @property
    def id(self) -> bytes:
        """The job id."""
        return self.job.id

    @property
    def caller(self) -> str:
        """The DID of the caller."""
        return self.job.caller

    @property
    def grants(self) -> tuple[str, ...] | None:
        """The grants that narrow the caller's credential; None: it is not narrowed."""
        return self.job.private.grants

    @property
    def attempt(self) -> int:
        """The number of this run, from 1."""
        return self.job.private.attempt

    @property
    def deadline_ms(self) -> int | None:
        """The time at which the job ends as TIMEOUT; None: never."""
        return self.job.private.deadline_ms

    @property
    def cancelled(self) -> bool:
        """Whether the job has stopped this run."""
        return self.job.run is not self

    @property
    def saved(self) -> Json:
        """The last value of `checkpoint`."""
        found: Json = cell_json(self.job.private.saved)
        return found

    def effect_key(self, name: str = "") -> bytes:
        """Return the key of an effect: a hash of venue, job and name."""
        return effect_key(self._runner.did, self.id, name)

    async def progress(self, members: Mapping[str, Json]) -> None:
        """Set members of the record."""
        self._check()
        wrong = sorted(set(members) - SHOWN_MEMBERS)
        if wrong:
            raise UsageError(f"progress: {wrong[0]!r} is not one of {sorted(SHOWN_MEMBERS)}")
        cells = {name: json_cell(value, name) for name, value in members.items()}
        await self._runner.change(self.job, JobEvent.PROGRESS, cells)

    async def checkpoint(self, value: Json) -> None:
        """Save a value for a later attempt."""
        self._check()
        saved = json_cell(value, "checkpoint")
        await self._runner.keep(self.job, replace(self.job.private, saved=saved))

    async def ask(self, message: str, kind: str = INPUT_REQUIRED) -> Json:
        """Wait for a message of the caller, and return it."""
        self._check()
        if kind not in (INPUT_REQUIRED, AUTH_REQUIRED):
            raise UsageError(f"kind: {INPUT_REQUIRED} or {AUTH_REQUIRED}, got {kind!r:.80}")
        number, self._asked = self._asked, self._asked + 1
        private = self.job.private
        answer: Json
        if number < len(private.answers):  # given to an earlier attempt
            answer = cell_json(private.answers[number])
            return answer
        async with self.messages:
            private = self.job.private
            # A message that came before the question is its answer.
            if private.queue:
                first, *rest = private.queue
                taken = replace(private.answered(first), queue=tuple(rest))
                await self._runner.keep(self.job, taken)
                answer = cell_json(first)
                return answer
        if self.answer is not None:
            raise UsageError("ask: the job waits for another answer; ask one question at a time")
        waiting: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self.answer = waiting
        event = JobEvent.NEED_INPUT if kind == INPUT_REQUIRED else JobEvent.NEED_AUTH
        try:
            await self._runner.change(self.job, event, {"message": json_cell(message, "message")})
            return await waiting
        finally:
            self.answer = None

    async def invoke(
        self,
        op: str,
        input: Json,
        *,
        key: str,
        venue: str | None = None,
        on_started: Callable[[bytes], None] = lambda _id: None,
    ) -> JobResult:
        """Run an operation as a job of the same caller; return its end."""
        self._check()
        if venue is not None:
            # A job here, which asks that venue and follows the job there.
            op, input = "v/ops/grid/run", {"operation": op, "input": input, "venue": venue}
        known = self.job.private.children.get(key)
        if isinstance(known, bytes):
            child = known
        else:
            # Bounds on the jobs that one call can cause: children of a job, and depth.
            if len(self.job.private.children) >= CHILDREN_MAX:
                raise LimitExceeded(f"a job invokes at most {CHILDREN_MAX} others")
            if self.job.private.depth >= _DEPTH_MAX:
                raise LimitExceeded(f"jobs invoke jobs at most {_DEPTH_MAX} deep")
            child = await self._runner.invoke_child(self.job, op, input, key)
        on_started(child)
        try:
            return await self._runner.ended(child)
        except asyncio.CancelledError:
            # "Running ones are cancelled", as no job waits for it; a paused job will ask for it
            # again.
            if self.job.status is not JobStatus.PAUSED:
                self._runner.cancel_soon(child, "the job that invoked it has ended or gave it up")
            raise

    def _check(self) -> None:
        if self.cancelled:
            raise OperationFailed("the job has ended or is paused")


def effect_key(did: str, id: bytes, name: str) -> bytes:
    """Return the key of an effect, 32 bytes: the hash of venue, job and name, each framed."""
    # Framed by their lengths, so that no other parts give the same bytes.
    parts = (did.encode(), id, name.encode())
    return hashlib.sha256(b"".join(len(p).to_bytes(4, "big") + p for p in parts)).digest()


def child_id(parent: bytes, key: str) -> bytes:
    """Return the id of the job that another one invokes with a key.

    It follows from parent and key, so a parent that runs again, in a restored folder, finds its
    finished children.
    """
    # 6 bytes of milliseconds, as in every job id: those of the parent.
    return parent[:6] + hashlib.sha256(parent + key.encode()).digest()[:10]


def job_result(id: bytes, record: Map) -> JobResult:
    """Return the end of a job. record: of a job that has ended."""
    output: Json = cell_json(record.get("output"))
    error: Value = record.get("error")
    return JobResult(id, str(record.get("status")), output, "" if error is None else str(error))


def check_sees(record: Map, caller: JobCaller) -> None:
    """Raise Unauthorized if a caller may not see a job."""
    # "A job may be seen and changed only by its caller."
    if not caller.sees_all and record.get("caller") != caller.did:
        raise Unauthorized("the job belongs to another caller")


def still_live(id: bytes, job: LiveJob | None) -> LiveJob:
    """Return `job` if it is live. Raises: Conflict: it has ended."""
    if job is None or job.status.is_terminal:
        raise Conflict(f"job {id.hex()} has ended")
    return job
