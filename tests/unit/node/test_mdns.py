"""mDNS: nodes of one network hear of each other; what they hear is a claim."""

from __future__ import annotations

import asyncio
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

pytest.importorskip("zeroconf")


def failed(error: Exception) -> None:
    raise AssertionError from error


def mdns(*interfaces: str) -> Mdns:
    return Mdns(OWN, lambda _found: None, SystemClock(), failed, interfaces)


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
