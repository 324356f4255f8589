"""Runner: the jobs of one venue, from the call to the end.

What is answered is durable: a job is durably PENDING before its id is known, durably STARTED before
an adapter with effects runs, and a result is durable before it is shown. The runner belongs to one
event loop; it takes time from a clock and from the loop, so that tests have their own.

Source: docs/design/venue.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from datalattice.apps.grid import make_job_id
from datalattice.cells import Map, Value
from datalattice.clock import Clock, SystemClock, present_ms
from datalattice.crypto import Entropy, SystemEntropy
from datalattice.errors import (
    Backpressure,
    Conflict,
    DataLatticeError,
    Draining,
    NoSuchPath,
    Unauthorized,
    Unavailable,
    UsageError,
)
from datalattice.service.venue.adapter import Adapter, JobResult, Json, OperationFailed
from datalattice.service.venue.catalogue import Catalogue, ResolvedOperation
from datalattice.service.venue.committer import JobCommitter
from datalattice.service.venue.jobs import JobRun, LiveJob, result_of
from datalattice.service.venue.pages import JobPages
from datalattice.service.venue.records import (
    JobBatch,
    JobStorage,
    PrivatePart,
    cell_json,
    json_cell,
)
from datalattice.service.venue.recovery import Found, RecoveryStep, recovery_of, settle_check
from datalattice.service.venue.schedule import Schedule, ScheduledCall
from datalattice.service.venue.transitions import (
    JobEvent,
    JobStatus,
    Refused,
    status_of_job,
    step,
)

T = TypeVar("T")
_log = logging.getLogger(__name__)

HIDDEN: Final = "HIDDEN"
CANCELLED_TEXT: Final = "cancelled by its caller"
ERROR_CHARS_MAX: Final = 4_000


@dataclass(frozen=True, slots=True)
class VenueLimits:
    """What a venue takes on.

    caller_jobs, jobs: live jobs of one caller, and of all. queued: messages that wait for one job.
    scheduled: calls that wait for their time. attempts: of an interrupted job. cancel_s: for the
    adapter to stop the work.
    """

    caller_jobs: int = 1_000
    jobs: int = 10_000
    queued: int = 100
    scheduled: int = 10_000
    attempts: int = 3
    cancel_s: float = 5.0


VENUE_LIMITS: Final = VenueLimits()


@dataclass(frozen=True, slots=True)
class JobCaller:
    """Who asks. sees_all: an operator, who may see and change every job."""

    did: str
    sees_all: bool = False


async def in_thread(call: Callable[[], T]) -> T:
    """Do what waits for the disk in a thread."""
    return await asyncio.to_thread(call)


class VenueRunner:
    """Runs the jobs of a venue."""

    def __init__(
        self,
        storage: JobStorage,
        adapters: Iterable[Adapter],
        *,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        limits: VenueLimits = VENUE_LIMITS,
        off_loop: Callable[[Callable[[], Any]], Awaitable[Any]] = in_thread,
    ) -> None:
        """off_loop: does what waits for the disk; by default in a thread."""
        self.did: Final = storage.did
        self._storage: Final = storage
        self._clock: Final = clock or SystemClock()
        self._entropy: Final = entropy or SystemEntropy()
        self._limits: Final = limits
        self._off_loop: Final = off_loop
        self._catalogue: Final = Catalogue(storage.did, adapters, storage.metadata)
        self._committer: Final = JobCommitter(self._write, self._on_durable)
        self._pages: Final = JobPages(storage)
        self._live: Final[dict[bytes, LiveJob]] = {}
        self._counts: Final[Counter[str]] = Counter()
        self._schedule: Final = Schedule(self._clock, self._entropy, limits.scheduled)
        self._alarm: asyncio.TimerHandle | None = None
        self._tasks: Final[set[asyncio.Task[Any]]] = set()
        self._last_id: bytes | None = None
        self._begun = b""
        self._is_open = False
        self.late_results = 0
        """Results that came after their job had ended or paused, and were dropped."""

    # --- begin and end ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Publish the operations, and go on with the jobs and the schedule of before."""
        await self._off_loop(lambda: self._catalogue.publish(self._storage.register))
        self._begun = self._next_id()
        parts, events = await self._off_loop(self._storage.private)
        found: list[LiveJob] = []
        for id, private in sorted(parts.items()):
            record = await self._off_loop(partial(self._storage.job, id))
            if record is None or (status := status_of_job(record)) is None or status.is_terminal:
                self._committer.put(JobBatch(private={id: None}))
                continue
            operation, why = await self._operation_of(record)
            job = LiveJob(id, record, private, operation, record)
            self._admit(job)
            found.append(job)
            self._recover(job, why)
        self._last_id = max((job.id for job in found), default=self._begun)
        self._spawn(self._fail_orphans())
        self._is_open = True
        self._schedule.load(events)
        self._set_alarm()

    async def close(self, drain_s: float = 10.0) -> None:
        """Refuse new calls, give running jobs time, and stop.

        A job that still runs is found at the next start, and goes on by its rule.
        """
        self._is_open = False
        if self._alarm is not None:
            self._alarm.cancel()
        running = [
            job.run.task
            for job in self._live.values()
            if job.run and job.run.task and not job.status.is_interactive
        ]
        if running:
            await asyncio.wait(running, timeout=drain_s)
        for job in self._live.values():
            self._stop(job)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._committer.flush(), drain_s)
        self._committer.stop()

    async def _fail_orphans(self) -> None:
        """End live jobs of this venue of which this node has no private part: they cannot run."""
        for status in (JobStatus.PENDING, JobStatus.STARTED):
            orphans = await self._off_loop(partial(self._orphans, status, frozenset(self._live)))
            for id, record in orphans:
                why = {"error": "interrupted: this node does not have its input"}
                after = step(record, JobEvent.FAIL, present_ms(self._clock), why)
                if isinstance(after, Map):
                    self._committer.put(JobBatch(records={id: after}))

    def _orphans(self, status: JobStatus, known: frozenset[bytes]) -> list[tuple[bytes, Map]]:
        found = []
        for id in self._pages.all(status):
            record = self._storage.job(id) if id not in known and id < self._begun else None
            if record is not None and status_of_job(record) is status:
                found.append((id, record))
        return found

    def _recover(self, job: LiveJob, why: str) -> None:
        """Go on with a job that was found at the start, by its rule."""
        rule = None if job.operation is None else job.operation.rule
        decided = recovery_of(
            Found(
                job.status,
                job.private.attempt,
                rule,
                why,
                is_delegated=job.record.get("remoteId") is not None,
            ),
            self._limits.attempts,
        )
        self._set_deadline(job)
        if decided.step is RecoveryStep.FAIL:
            self._change(job, JobEvent.FAIL, {"error": decided.reason})
        elif decided.step is RecoveryStep.CHECK:
            self._spawn(self._check_outcome(job))
        elif decided.step is RecoveryStep.RUN:
            started = None
            if job.status is JobStatus.STARTED:
                # Durable before it runs: attempts are counted across crashes.
                started = self._keep(job, replace(job.private, attempt=job.private.attempt + 1))
            self._begin(job, started)

    async def _check_outcome(self, job: LiveJob) -> None:
        """Ask the adapter what came of a job, and end it or run it."""
        assert job.operation is not None
        run = JobRun(self, job)
        outcome, why = None, ""
        try:
            outcome = await job.operation.adapter.outcome(run.effect_key())
        except Exception as error:  # noqa: BLE001 - an adapter may raise anything: not known
            why = _error_text(error)
        decided = settle_check(outcome, why)
        if not job.status.is_active:
            return  # cancelled or paused meanwhile
        if decided.step is RecoveryStep.RUN:
            await self.keep(job, replace(job.private, attempt=job.private.attempt + 1))
            self._begin_again(job)
        elif decided.step is RecoveryStep.FAIL:
            self._change(job, JobEvent.FAIL, {"error": decided.reason})
        else:
            assert outcome is not None
            self._complete(job, outcome.result)

    # --- calls ------------------------------------------------------------------------------------

    async def invoke(
        self,
        reference: str,
        input: Json,
        caller: JobCaller,
        *,
        timeout_ms: int | None = None,
    ) -> Map:
        """Begin a job; return its record, which is durable.

        timeout_ms: after which the job ends as TIMEOUT.
        Raises: UsageError, NoSuchPath: the reference or the input is refused. Backpressure: too
                many jobs are live. Draining, Unavailable: the venue ends, or cannot write.
        """
        if timeout_ms is not None and timeout_ms < 1:
            raise UsageError(f"timeout_ms: 1 or more, got {timeout_ms}")
        operation = await self._resolved(reference)
        deadline = None if timeout_ms is None else present_ms(self._clock) + timeout_ms
        job, batch = self._new_job(operation, input, caller.did, PrivatePart(deadline_ms=deadline))
        await self._accept(job, batch)
        return _shown(job)

    async def wait(self, id: bytes, caller: JobCaller, limit_s: float) -> Map:
        """Return the record when the job has ended, or as it is after `limit_s` seconds."""
        job = self._live.get(id)
        if job is not None:
            _may_see(job.record, caller)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(job.done.wait(), limit_s)
        return await self.get(id, caller)

    async def get(self, id: bytes, caller: JobCaller) -> Map:
        """Return the durable record of a job.

        Raises: NoSuchPath: there is none. Unauthorized: it is another caller's.
        """
        job = self._live.get(id)
        record = job.shown if job is not None else None
        if record is None:
            record = await self._off_loop(lambda: self._storage.job(id))
        if record is None:
            raise NoSuchPath(f"there is no job {id.hex()} here")
        _may_see(record, caller)
        return record

    async def jobs(
        self,
        caller: JobCaller,
        *,
        status: JobStatus | None = None,
        before: bytes | None = None,
        count: int = 100,
    ) -> list[bytes]:
        """Return the ids of the caller's jobs, newest first; an operator sees all.

        before: the last id of the page before. Raises: UsageError, LimitExceeded: `count`.
        """
        mine = None if caller.sees_all else caller.did
        page = partial(self._pages.page, mine, status, before, count)
        found: list[bytes] = await self._off_loop(page)
        return found

    async def cancel(self, id: bytes, caller: JobCaller) -> Map:
        """End a job that is live as CANCELLED; return the durable record, of an ended one, too."""
        job = await self._mine(id, caller)
        if job is None or job.status.is_terminal:
            if job is not None:
                await job.done.wait()
            return await self.get(id, caller)
        await self._durably(
            self._change(job, JobEvent.CANCEL, {"error": "cancelled by its caller"})
        )
        return _shown(job)

    async def pause(self, id: bytes, caller: JobCaller) -> Map:
        """Stop a job until `resume`. Raises: Conflict: it has ended, or is paused."""
        job = await self._mine_live(id, caller)
        durable = self._change(job, JobEvent.PAUSE)
        self._stop(job)
        await self._durably(durable)
        return _shown(job)

    async def resume(self, id: bytes, caller: JobCaller) -> Map:
        """Run a paused job again, with its input. Raises: Conflict: it is not paused."""
        job = await self._mine_live(id, caller)
        if job.operation is None:
            raise Conflict(f"job {id.hex()} cannot run here: its operation is not known")
        await self._durably(self._change(job, JobEvent.RESUME))
        self._begin_again(job)
        return _shown(job)

    async def message(self, id: bytes, message: Json, caller: JobCaller) -> int:
        """Give a job a message; return how many wait for it, which is durable.

        Raises: Conflict: the job has ended. Backpressure: 100 messages wait for it.
        """
        job = await self._mine_live(id, caller)
        cell = json_cell(message, "message")
        if job.status in (JobStatus.INPUT_REQUIRED, JobStatus.AUTH_REQUIRED):
            private = job.private.answered(cell)
            await self._durably(self._change(job, JobEvent.MESSAGE, private=private))
            run = job.run
            if run is not None and run.answer is not None and not run.answer.done():
                run.answer.set_result(cell_json(cell))
            elif run is None:
                self._begin_again(job)  # after a restart: the answer is there when it asks
            return len(job.private.queue)
        if len(job.private.queue) >= self._limits.queued:
            raise Backpressure(f"{self._limits.queued} messages wait for job {id.hex()}")
        await self.keep(job, replace(job.private, queue=(*job.private.queue, cell)))
        if job.run is not None and job.status is JobStatus.STARTED:
            self._spawn(self._deliver(job, job.run, cell))
        return len(job.private.queue)

    async def delete(self, id: bytes, caller: JobCaller) -> None:
        """Cancel a job if it is live, and stop showing it here."""
        await self.cancel(id, caller)
        await self._off_loop(lambda: self._storage.hide(id))

    def watch(self, id: bytes, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` after each durable change of a live job; return what ends this."""
        job = self._live.get(id)
        if job is None:
            return lambda: None
        job.wakes.add(wake)
        return lambda: job.wakes.discard(wake)

    @property
    def failure(self) -> str:
        """Why nothing can be written at present, or ""."""
        return self._committer.failure

    # --- the schedule -----------------------------------------------------------------------------

    async def schedule(self, reference: str, input: Json, time_ms: int, caller: JobCaller) -> bytes:
        """Have a job begin at a time; return the handle of the call, which is durable.

        Raises: as `invoke`. Backpressure: too many calls wait.
        """
        operation = await self._resolved(reference)
        operation.adapter.check(operation.metadata, input)
        call = ScheduledCall(
            operation.asset, operation.given, json_cell(input, "input"), caller.did, time_ms
        )
        handle = self._schedule.add(call)
        await self._durably(self._committer.put(JobBatch(schedule={handle: call.cell()})))
        self._set_alarm()
        return handle

    async def unschedule(self, handle: bytes, caller: JobCaller) -> None:
        """Drop a call that waits. Raises: NoSuchPath: it does not wait, or is another caller's."""
        call = self._schedule.get(handle)
        if call is None or not (caller.sees_all or call.owner == caller.did):
            raise NoSuchPath(f"there is no scheduled call {handle.hex()}")
        self._schedule.remove(handle)
        await self._durably(self._committer.put(JobBatch(schedule={handle: None})))

    def scheduled(self, caller: JobCaller) -> dict[bytes, ScheduledCall]:
        """Return the caller's calls that wait, by handle, the next one first."""
        return {
            handle: call
            for handle, call in self._schedule.waiting()
            if caller.sees_all or call.owner == caller.did
        }

    def _set_alarm(self) -> None:
        """Wake at the time of the next call."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        delay_ms = self._schedule.delay_ms()
        if delay_ms is not None and self._is_open:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(
                min(delay_ms, _ALARM_MS_MAX) / 1_000, lambda: self._spawn(self._fire_due())
            )

    async def _fire_due(self) -> None:
        """Begin the jobs of the calls whose time has come."""
        for handle, call in self._schedule.take_due():
            # Removed and made in one commit: at most once, and no call is lost.
            gone = JobBatch(schedule={handle: None})
            try:
                operation = await self._off_loop(partial(self._catalogue.of_asset, call.asset))
                operation = replace(operation, given=call.reference)
                job, batch = self._new_job(
                    operation, cell_json(call.input), call.owner, PrivatePart()
                )
            except Exception as error:  # noqa: BLE001 - the caller finds it in the job
                batch = self._rejected(call, _error_text(error))
                batch.update(gone)
                self._committer.put(batch)
                continue
            batch.update(gone)
            self._spawn(self._accept(job, batch))
        self._set_alarm()

    def _rejected(self, call: ScheduledCall, why: str) -> JobBatch:
        """Return a job that ended before it began: its caller finds the reason."""
        id = self._next_id()
        # Its secrets are not known without the operation: nothing of the input is shown.
        record = self._first_record(id, call.asset, call.reference, "", HIDDEN, call.owner)
        after = step(record, JobEvent.REJECT, present_ms(self._clock), {"error": why})
        assert isinstance(after, Map)
        return JobBatch(records={id: after})

    # --- making jobs ------------------------------------------------------------------------------

    async def _resolved(self, reference: str) -> ResolvedOperation:
        if not self._is_open:
            raise Draining("the venue takes no calls: it begins or ends")
        if self.failure:
            raise Unavailable(f"the venue cannot write its jobs: {self.failure}")
        operation: ResolvedOperation = await self._off_loop(
            partial(self._catalogue.resolve, reference)
        )
        return operation

    async def _operation_of(self, record: Map) -> tuple[ResolvedOperation | None, str]:
        """Return the operation of a record, or why it cannot run here."""
        try:
            asset = bytes.fromhex(str(record.get("op")))
            return await self._off_loop(partial(self._catalogue.of_asset, asset)), ""
        except (DataLatticeError, ValueError) as error:
            return None, f"its operation cannot be resolved: {error}"

    def _new_job(
        self, operation: ResolvedOperation, input: Json, caller: str, private: PrivatePart
    ) -> tuple[LiveJob, JobBatch]:
        """Return a job and what makes it durable. It counts as live from now on."""
        operation.adapter.check(operation.metadata, input)
        cell = json_cell(input, "input")
        if len(self._live) >= self._limits.jobs:
            raise Backpressure(f"{self._limits.jobs} jobs of this venue are live; wait for some")
        if self._counts[caller] >= self._limits.caller_jobs:
            raise Backpressure(
                f"{self._limits.caller_jobs} jobs of {caller} are live; wait for some"
            )
        id = self._next_id()
        record = self._first_record(
            id, operation.asset, operation.given, operation.name, _redacted(cell, operation), caller
        )
        job = LiveJob(id, record, replace(private, input=cell), operation)
        self._admit(job)
        return job, JobBatch({id: record}, {id: job.private.cell()})

    def _next_id(self) -> bytes:
        self._last_id = make_job_id(present_ms(self._clock), self._last_id, self._entropy)
        return self._last_id

    def _first_record(
        self, id: bytes, asset: bytes, reference: str, name: str, input: Value, caller: str
    ) -> Map:
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

    def _admit(self, job: LiveJob) -> None:
        self._live[job.id] = job
        self._counts[job.caller] += 1

    async def _accept(self, job: LiveJob, batch: JobBatch) -> None:
        """Return when a new job is durable; it then runs."""
        await self._durably(self._committer.put(batch))
        self._set_deadline(job)
        if job.status is JobStatus.PENDING and self._is_open:
            self._begin(job)

    async def invoke_child(self, parent: LiveJob, reference: str, input: Json, key: str) -> bytes:
        """Begin a job that another one invokes; return its id, durable with the parent's note."""
        operation = await self._resolved(reference)
        private = PrivatePart(parent=parent.id, depth=parent.private.depth + 1)
        job, batch = self._new_job(operation, input, parent.caller, private)
        children = parent.private.children.put(key, job.id)
        parent.private = replace(parent.private, children=children)
        batch.private[parent.id] = parent.private.cell()
        await self._accept(job, batch)
        return job.id

    async def ended(self, id: bytes) -> JobResult:
        """Return how a job ended, when it has."""
        job = self._live.get(id)
        if job is not None:
            await job.done.wait()
        record = await self.get(id, JobCaller("", sees_all=True))
        return result_of(id, record)

    def cancel_soon(self, id: bytes, why: str) -> None:
        """Cancel a job if it is live."""
        job = self._live.get(id)
        if job is not None and not job.status.is_terminal and self._is_open:
            self._change(job, JobEvent.CANCEL, {"error": why})

    # --- running ----------------------------------------------------------------------------------

    def _begin(self, job: LiveJob, started: asyncio.Future[None] | None = None) -> None:
        """Run a job that is PENDING or STARTED. started: done when the latter is durable."""
        if job.status is JobStatus.PENDING:
            started = self._change(job, JobEvent.START)
        run = job.run = JobRun(self, job)
        run.task = self._spawn(self._execute(run, started))

    def _begin_again(self, job: LiveJob) -> None:
        """Run a job that is durably STARTED, unless something else happened meanwhile."""
        if job.status is JobStatus.STARTED and job.run is None and self._is_open:
            self._begin(job)

    async def _execute(self, run: JobRun, started: asyncio.Future[None] | None) -> None:
        job, operation = run.job, run.job.operation
        assert operation is not None
        try:
            # "STARTED durable, then the adapter runs"; without effects nobody can tell.
            if operation.has_effects and started is not None:
                await self._durably(started)
            output = await operation.adapter.run(
                run, operation.metadata, cell_json(job.private.input)
            )
        except asyncio.CancelledError:
            return  # ended, paused, or the venue ends: whoever did it has written what is to be
        except Exception as error:  # noqa: BLE001 - "Exceptions become FAILED with a non-empty text"
            if self._is_current(run):
                self._change(job, JobEvent.FAIL, {"error": _error_text(error)})
            return
        if self._is_current(run):
            self._complete(job, output)

    def _is_current(self, run: JobRun) -> bool:
        """Return whether what came of a run counts; what does not is counted as late."""
        if run.job.run is run and not run.job.status.is_terminal:
            return True
        self.late_results += 1
        return False

    def _complete(self, job: LiveJob, output: Json) -> None:
        assert job.operation is not None
        try:
            cell = json_cell(output, "output")
        except DataLatticeError as error:
            self._change(job, JobEvent.FAIL, {"error": _error_text(error)})
            return
        if job.status is not JobStatus.STARTED:
            why = f"the operation returned while the job was {job.status}"
            self._change(job, JobEvent.FAIL, {"error": why})
            return
        self._change(job, JobEvent.COMPLETE, {"output": _redacted(cell, job.operation)})

    async def _deliver(self, job: LiveJob, run: JobRun, message: Value) -> None:
        """Offer a message to the adapter; one that it takes waits no longer."""
        async with run.messages:
            if run.cancelled or message not in job.private.queue or job.operation is None:
                return
            taken = False
            try:
                taken = await job.operation.adapter.deliver(run, cell_json(message))
            except Exception as error:  # noqa: BLE001 - the message waits for `ask`
                _log.warning("job %s: deliver: %s", job.id.hex(), _error_text(error))
            if taken and message in job.private.queue:
                queue = list(job.private.queue)
                queue.remove(message)
                await self.keep(job, replace(job.private, queue=tuple(queue)))

    def _stop(self, job: LiveJob) -> None:
        """Stop the run of a job: what it returns from now on is dropped."""
        run, job.run = job.run, None
        if run is not None and run.task is not None and run.task is not asyncio.current_task():
            run.task.cancel()

    def _set_deadline(self, job: LiveJob) -> None:
        deadline = job.private.deadline_ms
        if deadline is None or job.status.is_terminal:
            return
        left_ms = max(0, deadline - self._clock.now_ms())
        job.timer = asyncio.get_running_loop().call_later(
            min(left_ms, _ALARM_MS_MAX) / 1_000, partial(self._expire, job)
        )

    def _expire(self, job: LiveJob) -> None:
        assert job.private.deadline_ms is not None
        if job.status.is_terminal:
            return
        if self._clock.now_ms() < job.private.deadline_ms:  # the clock went back, or it is far
            self._set_deadline(job)
            return
        self._change(job, JobEvent.EXPIRE, {"error": "its time was over"})

    # --- changes ----------------------------------------------------------------------------------

    async def change(
        self, job: LiveJob, event: JobEvent, members: Mapping[str, Value] | None = None
    ) -> None:
        """Do an event; return when it is durable. Raises: Conflict: it may not happen now."""
        await self._durably(self._change(job, event, members))

    async def keep(self, job: LiveJob, private: PrivatePart) -> None:
        """Replace the private part of a job; return when it is durable."""
        await self._durably(self._keep(job, private))

    def _keep(self, job: LiveJob, private: PrivatePart) -> asyncio.Future[None]:
        if job.status.is_terminal:
            raise Conflict(f"job {job.id.hex()} has ended: it is {job.status}")
        job.private = private
        return self._committer.put(JobBatch(private={job.id: private.cell()}))

    def _change(
        self,
        job: LiveJob,
        event: JobEvent,
        members: Mapping[str, Value] | None = None,
        private: PrivatePart | None = None,
    ) -> asyncio.Future[None]:
        after = step(job.record, event, present_ms(self._clock), members)
        if isinstance(after, Refused):
            raise Conflict(f"job {job.id.hex()}: no {event.value}: {after.reason}")
        job.record = after
        batch = JobBatch(records={job.id: after})
        if job.status.is_terminal:
            batch.private[job.id] = None
            self._end(job, event)
        elif private is not None:
            job.private = private
            batch.private[job.id] = private.cell()
        return self._committer.put(batch)

    def _end(self, job: LiveJob, event: JobEvent) -> None:
        """Stop what a job that has ended does."""
        run, operation = job.run, job.operation
        self._stop(job)
        if job.timer is not None:
            job.timer.cancel()
        for other in list(self._live.values()) if len(job.private.children) else ():
            if other.private.parent == job.id:
                self.cancel_soon(other.id, f"the job that invoked it is {job.status}")
        if event in (JobEvent.CANCEL, JobEvent.EXPIRE) and operation is not None:
            # Also without a run: after a restart the work may go on elsewhere.
            self._spawn(self._tell_cancelled(job, run or JobRun(self, job), operation))

    async def _tell_cancelled(
        self, job: LiveJob, run: JobRun, operation: ResolvedOperation
    ) -> None:
        await job.done.wait()  # durable first
        try:
            await asyncio.wait_for(operation.adapter.cancel(run), self._limits.cancel_s)
        except Exception as error:  # noqa: BLE001 - "best effort": the job has ended already
            _log.warning("job %s: cancel: %s", job.id.hex(), _error_text(error))

    async def _write(self, batch: JobBatch) -> None:
        await self._off_loop(partial(self._storage.write, batch))

    def _on_durable(self, batch: JobBatch) -> None:
        for id, record in batch.records.items():
            job = self._live.get(id)
            if job is None:
                continue
            job.shown = record
            status = status_of_job(record)
            if status is not None and status.is_terminal:
                del self._live[id]
                self._counts[job.caller] -= 1
                if not self._counts[job.caller]:
                    del self._counts[job.caller]
                job.done.set()
            for wake in list(job.wakes):
                wake()

    async def _durably(self, durable: asyncio.Future[None]) -> None:
        # A caller that gives up does not end what the others wait for.
        await asyncio.shield(durable)

    # --- inside -----------------------------------------------------------------------------------

    async def _mine(self, id: bytes, caller: JobCaller) -> LiveJob | None:
        """Return a live job that the caller may change; None: it has ended."""
        _may_see(await self.get(id, caller), caller)
        return self._live.get(id)

    async def _mine_live(self, id: bytes, caller: JobCaller) -> LiveJob:
        job = await self._mine(id, caller)
        if job is None or job.status.is_terminal:
            raise Conflict(f"job {id.hex()} has ended")
        return job

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


_ALARM_MS_MAX: Final = 3_600_000
"""Longest sleep, so that a clock that is set is noticed."""


def _shown(job: LiveJob) -> Map:
    assert job.shown is not None, "durable"
    return job.shown


def _may_see(record: Map, caller: JobCaller) -> None:
    # "A job may be seen and changed only by its caller."
    if not caller.sees_all and record.get("caller") != caller.did:
        raise Unauthorized("the job is another caller's")


def _redacted(value: Value, operation: ResolvedOperation) -> Value:
    """Return an input or output without its secrets."""
    if not isinstance(value, Map) or not operation.secrets:
        return value
    return value.put_many({name: HIDDEN for name in operation.secrets if name in value})


def _error_text(error: BaseException) -> str:
    """Return why a job failed, never empty."""
    kind = type(error).__name__
    text = str(error)
    if not isinstance(error, OperationFailed):
        text = f"{kind}: {text}" if text else kind
    return (text or kind)[:ERROR_CHARS_MAX]
