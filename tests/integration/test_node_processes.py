"""Nodes as processes on loopback: they converge, also after a restart and after one was away."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from datalattice.actions import AddPeer, PullPeers, RemovePeer, StopNode
from datalattice.apps.queue import Topics
from datalattice.client import connect, running
from datalattice.client.network import probe
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import StoreLocked, UsageError
from datalattice.lattice import root_lattice
from datalattice.store import CellStore
from datalattice.testing.folders import node_editor
from datalattice.testing.ports import held_port
from datalattice.testing.processes import killing

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "node_process.py"
PATIENCE_S = 120.0

pytestmark = pytest.mark.processes


class Process:
    """A node process over a folder."""

    def __init__(self, folder: Path, seed: int, *peers: str) -> None:
        self.folder = folder
        self.keys = KeyPair(bytes([seed]) * 32)
        self._command = [sys.executable, str(SCRIPT), str(folder), str(seed)]
        self._peers = peers
        self.address = ""
        self._process: subprocess.Popen[str] | None = None
        self._killing = ExitStack()
        self._holding = ExitStack()
        self._port = self._holding.enter_context(held_port())

    def start(self) -> None:
        """Start it, at the port it had before."""
        command = [*self._command, str(self._port), *self._peers]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._process = self._killing.enter_context(killing(process))
        assert process.stdout is not None
        self.address = process.stdout.readline().strip()
        assert self.address, "the node did not start"

    def stop(self, how: int = signal.SIGTERM) -> int:
        assert self._process is not None
        with self._killing:
            self._process.send_signal(how)
            return self._process.wait(PATIENCE_S)

    def close(self) -> None:
        self._killing.close()
        self._holding.close()

    def offer(self, first: int, count: int) -> None:
        with node_editor(self.folder, self.keys) as editor:
            editor.offer_many("t", 0, [f"r{n}" for n in range(first, first + count)])

    def root_hash(self) -> bytes:
        return probe(self.address).root_hash


Start = Callable[..., Process]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start nodes, with the arguments of `Process`; they end with the test."""
    with ExitStack() as ending:

        def start(*arguments: Any) -> Process:
            process = ending.enter_context(closing(Process(*arguments)))
            process.start()
            return process

        yield start


def wait_equal(*nodes: Process) -> None:
    """Return when all nodes announce one root."""
    deadline = time.monotonic() + PATIENCE_S
    while len({node.root_hash() for node in nodes}) > 1:
        assert time.monotonic() < deadline, "the nodes did not converge"
        time.sleep(0.02)


def records(folder: Path, keys: KeyPair) -> list[object]:
    """Return what a store holds of an owner's queue."""
    with CellStore.open(folder / "store", read_only=True) as store:
        cursor = RootLattice(root_lattice(), store.root())
        return list(Topics.at(cursor, keys.public_key).partition("t", 0))


def test_three_processes_converge_and_restart_and_catch_up(tmp_path: Path, start: Start) -> None:
    hub = start(tmp_path / "hub", 1)
    sites = [start(tmp_path / f"site{n}", n, hub.address) for n in (2, 3)]
    for node in (hub, *sites):
        node.offer(0, 100)
    wait_equal(hub, *sites)
    for holder in (hub, *sites):
        for owner in (hub, *sites):
            assert records(holder.folder, owner.keys) == [f"r{n}" for n in range(100)]

    # After an orderly restart the root is there at once, with nobody's help.
    before = sites[0].root_hash()
    assert sites[0].stop() == 0
    sites[0].start()
    assert sites[0].root_hash() == before

    # One that was away gets what was written meanwhile, and gives what it wrote last.
    assert sites[1].stop(signal.SIGKILL) == -signal.SIGKILL
    hub.offer(100, 50)
    sites[0].offer(100, 50)
    wait_equal(hub, sites[0])
    sites[1].start()
    sites[1].offer(100, 7)
    wait_equal(hub, *sites)
    assert len(records(sites[1].folder, hub.keys)) == 150
    assert len(records(hub.folder, sites[1].keys)) == 107


def test_the_hub_may_come_last(tmp_path: Path, start: Start) -> None:
    hub = start(tmp_path / "hub", 1)
    address = hub.address
    hub.stop()
    site = start(tmp_path / "site", 2, address)
    site.offer(0, 10)
    hub.start()
    wait_equal(hub, site)
    assert len(records(hub.folder, site.keys)) == 10


def test_one_folder_has_one_node_and_tools_find_it(tmp_path: Path, start: Start) -> None:
    node = start(tmp_path / "a", 1)
    with pytest.raises(StoreLocked):
        CellStore.open(node.folder / "store")
    found = running(node.folder)
    assert found is not None
    assert found.address == node.address
    assert found.public_key == node.keys.public_key.hex()
    assert node.stop() == 0
    assert running(node.folder) is None
    assert connect(node.folder) is None
    assert not (node.folder / "running.json").exists()


def test_the_file_of_a_killed_node_does_not_count(tmp_path: Path, start: Start) -> None:
    node = start(tmp_path / "a", 1)
    node.stop(signal.SIGKILL)
    assert (node.folder / "running.json").exists()
    assert running(node.folder) is None
    node.start()
    assert running(node.folder) is not None


def test_peers_come_and_go_and_pull_through_the_control_socket(
    tmp_path: Path, start: Start
) -> None:
    one, two = start(tmp_path / "one", 1), start(tmp_path / "two", 2)
    one.offer(0, 20)
    client = connect(two.folder)
    assert client is not None
    with client:
        client.call(AddPeer(address=one.address))
        wait_equal(one, two)
        assert client.call(PullPeers(address=one.address)).root_hash == one.root_hash()
        client.call(RemovePeer(address=one.address))
        with pytest.raises(UsageError, match="not a peer"):
            client.call(RemovePeer(address=one.address))
        client.call(StopNode())
