"""Run three venues in three processes: apart, joined, attacked, and with jobs at one another.

    three_venues.py [--assets 10] [--folder DIR]

Three daemons, A, B and C. Apart, each registers assets and runs jobs, and A runs a definition of C
and pins an asset of it. Once they are peers they must have one grid. A hostile node sends texts and
contents under hashes that are not theirs, and states in the names of others: A must refuse and
count them. Then A has B run jobs: the result is an asset that B has signed and A verifies, a cancel
reaches B, and both may be killed meanwhile. Prints one JSON document; exit code 0 when every check
has passed.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, TypeVar

import datalattice
from datalattice.actions import (
    AddPeer,
    CancelJob,
    GetJob,
    GetNodeHealth,
    InvokeOperation,
    JobRecord,
    ListJobIds,
    NodeHealth,
    PutPolicy,
    RightHolders,
)
from datalattice.apps.grid import Venue
from datalattice.cells import Value, from_json, to_python
from datalattice.client.rest import RestClient
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, root_lattice
from datalattice.node import open_node
from datalattice.store import MemoryStore
from datalattice.testing.ports import held_port
from datalattice.testing.venue_kit import spoil_venue

T = TypeVar("T")

WAIT_S = 60.0
AWAY_S = {"a": 60.0, "b": 60.0, "c": 1.0}
FETCH_JOBS = 3
"""How many jobs `fetch` runs."""
REFUSED = ("bad-asset", "bad-content", "bad-metadata", "bad-signature", "not-owner")

SETTINGS = """
[venue]
enabled = true
trial = true

[venue.grid]
venues = {{ {venues} }}
away_s = {away_s}
"""


class Site:
    """`lattice daemon` with a venue, which can be killed and started again at the same ports."""

    def __init__(self, folder: Path, name: str, held: ExitStack) -> None:
        self.name = name
        self.folder = folder / name
        self.node_port, self.rest_port = (held.enter_context(held_port()) for _ in range(2))
        self.url = f"http://127.0.0.1:{self.rest_port}"
        self.did_web = f"did:web:127.0.0.1%3A{self.rest_port}"
        self._process: subprocess.Popen[str] | None = None
        self.client: RestClient | None = None

    def start(self, sites: list[Site]) -> None:
        """Start it; return once it serves. sites: all of them; it may call the others."""
        self.folder.mkdir(exist_ok=True)
        listed = ", ".join(
            f'{one.name} = "{one.url}", "{one.did_web}" = "{one.url}"'
            for one in sites
            if one is not self
        )
        text = SETTINGS.format(venues=listed, away_s=AWAY_S[self.name])
        (self.folder / "node.toml").write_text(text)
        # Attached: it ends with this program, also where that is killed.
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "datalattice.cli", "--dir", str(self.folder), "--json",
                "daemon", "--port", str(self.node_port), "--attached",
                "--rest", f"127.0.0.1:{self.rest_port}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        lines = list(takewhile(lambda line: line != "}\n", self._process.stdout))
        doors = json.loads("".join([*lines, "}"]))["doors"]
        self.client = RestClient(doors["socket"])

    def end(self, number: int = signal.SIGTERM) -> None:
        """End it with a signal."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.communicate(timeout=WAIT_S)
            self._process = None
        if self.client is not None:
            self.client.close()
            self.client = None

    def call(self, request: Any) -> Any:
        """Have its owner do an action."""
        assert self.client is not None
        return self.client.call(request)

    @property
    def health(self) -> NodeHealth:
        """The health of the node."""
        found: NodeHealth = self.call(GetNodeHealth())
        return found

    @property
    def grid_hash(self) -> str:
        """The hash of its grid."""
        return str(plain(self.health.sections)[":grid"])

    def venue(self, look: Callable[[Venue], T]) -> T:
        """Return what `look` reads from its venue, in a program beside the daemon."""
        with datalattice.open(self.folder) as node:
            return look(node.venue())

    def begin(self, operation: str, given: Any, **more: Any) -> JobRecord:
        """Begin a job."""
        value = from_json(json.dumps(given))
        found: JobRecord = self.call(InvokeOperation(operation=operation, input=value, **more))
        return found

    def job(self, id: bytes) -> JobRecord:
        """Return a job."""
        found: JobRecord = self.call(GetJob(id=id))
        return found

    def ended(self, id: bytes) -> JobRecord:
        """Return a job when it has ended."""
        return until(lambda: self.job(id), lambda job: job.output is not None or job.error != "")


def plain(value: Value) -> dict[str, Any]:
    """Return a map of texts."""
    found = to_python(value)
    assert isinstance(found, dict)
    return {str(name): one for name, one in found.items()}


def until(look: Callable[[], T], is_so: Callable[[T], bool], limit_s: float = WAIT_S) -> T:
    """Call `look` until `is_so` holds for its result; return that."""
    end = time.monotonic() + limit_s
    while True:
        found = look()
        if is_so(found):
            return found
        assert time.monotonic() < end, f"not within {limit_s} s: {found!r:.500}"
        time.sleep(0.05)


# --- checks ---------------------------------------------------------------------------------------


def publish(site: Site, count: int) -> None:
    """Register assets with contents, and run jobs."""

    def register(venue: Venue) -> None:
        for number in range(count):
            content = f"{site.name} {number} ".encode() * (number + 1)
            digest = hashlib.sha256(content).hexdigest()
            metadata = {"name": f"{site.name}-{number}", "content": {"sha256": digest}}
            venue.put_content(venue.register(json.dumps(metadata)), content)

    site.venue(register)
    for number in range(count):
        job = site.begin("v/ops/test/echo", {"n": number}, wait_ms=10_000)
        assert job.status == "COMPLETE", job


def join(sites: list[Site]) -> str:
    """Make the nodes peers in a row; return the hash of their one grid."""
    assert len({site.grid_hash for site in sites}) == len(sites), "apart, each has its own"
    for site, other in pairwise(sites):
        site.call(AddPeer(address=f"127.0.0.1:{other.node_port}"))
    hashes = until(lambda: [site.grid_hash for site in sites], lambda all_: len(set(all_)) == 1)
    return hashes[0]


def check_joined(sites: list[Site], count: int) -> dict[str, int]:
    """Check that each site has what all have published, and that all of it verifies."""
    found = []
    for site in sites:
        assert site.venue(Venue.verify) == ([], []), site.name
        found.append(
            site.venue(
                lambda venue: {
                    did: (len(venue.assets(did)), len(venue.jobs(did, status="COMPLETE")))
                    for did in venue.view()
                }
            )
        )
        assert not set(REFUSED) & set(plain(site.health.counters))
    assert found[0] == found[1] == found[2], found
    assert len(found[0]) == 3
    assets, jobs = (sum(numbers) for numbers in zip(*found[0].values(), strict=True))
    assert jobs == 3 * count + FETCH_JOBS
    return {"assets": assets, "jobs": jobs}


def attack(site: Site, others: list[Site]) -> list[str]:
    """Have a hostile node sync with a site; return the refusals that the site has counted."""
    key_pair = KeyPair.generate()
    keys = [one.health.owner for one in others]
    before = site.venue(lambda venue: venue.view())

    async def talk() -> list[str]:
        store = MemoryStore()
        root = RootLattice(root_lattice(), None, MergeContext(key_pair=key_pair), strict=False)
        hostile = Venue.at(root, key_pair)
        honest = hostile.register('{"name":"honest"}')
        spoil_venue(hostile, key_pair, [keys[0] or b""], keys[1] or b"")
        store.commit(root.get())
        async with open_node(store, key_pair=key_pair, config=NodeConfig(port=0)) as node:
            node.add_peer(f"127.0.0.1:{site.node_port}")
            counted = await asyncio.to_thread(
                until,
                lambda: set(REFUSED) & set(plain(site.health.counters)),
                lambda seen: len(seen) == len(REFUSED),
            )
            # Correct data of the same node is accepted.
            text = await asyncio.to_thread(site.venue, lambda venue: venue.asset(honest))
            assert text == '{"name":"honest"}'
            return sorted(counted)

    counted = asyncio.run(talk())
    after = site.venue(lambda venue: venue.view())
    # What was accepted is a text by its hash, which a grid has beside the venues.
    assert after == before, "no state of a venue has changed"
    assert site.venue(Venue.verify) == ([], [])
    return counted


def fetch(here: Site, there: Site) -> None:
    """Run a definition of another venue, and pin an asset of it, while nothing replicates."""
    metadata = {"name": "ours", "operation": {"adapter": "json:merge"}}
    text = json.dumps(metadata)
    operation = there.venue(lambda venue: venue.register(text)).hex()
    given = {"values": [{"a": 1}, {"b": 2}]}
    job = here.ended(here.begin(f"{there.did_web}/a/{operation}", given).id)
    assert (job.status, job.op) == ("COMPLETE", operation), job
    assert here.venue(lambda venue: venue.asset(operation)) == text
    named = here.ended(here.begin(f"{there.did_web}/v/ops/json/merge", given).id)
    assert (named.status, named.op_name) == ("COMPLETE", f"{there.did_web}/v/ops/json/merge")
    asset = there.venue(lambda venue: next(filter(venue.has_content, venue.assets(venue.did))))
    pin = here.begin("v/ops/asset/pin", {"asset": f"{there.did_web}/a/{asset.hex()}"})
    assert here.ended(pin.id).status == "COMPLETE", here.job(pin.id)
    content = here.venue(lambda venue: venue.content(asset))
    assert content is not None
    assert content == there.venue(lambda venue: venue.content(asset))


def run_there(here: Site, there: Site) -> str:
    """Have another venue run a job that makes an asset there; return the asset's content."""
    did = here.venue(lambda venue: venue.did)
    # "Whoever may list and download"; to register is a right that the other venue gives.
    there.call(PutPolicy(scope="venue/assets", rights=(RightHolders(right="w", who=(did,)),)))
    made = {"metadata": {"name": "result"}, "content": "made there"}
    given = {"operation": "v/ops/asset/store", "input": made, "venue": there.name}
    job = here.ended(here.begin("v/ops/grid/run", given).id)
    assert job.status == "COMPLETE", job
    assert job.venue == there.url
    other = there.venue(lambda venue: venue.did)
    # The record there is signed by that venue, and comes here as all of the grid does.
    signed = until(
        lambda: here.venue(lambda venue: venue.job(job.remote_id, other)),
        lambda record: record is not None and record.get("status") == "COMPLETE",
    )
    assert signed is not None
    assert signed.get("output") == job.output
    assert signed.get("caller") == did
    result = plain(job.output)
    pin = here.begin("v/ops/asset/pin", {"asset": f"{there.did_web}/a/{result['id']}"})
    assert plain(here.ended(pin.id).output) == result
    assert here.venue(Venue.verify) == ([], [])
    content = here.venue(lambda venue: venue.content(result["id"]))
    assert content is not None
    assert hashlib.sha256(content).hexdigest() == result["sha256"]
    refused = there.begin("v/ops/grid/run", {**given, "venue": here.name})
    assert "right w on venue/assets" in there.ended(refused.id).error
    return content.decode()


def cancel_there(here: Site, there: Site) -> str:
    """Cancel a job here that runs there; return the status there."""
    id = begun(here, there, "v/ops/test/never", {}).id
    remote_id = here.job(id).remote_id
    assert here.call(CancelJob(id=id)).status == "CANCELLED"
    job = until(lambda: there.job(remote_id), lambda job: job.status != "STARTED")
    return job.status


def begun(here: Site, there: Site, operation: str, given: Any) -> JobRecord:
    """Begin a job here that runs there; return it once that is known here."""
    input = {"operation": operation, "input": given, "venue": there.name}
    id = here.begin("v/ops/grid/run", input).id
    return until(lambda: here.job(id), lambda job: bool(job.remote_id) or job.error != "")


def kill_there(sites: list[Site]) -> dict[str, str]:
    """Kill the venue that runs jobs of two others, of which one waits for it only a second."""
    a, b, c = sites
    given = {"delay": 2_000, "operation": "v/ops/test/echo", "input": "done"}
    patient, other = (begun(one, b, "v/ops/test/delay", given) for one in (a, c))
    b.end(signal.SIGKILL)
    failed = c.ended(other.id)
    assert failed.status == "FAILED", failed
    assert "has not answered for 1 s" in failed.error
    refused = c.ended(begun(c, b, "v/ops/test/echo", 1).id)
    assert refused.status == "FAILED", refused
    assert "cannot be reached" in refused.error
    assert a.job(patient.id).status == "STARTED"
    b.start(sites)
    done = a.ended(patient.id)
    assert (done.status, done.output) == ("COMPLETE", "done"), done
    return {"short": failed.error, "unreached": refused.error, "patient": done.status}


def kill_here(sites: list[Site]) -> str:
    """Kill the venue whose job another one runs."""
    a, b, _ = sites
    jobs = len(b.call(ListJobIds(count=1_000)).jobs)
    given = {"delay": 1_000, "operation": "v/ops/test/echo", "input": "done"}
    job = begun(a, b, "v/ops/test/delay", given)
    a.end(signal.SIGKILL)
    a.start(sites)
    done = a.ended(job.id)
    assert (done.status, done.output, done.remote_id) == ("COMPLETE", "done", job.remote_id), done
    # The job, and the one that it invokes there.
    assert len(b.call(ListJobIds(count=1_000)).jobs) == jobs + 2, "the job was made once"
    return done.status


def check(folder: Path, count: int) -> dict[str, Any]:
    """Make all checks; return their results."""
    with ExitStack() as held:
        sites = [Site(folder, name, held) for name in "abc"]
        for site in sites:
            held.callback(site.end, signal.SIGKILL)
        for site in sites:
            site.start(sites)
            publish(site, count)
        fetch(sites[0], sites[2])
        report: dict[str, Any] = {"grid": join(sites), **check_joined(sites, count)}
        report["refused"] = attack(sites[0], sites[1:])
        report["result"] = run_there(sites[0], sites[1])
        report["cancelled"] = cancel_there(sites[0], sites[1])
        report["killed there"] = kill_there(sites)
        report["killed here"] = kill_here(sites)
        return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--assets", type=int, default=10, help="and jobs, of each venue")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        report = check(options.folder or Path(made), options.assets)
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
