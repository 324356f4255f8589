"""A crash at every I/O point: the store opens at the last acknowledged root."""

from __future__ import annotations

import contextlib
import errno

import pytest

from datalattice.cells import Value, Vector, missing, same, value_hash
from datalattice.crypto import SeededEntropy
from datalattice.errors import Corruption, StoreFailed, StoreFull
from datalattice.store import CellStore
from datalattice.store.log import committer
from datalattice.testing.disk import SimDisk, SimulatedCrash

FOLDER = "store"
COMMITS = 14


class CrashRun:
    """A writer's life: commits, staged cells, closing and opening; it notes what was promised."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.acknowledged: Value = None
        self.attempted: Value = None
        self.any = False

    def open(self) -> CellStore:
        # Tiny segments and a tiny index in memory make every kind of step happen often.
        return CellStore.open(
            FOLDER,
            disk=self.disk,
            entropy=SeededEntropy(1),
            segment_bytes=4_096,
            recent_entries=20,
            pending_bytes=500,
        )

    def commit(self, store: CellStore, value: Value) -> None:
        self.attempted = value
        store.commit(value)
        self.acknowledged = value
        self.any = True

    def go(self, commits: int = COMMITS) -> None:
        store = self.open()
        value = store.root() if store.root_hash() else Vector.of([])
        assert isinstance(value, Vector)
        for number in range(commits):
            for _ in range(25 if number % 4 == 2 else 1):
                value = value.append(f"record {len(value)} ".ljust(150, "x"))
            if number % 3 == 1:
                store.put(Vector.of([f"staged {len(value)}".ljust(300, "y")] * 3))
            if number % 5 == 4:
                store.sync()
            self.commit(store, value)
            if number % 6 == 5:
                store.close()
                store = self.open()
                value = store.root()
                assert isinstance(value, Vector)
        store.close()

    def check(self, store: CellStore) -> None:
        """Assert that the root is the acknowledged one, or the one on its way, and complete."""
        found = store.root_hash()
        if found is None:
            assert not self.any, "an acknowledged root is lost"
            return
        root = store.root()
        assert same(root, self.acknowledged) or same(root, self.attempted), "an older root came up"
        assert missing(root) == []
        assert all(isinstance(text, str) for text in (root if isinstance(root, Vector) else []))
        assert store.damage == ()


class Sharing(CrashRun):
    """Two writers that give the lock to each other; now and then one of them closes."""

    def go(self, commits: int = COMMITS) -> None:
        stores = [self.open()]
        stores[0].release()
        stores.append(self.open())
        stores[1].release()
        for number in range(commits):
            store = stores[number // 2 % 2]
            store.acquire()
            value = store.root() if store.root_hash() else Vector.of([])
            assert isinstance(value, Vector)
            for _ in range(25 if number % 5 == 2 else 1):
                value = value.append(f"record {len(value)} ".ljust(150, "x"))
            if number % 3 == 1:
                store.put(Vector.of([f"staged {len(value)}".ljust(300, "y")] * 3))
            self.commit(store, value)
            assert same(stores[1 - number // 2 % 2].root(), value), "seen by the other at once"
            if number % 3 == 2:
                store.put(Vector.of([f"late {len(value)}".ljust(300, "z")] * 3))
            store.release()
            if number % 7 == 5:
                store.close()
                stores[number // 2 % 2] = self.open()
                stores[number // 2 % 2].release()
        for store in stores:
            store.close()


@pytest.mark.parametrize("power_failure", [False, True])
def test_a_crash_of_writers_that_share_the_lock_loses_nothing_acknowledged(
    power_failure: bool,
) -> None:
    disk = SimDisk(0)
    Sharing(disk).go()
    for step in range(1, disk.steps + 1):
        disk = SimDisk(step)
        run = Sharing(disk)
        crash(disk, run, step, power_failure=power_failure)
        store = run.open()
        run.check(store)
        assert store.loss is None
        store.close()
        run.attempted = run.acknowledged = _root_of(run)
        run.go(4)
        after = run.open()
        run.check(after)
        assert same(after.root(), run.acknowledged)
        after.close()


@pytest.mark.parametrize("fault", ["kill", "refusal"])
def test_a_writer_that_dies_leaves_all_to_one_that_lives(fault: str) -> None:
    step = 0
    while True:
        step += 1
        disk = SimDisk(step)
        run = CrashRun(disk)
        run.go(3)
        survivor = run.open()
        survivor.release()
        before = disk.steps
        if fault == "kill":
            disk.crash_at = before + step
        else:
            disk.fail_at = before + step
        with contextlib.suppress(SimulatedCrash, StoreFailed):
            run.go(9)
        is_over = disk.steps < before + step
        if step % 2:
            disk.restart(power_failure=False)  # the other one is gone
            run.check(survivor)  # which reads what nobody acknowledged, too
        disk.restart(power_failure=False)
        survivor.acquire()
        run.check(survivor)
        value = survivor.root()
        assert isinstance(value, Vector)
        run.commit(survivor, value.append("behind it".ljust(200, "x")))
        run.attempted = run.acknowledged
        survivor.release()
        disk.restart(power_failure=True)
        store = run.open()
        run.check(store)
        assert store.loss is None
        store.close()
        if is_over:
            return


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_refused_operation_of_sharing_writers_loses_nothing(code: int) -> None:
    disk = SimDisk(0)
    Sharing(disk).go()
    for step in range(1, disk.steps + 1):
        disk = SimDisk(step)
        run = Sharing(disk)
        disk.fail_at, disk.fail_errno = step, code
        with contextlib.suppress(StoreFull if code == errno.ENOSPC else StoreFailed):
            run.go()
        disk.restart(power_failure=False)
        store = run.open()
        run.check(store)
        opened = store.root_hash()
        disk.restart(power_failure=True)
        store = run.open()
        assert store.root_hash() == opened
        run.check(store)


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> int:
    """Make packs tiny, so that commits are split and staged cells spill; return the run's steps."""
    monkeypatch.setattr(committer, "PACK_BYTES_MAX", 1_500)
    disk = SimDisk(0)
    CrashRun(disk).go()
    return disk.steps


def crash(disk: SimDisk, run: CrashRun, step: int, **restart: bool) -> None:
    disk.crash_at = disk.steps + step
    with contextlib.suppress(SimulatedCrash):
        run.go()
    disk.restart(**restart)


@pytest.mark.parametrize("power_failure", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_any_step_loses_nothing_acknowledged(
    seed: int, power_failure: bool, steps: int
) -> None:
    if seed and not power_failure:
        return  # without a power failure there is no chance involved
    for step in range(1, steps + 1):
        disk = SimDisk(seed * 100_000 + step)
        run = CrashRun(disk)
        crash(disk, run, step, power_failure=power_failure)
        store = run.open()
        run.check(store)
        store.close()
        run.attempted = run.acknowledged = _root_of(run)
        run.go(4)
        after = run.open()
        run.check(after)
        assert same(after.root(), run.acknowledged)
        after.close()


@pytest.mark.parametrize("fault", ["flip", "cut"])
def test_a_death_and_a_damaged_end_never_lose_in_silence(fault: str, steps: int) -> None:
    for step in range(1, steps + 1):
        disk = SimDisk(step)
        run = CrashRun(disk)
        crash(disk, run, step, power_failure=False)
        folder = f"{FOLDER}/segments"
        names = disk.names(folder) if disk.exists(folder) else []
        last = f"{folder}/{names[-1]}" if names else ""
        end = len(disk.open(last).read(0, 1 << 16).rstrip(b"\0")) if last else 0
        if not end:
            continue
        if fault == "flip":
            disk.flip(last, end - 1 - step % min(end, 400))
        else:
            disk.cut(last, end - 1 - step % min(end, 400))
        size = disk.size(last)
        try:
            store = run.open()
        except Corruption:
            assert disk.size(last) == size, "what was reported is left as it is"
            continue
        if store.root_hash() is None:
            assert not run.any
            continue
        held = [value_hash(value) for value in (run.acknowledged, run.attempted) if value]
        assert store.root_hash() in held, f"at {step}: an older root came up"
        store.close()


def _root_of(run: CrashRun) -> Value:
    store = run.open()
    root = store.root()
    store.close()
    return root


@pytest.mark.parametrize("power_failure", [False, True])
def test_a_second_crash_while_opening_loses_nothing_either(power_failure: bool, steps: int) -> None:
    for step in range(1, steps + 1, 5):
        second = 1
        while True:
            disk = SimDisk(step * 1_000 + second)
            run = CrashRun(disk)
            crash(disk, run, step, power_failure=True)
            disk.crash_at = disk.steps + second
            try:
                run.check(run.open())
            except SimulatedCrash:
                disk.restart(power_failure=power_failure)
                run.check(run.open())
                second += 1
                continue
            break  # opening took fewer steps than that


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_refused_operation_loses_nothing_acknowledged(code: int, steps: int) -> None:
    for step in range(1, steps + 1):
        disk = SimDisk(step)
        run = CrashRun(disk)
        disk.fail_at, disk.fail_errno = step, code
        with contextlib.suppress(StoreFull if code == errno.ENOSPC else StoreFailed):
            run.go()
        disk.restart(power_failure=False)
        store = run.open()
        run.check(store)
        # Whole, but was it ever on the disk? Once opened it must be.
        opened = store.root_hash()
        disk.restart(power_failure=True)
        store = run.open()
        assert store.root_hash() == opened
        run.check(store)


def test_after_a_failed_sync_every_write_is_refused() -> None:
    disk = SimDisk(1)
    run = CrashRun(disk)
    store = run.open()
    run.commit(store, Vector.of(["a" * 200]))
    disk.fail_at = disk.steps + 2  # the write goes through, its sync does not
    with pytest.raises(StoreFailed):
        store.commit(Vector.of(["b" * 200]))
    for call in (lambda: store.commit(1), lambda: store.put(1), store.sync):
        with pytest.raises(StoreFailed, match="open the store again"):
            call()
    assert store.root_hash() == value_hash(Vector.of(["a" * 200])), "and reading goes on"
    assert same(store.root(), run.acknowledged)
    store.close()
