"""Live: the jobs of a venue that have not ended, and their changes.

Every change goes through `apply`, a transition of the table, or `save`, and then to a commit that
all jobs share.

Source: docs/design/venue.md "What is durable when".
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from datalattice.apps.grid import make_job_id
from datalattice.cells import Map, Value
from datalattice.clock import Clock, present_ms
from datalattice.crypto import Entropy
from datalattice.errors import Backpressure, Conflict, DataLatticeError, NoSuchPath, OperationFailed
from datalattice.service.venue.adapter import JobResult, Json
from datalattice.service.venue.catalogue import ResolvedOperation
from datalattice.service.venue.committer import JobCommitter
from datalattice.service.venue.jobs import JobRun, LiveJob, child_id, job_result
from datalattice.service.venue.records import (
    JobBatch,
    JobStorage,
    PrivatePart,
    cell_json,
    json_cell,
)
from datalattice.service.venue.transitions import (
    JobEvent,
    JobStatus,
    TransitionRefused,
    status_of_job,
    step,
)

T = TypeVar("T")
OffLoop = Callable[[Callable[[], Any]], Awaitable[Any]]
_log = logging.getLogger(__name__)

HIDDEN: Final = "HIDDEN"
_ERROR_CHARS_MAX: Final = 4_000
ORPHAN_TEXT: Final = "interrupted: this node does not have its input"
"""The error of a live job without its private part."""
LATER_S: Final = 0.02
"""Longest wait of the start of a job without effects for another commit, in seconds."""
ALARM_MS_MAX: Final = 3_600_000
"""Longest sleep of a timer: after it, a clock that was set is read again."""


@dataclass(frozen=True, slots=True)
class VenueLimits:
    """Upper bounds of a venue.

    caller_jobs, jobs: live jobs of one caller, and of all. queued: messages that wait for one job.
    scheduled, caller_scheduled: calls that wait for their time, of all callers and of one.
    attempts: runs of a job that is interrupted again and again. cancel_s: seconds for
    `Adapter.cancel`.
    """

    caller_jobs: int = 1_000
    jobs: int = 10_000
    queued: int = 100
    scheduled: int = 10_000
    caller_scheduled: int = 1_000
    attempts: int = 3
    cancel_s: float = 5.0


VENUE_LIMITS: Final = VenueLimits()


class LiveJobs:
    """The live jobs of one venue, on one event loop. It is the `JobKeeper` of their runs."""

    def __init__(
        self,
        storage: JobStorage,
        resolve: Callable[[str], Awaitable[ResolvedOperation]],
        off_loop: OffLoop,
        clock: Clock,
        entropy: Entropy,
        limits: VenueLimits,
    ) -> None:
        """resolve: returns the operation of a reference. off_loop: runs calls that block."""
        self.did: Final = storage.did
        self._storage: Final = storage
        self._resolve: Final = resolve
        self._off_loop: Final = off_loop
        self._clock: Final = clock
        self._entropy: Final = entropy
        self._limits: Final = limits
        self.committer: Final = JobCommitter(self._write, self._on_durable)
        self.live: Final[dict[bytes, LiveJob]] = {}
        self._counts: Final[Counter[str]] = Counter()
        self.tasks: Final[set[asyncio.Task[Any]]] = set()
        self.last_id: bytes | None = None
        self.is_open = False
        """Whether jobs may start."""
        self.late_results = 0
        """Number of results that were dropped, as their job had ended or paused."""

    def new_job(
        self,
        operation: ResolvedOperation,
        input: Json,
        caller: str,
        private: PrivatePart,
        id: bytes | None = None,
    ) -> tuple[LiveJob, JobBatch]:
        """Return a new job, which counts as live from now on, and the batch that makes it durable.

        id: of the job; None: a new id.
        Raises: as `ResolvedOperation.check`. UsageError, LimitExceeded: the input. Backpressure.
        """
        operation.check(input)
        cell = json_cell(input, "input")
        # "At most 1,000 live jobs of a caller, 10,000 of a venue: each has a task and a private
        # part" (docs/design/venue.md).
        if len(self.live) >= self._limits.jobs:
            raise Backpressure(f"{self._limits.jobs} jobs of this venue are live; wait for some")
        if self._counts[caller] >= self._limits.caller_jobs:
            raise Backpressure(
                f"{self._limits.caller_jobs} jobs of {caller} are live; wait for some"
            )
        id = id or self.next_id()
        record = self.first_record(
            id,
            operation.asset,
            operation.given,
            operation.name,
            redacted(cell, operation.secret_inputs),
            caller,
        )
        job = LiveJob(
            id,
            record,
            replace(private, input=cell, is_secret=bool(operation.secret_inputs)),
            operation,
        )
        self.admit(job)
        return job, JobBatch({id: record}, {id: job.private.cell()})

    def next_id(self) -> bytes:
        """Return the id of a new job."""
        self.last_id = make_job_id(present_ms(self._clock), self.last_id, self._entropy)
        return self.last_id

    def first_record(
        self, id: bytes, asset: bytes, reference: str, name: str, input: Value, caller: str
    ) -> Map:
        """Return the record of a new job, PENDING."""
        now_ms = present_ms(self._clock)
        members: dict[str, Value] = {
            "id": id.hex(),
            "status": JobStatus.PENDING.value,
            "created": now_ms,
            "updated": now_ms,
            "op": asset.hex(),
            "input": input,
            "caller": caller,
        }
        # "if invoked by name", "if the metadata has one"
        members |= {key: text for key, text in (("opName", reference), ("name", name)) if text}
        return Map.of(members)

    def admit(self, job: LiveJob) -> None:
        """Count a job as live."""
        self.live[job.id] = job
        self._counts[job.caller] += 1

    async def accept(self, job: LiveJob, batch: JobBatch) -> None:
        """Make a new job durable and start it."""
        job.accepted = self.committer.put(batch)
        try:
            await durably(job.accepted)
        except DataLatticeError:
            self._drop(job)  # its caller gets the error
            raise
        self.set_deadline(job)
        # It may have been cancelled while it became durable.
        if job.status is JobStatus.PENDING and self.is_open:
            self.begin(job)

    async def invoke_child(self, parent: LiveJob, reference: str, input: Json, key: str) -> bytes:
        """Start a job that another one invokes; return its id, which the parent has durably."""
        operation = await self._resolve(reference)
        id = child_id(parent.id, key)
        # In a restored folder, the parent may lack a child whose record came back from peers.
        is_older = parent.accepted is None and await self._off_loop(partial(self._has_record, id))
        above = parent.private
        private = PrivatePart(parent=parent.id, depth=above.depth + 1, grants=above.grants)
        known = self.live.get(id)
        if known is not None or is_older:
            job, batch = known, JobBatch()
        else:
            job, batch = self.new_job(operation, input, parent.caller, private, id)
        children = parent.private.children.put(key, id)
        parent.private = replace(parent.private, children=children)
        batch.private[parent.id] = parent.private.cell()
        # A new child and the entry in its parent are one commit, so neither exists alone.
        if batch.records and job is not None:
            await self.accept(job, batch)
        else:
            await durably(self.committer.put(batch))
        return id

    def _has_record(self, id: bytes) -> bool:
        return self._storage.jobs().get(id) is not None  # a hidden one, too

    async def ended(self, id: bytes) -> JobResult:
        """Wait for the end of a job and return it."""
        job = self.live.get(id)
        if job is not None:
            await job.done.wait()
        record = await self.record(id)
        status = status_of_job(record)
        if status is None or not status.is_terminal:
            # Neither live nor ended: this node lacks its private part.
            return JobResult(id, JobStatus.FAILED, None, ORPHAN_TEXT)
        return job_result(id, record)

    def cancel_soon(self, id: bytes, why: str) -> None:
        """Cancel a job if it is live."""
        job = self.live.get(id)
        # At the end of the venue jobs are stopped, to be recovered, and none is cancelled.
        if job is not None and not job.status.is_terminal and self.is_open:
            self.apply(job, JobEvent.CANCEL, {"error": why})

    async def record(self, id: bytes) -> Map:
        """Return the durable record of a job. Raises: NoSuchPath: there is none."""
        job = self.live.get(id)
        record = job.shown if job is not None else None
        if record is None:
            record = await self._off_loop(partial(self._storage.job, id))
        if record is None:
            raise NoSuchPath(f"this node has no job {id.hex()}")
        return record

    def begin(self, job: LiveJob, started: asyncio.Future[None] | None = None) -> None:
        """Run a job that is PENDING or STARTED. started: done when STARTED is durable."""
        if job.status is JobStatus.PENDING:
            assert job.operation is not None
            # Without effects a second run does no harm: START may share the commit of the end, so
            # a quick job costs two commits.
            later_s = 0.0 if job.operation.has_effects else LATER_S
            started = self.apply(job, JobEvent.START, later_s=later_s)
        run = job.run = JobRun(self, job)
        run.task = self.spawn(self._execute(run, started))

    def begin_again(self, job: LiveJob) -> None:
        """Run a job that is durably STARTED, unless it has changed meanwhile."""
        if job.status is JobStatus.STARTED and job.run is None and self.is_open:
            self.begin(job)

    async def _execute(self, run: JobRun, started: asyncio.Future[None] | None) -> None:
        job, operation = run.job, run.job.operation
        assert operation is not None
        try:
            # "STARTED durable, then the adapter runs"
            if operation.has_effects and started is not None:
                await durably(started)
            output = await operation.adapter.run(
                run, operation.metadata, cell_json(job.private.input)
            )
        except asyncio.CancelledError:
            return  # the job has ended or paused, or the venue ends: that change is written already
        except Exception as error:  # noqa: BLE001 - "Exceptions become FAILED with a non-empty text"
            if self._is_current(run):
                self.apply(job, JobEvent.FAIL, {"error": error_text(error)})
            return
        if self._is_current(run):
            self.complete(job, output)

    def _is_current(self, run: JobRun) -> bool:
        """Return whether the result of a run is to be used; count it as late if not."""
        if run.job.run is run and not run.job.status.is_terminal:
            return True
        self.late_results += 1
        return False

    def complete(self, job: LiveJob, output: Json) -> None:
        """End a job with its output, or as FAILED if the output is not valid JSON."""
        assert job.operation is not None
        try:
            cell = json_cell(output, "output")
        except DataLatticeError as error:
            self.apply(job, JobEvent.FAIL, {"error": error_text(error)})
            return
        # Only a STARTED job can be COMPLETE: here `run` returned while its question was open.
        if job.status is not JobStatus.STARTED:
            why = f"the operation returned while the job was {job.status}"
            self.apply(job, JobEvent.FAIL, {"error": why})
            return
        self.apply(job, JobEvent.COMPLETE, {"output": redacted(cell, job.operation.secrets)})

    async def deliver(self, job: LiveJob, run: JobRun, message: Value) -> None:
        """Offer a message to the adapter; remove it from the queue if the adapter takes it."""
        async with run.messages:
            if run.cancelled or message not in job.private.queue or job.operation is None:
                return
            taken = False
            try:
                taken = await job.operation.adapter.deliver(run, cell_json(message))
            except Exception as error:  # noqa: BLE001 - the message waits for `ask`
                _log.warning("job %s: deliver: %s", job.id.hex(), error_text(error))
            if taken and message in job.private.queue:
                queue = list(job.private.queue)
                queue.remove(message)
                await self.keep(job, replace(job.private, queue=tuple(queue)))

    def stop(self, job: LiveJob) -> None:
        """Stop the run of a job: its result is dropped."""
        run, job.run = job.run, None
        # A run that ends its own job, as FAILED, goes on to its end.
        if run is not None and run.task is not None and run.task is not asyncio.current_task():
            run.task.cancel()

    def set_deadline(self, job: LiveJob) -> None:
        """Set the timer that ends the job as TIMEOUT."""
        deadline = job.private.deadline_ms
        if deadline is None or job.status.is_terminal:
            return
        left_ms = max(0, deadline - self._clock.now_ms())
        job.timer = asyncio.get_running_loop().call_later(
            min(left_ms, ALARM_MS_MAX) / 1_000, partial(self._expire, job)
        )

    def _expire(self, job: LiveJob) -> None:
        assert job.private.deadline_ms is not None
        if job.status.is_terminal:
            return
        if self._clock.now_ms() < job.private.deadline_ms:  # the clock went back, or it is far
            self.set_deadline(job)
            return
        self.apply(job, JobEvent.EXPIRE, {"error": "the timeout of the job was over"})

    async def change(
        self, job: LiveJob, event: JobEvent, members: Mapping[str, Value] | None = None
    ) -> None:
        """Apply an event; return when it is durable. Raises: Conflict: the status forbids it."""
        await durably(self.apply(job, event, members))

    async def keep(self, job: LiveJob, private: PrivatePart) -> None:
        """Replace the private part of a job; return when it is durable."""
        await durably(self.save(job, private))

    def save(self, job: LiveJob, private: PrivatePart) -> asyncio.Future[None]:
        """As `keep`, without waiting."""
        if job.status.is_terminal:
            raise Conflict(f"job {job.id.hex()} has ended: it is {job.status}")
        job.private = private
        return self.committer.put(JobBatch(private={job.id: private.cell()}))

    def apply(
        self,
        job: LiveJob,
        event: JobEvent,
        members: Mapping[str, Value] | None = None,
        private: PrivatePart | None = None,
        later_s: float = 0.0,
    ) -> asyncio.Future[None]:
        """As `change`, without waiting. private: the new private part, in the same commit."""
        after = step(job.record, event, present_ms(self._clock), members)
        # The table refuses: nothing was changed.
        if isinstance(after, TransitionRefused):
            raise Conflict(f"job {job.id.hex()}: {event.value} is refused: {after.reason}")
        job.record = after
        batch = JobBatch(records={job.id: after})
        # "It goes in the commit that ends the job" (docs/design/venue.md): the private part and the
        # end are one write.
        if job.status.is_terminal:
            batch.private[job.id] = None
            self._end(job, event)
        elif private is not None:
            job.private = private
            batch.private[job.id] = private.cell()
        return self.committer.put(batch, later_s=later_s)

    def _end(self, job: LiveJob, event: JobEvent) -> None:
        """Stop the run, the timer and the children of a job that has ended."""
        run, operation = job.run, job.operation
        self.stop(job)
        if job.timer is not None:
            job.timer.cancel()
        for other in list(self.live.values()) if len(job.private.children) else ():
            if other.private.parent == job.id:
                self.cancel_soon(other.id, f"the job that invoked it is {job.status}")
        if event in (JobEvent.CANCEL, JobEvent.EXPIRE) and operation is not None:
            # Also without a run: after a restart, work outside this process may still go on.
            self.spawn(self._tell_cancelled(job, run or JobRun(self, job), operation))

    async def _tell_cancelled(
        self, job: LiveJob, run: JobRun, operation: ResolvedOperation
    ) -> None:
        await job.done.wait()  # durable first
        try:
            await asyncio.wait_for(operation.adapter.cancel(run), self._limits.cancel_s)
        except Exception as error:  # noqa: BLE001 - "best effort": the job has ended already
            _log.warning("job %s: cancel: %s", job.id.hex(), error_text(error))

    @property
    def callers(self) -> int:
        """The number of callers with live jobs."""
        return len(self._counts)

    async def _write(self, batch: JobBatch) -> None:
        await self._off_loop(partial(self._storage.write, batch))

    def _on_durable(self, batch: JobBatch) -> None:
        for id, record in batch.records.items():
            job = self.live.get(id)
            if job is None:
                continue
            # "COMPLETE, FAILED, ...: anybody sees it" (docs/design/venue.md): readers get only
            # durable records.
            job.shown = record
            status = status_of_job(record)
            if status is not None and status.is_terminal:
                self._drop(job)
                job.done.set()
            for wake in list(job.wakes):
                wake()

    def _drop(self, job: LiveJob) -> None:
        """Remove a job from the live ones."""
        if self.live.pop(job.id, None) is not None:
            self._counts[job.caller] -= 1
            if not self._counts[job.caller]:
                # So that `callers` counts those with live jobs.
                del self._counts[job.caller]

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as a task, which ends with the venue at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


async def durably(durable: asyncio.Future[None]) -> None:
    """Return when a commit is durable."""
    # Shielded: a caller that is cancelled must not cancel the future that others await.
    await asyncio.shield(durable)


def redacted(value: Value, secrets: frozenset[str]) -> Value:
    """Return an input or output with `HIDDEN` in place of its secrets."""
    if not isinstance(value, Map) or not secrets:
        return value
    return value.put_many({name: HIDDEN for name in secrets if name in value})


def error_text(error: BaseException) -> str:
    """Return the error of a failed job: at least one character, `_ERROR_CHARS_MAX` at most."""
    kind = type(error).__name__
    text = str(error)
    if not isinstance(error, OperationFailed):
        text = f"{kind}: {text}" if text else kind
    return (text or kind)[:_ERROR_CHARS_MAX]
