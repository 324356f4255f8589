"""Runner: what a caller sees of a job, on virtual time over a venue in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from datalattice.apps.grid import JOB_TIME_MAX, Venue, job_status
from datalattice.cells import Map
from datalattice.crypto import KeyPair
from datalattice.errors import (
    Backpressure,
    Conflict,
    DataLatticeError,
    Draining,
    IdentityCloned,
    LimitExceeded,
    NoSuchPath,
    RequestReused,
    StoreFull,
    Unauthorized,
    Unavailable,
    UsageError,
)
from datalattice.service.venue import (
    JSON_BYTES_MAX,
    JobCaller,
    JobContext,
    JobStatus,
    Json,
    OperationMetadata,
    PlainAdapter,
    VenueLimits,
    VenueOperation,
    cell_json,
    job_of_call,
    time_of_call,
)
from datalattice.testing.venue_kit import EchoAdapter, LedgerAdapter, VenueLife, venue_root

KEY = KeyPair(bytes(range(32)))
ALICE, BOB = JobCaller("did:key:z6MkAlice"), JobCaller("did:key:z6MkBob")
ADMIN = JobCaller("did:key:z6MkAdmin", sees_all=True)
S = JobStatus


@pytest.fixture
def ledger() -> LedgerAdapter:
    return LedgerAdapter()


@pytest.fixture
def life(ledger: LedgerAdapter) -> Iterator[VenueLife]:
    one = VenueLife(
        venue_root(KEY),
        KEY,
        [EchoAdapter(), ledger],
        limits=VenueLimits(caller_jobs=3, jobs=5, queued=2, scheduled=2),
    )
    one.run(one.runner.start())
    yield one
    one.end()


def ident(record: Map) -> bytes:
    return bytes.fromhex(str(record["id"]))


def begin(life: VenueLife, op: str, input: Json, caller: JobCaller = ALICE, **more: Any) -> bytes:
    return ident(life.run(life.runner.invoke(f"v/ops/{op}", input, caller, **more)))


def end_of(life: VenueLife, id: bytes) -> dict[str, Any]:
    found: dict[str, Any] = cell_json(life.run(life.runner.wait(id, ADMIN, 100)))
    return found


def status(life: VenueLife, id: bytes) -> str:
    return str(life.run(life.runner.get(id, ADMIN))["status"])


def until(life: VenueLife, id: bytes, wanted: JobStatus) -> None:
    life.until(lambda: status(life, id) == wanted)


def test_a_job_is_durably_pending_before_its_id_is_known_and_ends_with_its_output(
    life: VenueLife,
) -> None:
    record = life.run(life.runner.invoke("v/ops/echo/back", {"a": [1, None, 2.5]}, ALICE))
    id = ident(record)
    assert life.storage.job(id) is not None
    done = end_of(life, id)
    assert done["status"] == "COMPLETE"
    assert done["output"] == done["input"] == {"a": [1, None, 2.5]}
    assert done["caller"] == ALICE.did
    assert (done["opName"], done["name"]) == ("v/ops/echo/back", "Back")
    assert done["updated"] >= done["created"]
    assert cell_json(life.storage.job(id)) == done
    # Nothing private is left of a job that has ended, and the grid is as it must be.
    assert life.storage.private() == ({}, {})


def test_the_state_is_a_valid_grid(life: VenueLife) -> None:
    end_of(life, begin(life, "echo/back", {}))
    venue = life.storage._venue
    assert venue.verify() == ([], [])
    other = Venue.create(KeyPair(bytes(32)))
    report = other.merge(venue.grid)
    assert report.changed == (life.runner.did,)
    assert not report.rejected


def test_an_operation_is_named_by_its_asset_too(life: VenueLife) -> None:
    asset = end_of(life, begin(life, "echo/back", {}))["op"]
    for form in (asset, f"0x{asset}", f"a/{asset}", f"{life.runner.did}/a/{asset}"):
        record = life.run(life.runner.invoke(form, {}, ALICE))
        assert "opName" not in record
        assert record["op"] == asset


@pytest.mark.parametrize(
    ("reference", "error"),
    [
        ("v/ops/none/such", NoSuchPath),
        ("echo:back", UsageError),
        ("ab" * 32, NoSuchPath),
        ("did:key:z6MkOther/v/ops/echo/back", UsageError),
        ("", UsageError),
    ],
)
def test_a_reference_that_means_nothing_is_refused_before_there_is_a_job(
    life: VenueLife, reference: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match="operation"):
        life.run(life.runner.invoke(reference, {}, ALICE))
    assert life.run(life.runner.jobs(ADMIN)) == []


@pytest.mark.parametrize(
    "metadata",
    [
        '{"name":"no operation"}',
        '{"operation":{"adapter":"unknown:one"}}',
        '{"operation":{"adapter":"echo:back","recover":"maybe"}}',
    ],
)
def test_an_asset_that_is_no_operation_here_is_refused(life: VenueLife, metadata: str) -> None:
    asset = life.storage.register(metadata)
    with pytest.raises(UsageError, match="operation"):
        life.run(life.runner.invoke(asset.hex(), {}, ALICE))


def test_an_input_is_refused_by_the_adapter_or_for_what_it_is(life: VenueLife) -> None:
    with pytest.raises(UsageError, match="`text`"):
        begin(life, "echo/fail", {})
    with pytest.raises(UsageError, match="input is not JSON"):
        begin(life, "echo/back", float("nan"))
    with pytest.raises(LimitExceeded, match="input: at most"):
        begin(life, "echo/back", "x" * (JSON_BYTES_MAX - 1))
    end_of(life, begin(life, "echo/back", "x" * (JSON_BYTES_MAX - 2)))
    assert len(life.run(life.runner.jobs(ADMIN))) == 1


def test_a_failure_says_why(life: VenueLife) -> None:
    done = end_of(life, begin(life, "echo/fail", {"text": "no luck"}))
    assert (done["status"], done["error"]) == ("FAILED", "no luck")
    done = end_of(life, begin(life, "ledger/parent", {"parts": 1}))
    assert (done["status"], done["error"]) == ("FAILED", "AssertionError")


def test_secrets_are_hidden_in_records_and_the_adapter_sees_them(life: VenueLife) -> None:
    id = begin(life, "ledger/secret", {"pin": "1234"})
    done = end_of(life, id)
    assert done["input"]["pin"] == done["output"]["pin"] == "HIDDEN"


def test_a_job_is_its_callers(life: VenueLife) -> None:
    id = begin(life, "ledger/pure", {"ms": 50})
    runner = life.runner
    for call in (
        runner.get(id, BOB),
        runner.wait(id, BOB, 1),
        runner.cancel(id, BOB),
        runner.pause(id, BOB),
        runner.resume(id, BOB),
        runner.message(id, 1, BOB),
        runner.delete(id, BOB),
    ):
        with pytest.raises(Unauthorized):
            life.run(call)
    assert life.run(runner.jobs(BOB)) == []
    assert life.run(runner.jobs(ALICE)) == life.run(runner.jobs(ADMIN)) == [id]
    assert end_of(life, id)["status"] == "COMPLETE"
    with pytest.raises(Unauthorized):
        life.run(runner.get(id, BOB))


def test_an_unknown_job_is_told_as_such(life: VenueLife) -> None:
    for call in (life.runner.get(b"1" * 16, ADMIN), life.runner.cancel(b"1" * 16, ADMIN)):
        with pytest.raises(NoSuchPath, match="31" * 16):
            life.run(call)


def test_cancel_ends_the_job_tells_the_adapter_and_changes_nothing_afterwards(
    life: VenueLife, ledger: LedgerAdapter
) -> None:
    id = begin(life, "ledger/fail", {"ms": 1_000})
    until(life, id, S.STARTED)
    record = life.run(life.runner.cancel(id, ALICE))
    assert (record["status"], record["error"]) == ("CANCELLED", "cancelled by its caller")
    assert life.run(life.runner.cancel(id, ALICE)) == record
    life.pass_ms(2000)
    assert ledger.cancelled == [id]
    assert status(life, id) == "CANCELLED"
    for call in (life.runner.pause(id, ALICE), life.runner.message(id, 1, ALICE)):
        with pytest.raises(Conflict, match="ended"):
            life.run(call)


class Stubborn(PlainAdapter):
    """Goes on when it is cancelled."""

    name = "stubborn"

    def operations(self) -> Sequence[VenueOperation]:
        return [VenueOperation("stubborn/x", {"operation": {"adapter": "stubborn:x"}})]

    async def run(self, job: JobContext, meta: OperationMetadata, input: Json) -> Json:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "too late"


def test_a_result_that_comes_late_is_dropped_and_counted() -> None:
    life = VenueLife(venue_root(KEY), KEY, [Stubborn()])
    life.run(life.runner.start())
    id = begin(life, "stubborn/x", {})
    until(life, id, S.STARTED)
    life.run(life.runner.cancel(id, ALICE))
    life.pass_ms(10)
    assert life.runner.late_results == 1
    assert "output" not in life.run(life.runner.get(id, ALICE))
    life.end()


def test_pause_stops_the_work_and_resume_runs_it_again(
    life: VenueLife, ledger: LedgerAdapter
) -> None:
    id = begin(life, "ledger/pure", {"ms": 1_000})
    until(life, id, S.STARTED)
    with pytest.raises(Conflict, match="STARTED"):
        life.run(life.runner.resume(id, ALICE))
    assert life.run(life.runner.pause(id, ALICE))["status"] == "PAUSED"
    with pytest.raises(Conflict, match="PAUSED"):
        life.run(life.runner.pause(id, ALICE))
    life.pass_ms(5000)
    assert status(life, id) == "PAUSED"
    assert life.run(life.runner.resume(id, ALICE))["status"] == "STARTED"
    assert end_of(life, id)["status"] == "COMPLETE"
    assert ledger.runs[id] == 2


def test_a_question_waits_for_its_answer(life: VenueLife) -> None:
    id = begin(life, "ledger/pure", {"ask": "which?"})
    until(life, id, S.INPUT_REQUIRED)
    assert life.run(life.runner.get(id, ALICE))["message"] == "which?"
    assert life.run(life.runner.message(id, {"n": 1}, ALICE)) == 0
    assert end_of(life, id)["output"]["answer"] == {"n": 1}


def test_messages_wait_in_order_up_to_a_limit(life: VenueLife) -> None:
    id = begin(life, "ledger/pure", {"ask": "which?", "ms": 0})
    life.run(life.runner.pause(id, ALICE))
    assert life.run(life.runner.message(id, "first", ALICE)) == 1
    assert life.run(life.runner.message(id, "second", ALICE)) == 2
    with pytest.raises(Backpressure, match="2 messages"):
        life.run(life.runner.message(id, "third", ALICE))
    life.run(life.runner.resume(id, ALICE))
    assert end_of(life, id)["output"]["answer"] == "first"


def test_a_job_that_takes_too_long_times_out(life: VenueLife, ledger: LedgerAdapter) -> None:
    id = begin(life, "ledger/fail", {"ms": 10_000}, timeout_ms=500)
    done = end_of(life, id)
    assert (done["status"], done["error"]) == ("TIMEOUT", "the timeout of the job was over")
    assert 500 <= done["updated"] - done["created"] < 600
    life.pass_ms(1000)
    assert ledger.cancelled == [id]
    with pytest.raises(UsageError, match="timeout_ms: 1 or more"):
        begin(life, "echo/back", {}, timeout_ms=0)


def test_waiting_has_a_limit_that_changes_nothing(life: VenueLife) -> None:
    id = begin(life, "ledger/pure", {"ms": 1_000})
    assert life.run(life.runner.wait(id, ALICE, 0.1))["status"] == "STARTED"
    assert life.run(life.runner.wait(id, ALICE, 5))["status"] == "COMPLETE"


def test_a_deleted_job_is_cancelled_and_shown_no_more(life: VenueLife) -> None:
    id = begin(life, "ledger/pure", {"ms": 1_000})
    other = begin(life, "echo/back", {})
    life.run(life.runner.delete(id, ALICE))
    with pytest.raises(NoSuchPath):
        life.run(life.runner.get(id, ALICE))
    assert life.run(life.runner.jobs(ALICE)) == [other]
    assert life.storage.jobs().get(id) is not None


def test_too_many_live_jobs_are_refused_and_ended_ones_make_room(life: VenueLife) -> None:
    mine = [begin(life, "ledger/pure", {"ms": 1_000}) for _ in range(3)]
    with pytest.raises(Backpressure, match=f"3 jobs of {ALICE.did}"):
        begin(life, "echo/back", {})
    for _ in range(2):
        begin(life, "ledger/pure", {"ms": 1_000}, BOB)
    with pytest.raises(Backpressure, match="5 jobs of this venue"):
        begin(life, "echo/back", {}, ADMIN)
    end_of(life, mine[-1])
    begin(life, "echo/back", {})


def test_pages_are_newest_first_by_caller_and_status(life: VenueLife) -> None:
    ids = []
    for _ in range(5):
        ids.append(begin(life, "echo/back", {}))
        end_of(life, ids[-1])
    running = begin(life, "ledger/pure", {"ms": 100})
    until(life, running, S.STARTED)
    jobs = life.runner.jobs
    assert life.run(jobs(ALICE)) == [running, *reversed(ids)]
    assert life.run(jobs(ALICE, status=S.COMPLETE, count=2)) == [ids[4], ids[3]]
    assert life.run(jobs(ALICE, status=S.COMPLETE, before=ids[3], count=2)) == [ids[2], ids[1]]
    assert life.run(jobs(ALICE, status=S.STARTED)) == [running]
    end_of(life, running)
    assert life.run(jobs(ALICE, status=S.STARTED)) == []
    with pytest.raises(UsageError, match="count: 1 to 1000"):
        life.run(jobs(ALICE, count=0))
    assert len(life.run(jobs(ALICE, count=1_000))) == 6
    with pytest.raises(LimitExceeded, match="count"):
        life.run(jobs(ALICE, count=1_001))


def test_a_call_that_is_repeated_with_its_id_makes_one_job(life: VenueLife) -> None:
    async def twice() -> list[Map]:
        calls = [
            life.runner.invoke("v/ops/echo/back", {"n": 1}, ALICE, request_id="a") for _ in range(2)
        ]
        return list(await asyncio.gather(*calls))

    first, second = life.run(twice())
    assert first["id"] == second["id"]
    end_of(life, ident(first))
    life.pass_ms(1_000)
    assert begin(life, "echo/back", {"n": 1}, request_id="a") == ident(first)
    with pytest.raises(RequestReused):
        begin(life, "echo/back", {"n": 2}, request_id="a")
    other = begin(life, "echo/back", {"n": 1}, BOB, request_id="a")
    assert other != ident(first)
    begin(life, "echo/back", {"n": 1}, request_id="x" * 255)
    for wrong in ("", "x" * 256):
        with pytest.raises(UsageError, match="request_id: 1 to 255"):
            begin(life, "echo/back", {"n": 1}, request_id=wrong)
    life.pass_ms(24 * 3_600_000)
    assert begin(life, "echo/back", {"n": 1}, request_id="a") != ident(first)
    # What is over is forgotten as new calls come: the two oldest of three.
    assert len(life.storage.requests()) == 1


def test_many_jobs_share_commits(life: VenueLife) -> None:
    async def three() -> None:
        await asyncio.gather(*(life.runner.invoke("v/ops/echo/back", n, ALICE) for n in range(3)))

    before = life.commits
    life.run(three())
    assert life.commits - before == 1


def test_a_job_invokes_others_and_shows_its_progress(
    life: VenueLife, ledger: LedgerAdapter
) -> None:
    id = begin(life, "ledger/parent", {"parts": [{}, {"fail": "broken"}]})
    done = end_of(life, id)
    assert done["output"] == [
        {"status": "COMPLETE", "error": ""},
        {"status": "FAILED", "error": "broken"},
    ]
    assert done["message"] == "2 done"
    assert len(ledger.effects) == 2
    assert len(life.run(life.runner.jobs(ALICE))) == 3


def test_the_end_of_a_job_ends_those_that_it_invoked(life: VenueLife) -> None:
    id = begin(life, "ledger/parent", {"parts": [{"ms": 10_000}]})
    life.pass_ms(100)
    life.run(life.runner.cancel(id, ALICE))
    life.pass_ms(100)
    child = next(job for job in life.run(life.runner.jobs(ALICE)) if job != id)
    done = end_of(life, child)
    assert done["status"] == "CANCELLED"
    assert "invoked" in done["error"]


def test_a_failing_disk_holds_answers_back_and_refuses_new_calls(life: VenueLife) -> None:
    life.failures = [StoreFull("the disk is full")] * 3

    call = life.loop.create_task(life.runner.invoke("v/ops/echo/back", 1, ALICE))
    life.until(lambda: bool(life.runner.failure))
    with pytest.raises(Unavailable, match="the disk is full"):
        begin(life, "echo/back", 2)
    assert not call.done()
    life.until(call.done)
    assert end_of(life, ident(call.result()))["output"] == 1
    assert life.runner.failure == ""


@pytest.mark.parametrize("error", [UsageError, IdentityCloned])
def test_an_error_that_time_does_not_mend_reaches_the_caller(
    life: VenueLife, error: type[DataLatticeError]
) -> None:
    for _ in range(5):  # more often than a caller may have jobs: none of these counts as live
        life.failures = [error("it is so")]
        with pytest.raises(error, match="it is so"):
            begin(life, "echo/back", 1)
        assert "it is so" in life.runner.failure
    assert end_of(life, begin(life, "echo/back", 1))["output"] == 1
    assert life.runner.failure == ""


def test_watchers_are_woken_by_durable_changes_alone(life: VenueLife) -> None:
    id = begin(life, "ledger/pure", {"ms": 100})
    seen: list[str] = []

    def look() -> None:
        record = life.storage.job(id)
        assert record is not None
        seen.append(str(record["status"]))

    life.runner.watch(id, look)
    end_of(life, id)
    assert seen == ["STARTED", "COMPLETE"]
    life.runner.watch(id, look)()


def test_a_closed_venue_refuses_calls_and_leaves_running_jobs_for_the_next_start(
    life: VenueLife,
) -> None:
    quick, slow = (
        begin(life, "ledger/pure", {"ms": 100}),
        begin(life, "ledger/pure", {"ms": 60_000}),
    )
    until(life, slow, S.STARTED)
    life.run(life.runner.close(1.0))
    assert [job_status(life.storage.jobs().get(id)) for id in (quick, slow)] == [
        "COMPLETE",
        "STARTED",
    ]
    with pytest.raises(Draining):
        begin(life, "echo/back", {})


def test_scheduled_calls_become_jobs_at_their_time(life: VenueLife) -> None:
    now, runner = life.clock.now_ms(), life.runner
    late = life.run(runner.schedule("v/ops/echo/back", 2, now + 60_000, ALICE))
    early = life.run(runner.schedule("v/ops/echo/back", 1, now + 30_000, ALICE))
    assert list(life.run(runner.scheduled(ALICE))) == [early, late]
    assert life.run(runner.scheduled(BOB)) == {}
    with pytest.raises(Backpressure, match="2 calls"):
        life.run(runner.schedule("v/ops/echo/back", 3, now, ALICE))
    with pytest.raises(NoSuchPath):
        life.run(runner.unschedule(early, BOB))
    life.pass_ms(31000)
    (id,) = life.run(runner.jobs(ALICE))
    done = end_of(life, id)
    assert done["output"] == 1
    assert 30_000 <= done["created"] - now < 30_010
    life.run(runner.unschedule(late, ALICE))
    life.pass_ms(60000)
    assert life.run(runner.jobs(ALICE)) == [id]
    with pytest.raises(UsageError, match="time"):
        life.run(runner.schedule("v/ops/echo/back", 3, -1, ALICE))
    assert life.storage.private()[1] == {}


def test_a_call_whose_time_is_over_begins_at_once_and_is_a_new_job(life: VenueLife) -> None:
    runner = life.runner
    old = begin(life, "echo/back", 0)
    handle = life.run(runner.schedule("v/ops/echo/back", 1, 0, ALICE))
    soon = life.run(runner.schedule("v/ops/echo/back", 2, None, ALICE, after_ms=20))
    life.pass_ms(15)
    assert life.run(runner.jobs(ALICE)) == [job_of_call(handle), old]
    life.pass_ms(10)
    assert life.run(runner.jobs(ALICE)) == [job_of_call(soon), job_of_call(handle), old]
    assert time_of_call(soon) - time_of_call(handle) < 30


@pytest.mark.parametrize("times", [(None, None), (0, 0)])
def test_a_scheduled_call_has_one_time(
    life: VenueLife, times: tuple[int | None, int | None]
) -> None:
    time_ms, after_ms = times
    with pytest.raises(UsageError, match="time_ms or after_ms"):
        life.run(life.runner.schedule("v/ops/echo/back", 1, time_ms, ALICE, after_ms=after_ms))
    for wrong in (-1, JOB_TIME_MAX + 1):
        with pytest.raises(UsageError, match="time: Unix milliseconds"):
            life.run(life.runner.schedule("v/ops/echo/back", 1, wrong, ALICE))


def test_a_scheduled_call_with_an_id_is_made_once(life: VenueLife) -> None:
    runner = life.runner

    def make(input: Json = 1) -> bytes:
        return life.run(
            runner.schedule("v/ops/echo/back", input, None, ALICE, after_ms=50, request_id="one")
        )

    handle = make()
    assert make() == handle
    life.pass_ms(100)
    assert make() == handle
    assert life.run(runner.jobs(ALICE)) == [job_of_call(handle)]
    with pytest.raises(RequestReused):
        make(2)
    assert life.run(runner.scheduled(ALICE)) == {}


def test_one_caller_does_not_fill_the_schedule() -> None:
    limits = VenueLimits(scheduled=3, caller_scheduled=2)
    root = venue_root(KEY)
    life = VenueLife(root, KEY, [EchoAdapter()], limits=limits)
    runner, later = life.runner, life.clock.now_ms() + 60_000
    life.run(runner.start())
    handles = [life.run(runner.schedule("v/ops/echo/back", 1, later, ALICE)) for _ in range(2)]
    with pytest.raises(Backpressure, match="2 calls of did:key:z6MkAlice"):
        life.run(runner.schedule("v/ops/echo/back", 1, later, ALICE))
    life.run(runner.schedule("v/ops/echo/back", 1, later, BOB))
    life.run(runner.unschedule(handles[0], ALICE))
    life.run(runner.schedule("v/ops/echo/back", 1, later, ALICE))
    life.end()
    again = VenueLife(root, KEY, [EchoAdapter()], limits=limits)
    again.run(again.runner.start())
    with pytest.raises(Backpressure, match="2 calls of"):
        again.run(again.runner.schedule("v/ops/echo/back", 1, later, ALICE))
    again.end()


def test_a_scheduled_call_that_may_not_run_is_a_rejected_job(life: VenueLife) -> None:
    life.run(life.runner.schedule("v/ops/echo/back", 1, life.clock.now_ms() + 1_000, ALICE))
    for _ in range(3):
        begin(life, "ledger/pure", {"ms": 5_000})
    life.pass_ms(2000)
    (id,) = life.run(life.runner.jobs(ALICE, status=S.REJECTED))
    assert "3 jobs" in end_of(life, id)["error"]
