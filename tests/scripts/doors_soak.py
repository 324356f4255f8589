"""Leave streams and requests of a daemon's doors unfinished; it must release all their resources.

    doors_soak.py [--clients 4000] [--warm 1500] [--noise-bytes 60000] [--seed 1] [--folder DIR]
                  [--ways WAY ...]

A daemon runs on a folder, with all its doors. At first clients leave in all ways, in random order,
while records are offered to the streams. Then each way is measured alone: `--warm` clients first
fill the bounded tables (the records of access: 1,024), then come `--clients`. Nothing is written
meanwhile: the newest part of the index grows with writes, up to 13 MB. The cache of decoded cells
is so small here that it is full before.

Clients come in rounds of 40. After each the daemon must have as many descriptors and threads as
before the first. `bytes_a_client` is the slope of the memory in use (`measured_daemon.py`), without
free memory that the C library keeps. At most it may be half of the least that can be lost, plus the
noise of the measurement, `--noise-bytes` over the clients. Prints one JSON document; exit code 0
when all was released and no error was logged.
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
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from statistics import linear_regression
from typing import Any

import grpc

from datalattice.actions import (
    ActionRequest,
    FollowTopic,
    GetNodeStatus,
    MakeDirectory,
    OfferRecords,
    PutFile,
    WatchRoot,
    WriteFile,
)
from datalattice.client.control import ControlClient, running
from datalattice.client.grpc import GrpcClient
from datalattice.client.rest import RestClient
from datalattice.testing.processes import killing

CACHE_BYTES = 1_000_000

CHUNK_BYTES = 32
"""The least that malloc allocates, and so the least that a leak loses for each client."""

TOGETHER = 40
"""Clients of a round."""

MARKS = 10
"""Measurements of the memory for each way."""

OFFER_EVERY = 4
"""Rounds from one offer to the next."""

RECORD = "x" * 4_000
SETTLE_S = 60.0
THREADS_MORE = 64  # that pools may still start; a thread for each client would soon be more

MALLOC = {
    "PYTHONMALLOC": "malloc",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
}
"""See `measured_daemon.py`."""

Leave = Callable[["Daemon", random.Random], None]


class Daemon:
    """`lattice daemon` on a folder, and the resources that it uses."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._log = folder / "daemon.log"
        self._killing = ExitStack()
        self._asked, told = map(self._killing.enter_context, socket.socketpair())
        program = [sys.executable, str(Path(__file__).with_name("measured_daemon.py"))]
        command = [*program, str(told.fileno()), "--dir", str(folder), "--json", "daemon"]
        with self._log.open("w") as log, told:
            process = subprocess.Popen(
                [*command, "--port", "0", "--attached", "--mcp", "all"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | MALLOC | {"LATTICE_LIMITS_CACHE_BYTES": str(CACHE_BYTES)},
                pass_fds=[told.fileno()],
                text=True,
            )
        self.process = self._killing.enter_context(killing(process))
        self.rest = self.grpc = self.control = ""
        self.clients: tuple[Callable[[], Any], ...] = (
            lambda: RestClient(self.rest),
            lambda: GrpcClient(self.grpc),
            lambda: ControlClient(self.control),
        )

    def wait_ready(self) -> None:
        """Return once it serves."""
        assert self.process.stdout is not None
        lines = list(takewhile(lambda line: line != "}\n", self.process.stdout))
        doors = json.loads("".join([*lines, "}"]))["doors"]
        self.rest, self.grpc = doors["socket"], doors["grpc socket"]
        found = running(self.folder)
        assert found is not None
        self.control = found.control

    @property
    def _proc(self) -> Path:
        return Path(f"/proc/{self.process.pid}")

    def descriptors(self) -> int:
        """Return how many files and sockets are open."""
        return len(list((self._proc / "fd").iterdir()))

    def threads(self) -> int:
        """Return how many threads run."""
        return len(list((self._proc / "task").iterdir()))

    def used_bytes(self) -> int:
        """Return the memory in use, by `measured_daemon.py`."""
        self._asked.sendall(b"?")
        with self._asked.makefile() as told:
            return int(told.readline())

    def resident_mb(self) -> float:
        """Return the memory without mapped files, free memory of malloc included."""
        lines = (self._proc / "status").read_text().splitlines()
        found = next(line for line in lines if line.startswith("RssAnon"))
        return round(int(found.split()[1]) / 1024, 1)

    def connect(self, path: str | None = None) -> socket.socket:
        """Return a raw connection to a socket, by default that of the REST door."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path or self.rest)  # without a timeout it waits until there is room
        connection.settimeout(SETTLE_S)
        return connection

    def ask(self, client: Callable[[], Any]) -> None:
        """Make a call through a door, and read its answer."""
        with client() as opened:
            opened.call(GetNodeStatus())

    def faults(self) -> list[str]:
        """Return the errors that it logged."""
        return [line for line in self._log.read_text().splitlines() if " error " in line]

    def end(self) -> None:
        """End it, and wait for its end."""
        with self._killing:
            self._asked.close()
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
    """Begin a stream of events and leave, before or in the middle of the answer."""
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
    """Ask, and leave before the answer."""
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


def grpc_call_cancelled(daemon: Daemon, chance: random.Random) -> None:
    """Ask, and cancel before the answer."""
    with grpc.insecure_channel(f"unix:{daemon.grpc}") as channel:
        request = GetNodeStatus()
        called = channel.unary_unary(f"/{request.action.method}").future(request.encode())
        time.sleep(chance.choice([0, chance.random() / 100]))
        called.cancel()


def grpc_upload_cancelled(daemon: Daemon, chance: random.Random) -> None:
    """Send a part of a file, and cancel."""
    left = threading.Event()

    def parts() -> Iterator[bytes]:
        yield PutFile(drive="papers", path="part.txt", data=b"x" * 10_000).encode()
        left.wait(SETTLE_S)  # the upload has no end before it is cancelled

    with grpc.insecure_channel(f"unix:{daemon.grpc}") as channel:
        called = channel.stream_unary(f"/{PutFile.action.method}").future(parts())
        time.sleep(chance.random() / 100)
        called.cancel()
        left.set()


def _webdav(method: str, path: str, more: str = "") -> bytes:
    return f"{method} /dlfs/own/papers/{path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()


def webdav_no_answer_read(daemon: Daemon, chance: random.Random) -> None:
    """Ask for a file or a directory, and leave before the answer or in the middle of it."""
    asked = [_webdav("GET", "a.txt"), _webdav("PROPFIND", "", "Depth: 1\r\n")]
    with daemon.connect() as connection:
        connection.sendall(chance.choice(asked))
        if chance.random() < 0.5:
            connection.recv(chance.randrange(1, 200))


def webdav_half_a_file(daemon: Daemon, chance: random.Random) -> None:
    """Send a part of a file."""
    with daemon.connect() as connection:
        connection.sendall(
            _webdav("PUT", "half.txt", "Content-Length: 100000\r\n")
            + b"x" * chance.randrange(100_000)
        )


def mcp_no_answer_read(daemon: Daemon, chance: random.Random) -> None:
    """Ask for the tools, or call one, and leave before the answer or in the middle of it."""
    method, given = chance.choice(
        [("tools/list", {}), ("tools/call", {"name": "node_status", "arguments": {}})]
    )
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": given}).encode()
    head = (
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with daemon.connect() as connection:
        connection.sendall(head.encode() + body)
        if chance.random() < 0.5:
            connection.recv(chance.randrange(1, 2_000))


def control_stream_left(daemon: Daemon, chance: random.Random) -> None:
    """Read some records of a stream of the control socket, and close it."""
    with ControlClient(daemon.control) as client, client.stream(_follow()) as stream:
        for _ in range(chance.randrange(1, 5)):
            next(stream)


def control_half_a_request(daemon: Daemon, chance: random.Random) -> None:
    """Send a part of a request to the control socket."""
    with daemon.connect(daemon.control) as connection:
        connection.sendall(b"\x87\x68" + b"x" * chance.randrange(1_000))


def calls_answered(daemon: Daemon, chance: random.Random) -> None:
    """Make a call through one of the doors, and read its answer."""
    daemon.ask(chance.choice(daemon.clients))


WAYS: tuple[Leave, ...] = (
    rest_stream_read,
    rest_stream_unread,
    half_a_head,
    half_a_body,
    no_answer_read,
    grpc_stream_cancelled,
    grpc_streams_dropped,
    grpc_call_cancelled,
    grpc_upload_cancelled,
    webdav_no_answer_read,
    webdav_half_a_file,
    mcp_no_answer_read,
    control_stream_left,
    control_half_a_request,
    calls_answered,
)


# --- rounds -------------------------------------------------------------------------------------


class StillHeldError(Exception):
    """The daemon holds resources of clients that have left, or has logged an error."""


class Soak:
    """The rounds on one daemon."""

    def __init__(self, daemon: Daemon, seed: int) -> None:
        self._daemon = daemon
        self._chance = random.Random(seed)
        self.descriptors = self.threads = 0

    def begin(self, ways: Sequence[Leave]) -> None:
        """Have the daemon load its modules and start its threads; note its resources then."""
        daemon = self._daemon
        with RestClient(daemon.rest) as rest:
            self.offer()
            rest.call(MakeDirectory(drive="papers"))
            rest.call(WriteFile(drive="papers", path="a.txt", data=RECORD.encode()))
        for way in [*ways] * 4:
            way(daemon, self._chance)
        with ThreadPoolExecutor(TOGETHER) as pool:
            for done in [pool.submit(self.offer) for _ in range(TOGETHER)]:
                done.result()
        time.sleep(1)
        self.descriptors = daemon.descriptors()
        self.threads = daemon.threads() + THREADS_MORE

    def offer(self) -> None:
        """Offer records for the streams to deliver."""
        with RestClient(self._daemon.rest) as rest:
            rest.call(OfferRecords(topic="log", values=(RECORD,) * 8))

    def leave(self, ways: Sequence[Leave], clients: int, *, offers: bool = False) -> None:
        """Have clients leave, in ways chosen by chance. Raises: StillHeldError."""
        for first in range(0, clients, TOGETHER):
            for _ in range(first, min(first + TOGETHER, clients)):
                self._chance.choice(ways)(self._daemon, self._chance)
            if offers and first // TOGETHER % OFFER_EVERY == 0:
                self.offer()
            self._settle()
        faults = self._daemon.faults()
        if faults:
            raise StillHeldError(faults[0])

    def _settle(self) -> None:
        """Wait until the daemon has no more than at first."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            more = {
                "descriptors": max(0, self._daemon.descriptors() - self.descriptors),
                "threads": max(0, self._daemon.threads() - self.threads),
            }
            if not any(more.values()):
                return
            if time.monotonic() > deadline:
                raise StillHeldError(f"after {SETTLE_S} s: {more} more than before")
            time.sleep(0.02)

    def measure(self, way: Leave, clients: int, warm: int, noise_bytes: int) -> dict[str, Any]:
        """Measure the memory that clients of one way leave in use. Raises: StillHeldError."""
        self.leave([way], warm)
        step = max(TOGETHER, clients // MARKS)
        marks = [self._mark()]
        for _ in range(clients // step):
            self.leave([way], step)
            marks.append(self._mark())
        done = [step * number for number in range(len(marks))]
        slope, _ = linear_regression(done, marks)
        return {
            "clients": done[-1],
            "bytes_a_client": round(slope, 1),
            # Half of the least leak for each client, and noise that does not grow with them.
            "allowed": round(CHUNK_BYTES / 2 + noise_bytes / done[-1], 1),
            "used_mb": round(marks[-1] / 1e6, 2),
            "resident_mb": self._daemon.resident_mb(),
        }

    def _mark(self) -> int:
        """Return the bytes in use, once they fall no more: threads may still end a request."""
        for client in self._daemon.clients:  # answered, it has accepted all connections before
            self._daemon.ask(client)
        self._settle()
        least = self._daemon.used_bytes()
        while True:
            time.sleep(0.2)
            newest = self._daemon.used_bytes()
            if newest > least - 1_000:  # a few small objects come and go at all times
                return min(least, newest)
            least = newest


def soak(
    folder: Path,
    clients: int,
    warm: int,
    noise_bytes: int,
    seed: int = 1,
    chosen: Sequence[Leave] = WAYS,
) -> dict[str, Any]:
    """Run the rounds; return the measurements. `failed`: what was still held, None if nothing."""
    daemon = Daemon(folder)
    ways: dict[str, Any] = {}
    failed: str | None = None
    rounds = Soak(daemon, seed)
    try:
        daemon.wait_ready()
        rounds.begin(chosen)
        rounds.leave(chosen, warm, offers=True)
        for way in chosen:
            ways[way.__name__] = rounds.measure(way, clients, warm, noise_bytes)
        growing = [name for name, one in ways.items() if one["bytes_a_client"] > one["allowed"]]
        failed = f"memory grows with the clients of: {', '.join(growing)}" if growing else None
    except StillHeldError as error:
        failed = str(error)
    finally:
        daemon.end()
    held = {"descriptors": rounds.descriptors, "threads": rounds.threads}
    return {"ways": ways, **held, "failed": failed}


def main() -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--clients", type=int, default=4_000, help="of each way, at least 40")
    parser.add_argument("--warm", type=int, default=1_500, help="before them, of each way")
    parser.add_argument("--noise-bytes", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    named = {way.__name__: way for way in WAYS}
    parser.add_argument("--ways", nargs="+", choices=named, default=[*named])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        report = soak(
            options.folder or Path(made, "node"),
            options.clients,
            options.warm,
            options.noise_bytes,
            options.seed,
            [named[name] for name in options.ways],
        )
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return report["failed"] is not None


if __name__ == "__main__":
    sys.exit(main())
