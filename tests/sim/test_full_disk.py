"""A disk that fills at every step: the store starts, serves what was acknowledged, and collects."""

from __future__ import annotations

import contextlib

import pytest

from datalattice.cells import Map, Value, missing, same
from datalattice.crypto import SeededEntropy
from datalattice.errors import StoreFailed, StoreFull
from datalattice.store import CellStore
from datalattice.store.gc import collection
from datalattice.store.kept.history import KEEP_NOTHING
from datalattice.store.log import committer
from datalattice.store.log.freespace import RESERVE_FILE, SPARE_BYTES_MIN
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.disk import SimDisk

FOLDER = "store"
SPARE_BYTES = 1_048_576
SEGMENT_BYTES = 4_096


class FilledStore:
    """A start, commits over old values, and a collection."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.clock = StoppedClock(1_000_000)
        self.tick_ms = 0
        self.acknowledged: Value = None
        self.attempted: Value = None

    def open(self, spare_bytes: int = SPARE_BYTES) -> CellStore:
        return CellStore.open(
            FOLDER,
            disk=self.disk,
            entropy=SeededEntropy(1),
            clock=self.clock,
            retention=KEEP_NOTHING,
            segment_bytes=SEGMENT_BYTES,
            recent_entries=20,
            pending_bytes=500,
            spare_bytes=spare_bytes,
        )

    def go(self) -> None:
        store = self.open()
        value = store.root() if store.root_hash() else Map.of({})
        assert isinstance(value, Map)
        for number in range(40):
            self.clock.now += self.tick_ms
            text = f"text {number} {self.clock.now}".ljust(170, "x")
            value = self.attempted = value.put(f"key {number % 7}", text)
            store.commit(value)
            self.acknowledged = value
        store.collect(grace_ms=0)
        store.close()

    def check(self, store: CellStore) -> None:
        assert store.damage == ()
        if store.root_hash() is None:
            assert self.acknowledged is None
            return
        root = store.root()
        assert same(root, self.acknowledged) or same(root, self.attempted)
        assert missing(root) == []


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make everything tiny, so that each kind of step happens."""
    monkeypatch.setattr(committer, "PACK_BYTES_MAX", 1_500)
    monkeypatch.setattr(collection, "COPY_BYTES", 600)
    monkeypatch.setattr(collection, "FREED_BYTES_MIN", 1)


@pytest.mark.parametrize("power_failure", [False, True])
def test_a_disk_that_fills_at_any_step_loses_nothing_and_the_store_starts_and_collects(
    power_failure: bool,
) -> None:
    counted = SimDisk(0)
    FilledStore(counted).go()
    refused = 0
    for step in range(1, counted.steps + 1):
        disk = SimDisk(step)
        life = FilledStore(disk)
        life.tick_ms = 60_000 * (step % 2)  # so that the store notices in time, or does not
        disk.fills_at = step
        with contextlib.suppress(StoreFull, StoreFailed):
            life.go()
            refused -= 1
        refused += 1
        disk.restart(power_failure=power_failure)
        if life.acknowledged is None and not disk.exists(f"{FOLDER}/{RESERVE_FILE}"):
            continue  # it filled before the store was made
        store = life.open()
        life.check(store)
        store.collect(grace_ms=0)
        life.check(store)
        life.acknowledged = store.root()
        store.close()
        store = life.open()
        life.check(store)
        assert store.check().is_clean
        store.close()
    assert refused > counted.steps / 4


def test_collections_make_room_for_commits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datalattice.store.log.freespace.ASK_BYTES", 50_000)
    disk = SimDisk(1)
    life = FilledStore(disk)
    store = life.open(spare_bytes=1_000_000)
    disk.capacity = disk.used_bytes + 1_500_000
    value = Map.of({})
    full = 0
    for number in range(3_000):
        life.clock.now += 60_000
        following = value.put(f"key {number % 7}", f"text {number} ".ljust(170, "x"))
        try:
            store.commit(following)
        except StoreFull:
            full += 1
            assert not store.has_failed
            store.collect(grace_ms=0)
            store.commit(following)
        value = following
    assert full > 1
    assert same(store.root(), value)
    assert missing(store.root()) == []
    store.close()


def test_below_the_spare_room_commits_are_refused_and_nothing_is_latched() -> None:
    disk = SimDisk(1)
    life = FilledStore(disk)
    store = life.open()
    store.commit(Map.of({"a": "b"}))
    disk.capacity = disk.used_bytes + SPARE_BYTES - 1
    life.clock.now += 60_000
    before = disk.used_bytes
    for write in (lambda: store.commit(1), lambda: store.put(Map.of({"c": "d" * 300}))):
        with pytest.raises(StoreFull, match="are free on the disk"):
            write()
    assert disk.used_bytes == before
    assert not store.has_failed
    disk.capacity += 1
    store.commit(2)
    assert store.root() == 2
    store.close()


def test_how_much_is_free_is_asked_after_8_mb_and_after_30_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 0

    class Asked(SimDisk):
        def free_bytes(self, path: str) -> int:
            nonlocal asked
            asked += 1
            return super().free_bytes(path)

    life = FilledStore(Asked(1))
    monkeypatch.setattr("datalattice.store.log.freespace.ASK_BYTES", 5_000)
    store = life.open()
    asked = 0
    for number in range(10):
        store.commit(Map.of({"a": "b" * 150, "n": number}))
    assert asked == 0
    life.clock.now += 29_999
    store.commit(11)
    assert asked == 0
    life.clock.now += 1
    store.commit(12)
    assert asked == 1
    for number in range(45):
        store.commit(Map.of({"a": "b" * 150, "n": number}))
    assert asked == 2
    store.close()


@pytest.mark.parametrize(("segments", "kept"), [(1, 16_384), (3, 40_000)])
def test_the_reserve_grows_with_the_store_up_to_its_bound(
    segments: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datalattice.store.log.freespace.SPARE_BYTES_MIN", 16_384)
    disk = SimDisk(1)

    def opened() -> CellStore:
        return CellStore.open(
            FOLDER, disk=disk, segment_bytes=20_000, spare_bytes=50_000, retention=KEEP_NOTHING
        )

    store = opened()
    number = 0
    while not disk.exists(f"{FOLDER}/segments/{segments:08d}.seg"):
        store.commit(Map.of({"text": f"{number} ".ljust(200, "x")}))
        number += 1
    store.close()
    opened().close()
    file = disk.open(f"{FOLDER}/{RESERVE_FILE}")
    assert file.size() == kept


def test_the_reserve_has_room_for_the_index_of_one_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("datalattice.store.log.freespace.SPARE_BYTES_MIN", 3_000)
    disk = SimDisk(1)
    life = FilledStore(disk)
    for count, kept in ((20, 3_000), (21, 3_150), (22, 3_300)):
        store = life.open()
        while store.stats().cells < count:
            store.commit(f"text {count} {store.stats().cells}")
        store.space.ask()
        assert disk.open(f"{FOLDER}/{RESERVE_FILE}").size() == kept
        disk.restart(power_failure=False)  # nothing of it is in the tables


@pytest.mark.parametrize(("free", "is_kept"), [(-1, False), (0, True), (1, True)])
def test_a_start_with_nearly_nothing_free_gives_the_reserve_up(free: int, is_kept: bool) -> None:
    disk = SimDisk(1)
    life = FilledStore(disk)
    life.go()
    disk.capacity = disk.used_bytes + SPARE_BYTES_MIN + free
    life.open()
    assert disk.exists(f"{FOLDER}/{RESERVE_FILE}") == is_kept


def test_a_store_without_spare_room_has_no_reserve_and_fills_to_the_brim() -> None:
    disk = SimDisk(1)
    store = CellStore.open(FOLDER, disk=disk, spare_bytes=0)
    assert not disk.exists(f"{FOLDER}/{RESERVE_FILE}")
    disk.capacity = disk.used_bytes + 400_000

    def fill() -> None:
        for number in range(10_000):
            store.commit(Map.of({"text": f"{number} ".ljust(200, "x")}))

    with pytest.raises(StoreFull, match="simulated"):
        fill()
    assert disk.used_bytes > disk.capacity - 262_144, "segments grow by so much at a time"
