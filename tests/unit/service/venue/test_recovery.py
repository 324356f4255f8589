"""Recovery: the table of the rule, and a venue whose process ends at each of its commits."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from datalattice.apps.grid import GRID_SECTION, VENUES_KEY
from datalattice.cells import Map
from datalattice.crypto import KeyPair
from datalattice.cursors import LatticeCursor
from datalattice.errors import Unfenced
from datalattice.service.venue import (
    EffectOutcome,
    FoundJob,
    GridJobs,
    JobBatch,
    JobCaller,
    JobStatus,
    Json,
    Known,
    PrivatePart,
    RecoveryRule,
    RecoveryStep,
    cell_json,
    effect_key,
    json_cell,
    metadata_text,
    recovery_of,
    settle_check,
)
from datalattice.service.venue.adapters import TrialAdapter
from datalattice.testing.venue_kit import (
    EchoAdapter,
    LedgerAdapter,
    VenueCrashed,
    VenueLife,
    venue_root,
)

KEY = KeyPair(bytes(range(32)))
ALICE = JobCaller("did:key:z6MkAlice")
ADMIN = JobCaller("did:key:z6MkAdmin", sees_all=True)
S, R, Step = JobStatus, RecoveryRule, RecoveryStep
UNKNOWN_OPERATION = "its operation"

TABLE = [
    (S.PENDING, 1, R.FAIL, False, Step.RUN),
    (S.PENDING, 3, R.RETRY, False, Step.RUN),
    (S.PENDING, 1, R.CHECK, False, Step.RUN),
    (S.STARTED, 1, R.RETRY, False, Step.RUN),
    (S.STARTED, 2, R.RETRY, False, Step.RUN),
    (S.STARTED, 3, R.RETRY, False, Step.FAIL),
    (S.STARTED, 1, R.FAIL, False, Step.FAIL),
    (S.STARTED, 1, R.CHECK, False, Step.CHECK),
    (S.STARTED, 3, R.CHECK, False, Step.FAIL),
    (S.STARTED, 1, R.FAIL, True, Step.RUN),
    (S.STARTED, 3, R.FAIL, True, Step.RUN),
    (S.PAUSED, 1, R.FAIL, False, Step.WAIT),
    (S.INPUT_REQUIRED, 3, R.RETRY, False, Step.WAIT),
    (S.AUTH_REQUIRED, 1, None, False, Step.WAIT),
    (S.PENDING, 1, None, False, Step.FAIL),
    (S.STARTED, 1, None, True, Step.FAIL),
]


@pytest.mark.parametrize(("status", "attempt", "rule", "is_delegated", "step"), TABLE)
def test_the_rule_for_a_job_that_is_found(
    status: JobStatus,
    attempt: int,
    rule: RecoveryRule | None,
    is_delegated: bool,
    step: RecoveryStep,
) -> None:
    found = FoundJob(status, attempt, rule, UNKNOWN_OPERATION, is_delegated)
    choice = recovery_of(found, 3)
    assert choice.step is step
    assert bool(choice.reason) == (step is Step.FAIL)
    if rule is None and step is Step.FAIL:
        assert choice.reason == UNKNOWN_OPERATION


@pytest.mark.parametrize(
    ("outcome", "step", "reason"),
    [
        (EffectOutcome(Known.DONE, 1), Step.COMPLETE, ""),
        (EffectOutcome(Known.DONE, None, "no"), Step.FAIL, "no"),
        (EffectOutcome(Known.NONE), Step.RUN, ""),
        (EffectOutcome(Known.UNKNOWN), Step.FAIL, "outcome unknown"),
        (None, Step.FAIL, "outcome unknown: it is gone"),
    ],
)
def test_the_answer_of_the_adapter_decides(
    outcome: EffectOutcome | None, step: RecoveryStep, reason: str
) -> None:
    choice = settle_check(outcome, "" if outcome else "it is gone")
    assert (choice.step, choice.reason) == (step, reason)


# --- what is found at a start ---------------------------------------------------------------------


class Case:
    """A venue that is found with one live job."""

    def __init__(self, op: str, status: JobStatus, *, attempt: int = 1, **more: Any) -> None:
        self.root = venue_root(KEY)
        self.ledger = LedgerAdapter()
        storage = GridJobs(self.root, KEY)
        metadata = {operation.path: operation.metadata for operation in self.ledger.operations()}
        asset = storage.register(metadata_text(metadata.get(f"ledger/{op}", {"name": "none"})))
        self.id = bytes(15) + b"\1"
        record = Map.of(
            {
                "id": self.id.hex(),
                "status": status.value,
                "created": 1,
                "updated": 1,
                "op": asset.hex(),
                "input": {},
                "caller": ALICE.did,
                **more.get("members", {}),
            }
        )
        private = PrivatePart(json_cell(more.get("input", {}), "input"), attempt)
        parts = {} if more.get("is_orphan") else {self.id: private.cell()}
        storage.write(JobBatch({self.id: record}, dict(parts)))
        self.key = effect_key(storage.did, self.id, "")

    def start(self) -> VenueLife:
        """Start the venue and give it a while."""
        life = VenueLife(self.root, KEY, [self.ledger])
        life.run(life.runner.start())
        life.pass_ms(100)
        return life


def found(life: VenueLife, id: bytes) -> dict[str, Any]:
    record: dict[str, Any] = cell_json(life.storage.jobs().get(id))
    return record


@pytest.mark.parametrize(
    ("op", "status", "attempt", "ends", "runs"),
    [
        ("fail", S.PENDING, 1, "COMPLETE", 1),
        ("pure", S.STARTED, 1, "COMPLETE", 1),
        ("retry", S.STARTED, 2, "COMPLETE", 1),
        ("retry", S.STARTED, 3, "FAILED", 0),
        ("fail", S.STARTED, 1, "FAILED", 0),
        ("check", S.STARTED, 1, "COMPLETE", 1),
        ("none", S.PENDING, 1, "FAILED", 0),
        ("fail", S.PAUSED, 1, "PAUSED", 0),
        ("fail", S.INPUT_REQUIRED, 1, "INPUT_REQUIRED", 0),
    ],
)
def test_a_job_that_is_found_goes_on_by_its_rule(
    op: str, status: JobStatus, attempt: int, ends: str, runs: int
) -> None:
    case = Case(op, status, attempt=attempt)
    life = case.start()
    record = found(life, case.id)
    assert record["status"] == ends
    assert case.ledger.runs[case.id] == runs
    assert (ends == "FAILED") == ("error" in record)
    life.end()


def test_an_effect_that_was_had_is_not_had_again_under_check() -> None:
    case = Case("check", S.STARTED)
    case.ledger.effects.append(case.key)
    life = case.start()
    assert found(life, case.id)["output"] == {"found": True}
    assert case.ledger.effects == [case.key]
    life.end()


def test_a_delegated_job_is_followed_whatever_its_rule() -> None:
    case = Case("fail", S.STARTED, members={"remoteId": "ab"})
    life = case.start()
    assert found(life, case.id)["status"] == "COMPLETE"
    life.end()


def test_an_operation_may_declare_its_own_rule() -> None:
    case = Case("none", S.STARTED)
    storage = GridJobs(case.root, KEY)
    asset = storage.register('{"operation":{"adapter":"ledger:fail","recover":"retry"}}')
    record = storage.job(case.id)
    assert record is not None
    storage.write(JobBatch({case.id: record.put("op", asset.hex())}))
    life = case.start()
    assert found(life, case.id)["status"] == "COMPLETE"
    assert case.ledger.effects == [case.key]
    life.end()


def test_a_live_job_without_a_private_part_has_failed() -> None:
    case = Case("pure", S.STARTED, is_orphan=True)
    life = case.start()
    record = found(life, case.id)
    assert record["status"] == "FAILED"
    assert "does not have its input" in record["error"]
    life.end()


def test_a_job_that_waited_for_an_answer_gets_it_after_a_restart() -> None:
    root, ledger = venue_root(KEY), LedgerAdapter()
    life = VenueLife(root, KEY, [ledger])
    life.run(life.runner.start())
    record = life.run(life.runner.invoke("v/ops/ledger/fail", {"ask": "which?"}, ALICE))
    id = bytes.fromhex(str(record["id"]))
    life.until(lambda: found(life, id)["status"] == "INPUT_REQUIRED")
    life.end()
    later = VenueLife(root, KEY, [ledger], start_s=2_000)
    later.run(later.runner.start())
    later.pass_ms(100)
    assert found(later, id)["status"] == "INPUT_REQUIRED"
    later.run(later.runner.message(id, "this", ALICE))
    later.pass_ms(100)
    assert found(later, id)["output"] == {"times": 1, "answer": "this"}
    assert ledger.runs[id] == 2
    later.end()


def test_orderly_stops_are_no_interruptions() -> None:
    root, trial = venue_root(KEY), TrialAdapter()
    life = VenueLife(root, KEY, [trial])
    life.run(life.runner.start())
    id = bytes.fromhex(str(life.run(life.runner.invoke("v/ops/test/never", {}, ALICE))["id"]))
    for start_s in range(2_000, 9_000, 1_000):
        life.pass_ms(100)
        assert found(life, id)["status"] == "STARTED", (start_s, found(life, id))
        life.run(life.runner.close(1.0))
        life.end()
        life = VenueLife(root, KEY, [trial], start_s=start_s)
        life.run(life.runner.start())
    life.pass_ms(100)
    assert found(life, id)["status"] == "STARTED"
    life.end()


def test_a_repeated_call_finds_its_job_after_a_restart() -> None:
    root, ids = venue_root(KEY), []
    for start_s in (1_000, 2_000):
        life = VenueLife(root, KEY, [EchoAdapter()], start_s=start_s)
        life.run(life.runner.start())
        call = life.runner.invoke("v/ops/echo/back", 1, ALICE, request_id="a")
        ids.append(life.run(call)["id"])
        life.end()
    assert ids[0] == ids[1]


def test_a_deadline_that_has_passed_meanwhile_ends_the_job() -> None:
    root, ledger = venue_root(KEY), LedgerAdapter()
    life = VenueLife(root, KEY, [ledger])
    life.run(life.runner.start())
    record = life.run(
        life.runner.invoke("v/ops/ledger/pure", {"ask": "?"}, ALICE, timeout_ms=5_000)
    )
    id = bytes.fromhex(str(record["id"]))
    life.pass_ms(10)
    life.end()
    later = VenueLife(root, KEY, [ledger], start_s=2_000)
    later.run(later.runner.start())
    later.pass_ms(10)
    assert found(later, id)["status"] == "TIMEOUT"
    later.end()


def test_calls_that_were_due_begin_at_the_next_start_in_order() -> None:
    root, ledger = venue_root(KEY), LedgerAdapter()
    life = VenueLife(root, KEY, [EchoAdapter(), ledger])
    life.run(life.runner.start())
    now = life.clock.now_ms()
    for number in (2, 1, 3):
        life.run(life.runner.schedule("v/ops/echo/back", number, now + number * 1_000, ALICE))
    life.end()
    later = VenueLife(root, KEY, [EchoAdapter(), ledger], start_s=2_000)
    later.run(later.runner.start())
    later.pass_ms(100)
    ids = later.run(later.runner.jobs(ALICE))
    assert [found(later, id)["output"] for id in reversed(ids)] == [1, 2, 3]
    later.end()
    third = VenueLife(root, KEY, [EchoAdapter(), ledger], start_s=3_000)
    third.run(third.runner.start())
    third.pass_ms(100)
    assert third.run(third.runner.jobs(ALICE)) == ids
    third.end()


# --- a folder that is older than what its peers hold ----------------------------------------------


def copied(root: LatticeCursor) -> LatticeCursor:
    """Return a venue's root as it is now."""
    copy = venue_root(KEY)
    copy.set(root.get())
    return copy


def restored(copy: LatticeCursor, newest: LatticeCursor, ledger: LedgerAdapter) -> VenueLife:
    """Start a venue of a copy, which gets the newest records behind the fence."""
    later = VenueLife(copy, KEY, [EchoAdapter(), ledger], start_s=2_000)
    begin, venues = later.storage.begin, (GRID_SECTION, VENUES_KEY)

    def fenced() -> None:
        begin()
        copy.path(*venues).merge(newest.path(*venues).get())

    later.storage.begin = fenced  # type: ignore[method-assign]
    later.run(later.runner.start())
    later.pass_ms(5_000)
    return later


@pytest.mark.parametrize("op", ["retry", "check", "fail", "pure"])
def test_a_restored_folder_repeats_no_job_that_has_ended_since(op: str) -> None:
    root, ledger = venue_root(KEY), LedgerAdapter()
    life = VenueLife(root, KEY, [EchoAdapter(), ledger])
    life.run(life.runner.start())
    record = life.run(life.runner.invoke(f"v/ops/ledger/{op}", {"ask": "go?"}, ALICE))
    id = bytes.fromhex(str(record["id"]))
    life.pass_ms(100)
    waiting = copied(root)
    life.run(life.runner.message(id, "go", ALICE))
    started = copied(root)
    life.pass_ms(100)
    ended, effects, runs = found(life, id), list(ledger.effects), dict(ledger.runs)
    assert ended["status"] == "COMPLETE"
    life.end()
    for copy in (waiting, started):
        later = restored(copy, root, ledger)
        assert found(later, id) == ended
        assert (ledger.effects, dict(ledger.runs)) == (effects, runs)
        assert later.storage.private() == ({}, {})
        later.end()


def test_a_scheduled_call_that_has_fired_since_does_not_fire_again() -> None:
    root, ledger = venue_root(KEY), LedgerAdapter()
    life = VenueLife(root, KEY, [EchoAdapter(), ledger])
    life.run(life.runner.start())
    soon = life.clock.now_ms() + 1_000
    life.run(life.runner.schedule("v/ops/ledger/retry", {}, soon, ALICE))
    copy = copied(root)
    life.pass_ms(2_000)
    [id] = life.run(life.runner.jobs(ALICE))
    life.end()
    later = restored(copy, root, ledger)
    assert later.run(later.runner.jobs(ALICE)) == [id]
    assert len(ledger.effects) == 1
    assert later.storage.private() == ({}, {})
    later.end()


def test_a_restored_parent_finds_the_children_that_have_ended_since() -> None:
    root, ledger = venue_root(KEY), LedgerAdapter()
    life = VenueLife(root, KEY, [EchoAdapter(), ledger])
    life.run(life.runner.start())
    parts: Json = [{}, {"ms": 60_000}]
    life.run(life.runner.invoke("v/ops/ledger/parent", {"parts": parts}, ALICE))
    copy = copied(root)
    life.pass_ms(1_000)
    assert len(ledger.effects) == 2
    life.end()
    later = restored(copy, root, ledger)
    later.pass_ms(1_000)
    assert len(ledger.effects) == 2
    first, *_ = (cell_json(record).get("output") for _, record in later.storage.jobs().entries())
    assert first == [
        {"status": "COMPLETE", "error": ""},
        {"status": "FAILED", "error": "interrupted: this node does not have its input"},
    ]
    later.end()


@pytest.mark.parametrize("status", [S.PENDING, S.STARTED, S.PAUSED, S.INPUT_REQUIRED])
def test_a_live_job_that_came_after_the_copy_ends_as_failed(status: JobStatus) -> None:
    case = Case("pure", status, is_orphan=True)
    life = case.start()
    told = found(life, case.id)
    assert (told["status"], told["error"]) == (
        "FAILED",
        "interrupted: this node does not have its input",
    )
    life.end()


# --- while the node may not write -----------------------------------------------------------------


def test_calls_wait_for_the_fence_and_then_have_its_error() -> None:
    root, ledger = venue_root(KEY), LedgerAdapter()
    life = VenueLife(root, KEY, [ledger])
    begin, is_open = life.storage.begin, False

    def refused() -> None:
        if not is_open:
            raise Unfenced("no peer was asked")
        begin()

    life.storage.begin = refused  # type: ignore[method-assign]

    async def work() -> dict[str, Any]:
        nonlocal is_open
        starting = asyncio.ensure_future(life.runner.start_when_allowed())
        for _ in range(2):
            with pytest.raises(Unfenced, match="no peer was asked"):
                await life.runner.invoke("v/ops/ledger/pure", {}, ALICE)
        assert await life.runner.jobs(ALICE) == []
        assert list(life.runner.operations())
        is_open = True
        await starting
        record = await life.runner.invoke("v/ops/ledger/pure", {}, ALICE)
        done: dict[str, Any] = cell_json(
            await life.runner.wait(bytes.fromhex(str(record["id"])), ALICE, 10)
        )
        return done

    assert life.run(work())["status"] == "COMPLETE"
    life.end()


# --- a crash at each commit -----------------------------------------------------------------------

CALLS: list[tuple[str, Json]] = [
    ("ledger/retry", {"ms": 5}),
    ("ledger/fail", {"ms": 5}),
    ("ledger/check", {"ms": 5}),
    ("ledger/pure", {"ms": 3}),
    ("ledger/parent", {"parts": [{"ms": 2}, {"ms": 2}]}),
]


class Ledger:
    """What the callers of a venue know: the ids that they got, and the ends that they saw."""

    def __init__(self) -> None:
        self.has_called = False
        self.answered: dict[bytes, str] = {}
        self.ended: dict[bytes, Map] = {}

    async def work(self, life: VenueLife) -> None:
        """Start the venue, make the calls once, and wait for every job."""
        runner = life.runner
        await runner.start()
        if not self.has_called:
            self.has_called = True
            now = life.clock.now_ms()
            await runner.schedule("v/ops/echo/back", "later", now + 8, ALICE)
            await asyncio.gather(*(self._call(life, op, input) for op, input in CALLS))
        for id in list(self.answered):
            self._note(id, await runner.wait(id, ALICE, 100))

    async def _call(self, life: VenueLife, op: str, input: Json) -> None:
        record = await life.runner.invoke(f"v/ops/{op}", input, ALICE)
        id = bytes.fromhex(str(record["id"]))
        self.answered[id] = op
        self._note(id, await life.runner.wait(id, ALICE, 100))

    def _note(self, id: bytes, record: Map) -> None:
        if JobStatus(str(record["status"])).is_terminal:
            # A job never ends twice.
            assert self.ended.setdefault(id, record) == record


def lived(root: LatticeCursor, ledger: LedgerAdapter, callers: Ledger, **how: Any) -> int:
    life = VenueLife(root, KEY, [EchoAdapter(), ledger], **how)
    try:
        life.run(callers.work(life))
        life.pass_ms(100)
        life.run(life.runner.close(1.0))
    except VenueCrashed:
        pass
    life.end()
    return life.commits


COMMITS = lived(venue_root(KEY), LedgerAdapter(), Ledger())


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("crash_at", range(1, COMMITS + 1))
def test_a_crash_at_any_commit_leaves_each_job_one_legal_end(crash_at: int, is_after: bool) -> None:
    root, ledger, callers = venue_root(KEY), LedgerAdapter(), Ledger()
    lived(root, ledger, callers, crash_at=crash_at, is_after=is_after)
    lived(root, ledger, callers, start_s=2_000)
    storage = GridJobs(root, KEY)
    times = Counter(ledger.effects)
    for id, record in storage.jobs().entries():
        assert isinstance(id, bytes)
        assert isinstance(record, Map)
        told = cell_json(record)
        assert JobStatus(told["status"]).is_terminal, told
        effects = times[effect_key(storage.did, id, "")]
        rule = told["name"]
        if told["status"] == "COMPLETE" and rule in {"retry", "fail", "check"}:
            assert effects == 1 or (rule == "retry" and effects == 2), told
        if rule in {"fail", "check"}:
            assert effects <= 1, told
        if told["status"] == "FAILED":
            assert (rule, told["error"][:11]) == ("fail", "interrupted"), told
    # What was answered is there, and its end is the one that was seen.
    for id in callers.answered:
        assert storage.jobs().get(id) == callers.ended[id]
    outputs = [cell_json(record).get("output") for _, record in storage.jobs().entries()]
    assert outputs.count("later") <= 1
    assert storage.private() == ({}, {})


def test_the_crashes_are_many() -> None:
    assert COMMITS >= 10
