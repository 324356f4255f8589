"""Peers that send what they should not: the node lives on, holds little, accepts nothing false."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

import datalattice.node.network
import datalattice.sync.conduct
import datalattice.wire.streams
from datalattice.apps.queue import Topics
from datalattice.cells import (
    Index,
    Keyword,
    Map,
    Signed,
    Text,
    Value,
    Vector,
    encode_message,
    value_hash,
)
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, SetLattice, get_in, root_lattice
from datalattice.node import MemoryTransport, NodeServer, TcpTransport, open_node
from datalattice.node.transport import Accept, Link, Listener, OnRefused, Transport
from datalattice.node.transport.memory import MemoryLink
from datalattice.store import MemoryStore
from datalattice.testing.polling import LIMIT_S
from datalattice.wire import (
    FrameBuffer,
    Result,
    decode_payload,
    encode_frame,
    encode_length,
    encode_ping,
    encode_query,
    encode_result,
)

T = TypeVar("T")
KEYS = KeyPair(b"k" * 32)
FORGER = KeyPair(b"f" * 32)
QUEUE = Keyword("queue")


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await work()

    return asyncio.run(bounded())


def root_node(transport: Transport, bind: str = "memory", **options: object) -> NodeServer:
    config = NodeConfig(bind=bind, port=0, **options)  # type: ignore[arg-type]
    return open_node(
        MemoryStore(), key_pair=KEYS, lattice=root_lattice(), transport=transport, config=config
    )


async def answer_to(link: Link, payload: bytes, id: int) -> Result | None:
    """Send a request; return its answer, None when the node ended the connection."""
    await link.write(encode_frame(payload))
    buffer = FrameBuffer()
    while True:
        while (found := buffer.next_payload()) is None:
            data = await link.read()
            if not data:
                return None
            buffer.feed(data)
        message, _ = decode_payload(found)
        if isinstance(message, Result) and message.id == id:
            return message


async def is_well(transport: Transport, node: NodeServer) -> bool:
    """Return whether the node answers somebody new."""
    link = await transport.dial(str(node.address))
    found = await answer_to(link, encode_ping(77), 77)
    await link.close()
    return found is not None and found.value == "PONG"


# --- garbage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mux", [False, True])
def test_random_bytes_end_connections_and_nothing_else(seed: int, mux: bool) -> None:
    async def work() -> None:
        chance = random.Random(seed)
        noisy, transport = TcpTransport(mux=mux), TcpTransport(mux=False)
        async with root_node(TcpTransport(), "127.0.0.1") as node:
            before = node.root_hash
            for _ in range(60):
                link = await noisy.dial(str(node.address))
                noise = chance.randbytes(chance.randrange(1, 3_000))
                framed = encode_frame(noise) if chance.random() < 0.5 else noise
                await link.write(framed)
                if chance.random() < 0.5:
                    await link.close()
                else:
                    link.abort()
            assert await is_well(transport, node)
            assert node.root_hash == before
            assert node.observer.health == "ok"

    run(work)


def test_a_changed_bit_in_a_good_message_changes_nothing() -> None:
    async def work() -> None:
        chance = random.Random(7)
        transport = MemoryTransport()
        topics = Map.of([("t", Vector.of([]))])
        good = encode_message(lv((QUEUE, FORGER.public_key), Signed.sign(FORGER, topics)))
        async with root_node(transport) as node:
            Topics.at(node.cursor, KEYS.public_key).partition("t", 0).offer("mine")
            await node.sync()
            before = node.root_hash
            signature = good.index(FORGER.public_key, 40)
            for _ in range(200):
                # From the key of the signed cell on: key, signature, value.
                position = chance.randrange(signature, len(good))
                bad = bytearray(good)
                bad[position] ^= 1 << chance.randrange(8)
                link = await transport.dial(str(node.address))
                await link.write(encode_frame(bytes(bad)))
                assert await answer_to(link, encode_ping(1), 1) is not None
                link.abort()
            assert node.root_hash == before

    run(work)


def test_a_half_closed_socket_is_answered_and_then_ended() -> None:
    async def work() -> None:
        async with root_node(TcpTransport(plain=True), "127.0.0.1") as node:
            assert node.port is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
            for id in range(50):
                writer.write(encode_frame(encode_ping(id)))
            writer.write_eof()
            buffer = FrameBuffer()
            buffer.feed(await reader.read(-1))  # up to the node's end of the stream
            ids = []
            while (payload := buffer.next_payload()) is not None:
                message, _ = decode_payload(payload)
                assert isinstance(message, Result)
                ids.append(message.id)
            assert ids == list(range(50))
            writer.close()
            await writer.wait_closed()

    run(work)


def test_a_listener_that_is_no_node_does_no_harm_to_who_dials_it() -> None:
    async def work() -> None:
        transport = MemoryTransport()
        chance = random.Random(3)

        async def accept(link: Link) -> None:
            """Answer whatever is asked with nonsense of all kinds."""
            lies = [
                encode_frame(chance.randbytes(200)),
                encode_frame(encode_result(Result(1, Vector.of([1, 2, 3])))),
                encode_frame(encode_message(lv((), Map.of([(1, 2)])))),
                encode_length(60_000_000),
            ]
            while data := await link.read():
                await link.write(lies[len(data) % len(lies)])

        listener = await transport.listen("memory", 0, accept)
        async with root_node(transport, peers=(f"memory:{listener.port}",)) as node:
            await node.wait_until(lambda one: bool(one.peers))
            Topics.at(node.cursor, KEYS.public_key).partition("t", 0).offer("mine")
            await node.sync()
            assert await is_well(transport, node)
            kept = Topics.at(node.cursor, KEYS.public_key).partition("t", 0)
            assert list(kept) == ["mine"]
        await listener.close()

    run(work)


# --- forged data ---------------------------------------------------------------------------------


def lv(path: tuple[Value, ...], value: Value) -> Vector:
    return Vector.of([Keyword("LV"), Vector.of(path), value])


def queues(owner: Value, signed: Value) -> Index:
    return Index.of([(QUEUE, Map.of([(owner, signed)]))])


def topics_of_a_queue() -> Value:
    """Return what an owner signs whose queue has a record, in a topic that nobody else has."""
    cursor = RootLattice(root_lattice(), None, MergeContext(key_pair=FORGER))
    Topics.at(cursor, FORGER.public_key).partition("forged", 0).offer("a lie")
    signed = get_in(cursor.get(), [QUEUE, FORGER.public_key])
    assert isinstance(signed, Signed)
    return signed.value


def test_nothing_forged_is_accepted_and_what_is_right_is() -> None:
    topics = topics_of_a_queue()
    false = Signed(KEYS.public_key, Signed.sign(FORGER, topics).signature, topics)
    stolen = Signed(KEYS.public_key, Signed.sign(KEYS, "other").signature, topics)
    other = Signed.sign(FORGER, topics)
    did = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
    lies = [
        lv((), queues(KEYS.public_key, false)),
        lv((), queues(KEYS.public_key, stolen)),
        lv((), queues(KEYS.public_key, other)),
        lv((), queues(KEYS.public_key, topics)),
        lv((), queues(did, other)),
        lv((), queues("somebody", other)),
        lv((QUEUE,), Map.of([(KEYS.public_key, false)])),
        lv((QUEUE,), Map.of([(KEYS.public_key, other)])),
        lv((QUEUE, KEYS.public_key), false),
        lv((QUEUE, KEYS.public_key), other),
        lv((QUEUE, KEYS.public_key, Keyword("value")), topics),
        lv((QUEUE, KEYS.public_key, Keyword("value"), "t"), Vector.of([])),
        lv((Keyword("nowhere"),), topics),
        lv((), Vector.of([1])),
        lv((), 7),
    ]

    async def work() -> None:
        transport = MemoryTransport()
        async with root_node(transport) as node:
            mine = Topics.at(node.cursor, KEYS.public_key).partition("t", 0)
            mine.offer_many(["a", "b"])
            await node.sync()
            before = node.root_hash
            link = await transport.dial(str(node.address))
            for id, lie in enumerate(lies):
                await link.write(encode_frame(encode_message(lie)))
                assert await answer_to(link, encode_ping(id), id) is not None
                # A section whose entries were all dropped is the section that was there.
                assert node.root_hash == before, lie
            assert list(mine) == ["a", "b"]
            true = Signed.sign(FORGER, Map.of([]))
            await link.write(encode_frame(encode_message(lv((QUEUE, FORGER.public_key), true))))
            assert await answer_to(link, encode_ping(99), 99) is not None
            assert node.root_hash != before
            await link.close()

    run(work)


# --- memory --------------------------------------------------------------------------------------


def test_frames_that_never_end_are_bounded_over_all_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(datalattice.node.network, "_HELD_BYTES_MAX", 1_000_000)

    async def work() -> None:
        transport = MemoryTransport()
        async with root_node(transport) as node:
            links = [await transport.dial(str(node.address)) for _ in range(20)]
            for link in links:
                await link.write(encode_length(40_000_000))
                await link.write(bytes(300_000))
                assert await is_well(transport, node)
                assert node.held_bytes <= 1_000_000
            assert node.observer.counters["connections-cut"] >= 16
            for link in links:
                link.abort()

    run(work)


def test_a_peer_that_asks_and_does_not_read_makes_us_hold_one_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(datalattice.wire.streams, "UNSENT_BYTES_MAX", 100_000)

    async def work() -> None:
        transport = TcpTransport(plain=True, mux=False)
        chance = random.Random(1)
        long = Text.of(chance.randbytes(4_000_000).hex())
        async with root_node(transport, "127.0.0.1") as node:
            Topics.at(node.cursor, KEYS.public_key).partition("t", 0).offer(long)
            await node.sync()
            assert node.port is not None
            _, writer = await asyncio.open_connection("127.0.0.1", node.port, limit=1_000)
            for id in range(30):
                writer.write(encode_frame(encode_query(id, ())))
            await writer.drain()
            for _ in range(20):
                assert await is_well(transport, node)
            held = [one.held_bytes for one in node.connections]
            assert 0 < sum(held) < 9_000_000
            # The node ends all the same, though the peer goes on not reading.
            await asyncio.wait_for(node.close(), LIMIT_S)
            writer.transport.abort()

    run(work)


def test_values_full_of_gaps_are_given_up() -> None:
    async def work() -> None:
        chance = random.Random(5)
        transport = MemoryTransport()
        async with root_node(transport) as node:
            node._replica.intake.staged_bytes_max = 300_000
            before = node.root_hash
            link = await transport.dial(str(node.address))
            # A vector of 256 elements whose chunks nobody has: sixteen hashes in one small cell.
            gaps = b"".join(b"\x20" + chance.randbytes(32) for _ in range(16))
            for id in range(100):
                path = Vector.of([Keyword("data"), chance.randbytes(32)])
                top = encode_message(Vector.of([Keyword("LV"), path, 1]))[:-2]
                cell = b"\x80\x82\x00" + gaps[:-32] + chance.randbytes(32)
                await link.write(encode_frame(top + b"\x20" + chance.randbytes(32)))
                await link.write(encode_frame(with_cell(top, cell)))
                assert await answer_to(link, encode_ping(id), id) is not None
            assert node._replica.intake.gaps_bytes <= 300_000
            assert node.root_hash == before
            await link.close()

    run(work)


def with_cell(top: bytes, cell: bytes) -> bytes:
    """Return a message whose last element is a reference to `cell`, which comes along."""
    from datalattice.crypto import sha3_256

    return top + b"\x20" + sha3_256(cell) + b"\x84\x13" + cell


def test_a_set_is_not_broken_by_values_of_other_kinds() -> None:
    async def work() -> None:
        transport = MemoryTransport()
        config = NodeConfig(bind="memory", port=0)
        node = open_node(MemoryStore(), lattice=SetLattice(), transport=transport, config=config)
        async with node:
            before = node.root_hash
            link = await transport.dial(str(node.address))
            for id, value in enumerate((1, "x", None, Vector.of([1]), Map.of([(1, 2)]), 2.5)):
                await link.write(encode_frame(encode_message(lv((), value))))
                assert await answer_to(link, encode_ping(id), id) is not None
            assert node.root_hash == before == value_hash(node.root)
            await link.close()

    run(work)


# --- floods --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (encode_message(Vector.of([Keyword("NEWS"), 1])), "ignored"),
        (encode_result(Result(1, "PONG")), "unasked"),
        (encode_message(Vector.of([Keyword("LV"), Vector.of(()), 5])), "refused"),
        (b"\xff", "malformed"),
    ],
)
def test_a_flood_of_useless_messages_ends_with_a_counted_reason(
    payload: bytes, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = datalattice.sync.conduct._LIMITS
    monkeypatch.setitem(limits, kind, (min(limits[kind][0], 300), limits[kind][1]))

    async def work() -> None:
        transport = MemoryTransport()
        async with root_node(transport) as node:
            link = await transport.dial(str(node.address))
            with contextlib.suppress(OSError):  # it may be closed before all is written
                for _ in range(10):
                    await link.write(encode_frame(payload) * 30)
            while await link.read():
                pass
            counters = node.observer.counters
            assert counters[f"closed-{kind}"] == 1
            assert "faults" not in counters
            assert await is_well(transport, node)

    run(work)


def test_as_many_addresses_as_are_allowed_come_in() -> None:
    class Elsewhere(MemoryTransport):
        """A network in which everybody dials from one place."""

        async def listen(
            self, bind: str, port: int, accept: Accept, refused: OnRefused | None = None
        ) -> Listener:
            async def moved(link: Link) -> None:
                assert isinstance(link, MemoryLink)
                link.remote = "10.1.2.3:4"
                await accept(link)

            return await super().listen(bind, port, moved, refused)

    async def work() -> None:
        transport = Elsewhere()
        async with root_node(transport, connections_per_address_max=2) as node:
            links = [await transport.dial(str(node.address)) for _ in range(2)]
            for link in links:
                found = await answer_to(link, encode_ping(1), 1)
                assert found is not None
            third = await transport.dial(str(node.address))
            assert b"too many connections from this address" in await third.read()
            assert await third.read() == b""
            assert node.observer.counters["addresses-refused"] == 1
            await links[0].close()
            while node.connection_count == 2:
                await asyncio.wait(node._network._serving, return_when=asyncio.FIRST_COMPLETED)
            assert await is_well(transport, node)

    run(work)
