"""Kill a venue with SIGKILL while its jobs run, many times; no answered job is lost or ends twice.

    python tests/scripts/venue_kill.py --rounds 20 --folder /path/to/an/empty/folder

Each round starts a process that opens the folder, resumes the jobs there, and makes calls. It
prints the answers, and is killed after a random number of these lines. A fifth of the jobs are
scheduled calls. The effects of the jobs are lines of a file beside the folder, outside the venue.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import datalattice
from datalattice.cells import Map
from datalattice.service.venue import (
    EffectOutcome,
    GridJobs,
    JobCaller,
    JobContext,
    JobStatus,
    Json,
    Known,
    OperationMetadata,
    PlainAdapter,
    RecoveryRule,
    VenueOperation,
    VenueRunner,
    cell_json,
    effect_key,
    job_of_call,
)
from datalattice.testing.processes import killing

CALLER = JobCaller("did:key:z6MkCaller")
ATTEMPTS = 3


class FileLedger(PlainAdapter):
    """Operations named like the rules. Each has one effect: a line in a file."""

    name = "ledger"

    def __init__(self, path: Path) -> None:
        self._path = path

    def operations(self) -> Sequence[VenueOperation]:
        return [
            VenueOperation(
                f"ledger/{rule}",
                {"name": rule.value, "operation": {"adapter": f"ledger:{rule}"}},
                recover=rule,
            )
            for rule in RecoveryRule
        ]

    async def run(self, job: JobContext, meta: OperationMetadata, input: Json) -> Json:
        assert isinstance(input, dict)
        before, after = input["before_ms"], input["after_ms"]
        assert isinstance(before, int)
        assert isinstance(after, int)
        await asyncio.sleep(before / 1_000)
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            # One write to a file opened for appending: a kill leaves a whole line or none.
            os.write(file, job.effect_key().hex().encode() + b"\n")
        finally:
            os.close(file)
        await asyncio.sleep(after / 1_000)
        return {"attempt": job.attempt}

    async def outcome(self, effect_key: bytes) -> EffectOutcome:
        had = effect_key.hex() in self.lines()
        return EffectOutcome(Known.DONE, "found") if had else EffectOutcome(Known.NONE)

    def lines(self) -> list[str]:
        return self._path.read_text().split() if self._path.exists() else []


def say(**members: str | int) -> None:
    sys.stdout.write(json.dumps(members) + "\n")
    sys.stdout.flush()


async def serve(folder: Path, jobs: int, seed: int) -> None:
    """Run the venue: resume the jobs there, make calls, and end when all jobs have ended."""
    dice = random.Random(seed)
    with datalattice.open(folder / "node") as node:
        storage = GridJobs.of_node(node)
        runner = VenueRunner(storage, [FileLedger(folder / "effects")])
        await runner.start()
        found = await asyncio.to_thread(lambda: list(storage.private()[0]))

        async def call() -> None:
            given: Json = {"before_ms": dice.randrange(100), "after_ms": dice.randrange(100)}
            operation = f"v/ops/ledger/{dice.choice(list(RecoveryRule))}"
            if not dice.randrange(5):
                after_ms = dice.randrange(200)
                handle = await runner.schedule(operation, given, None, CALLER, after_ms=after_ms)
                say(answered=job_of_call(handle).hex())
                return
            record = await runner.invoke(operation, given, CALLER)
            id = str(record["id"])
            say(answered=id)
            await ended(bytes.fromhex(id))

        async def ended(id: bytes) -> None:
            record = await runner.wait(id, CALLER, 60)
            say(ended=id.hex(), status=str(record["status"]))

        await asyncio.gather(*(ended(id) for id in found), *(call() for _ in range(jobs)))
        while any(await asyncio.to_thread(storage.private)):  # noqa: ASYNC110 - what was scheduled
            await asyncio.sleep(0.02)
        await runner.close()


@contextmanager
def child(folder: Path, jobs: int, seed: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, __file__, "--serve", "--jobs", str(jobs), "--seed", str(seed)]
    with killing(
        subprocess.Popen([*command, "--folder", folder], stdout=subprocess.PIPE, text=True)
    ) as process:
        yield process


def killed(folder: Path, jobs: int, dice: random.Random) -> list[dict[str, str]]:
    """Run a venue and kill it; return its answers."""
    with child(folder, jobs, dice.randrange(2**31)) as process:
        assert process.stdout is not None
        left, told = dice.randrange(1, 2 * jobs), []
        for line in process.stdout:
            told.append(json.loads(line))
            left -= 1
            if not left:
                process.send_signal(signal.SIGKILL)
                break
        # Lines in the pipe were printed before the kill: they are answers, too.
        told += [json.loads(line) for line in process.stdout if line.endswith("\n")]
    return told


def check(folder: Path, told: list[dict[str, str]]) -> dict[str, int]:
    """Compare the records of the venue with its answers and with the effects of its jobs."""
    counts: Counter[str] = Counter()
    with datalattice.open(folder / "node") as node:
        storage = GridJobs.of_node(node)
        records = {id: record for id, record in storage.jobs().entries() if isinstance(id, bytes)}
        assert storage.private() == ({}, {}), "every job has ended"
    times = Counter(FileLedger(folder / "effects").lines())
    for id, record in records.items():
        assert isinstance(record, Map)
        job = cell_json(record)
        status, rule = JobStatus(job["status"]), RecoveryRule(job["name"])
        effects = times[effect_key(storage.did, id, "").hex()]
        counts[f"{rule}-{status}"] += 1
        assert status in (JobStatus.COMPLETE, JobStatus.FAILED), job
        assert effects <= (ATTEMPTS if rule is RecoveryRule.RETRY else 1), (effects, job)
        assert effects >= 1 or status is JobStatus.FAILED, job
        assert status is JobStatus.COMPLETE or "interrupted" in job["error"], job
    for line in told:
        id = bytes.fromhex(line.get("answered") or line["ended"])
        assert id in records, f"{line}: it was answered and is gone"
        if "ended" in line:
            assert cell_json(records[id])["status"] == line["status"], line
    return {"jobs": len(records), "told": len(told), "effects": sum(times.values()), **counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=100, help="calls of each round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--serve", action="store_true", help="be the venue of one round")
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.folder, options.jobs, options.seed))
        return
    dice, told = random.Random(options.seed), []
    for _ in range(options.rounds):
        told += killed(options.folder, options.jobs, dice)
    with child(options.folder, 0, 0) as last:
        assert last.stdout is not None
        told += [json.loads(line) for line in last.stdout]
        last.wait()
    assert last.returncode == 0, last.returncode
    say(lost=0, **check(options.folder, told))


if __name__ == "__main__":
    main()
