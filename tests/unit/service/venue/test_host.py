"""Host: a venue on a thread of its own, which many threads call at once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from datalattice.crypto import KeyPair
from datalattice.service.venue import (
    GridJobs,
    JobBatch,
    JobCaller,
    VenueHost,
    VenueRunner,
    cell_json,
)
from datalattice.testing.venue_kit import EchoAdapter, venue_root

KEY = KeyPair(bytes(range(32)))
ADMIN = JobCaller("did:key:z6MkAdmin", sees_all=True)
CALLERS = [JobCaller(f"did:key:z6Mk{name}") for name in "ABCD"]
THREADS, CALLS = 16, 20


def test_many_threads_submit_at_once_and_each_job_ends_once() -> None:
    storage = GridJobs(venue_root(KEY), KEY)
    ended: Counter[bytes] = Counter()
    commits = 0
    write = storage.write

    def counted(batch: JobBatch) -> None:
        nonlocal commits
        commits += 1
        ended.update(
            id for id, record in batch.records.items() if str(record["status"]) == "COMPLETE"
        )
        write(batch)

    storage.write = counted  # type: ignore[method-assign]

    def submit(number: int) -> list[dict[str, Any]]:
        caller, seen = CALLERS[number % len(CALLERS)], []
        for count in range(CALLS):
            call = host.runner.invoke("v/ops/echo/back", [number, count], caller)
            id = bytes.fromhex(str(host.call(call)["id"]))
            seen.append(cell_json(host.call(host.runner.wait(id, caller, 60))))
        return seen

    with VenueHost(lambda: VenueRunner(storage, [EchoAdapter()])) as host:
        with ThreadPoolExecutor(THREADS) as pool:
            shown = [job for jobs in pool.map(submit, range(THREADS)) for job in jobs]
        pages = {caller.did: host.call(host.runner.jobs(caller, count=1_000)) for caller in CALLERS}
        everything = host.call(host.runner.jobs(ADMIN, count=1_000))
    # Each caller got its own answers.
    assert [job["output"] for job in shown] == [
        [n, c] for n in range(THREADS) for c in range(CALLS)
    ]
    assert {job["status"] for job in shown} == {"COMPLETE"}
    assert len(everything) == len(set(everything)) == THREADS * CALLS
    assert everything == sorted(everything, reverse=True)
    for caller, ids in pages.items():
        mine = {job["id"] for job in shown if job["caller"] == caller}
        assert {id.hex() for id in ids} == mine
        assert len(mine) == THREADS * CALLS // len(CALLERS)
    assert set(ended.values()) == {1}
    assert sum(ended.values()) == THREADS * CALLS
    assert commits < 2 * THREADS * CALLS, "callers that wait share commits"
    assert storage.private() == ({}, {})
