"""A live node and a peer with the habits of the reference node, over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from datalattice.apps.queue import Topics
from datalattice.cells import Index, Keyword, Value, value_hash
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, root_lattice
from datalattice.node import NodeServer, open_node
from datalattice.store import MemoryStore
from datalattice.testing.polling import LIMIT_S
from datalattice.testing.reference import ReferenceNode

HERE, THERE = KeyPair(b"h" * 32), KeyPair(b"t" * 32)
DATA = Keyword("data")
SYNC_MS = 200


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work()

    asyncio.run(bounded())


def node(*peers: str) -> NodeServer:
    config = NodeConfig(
        port=0,
        plain=True,
        peers=peers,
        ping_reply="timestamp",
        root_sync_interval_ms=SYNC_MS,
    )
    return open_node(MemoryStore(), key_pair=HERE, config=config)


def offering(*values: object) -> Callable[[Value], Value]:
    def write(root: Value) -> Value:
        cursor = RootLattice(root_lattice(), root, MergeContext(key_pair=THERE))
        Topics.at(cursor, THERE.public_key).partition("theirs", 0).offer_many(values)
        return cursor.get()

    return write


@pytest.mark.parametrize("dials", [True, False])
def test_a_node_and_a_reference_node_become_equal_whoever_writes(dials: bool) -> None:
    async def work() -> None:
        async with ReferenceNode(THERE) as there, node(there.address) as here:
            if dials:
                assert here.port is not None
                await there.dial(here.port)
            topics = Topics.at(here.cursor, HERE.public_key)
            topics.partition("ours", 0).offer_many([f"record {i}" * 20 for i in range(2_000)])
            topics.topic("ours").set_meta("position", 1)
            topics.topic("ours").set_meta("position", 2)
            blob = bytes(range(256)) * 800
            here.cursor.path(DATA).merge(Index.of([(value_hash(blob), blob)]))
            await here.sync()
            there.write(offering(*(f"theirs {i}" * 20 for i in range(500))))
            await here.wait_until(
                lambda one: bool(
                    Topics.at(one.cursor, THERE.public_key).partition("theirs", 0).size()
                )
            )
            await there.wait_until(lambda peer: peer.announced_hash == here.root_hash, LIMIT_S)
            assert there.peer.incomplete == []
            assert there.peer.bare == []
            assert there.peer.queues.foreign == []
            (info,) = here.peers
            assert info.public_key == THERE.public_key
            if dials:  # what it proved there makes it no stranger on its own connection either
                network = here._network
                await here.wait_until(lambda _: network._hosts.known == set(network.connections))

    run(work)


def test_a_pull_of_a_reference_node_has_all_of_it() -> None:
    async def work() -> None:
        async with ReferenceNode(THERE) as there:
            there.write(offering(*range(300)))
            async with node(there.address) as here:
                await there.heard.wait()  # it has connected
                await here.pull()
                theirs = Topics.at(here.cursor, THERE.public_key).partition("theirs", 0)
                assert theirs.size() == 300

    run(work)
