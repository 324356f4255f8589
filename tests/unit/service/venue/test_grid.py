"""Adapter `grid`: a job here that another venue runs, through refusals, outages and restarts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from datalattice.actions import CancelJob, GetJob, InvokeOperation, MessageJob
from datalattice.cells import encode_message
from datalattice.crypto import KeyPair
from datalattice.cursors import LatticeCursor
from datalattice.errors import DataLatticeError, PeerUnavailable, UsageError
from datalattice.service.handlers.venue import _record as job_record
from datalattice.service.venue import (
    Adapter,
    GridJobs,
    JobCaller,
    JobStatus,
    Json,
    VenueRunner,
    cell_json,
)
from datalattice.service.venue.adapters import (
    GridAdapter,
    HostUnreached,
    OrchestratorAdapter,
    VenueDoor,
    VenueRules,
)
from datalattice.testing.dice import Dice
from datalattice.testing.venue_kit import EchoAdapter, LedgerAdapter, VenueLife, venue_root

HERE, THERE = KeyPair(bytes(range(32))), KeyPair(bytes(range(1, 33)))
ALICE, BOB = JobCaller("did:key:z6MkAlice"), JobCaller("did:key:z6MkBob")
ADMIN = JobCaller("did:key:z6MkAdmin", sees_all=True)
SOUTH = "http://127.0.0.1:1"
WAIT_S = 20.0


class South:
    """Another venue, on the loop of the first one; it is the `VenueCalls` of that one.

    failures: raised instead of the next answers; those in `late` after the call was done.
    """

    def __init__(self, caller: str) -> None:
        self.caller = JobCaller(caller)
        self.root = venue_root(THERE)
        self.ledger = LedgerAdapter()
        self.runner: VenueRunner | None = None
        self.failures: list[Exception] = []
        self.late: list[Exception] = []
        self.asked: list[tuple[str, str | None, Sequence[str]]] = []
        self.find = VenueRules({"south": SOUTH}).find

    def start(self, life: VenueLife) -> None:
        storage = GridJobs(self.root, THERE, clock=life.clock)
        self.runner = VenueRunner(
            storage,
            [EchoAdapter(), self.ledger],
            clock=life.clock,
            entropy=Dice(8),
            off_loop=life._off_loop,
        )
        life.run(self.runner.start())

    async def call(
        self,
        door: VenueDoor,
        request: Any,
        *,
        request_id: str | None = None,
        delegations: Sequence[str] = (),
    ) -> Any:
        self.asked.append((request.action.name, request_id, delegations))
        if self.failures:
            raise self.failures.pop(0)
        if self.runner is None:
            raise HostUnreached("nobody is there")
        record = await self._done(self.runner, request, request_id)
        if self.late:
            raise self.late.pop(0)
        return record if isinstance(request, MessageJob) else job_record(record)

    async def _done(self, runner: VenueRunner, request: Any, request_id: str | None) -> Any:
        if isinstance(request, InvokeOperation):
            record = await runner.invoke(
                request.operation,
                cell_json(request.input),
                self.caller,
                timeout_ms=request.timeout_ms,
                request_id=request_id,
            )
            id = bytes.fromhex(str(record["id"]))
            return await runner.wait(id, self.caller, request.wait_ms / 1_000)
        if isinstance(request, MessageJob):
            given = cell_json(request.message)
            return await runner.message(request.id, given, self.caller, request_id=request_id)
        if isinstance(request, CancelJob):
            return await runner.cancel(request.id, self.caller)
        assert isinstance(request, GetJob)
        return await runner.get(request.id, self.caller)

    def jobs(self, life: VenueLife) -> list[dict[str, Any]]:
        assert self.runner is not None
        ids = life.run(self.runner.jobs(ADMIN))
        return [cell_json(life.run(self.runner.get(id, ADMIN))) for id in reversed(ids)]


def north(root: LatticeCursor, south: South, start_s: float = 1_000.0) -> VenueLife:
    """Begin a life of the venue here, which knows the other one."""
    lives: list[VenueLife] = []
    grid = GridAdapter(lambda: lives[0].runner, south, away_s=WAIT_S)
    adapters: list[Adapter] = [EchoAdapter(), LedgerAdapter(), OrchestratorAdapter(), grid]
    lives.append(VenueLife(root, HERE, adapters, start_s=start_s))
    grid._clock = lives[0].clock  # type: ignore[misc]
    lives[0].run(lives[0].runner.start())
    return lives[0]


@pytest.fixture
def root() -> LatticeCursor:
    return venue_root(HERE)


@pytest.fixture
def south(root: LatticeCursor) -> South:
    return South(GridJobs(root, HERE).did)


@pytest.fixture
def life(root: LatticeCursor, south: South) -> Iterator[VenueLife]:
    life = north(root, south)
    south.start(life)
    yield life
    life.end()


def begin(life: VenueLife, given: Json, kind: str = "run", caller: JobCaller = ALICE) -> bytes:
    record = life.run(life.runner.invoke(f"v/ops/grid/{kind}", given, caller))
    return bytes.fromhex(str(record["id"]))


def shown(life: VenueLife, id: bytes) -> dict[str, Any]:
    found: dict[str, Any] = cell_json(life.run(life.runner.get(id, ADMIN)))
    return found


def end_of(life: VenueLife, id: bytes) -> dict[str, Any]:
    life.run(life.runner.wait(id, ADMIN, 1_000))
    return shown(life, id)


def run(life: VenueLife, given: Json, kind: str = "run", caller: JobCaller = ALICE) -> Any:
    return end_of(life, begin(life, given, kind, caller))


def held(life: VenueLife) -> dict[bytes, Any]:
    """Return what the adapter keeps of jobs that run elsewhere."""
    grid = life.runner._catalogue._adapters["grid"]
    assert isinstance(grid, GridAdapter)
    return grid._asked_for


SLOW: Json = {"operation": "v/ops/ledger/check", "input": {"ms": 5_000}, "venue": "south"}


def test_an_operation_runs_there_and_its_output_comes_here(life: VenueLife, south: South) -> None:
    done = run(life, {"operation": "v/ops/echo/back", "input": {"n": 1}, "venue": "south"})
    assert (done["status"], done["output"]) == ("COMPLETE", {"n": 1})
    (there,) = south.jobs(life)
    # "Both venues have their own job record: the grid operation here, the operation there."
    assert (there["opName"], there["caller"]) == ("v/ops/echo/back", south.caller.did)
    assert (done["opName"], done["caller"]) == ("v/ops/grid/run", ALICE.did)
    assert (done["venue"], done["remoteId"]) == (SOUTH, there["id"])
    # What is secret in the input is known there alone.
    assert done["input"] == {
        "operation": "v/ops/echo/back",
        "input": "HIDDEN",
        "venue": "south",
    }


def test_without_a_venue_it_runs_here(life: VenueLife, south: South) -> None:
    done = run(life, {"operation": "v/ops/echo/back", "input": {"input": 7}})
    assert (done["status"], done["output"]) == ("COMPLETE", {"input": 7})
    assert south.asked == []
    failed = run(life, {"operation": "v/ops/echo/fail", "input": {"text": "no tea"}})
    assert (failed["status"], failed["error"]) == ("FAILED", "no tea")


def test_a_failure_there_is_one_here_with_the_same_text(life: VenueLife) -> None:
    given: Json = {"operation": "v/ops/echo/fail", "input": {"text": "no tea"}, "venue": "south"}
    done = run(life, given)
    assert (done["status"], done["error"]) == ("FAILED", "no tea")
    refused = run(life, {"operation": "v/ops/no/such", "venue": "south"})
    assert refused["status"] == "FAILED"
    assert "the catalogue has no v/ops/no/such" in refused["error"]


def test_a_venue_that_is_not_there_fails_the_job_at_once(life: VenueLife, south: South) -> None:
    south.runner = None
    begun = life.clock.now_ms()
    done = run(life, SLOW)
    assert done["status"] == "FAILED"
    assert done["error"] == f"{SOUTH} cannot be reached: nobody is there"
    assert life.clock.now_ms() - begun < 100


def test_an_answer_that_is_lost_makes_no_second_job(life: VenueLife, south: South) -> None:
    south.late = [PeerUnavailable("it was lost"), PeerUnavailable("again")]
    done = run(life, SLOW)
    assert (done["status"], done["output"]["times"]) == ("COMPLETE", 1)
    assert len(south.jobs(life)) == len(south.ledger.effects) == 1


def test_a_venue_may_be_away_for_a_while(life: VenueLife, south: South) -> None:
    id = begin(life, SLOW)
    life.until(lambda: "remoteId" in shown(life, id))
    away, south.runner = south.runner, None
    life.pass_ms(10_000)
    south.runner = away
    assert end_of(life, id)["status"] == "COMPLETE"
    id = begin(life, SLOW)
    life.until(lambda: "remoteId" in shown(life, id))
    south.runner = None
    assert id in held(life)
    done = end_of(life, id)
    assert held(life) == {}
    assert done["status"] == "FAILED"
    assert done["error"] == f"{SOUTH} has not answered for 20 s: nobody is there"


def test_a_cancel_here_cancels_there(life: VenueLife, south: South) -> None:
    id = begin(life, SLOW)
    life.until(lambda: "remoteId" in shown(life, id))
    life.run(life.runner.cancel(id, ALICE))
    life.until(lambda: south.jobs(life)[0]["status"] == "CANCELLED")
    assert shown(life, id)["status"] == "CANCELLED"


def test_a_cancel_before_the_answer_cancels_there(life: VenueLife, south: South) -> None:
    id = begin(life, SLOW)
    life.until(lambda: bool(south.ledger.effects))
    assert "remoteId" not in shown(life, id)
    life.run(life.runner.cancel(id, ALICE))
    life.until(lambda: south.jobs(life)[0]["status"] == "CANCELLED")
    assert len(south.jobs(life)) == 1


def test_a_cancel_before_anything_was_asked_makes_no_job_there(
    life: VenueLife, south: South
) -> None:
    async def at_once() -> None:
        record = await life.runner.invoke("v/ops/grid/run", SLOW, ALICE)
        await life.runner.cancel(bytes.fromhex(str(record["id"])), ALICE)

    life.run(at_once())
    life.pass_ms(1_000)
    assert south.jobs(life) == []


def test_the_job_there_is_followed_after_a_restart(root: LatticeCursor, south: South) -> None:
    life = north(root, south)
    south.start(life)
    id = begin(life, {**SLOW, "input": {"ms": 60_000}})  # type: ignore[dict-item]
    life.until(lambda: "remoteId" in shown(life, id))
    life.end()
    for start_s in (1_010.0, 1_020.0, 1_030.0, 1_040.0):  # more often than an operation runs anew
        life = north(root, south, start_s)
        life.pass_ms(1_000)
        assert shown(life, id)["status"] == "STARTED"
        life.end()
    life = north(root, south, 1_100.0)
    south.start(life)
    done = end_of(life, id)
    assert (done["status"], done["output"]) == ("COMPLETE", {"found": True})
    assert len(south.jobs(life)) == 1
    assert [name for name, *_ in south.asked].count("venue.invoke") == 1
    life.end()


def test_a_job_found_without_an_answer_asks_again_by_the_same_id(
    root: LatticeCursor, south: South
) -> None:
    life = north(root, south)
    south.start(life)
    id = begin(life, SLOW)
    life.until(lambda: bool(south.ledger.effects))
    life.end()
    south.runner = None
    life = north(root, south, 1_001.0)
    life.pass_ms(1_000)  # it is not there yet, and may have a job of ours
    south.start(life)
    done = end_of(life, id)
    assert (done["status"], done["output"]) == ("COMPLETE", {"found": True})
    assert len(south.jobs(life)) == 1
    assert len({key for name, key, _ in south.asked if name == "venue.invoke"}) == 1
    life.end()


def test_what_the_job_there_asks_is_asked_here(life: VenueLife) -> None:
    given: Json = {"operation": "v/ops/ledger/retry", "input": {"ask": "how many?"}}
    id = begin(life, {**given, "venue": "south"})  # type: ignore[dict-item]
    life.until(lambda: shown(life, id)["status"] == JobStatus.INPUT_REQUIRED)
    assert shown(life, id)["message"] == "how many?"
    life.run(life.runner.message(id, 12, ALICE))
    done = end_of(life, id)
    assert (done["status"], done["output"]["answer"]) == ("COMPLETE", 12)


def test_delegations_are_shown_there_and_hidden_here(life: VenueLife, south: South) -> None:
    given: Json = {**SLOW, "ucans": ["a.b.c"]}  # type: ignore[dict-item]
    done = run(life, given)
    assert done["input"]["ucans"] == "HIDDEN"
    assert {shown for *_, shown in south.asked} == {("a.b.c",)}


def test_what_is_sent_there_is_sealed_on_this_disk(root: LatticeCursor, life: VenueLife) -> None:
    given: Json = {"operation": "v/ops/ledger/retry", "input": {"ms": 5_000, "pin": "s3cr3t-1"}}
    id = begin(life, {**given, "venue": "south", "ucans": ["s3cr3t-2"]})  # type: ignore[dict-item]
    life.until(lambda: "remoteId" in shown(life, id))
    written = encode_message(root.get())
    assert id.hex().encode() in written
    assert b"s3cr3t" not in written
    assert end_of(life, id)["status"] == "COMPLETE"


def test_invoke_returns_the_record_and_others_ask_for_it(life: VenueLife, south: South) -> None:
    made = run(life, SLOW, "invoke")["output"]
    assert made["status"] in {"PENDING", "STARTED"}
    asks: Json = {"id": made["id"], "venue": "south"}
    assert run(life, asks, "jobStatus")["output"]["status"] == "STARTED"
    late = run(life, {**asks, "timeout": 100}, "jobResult")  # type: ignore[dict-item]
    assert (late["status"], late["error"]) == ("FAILED", "no answer within 100 ms")
    done = run(life, asks, "jobResult")
    assert (done["status"], done["output"]["times"]) == ("COMPLETE", 1)
    assert len(south.jobs(life)) == 1
    # There, all of them are jobs of this venue.
    for kind in ("jobStatus", "jobResult"):
        other = run(life, asks, kind, BOB)
        assert other["status"] == "FAILED"
        assert "no job of yours here" in other["error"]


def test_jobs_of_this_venue_are_asked_for_in_the_same_way(life: VenueLife) -> None:
    given: Json = {"operation": "v/ops/ledger/check", "input": {"ms": 5_000}}
    made = run(life, given, "invoke")["output"]
    assert (made["opName"], made["caller"]) == ("v/ops/ledger/check", ALICE.did)
    asks: Json = {"id": made["id"]}
    assert run(life, asks, "jobStatus")["output"]["status"] == "STARTED"
    assert run(life, asks, "jobResult")["output"]["times"] == 1
    assert "another caller" in run(life, asks, "jobResult", BOB)["error"]


def test_a_step_may_run_at_another_venue(life: VenueLife, south: South) -> None:
    plan: Json = {
        "steps": [
            {"op": "v/ops/echo/back", "input": {"n": ["input", "n"]}, "venue": "south"},
            {"op": "v/ops/echo/back", "input": {"m": [0, "n"]}},
        ],
        "result": [1, "m"],
        "input": {"n": 7},
    }
    record = life.run(life.runner.invoke("v/ops/orchestrator/steps", plan, ALICE))
    done = end_of(life, bytes.fromhex(str(record["id"])))
    assert (done["status"], done["output"]) == ("COMPLETE", 7)
    assert [step.get("venue") for step in done["steps"]] == ["south", None]
    assert [job["output"] for job in south.jobs(life)] == [{"n": 7}]


def test_cancelling_an_orchestration_cancels_there(life: VenueLife, south: South) -> None:
    step: Json = {"op": "v/ops/ledger/check", "input": {"ms": ["const", 60_000]}, "venue": "south"}
    plan: Json = {"steps": [step], "result": [0]}
    record = life.run(life.runner.invoke("v/ops/orchestrator/steps", plan, ALICE))
    life.until(lambda: bool(south.jobs(life)))
    life.run(life.runner.cancel(bytes.fromhex(str(record["id"])), ALICE))
    life.until(lambda: south.jobs(life)[0]["status"] == "CANCELLED")


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        ("run", {}, "`operation` is a text"),
        ("run", {"operation": "v/ops/echo/back", "venue": "west"}, "knows no venue 'west'"),
        (
            "run",
            {"operation": "x", "venue": "http://127.0.0.1:2"},
            "does not allow the host 127.0.0.1",
        ),
        ("run", {"operation": "x", "ucans": "a.b.c"}, "`ucans` is a list of at most 16"),
        ("run", {"operation": "x", "ucans": ["a"] * 17}, "`ucans` is a list of at most 16"),
        ("run", {"operation": "x", "ucans": ["a,b"]}, "`ucans` is a list of at most 16"),
        ("run", {"operation": "x", "timeout": 1}, "the input has an unknown member 'timeout'"),
        ("jobStatus", {"id": "zz"}, "`id` is the id of a job in hex"),
        ("jobStatus", {"id": ""}, "`id` is the id of a job in hex"),
        ("jobStatus", {"id": "00" * 33}, "`id` is the id of a job in hex"),
        ("jobResult", {"id": "00", "timeout": 0}, "`timeout` is a number of milliseconds"),
        ("jobResult", {"id": "00", "timeout": True}, "`timeout` is a number of milliseconds"),
    ],
)
def test_a_bad_input_is_refused_before_there_is_a_job(
    life: VenueLife, kind: str, given: Json, text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        begin(life, given, kind)
    assert life.run(life.runner.jobs(ADMIN)) == []


class Liar(South):
    """A venue that answers with what it likes."""

    def __init__(self, **changed: Any) -> None:
        super().__init__("did:key:z6MkNobody")
        self.changed = changed

    async def call(self, door: VenueDoor, request: Any, **more: Any) -> Any:
        return replace(await super().call(door, request, **more), **self.changed)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"status": "DONE"}, "a job whose status is 'DONE'"),
        ({"id": b""}, "another job than the requested one"),
        ({"id": b"x" * 33}, "another job than the requested one"),
        ({"status": "FAILED", "error": ""}, "the job has no error text"),
        ({"status": "REJECTED", "error": "never"}, f"at {SOUTH} is REJECTED: never"),
        ({"status": "COMPLETE", "output": b"bytes"}, "output is not JSON"),
    ],
)
def test_an_answer_that_is_no_record_fails_the_job(changed: dict[str, Any], text: str) -> None:
    root = venue_root(HERE)
    south = Liar(**changed)
    life = north(root, south)
    south.start(life)
    done = run(life, SLOW)
    assert done["status"] == "FAILED"
    assert text in done["error"]
    life.end()


def test_a_venue_that_refuses_says_why(life: VenueLife, south: South) -> None:
    south.failures = [DataLatticeError("x" * 5_000)]
    done = run(life, SLOW)
    assert done["status"] == "FAILED"
    assert done["error"].startswith(f"{SOUTH}: xxx")
    assert len(done["error"]) == 4_000
