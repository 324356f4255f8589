"""Rows of the benchmark that measure the venue: jobs that are durable, in a folder on disk.

- jobs: trivial jobs a second with 1, 50 and 500 callers. Each caller waits for the id, which is
  durable, then for the end, and begins its next job; beside it p99 of that time in ms, and commits
  a job.
- transition: one durable change of a live job in ms, with 10 and with 100,000 jobs in the venue.
- merge: a node whose venue has 10,000 jobs merges another venue of as many, in ms: each record of
  the other is checked. Beside it the same after 1, and after 1,000, of those jobs have changed.
- page: 100 ids of `jobs(status=COMPLETE)` in ms, at 100,000 jobs; beside it the first look.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Iterator

from figures import Row, row

import datalattice
from datalattice.apps.grid import Venue
from datalattice.cells import Map
from datalattice.cli.node.commands import collect_seldom
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, did_of, root_lattice
from datalattice.service.venue import (
    GridJobs,
    JobBatch,
    JobCaller,
    JobPages,
    JobStatus,
    PrivatePart,
    VenueRunner,
)
from datalattice.testing.venue_kit import EchoAdapter

FILL = 5_000
PAGE = 100


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows."""
    for callers, count in ((1, 300), (50, 3_000), (500, 5_000)):
        yield _jobs(callers, count // 3 if quick else count)
    yield _merge(2_000 if quick else 10_000)
    many = 20_000 if quick else 100_000
    few_ms, _ = _transition(10)
    many_ms, pages = _transition(many)
    yield row(f"venue-transition {many}", many_ms, "ms", {"10 jobs": few_ms})
    yield pages


def _jobs(callers: int, count: int) -> Row:
    """Return the row of jobs, with the collector as a daemon has it."""
    steps = gc.get_threshold()
    try:
        with tempfile.TemporaryDirectory() as folder, datalattice.open(folder) as node:
            collect_seldom()
            return asyncio.run(_called(GridJobs.of_node(node), callers, count))
    finally:
        gc.set_threshold(*steps)  # the other rows have the collector as Python sets it
        gc.unfreeze()


async def _called(storage: GridJobs, callers: int, count: int) -> Row:
    runner = VenueRunner(storage, [EchoAdapter()])
    await runner.start()
    took: list[float] = []
    left = count
    commits = 0
    write = storage.write

    def counted(batch: JobBatch) -> None:
        nonlocal commits
        commits += 1
        write(batch)

    storage.write = counted  # type: ignore[method-assign]

    async def call(number: int) -> None:
        nonlocal left
        caller = JobCaller(f"did:key:z6Mk{number}")
        while left > 0:
            left -= 1
            begun = time.perf_counter()
            record = await runner.invoke("v/ops/echo/back", {"n": left}, caller)
            done = await runner.wait(bytes.fromhex(str(record["id"])), caller, 60)
            assert done["status"] == "COMPLETE"
            took.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(*(call(number) for number in range(callers)))
    seconds = time.perf_counter() - begun
    await runner.close()
    p99 = statistics.quantiles(took, n=100)[98] * 1_000
    beside = {"p99_ms": p99, "commits_a_job": commits / len(took)}
    return row(f"venue-jobs {callers}", len(took) / seconds, "jobs/s", beside)


def _transition(count: int) -> tuple[float, Row]:
    """Return the time of a durable change of a live job in ms, and the row of pages."""
    with tempfile.TemporaryDirectory() as folder, datalattice.open(folder) as node:
        storage = GridJobs.of_node(node)
        for start in range(0, count, FILL):
            numbers = range(start, min(start + FILL, count))
            storage.write(JobBatch({_id(n): _record(n, JobStatus.COMPLETE) for n in numbers}))
        live, took = _id(count), []
        for turn in range(100):
            record = _record(count, JobStatus.STARTED).put("updated", turn)
            batch = JobBatch({live: record}, {live: PrivatePart(attempt=turn).cell()})
            begun = time.perf_counter()
            storage.write(batch)
            took.append(time.perf_counter() - begun)
        pages = JobPages(storage)
        begun = time.perf_counter()
        assert len(pages.page(None, JobStatus.COMPLETE, None, PAGE)) == min(PAGE, count)
        first_ms = (time.perf_counter() - begun) * 1_000
        looks = []
        # A job changes before each look, so that no look finds the answer to the last one.
        for turn in range(20):
            storage.write(JobBatch({live: _record(count, JobStatus.STARTED).put("updated", -turn)}))
            begun = time.perf_counter()
            pages.page(None, JobStatus.COMPLETE, None, PAGE)
            looks.append(time.perf_counter() - begun)
        beside = {"first_look_ms": first_ms}
        return _median_ms(took), row(f"venue-page {count}", _median_ms(looks), "ms", beside)


def _merge(count: int) -> Row:
    """Return the time that two nodes with venues of `count` jobs take to merge in memory."""
    keys = [KeyPair(bytes([seed]) * 32) for seed in (1, 2)]
    here, there = (_root(key) for key in keys)
    for root, key in zip((here, there), keys, strict=True):
        GridJobs(root, key).write(JobBatch(dict(_finished(count))))
    took = []
    # First all is new; then the venues differ in one job, then in a tenth of them.
    for changed in (0, 1, count // 10):
        if changed:
            ids = {
                _id(n): _record(n, JobStatus.COMPLETE).put("updated", 2**41) for n in range(changed)
            }
            GridJobs(there, keys[1]).write(JobBatch(ids))
        newest = there.get()
        begun = time.perf_counter()
        here.merge(newest)
        took.append((time.perf_counter() - begun) * 1_000)
    merged = Venue.at(here, did_of(keys[1].public_key))
    assert merged.job(_id(0)) == Venue.at(there, keys[1].public_key).job(_id(0))
    peers = {"1 job apart": took[1], f"{count // 10} jobs apart": took[2]}
    return row(f"venue-merge {count}", took[0], "ms", peers)


def _root(key: KeyPair) -> RootLattice:
    lattice = root_lattice()
    return RootLattice(lattice, lattice.zero(), MergeContext(key_pair=key))


def _finished(count: int) -> Iterator[tuple[bytes, Map]]:
    return ((_id(n), _record(n, JobStatus.COMPLETE)) for n in range(count))


def _median_ms(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1_000


def _id(number: int) -> bytes:
    return (1_700_000_000_000 + number).to_bytes(6, "big") + number.to_bytes(10, "big")


def _record(number: int, status: JobStatus) -> Map:
    return Map.of(
        {
            "id": _id(number).hex(),
            "status": status.value,
            "created": 1_700_000_000_000 + number,
            "updated": 1_700_000_000_000 + number,
            "op": "ab" * 32,
            "opName": "v/ops/echo/back",
            "name": "Back",
            "input": {"n": number},
            "output": {"n": number},
            "caller": f"did:key:z6Mk{number % 50}",
        }
    )
