"""Monitor: what the pages of a live node say, and reasons that somebody has to look for."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from datalattice.cells import Map, Set, Value
from datalattice.client.settings import NodeConfig
from datalattice.errors import StoreFull, UsageError
from datalattice.lattice import MapLattice, MaxLattice, SetLattice
from datalattice.node import MemoryTransport, NodeServer, metrics, open_node
from datalattice.node.connection import Traffic
from datalattice.node.metrics import PEER_SERIES_MAX, exposition
from datalattice.node.monitor import ALONE_S, REFUSED_MS, Monitor
from datalattice.node.network import Network
from datalattice.node.observe import Histogram
from datalattice.node.peers import PeerInfo
from datalattice.node.status import ForkCounts, LaneStatus, NodeStatus, PeerReport, ProcessStatus
from datalattice.store import Commit, MemoryStore
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.polling import LIMIT_S

Parse = Callable[[str], dict[str, Any]]


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work()

    asyncio.run(bounded())


def add(node: NodeServer, element: Value) -> None:
    def joined(value: Value) -> Value:
        assert isinstance(value, Set)
        return value.union(Set.of([element]))

    node.cursor.update(joined)


async def get(node: NodeServer, page: str) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        host, port = str(node.monitor.address).split(":")
        client = http.client.HTTPConnection(host, int(port), timeout=LIMIT_S)
        client.request("GET", page)
        response = client.getresponse()
        found = response.status, response.read().decode()
        client.close()
        return found

    return await asyncio.to_thread(ask)


class FullStore(MemoryStore):
    full = False

    def _commit(self, *arguments: Any) -> Commit | None:
        if self.full:
            raise StoreFull("no space left")
        return super()._commit(*arguments)


def test_a_full_disk_degrades_and_space_recovers(parse: Parse) -> None:
    async def work() -> None:
        store = FullStore()
        config = NodeConfig(port=-1, http_port=0)
        async with open_node(store, lattice=SetLattice(), config=config) as node:
            assert (await get(node, "/health"))[0] == 200
            store.full = True
            add(node, 1)
            with pytest.raises(StoreFull):
                await node.sync()
            status, text = await get(node, "/health")
            document = json.loads(text)
            assert (status, document["status"]) == (503, "degraded")
            assert document["reasons"] == {"writes": "StoreFull: no space left"}
            families = parse((await get(node, "/metrics"))[1])
            assert families["datalattice_healthy"].value == 0
            assert families["datalattice_degraded"].by("reason") == {"writes": 1}
            store.full = False
            await node.sync()
            status, text = await get(node, "/health")
            assert (status, json.loads(text)["reasons"]) == (200, {})
            assert json.loads(text)["root_hash"] == node.root_hash.hex()

    run(work)


def test_the_metrics_of_two_nodes_add_up(parse: Parse) -> None:
    async def work() -> None:
        transport = MemoryTransport()
        one_config = NodeConfig(port=0, bind="memory", http_port=0)
        one = open_node(MemoryStore(), lattice=SetLattice(), transport=transport, config=one_config)
        async with one:
            config = NodeConfig(port=-1, bind="memory", http_port=0, peers=(str(one.address),))
            two = open_node(MemoryStore(), lattice=SetLattice(), transport=transport, config=config)
            async with two:
                add(two, 1)
                await two.sync()
                await one.wait_until(lambda node: node.root_hash == two.root_hash)
                families = parse((await get(two, "/metrics"))[1])
                values = {
                    name: families[f"datalattice_{name}"].value
                    for name in ("changes_total", "peers_wanted", "peers_connected", "healthy")
                }
                assert set(values.values()) == {1}
                assert families["datalattice_connections"].by("direction") == {"in": 0, "out": 1}
                assert families["datalattice_sent_bytes_total"].value > 0
                assert families["datalattice_pushes_total"].value >= 1
                assert families["datalattice_sent_frames_total"].value >= 3
                published = families["datalattice_publish_seconds"]
                assert published.kind == "histogram"
                assert published.samples["_count", ()] >= 1
                assert families["datalattice_peer_connected"].by("peer") == {str(one.address): 1}
                assert families["process_resident_memory_bytes"].value > 1_000_000
                # What ended is not forgotten.
                sent = families["datalattice_sent_bytes_total"].value
                await two.remove_peer(str(one.address))
                families = parse((await get(two, "/metrics"))[1])
                assert families["datalattice_sent_bytes_total"].value >= sent
                assert "datalattice_peer_connected" not in families
                families = parse((await get(one, "/metrics"))[1])
                assert families["datalattice_frame_seconds"].samples["_count", ()] >= 3

    run(work)


class Subject:
    """What a monitor needs of a node and its network, for one question."""

    def __init__(self, node: NodeServer) -> None:
        self.node = node
        self.connected = False
        self.wanted = True
        self.damage: tuple[str, ...] = ()

    @property
    def infos(self) -> list[Any]:
        class Peer:
            connected = self.connected
            source = "added"
            refused_since_ms = None
            suspected_ms = None

        return [Peer()] if self.wanted else []

    def __getattr__(self, name: str) -> Any:
        return self if name == "peers" else getattr(self.node, name)


def test_reasons_that_are_looked_for_come_and_go() -> None:
    now = [0.0]
    node = open_node(MemoryStore(), port=-1)
    subject = Subject(node)
    monitor = Monitor(subject, cast(Network, subject), lambda: now[0])

    def reasons() -> dict[str, str]:
        return node.observer.reasons

    now[0] = ALONE_S - 0.1
    assert reasons() == {}
    now[0] = ALONE_S
    assert reasons() == {"peers": "no connection to any of 1 peers for 60 s"}
    subject.connected = True
    subject.damage = ("file 1 byte 2", "file 1 byte 9")
    assert reasons() == {"damage": "Corruption: file 1 byte 2 and 1 more"}
    now[0] = 10 * ALONE_S
    monitor.linked()  # a connection ends now
    subject.connected, subject.damage = False, ()
    now[0] += ALONE_S - 0.1
    assert reasons() == {}
    now[0] += 0.1
    assert set(reasons()) == {"peers"}
    subject.wanted = False
    assert reasons() == {}


def test_a_wanted_peer_of_which_nothing_is_taken_degrades_until_something_is() -> None:
    async def work() -> None:
        transport = MemoryTransport()
        clock = StoppedClock(1_000)
        other = open_node(
            MemoryStore(),
            lattice=MapLattice(MaxLattice()),
            transport=transport,
            config=NodeConfig(port=0, bind="memory"),
        )
        async with other:
            config = NodeConfig(port=-1, bind="memory", peers=(str(other.address),))
            node = open_node(
                MemoryStore(),
                lattice=SetLattice(),
                transport=transport,
                clock=clock,
                config=config,
            )
            async with node:
                await node.wait_until(lambda node: node.peers[0].refusal is not None)
                clock.now += REFUSED_MS - 1
                assert node.observer.health == "ok"
                other.cursor.set(Map.of([("a", 1)]))
                await other.sync()
                await node.wait_until(lambda node: node.observer.counters["value-refused"] > 1)
                clock.now += 1
                text = node.observer.reasons["refused"]
                assert text.startswith(f"no value of {other.address} was taken in full for 300 s: ")
                assert "not a value of this lattice: Map" in text
                (connection,) = node.connections
                (info,) = node._network.peers.at(connection.id)
                info.taken(None, 0)
                assert node.observer.health == "ok"
                assert node.peers[0].refused_since_ms is None

    run(work)


def test_an_http_port_in_use_is_said_and_gives_everything_back() -> None:
    async def work() -> None:
        config = NodeConfig(port=-1, http_port=0)
        async with open_node(MemoryStore(), config=config) as node:
            port = int(str(node.monitor.address).rpartition(":")[2])
            taken = NodeConfig(port=0, http_port=port)
            with pytest.raises(UsageError, match=f"http_port {port}"):
                await open_node(MemoryStore(), config=taken).start()
        async with open_node(MemoryStore(), port=-1) as node:
            assert node.monitor.address is None

    run(work)


# --- the text -----------------------------------------------------------------------------------


def reading(**other: Any) -> NodeStatus:
    fields: dict[str, Any] = {
        "reasons": {},
        "root_hash": b"r" * 32,
        "unchanged_s": 1.5,
        "counters": {},
        "times": {},
        "inbound": 1,
        "outbound": 2,
        "traffic": Traffic(),
        "held_bytes": 0,
        "peers": [],
        "guests": [],
        "lane": LaneStatus(),
        "damage": (),
        "store_bytes": None,
        "process": ProcessStatus(1, None, 0.5),
    }
    return NodeStatus(**fields | other)


def test_any_name_of_a_counter_and_any_address_are_well_formed(parse: Parse) -> None:
    hostile = 'a"b\\c\nd\u2028'
    info = PeerInfo(hostile, connected=True, failures=3, proved=True)
    counters = {"connections-cut": 2, "weird name!": 1, "Weird-name?": 2, "received-bytes": 9}
    families = parse(
        exposition(
            reading(
                counters=counters,
                peers=[PeerReport(info, Traffic(), True)],
                reasons={hostile: "x"},
            )
        )
    )
    assert families["datalattice_connections_cut_total"].value == 2
    assert families["datalattice_weird_name__total"].value == 3
    assert families["datalattice_received_bytes_total"].value == 0  # the fixed one
    assert families["datalattice_peer_failures"].by("peer") == {hostile: 3}
    assert families["datalattice_degraded"].by("reason") == {hostile: 1}
    assert families["datalattice_peers_proved"].value == 1
    assert "process_open_fds" not in families


def test_forks_are_told_by_whose_they_are_and_their_kind(parse: Parse) -> None:
    forks = ForkCounts({(True, "log"): 2, (False, "owner"): 5}, seen=9, skipped=1, size_bytes=77)
    families = parse(exposition(reading(lane=LaneStatus(forks=forks))))
    found = {
        (dict(labels)["mine"], dict(labels)["kind"]): value
        for (_, labels), value in families["datalattice_forks_open"].samples.items()
    }
    assert found == {
        ("true", "log"): 2,
        ("true", "owner"): 0,
        ("false", "log"): 0,
        ("false", "owner"): 5,
    }
    assert families["datalattice_forks_seen_total"].value == 9
    assert families["datalattice_forks_skipped_total"].value == 1
    assert families["datalattice_evidence_bytes"].value == 77


@pytest.mark.parametrize("count", [PEER_SERIES_MAX - 1, PEER_SERIES_MAX, PEER_SERIES_MAX + 1])
def test_series_of_single_peers_are_bounded(parse: Parse, count: int) -> None:
    peers = [PeerReport(PeerInfo(f"h:{number}"), Traffic(), None) for number in range(count)]
    families = parse(exposition(reading(peers=peers)))
    assert families["datalattice_peers_wanted"].value == count
    assert len(families["datalattice_peer_connected"].samples) == min(count, PEER_SERIES_MAX)


def test_a_histogram_has_cumulative_buckets(parse: Parse) -> None:
    times = Histogram()
    for seconds in (0.0005, 0.001, 0.3, 99.0):
        times.add(seconds)
    family = parse(exposition(reading(times={"publish": times})))["datalattice_publish_seconds"]
    buckets = {
        dict(labels)["le"]: value for (s, labels), value in family.samples.items() if s == "_bucket"
    }
    assert (buckets["0.001"], buckets["0.25"], buckets["0.5"], buckets["+Inf"]) == (2, 2, 3, 4)
    assert family.samples["_sum", ()] == pytest.approx(99.3015)
    assert metrics.CONTENT_TYPE.startswith("text/plain; version=0.0.4")
