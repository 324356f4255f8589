"""Directory: what nodes publish of themselves, and what of it is believed."""

from __future__ import annotations

import asyncio

import pytest

import datalattice.node.directory as directory_module
from datalattice.cells import Keyword, Map, Signed, Value, Vector
from datalattice.client import PeerAddress
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import (
    NODES_KEY,
    P2P_KEY,
    MergeContext,
    get_in,
    node_info,
    root_lattice,
)
from datalattice.node import open_node
from datalattice.node.directory import (
    TRANSPORT_CHARS_MAX,
    TRANSPORTS_MAX,
    FoundNode,
    follow_directory,
    is_near,
    is_usable,
    publish,
    published,
)
from datalattice.store import MemoryStore
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.polling import LIMIT_S

OWN = b"m" * 32


def keys(number: int) -> KeyPair:
    return KeyPair(number.to_bytes(32, "big"))


def nodes_of(*entries: tuple[KeyPair, Value]) -> Map:
    return Map.of([(pair.public_key, Signed.sign(pair, value)) for pair, value in entries])


def info(*transports: str, stamp: int = 5) -> Map:
    return node_info(stamp, list(transports), "x", "1")


def found_in(value: Value, *, near: bool = False) -> list[str]:
    pair = keys(1)
    found = published(nodes_of((pair, value)), OWN, near=near)
    assert all(one.public_key == pair.public_key for one in found)
    assert all(one.address.public_key == pair.public_key for one in found)
    return [f"{one.address.scheme}://{place_of(one.address)}" for one in found]


def place_of(address: PeerAddress) -> str:
    return str(PeerAddress("tls", address.host, address.port))


def test_a_node_publishes_itself_later_than_before() -> None:
    pair = keys(1)
    cursor = RootLattice(root_lattice(), context=MergeContext(key_pair=pair))
    clock = StoppedClock(1_000)
    iroh = f"iroh://{pair.public_key.hex()}@example.org:1"
    for url, transport, stamp in (
        ("example.org:1", "tls://example.org:1", 1_000),
        (f"{pair.public_key.hex()}@[2001:db9::1]:7", "tls://[2001:db9::1]:7", 1_001),
        ("tcp://example.org:1", "tcp://example.org:1", 1_002),
        (iroh, iroh, 1_003),
    ):
        publish(cursor, pair.public_key, url, clock)
        slot = get_in(cursor.get(), [P2P_KEY, NODES_KEY, pair.public_key])
        assert isinstance(slot, Signed)
        assert slot.verify()
        assert get_in(slot.value, [Keyword("transports")]) == Vector.of([transport])
        assert get_in(slot.value, [Keyword("timestamp")]) == stamp
        assert get_in(slot.value, [Keyword("type")]) == "datalattice"
        assert get_in(slot.value, [Keyword("version")])
        assert found_in(slot.value) == [transport.replace(f"{pair.public_key.hex()}@", "")]


def test_the_first_usable_transport_counts() -> None:
    assert found_in(info("tcp://example.org:1", "tls://example.org:2")) == ["tcp://example.org:1"]
    assert found_in(info("ws://h:1", "nonsense", "h:0", "10.1.2.3:4")) == ["tls://10.1.2.3:4"]
    mine, other = keys(1).public_key.hex(), keys(2).public_key.hex()
    assert found_in(info(f"{other}@h:1", f"{mine}@h:2")) == ["tls://h:2"]
    assert found_in(info(*["bad"] * (TRANSPORTS_MAX - 1), "h:1")) == ["tls://h:1"]
    assert found_in(info(*["bad"] * TRANSPORTS_MAX, "h:1")) == []
    assert found_in(info(f"iroh://{mine}", f"iroh://{other}@h:1", "h:2")) == ["tls://h:2"]
    host = "h" * (TRANSPORT_CHARS_MAX - 1)
    assert found_in(info(host + ":1", "g:1")) == ["tls://g:1"]


@pytest.mark.parametrize(
    "value",
    [
        None, 7, "text", Vector.of([1]), Map.of([]), Map.of([("transports", Vector.of(["h:1"]))]),
        Map.of([(Keyword("transports"), "h:1")]), Map.of([(Keyword("transports"), 7)]),
        Map.of([(Keyword("transports"), Vector.of([7, None, Vector.of(["h:1"])]))]),
        info(), info("127.0.0.1:1", "localhost:1", "0.0.0.0:1"),
    ],
)  # fmt: skip
def test_silly_entries_are_passed_over(value: Value) -> None:
    assert found_in(value) == []


def test_silly_sections_are_none() -> None:
    for section in (None, 7, Vector.of([1]), Map.of([("x", info("h:1")), (b"k" * 32, 7)])):
        assert published(section, OWN, near=False) == []
    own = KeyPair(b"o" * 32)
    assert published(nodes_of((own, info("h:1"))), own.public_key, near=False) == []
    when = nodes_of((keys(1), Map.of([(Keyword("transports"), Vector.of(["h:1"]))])))
    assert [one.stamp for one in published(when, OWN, near=False)] == [0]


def test_hosts_that_are_no_place_for_a_stranger_to_name() -> None:
    for host in ("example.org", "10.0.0.1", "192.168.1.1", "8.8.8.8", "2001:4860::1", "fd00::1"):
        assert is_usable(host, near=False), host
    for host in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost", "x.Localhost."):
        assert not is_usable(host, near=False), host
        assert is_usable(host, near=True), host
    for host in ("0.0.0.0", "::", "224.0.0.1", "ff02::1", "169.254.1.1", "fe80::1", "240.0.0.1"):
        assert not is_usable(host, near=True), host
    assert is_near("127.0.0.1")
    assert is_near("::1")
    assert is_near("localhost")
    assert not is_near("0.0.0.0")
    assert not is_near("10.0.0.1")


def test_very_many_entries_are_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    section = nodes_of(*((keys(number), info(f"h:{number}")) for number in range(1, 101)))
    orders = [
        [one.address.port for one in published(section, own, near=False, turn=turn)]
        for own, turn in ((OWN, 0), (bytes(32), 0), (OWN, 1))
    ]
    for order in orders:
        assert sorted(order) == list(range(1, 101))
    assert orders[0] != orders[1], "each node dials others of them"
    assert orders[0] != orders[2], "and others from time to time"
    for limit, count in ((99, 99), (100, 100), (101, 100)):
        monkeypatch.setattr(directory_module, "NODES_READ_MAX", limit)
        assert len(published(section, OWN, near=False)) == count
    for limit, count in ((99, 99), (100, 100), (101, 100)):
        monkeypatch.setattr(directory_module, "CANDIDATES_MAX", limit)
        assert len(published(section, OWN, near=False)) == count
    monkeypatch.setattr(directory_module, "CANDIDATES_MAX", 0)
    wanted = [keys(number).public_key for number in (7, 101, 3)]
    found = published(section, OWN, wanted, near=False)
    assert [one.address.port for one in found] == [7, 3], "who is wanted is always read"


def test_every_change_of_the_section_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_module, "READ_PAUSE_S", 0.0)

    async def work() -> None:
        cursor = RootLattice(root_lattice())
        changes: asyncio.Queue[None] = asyncio.Queue()
        heard: asyncio.Queue[FoundNode] = asyncio.Queue()
        following = asyncio.ensure_future(
            follow_directory(cursor.get, changes.get, heard.put_nowait, list, OWN, near=False)
        )
        for number in (1, 2):
            pair = keys(number)
            slot = Signed.sign(pair, info(f"h:{number}"))
            cursor.path(P2P_KEY, NODES_KEY, pair.public_key).set(slot)
            changes.put_nowait(None)
            found = [await heard.get() for _ in range(number)]
            address = PeerAddress("tls", "h", number, pair.public_key)
            assert FoundNode(pair.public_key, address, 5, "p2p") in found
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    asyncio.run(work())


def test_a_change_between_a_look_and_the_wait_after_it_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        config = NodeConfig(port=-1, discover="p2p")
        node = open_node(MemoryStore(), key_pair=keys(9), config=config)
        changed = node.changed
        others = [keys(1)]

        async def late() -> None:
            if others:
                pair = others.pop()
                slot = Signed.sign(pair, info("127.0.0.1:1"))
                node.cursor.path(P2P_KEY, NODES_KEY, pair.public_key).set(slot)
                node.cursor.sync()
            await changed()

        monkeypatch.setattr(node, "changed", late)
        async with asyncio.timeout(LIMIT_S), node:
            while not node.peers:  # noqa: ASYNC110 - to watch for it would help the node
                await asyncio.sleep(0)
            assert node.peers[0].public_key == keys(1).public_key

    asyncio.run(work())
