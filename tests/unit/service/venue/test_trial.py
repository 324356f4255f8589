"""Trial: the operations for trying a venue do what they are named for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.errors import UsageError
from datalattice.service.venue import JobCaller, Json, OperationMetadata, cell_json
from datalattice.service.venue.adapters import TrialAdapter
from datalattice.testing.venue_kit import LoneJob, VenueLife, venue_root

KEY = KeyPair(bytes(range(32)))
ALICE = JobCaller("did:key:z6MkAlice")
A_DAY_MS = 24 * 3_600_000


@pytest.fixture
def life() -> Iterator[VenueLife]:
    one = VenueLife(venue_root(KEY), KEY, [TrialAdapter(SeededEntropy(1))])
    one.run(one.runner.start())
    yield one
    one.end()


def begin(life: VenueLife, name: str, input: Json) -> bytes:
    record = life.run(life.runner.invoke(f"v/ops/test/{name}", input, ALICE))
    return bytes.fromhex(str(record["id"]))


def seen(life: VenueLife, id: bytes, limit_s: float = 0.05) -> dict[str, Any]:
    found: dict[str, Any] = cell_json(life.run(life.runner.wait(id, ALICE, limit_s)))
    return found


@pytest.mark.parametrize(
    ("name", "given", "shown"),
    [
        ("echo", [1, None, "x"], {"status": "COMPLETE", "output": [1, None, "x"]}),
        ("error", {"message": "as asked"}, {"status": "FAILED", "error": "as asked"}),
        ("never", {}, {"status": "STARTED"}),
        ("ask", {"message": "how many?"}, {"status": "INPUT_REQUIRED", "message": "how many?"}),
        ("delay", {"delay": 49_000}, {"status": "STARTED"}),
        ("delay", {"delay": 0}, {"status": "COMPLETE", "output": None}),
    ],
)
def test_a_test_operation_does_what_it_is_named_for(
    life: VenueLife, name: str, given: Json, shown: dict[str, Json]
) -> None:
    found = seen(life, begin(life, name, given))
    assert {member: found.get(member) for member in shown} == shown


def test_an_answer_is_what_ask_returns(life: VenueLife) -> None:
    id = begin(life, "ask", {"message": "how many?"})
    life.until(lambda: seen(life, id)["status"] == "INPUT_REQUIRED")
    life.run(life.runner.message(id, 3, ALICE))
    assert seen(life, id)["output"] == 3


def test_a_delay_runs_an_operation_afterwards(life: VenueLife) -> None:
    late = begin(life, "delay", {"delay": 5_000, "operation": "v/ops/test/echo", "input": 7})
    assert seen(life, late, 4.9)["status"] == "STARTED"
    assert seen(life, late, 0.0)["input"]["input"] == "HIDDEN"  # it may have a secret
    assert seen(life, late, 1.0)["output"] == 7
    bad: Json = {"delay": 0, "operation": "v/ops/test/error", "input": {"message": "no"}}
    assert seen(life, begin(life, "delay", bad))["error"] == "v/ops/test/error is FAILED: no"


def test_a_delay_is_cancelled_with_what_it_would_run(life: VenueLife) -> None:
    waits = begin(life, "delay", {"delay": 60_000, "operation": "v/ops/test/echo"})
    runs = begin(life, "delay", {"delay": 0, "operation": "v/ops/test/never", "input": {}})
    life.pass_ms(50)
    (inner,) = set(life.run(life.runner.jobs(ALICE))) - {waits, runs}
    for id in (waits, runs):
        assert life.run(life.runner.cancel(id, ALICE))["status"] == "CANCELLED"
    life.pass_ms(120_000)
    assert seen(life, inner)["status"] == "CANCELLED"
    assert len(life.run(life.runner.jobs(ALICE))) == 3


def test_random_bytes_are_the_same_in_a_later_attempt() -> None:
    meta: OperationMetadata = {"operation": {"adapter": "test:random"}}
    first = LoneJob()
    adapter = TrialAdapter(SeededEntropy(1))
    output = asyncio.run(adapter.run(first, meta, {"length": 1_024}))
    assert isinstance(output, str)
    assert len(output) == 2_048
    later = LoneJob(attempt=2, saved=first.saved)
    assert asyncio.run(adapter.run(later, meta, {"length": 1_024})) == output
    assert asyncio.run(adapter.run(LoneJob(), meta, {"length": 1_024})) != output


@pytest.mark.parametrize(
    ("name", "given", "named"),
    [
        ("error", {}, "`message`"),
        ("error", {"message": ""}, "`message`"),
        ("ask", {"message": 7}, "`message`"),
        ("never", {"more": 1}, "unknown member 'more'; known: none"),
        ("never", None, "object"),
        ("delay", {}, "`delay`"),
        ("delay", {"delay": -1}, "`delay`"),
        ("delay", {"delay": True}, "`delay`"),
        ("delay", {"delay": A_DAY_MS + 1}, f"0 to {A_DAY_MS}"),
        ("delay", {"delay": 1, "operation": 7}, "`operation`"),
        ("random", {"length": 0}, "`length`"),
        ("random", {"length": 1_025}, "1 to 1024"),
    ],
)
def test_a_malformed_input_of_a_test_operation_makes_no_job(
    life: VenueLife, name: str, given: Json, named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        begin(life, name, given)
    assert life.run(life.runner.jobs(ALICE)) == []


def test_the_longest_delay_and_the_shortest_bytes_are_taken(life: VenueLife) -> None:
    assert seen(life, begin(life, "delay", {"delay": A_DAY_MS}))["status"] == "STARTED"
    assert len(seen(life, begin(life, "random", {"length": 1}))["output"]) == 2
