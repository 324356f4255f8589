"""mDNS: nodes of one network hear of each other; what they hear is a claim."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

import pytest

from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError
from datalattice.node import NodeConfig, open_node
from datalattice.node.directory import Found
from datalattice.node.mdns import Mdns
from datalattice.node.transport import Address
from datalattice.store import MemoryStore

KEY = KeyPair(b"k" * 32).public_key
OWN = KeyPair(b"o" * 32).public_key
LOOPBACK = "127.0.0.1"
GROUP = ("224.0.0.251", 5353)

pytest.importorskip("zeroconf")


def failed(error: Exception) -> None:
    raise AssertionError from error


def mdns(*interfaces: str) -> Mdns:
    return Mdns(OWN, lambda _found: None, SystemClock(), failed, interfaces)


def has_multicast() -> bool:
    """Return whether this machine carries multicast on loopback: not every container does."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(2)]
        one, two = sockets
        member = socket.inet_aton(GROUP[0]) + socket.inet_aton(LOOPBACK)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("", 0))
            one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            one.settimeout(1)
            two.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
            two.sendto(b"?", (GROUP[0], one.getsockname()[1]))
            return one.recv(1) == b"?"
        except OSError:
            return False


def test_a_service_is_read_as_the_node_it_says_it_is() -> None:
    heard = mdns().read({b"key": KEY.hex().encode()}, ["127.0.0.1", "10.1.2.3"], 7)
    assert heard is not None
    assert heard == Found(KEY, Address("tls", "10.1.2.3", 7, KEY), heard.stamp, "mdns")
    near = mdns(LOOPBACK).read({b"key": KEY.hex().encode()}, ["127.0.0.1"], 7)
    assert near is not None
    assert near.address.host == LOOPBACK


@pytest.mark.parametrize(
    ("properties", "addresses", "port"),
    [
        ({}, ["10.1.2.3"], 7),
        ({b"key": None}, ["10.1.2.3"], 7),
        ({b"key": b"\xff" * 64}, ["10.1.2.3"], 7),
        ({b"key": b"ab" * 31}, ["10.1.2.3"], 7),
        ({b"key": OWN.hex().encode()}, ["10.1.2.3"], 7),
        ({b"key": KEY.hex().encode()}, [], 7),
        ({b"key": KEY.hex().encode()}, ["127.0.0.1", "::1", "0.0.0.0", "fe80::1", "x" * 3], None),
        ({b"key": KEY.hex().encode()}, ["127.0.0.1", "::1", "0.0.0.0", "fe80::1"], 7),
        ({b"key": KEY.hex().encode()}, ["10.1.2.3"], 0),
    ],
)
def test_silly_services_are_passed_over(
    properties: dict[bytes, bytes | None], addresses: list[str], port: int | None
) -> None:
    assert mdns().read(properties, addresses, port) is None


def test_what_others_cannot_reach_is_not_registered() -> None:
    assert mdns()._reachable(LOOPBACK) == []
    assert mdns(LOOPBACK)._reachable(LOOPBACK) == [LOOPBACK]
    assert mdns("10.1.2.3")._reachable("0.0.0.0") == ["10.1.2.3"]
    assert mdns()._reachable("10.1.2.3") == ["10.1.2.3"]
    assert LOOPBACK not in mdns()._reachable("0.0.0.0")


def test_without_the_package_the_extra_is_named_and_nothing_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "zeroconf", None)

    async def work() -> None:
        with socket.socket() as free:
            free.bind((LOOPBACK, 0))
            port = free.getsockname()[1]
        for _ in range(2):
            with pytest.raises(UsageError, match=r"datalattice\[mdns\]"):
                await open_node(
                    MemoryStore(), config=NodeConfig(port=port, discover="mdns")
                ).start()

    asyncio.run(work())


def test_an_interface_that_is_not_here_is_named() -> None:
    async def work() -> None:
        one = mdns("203.0.113.77")
        with pytest.raises(UsageError, match=r"203\.0\.113\.77"):
            await one.start(LOOPBACK, 1)
        await one.close()

    asyncio.run(work())


def test_nodes_on_one_network_find_each_other() -> None:
    if not has_multicast():
        pytest.skip("this machine carries no multicast on loopback")

    async def work() -> None:
        nodes = [
            open_node(
                MemoryStore(),
                key_pair=KeyPair(bytes([seed]) * 32),
                config=NodeConfig(port=0, discover="mdns", mdns_interfaces=(LOOPBACK,)),
            )
            for seed in (1, 2)
        ]
        async with asyncio.timeout(25), nodes[0] as one, nodes[1] as two:
            while not (one.connection_count and two.connection_count):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            for node, other in ((one, two), (two, one)):
                while not (node.peers and node.peers[0].connected):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                (peer,) = node.peers
                assert other.key_pair is not None
                assert peer.public_key == other.key_pair.public_key
                assert peer.source == "mdns"
                assert node.observer.counters["peers-found-mdns"] == 1

    asyncio.run(work())
