"""Iroh: what a stranger can do to a node's UDP port, and what the node says of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import sys
import types
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import datalattice.node.transport.strangers as strangers_module
from datalattice.client import parse_address
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError
from datalattice.node import open_node
from datalattice.node.transport import Link, Listener, NodeTransport, TcpTransport
from datalattice.node.transport.schemes import PORTS_TRIED_MAX
from datalattice.store import MemoryStore
from datalattice.testing.polling import LIMIT_S
from datalattice.wire import MUX_PROTOCOL

iroh = pytest.importorskip("iroh")
iroh_module = pytest.importorskip("datalattice.node.transport.iroh")

HOST = KeyPair(b"the one who listens has this one")
GUEST = KeyPair(b"the one who dials is seeded thus")
ALPN = MUX_PROTOCOL.encode()


class IrohHost:
    """A transport that listens, echoes, and counts whom it refused."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        (self.address,) = listener.addresses
        self.refused: Counter[str] = Counter()
        self.keys: list[bytes | None] = []
        self.told = asyncio.Event()

    def where(self) -> Any:
        """Return the address as iroh takes it."""
        id = iroh.EndpointId.from_bytes(HOST.public_key)
        return iroh.EndpointAddr(id, None, [f"127.0.0.1:{self.listener.port}"])

    async def until(self, name: str, count: int = 1) -> None:
        while self.refused[name] < count:
            self.told.clear()
            await self.told.wait()


@contextlib.asynccontextmanager
async def hosting() -> AsyncIterator[IrohHost]:
    transport = iroh_module.IrohTransport(HOST)

    async def accept(link: Link) -> None:
        host.keys.append(link.public_key)
        while data := await link.read():
            await link.write(data)

    def refused(name: str, _text: str) -> None:
        host.refused[name] += 1
        host.told.set()

    host = IrohHost(await transport.listen("127.0.0.1", 0, accept, refused))
    try:
        yield host
    finally:
        await host.listener.close()
        await transport.close()


@contextlib.asynccontextmanager
async def stranger() -> AsyncIterator[Any]:
    """Give an endpoint of the library itself, which does as it likes."""
    builder = iroh.EndpointBuilder()
    builder.apply_minimal()
    builder.relay_mode(iroh.RelayMode.disabled())
    builder.bind_addr("127.0.0.1:0")
    builder.bind_addr("[::1]:0")
    endpoint = await builder.bind()
    try:
        yield endpoint
    finally:
        await endpoint.close()


async def is_well(host: IrohHost) -> bool:
    """Return whether an honest peer is served."""
    transport = iroh_module.IrohTransport(GUEST)
    link = await transport.dial(host.address)
    try:
        await link.write(b"hello")
        return bool(await link.read() == b"hello")
    finally:
        link.abort()
        await transport.close()


def run(work: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work()

    asyncio.run(bounded())


def test_the_key_of_the_node_is_its_iroh_key() -> None:
    async def work() -> None:
        assert iroh.SecretKey.from_bytes(HOST.seed).public().to_bytes() == HOST.public_key
        async with hosting() as host:
            assert parse_address(host.address).public_key == HOST.public_key
            assert await is_well(host)
            assert host.keys == [GUEST.public_key]

    run(work)


@pytest.mark.parametrize("kind", ["open_bi", "open_uni"])
def test_a_peer_that_opens_a_second_stream_is_cut(kind: str) -> None:
    async def work() -> None:
        async with hosting() as host, stranger() as endpoint:
            connection = await endpoint.connect(host.where(), ALPN)
            first = await connection.open_bi()
            await first.send().write_all(b"x")
            assert await first.recv().read(9) == b"x"
            second = await getattr(connection, kind)()
            with contextlib.suppress(iroh.IrohError):
                await (second.send() if kind == "open_bi" else second).write_all(b"y")
            assert "a link has one stream" in await connection.closed()
            assert await is_well(host)

    run(work)


def test_a_peer_that_opens_no_stream_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iroh_module, "HANDSHAKE_TIMEOUT_S", 0.3)

    async def work() -> None:
        async with hosting() as host, stranger() as endpoint:
            connection = await endpoint.connect(host.where(), ALPN)
            assert "no stream was opened" in await connection.closed()
            await host.until("strangers-silent")
            assert not host.keys
            monkeypatch.undo()  # an honest peer has the usual time
            assert await is_well(host)

    run(work)


def test_a_peer_that_resets_its_stream_or_speaks_another_protocol_ends_alone() -> None:
    async def work() -> None:
        async with hosting() as host, stranger() as endpoint:
            connection = await endpoint.connect(host.where(), ALPN)
            stream = await connection.open_bi()
            await stream.send().write_all(b"part of a fra")
            await stream.send().reset(7)
            await connection.closed()
            with pytest.raises(iroh.IrohError):
                await endpoint.connect(host.where(), b"another/1")
            await host.until("handshakes-failed")
            assert await is_well(host)

    run(work)


class FakeConnection:
    """A connection on which datagrams come as listed; none after these."""

    def __init__(self, *received: int) -> None:
        self._received = list(received)
        self.looks = 0
        self.is_over = asyncio.Event()

    async def closed(self) -> None:
        await self.is_over.wait()

    def stats(self) -> Any:
        self.looks += 1
        count = self._received.pop(0) if len(self._received) > 1 else self._received[0]
        return types.SimpleNamespace(udp_rx_datagrams=count)

    def close(self, _code: int, _reason: bytes) -> None:
        self.is_over.set()


def test_a_connection_ends_when_nothing_comes_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iroh_module, "_LOOK_S", 0.001)
    looks = iroh_module.SILENT_LOOKS

    async def work() -> None:
        dead = FakeConnection(7)
        await iroh_module._end_when_silent(dead)
        assert dead.is_over.is_set()
        assert dead.looks == 1 + looks
        slow = FakeConnection(1, *[2] * looks, 3)  # one look less than it takes, and then more
        await iroh_module._end_when_silent(slow)
        assert slow.looks == 2 + looks + looks
        ended = FakeConnection(1)
        ended.is_over.set()
        await iroh_module._end_when_silent(ended)
        assert not ended.looks

    run(work)


def test_strangers_are_bounded_and_prove_their_addresses_in_a_crowd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strangers_module, "STRANGERS_MAX", 4)
    monkeypatch.setattr(iroh_module, "HANDSHAKE_TIMEOUT_S", LIMIT_S)  # nobody goes for silence
    retry, retried = iroh.Incoming.retry, []

    async def retrying(incoming: Any) -> None:
        retried.append(incoming)
        await retry(incoming)

    monkeypatch.setattr(iroh.Incoming, "retry", retrying)

    async def work() -> None:
        async with hosting() as host, stranger() as endpoint:
            connections = [await endpoint.connect(host.where(), ALPN) for _ in range(4)]
            assert not host.refused
            assert len(retried) == 2, "from half of the room on"
            assert await is_well(host), "whoever comes next gets the place of the oldest"
            assert host.refused == {"strangers-evicted": 1}
            assert "no stream was opened" in await connections[0].closed()
            assert connections[1].close_reason() is None

    run(work)


def test_only_the_given_address_is_bound() -> None:
    async def work() -> None:
        transport = iroh_module.IrohTransport(HOST)
        listener = await transport.listen("127.0.0.1", 0, lambda _link: asyncio.sleep(0))
        ((_, endpoint),) = transport._bound
        assert {one.rpartition(":")[0] for one in endpoint.bound_sockets()} <= {
            "127.0.0.1",
            "[::1]",
        }
        with pytest.raises(UsageError, match=r"cannot listen on 203\.0\.113\.9"):
            await transport.listen("203.0.113.9", 0, lambda _link: asyncio.sleep(0))
        await listener.close()
        await transport.close()

    run(work)


def test_a_node_listens_and_dials_over_ipv6() -> None:
    async def work() -> None:
        here, there = iroh_module.IrohTransport(GUEST), iroh_module.IrohTransport(HOST)
        ended = asyncio.Event()
        try:
            listener = await there.listen("::1", 0, lambda _link: ended.wait())
        except UsageError:
            pytest.skip("this machine has no IPv6")
        (address,) = listener.addresses
        assert parse_address(address).host == "::1"
        link = await here.dial(address)
        assert link.public_key == HOST.public_key
        ended.set()
        link.abort()
        await listener.close()
        for transport in (here, there):
            await transport.close()

    run(work)


def test_an_address_that_iroh_cannot_bind_is_named() -> None:
    async def work() -> None:
        transport = iroh_module.IrohTransport(HOST)
        with pytest.raises(UsageError, match=r"cannot speak iroh at \[fe80::1%lo\]:0"):
            await transport._bind("fe80::1%lo", 0, [])
        await transport.close()

    run(work)


def test_two_nodes_are_connected_by_a_ticket_alone() -> None:
    async def work() -> None:
        key = HOST.public_key.hex()
        config = NodeConfig(port=0, iroh="direct", url="north.example:9")
        async with (
            open_node(MemoryStore(), key_pair=HOST, config=config) as here,
            open_node(MemoryStore(), key_pair=GUEST, port=-1) as there,
        ):
            port = here.port
            assert here.ticket == ",".join(
                (
                    f"{key}@north.example:9",
                    f"{key}@127.0.0.1:{port}",
                    f"iroh://{key}@127.0.0.1:{port}",
                )
            )
            assert there.ticket is None, "it only dials"
            ticket = ",".join(here.ticket.split(",")[2:] * 2)
            there.add_peer(ticket)
            await there.wait_until(lambda node: node.root_hash == here.root_hash)
            (peer,) = there.peers
            assert peer.address == ticket.split(",")[0]
            assert peer.public_key == HOST.public_key
            await there.remove_peer(ticket)
            assert not there.peers
            with pytest.raises(UsageError, match="the key of one node"):
                there.add_peer(f"{ticket},127.0.0.1:1")

    run(work)


def test_the_gate_is_the_same_over_iroh() -> None:
    async def work() -> None:
        allowed = KeyPair(b"and this one alone is let inside")
        config = NodeConfig(port=0, iroh="direct", allow=(allowed.public_key.hex(),))
        async with open_node(MemoryStore(), key_pair=HOST, config=config) as node:
            address = str(node.ticket).split(",")[1]
            for key, is_let_in in ((GUEST, False), (allowed, True)):
                transport = iroh_module.IrohTransport(key)
                link = await transport.dial(address)
                await link.write(b"\x01")  # the mux says its hello first; this begins one
                assert bool(await link.read()) == is_let_in
                link.abort()
                await transport.close()
            assert node.observer.counters["peers-not-allowed"] == 1

    run(work)


def test_datagrams_that_are_no_quic_change_nothing() -> None:
    async def work() -> None:
        dice = random.Random(7)
        async with hosting() as host:
            with socket.socket(type=socket.SOCK_DGRAM) as sender:
                for _ in range(1_000):
                    data = dice.randbytes(dice.choice((1, 20, 300, 1_200)))
                    sender.sendto(data, ("127.0.0.1", host.listener.port))
            assert await is_well(host)
            assert not host.refused

    run(work)


def test_the_port_is_the_same_for_both_or_the_node_says_so() -> None:
    async def work() -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            config = NodeConfig(port=port, iroh="direct")
            with pytest.raises(UsageError, match=f"port {port} on 127.0.0.1 is in use"):
                await open_node(MemoryStore(), key_pair=HOST, config=config).start()

    run(work)


def _taking_udp_ports(count: int, stack: contextlib.ExitStack) -> Callable[[int], None]:
    """Return a function that takes the UDP ports of the first `count` numbers that it is given."""
    taken: set[int] = set()

    def take(port: int) -> None:
        if len(taken) < count:
            assert port not in taken, "a refused port is not chosen again"
            taken.add(port)
            udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            with contextlib.suppress(OSError):  # another process has it: it is taken, too
                udp.bind(("127.0.0.1", port))

    return take


@pytest.mark.parametrize("count", [1, PORTS_TRIED_MAX - 1, PORTS_TRIED_MAX])
def test_a_port_that_the_system_chooses_is_free_for_both(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        transport = NodeTransport(HOST, iroh="direct")
        listen = TcpTransport.listen

        async def listen_where_udp_is_taken(*arguments: Any) -> Listener:
            listener = await listen(*arguments)
            take(listener.port)
            return listener

        monkeypatch.setattr(TcpTransport, "listen", listen_where_udp_is_taken)
        if count == PORTS_TRIED_MAX:
            with pytest.raises(UsageError, match="in use"):
                await transport.listen("127.0.0.1", 0, lambda _link: asyncio.sleep(0))
        else:
            found = await transport.listen("127.0.0.1", 0, lambda _link: asyncio.sleep(0))
            assert {parse_address(one).port for one in found.addresses} == {found.port}
            await found.close()
        await transport.close()

    with contextlib.ExitStack() as stack:
        take = _taking_udp_ports(count, stack)
        asyncio.run(scenario())


def test_a_dial_that_nobody_answers_ends_by_our_clock_and_says_so() -> None:
    async def work() -> None:
        transport = iroh_module.IrohTransport(GUEST, dial_timeout_s=0.3)
        address = f"iroh://{HOST.public_key.hex()}@127.0.0.1:9"
        with pytest.raises(OSError, match=f"no answer from {address}"):
            await transport.dial(address)
        with pytest.raises(OSError, match=r"no such host|not known"):
            await transport.dial(f"iroh://{HOST.public_key.hex()}@{'x' * 70}.invalid:9")
        with pytest.raises(OSError, match="the key of this node itself"):
            await transport.dial(f"iroh://{GUEST.public_key.hex()}@127.0.0.1:9")
        with pytest.raises(UsageError, match='iroh = "relay"'):
            await transport.dial(f"iroh://{HOST.public_key.hex()}")
        await transport.close()

    run(work)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "iroh", None)
    monkeypatch.delitem(sys.modules, "datalattice.node.transport.iroh")
    with pytest.raises(UsageError, match=r"datalattice\[iroh\]"):
        NodeTransport(HOST, iroh="direct")
    plain = NodeTransport(HOST)
    assert plain.endpoint("127.0.0.1:1").port == 1
    with pytest.raises(UsageError, match=r"datalattice\[iroh\]"):
        plain.endpoint(f"iroh://{HOST.public_key.hex()}@127.0.0.1:1")
