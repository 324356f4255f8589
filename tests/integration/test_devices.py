"""One person's devices and folders on live nodes: nothing acknowledged is out of reach.

The two ends of every story: roots are equal, and each acknowledged record is in its log or in
evidence that health and `lattice forks` tell of.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from datalattice.actions import ResolveFork
from datalattice.apps.kv import Database
from datalattice.apps.queue import Queue, Topics, device_partition
from datalattice.cells import Keyword, Value
from datalattice.client.settings import NodeConfig
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import Unfenced
from datalattice.lattice import MergeContext, root_lattice
from datalattice.node import NodeServer, open_node, resolve_fork
from datalattice.store import MemoryStore, Store
from datalattice.testing.polling import until_async

OWNER = KeyPair(b"o" * 32)
LAPTOP, PHONE, TABLET, RELAY, OTHER = (KeyPair(bytes([seed]) * 32) for seed in range(1, 6))
TIMEOUT_S = 60


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await work()

    asyncio.run(bounded())


def node_of(
    identity: KeyPair,
    store: Store | Path | None = None,
    *peers: NodeServer,
    keys: tuple[KeyPair, ...] = (OWNER,),
    **options: object,
) -> NodeServer:
    addresses = tuple(str(one.address) for one in peers)
    chosen = {"port": 0, "peers": addresses, **options}
    config = NodeConfig(**chosen)  # type: ignore[arg-type]
    return open_node(store or MemoryStore(), identity=identity, keys=keys, config=config)


def relay(identity: KeyPair = RELAY, *peers: NodeServer, **options: object) -> NodeServer:
    """Return a node of somebody else, without the owner's key."""
    return node_of(identity, None, *peers, keys=(), **options)


async def equal(*nodes: NodeServer) -> None:
    await until_async(lambda: len({node.root_hash for node in nodes}) == 1)


def database(node: NodeServer) -> Database:
    return Database.at(node.cursor, OWNER.public_key, "shop")


def log_of(node: NodeServer, partition: Value = 0) -> Queue:
    return Topics.at(node.cursor, OWNER.public_key).partition("orders", partition)


async def write(node: NodeServer, name: str, count: int = 5) -> set[str]:
    """Write to the database, and to a partition of this device; return what was acknowledged."""
    assert node.identity is not None
    own = device_partition(node.identity.public_key)
    names = {f"{name} {number}" for number in range(count)}
    for one in sorted(names):
        database(node)[one] = name
    log_of(node, own).offer_many(sorted(names))
    await node.sync()
    return names


def values(queue: Queue) -> list[str]:
    return [str(queue.peek(offset)) for offset in range(queue.size())]


def found(node: NodeServer) -> tuple[set[str], set[str]]:
    """Return the keys of the database, and the records of all partitions."""
    topic = Topics.at(node.cursor, OWNER.public_key).topic("orders")
    records = {value for one in topic.partitions() for value in values(topic.partition(one))}
    return {str(key) for key in database(node)}, records


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("through", ["a relay", "each other"])
def test_devices_that_write_apart_and_together_have_all_of_all(count: int, through: str) -> None:
    """First each one offline, then all at once; then one that was away comes back."""
    identities = (LAPTOP, PHONE, TABLET)[:count]

    async def work() -> None:
        stores = [MemoryStore() for _ in identities]
        written: set[str] = set()
        for identity, store in zip(identities, stores, strict=True):
            async with node_of(identity, store) as alone:
                written |= await write(alone, f"offline {identity.public_key.hex()[:4]}")
        async with relay() as middle:
            hub = [middle] if through == "a relay" else []
            nodes: list[NodeServer] = []
            try:
                for identity, store in zip(identities, stores, strict=True):
                    nodes.append(node_of(identity, store, *(hub or nodes)))
                    await nodes[-1].start()
                    await nodes[-1].fenced()
                for node, names in zip(
                    nodes,
                    await asyncio.gather(
                        *(write(one, f"online {at}") for at, one in enumerate(nodes))
                    ),
                    strict=True,
                ):
                    assert names <= found(node)[0]
                    written |= names
                await until_async(lambda: all(found(node) == (written, written) for node in nodes))
                await equal(*nodes, *hub)
                for node in nodes:
                    assert node.observer.health == "ok"
            finally:
                for node in nodes:
                    await node.close()

    run(work)


def test_a_folder_restored_without_a_peer_keeps_both_histories_and_puts_them_behind_each_other(
    tmp_path: Path,
) -> None:
    """50 records here, a backup, 50 more that a peer has; 80 records on the restored folder."""

    async def work() -> None:
        async with relay() as peer:
            async with node_of(LAPTOP, tmp_path / "a", peer) as node:
                log_of(node).offer_many([f"common {n}" for n in range(50)])
                await node.sync()
            shutil.copytree(tmp_path / "a", tmp_path / "backup")
            async with node_of(LAPTOP, tmp_path / "a", peer) as node:
                log_of(node).offer_many([f"lost {n}" for n in range(50)])
                await node.sync()
                await equal(node, peer)
        shutil.rmtree(tmp_path / "a")
        shutil.copytree(tmp_path / "backup", tmp_path / "a")
        kept = peer.store
        away: dict[str, Any] = {"peers": ("127.0.0.1:1",), "fence_moved_wait_ms": 20}
        async with node_of(LAPTOP, tmp_path / "a", **away) as node:
            with pytest.raises(Unfenced, match="copied, restored or moved"):
                log_of(node).offer("x")
        async with node_of(LAPTOP, tmp_path / "a", **away, accept_unfenced=True) as node:
            log_of(node).offer_many([f"new {n}" for n in range(80)])
            await node.sync()
            assert "writing without having asked a peer" in node.observer.health
        async with (
            node_of(RELAY, kept, keys=()) as peer,
            node_of(LAPTOP, tmp_path / "a", peer) as node,
        ):
            await equal(node, peer)
            assert log_of(node).size() == 130
            reason = node.observer.health
            assert "wrote two histories of orders/0; 50 records are not in the log" in reason
            assert 'run "lattice forks list"' in reason
            (record,) = node._replica.evidence.records.values()
            (lost,) = record.logs
            assert (lost.first, lost.end) == (50, 100)
            id = record.id.hex()
            request = ResolveFork(id=id, how="append")
            done = await node.housekeeper.ask(
                lambda replica: resolve_fork(replica, request, SystemClock())
            )
            assert done.removed
            await equal(node, peer)
            records = values(log_of(node))
            assert records[130:] == [f"lost {n}" for n in range(50)]
            assert len(set(records)) == 180
            await until_async(lambda: node.observer.health == "ok")
            assert peer._replica.evidence.records == {}

    run(work)


def test_two_branches_that_were_told_to_two_peers_come_together_at_the_owners_next_device() -> None:
    """Somebody told each of two relays another history under one key, and is gone."""

    def branch(name: str, stamp_ms: int) -> Value:
        context = MergeContext(key_pair=OWNER)
        root = RootLattice(root_lattice(), None, context)
        Database.at(root, OWNER.public_key, "shop")[name] = stamp_ms
        Topics.at(root, OWNER.public_key).partition("orders", 0).offer(name)
        return root.get()

    async def work() -> None:
        rounds = {"root_sync_interval_ms": 500}  # of hand-over
        watched: dict[str, Any] = {"watched_owners": (OWNER.public_key.hex(),), **rounds}
        async with relay(RELAY, **watched) as one, relay(OTHER, **watched) as two:
            one.cursor.merge(branch("left", 1))
            two.cursor.merge(branch("right", 2))
            await asyncio.gather(one.sync(), two.sync())
            two.add_peer(str(one.address))
            await equal(one, two)
            health = [node.observer for node in (one, two)]
            # A relay that is told the other's choice before its branch keeps no evidence.
            await until_async(lambda: any("signed two values of" in each.health for each in health))
            async with node_of(LAPTOP, None, two, keys=(OWNER,), **rounds) as device:
                everything = {"left", "right"}
                await until_async(lambda: found(device)[0] == everything)
                await until_async(lambda: len(device._replica.evidence.records) == 1)
                await equal(one, two, device)
                in_log = found(device)[1]
                (record,) = device._replica.evidence.records.values()
                tails = [list(tail.tail()) for _, tail in record.log_branches()]
                assert len(in_log) == len(tails) == len(tails[0]) == 1
                assert "1 record" in device.observer.health
                kept = [
                    rec for node in (one, two) for rec in node._replica.evidence.records.values()
                ]
                # What is not in the log, and nothing else.
                assert {rec.path[0] for rec in kept} == {Keyword("queue")}

    run(work)
