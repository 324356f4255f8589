"""Adapter `orchestrator`: runs the steps of a plan as jobs, each as soon as its inputs are there.

If an asset with the `operation.adapter` `orchestrator:steps` has `steps` and `result` beside it,
its input is the input of the orchestration. Else the input has `steps`, `result` and `input`.

Each step is invoked with its number as key, so that after a restart `invoke` finds the started jobs
and the outputs of finished ones.

Source: COG-12 "Orchestration".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from datalattice.errors import DataLatticeError, UsageError
from datalattice.service.venue import (
    JobContext,
    Json,
    OperationFailed,
    OperationMetadata,
    PlainAdapter,
    RecoveryRule,
    VenueOperation,
)
from datalattice.service.venue.adapters.inputs import members, sub_operation
from datalattice.service.venue.adapters.plans import (
    Plan,
    PlannedStep,
    evaluate,
    read_plan,
    ready_steps,
)

OutputCheck = Callable[[str, str | None, Json], Awaitable[None]]
"""Raises UsageError if the output of an operation at a venue (None: here) violates its schema."""

_COMPLETE: Final = "COMPLETE"


class OrchestratorAdapter(PlainAdapter):
    """Runs `orchestrator:steps`.

    check_output: checks outputs of `strict` steps; None: plans with such steps are refused.
    """

    name = "orchestrator"

    def __init__(self, check_output: OutputCheck | None = None) -> None:
        self._check_output: Final = check_output

    def operations(self) -> Sequence[VenueOperation]:
        """Return the operation whose plan is in the input."""
        properties: dict[str, Json] = {
            "steps": {"type": "array"},
            "result": {},
            # Records hide it, as steps may use secrets of it; they show the plan.
            "input": {"writeOnly": True},
        }
        metadata: OperationMetadata = {
            "name": "Orchestration",
            "description": "Runs steps, each with inputs from the input or from earlier steps",
            "operation": {
                "adapter": "orchestrator:steps",
                "input": {
                    "type": "object",
                    "properties": properties,
                    "required": ["steps", "result"],
                },
            },
        }
        # Its only effects are those of its steps, which are jobs with rules of their own.
        return [
            VenueOperation(
                "orchestrator/steps", metadata, has_effects=False, recover=RecoveryRule.RETRY
            )
        ]

    def check(self, meta: OperationMetadata, input: Json) -> None:
        """Refuse a plan that is malformed, names unknown or later steps, or has too many steps."""
        plan, _ = _plan(meta, input)
        if self._check_output is None and any(step.strict for step in plan.steps):
            raise UsageError("`strict`: this venue checks no outputs; leave `strict` out")

    async def run(self, job: JobContext, meta: OperationMetadata, input: Json) -> Json:
        """Run the steps; return the value of `result`.

        Raises: OperationFailed: a step did not complete; the others are cancelled.
        """
        plan, given = _plan(meta, input)
        return await _Orchestration(job, plan, given, self._check_output).run()


def _plan(meta: OperationMetadata, given: Json) -> tuple[Plan, Json]:
    sub_operation(meta, ["steps"])
    operation = meta["operation"]
    if isinstance(operation, Mapping) and "steps" in operation:
        return read_plan(operation), given
    fields = members(given, ["steps", "result", "input"])
    return read_plan(fields), fields.get("input")


class _Orchestration:
    """One run of a plan."""

    def __init__(
        self, job: JobContext, plan: Plan, given: Json, check_output: OutputCheck | None
    ) -> None:
        self._job: Final = job
        self._plan: Final = plan
        self._needs: Final = [step.needs for step in plan.steps]
        self._given: Final = given
        self._check_output: Final = check_output
        self._outputs: Final[dict[int, Json]] = {}
        self._tasks: Final[dict[int, asyncio.Task[None]]] = {}
        self._shown: Final = [_record(step) for step in plan.steps]
        self._changed: Final = asyncio.Event()

    async def run(self) -> Json:
        try:
            await self._run_steps()
        except OperationFailed:
            await self._stop()
            await self._show()  # with the cancelled steps
            raise
        finally:
            await self._stop()
        result: Json = evaluate(self._plan.result, self._given, self._outputs)
        return result

    async def _run_steps(self) -> None:
        while len(self._outputs) < len(self._plan.steps):
            for number in ready_steps(self._needs, self._tasks, self._outputs):
                task = asyncio.create_task(self._step(number, self._plan.steps[number]))
                task.add_done_callback(lambda _task: self._changed.set())
                self._tasks[number] = task
            # Before the write, so that a step that ends during it sets it again.
            self._changed.clear()
            await self._show()
            await self._changed.wait()
            for task in self._tasks.values():
                if task.done():
                    task.result()  # "A failed step: the orchestration is FAILED"
        await self._show()

    async def _stop(self) -> None:
        for task in self._tasks.values():  # "running ones are cancelled"
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _show(self) -> None:
        # All steps in one write: others change while this one waits for the disk.
        await self._job.progress({"steps": [dict(one) for one in self._shown]})

    async def _step(self, number: int, step: PlannedStep) -> None:
        shown = self._shown[number]

        def started(job_id: bytes) -> None:
            shown.update(id=job_id.hex(), status="STARTED")
            self._changed.set()

        try:
            given = evaluate(step.input, self._given, self._outputs)
            result = await self._job.invoke(
                step.op, given, key=f"step {number}", venue=step.venue, on_started=started
            )
            shown.update(id=result.id.hex(), status=result.status)
            if result.status != _COMPLETE:
                raise OperationFailed(result.error or "the job has no error text")
            if step.strict and self._check_output is not None:
                await self._check_output(step.op, step.venue, result.output)
        except asyncio.CancelledError:
            shown["status"] = "CANCELLED"
            raise
        except DataLatticeError as error:
            # A job that ended otherwise keeps its status; a complete one failed the check of its
            # output.
            if shown["status"] in {"PENDING", "STARTED", _COMPLETE}:
                shown["status"] = "FAILED"
            shown["error"] = str(error)
            # "naming the step number and status"
            raise OperationFailed(f"step {number} is {shown['status']}: {error}") from error
        self._outputs[number] = result.output


def _record(step: PlannedStep) -> dict[str, Json]:
    """Return the entry of a step in the record of the orchestration."""
    shown: dict[str, Json] = {"op": step.op, "status": "PENDING"}
    if step.name is not None:
        shown["name"] = step.name
    if step.venue is not None:
        shown["venue"] = step.venue
    return shown
