"""A crash at every I/O point of a collection: nothing that is reached is lost."""

from __future__ import annotations

import contextlib
import errno
import os

import pytest

from datalattice.cells import Map, Value, Vector, missing, same, value_hash
from datalattice.crypto import SeededEntropy
from datalattice.errors import MissingData, StoreError, StoreFailed, StoreFull
from datalattice.store import CellStore
from datalattice.store.gc import collection
from datalattice.store.kept.history import KEEP_NOTHING
from datalattice.store.log import committer
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.disk import SimDisk, SimulatedCrash

FOLDER = "store"
PROFILE = os.environ.get("DATALATTICE_PROFILE", "quick")


def text(number: int) -> str:
    return f"text {number} ".ljust(170, "x")


class CollectingStore:
    """Commits over old values, pins, staged cells and collections; it notes what was promised."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.clock = StoppedClock(1_000_000)
        self.acknowledged: Value = None
        self.attempted: Value = None
        self.pinned: dict[str, Value] = {}
        self.staged: list[Value] = []

    def open(self) -> CellStore:
        return CellStore.open(
            FOLDER,
            disk=self.disk,
            entropy=SeededEntropy(1),
            clock=self.clock,
            retention=KEEP_NOTHING,
            segment_bytes=4_096,
            recent_entries=20,
            pending_bytes=500,
        )

    def commit(self, store: CellStore, value: Value) -> None:
        self.attempted = value
        store.commit(value)
        self.acknowledged = value

    def go(self) -> None:
        store = self.open()
        value = Map.of({})
        for number in range(24):
            value = value.put(f"key {number % 7}", text(number))
            self.commit(store, value)
            if number == 8:
                store.pins.pin(value_hash(value), "eight")
                self.pinned["eight"] = value
            if number % 6 == 5:
                store.put(Vector.of([text(1_000 + number)]))
            if number == 15:
                self.clock.now += 10_000
                store.collect(grace_ms=5_000)
                staged = Vector.of([text(2_000), text(2_001), text(9)])
                store.put(staged)
                store.sync()
                self.staged.append(staged)
        self.clock.now += 1_000
        store.collect(grace_ms=500_000)
        store.collect(grace_ms=5_000)
        self.commit(store, value.put("last", text(99)))
        store.close()

    def check(self, store: CellStore) -> None:
        """Assert that all that was promised is there and complete, and that the store is whole."""
        assert store.damage == ()
        if self.acknowledged is not None:
            root = store.root()
            assert same(root, self.acknowledged) or same(root, self.attempted), "an older root"
        if store.root_hash() is not None:
            assert missing(store.root()) == []
        for name, value in self.pinned.items():
            pin = store.pins.get(name)
            assert pin is not None
            assert same(store.load(pin.root_hash), value)
            assert missing(store.load(pin.root_hash)) == []
        for value in self.staged:
            assert missing(store.load(value_hash(value))) == [], (
                "staged, and younger than the grace"
            )
        report = store.check()
        assert report.is_clean, report
        assert not report.useless, "every cell that is here has all below it"


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> int:
    """Make everything tiny, so that each kind of step happens; return the steps of a life."""
    monkeypatch.setattr(committer, "PACK_BYTES_MAX", 1_500)
    monkeypatch.setattr(collection, "COPY_BYTES", 600)
    monkeypatch.setattr(collection, "FREED_BYTES_MIN", 1)
    monkeypatch.setattr(collection, "SWEEP_ENTRIES", 7)
    disk = SimDisk(0)
    life = CollectingStore(disk)
    life.go()
    return disk.steps


def test_a_life_without_a_crash_gives_room_back() -> None:
    disk = SimDisk(0)
    life = CollectingStore(disk)
    life.go()
    store = life.open()
    life.check(store)
    before = store.check().size_bytes
    life.clock.now += 10_000
    done = store.collect(grace_ms=0)
    life.staged.clear()
    life.check(store)
    assert done.cells_dead > 0
    assert store.check().size_bytes < before
    store.close()


STRIDE = {"quick": 11, "full": 7, "long": 1}[PROFILE]
"""Every step is tried in the long profile, each of so many in the others."""


@pytest.mark.parametrize("power_failure", [False, True])
def test_a_crash_at_any_step_loses_nothing_that_is_reached(power_failure: bool, steps: int) -> None:
    for step in range(1 + power_failure, steps + 1, STRIDE):
        disk = SimDisk(step)
        life = CollectingStore(disk)
        disk.crash_at = step
        with contextlib.suppress(SimulatedCrash):
            life.go()
        disk.restart(power_failure=power_failure)
        store = life.open()
        life.check(store)
        life.clock.now += 1_000
        store.collect(grace_ms=5_000)
        life.check(store)
        store.close()
        disk.drop(f"{FOLDER}/index.state")
        store = life.open()  # the index is made again from what is left of the log
        life.check(store)
        store.close()


@pytest.mark.parametrize("power_failure", [False, True])
def test_a_second_crash_while_it_is_finished_loses_nothing(power_failure: bool, steps: int) -> None:
    for step in range(steps // 2, steps + 1, 9 * STRIDE):
        second = 1
        while True:
            disk = SimDisk(step * 1_000 + second)
            life = CollectingStore(disk)
            disk.crash_at = step
            with contextlib.suppress(SimulatedCrash):
                life.go()
            disk.restart(power_failure=False)
            disk.crash_at = disk.steps + second
            try:
                store = life.open()
                store.collect(grace_ms=5_000)
            except SimulatedCrash:
                disk.restart(power_failure=power_failure)
                life.check(life.open())
                second += 2
                continue
            break


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_refused_operation_loses_nothing(code: int, steps: int) -> None:
    kind = StoreFull if code == errno.ENOSPC else StoreFailed
    for step in range(steps // 3 + (code == errno.EIO), steps + 1, STRIDE):
        disk = SimDisk(step)
        life = CollectingStore(disk)
        disk.fail_at, disk.fail_errno = step, code
        with contextlib.suppress(kind, StoreError):
            life.go()
        disk.restart(power_failure=step % 2 == 0)
        store = life.open()
        life.check(store)
        store.close()


@pytest.mark.parametrize("collects", [False, True])
def test_after_a_refused_operation_the_same_store_goes_on(collects: bool) -> None:
    """What a failure left behind is leaned on by nothing: not even a record that is there."""
    step = 1
    while True:
        disk = SimDisk(step)
        life = CollectingStore(disk)
        store = life.open()
        old = [Vector.of([text(n), text(n + 1)]) for n in range(0, 40, 2)]
        for value in old:
            store.commit(value)
        store.close()
        store = life.open()  # so that what a fork has is not in memory
        fork = store.load(value_hash(old[3]))
        disk.fail_at = disk.steps + step
        try:
            store.collect(grace_ms=0)
        except StoreError:
            if store.has_failed:
                store.resume()
        if disk.steps < disk.fail_at:
            disk.fail_at = None
            store.close()
            break
        fresh = Vector.of([text(n) for n in range(0, 40, 3)])
        for again in (Map.of({"fork": fork}), Map.of({"old": Vector.of([text(8), text(9)])})):
            with contextlib.suppress(MissingData):
                life.commit(store, Map.of({"fresh": fresh, **dict(again.items())}))
            life.check(store)
        if collects:
            store.collect(grace_ms=0)
            life.check(store)
        if step % 3:
            store.close()
        disk.restart(power_failure=step % 4 == 0)
        with life.open() as store:
            life.check(store)
        disk.drop(f"{FOLDER}/index.state")
        with life.open() as store:
            life.check(store)
        step += 1
    assert step > 20


def test_parts_of_a_commit_that_never_came_together() -> None:
    """They bring nothing without what is below it, and never stand in for what was there."""
    step = 1
    while True:
        disk = SimDisk(step)
        life = CollectingStore(disk)
        store = life.open()
        value = Vector.of([text(n) for n in range(20)])
        for number in range(4):
            life.commit(store, Map.of({"n": number, "texts": value}))
        staged = Vector.of([text(100), text(101)])
        store.put(staged)
        # The same texts again, not read from the store: they are written a second time.
        large = Vector.of(
            [*(text(n) for n in range(10)), staged, *(text(n) for n in range(50, 60))]
        )
        disk.crash_at = disk.steps + step
        try:
            life.commit(store, large)
        except SimulatedCrash:
            pass
        else:
            break
        disk.restart(power_failure=False)
        store = life.open()
        life.check(store)
        root = store.root()
        life.commit(store, Map.of({"again": staged, "root": root}))
        life.check(store)
        store.close()
        store = life.open()
        disk.crash_at = disk.steps + step
        with contextlib.suppress(SimulatedCrash):
            life.commit(store, large)
        disk.restart(power_failure=False)
        store = life.open()
        for _ in range(2):
            store.collect(grace_ms=0)
            life.check(store)
        store.close()
        step += 1
    assert step > 3
