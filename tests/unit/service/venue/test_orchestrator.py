"""Adapter `orchestrator`: what runs when, what a failure and a cancel do, what is used again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

import pytest

from datalattice.errors import UsageError
from datalattice.service.venue import JobResult, Json, OperationFailed, OperationMetadata
from datalattice.service.venue.adapters.orchestrator import OrchestratorAdapter
from datalattice.service.venue.adapters.plans import STEPS_MAX
from datalattice.testing.venue_kit import LoneJob

META: OperationMetadata = {"operation": {"adapter": "orchestrator:steps"}}


class StepsJob(LoneJob):
    """A job whose `invoke` awaits what the test gives for an operation."""

    def __init__(self, **operations: Callable[[Any], Awaitable[Json]]) -> None:
        super().__init__()
        self.operations = operations
        self.cancelled_ops: list[str] = []
        self.was_begun = asyncio.Event()

    async def invoke(
        self,
        op: str,
        input: Json,
        *,
        key: str,
        venue: str | None = None,
        on_started: Callable[[bytes], None] = lambda _id: None,
    ) -> JobResult:
        job_id = sha256(key.encode()).digest()[:16]
        self.begun.append((key, op, input, venue))
        on_started(job_id)
        self.was_begun.set()
        try:
            return JobResult(job_id, "COMPLETE", await self.operations[op](input))
        except asyncio.CancelledError:
            self.cancelled_ops.append(op)
            raise
        except OperationFailed as error:
            return JobResult(job_id, "TIMEOUT", error=str(error))

    def ops(self) -> list[str]:
        return [op for _, op, _, _ in self.begun]

    def statuses(self) -> list[Any]:
        return [step["status"] for step in self.shown[-1]["steps"]]  # type: ignore[union-attr, index, call-overload]


async def echo(given: Json) -> Json:
    return given


async def fail(_given: Json) -> Json:
    raise OperationFailed("it broke")


async def never(_given: Json) -> Json:
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


def step(op: str, given: Json, **more: Json) -> dict[str, Json]:
    return {"op": op, "input": given, **more}


def run(job: StepsJob, *steps: Json, result: Json = None, given: Json = None) -> Json:
    plan: Json = {
        "steps": list(steps),
        "result": ["const", None] if result is None else result,
        "input": given,
    }
    OrchestratorAdapter().check(META, plan)
    return asyncio.run(OrchestratorAdapter().run(job, META, plan))


def test_a_step_gets_what_earlier_steps_made() -> None:
    job = StepsJob(echo=echo)
    made = run(
        job,
        step("echo", {"n": ["input", "n"]}),
        step("echo", ["concat", ["const", "n is "], [0, "n"]], venue="did:web:b.org", name="text"),
        result={"text": [1], "n": [0, "n"]},
        given={"n": 3},
    )
    assert made == {"text": "n is 3", "n": 3}
    assert job.begun == [
        ("step 0", "echo", {"n": 3}, None),
        ("step 1", "echo", "n is 3", "did:web:b.org"),
    ]
    shown: Any = job.shown[-1]["steps"]
    job_id = sha256(b"step 1").digest()[:16].hex()
    assert shown[1] == {
        "op": "echo",
        "status": "COMPLETE",
        "name": "text",
        "venue": "did:web:b.org",
        "id": job_id,
    }


def test_a_plan_in_the_metadata_leaves_the_input_to_the_steps() -> None:
    meta: OperationMetadata = {
        "operation": {
            "adapter": "orchestrator:steps",
            "steps": [step("echo", ["input"])],
            "result": [0],
        }
    }
    OrchestratorAdapter().check(meta, {"steps": 1})
    job = StepsJob(echo=echo)
    assert asyncio.run(OrchestratorAdapter().run(job, meta, {"steps": 1})) == {"steps": 1}


def test_steps_without_open_dependency_run_together() -> None:
    met = asyncio.Barrier(3)

    async def meet(given: Json) -> Json:
        await met.wait()
        return given

    steps = [step("meet", ["const", n]) for n in range(3)]
    assert run(StepsJob(meet=meet), *steps, result=[2]) == 2


def test_a_failed_step_fails_all_and_cancels_what_runs() -> None:
    job = StepsJob(echo=echo, fail=fail, never=never)
    with pytest.raises(OperationFailed, match=r"^step 1 is TIMEOUT: it broke$"):
        run(job, step("never", ["input"]), step("fail", ["input"]), step("echo", [1]))
    assert job.ops() == ["never", "fail"]
    assert job.cancelled_ops == ["never"]
    assert job.statuses() == ["CANCELLED", "TIMEOUT", "PENDING"]


def test_a_step_that_is_refused_fails_the_orchestration() -> None:
    async def refuse(_given: Json) -> Json:
        raise UsageError("no such operation")

    job = StepsJob(refuse=refuse)
    with pytest.raises(OperationFailed, match=r"^step 0 is FAILED: no such operation$"):
        run(job, step("refuse", ["input"]))
    assert job.statuses() == ["FAILED"]


def test_a_fault_of_the_venue_in_a_step_is_not_hidden() -> None:
    async def fault(_given: Json) -> Json:
        raise ZeroDivisionError

    job = StepsJob(fault=fault, never=never)
    with pytest.raises(ZeroDivisionError):
        run(job, step("never", ["input"]), step("fault", ["input"]))
    assert job.cancelled_ops == ["never"]


def test_cancel_crosses_to_the_steps() -> None:
    job = StepsJob(never=never, echo=echo)

    async def cancelled() -> None:
        plan: Json = {
            "steps": [step("echo", ["input"]), step("never", [0]), step("never", [0])],
            "result": [1],
        }
        running = asyncio.create_task(OrchestratorAdapter().run(job, META, plan))
        while job.ops().count("never") < 2:
            job.was_begun.clear()
            await job.was_begun.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()

    asyncio.run(cancelled())
    assert job.cancelled_ops == ["never", "never"]


def test_a_later_attempt_asks_for_the_same_jobs() -> None:
    steps = [step("echo", ["const", n]) for n in range(3)]
    first, second = StepsJob(echo=echo), StepsJob(echo=echo)
    run(first, *steps)
    run(second, *steps)
    keys = [key for key, *_ in first.begun]
    assert keys == [key for key, *_ in second.begun]
    assert len(set(keys)) == 3


def test_a_plan_without_steps_has_its_result() -> None:
    assert run(StepsJob(), result=["input", "a"], given={"a": 1}) == 1


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        ([], "the input is an object with steps, result, input"),
        ({"steps": [], "result": ["input"], "more": 1}, "unknown member 'more'"),
        ({"steps": [step("echo", [0])], "result": ["input"]}, "names step 0"),
        ({"steps": [step("echo", [1]), step("echo", [0])], "result": ["input"]}, "names step 1"),
        ({"steps": [step("echo", ["input"])] * (STEPS_MAX + 1), "result": [0]}, "at most"),
        (
            {"steps": [step("echo", ["input"], strict=True)], "result": [0]},
            "`strict`: this venue checks no outputs",
        ),
    ],
)
def test_a_bad_plan_makes_no_job(plan: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        OrchestratorAdapter().check(META, plan)


def test_the_output_of_a_strict_step_must_fit() -> None:
    async def check(op: str, venue: str | None, output: Json) -> None:
        if output != 1:
            raise UsageError(f"{op} at {venue} gave {output}")

    adapter = OrchestratorAdapter(check)

    def run_strict(value: int) -> Json:
        plan: Json = {
            "steps": [step("echo", ["const", value], strict=True)],
            "result": [0],
        }
        adapter.check(META, plan)
        return asyncio.run(adapter.run(StepsJob(echo=echo), META, plan))

    assert run_strict(1) == 1
    with pytest.raises(OperationFailed, match="step 0 is FAILED: echo at None gave 2"):
        run_strict(2)


def test_another_sub_operation_is_refused() -> None:
    with pytest.raises(UsageError, match="orchestrator:steps, got 'orchestrator:more'"):
        OrchestratorAdapter().check({"operation": {"adapter": "orchestrator:more"}}, {})


def test_a_thousand_steps_show_their_progress_in_few_writes() -> None:
    job = StepsJob(echo=echo)
    assert run(job, *[step("echo", ["const", n]) for n in range(STEPS_MAX)], result=[7]) == 7
    assert job.statuses() == ["COMPLETE"] * STEPS_MAX
    assert len(job.shown) < STEPS_MAX // 10
