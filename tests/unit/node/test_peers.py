"""Peers: who is wanted, by address or key, and the effort to stay connected to each once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

import datalattice.node.peers as peers_module
from datalattice.client import PeerAddress, parse_address
from datalattice.crypto import Entropy, SeededEntropy
from datalattice.errors import UsageError
from datalattice.node import MemoryTransport
from datalattice.node.peers import (
    BACKOFF_MS_MAX,
    BACKOFF_MS_MIN,
    DISCOVERED_FAILURES_MAX,
    DISCOVERED_MAX,
    EXPECTED_MAX,
    OWN_KEY_ANSWERED,
    OutboundLink,
    PeerInfo,
    Peers,
    backoff_ms,
)
from datalattice.node.transport import Accept, Link, Listener, OnRefused
from datalattice.testing.polling import LIMIT_S
from datalattice.wire import PLAIN_PROTOCOL

OWN = b"m" * 32
SMALL = b"a" * 32
GREAT = b"z" * 32


class Edge:
    """An entropy at one end of its range."""

    def __init__(self, byte: int) -> None:
        self._byte = byte

    def bytes(self, count: int) -> bytes:
        return bytes([self._byte]) * count


class FakeLink:
    """A link that proves a key."""

    remote = "fake:1"
    protocol = PLAIN_PROTOCOL

    def __init__(self, public_key: bytes | None) -> None:
        self.public_key = public_key
        self.is_aborted = False

    async def read(self) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        pass

    async def close(self) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True


class World:
    """Who answers where, and the connections that were made."""

    def __init__(self, own_key: bytes = OWN, entropy: Entropy | None = None) -> None:
        self.nodes: dict[str, bytes | None] = {}
        self.dialled: list[str] = []
        self.calls: dict[str, asyncio.Future[str]] = {}
        self.changed = asyncio.Event()
        self.peers = Peers(self, self.serve, entropy, close=self.end, own_key=own_key)

    def endpoint(self, address: str) -> PeerAddress:
        return parse_address(address)

    async def dial(self, address: str) -> Link:
        place = parse_address(address)
        self.dialled.append(f"{place.host}:{place.port}")
        self.tell()
        try:
            key = self.nodes[place.host]
        except KeyError:
            raise ConnectionRefusedError("nobody is there") from None
        if key is not None and place.public_key not in (None, key):
            raise ConnectionError("it proved another key")
        return FakeLink(key)

    async def listen(
        self, bind: str, port: int, accept: Accept, refused: OnRefused | None = None
    ) -> Listener:
        raise AssertionError("nobody listens here")

    async def close(self) -> None:
        raise AssertionError("the peers do not end the transport")

    async def serve(self, call: OutboundLink) -> str:
        done = self.calls[call.id] = asyncio.get_running_loop().create_future()
        self.tell()
        try:
            reason: str = await done
            return reason
        finally:
            del self.calls[call.id]
            self.tell()

    def end(self, id: str, reason: str) -> None:
        if id in self.calls and not self.calls[id].done():
            self.calls[id].set_result(reason)

    def end_all(self) -> None:
        for id in list(self.calls):
            self.end(id, "closed by the peer")

    def tell(self) -> None:
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            # Not `wait_for`, which in Python 3.11 wakes a few turns of the loop later: what holds
            # for a pause only may be over by then.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await self.changed.wait()

    async def pauses(self) -> None:
        """Return when several pauses are over, as somebody who is never there tells."""
        self.peers.add("never:1")
        info = self.peers.infos[-1]
        await self.until(lambda: info.failures > 3)
        await self.peers.remove("never:1")
        self.dialled = [one for one in self.dialled if one != "never:1"]

    def one(self) -> PeerInfo:
        (info,) = self.peers.infos
        return info


def play(scene: Callable[[World], Awaitable[None]], own_key: bytes = OWN) -> None:
    async def work() -> None:
        world = World(own_key)
        async with asyncio.timeout(LIMIT_S):
            await scene(world)
            await world.peers.close()
        assert not world.calls
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(work())


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "BACKOFF_MS_MIN", 10)
    monkeypatch.setattr(peers_module, "BACKOFF_MS_MAX", 40)


# --- the pause ------------------------------------------------------------------------------------


def test_the_pause_doubles_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "BACKOFF_MS_MIN", BACKOFF_MS_MIN)
    monkeypatch.setattr(peers_module, "BACKOFF_MS_MAX", BACKOFF_MS_MAX)
    full = [backoff_ms(attempt, Edge(0xFF)) for attempt in range(8)]
    assert full == [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]
    assert [backoff_ms(attempt, Edge(0)) for attempt in range(8)] == [one // 2 for one in full]
    assert backoff_ms(10**9, Edge(0xFF)) == BACKOFF_MS_MAX
    chance = SeededEntropy(5)
    found = [backoff_ms(2, chance) for _ in range(500)]
    assert 2_000 <= min(found) < 2_100
    assert 3_900 < max(found) <= 4_000
    assert found == [backoff_ms(2, again) for again in [SeededEntropy(5)] for _ in range(500)]


def test_failures_are_counted_and_a_stable_connection_forgets_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers_module, "STABLE_S", 1_000.0)

    async def scene(world: World) -> None:
        world.peers.add("h:1")
        await world.until(lambda: world.one().failures >= 3)
        assert world.one().reason == "nobody is there"
        world.nodes["h"] = SMALL
        await world.until(lambda: world.one().connected)
        before = world.one().failures
        world.end_all()
        await world.until(lambda: not world.one().connected)
        await world.until(lambda: world.one().connected)
        assert world.one().failures == before + 1, "a short connection counts as a failure"
        monkeypatch.setattr(peers_module, "STABLE_S", 0.0)
        world.end_all()
        await world.until(lambda: not world.one().connected)
        await world.until(lambda: world.one().connected)
        assert world.one().failures == 1, "after a stable one the count began anew"

    play(scene)


def test_an_effort_ends_even_when_its_cancellation_gets_lost() -> None:
    async def work() -> None:
        net = MemoryTransport()
        serving = asyncio.Event()

        async def accept(link: Link) -> None:
            await link.read()

        async def serve(_call: OutboundLink) -> str:
            serving.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return "a cancellation was swallowed"

        listener = await net.listen("memory", 0, accept)
        peers = Peers(net, serve, SeededEntropy(1))
        address = f"memory:{listener.port}"
        async with asyncio.timeout(LIMIT_S):
            peers.add(address)
            await serving.wait()
            await peers.close()
            serving.clear()
            peers.add("memory:1")
            await peers.remove("memory:1")
        assert not serving.is_set(), "dialled again after the end"
        await listener.close()

    asyncio.run(work())


# --- addresses and keys ---------------------------------------------------------------------------


def test_a_key_is_learnt_from_an_address_and_an_address_from_elsewhere() -> None:
    async def scene(world: World) -> None:
        world.nodes |= {"h": SMALL, "g": GREAT}
        world.peers.add("h:1")
        await world.until(lambda: world.one().connected)
        info = world.one()
        assert (info.public_key, info.proved, info.address) == (SMALL, True, "h:1")
        assert info.connected_since_ms is not None
        world.peers.add(public_key=GREAT)
        waiting = world.peers.infos[1]
        await world.until(lambda: "no address" in waiting.reason)
        assert [waiting.address] == [None]
        assert world.peers.learn(GREAT, parse_address("nowhere:1"), 5, "p2p")
        await world.until(lambda: "nowhere:1" in world.dialled)
        assert not world.peers.learn(GREAT, parse_address("g:1"), 5, "p2p"), "not newer"
        assert world.peers.learn(GREAT, parse_address("g:1"), 6, "p2p")
        await world.until(lambda: waiting.connected)
        assert waiting.source == "added"
        assert waiting.address == f"{GREAT.hex()}@g:1"
        await world.peers.remove(public_key=GREAT)
        await world.peers.remove("h:1")
        assert world.peers.infos == []

    play(scene)


def test_a_wrong_key_is_not_the_peer() -> None:
    async def scene(world: World) -> None:
        world.nodes["h"] = GREAT
        world.peers.add(f"{SMALL.hex()}@h:1")
        await world.until(lambda: "another key" in world.one().reason)
        assert not world.one().connected
        world.nodes["h"] = SMALL
        await world.until(lambda: world.one().connected)
        world.end_all()
        await world.until(lambda: not world.one().connected)
        assert world.one().public_key == SMALL

    play(scene)


def test_another_node_at_an_address_without_a_pinned_key_is_the_peer_from_then_on() -> None:
    async def scene(world: World) -> None:
        world.nodes["h"] = SMALL
        world.peers.add("h:1")
        await world.until(lambda: world.one().connected)
        world.nodes["h"] = GREAT
        world.end_all()
        await world.until(lambda: world.one().public_key == GREAT and world.one().connected)

    play(scene)


def test_two_addresses_of_one_node_are_one_peer() -> None:
    async def scene(world: World) -> None:
        world.nodes |= {"h": SMALL, "alias": SMALL}
        world.peers.add("h:1")
        await world.until(lambda: world.one().connected)
        world.peers.add("alias:1")
        await world.until(lambda: len(world.peers.infos) == 1)
        assert world.one().connected
        assert len(world.calls) == 1
        world.peers.add("alias:1")
        world.peers.add("h:1")
        assert len(world.peers.infos) == 1
        del world.nodes["h"]
        world.end_all()
        await world.until(lambda: world.one().address == "alias:1" and world.one().connected)
        await world.peers.remove("h:1")
        assert world.peers.infos == []

    play(scene)


@pytest.mark.parametrize("name", ["h:1", "tls://h:1", f"{SMALL.hex()}@h:1"])
def test_a_peer_is_found_by_any_form_of_its_address(name: str) -> None:
    async def scene(world: World) -> None:
        world.peers.add("h:1")
        world.peers.add("h:1", public_key=SMALL)
        world.peers.add("tls://h:1")
        assert world.one().public_key == SMALL
        await world.peers.remove(name)
        assert world.peers.infos == []
        with pytest.raises(UsageError, match="its peers: none"):
            await world.peers.remove(name)

    play(scene)


def test_what_cannot_be_wanted_is_said() -> None:
    async def scene(world: World) -> None:
        for arguments, match in (
            ((None, None), "neither"),
            (("nowhere", None), "host:port"),
            ((None, OWN), "this node itself"),
            ((f"{OWN.hex()}@h:1", None), "this node itself"),
            ((f"{SMALL.hex()}@h:1", GREAT), "another key"),
        ):
            with pytest.raises(UsageError, match=match):
                world.peers.add(arguments[0], public_key=arguments[1])
        with pytest.raises(UsageError, match=SMALL.hex()):
            await world.peers.remove(public_key=SMALL)
        assert world.peers.infos == []

    play(scene)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_key_of_another_length_is_refused(length: int) -> None:
    async def scene(world: World) -> None:
        with pytest.raises(UsageError, match=f"32 bytes, got {length}"):
            world.peers.add(public_key=bytes(length))
        assert world.peers.infos == []

    play(scene)


def test_the_own_key_at_an_address_is_left_alone() -> None:
    async def scene(world: World) -> None:
        world.nodes["h"] = OWN
        world.peers.add("h:1")
        await world.until(lambda: bool(world.calls))
        assert world.one().reason == OWN_KEY_ANSWERED
        assert not world.one().connected
        world.end_all()  # starts are told each other by then
        await world.pauses()
        assert world.dialled == ["h:1"]
        assert not world.one().connected
        # A key that is proved later, on a plain connection, counts the same.
        world.nodes["p"] = None
        world.peers.add("tcp://p:1")
        await world.until(lambda: bool(world.calls))
        assert not world.peers.infos[1].proved
        (id,) = world.calls
        world.peers.identified(id, OWN)
        await world.until(lambda: not world.calls)
        assert world.peers.infos[1].reason == OWN_KEY_ANSWERED
        await world.pauses()
        assert world.dialled == ["h:1", "p:1"]

    play(scene)


def test_a_key_proved_on_a_plain_connection_counts() -> None:
    async def scene(world: World) -> None:
        world.nodes["p"] = None
        world.peers.add("tcp://p:1")
        await world.until(lambda: bool(world.calls))
        world.peers.identified(next(iter(world.calls)), SMALL)
        assert world.one().proved
        assert world.one().public_key == SMALL
        world.peers.identified("out of nowhere", SMALL)
        world.nodes["h"] = SMALL
        world.peers.add("h:1")
        await world.until(lambda: len(world.peers.infos) == 1)
        assert len(world.calls) == 1

    play(scene)


# --- two connections between two nodes ------------------------------------------------------------


def test_of_two_connections_that_of_the_smaller_key_stays() -> None:
    async def scene(world: World) -> None:
        world.nodes |= {"small": SMALL, "great": GREAT}
        world.peers.add("small:1")
        world.peers.add("great:1")
        await world.until(lambda: len(world.calls) == 2)
        world.peers.arrived("in 1", GREAT)
        world.peers.arrived("in 2", SMALL)
        await world.until(lambda: len(world.calls) == 1)
        (id,) = world.calls
        assert "great" in id, "ours to the greater key stays; the other side ends its own"
        assert all(info.connected for info in world.peers.infos)
        assert world.peers.connection_ids() == ["in 2", id]
        await world.pauses()
        assert len(world.dialled) == 2, "not dialled while theirs lives"
        world.peers.gone("in 2", SMALL)
        assert not world.peers.infos[0].connected
        await world.until(lambda: len(world.calls) == 2)
        world.peers.gone("in 1", GREAT)
        world.peers.gone("in 1", GREAT)
        assert all(info.connected for info in world.peers.infos)

    play(scene)


def test_who_is_connected_to_us_is_not_dialled_when_its_key_is_known() -> None:
    async def scene(world: World) -> None:
        world.nodes["great"] = GREAT
        world.peers.arrived("in 1", GREAT)
        world.peers.add("great:1", public_key=GREAT)
        await world.until(lambda: "connected to us" in world.one().reason)
        assert world.one().connected
        assert world.one().proved
        assert world.dialled == []
        assert world.peers.connection_ids() == ["in 1"]
        world.peers.gone("in 1", GREAT)
        await world.until(lambda: bool(world.calls))

    play(scene)


# --- peers that nobody added ----------------------------------------------------------------------


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_a_crowd_keeps_no_peer_of_a_replica_out() -> None:
    async def scene(world: World) -> None:
        def claim(number: int) -> bool:
            return world.peers.learn(key(number), parse_address(f"h:{number}"), 7, "mdns")

        for number in range(1, DISCOVERED_MAX + 1):
            assert claim(number)
        assert not claim(2_000)
        world.peers.is_expected = lambda one: int.from_bytes(one, "big") >= 2_000
        assert not claim(1_999)
        for number in range(2_000, 2_000 + EXPECTED_MAX):
            assert claim(number), "a replica names it"
        assert not claim(2_000 + EXPECTED_MAX)
        assert len(world.peers.infos) == DISCOVERED_MAX + EXPECTED_MAX

    play(scene)


def test_peers_that_are_found_are_bounded_and_forgotten() -> None:
    async def scene(world: World) -> None:
        world.nodes["there"] = key(1)
        for number in range(1, 2_000):
            host = "there" if number == 1 else "nowhere"
            took = world.peers.learn(key(number), parse_address(f"{host}:{number}"), 7, "p2p")
            assert took == (number <= DISCOVERED_MAX)
        assert not world.peers.learn(OWN, parse_address("there:1"), 9, "p2p")
        assert len(world.peers.infos) == DISCOVERED_MAX
        await world.until(lambda: len(world.peers.infos) == 1)
        assert world.one().public_key == key(1)
        assert world.one().source == "p2p"
        assert len(world.dialled) == 1 + DISCOVERED_FAILURES_MAX * (DISCOVERED_MAX - 1)
        assert not world.peers.learn(key(2), parse_address("there:2"), 7, "p2p"), "forgotten"
        assert world.peers.learn(key(2), parse_address("nowhere:2"), 8, "p2p"), "heard of anew"
        world.peers.add(public_key=key(2))
        await world.until(lambda: world.peers.infos[1].failures > 8)
        assert len(world.peers.infos) == 2, "one that was added is never forgotten"

    play(scene)


def test_who_was_forgotten_is_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "FORGOTTEN_MAX", 2)
    monkeypatch.setattr(peers_module, "DISCOVERED_FAILURES_MAX", 1)

    async def scene(world: World) -> None:
        for number in range(1, 4):
            world.peers.learn(key(number), parse_address(f"nowhere:{number}"), 7, "p2p")
            await world.until(lambda: not world.peers.infos)
        for number in (2, 3):
            assert not world.peers.learn(key(number), parse_address("nowhere:1"), 7, "p2p")
        assert world.peers.learn(key(1), parse_address("nowhere:1"), 7, "p2p"), "the oldest is not"

    play(scene)
