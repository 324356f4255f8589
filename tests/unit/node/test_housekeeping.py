"""Nodes with a hosting policy: quotas, forgetting, a disk that runs short, collections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from datalattice.actions import ActionRequest, DecideHosting, ForgetOwner
from datalattice.apps.queue import Topics
from datalattice.cells import Keyword, Map, Value, missing, same
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError
from datalattice.lattice import get_in
from datalattice.node import MemoryTransport, NodeServer, decisions, open_node
from datalattice.node.operations import NodeOperations
from datalattice.store import CellStore, MemoryStore, Store
from datalattice.store.kept import KEEP_NOTHING
from datalattice.sync import HostingPolicy, LatticeReplica, UnsignedPolicy
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.disk import SimDisk
from datalattice.testing.polling import LIMIT_S

T = TypeVar("T")
OWN, ANN = KeyPair(b"o" * 32), KeyPair(b"a" * 32)


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await work()

    return asyncio.run(bounded())


def node_of(
    transport: MemoryTransport,
    store: Store,
    key_pair: KeyPair,
    *peers: NodeServer,
    policy: HostingPolicy | None = None,
    collect_after_bytes: int = 256_000_000,
) -> NodeServer:
    config = NodeConfig(
        port=0,
        bind="memory",
        peers=tuple(str(peer.address) for peer in peers),
        root_sync_interval_ms=100,
        hosting=policy or HostingPolicy(),
        collect_after_bytes=collect_after_bytes,
    )
    return open_node(store, key_pair=key_pair, transport=transport, config=config)


async def perform(node: NodeServer, request: ActionRequest[Any]) -> Any:
    return await NodeOperations(node, lambda: None).perform(request)


async def offer(node: NodeServer, key_pair: KeyPair, *texts: str) -> None:
    Topics.at(node.cursor, key_pair.public_key).partition("log", 0).offer_many(texts)
    await node.sync()


def slot(node: NodeServer, key_pair: KeyPair) -> Value:
    return get_in(node.root, [Keyword("queue"), key_pair.public_key])


def text(number: int) -> str:
    return f"text {number} ".ljust(300, "x")


def test_an_owner_over_its_quota_is_refused_until_it_is_allowed() -> None:
    async def work() -> None:
        transport = MemoryTransport()
        policy = HostingPolicy(owner_bytes=5_000)
        async with (
            node_of(transport, MemoryStore(), ANN) as ann,
            node_of(transport, MemoryStore(), OWN, ann, policy=policy) as own,
        ):
            await offer(ann, ANN, "small")
            await own.wait_until(lambda node: same(slot(node, ANN), slot(ann, ANN)))
            before = slot(ann, ANN)
            await offer(ann, ANN, *(text(n) for n in range(40)))
            await own.pull()
            assert own.observer.counters["quota-exceeded"] >= 1
            assert same(slot(own, ANN), before)
            await own.housekeeper.ask(
                lambda replica: decisions.decide_hosting(
                    replica, DecideHosting(rule="allow", owner=ANN.public_key.hex())
                )
            )
            await own.pull()
            assert same(slot(own, ANN), slot(ann, ANN))
            assert missing(own.root) == []

    run(work)


def test_what_is_forgotten_stays_out_until_it_is_hosted_again() -> None:
    async def work() -> None:
        transport = MemoryTransport()
        async with (
            node_of(transport, MemoryStore(), ANN) as ann,
            node_of(transport, MemoryStore(), OWN, ann) as own,
        ):
            await offer(ann, ANN, *(text(n) for n in range(40)))
            await own.wait_until(lambda node: same(slot(node, ANN), slot(ann, ANN)))
            request = ForgetOwner(owner=ANN.public_key.hex(), reason="too much")
            gone = await perform(own, request)
            assert gone.sections == ("queue",)
            assert slot(own, ANN) is None
            await offer(ann, ANN, "more")
            await own.pull()
            assert slot(own, ANN) is None
            assert slot(ann, ANN) is not None, "peers keep theirs"
            await perform(own, DecideHosting(rule="host", owner=ANN.public_key.hex()))
            await own.wait_until(lambda node: same(slot(node, ANN), slot(ann, ANN)))

    run(work)


def test_ones_own_key_is_forgotten_only_when_that_is_said() -> None:
    async def work() -> None:
        async with node_of(MemoryTransport(), MemoryStore(), OWN) as own:
            await offer(own, OWN, "mine")
            key = OWN.public_key.hex()
            with pytest.raises(UsageError, match="--own"):
                await perform(own, ForgetOwner(owner=key))
            with pytest.raises(UsageError, match="no section 'queues'"):
                await perform(own, ForgetOwner(owner=key, section="queues"))
            assert slot(own, OWN) is not None
            await perform(own, ForgetOwner(owner=key, own=True))
            assert slot(own, OWN) is None

    run(work)


def test_unsigned_data_of_known_peers_alone_is_taken_where_policy_says_so() -> None:
    async def work() -> None:
        transport = MemoryTransport()
        policy = HostingPolicy(unsigned={"data": UnsignedPolicy("known")})
        async with (
            node_of(transport, MemoryStore(), ANN) as wanted,
            node_of(transport, MemoryStore(), OWN, wanted, policy=policy) as own,
            node_of(transport, MemoryStore(), KeyPair(b"s" * 32), own) as stranger,
        ):
            for node, content in ((stranger, "of a stranger" * 9), (wanted, "of a friend" * 9)):
                data = node.cursor.path("data")
                data.path(Map.of({"a": content}).hash).set(Map.of({"a": content}))
                await node.sync()
            key = Keyword("data")
            friends = Map.of({"a": "of a friend" * 9}).hash
            await own.wait_until(lambda node: get_in(node.root, [key, friends]) is not None)
            await stranger.wait_until(lambda node: get_in(node.root, [key, friends]) is not None)
            strangers = Map.of({"a": "of a stranger" * 9}).hash
            assert get_in(own.root, [key, strangers]) is None

    run(work)


def open_store(disk: SimDisk, clock: StoppedClock) -> CellStore:
    return CellStore.open(
        "store",
        disk=disk,
        clock=clock,
        retention=KEEP_NOTHING,
        segment_bytes=16_384,
        spare_bytes=50_000,
    )


def test_a_disk_that_runs_short_degrades_the_node_refuses_others_and_takes_own_writes() -> None:
    async def work() -> None:
        transport, disk, clock = MemoryTransport(), SimDisk(1), StoppedClock(1_000_000)
        store = open_store(disk, clock)
        policy = HostingPolicy(reserve_bytes=3_000_000)
        async with (
            node_of(transport, MemoryStore(), ANN) as ann,
            node_of(transport, store, OWN, ann, policy=policy) as own,
        ):
            await offer(ann, ANN, "before")
            await own.wait_until(lambda node: same(slot(node, ANN), slot(ann, ANN)))
            before = slot(own, ANN)
            disk.capacity = disk.used_bytes + 2_000_000
            clock.now += 60_000
            await own.housekeeper.look()
            assert "disk-low" in own.observer.reasons
            await offer(ann, ANN, "while it is low")
            await own.wait_until(lambda node: node.observer.counters.get("disk-low", 0) > 0)
            await offer(own, OWN, "own")
            assert same(slot(own, ANN), before)
            assert slot(own, OWN) is not None
            disk.capacity = None
            await own.housekeeper.look()
            assert own.observer.health == "ok"
            await own.pull()
            assert same(slot(own, ANN), slot(ann, ANN))
        store.close()

    run(work)


def test_a_full_disk_is_collected_by_itself_and_own_writes_work_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("datalattice.node.housekeeping.LOW_GROWTH_BYTES", 100_000)
    monkeypatch.setattr("datalattice.node.housekeeping.LOW_GRACE_MS", 0)

    async def work() -> None:
        disk, clock = SimDisk(1), StoppedClock(1_000_000)
        store = open_store(disk, clock)
        policy = HostingPolicy(reserve_bytes=3_000_000)
        async with node_of(MemoryTransport(), store, OWN, policy=policy) as own:
            for number in range(40):
                Topics.at(own.cursor, OWN.public_key).partition("log", number % 2).offer_many(
                    [text(n) for n in range(10)]
                )
                await own.sync()
            root = own.root_hash
            size = store.stats().bytes
            disk.capacity = disk.used_bytes + 300_000
            clock.now += 60_000
            await own.housekeeper.look()
            assert own.observer.counters["collections"] == 1
            assert store.stats().bytes < size
            assert own.root_hash == root
            assert missing(own.root) == []
            await own.housekeeper.look()
            assert own.observer.counters["collections"] == 1, "nothing was written since"
            await offer(own, OWN, "it goes on")
        store.close()

    run(work)


@pytest.mark.parametrize(("excess", "is_due"), [(0, True), (1, False)])
def test_garbage_is_collected_when_the_store_has_doubled_and_grown_enough(
    excess: int, is_due: bool
) -> None:
    async def work() -> None:
        store = open_store(SimDisk(1), StoppedClock(1_000_000))
        store.commit(Map.of({n: text(n) for n in range(500)}))
        grown = store.stats().bytes
        transport = MemoryTransport()
        async with node_of(transport, store, OWN) as own:
            house = own.housekeeper
            house._config = NodeConfig(collect_after_bytes=store.stats().bytes + excess)
            assert house.is_due(False) is is_due
            house._config = NodeConfig(collect_after_bytes=0)
            assert not house.is_due(False)
            house._config = NodeConfig(collect_after_bytes=1)
            await house.collected(store.collect(grace_ms=0))
            last = store.stats().bytes
            number = 1_000
            while store.stats().bytes < 2 * last:
                assert not house.is_due(False), "it has not doubled yet"
                store.put(Map.of({n: text(n) for n in range(number, number + 50)}))
                store.sync()
                number += 50
            assert house.is_due(False)
            assert grown
        store.close()

    run(work)


def test_usage_is_written_down_when_a_node_ends(tmp_path: Path) -> None:
    async def work() -> None:
        transport = MemoryTransport()
        store = CellStore.open(tmp_path)
        async with (
            node_of(transport, MemoryStore(), ANN) as ann,
            node_of(transport, store, OWN, ann) as own,
        ):
            await offer(ann, ANN, *(text(n) for n in range(40)))
            await own.wait_until(lambda node: same(slot(node, ANN), slot(ann, ANN)))
        replica = LatticeReplica(store, own._lattice, hosting=HostingPolicy())
        found = decisions.hosting_info(replica).usage
        assert [one.owner for one in found] == [ANN.public_key.hex()]
        assert found[0].bytes > 12_000
        store.close()

    run(work)
