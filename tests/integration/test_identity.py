"""Nodes on real sockets that know each other by their keys."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import pytest

import datalattice.node.peers as peers_module
from datalattice.apps.kv import Database
from datalattice.apps.queue import Topics
from datalattice.cells import Keyword
from datalattice.client.network import probe
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.errors import NoSigningKey, UsageError
from datalattice.lattice import NODES_KEY, P2P_KEY, get_in
from datalattice.node import MemoryTransport, NodeServer, TcpTransport, open_node
from datalattice.node.peers import OWN_KEY_ANSWERED
from datalattice.node.transport import Link
from datalattice.store import MemoryStore
from datalattice.testing.polling import LIMIT_S, until_async
from datalattice.testing.ports import held_port
from datalattice.wire import FrameBuffer, Result, decode_payload, encode_frame, encode_ping

LOOPBACK = "127.0.0.1"

ONE, TWO, THREE = sorted(
    (KeyPair(bytes([seed]) * 32) for seed in (1, 2, 3)), key=lambda pair: pair.public_key
)


def node_of(key_pair: KeyPair | None, *peers: str, **options: object) -> NodeServer:
    config = NodeConfig(**{"port": 0, "peers": peers, **options})  # type: ignore[arg-type]
    return open_node(MemoryStore(), key_pair=key_pair, config=config)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work()

    asyncio.run(bounded())


def write(node: NodeServer, text: str) -> None:
    assert node.owner is not None
    Topics.at(node.cursor, node.owner.public_key).partition("t", 0).offer(text)


async def converge(*nodes: NodeServer) -> None:
    await until_async(lambda: len({node.root_hash for node in nodes}) == 1)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "BACKOFF_MS_MIN", 50)
    monkeypatch.setattr(peers_module, "BACKOFF_MS_MAX", 100)


@pytest.mark.parametrize("second", [TWO, None], ids=["key", "no key"])
def test_nodes_converge_over_tls_and_know_each_other(second: KeyPair | None) -> None:
    async def work() -> None:
        async with node_of(ONE) as one, node_of(second, str(one.address)) as two:
            write(one, "hello")
            await one.sync()
            await converge(one, two)
            (peer,) = two.peers
            assert peer.connected
            assert peer.proved
            assert peer.public_key == ONE.public_key
            assert peer.address == one.address

    run(work)


def test_two_devices_of_one_owner_are_two_nodes_and_join_what_both_write() -> None:
    def device(identity: KeyPair, *peers: str) -> NodeServer:
        config = NodeConfig(port=0, peers=peers)
        return open_node(MemoryStore(), identity=identity, keys=[THREE], config=config)

    async def work() -> None:
        async with device(ONE) as one, device(TWO, str(one.address)) as two:
            await until_async(lambda: two.peers[0].proved)
            assert two.peers[0].public_key == ONE.public_key
            for name, node in (("one", one), ("two", two)):
                Database.at(node.cursor, THREE.public_key, "shop")[name] = 1
                await node.sync()
            await converge(one, two)
            for node in (one, two):
                found = Database.at(node.cursor, THREE.public_key, "shop")
                assert sorted(found) == ["one", "two"]
            # Queues of a node are those of its first owner's key.
            write(one, "hello")
            assert Topics.at(one.cursor, THREE.public_key).topics() == ["t"]

    run(work)


def test_keys_of_owners_need_an_identity_beside_them() -> None:
    with pytest.raises(UsageError, match="needs an identity"):
        open_node(MemoryStore(), keys=[ONE])
    with pytest.raises(UsageError, match="give it, or these two"):
        open_node(MemoryStore(), key_pair=ONE, identity=TWO)


def test_a_node_is_pulled_from_by_its_key_and_not_by_another() -> None:
    async def work() -> None:
        async with node_of(ONE) as one:
            right, wrong = (f"{key.public_key.hex()}@{one.address}" for key in (ONE, TWO))
            async with node_of(THREE, right) as two, node_of(None, wrong) as three:
                write(one, "hello")
                await one.sync()
                await until_async(lambda: two.peers[0].connected)
                await two.pull(right)
                await two.pull(one.address)
                assert two.root_hash == one.root_hash
                await until_async(lambda: "proved the key" in three.peers[0].reason)
                assert three.root_hash != one.root_hash
                assert one.observer.counters["handshakes-failed"] >= 1

    run(work)


def test_plain_streams_are_refused_unless_they_are_wanted() -> None:
    async def ping(node: NodeServer) -> object:
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
        writer.write(encode_frame(encode_ping(1)))
        buffer = FrameBuffer()
        try:
            while (payload := buffer.next_payload()) is None:
                data = await reader.read(1_000)
                if not data:
                    return None
                buffer.feed(data)
        except ConnectionError:
            return None
        finally:
            writer.transport.abort()
        message, _ = decode_payload(payload)
        assert isinstance(message, Result)
        return message.value

    async def work() -> None:
        async with node_of(ONE) as closed, node_of(TWO, plain=True) as opened:
            assert await ping(closed) is None
            assert closed.observer.counters["plain-refused"] == 1
            assert await ping(opened) == "PONG"
            for node, scheme in ((closed, ""), (opened, ""), (opened, "tcp://")):
                report = await asyncio.to_thread(probe, f"{scheme}{node.address}")
                assert report.root_hash == node.root_hash
            # Between nodes a plain connection proves the key by a challenge.
            async with node_of(THREE, f"tcp://{opened.address}") as dialler:
                write(opened, "hello")
                await opened.sync()
                await converge(opened, dialler)
                await until_async(lambda: dialler.peers[0].public_key == TWO.public_key)
                assert dialler.peers[0].proved

    run(work)


def test_only_those_who_are_allowed_come_in() -> None:
    async def work() -> None:
        allow = (TWO.public_key.hex(),)
        async with (
            node_of(ONE, allow=allow, plain=True) as one,
            node_of(TWO, str(one.address)) as two,
            node_of(THREE, str(one.address)) as three,
            node_of(None, f"tcp://{one.address}") as nobody,
        ):
            write(one, "secret")
            await one.sync()
            await converge(one, two)
            await until_async(lambda: one.observer.counters.get("peers-not-allowed", 0) >= 4)
            assert {connection.id for connection in one.connections} == {
                connection.id for connection in one.connections if connection.id.startswith("in ")
            }
            assert len(one.connections) == 1
            assert three.root_hash != one.root_hash != nobody.root_hash

    run(work)


def test_two_nodes_that_want_each_other_keep_one_connection() -> None:
    async def work() -> None:
        async with node_of(ONE) as one, node_of(TWO) as two:
            one.add_peer(two.address)
            two.add_peer(one.address)
            for number in range(5):
                write(one, f"{number}")
                write(two, f"{number}")
                await one.sync()
                await two.sync()
                await converge(one, two)
            # The connection of the smaller key stays.
            await until_async(
                lambda: (
                    two.connection_count == 1
                    and [link.id[:4] for link in one.connections] == ["out "]
                )
            )
            (stays,) = one.connections
            assert one.peers[0].connected
            assert two.peers[0].connected
            await two.pull()
            await two.pull(one.address)
            await asyncio.sleep(0.3)  # several pauses
            assert one.connection_count == two.connection_count == 1
            assert one.connections == [stays]
            # When that ends, for whatever reason, there is one again.
            stays.cut("for a test")
            await until_async(lambda: stays not in one.connections)
            await until_async(lambda: one.peers[0].connected and two.peers[0].connected)
            write(two, "more")
            await two.sync()
            await converge(one, two)
            await one.remove_peer(public_key=TWO.public_key)
            assert one.peers == []

    run(work)


def test_a_node_does_not_talk_to_itself() -> None:
    async def work() -> None:
        async with node_of(ONE) as one:
            one.add_peer(one.address)
            await until_async(lambda: one.peers[0].reason == OWN_KEY_ANSWERED)
            await until_async(lambda: one.connection_count == 0)
            assert one.observer.counters["own-key-refused"] == 1
            assert not one.observer.reasons

    run(work)


def test_nodes_find_each_other_by_what_one_of_them_publishes(ending: ExitStack) -> None:
    """Two know the third only; what they publish lets them connect to each other."""

    async def work() -> None:
        ports = [ending.enter_context(held_port()) for _ in range(2)]
        options = [{"port": port, "url": f"127.0.0.1:{port}", "discover": "p2p"} for port in ports]
        async with node_of(ONE) as hub:
            async with (
                node_of(TWO, str(hub.address), **options[0]) as two,
                node_of(THREE, str(hub.address), **options[1]) as three,
            ):
                await until_async(lambda: {peer.source for peer in two.peers} == {"added", "p2p"})
                await until_async(lambda: {peer.source for peer in three.peers} == {"added", "p2p"})
                await until_async(lambda: two.peers[1].connected and three.peers[1].connected)
                assert two.peers[1].public_key == THREE.public_key
                assert hub.peers == [], "the hub was not told to look"
                # What is found is a claim of anybody: it waits with the strangers.
                (named,) = two._hosts.known
                assert str(hub.address) in named
                assert two._replica.hosting is not None
                assert two._replica.hosting.rules.wanted() == [ONE.public_key]
                entry = get_in(hub.root, [P2P_KEY, NODES_KEY, TWO.public_key])
                assert get_in(getattr(entry, "value", None), [Keyword("timestamp")])
            # The others are gone; a peer that is known by its key alone is found as well.
            hub.add_peer(public_key=TWO.public_key)
            assert hub.peers[0].address is None
        with pytest.raises(UsageError, match="discover"):
            NodeConfig(discover="dns")
        with pytest.raises(NoSigningKey, match="url"):
            node_of(None, url="example.org:1")

    run(work)


def test_a_crowd_of_hostile_clients_leaves_the_node_well() -> None:
    async def work() -> None:
        async with node_of(ONE) as one:
            writers = []
            for number in range(60):
                _, writer = await asyncio.open_connection("127.0.0.1", one.port)
                writers.append(writer)
                writer.write(b"\x16\x03" + os.urandom(number * 7))
                if number % 2:
                    writer.write_eof()
                else:
                    writer.transport.abort()
            async with node_of(TWO, str(one.address)) as two:
                write(one, "hello")
                await one.sync()
                await converge(one, two)
            counters = one.observer.counters
            await until_async(lambda: counters.get("handshakes-failed", 0) >= 30)
            for writer in writers:
                writer.transport.abort()
            assert not one.observer.reasons

    run(work)


def test_links_in_memory_have_no_keys() -> None:
    async def work() -> None:
        net = MemoryTransport()
        config = NodeConfig(bind="memory", port=0)
        async with open_node(MemoryStore(), key_pair=ONE, config=config, transport=net) as one:
            dialling = NodeConfig(bind="memory", port=0, peers=(str(one.address),))
            async with open_node(MemoryStore(), config=dialling, transport=net) as two:
                await until_async(lambda: two.peers[0].connected)
                assert not two.peers[0].proved
                assert two.peers[0].public_key is None

    run(work)


def test_a_transport_of_ones_own_takes_the_place_of_the_usual_one() -> None:
    async def work() -> None:
        transport = TcpTransport(THREE)
        config = NodeConfig(port=0)
        async with open_node(
            MemoryStore(), key_pair=ONE, config=config, transport=transport
        ) as one:
            link = await TcpTransport().dial(str(one.address))
            assert link.public_key == THREE.public_key
            await link.close()

    run(work)


@dataclasses.dataclass(frozen=True)
class Cellar:
    """A place that has no host and no port."""

    name: str
    public_key: bytes | None = None

    def with_key(self, public_key: bytes | None) -> Cellar:
        return dataclasses.replace(self, public_key=public_key)

    def __str__(self) -> str:
        key = "" if self.public_key is None else f" {self.public_key.hex()}"
        return f"cellar {self.name}{key}"


class Cellars(TcpTransport):
    """A transport whose addresses are names; it knows where they are."""

    def __init__(self, key_pair: KeyPair) -> None:
        super().__init__(key_pair)
        self.known: dict[str, str] = {}

    def endpoint(self, address: str) -> Cellar:  # type: ignore[override]
        kind, *rest = address.split()
        if kind != "cellar" or not 1 <= len(rest) <= 2:
            raise UsageError(f"a cellar has a name, got {address!r}")
        return Cellar(rest[0], bytes.fromhex(rest[1]) if len(rest) > 1 else None)

    async def dial(self, address: str) -> Link:
        place = self.endpoint(address)
        if place.name not in self.known:
            raise ConnectionRefusedError("no such cellar")
        return await super().dial(self.known[place.name])


def test_a_transport_has_addresses_of_its_own_kind() -> None:
    async def work() -> None:
        transport = Cellars(TWO)
        config = NodeConfig(port=-1)
        async with (
            node_of(ONE) as one,
            open_node(MemoryStore(), key_pair=TWO, config=config, transport=transport) as two,
        ):
            transport.known["wine"] = str(one.address)
            two.add_peer("cellar wine")
            two.add_peer("cellar coal")
            with pytest.raises(UsageError, match="a cellar has a name, got 'house wine'"):
                two.add_peer("house wine")
            await until_async(lambda: two.peers[0].connected)
            assert [peer.address for peer in two.peers] == ["cellar wine", "cellar coal"]
            assert two.peers[0].public_key == ONE.public_key
            await two.remove_peer("cellar coal")
            assert [peer.address for peer in two.peers] == ["cellar wine"]

    run(work)


@pytest.mark.usefixtures("multicast")
def test_nodes_on_one_network_find_each_other() -> None:
    async def work() -> None:
        nodes = [node_of(key, discover="mdns", mdns_interfaces=(LOOPBACK,)) for key in (ONE, TWO)]
        async with nodes[0] as one, nodes[1] as two:
            await until_async(lambda: bool(one.connection_count and two.connection_count))
            for node, other in ((one, two), (two, one)):
                await until_async(lambda node=node: [one.connected for one in node.peers] == [True])  # type: ignore[misc]
                (peer,) = node.peers
                assert other.identity is not None
                assert peer.public_key == other.identity.public_key
                assert peer.source == "mdns"
                assert node.observer.counters["peers-found-mdns"] == 1

    run(work)


@pytest.mark.parametrize("scheme", ["tls", "tcp"])
def test_with_a_peer_of_that_key_only_some_paths_are_exchanged(scheme: str) -> None:
    async def work() -> None:
        config = NodeConfig(port=0, plain=True)
        one = open_node(MemoryStore(), key_pair=ONE, config=config)
        async with one:
            address = f"{scheme}://{ONE.public_key.hex()}@{one.address}"
            two = open_node(
                MemoryStore(),
                key_pair=TWO,
                config=NodeConfig(
                    port=0,
                    peers=(address,),
                    partial=(f"{ONE.public_key.hex()}/queue/{TWO.public_key.hex()}",),
                ),
            )
            write(one, "stays here")
            await one.sync()
            async with two, node_of(THREE, str(one.address)) as three:
                write(two, "goes there")
                await two.sync()
                await converge(one, three)
                queues = Topics.at(one.cursor, TWO.public_key)
                await until_async(lambda: list(queues.partition("t", 0)) == ["goes there"])
                assert get_in(two.root, [Keyword("queue"), ONE.public_key]) is None

    run(work)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("short/queue", "64 hex digits"),
        ("00" * 32, "KEY/queue/OWNER"),
        ("00" * 32 + "/queue//x", "KEY/queue/OWNER"),
        ("00" * 32 + "/nonsense", "nothing at 'nonsense'"),
        ("00" * 32 + "/queue/" + "11" * 32 + "/value", "enters a signed value"),
    ],
)
def test_the_paths_of_a_partial_peer_are_checked(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        open_node(MemoryStore(), config=NodeConfig(partial=(text,)))
