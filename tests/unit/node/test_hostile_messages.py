"""Small messages that mean much: a live node neither toils for them nor takes itself for broken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from datalattice.apps.queue import Topics
from datalattice.cells import (
    Keyword,
    Map,
    Signed,
    Value,
    Vector,
    decode_parts,
    encode,
    encode_message,
    join_cells,
    novelty,
    value_hash,
)
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair, sha3_256
from datalattice.lattice import root_lattice
from datalattice.limits import EMBEDDED_BYTES_MAX
from datalattice.node import MemoryTransport, open_node
from datalattice.node.transport import Link
from datalattice.store import MemoryStore
from datalattice.testing.polling import LIMIT_S
from datalattice.wire import (
    FrameBuffer,
    Result,
    decode_payload,
    encode_frame,
    encode_length,
    encode_ping,
)

KEYS = KeyPair(b"k" * 32)
FORGER = KeyPair(b"f" * 32)
HUGE = 1 << 32_000
NODES = (Keyword("p2p"), Keyword("nodes"))


def message(kind: str, *elements: Value) -> bytes:
    return encode_message(Vector.of((Keyword(kind), *elements)))


def repeating(levels: int, leaf: bytes, tag: bytes, width: int) -> tuple[bytes, list[bytes]]:
    """Return (top, cells below) of a tree in which all sixteen children are the same cell."""
    cells: list[bytes] = []
    cell = leaf
    for _ in range(levels):
        width *= 16
        child = cell
        if len(cell) > EMBEDDED_BYTES_MAX:
            cells.append(cell)
            child = b"\x20" + sha3_256(cell)
        cell = tag + encode_length(width) + child * 16
    return cell, cells


def long_vector() -> Vector:
    """Return a vector of 16^13 elements."""
    top, cells = repeating(12, b"\x80\x10" + encode(1) * 16, b"\x80", 16)
    value, _ = decode_parts(join_cells(top, cells))
    assert isinstance(value, Vector)
    assert len(value) == 16**13
    return value


def long_blob() -> Value:
    """Return a blob of 2^44 bytes."""
    chunk = b"\x31" + encode_length(4_096) + b"\x00" * 4_096
    top, cells = repeating(8, chunk, b"\x31", 4_096)
    value, _ = decode_parts(join_cells(top, cells))
    return value


def incomplete(kind: str, *rest: Value) -> bytes:
    """Return a message whose id refers to a cell that does not come along."""
    id = Vector.of(["x" * 100, "y" * 100])
    return encode(Vector.of((Keyword(kind), Vector.of([id]), *rest)))


def hostile() -> Iterator[tuple[str, bytes]]:
    long = long_vector()
    yield "a query with a path of any length", message("LQ", 1, long)
    yield "a query with any number of extras", encode_message(longer("LQ", 1))
    yield "a ping with any number of extras", encode_message(longer("PING"))
    yield "a value with a path of any length", message("LV", long, 1)
    yield "a patch of any length", message("LP", None, b"h" * 32, long_blob())
    yield "a value at a number of many digits", message("LV", Vector.of([HUGE]), 1)
    yield "a query of a number of many digits", message("LQ", 1, Vector.of([HUGE]))
    owned = Map.of([(HUGE, Signed.sign(FORGER, HUGE))])
    yield "an entry at a number of many digits", message("LV", Vector.of(NODES), owned)
    yield "a ping with half an id", incomplete("PING")
    yield "a query with half an id", incomplete("LQ", Vector.of([]))
    yield "a request with half an id", incomplete("DR", b"h" * 32)
    yield "a challenge with half an id", incomplete("CH", 1)


def longer(kind: str, *elements: Value) -> Value:
    """Return a message that is itself a vector of very many elements."""
    head = [Keyword(kind), *(elements or (1,)), 1]
    tail = Vector.of([*head, *([1] * (16 - len(head)))])
    found: Value = tail
    for level in range(12):
        width = 16 ** (level + 2)
        ones, cells = repeating(level, b"\x80\x10" + encode(1) * 16, b"\x80", 16)
        other, _ = decode_parts(join_cells(ones, cells))
        top = b"\x80" + encode_length(width) + _slot(found) + _slot(other) * 15
        parts = [*_cells(found), *_cells(other)]
        found, _ = decode_parts(join_cells(top, dict.fromkeys(parts)))
    return found


def _slot(value: Value) -> bytes:
    encoding = encode(value)
    return encoding if len(encoding) <= EMBEDDED_BYTES_MAX else b"\x20" + value_hash(value)


def _cells(value: Value) -> list[bytes]:
    return [encoding for _, encoding, _ in novelty(value)]


async def answered(link: Link, id: int) -> bool:
    buffer = FrameBuffer()
    while True:
        while (found := buffer.next_payload()) is None:
            data = await link.read()
            if not data:
                return False
            buffer.feed(data)
        heard, _ = decode_payload(found)
        if isinstance(heard, Result) and heard.id == id:
            return True


@pytest.mark.parametrize(("what", "payload"), list(hostile()))
def test_a_small_message_does_no_harm(what: str, payload: bytes) -> None:
    async def work() -> None:
        config = NodeConfig(bind="memory", port=0)
        transport = MemoryTransport()
        store = MemoryStore()
        async with open_node(
            store, key_pair=KEYS, lattice=root_lattice(), transport=transport, config=config
        ) as node:
            link = await transport.dial(str(node.address))
            await link.write(encode_frame(payload) + encode_frame(encode_ping(77)))
            async with asyncio.timeout(LIMIT_S):
                assert await answered(link, 77), what
            assert node.observer.health == "ok", what
            link.abort()

    assert len(payload) < 20_000
    asyncio.run(work())


def test_who_is_not_wanted_waits_in_a_line_of_its_own() -> None:
    async def work() -> None:
        friend = KeyPair(b"w" * 32)
        async with open_node(MemoryStore(), key_pair=KEYS, port=0) as node:
            node.add_peer(public_key=friend.public_key)
            address = str(node.address)
            async with (
                open_node(MemoryStore(), key_pair=friend, port=-1, peers=[address]) as wanted,
                open_node(MemoryStore(), key_pair=FORGER, port=-1, peers=[address]) as other,
            ):
                Topics.at(node.cursor, KEYS.public_key).partition("t", 0).offer("news")
                await node.sync()
                for one in (wanted, other):
                    await one.wait_until(lambda one: one.root_hash == node.root_hash, LIMIT_S)
                known = set(node._hosts.known)
                assert len(known) == 1
                assert known == set(node._network.peers.connection_ids())
                assert other._network._hosts.known == {one.id for one in other.connections}

    asyncio.run(work())
