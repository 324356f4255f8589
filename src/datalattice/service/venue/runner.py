"""Runner: the jobs of one venue, from the call to the end.

Every answer is durable: a job is durably PENDING before its caller gets the id, durably STARTED
before an adapter with effects runs, and its result is durable before readers get it. The runner
belongs to one event loop; time comes from a clock and the loop, which tests replace.

Source: docs/design/venue.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from datalattice.cells import Map, Value
from datalattice.clock import Clock, SystemClock, present_ms
from datalattice.crypto import Entropy, SystemEntropy
from datalattice.errors import (
    Backpressure,
    Conflict,
    Unavailable,
    UsageError,
)
from datalattice.service.venue.adapter import Adapter, Json, VenueOperation
from datalattice.service.venue.catalogue import Catalogue, ResolvedOperation
from datalattice.service.venue.definitions import Definitions, OperationFinder
from datalattice.service.venue.gate import CallGate
from datalattice.service.venue.jobs import JobCaller, JobRun, LiveJob, check_sees, still_live
from datalattice.service.venue.live import (
    ORPHAN_TEXT,
    VENUE_LIMITS,
    LiveJobs,
    OffLoop,
    VenueLimits,
    durably,
    error_text,
)
from datalattice.service.venue.pages import JobPages
from datalattice.service.venue.records import (
    JobBatch,
    JobStorage,
    PrivatePart,
    cell_json,
    json_cell,
)
from datalattice.service.venue.recovery import (
    FoundJob,
    FoundVenue,
    RecoveryStep,
    found_at_start,
    orphans,
    recovery_of,
    settle_check,
)
from datalattice.service.venue.repeats import RepeatedCalls, mark_of_call
from datalattice.service.venue.schedule import ScheduledCall
from datalattice.service.venue.scheduler import Scheduler
from datalattice.service.venue.transitions import JobEvent, JobStatus, step

CANCELLED_TEXT: Final = "cancelled by its caller"


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
        off_loop: OffLoop = asyncio.to_thread,
        definitions: Definitions | None = None,
    ) -> None:
        """off_loop: runs calls that wait for the disk. definitions: of other venues; None: none."""
        self.did: Final = storage.did
        self._storage: Final = storage
        self._clock: Final = clock or SystemClock()
        self._limits: Final = limits
        self._off_loop: Final = off_loop
        self._catalogue: Final = Catalogue(storage.did, adapters, storage.metadata)
        entropy = entropy or SystemEntropy()
        self._finder: Final = OperationFinder(self._catalogue, storage, off_loop, definitions)
        self._jobs: Final = LiveJobs(
            storage, self._finder.find, off_loop, self._clock, entropy, limits
        )
        self._pages: Final = JobPages(storage)
        self._repeats: Final = RepeatedCalls()
        self._scheduler: Final = Scheduler(
            self._jobs, self._repeats, self._of_asset, self._clock, entropy, limits
        )
        self._gate: Final = CallGate()
        self._begun = b""

    # --- start and end ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Publish the operations, recover the live jobs and resume the schedule.

        If it fails, nothing has started and it may be called again.
        Raises: Unfenced, IdentityCloned, StoreError: the node may not write, or cannot.
        """
        # "Recovery runs after the fence": reads after this write include what peers held.
        await self._off_loop(self._storage.begin)
        await self._off_loop(lambda: self._catalogue.publish(self._storage.register))
        look = partial(found_at_start, self._storage, self._catalogue)
        found: FoundVenue = await self._off_loop(look)
        # Jobs with later ids are of this start, and are no orphans.
        self._begun = self._jobs.next_id()
        self._jobs.is_open = True
        self._repeats.load(found.requests)
        if not found.ended.is_empty:
            self._jobs.committer.put(found.ended)
        for job, why in found.jobs:
            self._jobs.admit(job)
            self._recover(job, why)
        self._jobs.last_id = max((job.id for job, _ in found.jobs), default=self._begun)
        # In a task, since the first look at the lists reads all records.
        self._jobs.spawn(self._fail_orphans())
        # Not earlier: a call may be about one of these jobs.
        self._gate.open()
        self._scheduler.begin(found.schedule)

    async def begun(self) -> None:
        """Return when calls are accepted. Raises: as `CallGate.passed`."""
        await self._gate.passed()

    async def start_when_allowed(self) -> None:
        """Call `start` until it succeeds; reads are answered meanwhile."""
        await self._gate.open_with(self.start)

    async def close(self, drain_s: float = 10.0) -> None:
        """Refuse new calls, wait `drain_s` seconds for running jobs, and stop.

        Jobs that still run are recovered at the next start, by the rules of their operations.
        """
        self._gate.close()
        self._scheduler.end()
        running = [
            job.run.task
            for job in self._jobs.live.values()
            if job.run and job.run.task and not job.status.is_interactive
        ]
        if running:
            await asyncio.wait(running, timeout=drain_s)
        self._jobs.is_open = False
        for job in self._jobs.live.values():
            if job.run is not None and job.status is JobStatus.STARTED:
                # An orderly stop does not count among the `attempts` of a job.
                self._jobs.save(job, job.private.stopped())
            self._jobs.stop(job)
        for task in list(self._jobs.tasks):
            task.cancel()
        await asyncio.gather(*self._jobs.tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._jobs.committer.flush(), drain_s)
        self._jobs.committer.stop()

    async def _fail_orphans(self) -> None:
        """Fail live jobs whose private part this node lacks: they cannot run."""
        known = frozenset(self._jobs.live)
        look = partial(orphans, self._storage, self._pages, known, self._begun)
        for id, record in await self._off_loop(look):
            if id in self._jobs.live:  # a scheduled call that became a job meanwhile
                continue
            after = step(record, JobEvent.FAIL, present_ms(self._clock), {"error": ORPHAN_TEXT})
            if isinstance(after, Map):
                self._jobs.committer.put(JobBatch(records={id: after}))

    def _recover(self, job: LiveJob, why: str) -> None:
        """Recover a job that was live at the start. why: the reason why it cannot run here."""
        rule = None if job.operation is None else job.operation.rule
        decided = recovery_of(
            FoundJob(
                job.status,
                job.private.interruptions,
                rule,
                why,
                is_delegated=job.record.get("remoteId") is not None,
            ),
            self._limits.attempts,
        )
        self._jobs.set_deadline(job)
        if decided.step is RecoveryStep.FAIL:
            self._jobs.apply(job, JobEvent.FAIL, {"error": decided.reason})
        elif decided.step is RecoveryStep.CHECK:
            self._jobs.spawn(self._check_outcome(job))
        elif decided.step is RecoveryStep.RUN:
            started = None
            if job.status is JobStatus.STARTED:
                # Durable before it runs, so that attempts are counted across crashes.
                started = self._jobs.save(job, job.private.next_attempt())
            self._jobs.begin(job, started)

    async def _check_outcome(self, job: LiveJob) -> None:
        """Ask the adapter for the outcome of a job, and end it or run it."""
        assert job.operation is not None
        run = JobRun(self._jobs, job)
        outcome, why = None, ""
        try:
            outcome = await job.operation.adapter.outcome(run.effect_key())
        except Exception as error:  # noqa: BLE001 - an adapter may raise anything: unknown
            why = error_text(error)
        decided = settle_check(outcome, why)
        if not job.status.is_active:
            return  # cancelled or paused meanwhile
        if decided.step is RecoveryStep.RUN:
            await self._jobs.keep(job, job.private.next_attempt())
            self._jobs.begin_again(job)
        elif decided.step is RecoveryStep.FAIL:
            self._jobs.apply(job, JobEvent.FAIL, {"error": decided.reason})
        else:
            assert outcome is not None
            self._jobs.complete(job, outcome.result)

    # --- calls ------------------------------------------------------------------------------------

    async def invoke(
        self,
        reference: str,
        input: Json,
        caller: JobCaller,
        *,
        timeout_ms: int | None = None,
        request_id: str | None = None,
    ) -> Map:
        """Start a job; return its durable record.

        timeout_ms: time until the job ends as TIMEOUT. request_id: if the caller has made this call
        with this id within 24 hours, return its job and start none.
        Raises: UsageError, NoSuchPath: the reference or the input is refused. RequestReused: the id
                came with another call. Backpressure: too many jobs are live. Draining, Unavailable:
                the venue ends, or cannot write.
        """
        if timeout_ms is not None and timeout_ms < 1:
            raise UsageError(f"timeout_ms: 1 or more, got {timeout_ms}")
        operation = await self._resolved(reference)
        deadline = None if timeout_ms is None else present_ms(self._clock) + timeout_ms
        mark = None
        if request_id is not None:
            mark = mark_of_call(request_id, caller.did, reference, json_cell(input, "input"))
            known = self._repeats.find(mark, present_ms(self._clock))
            if known is not None:
                return await self._accepted(known, caller)
        private = PrivatePart(deadline_ms=deadline, grants=caller.grants)
        job, batch = self._jobs.new_job(operation, input, caller.did, private)
        if mark is not None:
            # In the commit of the job, so that both are durable or neither is.
            batch.requests |= self._repeats.add(mark, job.id, present_ms(self._clock))
        await self._jobs.accept(job, batch)
        return _shown(job)

    async def _accepted(self, id: bytes, caller: JobCaller) -> Map:
        """Return the record of a job that an earlier call made, when it is durable."""
        job = self._jobs.live.get(id)
        # Two calls with one id may come together: the second waits for the commit of the first.
        if job is not None and job.accepted is not None:
            await durably(job.accepted)
        return await self.get(id, caller)

    async def wait(self, id: bytes, caller: JobCaller, limit_s: float) -> Map:
        """Return the record when the job has ended, after `limit_s` seconds at the latest."""
        job = self._jobs.live.get(id)
        if job is not None:
            check_sees(job.record, caller)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(job.done.wait(), limit_s)
            return _shown(job)
        return await self.get(id, caller)

    async def get(self, id: bytes, caller: JobCaller) -> Map:
        """Return the durable record of a job.

        Raises: NoSuchPath: there is none. Unauthorized: it is another caller's.
        """
        record = await self._jobs.record(id)
        check_sees(record, caller)
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

        before: the last id of the previous page. Raises: UsageError, LimitExceeded: `count`.
        """
        mine = None if caller.sees_all else caller.did
        page = partial(self._pages.page, mine, status, before, count)
        found: list[bytes] = await self._off_loop(page)
        return found

    async def is_delegated(self, caller: str, venue: str, remote_id: str) -> bool:
        """Return whether a caller's job here runs, or ran, as the job `remote_id` of `venue`."""
        found: bool = await self._off_loop(
            partial(self._pages.is_delegated, caller, venue, remote_id)
        )
        return found

    async def cancel(self, id: bytes, caller: JobCaller) -> Map:
        """End a live job as CANCELLED; return the durable record of the ended job."""
        job = await self._mine(id, caller)
        if job is None or job.status.is_terminal:
            if job is not None:
                await job.done.wait()  # until the end is durable
            return await self.get(id, caller)
        await durably(self._jobs.apply(job, JobEvent.CANCEL, {"error": CANCELLED_TEXT}))
        return _shown(job)

    async def pause(self, id: bytes, caller: JobCaller) -> Map:
        """Stop a job until `resume`. Raises: Conflict: it has ended, or is paused."""
        job = await self._mine_live(id, caller)
        durable = self._jobs.apply(job, JobEvent.PAUSE)
        self._jobs.stop(job)
        await durably(durable)
        return _shown(job)

    async def resume(self, id: bytes, caller: JobCaller) -> Map:
        """Run a paused job again, with its input. Raises: Conflict: it is not paused."""
        job = await self._mine_live(id, caller)
        if job.operation is None:
            raise Conflict(f"job {id.hex()} cannot run here: its operation is unknown")
        # Before it runs: an adapter with effects needs a durable STARTED.
        await durably(self._jobs.apply(job, JobEvent.RESUME))
        self._jobs.begin_again(job)
        return _shown(job)

    async def message(
        self, id: bytes, message: Json, caller: JobCaller, *, request_id: str | None = None
    ) -> int:
        """Send a job a message; return the number of messages that wait for it, durably.

        request_id: as that of `invoke`.
        Raises: Conflict: the job has ended. Backpressure: 100 messages wait for it.
        """
        job = await self._mine(id, caller)
        cell, mark = json_cell(message, "message"), None
        if request_id is not None:
            mark = mark_of_call(request_id, caller.did, f"message {id.hex()}", cell)
            if self._repeats.find(mark, present_ms(self._clock)) is not None:
                # Commits are in order: once this empty one is durable, that of the first call is.
                await durably(self._jobs.committer.put(JobBatch()))
                return 0 if job is None else len(job.private.queue)
        job = still_live(id, job)
        is_answer = job.status in (JobStatus.INPUT_REQUIRED, JobStatus.AUTH_REQUIRED)
        if not is_answer and len(job.private.queue) >= self._limits.queued:
            raise Backpressure(f"{self._limits.queued} messages wait for job {id.hex()}")
        if mark is not None:
            # In the commit of the message: no other task runs between this put and that one.
            changes = self._repeats.add(mark, id, present_ms(self._clock))
            self._jobs.committer.put(JobBatch(requests=changes))
        if is_answer:
            await self._answer(job, cell)
        else:
            await self._jobs.keep(job, replace(job.private, queue=(*job.private.queue, cell)))
            if job.run is not None and job.status is JobStatus.STARTED:
                self._jobs.spawn(self._jobs.deliver(job, job.run, cell))
        return len(job.private.queue)

    async def _answer(self, job: LiveJob, message: Value) -> None:
        """Give a job the answer that it waits for."""
        private = job.private.answered(message)
        await durably(self._jobs.apply(job, JobEvent.MESSAGE, private=private))
        run = job.run
        if run is not None and run.answer is not None and not run.answer.done():
            run.answer.set_result(cell_json(message))
        elif run is None:
            self._jobs.begin_again(job)  # after a restart: `ask` finds the answer

    async def delete(self, id: bytes, caller: JobCaller) -> None:
        """Cancel a job if it is live, and hide it on this node."""
        await self.cancel(id, caller)
        # Hidden, since peers hold the record and would bring it back.
        await self._off_loop(lambda: self._storage.hide(id))

    def watch(self, id: bytes, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` after each durable change of a live job; return the function that ends it."""
        job = self._jobs.live.get(id)
        if job is None:
            return lambda: None  # it has ended, and changes no more
        job.wakes.add(wake)
        return lambda: job.wakes.discard(wake)

    def operations(self) -> dict[str, tuple[bytes, VenueOperation]]:
        """Return asset id and operation by path of the catalogue, in the order of paths."""
        return self._catalogue.operations()

    @property
    def callers(self) -> int:
        """The number of callers with live jobs."""
        return self._jobs.callers

    @property
    def failure(self) -> str:
        """Why the last commit failed; "" after a success."""
        return self._jobs.committer.failure

    @property
    def late_results(self) -> int:
        """Number of results that were dropped, as their job had ended or paused."""
        return self._jobs.late_results

    # --- the schedule -----------------------------------------------------------------------------

    async def schedule(
        self,
        reference: str,
        input: Json,
        time_ms: int | None,
        caller: JobCaller,
        *,
        after_ms: int | None = None,
        request_id: str | None = None,
    ) -> bytes:
        """Schedule a job; return the handle of the call, which is durable.

        time_ms: Unix milliseconds, or after_ms: from now. request_id: as that of `invoke`.
        Raises: as `invoke`. Backpressure: too many calls wait.
        """
        operation = await self._resolved(reference)
        return await self._scheduler.add(
            operation, reference, input, caller, time_ms, after_ms, request_id
        )

    async def unschedule(self, handle: bytes, caller: JobCaller) -> None:
        """Cancel a scheduled call. Raises: NoSuchPath: the caller has none with this handle."""
        await self._gate.passed()
        await self._scheduler.remove(handle, caller)

    async def scheduled(self, caller: JobCaller) -> dict[bytes, ScheduledCall]:
        """Return the caller's scheduled calls by handle, the next one first."""
        await self._gate.passed()
        return self._scheduler.waiting(caller)

    # --- inside -----------------------------------------------------------------------------------

    async def _resolved(self, reference: str) -> ResolvedOperation:
        await self._gate.passed()
        # "Meanwhile nothing is answered, and new calls are refused with the reason"
        # (docs/design/venue.md).
        if self._jobs.committer.is_retrying:
            raise Unavailable(f"the venue cannot write its jobs: {self.failure}")
        return await self._finder.find(reference)

    async def _of_asset(self, asset: bytes) -> ResolvedOperation:
        found: ResolvedOperation = await self._off_loop(partial(self._catalogue.of_asset, asset))
        return found

    async def _mine(self, id: bytes, caller: JobCaller) -> LiveJob | None:
        """Return a live job that the caller may change; None: it has ended."""
        await self._gate.passed()
        await self.get(id, caller)  # raises if the job is absent or another caller's
        return self._jobs.live.get(id)

    async def _mine_live(self, id: bytes, caller: JobCaller) -> LiveJob:
        return still_live(id, await self._mine(id, caller))


def _shown(job: LiveJob) -> Map:
    assert job.shown is not None, "the job is durable"
    return job.shown
