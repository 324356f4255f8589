"""Where is each aircraft? A venue with the flights runs it on Spark; another one asks and verifies.

Two daemons run on this machine, each with a venue of its own. `north` has the flights of New York
in a signed queue. It publishes an operation as an asset: its steps are a job on Spark, which finds
the latest flight of each aircraft, and a query in SQL, which counts the aircraft by airport.
`south` runs that asset at north, as a job of its own, and watches it. North publishes the result as
an asset, too. All of this comes to south by replication, and there it is verified: the definition
and the result by their hashes, the job by north's signature, and the figures by an answer of plain
Python.

    python examples/fleet.py                  # or: make demo-grid
    python examples/fleet.py --flights 100000 --dir fleet-data

Run again, it continues with the present flights. The daemons end with the program.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

import datalattice
from datalattice import Node
from datalattice.actions import JobRecord
from datalattice.apps.grid import TERMINAL, Venue, check_content
from datalattice.cells import to_python
from datalattice.client import VenueClient
from datalattice.errors import DataLatticeError, OperationFailed, UsageError
from datalattice.pipeline import find_java
from flights.dataset import DataSet, read_flights

FLIGHTS: Final = 30_000
BATCH: Final = 2_000
LOOK_S: Final = 0.5
PATIENCE_S: Final = 90.0
STOP_S: Final = 60.0
SETTINGS: Final = {
    "north": """
[doors.rest]
listen = "127.0.0.1:0"

[venue]
enabled = true

[venue.sql]
enabled = true

[venue.spark]
master = "local[2]"
memory = "1g"

[venue.spark.jobs.latest]
job = "compact"
description = "Writes the latest flight of each aircraft to a database"
fixed = { topic = "flights", into_database = "latest" }
""",
    "south": """
[venue]
enabled = true

[venue.grid]
venues = {{ north = "{north}" }}
""",
}
"""The settings of each daemon: `node.toml` in its folder."""

AIRPORTS: Final = """
SELECT value->>'dest' AS airport, CAST(count(*) AS INTEGER) AS aircraft
FROM latest GROUP BY 1 ORDER BY 2 DESC, 1
"""
OPERATION: Final = {
    "name": "Aircraft by airport",
    "description": "Counts aircraft by the airport where the latest flight of each has ended",
    "operation": {
        "adapter": "orchestrator:steps",
        "steps": [
            {"name": "latest flights, on Spark", "op": "v/ops/spark/latest", "input": {}},
            {
                "name": "aircraft by airport, in SQL",
                "op": "v/ops/sql/query",
                "input": {
                    "query": ["const", AIRPORTS],
                    "tables": ["const", {"latest": {"database": "latest"}}],
                    # At most one airport for each aircraft; the reference makes this step wait for
                    # the first.
                    "maxRows": [0, "keys"],
                },
            },
        ],
        "result": {"aircraft": [0, "keys"], "airports": [1, "rows"]},
    },
}
"""The text of this operation is the asset, so its id identifies the program that was run."""

RESULT: Final = "Where the aircraft are"


class Place(NamedTuple):
    """A running daemon: the node of its folder, its DID, and socket and URL of its REST door."""

    node: Node
    did: str
    socket: str
    url: str


@contextmanager
def daemon(folder: Path, settings: str) -> Iterator[Place]:
    """Run `lattice daemon` in a folder; it ends with its standard input."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "node.toml").write_text(settings, "utf-8")
    command = [sys.executable, "-m", "datalattice.cli", "--dir", str(folder), "--json", "daemon"]
    with (folder / "daemon.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--port", "0", "--attached"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # Ctrl-C reaches only this program, which ends the daemons
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        # The greeting is one JSON document over several lines; the stream stays open after it.
        told = "".join(takewhile(lambda line: line != "}\n", process.stdout))
        if not told:
            words = Path(log.name).read_text("utf-8", "replace").splitlines()
            raise UsageError(f"a daemon did not start: {(words or ['see ' + log.name])[-1]}")
        doors = json.loads(told + "}")["doors"]
        with datalattice.open(folder) as node:
            yield Place(node, node.venue().did, str(folder / "rest.sock"), doors.get("rest", ""))
    finally:
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        # The group includes Spark's processes, which must not outlive the daemon.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


# --- north ------------------------------------------------------------------------------------


def append_flights(north: Place, data: DataSet) -> int:
    """Append the flights that the queue lacks; return their number.

    The key is the aircraft. A cancelled flight moves no aircraft, so it has no key.
    """
    queue = north.node.queue("flights")
    if len(queue) > data.count:
        raise UsageError(f"--flights is at least {len(queue)}, the flights of an earlier run")
    missing = list(rows_of(data))[len(queue) :]
    # Each batch is one signed update, so an interrupted run continues after the last whole batch.
    for at in range(0, len(missing), BATCH):
        some = missing[at : at + BATCH]
        queue.offer_many(
            [{name: row[name] for name in ("carrier", "origin", "dest")} for row in some],
            keys=[row["tailnum"] if row["air_time"] != "NA" else None for row in some],
        )
    return len(missing)


def rows_of(data: DataSet) -> Iterator[dict[str, str]]:
    """Yield the flights in the order of the file."""
    for line in data.text.splitlines()[1:]:
        yield dict(zip(data.columns, line.split(","), strict=True))


def publish_result(north: Place, job: JobRecord) -> bytes:
    """Publish the output of a job as an asset; equal results are one asset."""
    content = canonical(to_python(job.output))
    metadata = {
        "name": RESULT,
        "content": {"contentType": "application/json", "sha256": sha256(content)},
        "additionalInformation": {"operation": job.op, "venue": north.did},
    }
    venue = north.node.venue()
    # In one root: no reader sees the asset without its content.
    with north.node.batch():
        asset = venue.register(canonical(metadata))
        venue.put_content(asset, content)
    return asset


def canonical(value: object) -> bytes:
    """Return the canonical text of a JSON value, which both venues write."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sha256(data: bytes) -> str:
    """Return the hash that names an asset or a content."""
    return hashlib.sha256(data).hexdigest()


# --- south ------------------------------------------------------------------------------------


def run_at(north: Place, south: Place, operation: bytes) -> JobRecord:
    """Run an operation of north as a job of south; print its progress, and return its last record.

    Both venues have a record of the job. That of north is read from the copy that south has.
    """
    replica = south.node.venue(north.did)
    with VenueClient.connect(south.socket) as venue:
        job = venue.invoke("v/ops/grid/run", {"operation": operation.hex(), "venue": "north"})
        shown: set[str] = set()
        while job.status not in TERMINAL:
            # Returns at the next change of the job, or after LOOK_S.
            job = venue.wait(job.id, LOOK_S)
            for line in progress_of(replica, job):
                if line not in shown:
                    shown.add(line)
                    say(line)
    if job.status != "COMPLETE":
        raise OperationFailed(f"the job is {job.status}: {job.error}")
    return job


def progress_of(venue: Venue, job: JobRecord) -> list[str]:
    """Return a line for each step of the job; a step is a job, whose message is its progress."""
    record: Any = to_python(venue.job(job.remote_id)) if job.remote_id else None
    lines = []
    for step in (record or {}).get("steps") or []:
        found: Any = to_python(venue.job(step["id"])) if "id" in step else None
        message = (found or {}).get("message", "")
        lines.append(f"  {step['name']}: {step['status']} {message}".rstrip())
    return lines


def verify(south: Place, north: Place, job: JobRecord, asset: bytes, data: DataSet) -> list[str]:
    """Check the data in south's own store; return the claims that do not hold."""
    venue = south.node.venue(north.did)
    content = venue.content(asset) or b""
    metadata = venue.metadata(asset)
    record: Any = to_python(venue.job(job.remote_id))
    # In the order of the file, as the queue is, so the last flight of an aircraft stays.
    latest = {row["tailnum"]: row["dest"] for row in rows_of(data) if row["air_time"] != "NA"}
    airports = Counter(latest.values())
    ranked = sorted(airports.items(), key=lambda one: (-one[1], one[0]))
    answer = {"aircraft": len(latest), "airports": [list(one) for one in ranked]}
    text = venue.asset(asset) or ""
    checks = [
        (sha256(canonical(OPERATION)) == record["op"], "the definition has the job's hash of it"),
        (record["status"] == "COMPLETE", "the job is COMPLETE"),
        (record["caller"] == south.did, "the job is south's"),
        (canonical(record["output"]) == content, "the result is the output of the job"),
        (sha256(text.encode()) == asset.hex(), "the metadata of the result has its hash"),
        (check_content(metadata, content).hex() == sha256(content), "the result has its hash"),
        (is_refused(metadata, b" " + content[1:]), "a result with one other byte is refused"),
        (venue.verify() == ([], []), "each hash and signature of the grid is valid"),
        (canonical(answer) == content, "plain Python has the same answer"),
    ]
    for holds, words in checks:
        say(f"  {'holds' if holds else 'FAILS'}: {words}")
    return [words for holds, words in checks if not holds]


def is_refused(metadata: Any, content: bytes) -> bool:
    """Return whether the check refuses a content."""
    try:
        check_content(metadata, content)
    except UsageError:
        return True
    return False


# --- all of it --------------------------------------------------------------------------------


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def run(folder: Path, count: int) -> bool:
    """Run both venues; return whether every check holds."""
    find_java()  # fails here, with the remedy, rather than in a daemon
    data = read_flights(limit=count)
    began = time.monotonic()
    with ExitStack() as ending:
        north = ending.enter_context(daemon(folder / "north", SETTINGS["north"]))
        settings = SETTINGS["south"].format(north=north.url)
        south = ending.enter_context(daemon(folder / "south", settings))
        # One direction is enough: data flows both ways over a connection.
        ticket = north.node.ticket
        assert ticket is not None
        south.node.add_peer(ticket)
        say(f"two venues: north {north.did}, south {south.did}")
        added = append_flights(north, data)
        say(f"north appended {added:,} flights; it has {len(north.node.queue('flights')):,}")
        operation = north.node.venue().register(canonical(OPERATION))
        say(f"south runs the operation {operation.hex()} at north")
        job = run_at(north, south, operation)
        asset = publish_result(north, job)
        say(f"north publishes the result as asset {asset.hex()}; south verifies its copy")
        # The checks read south's own store, so they wait until replication has brought everything
        # there.
        south.node.wait_equal(PATIENCE_S)
        failures = verify(south, north, job, asset, data)
        output: Any = to_python(job.output)
        first = ", ".join(f"{airport} {number}" for airport, number in output["airports"][:5])
        say(f"{output['aircraft']:,} aircraft: {first}, ...")
    say(f"done in {time.monotonic() - began:.0f} s; both daemons have ended")
    return not failures


def main() -> int:
    """Run the example in a folder that is kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--flights", type=int, default=FLIGHTS, help=f"default: {FLIGHTS}")
    parser.add_argument("--dir", type=Path, default=Path("demo-grid-data"))
    given = parser.parse_args()
    if given.flights < 1:
        parser.error("--flights is 1 or more")
    try:
        return 0 if run(given.dir.absolute(), given.flights) else 1
    except DataLatticeError as error:
        print(f"fleet: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fleet: interrupted; both daemons have ended", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
