"""Folders of nodes for tests: runs nodes on them, and merges roots of peers into their stores."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from datalattice.actions import StopNode
from datalattice.apps.queue import Topics
from datalattice.cells import Value, value_hash
from datalattice.client import (
    Change,
    EditTurn,
    Folder,
    OwnKeys,
    RemoteEditor,
    Running,
    connect,
    open_store_reader,
    read_keys_or_none,
)
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import PeerUnavailable
from datalattice.lattice import MergeContext, root_lattice
from datalattice.node import Daemon, NodeServer, NodeService
from datalattice.store import CellStore
from datalattice.sync import HostingPolicy, LatticeReplica, Peer, offer_of
from datalattice.testing.clocks import StoppedClock

READY_S: Final = 60.0  # a loaded machine starts slowly


@contextmanager
def running_node(
    folder: Path, *, has_key: bool = True, service: NodeService | None = None, **settings: Any
) -> Iterator[Running]:
    """Run a node of a folder in a thread, with the folder's identity or without one.

    service: runs the actions that need no node.
    """
    ready = threading.Event()
    found: list[Running] = []

    def told(one: Running, _node: NodeServer) -> None:
        found.append(one)
        ready.set()

    keys = read_keys_or_none(Folder(folder)) if has_key else None
    identity = None if keys is None else keys.identity
    # Port 0: several tests run at once.
    config = NodeConfig(**({"port": 0} | settings))
    daemon = Daemon(folder, config, key_pair=identity, ready=told, service=service)
    thread = threading.Thread(target=daemon.run)
    thread.start()
    try:
        assert ready.wait(READY_S), "the node did not start"
        yield found[0]
    finally:
        client = connect(folder)
        assert client is not None, "the node is gone"
        with client:
            client.call(StopNode())  # ended as a user ends it
        thread.join(READY_S)
        assert not thread.is_alive(), "the node did not end"


@contextmanager
def node_editor(folder: Path, keys: KeyPair) -> Iterator[RemoteEditor]:
    """Give an editor through the running node of a folder; its keys need no files there.

    Raises: PeerUnavailable: no node runs.
    """
    client = connect(folder)
    if client is None:
        raise PeerUnavailable(f"no node runs in {folder}")
    found = Folder(folder)
    with client, open_store_reader(found) as store:
        turn = EditTurn(found.edit_lock_path)
        with closing(RemoteEditor(client, store, OwnKeys.of(keys), turn)) as editor:
            yield editor


def append_change(
    values: Sequence[object], topic: str = "t", partition: object = 0
) -> Change[range]:
    """Return the edit that appends records to a topic of the editor's owner."""

    def change(cursor: RootLattice, keys: KeyPair) -> range:
        queue = Topics.at(cursor, keys.public_key).partition(topic, partition)
        return queue.offer_many(values)

    return change


@contextmanager
def alone(_folder: Path) -> Iterator[None]:
    """Run no node."""
    yield


def fill(
    folder: Path, roots: Sequence[Value], hosting: HostingPolicy | None = None, now_ms: int = 7_000
) -> None:
    """Merge roots of a peer into a folder's store, one after the other."""
    keys = read_keys_or_none(Folder(folder))
    context = MergeContext() if keys is None else keys.context()
    with CellStore.open(folder / "store") as store:
        replica = LatticeReplica(
            store, root_lattice(), context, hosting=hosting, clock=StoppedClock(now_ms)
        )
        for root in roots:
            store.put(root)
            taken = replica.absorb(offer_of(value_hash(root), {}), Peer("peer"))
            assert not taken.missing, "a root came without its cells"  # the cells were put before
            assert not taken.refused, taken.refused
        if replica.hosting is not None:
            replica.hosting.quotas.usage.save()  # usage is saved as a node does
