"""Kill a daemon while clients write through all its doors; no acknowledged write may be lost.

    doors_kill.py [--rounds 20] [--seed 1] [--folder DIR]

Six writers write as fast as they are answered: by REST and gRPC on their sockets, by REST on a port
with a token, by WebDAV, in a program that opened the folder beside the daemon, and to a Weaver
store. Each keeps its client and notes the writes that were answered. The daemon is killed with
SIGKILL at random moments and started again on the same folder and port. A write may fail meanwhile,
with one of the errors of `EXPECTED` and no other; the next one uses the same client. At the end the
folder is opened without the daemon: all answered writes must be there, once, and in order. Prints
one JSON document; exit code 0 when nothing was lost.
"""

from __future__ import annotations

import argparse
import collections
import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import takewhile
from pathlib import Path
from typing import Any

import datalattice
from datalattice.actions import KeyWrite, OfferRecords, WriteKeys
from datalattice.client.credentials import make_token
from datalattice.client.grpc import GrpcClient
from datalattice.client.rest import RestClient
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.errors import OutcomeUnknown, PeerUnavailable, Timeout
from datalattice.lattice import did_of
from datalattice.testing.ports import held_port
from datalattice.testing.processes import killing

EXPECTED = (PeerUnavailable, OutcomeUnknown, Timeout)
LIFE_S = (0.5, 2.5)
WAIT_S = 120.0

Write = Callable[[int], object]


class Daemon:
    """`lattice daemon` on a folder, which can be killed and started again."""

    def __init__(self, folder: Path, admin: str) -> None:
        self.folder = folder
        self._admin = admin
        self._holding = ExitStack()
        self._port = self._holding.enter_context(held_port())
        self.doors: dict[str, str] = {}
        self._process: subprocess.Popen[str] | None = None
        self._killing = ExitStack()

    def start(self) -> None:
        """Start it; return once it serves."""
        command = [sys.executable, "-m", "datalattice.cli", "--dir", str(self.folder), "--json"]
        rest = f"127.0.0.1:{self._port}"
        options = ["--port", "0", "--attached", "--rest", rest, "--admin", self._admin]
        process = subprocess.Popen(
            [*command, "daemon", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._process = self._killing.enter_context(killing(process))
        assert process.stdout is not None
        lines = list(takewhile(lambda line: line != "}\n", process.stdout))
        self.doors = json.loads("".join([*lines, "}"]))["doors"]

    def end(self, number: int) -> None:
        """End it with a signal."""
        assert self._process is not None
        with self._killing:
            self._process.send_signal(number)
            self._process.communicate(timeout=WAIT_S)

    def close(self) -> None:
        """Kill it if it still runs."""
        self._killing.close()
        self._holding.close()


# --- writers ------------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Writes 0, 1, 2 and so on until it is told to stop."""

    def __init__(self, name: str, write: Write) -> None:
        super().__init__(name=name)
        self._write = write
        self.answered: list[int] = []
        self.failed: collections.Counter[str] = collections.Counter()
        self.fault: str | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        """Write until it is told to stop, or an unexpected error comes."""
        number = 0
        while not self.stopping.is_set():
            try:
                self._write(number)
            except EXPECTED as error:
                self.failed[type(error).__name__] += 1
                self.stopping.wait(0.02)  # while the daemon is down, calls fail at once
            except Exception as error:  # noqa: BLE001 - reported
                self.fault = f"{type(error).__name__}: {error}"
                return
            else:
                self.answered.append(number)
            # A number is written once: of a write without an answer nobody knows whether it is
            # there, and a second one could bring it twice.
            number += 1


def end(running: list[Writer]) -> None:
    """Have writers stop, and wait for them."""
    for writer in running:
        writer.stopping.set()
    for writer in running:
        if writer.is_alive():
            writer.join(WAIT_S)


class _SocketConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(self._path)


def _put_file(connection: http.client.HTTPConnection) -> Write:
    """Return a write that puts a file named by its number, by WebDAV."""

    def put(number: int) -> None:
        try:
            connection.request("PUT", f"/dlfs/own/files/{number}", str(number).encode() * 100)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()  # the next request opens it anew
            raise PeerUnavailable(f"no answer to PUT: {error}") from error
        if answer.status == 503:
            raise PeerUnavailable("the daemon is being stopped")
        assert answer.status == 201, answer.status

    return put


def writers(
    daemon: Daemon, admin: KeyPair, node: datalattice.Node, store: str, held: ExitStack
) -> Iterator[Writer]:
    """Yield a writer for each way. node: the folder, opened beside the daemon. held: clients."""
    sockets = daemon.doors["socket"], daemon.doors["grpc socket"]
    url = daemon.doors["rest"]
    rest = held.enter_context(RestClient(sockets[0]))

    def token() -> str:
        return make_token(admin, url, SystemClock().now_ms())

    port = held.enter_context(RestClient(url, token=token))
    grpc = held.enter_context(GrpcClient(sockets[1]))
    weaver = held.enter_context(GrpcClient(sockets[1])).store(store)
    files = held.enter_context(closing(_SocketConnection(sockets[0])))

    def key(number: int) -> WriteKeys:
        return WriteKeys(database="numbers", writes=(KeyWrite(key=str(number), value=number),))

    yield Writer("rest", lambda n: rest.call(OfferRecords(topic="rest", values=(n,))))
    yield Writer("grpc", lambda n: grpc.call(OfferRecords(topic="grpc", values=(n,))))
    yield Writer("port", lambda n: port.call(key(n)))
    yield Writer("webdav", _put_file(files))
    yield Writer("beside", lambda n: node.queue("beside").offer(n))
    yield Writer("weaver", lambda n: weaver.call("Put", key=b"%d" % n, value=b"%d" % n))


# --- checks -------------------------------------------------------------------------------------


def lost(name: str, answered: list[int], node: datalattice.Node) -> str | None:
    """Return how the data of one writer differs from its answered writes, None if it does not."""
    if name in ("rest", "grpc", "beside"):
        found = list(node.queue(name))
        # More than was answered may be there: a write whose answer the kill took was made, too.
        if found != sorted(set(found)):
            return "records came twice, or out of order"
        missing = set(answered) - set(found)
    elif name == "port":
        database = node.database("numbers")
        missing = {n for n in answered if database.get(str(n)) != n}
    elif name == "webdav":
        drive = node.drive("files")
        missing = {n for n in answered if drive.read(f"/{n}") != str(n).encode() * 100}
    else:
        opened = node.store("numbers", "kv")
        missing = {n for n in answered if opened.get(str(n)) != str(n)}
    return f"lost {sorted(missing)[:5]}, {len(missing)} in all" if missing else None


def kill_rounds(folder: Path, rounds: int, seed: int) -> dict[str, Any]:
    """Kill the daemon `rounds` times; return the counts. `wrong` is empty if nothing was lost."""
    chance, admin = random.Random(seed), KeyPair.generate()
    with datalattice.open(folder) as node:
        node.drive("files").ensure()
        store = node.store("numbers", "kv").id
    with closing(Daemon(folder, did_of(admin.public_key))) as daemon, ExitStack() as held:
        daemon.start()
        beside = held.enter_context(datalattice.open(folder))
        running = list(writers(daemon, admin, beside, store, held))
        held.callback(end, running)  # before their clients are closed
        for writer in running:
            writer.start()
        for _ in range(rounds):
            time.sleep(chance.uniform(*LIFE_S))
            daemon.end(signal.SIGKILL)
            daemon.start()
        time.sleep(1)
        end(running)
        daemon.end(signal.SIGTERM)
    wrong: dict[str, str] = {}
    with datalattice.open(folder) as node:
        for writer in running:
            told = writer.fault or lost(writer.name, writer.answered, node)
            if told is None and len(writer.answered) < rounds:
                told = f"only {len(writer.answered)} writes in {rounds} rounds"
            if told is not None:
                wrong[writer.name] = told
    return {
        "rounds": rounds,
        "answered": {writer.name: len(writer.answered) for writer in running},
        "failed": {writer.name: dict(writer.failed) for writer in running},
        "wrong": wrong,
    }


def main() -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made, "node")
        report = kill_rounds(folder, options.rounds, options.seed)
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return bool(report["wrong"])


if __name__ == "__main__":
    sys.exit(main())
