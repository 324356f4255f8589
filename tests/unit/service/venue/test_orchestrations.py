"""Orchestrations in a venue: their steps are jobs, through restarts, cancels and pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from datalattice.crypto import KeyPair
from datalattice.service.venue import (
    JobCaller,
    JobContext,
    Json,
    OperationMetadata,
    PlainAdapter,
    VenueOperation,
    cell_json,
)
from datalattice.service.venue.adapters import JsonAdapter, OrchestratorAdapter
from datalattice.testing.venue_kit import VenueLife, venue_root

KEY = KeyPair(bytes(range(32)))
ALICE = JobCaller("did:key:z6MkAlice")


class GateAdapter(PlainAdapter):
    """`gate/pass` returns its input, and `gate/wait` does once the gate is open."""

    name = "gate"

    def __init__(self, *, is_open: bool = False) -> None:
        self.runs: list[Json] = []
        self.gate = asyncio.Event()
        if is_open:
            self.gate.set()

    def operations(self) -> Sequence[VenueOperation]:
        return [
            VenueOperation(
                f"gate/{name}", {"operation": {"adapter": f"gate:{name}"}}, has_effects=False
            )
            for name in ("pass", "wait")
        ]

    async def run(self, job: JobContext, meta: OperationMetadata, input: Json) -> Json:
        self.runs.append(input)
        operation: Any = meta["operation"]
        if operation["adapter"] == "gate:wait":
            await self.gate.wait()
        return input


PLAN: Json = {
    "steps": [
        {"op": "v/ops/gate/pass", "input": {"first": ["input", "n"]}},
        {"op": "v/ops/gate/wait", "input": {"second": [0, "first"]}},
        {"op": "v/ops/json/merge", "input": {"values": {"list": ["const", 1]}}},
    ],
    "result": {"out": [1, "second"]},
    "input": {"n": 7},
}
GOOD: Json = {**PLAN, "steps": PLAN["steps"][:2]}  # type: ignore[dict-item, index, call-overload]


def life_of(root: Any, gate: GateAdapter, start_s: float) -> VenueLife:
    one = VenueLife(root, KEY, [JsonAdapter(), OrchestratorAdapter(), gate], start_s=start_s)
    one.run(one.runner.start())
    return one


def begin(life: VenueLife, plan: Json) -> bytes:
    record = life.run(life.runner.invoke("v/ops/orchestrator/steps", plan, ALICE))
    return bytes.fromhex(str(record["id"]))


def shown(life: VenueLife, id: bytes) -> dict[str, Any]:
    found: Any = cell_json(life.run(life.runner.get(id, ALICE)))
    return found  # type: ignore[no-any-return]


def step_statuses(life: VenueLife, id: bytes) -> list[str]:
    return [step["status"] for step in shown(life, id).get("steps") or []]


def test_the_record_hides_the_input_of_the_steps() -> None:
    life = life_of(venue_root(KEY), GateAdapter(is_open=True), 0.0)
    given: Json = {**GOOD, "input": {"n": "a secret"}}  # type: ignore[dict-item]
    id = begin(life, given)
    record: Any = cell_json(life.run(life.runner.wait(id, ALICE, 60)))
    life.end()
    assert record["status"] == "COMPLETE"
    assert record["output"] == {"out": "a secret"}
    assert record["input"]["input"] == "HIDDEN"
    assert len(record["input"]["steps"]) == 2


def test_steps_are_jobs_of_the_caller() -> None:
    life = life_of(venue_root(KEY), GateAdapter(is_open=True), 1_000)
    id = begin(life, GOOD)
    done: Any = cell_json(life.run(life.runner.wait(id, ALICE, 100)))
    assert (done["status"], done["output"]) == ("COMPLETE", {"out": 7})
    first, second = (shown(life, bytes.fromhex(step["id"])) for step in done["steps"])
    assert (first["caller"], first["output"]) == (ALICE.did, {"first": 7})
    assert (second["input"], second["output"]) == ({"second": 7}, {"second": 7})
    life.end()


def test_finished_steps_are_not_run_again_after_a_crash() -> None:
    root, gate = venue_root(KEY), GateAdapter()
    life = life_of(root, gate, 1_000)
    id = begin(life, GOOD)
    life.until(lambda: step_statuses(life, id) == ["COMPLETE", "STARTED"])
    life.end()
    assert gate.runs == [{"first": 7}, {"second": 7}]
    later = GateAdapter(is_open=True)
    life = life_of(root, later, 2_000)
    done: Any = cell_json(life.run(life.runner.wait(id, ALICE, 100)))
    assert (done["status"], done["output"]) == ("COMPLETE", {"out": 7})
    assert later.runs == [{"second": 7}]
    life.end()


def test_a_step_that_is_refused_cancels_the_others() -> None:
    life = life_of(venue_root(KEY), GateAdapter(), 1_000)
    id = begin(life, PLAN)
    done: Any = cell_json(life.run(life.runner.wait(id, ALICE, 100)))
    assert done["status"] == "FAILED"
    assert "step 2 is FAILED: `values` is a list, got object" in done["error"]
    life.end()


def test_cancelling_an_orchestration_cancels_its_steps() -> None:
    life = life_of(venue_root(KEY), GateAdapter(), 1_000)
    id = begin(life, GOOD)
    life.until(lambda: step_statuses(life, id) == ["COMPLETE", "STARTED"])
    step = bytes.fromhex(shown(life, id)["steps"][1]["id"])
    life.run(life.runner.cancel(id, ALICE))
    life.until(lambda: shown(life, step)["status"] == "CANCELLED")
    assert shown(life, id)["status"] == "CANCELLED"
    life.end()


def test_a_paused_orchestration_goes_on_with_its_steps() -> None:
    gate = GateAdapter()
    life = life_of(venue_root(KEY), gate, 1_000)
    id = begin(life, GOOD)
    life.until(lambda: step_statuses(life, id) == ["COMPLETE", "STARTED"])
    life.run(life.runner.pause(id, ALICE))
    gate.gate.set()
    life.pass_ms(5_000)
    life.run(life.runner.resume(id, ALICE))
    done: Any = cell_json(life.run(life.runner.wait(id, ALICE, 100)))
    assert (done["status"], done.get("output")) == ("COMPLETE", {"out": 7})
    assert gate.runs == [{"first": 7}, {"second": 7}]
    life.end()


def test_cancelling_a_paused_orchestration_cancels_its_steps() -> None:
    life = life_of(venue_root(KEY), GateAdapter(), 1_000)
    id = begin(life, GOOD)
    life.until(lambda: step_statuses(life, id) == ["COMPLETE", "STARTED"])
    step = bytes.fromhex(shown(life, id)["steps"][1]["id"])
    life.run(life.runner.pause(id, ALICE))
    assert shown(life, step)["status"] == "STARTED"
    life.run(life.runner.cancel(id, ALICE))
    life.until(lambda: shown(life, step)["status"] == "CANCELLED")
    life.end()
