"""Nodes in one process: life, durability, peers, limits of a connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from datalattice.apps.queue import Topics
from datalattice.cells import EMPTY_SET, Set, Value
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.errors import (
    PeerUnavailable,
    StoreClosed,
    StoreFull,
    StoreLocked,
    Timeout,
    UsageError,
)
from datalattice.lattice import SetLattice
from datalattice.node import MemoryTransport, NodeServer, open_node
from datalattice.node.transport import Link
from datalattice.store import CellStore, Commit, MemoryStore
from datalattice.sync.conduct import MALFORMED_MAX
from datalattice.testing.polling import LIMIT_S
from datalattice.wire import (
    ErrorCode,
    FrameBuffer,
    Result,
    decode_payload,
    encode_frame,
    encode_goodbye,
    encode_length,
    encode_ping,
    encode_query,
)

T = TypeVar("T")
KEYS = KeyPair(b"k" * 32)


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await work()

    return asyncio.run(bounded())


def set_node(transport: MemoryTransport, *peers: NodeServer, **options: object) -> NodeServer:
    """Return a node of one set, in memory."""
    addresses = tuple(str(peer.address) for peer in peers)
    chosen: dict[str, object] = {"port": 0, **options}
    config = NodeConfig(bind="memory", peers=addresses, **chosen)  # type: ignore[arg-type]
    return open_node(MemoryStore(), lattice=SetLattice(), transport=transport, config=config)


def add(node: NodeServer, *elements: Value) -> None:
    def joined(value: Value) -> Value:
        assert isinstance(value, Set)
        return value.union(Set.of(elements))

    node.cursor.update(joined)


async def all_equal(*nodes: NodeServer) -> None:
    """Return when all nodes announce one root."""
    while True:
        changes = [asyncio.ensure_future(node.changed()) for node in nodes]
        await asyncio.sleep(0)  # each now waits for its node's next change
        if len({node.root_hash for node in nodes}) > 1:
            await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
        for change in changes:
            change.cancel()
        if len({node.root_hash for node in nodes}) == 1:
            return


class Client:
    """A raw client of a node."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._buffer = FrameBuffer()

    @classmethod
    async def of(cls, transport: MemoryTransport, node: NodeServer) -> Client:
        return cls(await transport.dial(str(node.address)))

    async def receive(self) -> bytes | None:
        """Return the next payload, None at the end of the stream."""
        while (payload := self._buffer.next_payload()) is None:
            data = await self.link.read()
            if not data:
                return None
            self._buffer.feed(data)
        return payload

    async def result(self) -> Result:
        payload = await self.receive()
        assert payload is not None
        message, _ = decode_payload(payload)
        assert isinstance(message, Result)
        return message


def test_nodes_converge_whoever_dials_and_writes() -> None:
    async def work() -> None:
        net = MemoryTransport()
        async with set_node(net) as a, set_node(net, a) as b, set_node(net, a, b) as c:
            for number, node in enumerate((a, b, c)):
                add(node, number)
                await node.sync()
            await all_equal(a, b, c)
            assert c.cursor.get() == Set.of([0, 1, 2])
            await c.pull()
            assert [peer.connected for peer in c.peers] == [True, True]

    run(work)


def test_a_root_survives_a_restart_and_is_announced_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_node(tmp_path / "s", lattice=SetLattice(), port=-1) as node:
            assert node.root == EMPTY_SET
            add(node, "kept")
            await node.sync()
            add(node, "written by close")
        async with open_node(tmp_path / "s", lattice=SetLattice(), port=-1) as node:
            assert node.root == Set.of(["kept", "written by close"])
            assert node.cursor.get() == node.root

    run(work)


def test_sync_from_many_threads_is_durable_when_it_returns(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    seen: list[bool] = []

    def write(node: NodeServer, name: str) -> None:
        for number in range(5):
            element = f"{name}{number}"
            add(node, element)
            node.cursor.sync()
            with CellStore.open(folder, read_only=True) as reader:
                root = reader.root()
                seen.append(isinstance(root, Set) and element in root)

    async def work() -> None:
        async with open_node(folder, lattice=SetLattice(), port=-1) as node:
            threads = [threading.Thread(target=write, args=(node, name)) for name in "abcd"]
            for thread in threads:
                thread.start()
            for thread in threads:
                await asyncio.to_thread(thread.join)
            assert len(node.cursor.get()) == 20  # type: ignore[arg-type]

    run(work)
    assert seen == [True] * 20


def test_unsynced_changes_stay_private_while_foreign_values_are_taken_in() -> None:
    async def work() -> None:
        net = MemoryTransport()
        async with set_node(net) as a, set_node(net, a) as b:
            add(a, "private")
            add(b, "public")
            await b.sync()
            await a.wait_until(lambda node: node.root == Set.of(["public"]))
            assert a.cursor.get() == Set.of(["private", "public"])
            assert b.root == Set.of(["public"])
            await a.sync()
            await all_equal(a, b)

    run(work)


def test_a_wait_ends_when_the_peer_has_taken_in_what_came_from_here() -> None:
    async def work() -> None:
        net = MemoryTransport()
        async with set_node(net) as hub, set_node(net, hub) as site:
            add(site, 1)
            await site.sync()
            # The site has changed for the last time by now; the hub is still to change.
            await site.wait_until(lambda node: node.root_hash == hub.root_hash, LIMIT_S)
            known: list[bool] = []
            asyncio.get_running_loop().call_later(0.1, known.append, True)
            await site.wait_until(lambda _: bool(known), LIMIT_S)

    run(work)


def test_a_failing_store_is_the_writer_s_error_and_shows() -> None:
    class FullStore(MemoryStore):
        full = False

        def _commit(self, *arguments: object) -> Commit | None:
            if self.full:
                raise StoreFull("no space left")
            return super()._commit(*arguments)  # type: ignore[arg-type]

    async def work() -> None:
        store = FullStore()
        node = open_node(store, lattice=SetLattice(), port=-1)
        async with node:
            add(node, 1)
            await node.sync()
            store.full = True
            add(node, 2)
            with pytest.raises(StoreFull):
                await node.sync()
            await asyncio.sleep(0)
            assert node.root == Set.of([1])
            assert node.observer.health.startswith("degraded: StoreFull")
            store.full = False
            await node.sync()
            assert node.root == Set.of([1, 2])

    run(work)


def test_one_folder_opens_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_node(tmp_path / "s", port=-1):
            with pytest.raises(StoreLocked):
                await open_node(tmp_path / "s", port=-1).start()

    run(work)


def test_a_port_in_use_is_one_clear_line_and_gives_the_folder_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_node(MemoryStore(), port=0) as node:
            with pytest.raises(UsageError, match=f"port {node.port} .* in use"):
                await open_node(tmp_path / "s", port=node.port).start()
        CellStore.open(tmp_path / "s").close()

    run(work)


def test_the_usual_port_gives_way_to_any_free_one() -> None:
    async def work() -> None:
        async with open_node(MemoryStore()) as first, open_node(MemoryStore()) as second:
            assert first.port != second.port

    run(work)


def test_pull_and_peers_say_what_is_wrong() -> None:
    async def work() -> None:
        async with set_node(MemoryTransport()) as node:
            with pytest.raises(PeerUnavailable, match="not connected"):
                await node.pull()
            with pytest.raises(UsageError, match="not a peer"):
                await node.remove_peer("memory:1")
            for wrong in ("nowhere", "host:", ":1", "host:0", "host:99999", "http://h:1", "h:x"):
                with pytest.raises(UsageError, match=r"address|port"):
                    node.add_peer(wrong)
            with pytest.raises(Timeout):
                await node.wait_until(lambda _: False, 0.01)
            node.add_peer("memory:7")
            node.add_peer("tls://memory:7")
            assert len(node.peers) == 1
            while "no node listens" not in node.peers[0].reason:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await node.remove_peer("memory:7")
            assert node.peers == []

    run(work)


def test_a_client_asks_and_is_not_told_of_changes() -> None:
    async def work() -> None:
        net = MemoryTransport()
        async with set_node(net) as node:
            client = await Client.of(net, node)
            await client.link.write(encode_frame(encode_ping("me")) + encode_frame(b"\xff"))
            assert (await client.result()).value == "PONG"
            refused = await client.result()
            assert refused.id is None
            assert refused.error is not None
            assert refused.error.name == "FORMAT"
            add(node, 1)
            await node.sync()
            await client.link.write(encode_frame(encode_query(9, ())))
            answer = await client.result()
            assert answer.id == 9
            assert answer.value == Set.of([1])
            await client.link.write(encode_frame(encode_goodbye()))
            assert await client.receive() is None

    run(work)


@pytest.mark.parametrize("first", [b"\x80", encode_length(50_000_001), b"\xff" * 5])
def test_an_illegal_length_ends_the_connection(first: bytes) -> None:
    async def work() -> None:
        net = MemoryTransport()
        async with set_node(net) as node:
            client = await Client.of(net, node)
            await client.link.write(first)
            assert await client.receive() is None

    run(work)


def test_eight_frames_that_are_no_messages_end_the_connection() -> None:
    async def work() -> None:
        net = MemoryTransport()
        async with set_node(net) as node:
            client = await Client.of(net, node)
            await client.link.write(encode_frame(b"\xff") * MALFORMED_MAX)
            for _ in range(MALFORMED_MAX):
                assert (await client.result()).error is not None
            assert await client.receive() is None
            assert node.observer.counters["malformed"] == MALFORMED_MAX

    run(work)


def test_a_frame_that_does_not_complete_is_cut_and_an_idle_connection_is_not() -> None:
    async def work() -> None:
        net = MemoryTransport()
        async with set_node(net, read_timeout_ms=50) as node:
            idle, slow = await Client.of(net, node), await Client.of(net, node)
            await slow.link.write(b"\x05ab")
            assert await slow.receive() is None
            await idle.link.write(encode_frame(encode_ping(1)))
            assert (await idle.result()).value == "PONG"

    run(work)


def test_connections_are_counted() -> None:
    async def work() -> None:
        net = MemoryTransport()
        async with set_node(net, connections_max=2) as node:
            clients = [await Client.of(net, node) for _ in range(3)]
            refusal = await clients[2].result()
            assert refusal.error == ErrorCode.LOAD
            assert await clients[2].receive() is None
            await clients[0].link.close()
            while True:  # until the node has seen that one is gone
                late = await Client.of(net, node)
                await late.link.write(encode_frame(encode_ping(1)))
                if (await late.result()).error is None:
                    break

    run(work)


def test_a_peer_that_stays_away_is_dialled_again() -> None:
    async def work() -> None:
        net = MemoryTransport()
        hub = set_node(net)
        async with hub:
            address = str(hub.address)
        async with set_node(net, port=-1) as node:
            node.add_peer(address)
            add(node, "early")
            await node.sync()
            port = int(address.rpartition(":")[2])
            config = NodeConfig(port=port, bind="memory")
            again = open_node(MemoryStore(), lattice=SetLattice(), transport=net, config=config)
            async with again:
                await again.wait_until(lambda late: late.root == Set.of(["early"]))

    run(work)


def test_a_closed_node_refuses_writes_and_closing_twice_is_fine() -> None:
    async def work() -> None:
        node = set_node(MemoryTransport())
        async with node:
            cursor = node.cursor
        add(node, 1)
        with pytest.raises(StoreClosed):
            cursor.sync()
        await node.close()

    run(work)


def test_signed_queues_replicate_with_their_signatures() -> None:
    async def work() -> None:
        net = MemoryTransport()
        config = NodeConfig(port=0, bind="memory")
        leader = open_node(MemoryStore(), key_pair=KEYS, transport=net, config=config)
        async with leader:
            peer = NodeConfig(port=-1, peers=(str(leader.address),))
            async with open_node(MemoryStore(), transport=net, config=peer) as follower:
                topics = Topics.at(leader.cursor, KEYS.public_key)
                for start in range(0, 500, 100):
                    topics.partition("t", 0).offer_many(range(start, start + 100))
                    await leader.sync()
                await all_equal(leader, follower)
                copy = Topics.at(follower.cursor, KEYS.public_key)
                assert list(copy.partition("t", 0)) == list(range(500))

    run(work)


@pytest.mark.parametrize(
    "options",
    [
        {"port": 65_536},
        {"port": "80"},
        {"bind": ""},
        {"peers": ("nowhere",)},
        {"ping_reply": "hello"},
        {"message_bytes_max": 99_999},
        {"message_bytes_max": 50_000_001},
        {"connections_max": 0},
        {"read_timeout_ms": 0},
        {"broadcast_delay_ms": -1},
        {"cache_bytes": -1},
    ],
)
def test_wrong_options_are_refused_before_anything_is_opened(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        NodeConfig(**options)  # type: ignore[arg-type]
