"""Nodes on connections with several streams, and with nodes that know one stream only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from datalattice.cells import Set, Value
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.lattice import SetLattice
from datalattice.node import MemoryTransport, NodeServer, TcpTransport, Transport, open_node
from datalattice.node.transport import Link
from datalattice.store import MemoryStore
from datalattice.testing.polling import LIMIT_S
from datalattice.wire import (
    LATTICE,
    MAIN_STREAM,
    NONCE_BYTES,
    FrameArrived,
    Framing,
    Hello,
    Mux,
    MuxEvent,
    Result,
    StreamEnded,
    decode_payload,
    encode_frame,
    encode_mux_frame,
    encode_ping,
)
from datalattice.wire.muxframes import DATA

T = TypeVar("T")


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await work()

    return asyncio.run(bounded())


def set_node(
    transport: Transport, *peers: NodeServer, bind: str = "memory", **more: object
) -> NodeServer:
    """Return a node of one set, in memory."""
    addresses = tuple(str(peer.address) for peer in peers)
    config = NodeConfig(bind=bind, port=0, peers=addresses, **more)  # type: ignore[arg-type]
    return open_node(MemoryStore(), lattice=SetLattice(), transport=transport, config=config)


def add(node: NodeServer, element: Value) -> None:
    node.cursor.merge(Set([element]))


class Client:
    """A peer that speaks on several streams, and no more than it is told to."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.streams = Mux(
            {LATTICE: Framing(), "what/1": Framing()}, Hello(bytes(NONCE_BYTES)), dialled=True
        )

    @classmethod
    async def of(cls, transport: MemoryTransport, node: NodeServer) -> Client:
        return cls(await transport.dial(str(node.address)))

    async def say(self) -> None:
        while data := self.streams.take()[1]:
            await self.link.write(data)

    async def event(self) -> MuxEvent | None:
        """Return what happens next, None at the end of the link."""
        while (event := self.streams.next()) is None:
            data = await self.link.read()
            if not data:
                return None
            self.streams.receive(data)
        if isinstance(event, FrameArrived):
            self.streams.handled(event.stream, len(event.payload))
        return event


async def become_equal(*nodes: NodeServer) -> None:
    for number, node in enumerate(nodes):
        add(node, number)
        await node.sync()
    for node in nodes:
        await node.wait_until(lambda one: one.cursor.get() == Set(range(len(nodes))))
    assert len({node.root_hash for node in nodes}) == 1


def test_nodes_become_equal_over_several_streams() -> None:
    async def work() -> None:
        net = MemoryTransport(mux=True)
        async with set_node(net) as hub, set_node(net, hub) as one, set_node(net, hub) as other:
            await become_equal(hub, one, other)

    run(work)


@pytest.mark.parametrize(("dials", "listens"), [(True, True), (True, False), (False, True)])
def test_nodes_become_equal_whichever_of_them_knows_one_stream_only(
    dials: bool, listens: bool
) -> None:
    async def work() -> None:
        bind = "127.0.0.1"
        hub_transport = TcpTransport(KeyPair(b"h" * 32), mux=listens)
        transport = TcpTransport(KeyPair(b"d" * 32), mux=dials)
        async with (
            set_node(hub_transport, bind=bind) as hub,
            set_node(transport, hub, bind=bind) as one,
        ):
            await become_equal(hub, one)

    run(work)


def test_streams_for_any_protocol_and_store_are_reset_and_the_main_one_goes_on() -> None:
    async def work() -> None:
        net = MemoryTransport(mux=True)
        async with set_node(net) as node:
            client = await Client.of(net, node)
            opened = [client.streams.open(name, b"store") for name in (LATTICE, "what/1")]
            for stream in (*opened, MAIN_STREAM):
                client.streams.send(stream, encode_ping(stream))
            await client.say()
            ended: set[int] = set()
            results: list[object] = []
            while len(ended) < 2 or not results:
                event = await client.event()
                if isinstance(event, StreamEnded):
                    assert event.is_reset
                    ended.add(event.stream)
                else:
                    assert isinstance(event, FrameArrived)
                    assert event.stream == MAIN_STREAM
                    results.append(decode_payload(event.payload)[0])
            assert ended == set(opened)
            (result,) = results
            assert isinstance(result, Result)
            assert (result.id, result.value) == (MAIN_STREAM, "PONG")
            assert node.observer.counters["streams-refused"] == 1
            client.link.abort()

    run(work)


def test_a_peer_that_breaks_the_rules_of_streams_is_closed_and_counted() -> None:
    async def work() -> None:
        net = MemoryTransport(mux=True)
        async with set_node(net) as node:
            for bad in (encode_mux_frame(DATA, 9, b"x"), encode_frame(encode_ping(1))):
                client = await Client.of(net, node)
                await client.say()
                await client.link.write(bad)
                while await client.event() is not None:
                    pass
            await node.wait_until(lambda one: one.observer.counters["closed-framing"] == 2)

    run(work)


def test_a_full_node_says_so_on_the_main_stream() -> None:
    async def work() -> None:
        net = MemoryTransport(mux=True)
        async with set_node(net, connections_max=1) as node:
            crowd = [await Client.of(net, node) for _ in range(8)]
            for client in crowd:
                await client.say()
            said = [asyncio.ensure_future(client.event()) for client in crowd]
            done, pending = await asyncio.wait(said, return_when=asyncio.FIRST_COMPLETED)
            event = done.pop().result()
            assert isinstance(event, FrameArrived)
            assert event.stream == MAIN_STREAM
            message, _ = decode_payload(event.payload)
            assert isinstance(message, Result)
            assert message.error is not None
            for task in pending:
                task.cancel()
            for client in crowd:
                client.link.abort()

    run(work)
