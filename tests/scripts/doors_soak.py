"""Leave streams and requests of a daemon's doors unfinished; it must give back all they took.

    doors_soak.py [--seconds 600] [--seed 1] [--growth-mb 16] [--folder DIR] [--ways WAY ...]

A daemon runs on a folder. Each round opens clients at both doors and leaves them in one of these
ways: a stream that is closed, cancelled, or never read until its client goes; a request whose head
or body stops half way; a call whose client is gone before the answer. Records are offered
meanwhile, so that streams have something to say. After each round the daemon must have as many
descriptors and threads as before the first, answer a call, and have logged no error. Its own memory
(`RssAnon`) may grow by `--growth-mb`: the most of the last quarter against the most of the first.
The decoded cells that a daemon keeps, 64 MiB for the node and as much for its doors, take longer
than this to fill; here they may take so little that they are full after the first offers. The
newest part of the index grows with each offer, up to 13 MB for either, so offers are few.
Prints one JSON document; exit code 0 when all was given back.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any

from datalattice.actions import ActionRequest, FollowTopic, GetNodeStatus, OfferRecords, WatchRoot
from datalattice.client.grpc import GrpcClient
from datalattice.client.rest import RestClient

CACHE_BYTES = 1_000_000

TOGETHER = 40
"""Clients of a round."""

ROUNDS_MIN = 2

OFFER_EVERY = 4
"""Rounds from one offer to the next."""

RECORD = "x" * 4_000
SETTLE_S = 60.0
THREADS_MORE = 24  # that pools may still start; a thread for each stream would be more

Leave = Callable[["Daemon", random.Random], None]


class Daemon:
    """`lattice daemon` on a folder, with what it uses."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "daemon.log"
        command = [
            sys.executable,
            "-m",
            "datalattice.cli",
            "--dir",
            str(folder),
            "--json",
            "daemon",
        ]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--port", "0", "--attached"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"LATTICE_LIMITS_CACHE_BYTES": str(CACHE_BYTES)},
                text=True,
            )
        assert self.process.stdout is not None
        lines = list(takewhile(lambda line: line != "}\n", self.process.stdout))
        doors = json.loads("".join([*lines, "}"]))["doors"]
        self.rest: str = doors["socket"]
        self.grpc: str = doors["grpc socket"]

    @property
    def _proc(self) -> Path:
        return Path(f"/proc/{self.process.pid}")

    def descriptors(self) -> int:
        """Return how many files and sockets are open."""
        return len(list((self._proc / "fd").iterdir()))

    def threads(self) -> int:
        """Return how many threads run."""
        return len(list((self._proc / "task").iterdir()))

    def memory_mb(self) -> float:
        """Return the memory that is its own, without mapped files."""
        lines = (self._proc / "status").read_text().splitlines()
        found = next(line for line in lines if line.startswith("RssAnon"))
        return int(found.split()[1]) / 1024

    def connect(self) -> socket.socket:
        """Return a connection to the REST door, of bytes."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(SETTLE_S)
        connection.connect(self.rest)
        return connection

    def faults(self) -> list[str]:
        """Return what it logged as an error."""
        return [line for line in self._log.read_text().splitlines() if " error " in line]

    def end(self) -> None:
        """End it, and wait for its end."""
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=SETTLE_S)


# --- ways to leave ------------------------------------------------------------------------------


def _follow() -> FollowTopic:
    return FollowTopic(topic="log")


def rest_stream_read(daemon: Daemon, chance: random.Random) -> None:
    """Read some records of a stream, and close it."""
    with RestClient(daemon.rest) as client:
        for _, _ in zip(range(chance.randrange(1, 5)), client.stream(_follow()), strict=False):
            pass


def rest_stream_unread(daemon: Daemon, chance: random.Random) -> None:
    """Begin a stream of events and go without reading any."""
    path = chance.choice(["queues/log/follow", "events"])
    with daemon.connect() as connection:
        connection.sendall(
            f"GET /api/v1/{path} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
        if chance.random() < 0.5:
            connection.recv(chance.randrange(1, 2_000))


def half_a_head(daemon: Daemon, chance: random.Random) -> None:
    """Send a part of a request's head."""
    head = b"POST /api/v1/queues/log/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n"
    with daemon.connect() as connection:
        connection.sendall(head[: chance.randrange(len(head))])


def half_a_body(daemon: Daemon, chance: random.Random) -> None:
    """Send a part of a request's body."""
    with daemon.connect() as connection:
        connection.sendall(
            b"POST /api/v1/queues/log/records HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
            + b"["
            * chance.randrange(1, 50_000)
        )


def no_answer_read(daemon: Daemon, chance: random.Random) -> None:
    """Ask, and be gone before the answer."""
    path = chance.choice(["status", "queues", "queues/log/records", "root"])
    with daemon.connect() as connection:
        connection.sendall(f"GET /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


def grpc_stream_cancelled(daemon: Daemon, chance: random.Random) -> None:
    """Read some records of a stream, and cancel it."""
    with GrpcClient(daemon.grpc) as client, client.stream(_follow()) as stream:
        for _ in range(chance.randrange(1, 5)):
            next(stream)


def grpc_streams_dropped(daemon: Daemon, chance: random.Random) -> None:
    """Begin streams on one channel, and close it under them."""
    with GrpcClient(daemon.grpc) as client:
        requests: tuple[ActionRequest[Any], ...] = (_follow(), WatchRoot())
        streams = [client.stream(chance.choice(requests)) for _ in range(5)]
        if chance.random() < 0.5:
            next(streams[0])


WAYS: tuple[Leave, ...] = (
    rest_stream_read,
    rest_stream_unread,
    half_a_head,
    half_a_body,
    no_answer_read,
    grpc_stream_cancelled,
    grpc_streams_dropped,
)


# --- rounds -------------------------------------------------------------------------------------


def settle(daemon: Daemon, descriptors: int, threads: int) -> dict[str, int]:
    """Wait until the daemon has no more than these; return what it has more."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        more = {
            "descriptors": max(0, daemon.descriptors() - descriptors),
            "threads": max(0, daemon.threads() - threads),
        }
        if not any(more.values()) or time.monotonic() > deadline:
            return more
        time.sleep(0.05)


def soak(
    folder: Path, seconds: float, seed: int, growth_mb: float, chosen: Sequence[Leave] = WAYS
) -> dict[str, Any]:
    """Run the rounds; return what was counted. `failed` says what was kept, nil if nothing."""
    chance = random.Random(seed)
    daemon = Daemon(folder)
    ways = dict.fromkeys((way.__name__ for way in chosen), 0)
    memory: list[float] = []
    failed: str | None = None
    rounds = 0

    def offer() -> None:
        with RestClient(daemon.rest) as rest:
            rest.call(OfferRecords(topic="log", values=(RECORD,) * 8))
        ask()

    def ask() -> None:
        with GrpcClient(daemon.grpc) as client:
            client.call(GetNodeStatus())

    try:
        offer()
        # The first clients load modules and start threads, up to a number, that stay.
        for way in [*chosen] * 4:
            way(daemon, chance)
        with ThreadPoolExecutor(TOGETHER) as pool:
            for done in [pool.submit(offer) for _ in range(4 * TOGETHER)]:
                done.result()
        time.sleep(1)
        descriptors, threads = daemon.descriptors(), daemon.threads() + THREADS_MORE
        end = time.monotonic() + seconds
        while failed is None and (time.monotonic() < end or rounds < ROUNDS_MIN):
            for _ in range(TOGETHER):
                way = chance.choice(chosen)
                ways[way.__name__] += 1
                way(daemon, chance)
            (ask if rounds % OFFER_EVERY else offer)()
            rounds += 1
            more = settle(daemon, descriptors, threads)
            memory.append(daemon.memory_mb())
            if daemon.faults():
                failed = daemon.faults()[0]
            elif any(more.values()):
                failed = f"after round {rounds} and {SETTLE_S} s: {more} more than before"
        grown = max(memory[-(len(memory) // 4 or 1) :]) - max(memory[: len(memory) // 4 or 1])
        if failed is None and grown > growth_mb:
            failed = f"memory grew by {grown:.1f} MB"
    finally:
        daemon.end()
    return {
        "rounds": rounds,
        "left": ways,
        "descriptors": descriptors,
        "threads": threads,
        "memory_mb": [round(one, 1) for one in memory[:: max(1, len(memory) // 10)]],
        "growth_mb": round(grown, 1),
        "failed": failed,
    }


def main() -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--growth-mb", type=float, default=16)
    parser.add_argument("--folder", type=Path)
    named = {way.__name__: way for way in WAYS}
    parser.add_argument("--ways", nargs="+", choices=named, default=[*named])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made, "node")
        ways = [named[name] for name in options.ways]
        report = soak(folder, options.seconds, options.seed, options.growth_mb, ways)
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return report["failed"] is not None


if __name__ == "__main__":
    sys.exit(main())
