"""What a node says of its peers is true: equal only when equal, and everybody who is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from datalattice.apps.queue import Topics
from datalattice.cells import Keyword
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.errors import StoreFull
from datalattice.node import (
    MemoryTransport,
    NodeServer,
    TcpTransport,
    latticehost,
    monitor,
    open_node,
)
from datalattice.node.status import PeerReport
from datalattice.store import Commit, MemoryStore
from datalattice.testing.polling import LIMIT_S
from datalattice.wire import FrameBuffer, encode_frame, encode_ping

HUB = KeyPair(b"h" * 32)
SITE = KeyPair(b"s" * 32)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a status wait for the answers of peers, however slow this machine is."""
    monkeypatch.setattr(latticehost, "CONFIRM_S", 20.0)
    monkeypatch.setattr(monitor, "LANE_TIMEOUT_S", 25.0)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work()

    asyncio.run(bounded())


class FullStore(MemoryStore):
    full = False

    def _commit(self, *arguments: Any) -> Commit | None:
        if self.full:
            raise StoreFull("no space left")
        return super()._commit(*arguments)


def node_of(
    keys: KeyPair, store: MemoryStore | None = None, transport: Any = None, **options: Any
) -> NodeServer:
    # Roots are stated when somebody asks, not by themselves, while the test lasts.
    config = NodeConfig(port=0, root_sync_interval_ms=600_000, **options)
    return open_node(store or MemoryStore(), key_pair=keys, transport=transport, config=config)


async def write(node: NodeServer, value: int, topic: str = "t") -> None:
    assert node.owner is not None
    Topics.at(node.cursor, node.owner.public_key).partition(topic, 0).offer(value)
    await node.sync()


async def only_peer(node: NodeServer) -> PeerReport:
    (peer,) = (await node.monitor.status()).peers
    return peer


@pytest.mark.usefixtures("patient")
def test_a_peer_is_equal_when_it_says_so_and_not_when_it_was_sent_everything() -> None:
    async def work() -> None:
        store = FullStore()
        async with (
            node_of(HUB, store) as hub,
            node_of(SITE, peers=(str(hub.address),)) as site,
        ):
            await write(site, 1)
            await hub.wait_until(lambda node: node.root_hash == site.root_hash)
            assert (await only_peer(site)).equal is True
            store.full = True
            await write(site, 2)
            for _ in range(3):  # also when it was asked before
                peer = await only_peer(site)
                assert (peer.info.connected, peer.equal) == (True, False)
            assert hub.root_hash != site.root_hash
            store.full = False
            await site.pull()
            await write(site, 3)
            await hub.wait_until(lambda node: node.root_hash == site.root_hash)
            assert (await only_peer(site)).equal is True

    run(work)


def test_who_takes_what_it_is_sent_and_states_nothing_is_not_equal() -> None:
    async def work() -> None:
        transport = MemoryTransport()
        async with node_of(HUB, transport=transport, bind="memory") as hub:
            link = await transport.dial(str(hub.address))
            await link.write(encode_frame(encode_ping(1, Keyword("PEER"))))
            buffer = FrameBuffer()
            for _ in range(2):  # the reply, and the root
                while buffer.next_payload() is None:
                    buffer.feed(await link.read())
            (guest,) = (await hub.monitor.status()).guests
            assert (guest.joined, guest.equal) == (True, False)
            link.abort()

    run(work)


@pytest.mark.usefixtures("patient")
def test_everybody_who_is_connected_is_listed() -> None:
    async def work() -> None:
        async with (
            node_of(HUB) as hub,
            node_of(SITE, peers=(str(hub.address),)) as site,
        ):
            await write(site, 1)
            await hub.wait_until(lambda node: node.root_hash == site.root_hash)
            client = await TcpTransport(KeyPair(b"c" * 32), mux=False).dial(str(hub.address))
            await client.write(encode_frame(encode_ping(1)))
            assert await client.read()
            reading = await hub.monitor.status()
            assert reading.peers == []
            found = {one.info.public_key: one for one in reading.guests}
            assert found.keys() == {SITE.public_key, KeyPair(b"c" * 32).public_key}
            visitor = found.pop(KeyPair(b"c" * 32).public_key)
            assert (visitor.joined, visitor.info.source) == (False, "inbound")
            (listed,) = found.values()
            assert (listed.joined, listed.equal, listed.info.proved) == (True, True, True)
            assert listed.traffic.bytes_in > 0
            # One that is wanted as well is listed once, as wanted.
            hub.add_peer(public_key=SITE.public_key)
            reading = await hub.monitor.status()
            assert [one.equal for one in reading.peers] == [True]
            assert [one.info.public_key for one in reading.guests] == [visitor.info.public_key]
            client.abort()

    run(work)


@pytest.mark.usefixtures("patient")
def test_a_partial_peer_is_equal_when_its_part_is() -> None:
    async def work() -> None:
        async with node_of(HUB) as hub:
            part = f"{HUB.public_key.hex()}/queue/{SITE.public_key.hex()}"
            async with node_of(SITE, peers=(str(hub.address),), partial=(part,)) as site:
                await write(site, 1)
                queue = Topics.at(hub.cursor, SITE.public_key).partition("t", 0)
                await hub.wait_until(lambda _: len(queue) == 1)
                assert (await only_peer(site)).equal is True
                await write(hub, 7)  # of no concern between the two
                assert site.root_hash != hub.root_hash
                assert (await only_peer(site)).equal is True

    run(work)
