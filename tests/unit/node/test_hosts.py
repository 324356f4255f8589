"""Hosts: replicas of another kind on nodes, over TLS, beside the lattice."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from datalattice.apps.queue import Topics
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.errors import StoreClosed, StoreFailed, UsageError
from datalattice.node import NodeServer, open_node
from datalattice.node.hosts import FAULTY_MAX, Host, connection_of
from datalattice.store import MemoryStore
from datalattice.sync import Effects, Peer, Regard
from datalattice.testing.counters import Counters, JsonConversation, JsonProtocol
from datalattice.wire import PROTOCOL_BYTES_MAX, STORE_ID_BYTES_MAX, Framing, mux

ONE, TWO, THREE = (KeyPair(bytes([seed]) * 32) for seed in (1, 2, 3))
COUNTERS = "counters"
TIMEOUT_S = 50


class Club(Counters):
    """Counters for the members of a club."""

    def __init__(self, *members: KeyPair) -> None:
        super().__init__()
        self.admitted = {one.public_key for one in members}

    def regard(self, peer: Peer) -> Regard:
        return Regard.STRANGER if peer.public_key in self.admitted else Regard.REFUSED


def node_of(key_pair: KeyPair, *peers: NodeServer, **options: object) -> NodeServer:
    addresses = tuple(f"tls://{one.address}" for one in peers)
    config = NodeConfig(**{"port": 0, "peers": addresses, **options})  # type: ignore[arg-type]
    return open_node(MemoryStore(), key_pair=key_pair, config=config)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await work()

    asyncio.run(bounded())


async def until(node: NodeServer, condition: Callable[[], bool]) -> None:
    await node.wait_until(lambda _: condition(), TIMEOUT_S)


async def connected(node: NodeServer) -> None:
    await until(node, lambda: all(peer.connected for peer in node.peers))


def counters_on(
    node: NodeServer, store_id: bytes = b"", replica: Counters | None = None
) -> Host[Counters]:
    return node.host(COUNTERS, store_id, replica or Counters(), JsonProtocol())


async def count(host: Host[Counters], name: str, amount: int = 1) -> None:
    await host.write(lambda counters: counters.add(name, amount))


async def counts(host: Host[Counters]) -> dict[str, int]:
    return await host.ask(lambda counters: dict(counters.counts))


async def agree(node: NodeServer, hosts: list[Host[Counters]], expected: dict[str, int]) -> None:
    await until(node, lambda: all(host.replica.counts == expected for host in hosts))


def test_counters_and_the_lattice_replicate_side_by_side_on_one_connection() -> None:
    async def work() -> None:
        async with node_of(ONE) as first, node_of(TWO, first) as second:
            hosts = [counters_on(node) for node in (first, second)]
            await connected(second)
            for number, host in enumerate(hosts):
                await count(host, f"of {number}", number + 1)
            await agree(first, hosts, {"of 0": 1, "of 1": 2})
            await settled(first, second)
            assert [one.connection_count for one in (first, second)] == [1, 1]

    run(work)


@pytest.mark.parametrize("order", ["dialler first", "acceptor first", "at once"])
def test_a_replica_that_is_added_later_finds_its_like_on_open_connections(order: str) -> None:
    async def work() -> None:
        async with node_of(ONE) as acceptor, node_of(TWO, acceptor) as dialler:
            await connected(dialler)
            nodes = [acceptor, dialler] if order == "acceptor first" else [dialler, acceptor]
            for number in range(8):
                store_id = bytes([number])
                hosts = [counters_on(nodes[0], store_id)]
                if order != "at once":
                    await settled(*nodes)
                hosts.append(counters_on(nodes[1], store_id))
                await count(hosts[number % 2], "n")
                await agree(nodes[0], hosts, {"n": 1})

    run(work)


def test_a_replica_added_before_the_refusal_of_its_stream_has_left_finds_its_like() -> None:
    async def work() -> None:
        async with node_of(ONE) as acceptor, node_of(TWO, acceptor) as dialler:
            await connected(dialler)
            for node in (acceptor, dialler):  # the protocol is known on both sides
                counters_on(node, b"other")
            await settled(dialler, acceptor)
            # The refusal takes a turn of the lattice's lane: that turn comes after all else here.
            lane, held = acceptor._hosts.lattice.lane, []
            submit = lane.submit
            lane.submit = lambda *task, **who: held.append((task, who))  # type: ignore[method-assign]
            hosts = [counters_on(dialler)]
            refused = acceptor.observer.counters
            await until(dialler, lambda: refused.get("streams-refused", 0) == 1)
            hosts.append(counters_on(acceptor))
            (talk,) = acceptor._hosts._talks.values()
            # The acceptor has opened a stream; the dialler may have reset it already.
            await until(dialler, lambda: hosts[1] in talk.streams.keys() | talk.refused)
            lane.submit = submit  # type: ignore[method-assign]
            for task, who in held:
                submit(*task, **who)
            await count(hosts[1], "n")
            await agree(dialler, hosts, {"n": 1})

    run(work)


def test_replicas_beyond_the_most_streams_are_offered_when_others_were_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        monkeypatch.setattr(mux, "STREAMS_MAX", 3)
        async with node_of(ONE) as acceptor, node_of(TWO) as dialler:
            names = [bytes([number]) for number in range(10)]
            ours = [counters_on(dialler, name) for name in names]
            theirs = counters_on(acceptor, names[-1])
            await count(theirs, "n")
            # Else the acceptor opens the stream, since its replica has changed.
            await until(acceptor, lambda: not acceptor._hosts._offering)
            dialler.add_peer(f"tls://{acceptor.address}")
            await agree(dialler, [ours[-1], theirs], {"n": 1})
            assert dialler.observer.counters["streams-full"] >= len(names) - 3

    run(work)


def test_what_was_counted_before_two_nodes_met_is_compared_when_they_do() -> None:
    async def work() -> None:
        async with node_of(ONE) as first, node_of(TWO) as second:
            hosts = [counters_on(node) for node in (first, second)]
            expected = {}
            for number in range(40):
                await count(hosts[number % 2], f"name {number}", number + 1)
                expected[f"name {number}"] = number + 1
            second.add_peer(f"tls://{first.address}")
            await agree(first, hosts, expected)

    run(work)


async def settled(*nodes: NodeServer) -> None:
    """Wait for a record of each node at the others: what was said before has come by then."""
    for node in nodes:
        assert node.owner is not None
        Topics.at(node.cursor, node.owner.public_key).partition("t", 0).offer("a record")
        await node.sync()
    await until(nodes[0], lambda: len({node.root_hash for node in nodes}) == 1)


def test_only_members_are_spoken_to_from_their_admission_to_their_removal() -> None:
    async def work() -> None:
        async with node_of(ONE) as first, node_of(TWO, first) as second:
            ours, theirs = Club(), Club(ONE)
            hosts = [counters_on(first, b"club", ours), counters_on(second, b"club", theirs)]
            await until(first, lambda: first.observer.counters.get("streams-refused", 0) == 1)
            await count(hosts[0], "before")
            await settled(first, second)
            assert await counts(hosts[1]) == {}
            await hosts[0].ask(lambda _: ours.admitted.add(TWO.public_key))
            await count(hosts[0], "member")
            await agree(first, hosts, {"before": 1, "member": 1})
            await hosts[0].ask(lambda _: ours.admitted.clear())
            await count(hosts[0], "after")
            await count(hosts[1], "from outside")
            await settled(first, second)
            assert await counts(hosts[1]) == {"before": 1, "member": 1, "from outside": 1}
            assert await counts(hosts[0]) == {"before": 1, "member": 1, "after": 1}

    run(work)


def test_an_unknown_store_and_a_forbidden_one_are_refused_alike_and_harm_nothing() -> None:
    async def work() -> None:
        async with node_of(ONE) as first, node_of(TWO, first) as second:
            counters_on(first, b"club", Club())
            counters_on(first, b"other")
            for store_id in (b"club", b"unknown"):
                counters_on(second, store_id)
            second.host("another protocol", b"", Counters(), JsonProtocol())
            good = [counters_on(node, b"good") for node in (first, second)]
            await count(good[0], "n")
            await agree(first, good, {"n": 1})
            await settled(first, second)
            assert first.observer.health == second.observer.health == "ok"

    run(work)


def test_a_replica_that_is_removed_is_silent_and_catches_up_when_it_is_back() -> None:
    async def work() -> None:
        async with node_of(ONE) as first, node_of(TWO, first) as second:
            kept = Counters()
            hosts = [counters_on(first), counters_on(second, replica=kept)]
            await count(hosts[0], "n")
            await agree(first, hosts, {"n": 1})
            await second.unhost(hosts[1])
            with pytest.raises(StoreClosed, match="counters is not on this node any more"):
                await counts(hosts[1])
            with pytest.raises(
                UsageError, match="counters is not a removable replica of this node"
            ):
                await second.unhost(hosts[1])
            await count(hosts[0], "n")
            assert kept.counts == {"n": 1}
            again = counters_on(second, replica=kept)
            await agree(first, [hosts[0], again], {"n": 2})

    run(work)


def test_a_plain_connection_carries_the_lattice_alone() -> None:
    async def work() -> None:
        plain = {"plain": True}
        async with node_of(ONE, **plain) as first:
            config = NodeConfig(port=-1, peers=(f"tcp://{first.address}",), plain=True)
            async with open_node(MemoryStore(), key_pair=TWO, config=config) as second:
                hosts = [counters_on(node) for node in (first, second)]
                await count(hosts[0], "n")
                await settled(first, second)
                assert await counts(hosts[1]) == {}

    run(work)


class Rude(JsonConversation):
    """Says what is no message, as often as it is greeted."""

    def send(self, saying: Any, now_ms: int) -> int | None:
        self._frames += [b"[1]"] * 20
        return None

    def receive(self, payload: bytes, now_ms: int) -> None:
        assert json.loads(payload)


class RudeProtocol:
    def converse(self, peer: Peer, pinned: bytes | None) -> Rude:
        return Rude(peer)


@pytest.mark.parametrize("offended", [1, FAULTY_MAX - 1, FAULTY_MAX])
def test_who_offends_a_replica_loses_its_stream_and_who_offends_three_the_connection(
    offended: int,
) -> None:
    async def work() -> None:
        async with node_of(ONE) as first, node_of(TWO) as second:
            counters = [counters_on(first, bytes([number])) for number in range(offended)]
            good = [counters_on(node, b"good") for node in (first, second)]
            for number in range(offended):
                second.host(COUNTERS, bytes([number]), Counters(), RudeProtocol())
            second.add_peer(f"tls://{first.address}")
            closed = first.observer.counters
            if offended < FAULTY_MAX:
                await count(good[0], "n")
                await agree(first, good, {"n": 1})
                await until(first, lambda: closed.get("closed-malformed", 0) == offended)
                assert not closed.get("connections-closed", 0)
            else:
                await until(first, lambda: closed.get("connections-closed", 0) >= 1)
            assert [await counts(one) for one in counters] == [{}] * offended

    run(work)


def lane_threads() -> int:
    return sum(one.name.startswith("datalattice-lanes") for one in threading.enumerate())


def test_a_hundred_replicas_need_no_more_threads_than_one() -> None:
    async def work() -> None:
        before = lane_threads()
        async with node_of(ONE) as first, node_of(TWO, first) as second:
            pairs = [
                [counters_on(node, number.to_bytes(2, "big")) for node in (first, second)]
                for number in range(100)
            ]
            await asyncio.gather(*(count(pair[n % 2], "n") for n, pair in enumerate(pairs)))
            for pair in pairs:
                await agree(first, pair, {"n": 1})
            assert lane_threads() - before <= 8
            assert [one.connection_count for one in (first, second)] == [1, 1]

    run(work)


class Full(Counters):
    """Counters whose disk is full."""

    def publish(self) -> bool:
        raise StoreFailed("no room")


def test_a_write_that_cannot_be_kept_is_the_error_of_whoever_made_it() -> None:
    async def work() -> None:
        async with node_of(ONE) as node:
            host = counters_on(node, replica=Full())
            with pytest.raises(StoreFailed, match="no room"):
                await count(host, "n")
            with pytest.raises(ZeroDivisionError):
                await host.ask(lambda _counters: 1 // 0)
            with pytest.raises(StoreFailed, match="no room"):
                await node.unhost(host)

    run(work)


def test_a_node_that_closes_says_that_a_replica_could_not_be_kept() -> None:
    async def work() -> None:
        node = node_of(ONE)
        await node.start()
        node.host(COUNTERS, b"full", Full(), JsonProtocol())
        fine = counters_on(node, b"fine")
        with pytest.raises(StoreFailed, match="no room"):
            await node.close()
        with pytest.raises(StoreClosed):
            await counts(fine)

    run(work)


def names() -> Iterator[tuple[str, bytes, str | None]]:
    yield "p", b"", None
    yield "p" * PROTOCOL_BYTES_MAX, b"i" * STORE_ID_BYTES_MAX, None
    yield "", b"", "a protocol has a name of 1 to 64 ASCII"
    yield "p" * (PROTOCOL_BYTES_MAX + 1), b"", "a protocol has a name of 1 to 64 ASCII"
    yield "é", b"", "ASCII"
    yield "p", b"i" * (STORE_ID_BYTES_MAX + 1), "a store id has at most 64 bytes"
    yield "lattice", b"", "lattice is on this node already"


@pytest.mark.parametrize(("protocol", "store_id", "error"), list(names()))
def test_names_of_replicas_have_bounds(protocol: str, store_id: bytes, error: str | None) -> None:
    async def work() -> None:
        async with node_of(ONE) as node:
            if error is None:
                node.host(protocol, store_id, Counters(), JsonProtocol())
                return
            with pytest.raises(UsageError, match=error):
                node.host(protocol, store_id, Counters(), JsonProtocol())

    run(work)


def test_all_replicas_of_a_protocol_cut_their_frames_alike() -> None:
    async def work() -> None:
        async with node_of(ONE) as node:
            counters_on(node)
            with pytest.raises(UsageError, match="frames of counters are cut in another way"):
                node.host(COUNTERS, b"2", Counters(), JsonProtocol(), framing=Framing(1_000))

    run(work)


@pytest.mark.parametrize(
    ("partner", "connection"),
    [
        ("in 10.0.0.7:5 #12", "in 10.0.0.7:5 #12"),
        ("in 10.0.0.7:5 #12.3", "in 10.0.0.7:5 #12"),
        ("out tcp://node.example:5 #1.30", "out tcp://node.example:5 #1"),
        ("nobody.5", "nobody.5"),
    ],
)
def test_a_partner_is_a_stream_of_a_connection(partner: str, connection: str) -> None:
    assert connection_of(partner) == connection


def test_what_was_said_for_a_stream_is_not_sent_on_the_next_one_of_the_same_replica() -> None:
    async def work() -> None:
        async with node_of(ONE) as first, node_of(TWO, first) as second:
            hosts = [counters_on(node) for node in (first, second)]
            await count(hosts[0], "n")
            await agree(first, hosts, {"n": 1})
            (connection,) = second.connections
            (talk,) = second._hosts._talks.values()
            (old,) = [stream for stream in talk.hosts if stream]
            second._hosts._hang_up(hosts[1], talk)
            second._hosts._open(hosts[1], talk)
            (new,) = [stream for stream in talk.hosts if stream]
            sent: list[tuple[bytes, int]] = []
            connection.send = lambda *frame: sent.append(frame)  # type: ignore[method-assign]
            late = Effects(sends=[(f"{connection.id}.{one}", b"said") for one in (old, new)])
            second._hosts.carry_out(hosts[1], late)
            assert sent == [(b"said", new)]

    run(work)
