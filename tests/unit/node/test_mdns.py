"""mDNS: nodes of one network hear of each other; what they hear is a claim."""

from __future__ import annotations

import asyncio
import sys

import pytest

import datalattice.node.mdns as mdns_module
import datalattice.node.network as network_module
from datalattice.client import PeerAddress
from datalattice.client.settings import NodeConfig
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError
from datalattice.node import open_node
from datalattice.node.directory import FoundNode
from datalattice.node.mdns import SERVICE, Mdns
from datalattice.node.peers import DISCOVERED_MAX
from datalattice.store import MemoryStore
from datalattice.testing.ports import held_port

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
    assert heard == FoundNode(KEY, PeerAddress("tls", "10.1.2.3", 7, KEY), heard.stamp, "mdns")
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
        with held_port() as port:
            config = NodeConfig(port=port, discover="mdns")
            for _ in range(2):
                with pytest.raises(UsageError, match=r"datalattice\[mdns\]"):
                    await open_node(MemoryStore(), config=config).start()

    asyncio.run(work())


def test_an_interface_that_is_not_here_is_named() -> None:
    async def work() -> None:
        one = mdns("203.0.113.77")
        with pytest.raises(UsageError, match=r"203\.0\.113\.77"):
            await one.start(LOOPBACK, 1)
        await one.close()

    asyncio.run(work())


def test_a_node_found_in_a_crowd_is_dialled_once_a_replica_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network_module, "UNUSED_MAX", 2)

    def claim(number: int) -> FoundNode:
        key = number.to_bytes(32, "big")
        return FoundNode(key, PeerAddress("tls", "127.0.0.1", 1, key), 7, "mdns")

    async def work() -> None:
        async with open_node(MemoryStore(), config=NodeConfig(port=-1)) as node:
            for number in range(1, DISCOVERED_MAX + 4):
                node._network._learn(claim(number))
            late = [claim(DISCOVERED_MAX + number).public_key for number in (1, 2, 3)]
            assert not {peer.public_key for peer in node.peers} & set(late)
            node.expect_peers(late.__contains__)
            found = {peer.public_key for peer in node.peers}
            assert [key in found for key in late] == [False, True, True], "the oldest was dropped"
            assert node.observer.counters["peers-found-mdns"] == DISCOVERED_MAX + 2

    asyncio.run(work())


class Change:
    """What zeroconf says when a service came, changed or went."""

    def __init__(self, name: str) -> None:
        self.name = name


def test_services_that_are_looked_up_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mdns_module, "RESOLVING_MAX", 3)

    async def work() -> None:
        asked: list[str] = []
        going_on = asyncio.Event()

        async def resolve(_zeroconf: object, _kind: str, name: str) -> None:
            asked.append(name)
            await going_on.wait()

        one = mdns()
        monkeypatch.setattr(one, "_resolve", resolve)
        one._heard(None, SERVICE, "gone", Change("Removed"))
        for number in range(5):
            one._heard(None, SERVICE, f"{number}", Change("Added"))
        await asyncio.sleep(0)
        assert asked == ["0", "1", "2"]
        going_on.set()
        while one._tasks:  # noqa: ASYNC110 - they end by themselves
            await asyncio.sleep(0)
        one._heard(None, SERVICE, "5", Change("Updated"))
        await asyncio.sleep(0)
        assert asked[3:] == ["5"]
        await one.close()

    asyncio.run(work())


def test_a_fault_while_looking_up_is_told_and_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        told: list[Exception] = []

        async def resolve(_zeroconf: object, _kind: str, _name: str) -> None:
            raise OSError("the network is down")

        one = Mdns(OWN, lambda _found: None, SystemClock(), told.append)
        monkeypatch.setattr(one, "_resolve", resolve)
        one._heard(None, SERVICE, "x", Change("Added"))
        while one._tasks:  # noqa: ASYNC110 - they end by themselves
            await asyncio.sleep(0)
        assert [str(error) for error in told] == ["the network is down"]

    asyncio.run(work())
