"""A daemon that is killed before, after and beside the effects of requests: each is done once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.actions import (
    CreateStore,
    ExecMethod,
    KeyOperation,
    KeyWrite,
    OfferRecords,
    WriteKeys,
)
from datalattice.client import RestClient, RetryPolicy, running
from datalattice.errors import PeerUnavailable
from datalattice.weaver import AppendRequest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
grpc = pytest.importorskip("datalattice.client.grpc")

KILLS = 20
WAIT_S = 120

DAEMON = """
import os, signal, sys
from datalattice.cli import start
from datalattice.service import Service

point, left, call = sys.argv[1], int(sys.argv[2]), Service.call

def dying(self, request, caller, *, request_id=None):
    global left
    left -= request_id is not None
    ends = request_id is not None and left == 0
    if ends and point == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    result = call(self, request, caller, request_id=request_id)
    if ends and point == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return result

Service.call = dying
sys.argv = ["lattice", "--dir", sys.argv[3], "daemon", "--port", "0", "--attached"]
start()
"""
"""`lattice daemon` that kills itself before or after the effect of the n-th request with an id."""


class Daemons:
    """Daemons on one folder, each begun when the one before was killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.killed: dict[str, int] = {"before": 0, "after": 0, "beside": 0}
        self.ends = threading.Event()
        self._dice = random.Random(seed)
        self._process = self._start("never", 0)
        self._thread = threading.Thread(target=self._keep)
        self._thread.start()

    def _start(self, point: str, count: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", DAEMON, point, str(count), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )

    def _keep(self) -> None:
        """Kill, and begin the next one, until all kills are done."""
        for number in range(KILLS):
            point = ["before", "after", "after", "beside"][number % 4]
            if number == 0:
                self._wait_ready()
                self._end(self._process)
            self._process = self._start(point, self._dice.randint(1, 4))
            if point == "beside":
                self._wait_ready()
                time.sleep(self._dice.uniform(0, 0.2))
                self._process.kill()
            assert self._process.wait(WAIT_S) == -signal.SIGKILL
            self.killed[point] += 1
            self._close(self._process)
        self._process = self._start("never", 0)
        self._wait_ready()
        self.ends.set()

    def _wait_ready(self) -> None:
        give_up_s = time.monotonic() + WAIT_S
        while (found := running(self.folder)) is None or found.pid != self._process.pid:
            assert self._process.poll() is None, "the daemon has ended"
            assert time.monotonic() < give_up_s
            time.sleep(0.02)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait(WAIT_S)
        self._close(process)

    @staticmethod
    def _close(process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.close()

    def close(self) -> None:
        self._thread.join(WAIT_S)
        self._end(self._process)


@contextmanager
def daemons(folder: Path, seed: int) -> Iterator[Daemons]:
    with datalattice.open(folder) as node:
        node.store("diary", "log").append("first")
    made = Daemons(folder, seed)
    try:
        give_up_s = time.monotonic() + WAIT_S
        while not ((folder / "rest.sock").exists() and (folder / "grpc" / "grpc.sock").exists()):
            assert time.monotonic() < give_up_s
            time.sleep(0.02)
        yield made
    finally:
        made.close()


def surely(call: Callable[[], Any]) -> Any:
    """Return what a call returned, made again for as long as nothing was sent."""
    give_up_s = time.monotonic() + WAIT_S
    while True:
        try:
            return call()
        except PeerUnavailable:  # "means that it was not sent" (docs/grpc.md)
            assert time.monotonic() < give_up_s
            time.sleep(0.02)


@pytest.mark.once
@pytest.mark.processes
def test_each_request_is_done_once_however_often_the_daemon_is_killed(tmp_path: Path) -> None:
    folder, retry = tmp_path / "node", RetryPolicy(tries=200, first_s=0.02, most_s=0.2)
    offered: dict[int, int] = {}  # a number, and the offset that was answered
    counts, appended, stores = [], [], {}
    number = 0
    with datalattice.open(folder) as node:
        diary = node.store("diary", "log").store.id
    with daemons(folder, seed=17) as killing, ExitStack() as stack:
        clients = [
            stack.enter_context(RestClient(str(folder / "rest.sock"), retry=retry)),
            stack.enter_context(grpc.GrpcClient(folder / "grpc" / "grpc.sock", retry=retry)),
        ]
        while not killing.ends.is_set():
            number += 1
            client = clients[number // 4 % 2]
            match number % 4:
                case 0:
                    offer = OfferRecords(topic="log", values=(number,))
                    offered[number] = surely(lambda: client.call(offer)).spans[0].start  # noqa: B023
                case 1:
                    incr = KeyWrite(key="n", operation=KeyOperation.INCR)
                    write = WriteKeys(database="d", writes=(incr,))
                    counts += surely(lambda: client.call(write)).results  # noqa: B023
                case 2:
                    payload = AppendRequest(content=str(number).encode()).encode()
                    append = ExecMethod(store_id=diary, method="append", payload=payload)
                    assert surely(lambda: client.call(append)).error == ""  # noqa: B023
                    appended.append(str(number))
                case _:
                    create = CreateStore(name=f"s{number}", store_type="core:kvstore")
                    stores[f"s{number}"] = surely(lambda: client.call(create)).id  # noqa: B023
        assert sum(killing.killed.values()) == KILLS, killing.killed
    with datalattice.open(folder) as node:
        records = list(node.queue("log"))
        assert records == sorted(offered)  # each once, in order
        assert all(records[offset] == one for one, offset in offered.items())
        assert counts == list(range(1, len(counts) + 1))
        assert [*node.store("diary", "log")] == ["first", *appended]
        made = node.weaver.list(None)
        assert {one.name: one.id for one in made if one.name != "diary"} == stores
        assert len(made) == 1 + len(stores)
