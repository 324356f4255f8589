"""Adapters: blocking ones run in threads, and their rule follows from their effects."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from datalattice.errors import UsageError
from datalattice.service.venue import (
    Adapter,
    Blocking,
    BlockingJob,
    EffectOutcome,
    JobContext,
    JobResult,
    Json,
    Known,
    OperationFailed,
    OperationMetadata,
    RecoveryRule,
    VenueOperation,
)
from datalattice.testing.venue_kit import EchoAdapter, LoneJob

META: OperationMetadata = {"operation": {"adapter": "slow:it"}}


class SlowAdapter:
    """A blocking adapter that uses all of its job."""

    name = "slow"

    def __init__(self) -> None:
        self.threads: list[str] = []

    def operations(self) -> Sequence[VenueOperation]:
        return (VenueOperation("slow/it", META),)

    def check(self, meta: OperationMetadata, input: Json) -> None:
        if input is None:
            raise UsageError("input: anything but null")

    def run(self, job: BlockingJob, meta: OperationMetadata, input: Json) -> Json:
        self.threads.append(threading.current_thread().name)
        job.progress({"message": "half"})
        job.checkpoint([1])
        answer = job.ask("which?")
        found = job.invoke("v/ops/echo/back", input, key="0")
        return [answer, found.output, job.effect_key("a").hex()]

    def deliver(self, job: BlockingJob, message: Json) -> bool:
        self.threads.append(threading.current_thread().name)
        return message == "mine"

    def cancel(self, job: BlockingJob) -> None:
        self.threads.append(threading.current_thread().name)

    def outcome(self, effect_key: bytes) -> EffectOutcome:
        return EffectOutcome(Known.DONE, effect_key.hex())


def test_a_blocking_adapter_runs_in_threads_and_its_job_waits_on_the_loop() -> None:
    slow = SlowAdapter()
    adapter = Blocking(slow, 1)
    job = LoneJob(["this"], lambda _op, input: JobResult(b"1", "COMPLETE", input))

    async def use(one: Adapter, context: JobContext) -> tuple[Json, list[bool], EffectOutcome]:
        output = await one.run(context, META, {"n": 1})
        taken = [await one.deliver(context, message) for message in ("mine", "other")]
        await one.cancel(context)
        return output, taken, await one.outcome(b"\x01")

    try:
        output, taken, outcome = asyncio.run(use(adapter, job))
    finally:
        adapter.close()
    assert output == ["this", {"n": 1}, job.effect_key("a").hex()]
    assert job.shown == [{"message": "half"}]
    assert job.saved == [1]
    assert job.asked == [("INPUT_REQUIRED", "which?")]
    assert job.begun == [("0", "v/ops/echo/back", {"n": 1}, None)]
    assert taken == [True, False]
    assert outcome == EffectOutcome(Known.DONE, "01")
    assert all(name.startswith("venue-slow") for name in slow.threads)
    assert adapter.name == "slow"
    with pytest.raises(UsageError, match="null"):
        adapter.check(META, None)


def test_a_blocking_adapter_learns_that_its_job_ended_at_its_next_call() -> None:
    adapter, job = Blocking(SlowAdapter(), 1), LoneJob()
    job.cancelled = True
    try:
        with pytest.raises(OperationFailed, match="ended"):
            asyncio.run(adapter.run(job, META, 1))
    finally:
        adapter.close()
    assert job.shown == []


def test_no_thread_is_too_few() -> None:
    with pytest.raises(UsageError, match="threads: 1 or more"):
        Blocking(SlowAdapter(), 0)


@pytest.mark.parametrize(
    ("has_effects", "given", "rule"),
    [
        (False, None, RecoveryRule.RETRY),
        (True, None, RecoveryRule.FAIL),
        (True, RecoveryRule.CHECK, RecoveryRule.CHECK),
        (False, RecoveryRule.FAIL, RecoveryRule.FAIL),
    ],
)
def test_without_a_rule_only_operations_without_effects_run_again(
    has_effects: bool, given: RecoveryRule | None, rule: RecoveryRule
) -> None:
    assert VenueOperation("a/b", {}, has_effects, given).rule is rule


def test_the_adapter_for_tests_echoes_fails_and_refuses() -> None:
    adapter = EchoAdapter()
    back, fail = (operation.metadata for operation in adapter.operations())
    assert asyncio.run(adapter.run(LoneJob(), back, {"a": 1})) == {"a": 1}
    with pytest.raises(OperationFailed, match=r"^no luck$"):
        asyncio.run(adapter.run(LoneJob(), fail, {"text": "no luck"}))
    with pytest.raises(UsageError, match="text"):
        adapter.check(fail, {})
    assert asyncio.run(adapter.deliver(LoneJob(), 1)) is False
    assert asyncio.run(adapter.outcome(b"")).known is Known.UNKNOWN
    assert asyncio.run(adapter.cancel(LoneJob())) is None
