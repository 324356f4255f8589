"""Scheduler: calls become jobs at their time, each at most once.

It belongs to the event loop of its venue.

Source: docs/design/venue.md "Schedule".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

from datalattice.cells import Map
from datalattice.clock import Clock, present_ms
from datalattice.crypto import Entropy
from datalattice.errors import NoSuchPath, UsageError
from datalattice.service.venue.adapter import Json
from datalattice.service.venue.catalogue import ResolvedOperation
from datalattice.service.venue.jobs import JobCaller
from datalattice.service.venue.live import (
    ALARM_MS_MAX,
    HIDDEN,
    LiveJobs,
    VenueLimits,
    durably,
    error_text,
)
from datalattice.service.venue.records import JobBatch, PrivatePart, cell_json, json_cell
from datalattice.service.venue.repeats import RepeatedCalls, mark_of_call
from datalattice.service.venue.schedule import Schedule, ScheduledCall, job_of_call
from datalattice.service.venue.transitions import JobEvent, step


class Scheduler:
    """The scheduled calls of a venue, and the timer of the next one."""

    def __init__(
        self,
        jobs: LiveJobs,
        repeats: RepeatedCalls,
        of_asset: Callable[[bytes], Awaitable[ResolvedOperation]],
        clock: Clock,
        entropy: Entropy,
        limits: VenueLimits,
    ) -> None:
        """of_asset: returns the operation that an asset defines."""
        self._jobs: Final = jobs
        self._repeats: Final = repeats
        self._of_asset: Final = of_asset
        self._clock: Final = clock
        self._calls: Final = Schedule(clock, entropy, limits.scheduled, limits.caller_scheduled)
        self._alarm: asyncio.TimerHandle | None = None
        self._has_begun = False

    def begin(self, calls: Mapping[bytes, Map]) -> None:
        """Add the calls of the storage; those that are due become jobs at once, in order."""
        self._has_begun = True
        self._calls.load(calls)
        self._set_alarm()

    def end(self) -> None:
        """Stop the timer: no further call becomes a job."""
        self._has_begun = False
        if self._alarm is not None:
            self._alarm.cancel()

    async def add(
        self,
        operation: ResolvedOperation,
        reference: str,
        input: Json,
        caller: JobCaller,
        time_ms: int | None,
        after_ms: int | None,
        request_id: str | None,
    ) -> bytes:
        """Add a call; return its handle once it is durable. As `VenueRunner.schedule`."""
        operation.check(input)
        cell, now_ms, batch = json_cell(input, "input"), present_ms(self._clock), JobBatch()
        if (time_ms is None) == (after_ms is None):
            raise UsageError("give either time_ms or after_ms")
        mark = None
        if request_id is not None:
            asked = f"schedule {time_ms} {after_ms} {reference}"
            mark = mark_of_call(request_id, caller.did, asked, cell)
            known = self._repeats.find(mark, now_ms)
            if known is not None:
                # Commits are in order: once this one is durable, that of the first call is.
                await durably(self._jobs.committer.put(batch))
                return known
        when_ms = now_ms + (after_ms or 0) if time_ms is None else time_ms
        is_secret = bool(operation.secret_inputs)
        call = ScheduledCall(
            operation.asset, operation.given, cell, caller.did, when_ms, is_secret, caller.grants
        )
        handle = self._calls.add(call)
        batch.schedule[handle] = call.cell()
        if mark is not None:
            batch.requests |= self._repeats.add(mark, handle, now_ms)
        await durably(self._jobs.committer.put(batch))
        self._set_alarm()
        return handle

    async def remove(self, handle: bytes, caller: JobCaller) -> None:
        """Cancel a call. Raises: NoSuchPath: the caller has none with this handle."""
        call = self._calls.get(handle)
        # "Others only by the owner."
        if call is None or not (caller.sees_all or call.owner == caller.did):
            raise NoSuchPath(f"there is no scheduled call {handle.hex()}")
        self._calls.remove(handle)
        await durably(self._jobs.committer.put(JobBatch(schedule={handle: None})))

    def waiting(self, caller: JobCaller) -> dict[bytes, ScheduledCall]:
        """Return the caller's calls by handle, the next one first."""
        return {
            handle: call
            for handle, call in self._calls.waiting()
            if caller.sees_all or call.owner == caller.did
        }

    def _set_alarm(self) -> None:
        """Set the timer to the time of the next call."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        delay_ms = self._calls.delay_ms()
        if delay_ms is not None and self._has_begun:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(
                min(delay_ms, ALARM_MS_MAX) / 1_000, lambda: self._jobs.spawn(self._fire_due())
            )

    async def _fire_due(self) -> None:
        """Start the jobs of the calls whose time has come."""
        # Until its commit a call is on the disk, so one that a stop of the venue interrupts here
        # fires at the next start.
        for handle, call in self._calls.take_due():
            # One commit removes the call and makes the job: "at most once", and no call is lost.
            gone = JobBatch(schedule={handle: None})
            try:
                operation = replace(await self._of_asset(call.asset), given=call.reference)
                job, batch = self._jobs.new_job(
                    operation,
                    cell_json(call.input),
                    call.owner,
                    PrivatePart(grants=call.grants),
                    job_of_call(handle),
                )
            except Exception as error:  # noqa: BLE001 - the caller reads it in the job
                batch = self._rejected(handle, call, error_text(error))
                batch.update(gone)
                self._jobs.committer.put(batch)
                continue
            batch.update(gone)
            self._jobs.spawn(self._jobs.accept(job, batch))
        self._set_alarm()

    def _rejected(self, handle: bytes, call: ScheduledCall, why: str) -> JobBatch:
        """Return the batch of a job that was REJECTED, with the reason for its caller."""
        id = job_of_call(handle)
        # The operation, which names the secrets, is unknown: the whole input is hidden.
        record = self._jobs.first_record(id, call.asset, call.reference, "", HIDDEN, call.owner)
        after = step(record, JobEvent.REJECT, present_ms(self._clock), {"error": why})
        assert isinstance(after, Map)
        return JobBatch(records={id: after})
