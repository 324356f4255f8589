"""Cases of the actions that a running node does, with a peer on loopback."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

from tests.unit.service.cases import Flow, Good, World

import datalattice
from datalattice import actions as a
from datalattice.apps.queue import Topics
from datalattice.cells import Value
from datalattice.client import write_key
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, root_lattice
from datalattice.service import FolderService, Service
from datalattice.sync import FORK, check_proof
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.folders import fill, running_node

STRANGER = KeyPair(b"s" * 32).public_key.hex()
NOWHERE = "127.0.0.1:1"
PATIENCE_S = 60.0


def log_of(values: list[str], stamp: int, key: KeyPair, base: Value = None) -> Value:
    """Return a root in which the key wrote a log."""
    root = RootLattice(root_lattice(), base, MergeContext(key_pair=key))
    topics = Topics.at(root, key.public_key, StoppedClock(stamp))
    topics.partition("orders", 0).offer_many(values)
    return root.get()


class LiveWorld(World):
    """A folder with a running node, and a peer that it is connected to. The cases share it."""

    def __init__(self, path: Path) -> None:
        self._ends = ExitStack()
        own, here = KeyPair.generate(), path / "here"
        write_key(here / "identity.key", own)
        common = log_of(["a", "b"], 100, own)
        fill(here, [log_of(["r"], 300, own, common), log_of(["l"], 200, own, common)])
        self.other = self._ends.enter_context(datalattice.serve(path / "there"))
        peers = (str(self.other.address),)
        self.offered = FolderService(here, own, NodeConfig())
        served = running_node(here, service=self.offered, peers=peers)
        self.control = self._ends.enter_context(served).control
        self.node = self._ends.enter_context(datalattice.open(here))
        self.service = Service(self.node)
        self.joined = self.node.join(self.other.store("shared", "kv").invite()).store.id
        self.node.wait_equal(PATIENCE_S)
        self.peer = self.addresses()[0]

    def addresses(self) -> list[str | None]:
        """Return the addresses of the node's peers."""
        return [one["address"] for one in self.node.peers()]

    def task(self) -> int:
        """Begin a task, and return its id when it has ended."""
        info = self.node.ask(a.StartTask(collect=a.CollectGarbage(dry_run=True)))
        give_up_s = time.monotonic() + PATIENCE_S
        while info.state < a.TaskState.DONE:
            assert time.monotonic() < give_up_s
            info = self.node.ask(a.GetTask(id=info.id))
        return info.id

    def fork(self) -> str:
        """Return the id of the fork that the folder began with."""
        return self.node.forks().list()[0].id

    def added(self, address: str) -> str:
        """Return the address of a peer that is added here."""
        self.node.add_peer(address)
        return address

    def close(self) -> None:
        self._ends.close()


LIVE: dict[str, Good | Flow] = {
    "node.health": Good(
        lambda w: a.GetNodeHealth(),
        lambda r, w: r.pid == os.getpid() and w.peer in [one.address for one in r.peers],
    ),
    "node.wait": Good(
        lambda w: a.WaitForRoot(known=b"\x07" * 32, timeout_ms=30_000),
        lambda r, w: r.root_hash == w.node.ask(a.GetNodeHealth()).root_hash,
    ),
    "node.reload": Good(lambda w: a.ReloadSettings(), lambda r, w: r.waiting == ()),
    "peers.list": Good(
        lambda w: a.ListPeers(), lambda r, w: w.peer in [one.address for one in r.peers]
    ),
    "peers.put": Good(lambda w: a.AddPeer(address=NOWHERE), lambda r, w: NOWHERE in w.addresses()),
    "peers.remove": Good(
        lambda w: a.RemovePeer(address=w.added("127.0.0.1:2")),
        lambda r, w: "127.0.0.1:2" not in w.addresses(),
    ),
    "peers.pull": Good(
        lambda w: a.PullPeers(address=w.peer),
        lambda r, w: r.root_hash == w.node.ask(a.GetNodeHealth()).root_hash,
    ),
    "hosting.get": Good(
        lambda w: a.GetHosting(), lambda r, w: r.policy["owners"] == "any" and not r.over_quota
    ),
    "hosting.put": Good(
        lambda w: a.DecideHosting(owner=STRANGER, rule="limit", limit=5_000),
        lambda r, w: [one.limit for one in r.decisions if one.owner == STRANGER] == [5_000],
    ),
    "owners.forget": Good(
        lambda w: a.ForgetOwner(owner=STRANGER), lambda r, w: (r.owner, r.bytes) == (STRANGER, 0)
    ),
    "history.forget": Good(lambda w: a.ForgetRoots(before_ms=1), lambda r, w: r.count == 0),
    "forks.list": Good(
        lambda w: a.ListForks(),
        lambda r, w: (
            [(one.kind, one.mine, one.logs[0].records) for one in r.forks] == [("log", True, 1)]
        ),
    ),
    "forks.show": Good(
        lambda w: a.ShowFork(id=w.fork()[:6]),
        lambda r, w: r.fork.id == w.fork() and [one.value for one in r.records] == ["r"],
    ),
    "forks.export": Good(
        lambda w: a.ExportFork(id=w.fork()[:6]),
        lambda r, w: (r.id, check_proof(r.data).kind) == (w.fork(), FORK),
    ),
    "forks.resolve": Good(
        lambda w: a.ResolveFork(id=w.fork(), how="drop"), lambda r, w: r.action == "drop"
    ),
    "tasks.start": Good(
        lambda w: a.StartTask(rebuild=a.RebuildState(id=w.joined)),
        lambda r, w: r.kind == "rebuild" and r.caller == "",
    ),
    "tasks.list": Good(
        lambda w: (w.task(), a.ListTasks())[1],
        lambda r, w: "collect" in [one.kind for one in r.tasks],
    ),
    "tasks.get": Good(
        lambda w: a.GetTask(id=w.task()),
        lambda r, w: r.state is a.TaskState.DONE and r.collected.cells_live > 0,
    ),
    "tasks.watch": Flow(
        lambda w: a.WatchTask(id=w.task()),
        lambda w: None,
        1,
        lambda items, w: items[0].state is a.TaskState.DONE and items[0].collected.is_dry,
    ),
    "tasks.cancel": Good(
        lambda w: a.CancelTask(id=w.task()),
        lambda r, w: w.node.ask(a.ListTasks()).tasks[-1].state is a.TaskState.DONE,
    ),
    "stores.sync": Good(
        lambda w: a.SyncStore(id=w.joined),
        lambda r, w: (
            [(one.public_key.hex(), one.error) for one in r.peers]
            == [(w.other.running.public_key, "")]
        ),
    ),
    "node.drain": Good(
        lambda w: a.DrainNode(),
        lambda r, w: w.node.ask(a.GetNodeHealth()).health == "draining",
    ),
    "stores.join": Good(
        lambda w: a.JoinStore(token=w.other.store(f"more {time.monotonic_ns()}", "kv").invite()),
        lambda r, w: r.store_id in [one.id for one in w.other.weaver.list()],
    ),
}
