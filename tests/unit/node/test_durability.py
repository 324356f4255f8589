"""Nodes on disks that fill up, fail and lose bytes; nodes that heal themselves; backups."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar, cast

import pytest

from datalattice.cells import (
    Map,
    Set,
    Signed,
    Value,
    encode,
    missing,
    novelty,
    same,
    value_hash,
)
from datalattice.client.backups import LACKING
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair, SeededEntropy, sha3_256
from datalattice.errors import BadFormat, Corruption, StoreError, StoreFull, UsageError
from datalattice.lattice import LOCAL_KEY, SetLattice, replicable
from datalattice.node import Backup, MemoryTransport, NodeServer, open_node
from datalattice.node.heal import Healer
from datalattice.node.lanes import Lane
from datalattice.node.observe import Observer
from datalattice.store import CellStore, MemoryStore, Store
from datalattice.store.disk import DiskFile
from datalattice.store.log.packing import locate
from datalattice.sync import Effects, LatticeReplica, Part
from datalattice.testing.disk import SimDisk
from datalattice.testing.polling import LIMIT_S

T = TypeVar("T")
LONG = "a text that is too long to stand inside its parent " * 4


class FailingDisk(SimDisk):
    """A disk that refuses everything while it is told to."""

    def __init__(self, seed: int, code: int) -> None:
        super().__init__(seed)
        self.fail_errno = code
        self.is_failing = False

    def step(self) -> bool:
        """Count an operation; return whether it is refused."""
        return super().step() or self.is_failing


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await work()

    return asyncio.run(bounded())


def set_node(
    transport: MemoryTransport,
    store: Store | Path,
    *peers: NodeServer,
    backups: tuple[Backup, ...] = (),
) -> NodeServer:
    addresses = tuple(str(peer.address) for peer in peers)
    config = NodeConfig(
        port=0, bind="memory", peers=addresses, root_sync_interval_ms=200, request_timeout_ms=1_000
    )
    return open_node(
        store, lattice=SetLattice(), transport=transport, config=config, backups=backups
    )


def elements(start: int, count: int) -> list[Value]:
    return [f"{LONG} {number}" for number in range(start, start + count)]


def add(node: NodeServer, *added: Value) -> None:
    def joined(value: Value) -> Value:
        assert isinstance(value, Set)
        return value.union(Set.of(added))

    node.cursor.update(joined)


async def until(node: NodeServer, condition: Callable[[], bool]) -> None:
    await node.wait_until(lambda _: condition())


def is_well(node: NodeServer) -> Callable[[], bool]:
    return lambda: node.observer.health == "ok"


def heard(node: NodeServer) -> Callable[[], bool]:
    """Return whether a node has heard a peer."""
    return lambda: "frame" in node.observer.times


def open_sim(disk: SimDisk) -> CellStore:
    return CellStore.open("store", disk=disk, entropy=SeededEntropy(1))


# --- the disk is full, or fails ---


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "io"])
def test_a_full_or_failing_disk_is_never_a_silent_loss(code: int) -> None:
    disk = FailingDisk(1, code)

    async def work() -> bytes:
        transport = MemoryTransport()
        store = open_sim(disk)
        async with (
            set_node(transport, store) as node,
            set_node(transport, MemoryStore(), node) as peer,
        ):
            add(node, "before")
            await node.sync()
            await peer.wait_until(lambda peer: peer.root_hash == node.root_hash)
            told = peer.root_hash
            disk.is_failing = True
            for number in range(3):
                add(node, f"while {number}")
                with pytest.raises(StoreError):
                    await node.sync()
                assert node.observer.health.startswith("degraded: Store")
                assert node.root_hash == told, "nothing is announced that is not durable"
                assert store.root_hash() == told
            add(peer, "from the peer")
            faults = node.observer.counters["faults"]
            await peer.sync()
            await until(node, lambda: node.observer.counters["faults"] > faults)
            assert node.root_hash == told
            disk.is_failing = False
            await node.sync()
            assert same(node.root, store.root())
            assert node.observer.health == "ok"
            await node.wait_until(lambda node: "from the peer" in node.root)  # type: ignore[operator]
            await peer.wait_until(lambda peer: peer.root_hash == node.root_hash)
            expected = Set.of(["before", "while 0", "while 1", "while 2", "from the peer"])
            assert same(node.root, expected)
            return node.root_hash

    root_hash = run(work)
    disk.restart(power_failure=True)
    with open_sim(disk) as again:
        assert again.root_hash() == root_hash
        assert again.check().is_clean


def test_a_node_goes_on_by_itself_when_there_is_room_again() -> None:
    disk = FailingDisk(2, errno.ENOSPC)

    async def work() -> None:
        store = open_sim(disk)
        async with set_node(MemoryTransport(), store) as node:
            disk.is_failing = True
            add(node, "kept")
            with pytest.raises(StoreError):
                await node.sync()
            disk.is_failing = False
            await until(node, is_well(node))
            assert same(store.root(), Set.of(["kept"]))

    run(work)


def test_values_that_wait_for_an_edit_are_taken_as_soon_as_there_is_room_again() -> None:
    disk = FailingDisk(3, errno.ENOSPC)

    async def work() -> None:
        store = open_sim(disk)
        async with set_node(MemoryTransport(), store) as node:
            add(node, "before")
            await node.sync()
            disk.is_failing = True
            for _ in range(2):
                with pytest.raises(StoreFull):
                    await asyncio.to_thread(node.stage, [Set.of(["staged"])])
            disk.is_failing = False
            await asyncio.to_thread(node.stage, [Set.of(["staged"])])
            assert store.has(value_hash(Set.of(["staged"])))
            add(node, "after")
            await node.sync()
            assert same(store.root(), Set.of(["before", "after"]))

    run(work)


# --- cells of its own are damaged or missing ---


def damage(disk: SimDisk, store: CellStore, hash: bytes) -> None:
    segment, offset, length = locate(store._index.find(hash))
    disk.flip(f"store/segments/{segment:08d}.seg", offset + length // 2)


def test_a_node_heals_from_its_peers() -> None:
    disk = SimDisk(3)
    with open_sim(disk) as store:
        store.commit(Set.of(elements(0, 200)))
    store = open_sim(disk)
    lost = [hash for hash, _, _ in novelty(Set.of(elements(0, 200)))][5:9]
    for hash in lost[:2]:
        damage(disk, store, hash)
    store.discard(lost[2:])

    async def work() -> None:
        transport = MemoryTransport()
        whole = MemoryStore()
        whole.commit(Set.of(elements(0, 200)))
        async with set_node(transport, store) as node:
            for hash in lost[:2]:
                with pytest.raises(Corruption):
                    store.load(hash)
            node._healer.note(lost[2:])
            assert node.observer.health.startswith("degraded: ")
            assert node.observer.counters["cells-damaged"] == 2
            async with set_node(transport, whole, node) as peer:
                await until(node, is_well(node))
                assert node.observer.counters["cells-healed"] >= 4
                assert peer.root_hash == node.root_hash
                assert missing(node.root) == []
                healing = await node.heal()
                assert healing.report.is_clean

    run(work)
    store.close()
    with open_sim(disk) as again:
        assert again.check().is_clean
        assert same(again.root(), Set.of(elements(0, 200)))


def test_a_cell_that_nobody_has_and_nobody_needs_is_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stranger's value may lean on one that a collection has just removed."""
    monkeypatch.setattr("datalattice.node.heal._RETRY_S", 0.01)
    asked: list[Healer] = []
    ask = Healer._ask

    def noted(healer: Healer) -> None:
        asked.append(healer)
        ask(healer)

    monkeypatch.setattr(Healer, "_ask", noted)
    disk = SimDisk(6)
    with open_sim(disk) as store:
        store.commit(Set.of(elements(0, 50)))

    async def work(store: CellStore) -> None:
        async with set_node(MemoryTransport(), store) as node:
            node._healer.note([sha3_256(b"what a stranger sent")])
            assert "1 cells of this node are damaged or missing" in node.observer.health
            await until(node, is_well(node))
            assert node.observer.counters["checks"] == 1
            node._healer.note([sha3_256(b"and once more")])
            asked.clear()
            await until(node, lambda: len(asked) >= 5)
            assert node.observer.counters["checks"] == 1, "not over and over"
            assert not is_well(node)()

    with open_sim(disk) as store:
        run(lambda: work(store))


def test_a_healed_cell_that_is_damaged_at_once_is_asked_for_again() -> None:
    class Worn(MemoryStore):
        def get_encoding(self, hash: bytes, *, verify: bool = True) -> bytes | None:
            raise Corruption("damaged again")

    asked: list[object] = []

    class Asked:
        def submit(self, action: object) -> None:
            asked.append(action)

    observer = Observer()
    healer = Healer(Worn(), cast("Lane", Asked()), observer, 0)
    healer.note([sha3_256(b"cell")])
    healer.settle(Effects(healed=[sha3_256(b"cell")]))
    assert len(healer._wanted) == 1
    assert observer.health.startswith("degraded: ")
    healer._ask()
    assert len(asked) == 2


class UnreadableDisk(SimDisk):
    """A disk whose files cannot be opened any more, except by who reads single cells."""

    is_unreadable = False

    def open(self, path: str, *, create: bool = False, write: bool = False) -> DiskFile:
        if self.is_unreadable and not (create or write):
            raise OSError(errno.EIO, "a bad sector")
        return super().open(path, create=create, write=write)


def test_a_check_of_a_file_that_cannot_be_read_does_not_end_the_healing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = UnreadableDisk(9)
    with open_sim(disk) as store:
        store.commit(Set.of(elements(0, 50)))
    store = open_sim(disk)
    monkeypatch.setattr("datalattice.node.heal._RETRY_S", 0.01)
    lost, _, _ = novelty(Set.of(elements(0, 50)))[3]
    damage(disk, store, lost)
    with pytest.raises(Corruption):
        store.load(lost)  # so that there is something to check at once
    disk.is_unreadable = True

    async def work() -> None:
        transport = MemoryTransport()
        whole = MemoryStore()
        whole.commit(Set.of(elements(0, 50)))
        async with set_node(transport, store) as node:
            await until(node, lambda: "a bad sector" in node.observer.health)
            node._healer.note([lost])
            async with set_node(transport, whole, node):
                await until(node, lambda: node.observer.counters.get("cells-healed") == 1)

    run(work)
    disk.is_unreadable = False
    store.close()


def test_a_lost_file_comes_back_from_the_peers(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with CellStore.open(path, segment_bytes=4_096) as store:
        for count in range(100, 700, 100):
            store.commit(Set.of(elements(0, count)))
    (path / "segments" / "00000003.seg").unlink()

    async def work() -> None:
        transport = MemoryTransport()
        whole = MemoryStore()
        whole.commit(Set.of(elements(0, 600)))
        async with set_node(transport, whole) as peer, set_node(transport, path, peer) as node:
            await until(node, heard(node))
            healing = await node.heal()
            assert healing.fetched > 50
            assert healing.report.is_clean
            assert node.observer.health == "ok"
            assert missing(node.root) == []

    run(work)
    with CellStore.open(path) as store:
        assert same(store.root(), Set.of(elements(0, 600)))


def test_cells_that_no_peer_has_stay_a_trouble_and_are_asked_for_again() -> None:
    disk = SimDisk(5)
    with open_sim(disk) as store:
        store.commit(Set.of(elements(0, 40)))
    store = open_sim(disk)
    lost = next(hash for hash, _, _ in novelty(Set.of(elements(0, 40))))
    damage(disk, store, lost)

    async def work() -> None:
        transport = MemoryTransport()
        async with (
            set_node(transport, store) as node,
            set_node(transport, MemoryStore(), node) as ignorant,
        ):
            await until(node, heard(node))
            healing = await node.heal()
            assert [one.hash for one in healing.report.damage if one.hash] == [lost]
            assert node.observer.health.startswith("degraded: ")
            # The same elements come into being elsewhere: these are the same cells.
            add(ignorant, *elements(0, 40))
            await ignorant.sync()
            await until(node, is_well(node))
            assert (await node.heal()).report.is_clean

    run(work)
    store.close()


def test_a_store_that_was_opened_with_damage_is_checked_and_healed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with CellStore.open(path) as store:
        store.commit(Set.of(elements(0, 50)))
        store.commit(Set.of(elements(0, 60)))
    file = path / "segments" / "00000001.seg"
    data = bytearray(file.read_bytes())
    data[3_000] ^= 4
    file.write_bytes(data)
    for one in (path / "index").iterdir():
        one.unlink()
    (path / "index").rmdir()

    async def work() -> None:
        transport = MemoryTransport()
        whole = MemoryStore()
        whole.commit(Set.of(elements(0, 50)))
        whole.commit(Set.of(elements(0, 60)))
        async with set_node(transport, whole) as peer, set_node(transport, path, peer) as node:
            assert node.damage
            await until(node, lambda: is_well(node)() and not node.damage)
            assert node.root_hash == peer.root_hash

    run(work)
    with CellStore.open(path) as store:
        assert store.check().is_clean
        assert same(store.root(), Set.of(elements(0, 60)))


# --- backups ---


def test_a_backup_follows_and_a_node_starts_on_it(tmp_path: Path) -> None:
    async def work() -> bytes:
        backup = Backup(tmp_path / "copy")
        async with set_node(MemoryTransport(), tmp_path / "s", backups=(backup,)) as node:
            for start in range(0, 500, 100):
                add(node, *elements(start, 100))
                await node.sync()
            assert await asyncio.to_thread(backup.wait, LIMIT_S)
            with CellStore.open(tmp_path / "copy", read_only=True) as copy:
                assert copy.root_hash() == node.root_hash
            add(node, "the last")
            await node.sync()
            assert node.observer.health == "ok"
            with pytest.raises(UsageError, match="belongs to a node"):
                backup.start(MemoryStore(), node.observer, SetLattice())
            return node.root_hash

    last = run(work)
    with CellStore.open(tmp_path / "copy") as copy:
        assert copy.root_hash() == last, "closing waits for the last value"
        assert missing(copy.root()) == []
        assert copy.check().is_clean

    async def recovered() -> None:
        async with set_node(MemoryTransport(), tmp_path / "copy") as node:
            assert node.root_hash == last
            add(node, "after")
            await node.sync()

    run(recovered)


def test_a_node_that_begins_anew_does_not_empty_its_backup(tmp_path: Path) -> None:
    async def work() -> None:
        transport = MemoryTransport()
        copy = tmp_path / "copy"
        async with set_node(transport, tmp_path / "s", backups=(Backup(copy),)) as node:
            add(node, *elements(0, 100))
            await node.sync()
        held = root_of(copy)
        async with set_node(transport, MemoryStore(), backups=(Backup(copy),)) as anew:
            await until(anew, lambda: LACKING in anew.observer.health)
            add(anew, "something else")
            await anew.sync()
            assert not await asyncio.to_thread(anew.backups[0].wait, 0.01)
        assert root_of(copy) == held
        async with (
            set_node(transport, tmp_path / "s") as other,
            set_node(transport, MemoryStore(), other, backups=(Backup(copy),)) as anew,
        ):
            assert await asyncio.to_thread(anew.backups[0].wait, LIMIT_S), "its peer had all of it"
            assert anew.observer.health == "ok"
        assert root_of(copy) == held

    run(work)


def root_of(folder: Path) -> bytes | None:
    with CellStore.open(folder, read_only=True) as store:
        return store.root_hash()


def test_a_backup_catches_up_after_downtime_and_copies_only_what_is_new(tmp_path: Path) -> None:
    counted = CountingStore()
    with CellStore.open(tmp_path / "s") as store:
        store.commit(Set.of(elements(0, 300)))

    async def work() -> None:
        async with set_node(MemoryTransport(), tmp_path / "s", backups=(Backup(counted),)) as node:
            assert await asyncio.to_thread(node.backups[0].wait, LIMIT_S)
            assert counted.root_hash() == node.root_hash
            assert counted.put_count > 300
            counted.put_count = 0
            add(node, f"{LONG} one more")
            await node.sync()
            assert await asyncio.to_thread(node.backups[0].wait, LIMIT_S)
            assert counted.root_hash() == node.root_hash
            assert counted.put_count < 12

    run(work)


class CountingStore(MemoryStore):
    """A store that counts what it is given."""

    put_count = 0

    def put_encodings(self, cells: object) -> int:
        """Count and put."""
        known = list(cells)  # type: ignore[call-overload]
        self.put_count += len(known)
        return super().put_encodings(known)


def test_a_failing_backup_degrades_the_node_and_takes_the_latest_later() -> None:
    disk = FailingDisk(6, errno.ENOSPC)
    copy = open_sim(disk)

    async def work() -> None:
        transport = MemoryTransport()
        async with set_node(transport, MemoryStore(), backups=(Backup(copy),)) as node:
            assert await asyncio.to_thread(node.backups[0].wait, LIMIT_S)
            disk.is_failing = True
            add(node, "one")
            await node.sync()
            await until(node, lambda: "backup store: StoreFull" in node.observer.health)
            add(node, "two")
            await node.sync()
            disk.is_failing = False
            await until(node, is_well(node))
            assert await asyncio.to_thread(node.backups[0].wait, LIMIT_S)
            assert same(copy.root(), Set.of(["one", "two"]))
            assert node.observer.counters["backup-failures"] >= 1

    run(work)
    assert copy.check().is_clean


def test_a_filter_keeps_private_parts_out(tmp_path: Path) -> None:
    secret = Map.of([("note", LONG + "secret")])

    def public(value: Value) -> Value:
        return replicable(value)

    async def work() -> None:
        backups = (Backup(tmp_path / "all"), Backup(tmp_path / "public", public))
        async with open_node(tmp_path / "s", port=-1, backups=backups) as node:
            owner = KeyPair(bytes(32))
            slot = Signed.sign(owner, Map.of([("secret", secret)]))
            node.cursor.path(LOCAL_KEY, owner.public_key).set(slot)
            await node.sync()
            for backup in backups:
                assert await asyncio.to_thread(backup.wait, LIMIT_S)
            assert node.observer.health == "ok"

    run(work)
    secrets = {hash for hash, _, _ in novelty(secret)} | {value_hash(LONG + "secret")}
    with CellStore.open(tmp_path / "all") as full, CellStore.open(tmp_path / "s") as store:
        assert full.root_hash() == store.root_hash()
        assert full.has_many(secrets)
    with CellStore.open(tmp_path / "public") as copy:
        assert not copy.has_many(secrets)
        assert missing(copy.root()) == []
    for segment in (tmp_path / "public" / "segments").iterdir():
        assert b"secret" not in segment.read_bytes()


def test_a_filter_that_fails_or_is_not_idempotent_shows_in_health() -> None:
    def worse(value: Value) -> Value:
        assert isinstance(value, Set)
        return value.union(Set.of([sha3_256(encode(value))]))

    def broken(_: Value) -> Value:
        raise ValueError("no such part")

    async def work() -> None:
        backups = (Backup(MemoryStore(), worse), Backup(MemoryStore(), broken))
        async with set_node(MemoryTransport(), MemoryStore(), backups=backups) as node:
            await until(node, lambda: node.observer.counters.get("backup-failures", 0) >= 2)
            assert "backup a store in memory" in node.observer.health

    run(work)


def test_wrong_cells_of_peers_change_nothing() -> None:
    disk = SimDisk(8)
    with open_sim(disk) as store:
        store.commit(Set.of(elements(0, 40)))
    store = open_sim(disk)
    lost = next(hash for hash, _, _ in novelty(Set.of(elements(0, 40))))
    damage(disk, store, lost)
    replica = LatticeReplica(store, SetLattice())
    before = store.check()
    for data in (b"", b"\xff", encode("another"), encode(Set.of([1])) + b"!"):
        with pytest.raises(BadFormat):
            replica.repair([Part(lost, data)])
    assert store.check() == before
    assert replica.views.supply([lost]) == [None], "what is damaged is not served"
    store.close()


def test_a_backup_serves_one_node_and_a_hanging_one_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backup.close, "__defaults__", (0.05,))
    held = threading.Event()

    def hanging(value: Value) -> Value:
        held.wait(LIMIT_S)
        return value

    async def work() -> None:
        transport = MemoryTransport()
        backup = Backup(tmp_path / "copy", hanging)
        async with set_node(transport, MemoryStore(), backups=(backup,)) as node:
            with pytest.raises(UsageError, match="belongs to a node"):
                await set_node(transport, MemoryStore(), backups=(backup,)).start()
            add(node, "x")
            await node.sync()
        assert not backup.is_current
        held.set()
        assert await asyncio.to_thread(backup.wait, LIMIT_S), "it still ends its work"

    run(work)
    assert f"backup-behind backup={tmp_path / 'copy'}" in caplog.text


def test_a_backup_is_not_given_as_a_path() -> None:
    with pytest.raises(UsageError, match=r"Backup\(store\) each, got 'copy'"):
        open_node(MemoryStore(), backups=["copy"])  # type: ignore[list-item]
