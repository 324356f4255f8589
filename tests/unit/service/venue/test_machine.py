"""Machine: a venue does what a naive model of its jobs does, whatever its callers do.

Between two steps virtual time passes, so each job is where it stays; crashes are among the steps.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from datalattice.crypto import KeyPair
from datalattice.errors import Backpressure, Conflict, DataLatticeError, NoSuchPath, Unauthorized
from datalattice.service.venue import JobCaller, JobStatus, VenueLimits, cell_json
from datalattice.testing.venue_kit import LedgerAdapter, VenueLife, venue_root

KEY = KeyPair(bytes(range(32)))
CALLERS = [JobCaller("did:key:z6MkAlice"), JobCaller("did:key:z6MkBob")]
ADMIN = JobCaller("did:key:z6MkAdmin", sees_all=True)
LIMITS = VenueLimits(caller_jobs=3, jobs=5, queued=2)
SLOW_MS = 10_000
SETTLE_MS = 50
LIVE = {"STARTED", "PAUSED", "INPUT_REQUIRED"}


class ModelJob:
    """A job as simple as it can be. It asks a question, or takes ten seconds."""

    def __init__(self, caller: JobCaller, asks: bool, now_ms: int) -> None:
        self.caller, self.asks = caller, asks
        self.queue: list[int] = []
        self.answer: int | None = None
        self.attempt, self.ends_ms, self.is_hidden = 1, 0, False
        self.run(now_ms)

    def run(self, now_ms: int) -> None:
        self.status = "STARTED"
        if not self.asks:
            self.ends_ms = now_ms + SLOW_MS
        elif self.queue:
            self.status, self.answer = "COMPLETE", self.queue.pop(0)
        else:
            self.status = "INPUT_REQUIRED"

    def time(self, now_ms: int) -> None:
        if self.status == "STARTED" and now_ms >= self.ends_ms:
            self.status = "COMPLETE"

    def refusal(self, caller: JobCaller, verb: str) -> type[DataLatticeError] | None:
        if self.is_hidden:
            return NoSuchPath
        if caller.did != self.caller.did:
            return Unauthorized
        if verb != "cancel" and self.status not in LIVE:
            return Conflict
        if (verb, self.status == "PAUSED") in {("pause", True), ("resume", False)}:
            return Conflict
        if verb == "message" and self.status != "INPUT_REQUIRED" and len(self.queue) >= 2:
            return Backpressure
        return None

    def do(self, verb: str, now_ms: int, value: int) -> None:
        if verb == "pause":
            self.status = "PAUSED"
        elif verb == "resume":
            self.run(now_ms)
        elif verb == "cancel" and self.status in LIVE:
            self.status = "CANCELLED"
        elif verb == "message":
            self.queue.append(value)
            if self.status == "INPUT_REQUIRED":
                self.run(now_ms)


class VenueMachine(RuleBasedStateMachine):
    """Steps of callers, of time and of the machine."""

    @initialize()
    def begin(self) -> None:
        self.root, self.ledger = venue_root(KEY), LedgerAdapter()
        self.jobs: dict[bytes, ModelJob] = {}
        self.life = self.started(1_000)

    def started(self, start_s: float) -> VenueLife:
        life = VenueLife(self.root, KEY, [self.ledger], limits=LIMITS, start_s=start_s)
        life.run(life.runner.start())
        life.pass_ms(SETTLE_MS)
        return life

    def settle(self, ms: int = SETTLE_MS) -> None:
        self.life.pass_ms(ms)
        for job in self.jobs.values():
            job.time(self.life.clock.now_ms())

    def live(self, caller: JobCaller | None = None) -> int:
        return sum(
            job.status in LIVE and (caller is None or job.caller is caller)
            for job in self.jobs.values()
        )

    @rule(caller=st.sampled_from(CALLERS), asks=st.booleans())
    def invoke(self, caller: JobCaller, asks: bool) -> None:
        given: dict[str, Any] = {"ask": "?"} if asks else {"ms": SLOW_MS}
        is_full = self.live(caller) >= LIMITS.caller_jobs or self.live() >= LIMITS.jobs
        now_ms = self.life.clock.now_ms()
        try:
            record = self.life.run(self.life.runner.invoke("v/ops/ledger/retry", given, caller))
        except Backpressure:
            assert is_full
            return
        assert not is_full
        self.jobs[bytes.fromhex(str(record["id"]))] = ModelJob(caller, asks, now_ms)
        self.settle()

    @precondition(lambda self: self.jobs)
    @rule(
        number=st.integers(0, 30),
        caller=st.sampled_from(CALLERS),
        verb=st.sampled_from(["pause", "resume", "cancel", "message"]),
        value=st.integers(0, 9),
    )
    def steer(self, number: int, caller: JobCaller, verb: str, value: int) -> None:
        id = list(self.jobs)[number % len(self.jobs)]
        job, runner, now_ms = self.jobs[id], self.life.runner, self.life.clock.now_ms()
        refusal = job.refusal(caller, verb)
        arguments = (id, value, caller) if verb == "message" else (id, caller)
        if refusal is not None:
            with pytest.raises(refusal) as raised:
                self.life.run(getattr(runner, verb)(*arguments))
            assert raised.type is refusal
        else:
            self.life.run(getattr(runner, verb)(*arguments))
            job.do(verb, now_ms, value)
        self.settle()

    @precondition(lambda self: self.jobs)
    @rule(number=st.integers(0, 30))
    def delete(self, number: int) -> None:
        id = list(self.jobs)[number % len(self.jobs)]
        job = self.jobs[id]
        if not job.is_hidden:
            self.life.run(self.life.runner.delete(id, job.caller))
            job.do("cancel", 0, 0)
            job.is_hidden = True
        self.settle()

    @rule(ms=st.sampled_from([1_000, SLOW_MS]))
    def time_passes(self, ms: int) -> None:
        self.settle(ms)

    @rule()
    def the_process_ends_and_begins_again(self) -> None:
        now_s = self.life.loop.now_s + 1
        self.life.end()
        for job in self.jobs.values():
            if job.status == "STARTED":
                if job.attempt >= LIMITS.attempts:
                    job.status = "FAILED"
                else:
                    job.attempt += 1
                    job.run(round(now_s * 1_000))
        self.life = self.started(now_s)
        self.settle(0)

    @invariant()
    def the_venue_is_as_the_model(self) -> None:
        if not hasattr(self, "life"):
            return
        stored = self.life.storage.jobs()
        for id, job in self.jobs.items():
            record = cell_json(stored.get(id))
            assert record["status"] == job.status, (record, job.__dict__)
            if job.asks and job.status == "COMPLETE":
                assert record["output"]["answer"] == job.answer
        for caller in CALLERS:
            for status in (None, JobStatus.COMPLETE, JobStatus.PAUSED):
                wanted = [
                    id
                    for id, job in sorted(self.jobs.items(), reverse=True)
                    if job.caller is caller and not job.is_hidden and status in (None, job.status)
                ]
                assert self.life.run(self.life.runner.jobs(caller, status=status)) == wanted
        live = {id for id, job in self.jobs.items() if job.status in LIVE}
        assert set(self.life.storage.private()[0]) == live

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.end()


TestVenueMachine = VenueMachine.TestCase
TestVenueMachine.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
