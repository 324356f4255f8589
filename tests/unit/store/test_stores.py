"""Every store keeps the protocol; open_store says clearly what it cannot open."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from datalattice.cells import (
    Vector,
    branch_hashes,
    columns,
    encode,
    novelty,
    same,
    value_hash,
)
from datalattice.cursors import open_store
from datalattice.engine import MEMORY_URL
from datalattice.errors import MissingData, UsageError
from datalattice.store import CellStore, MemoryStore, Store
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.disk import SimDisk
from datalattice.testing.store_kit import check_store


@pytest.fixture(params=["memory", "disk", "small", "simulated"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    numbers = count()

    def new() -> Store:
        path = tmp_path / str(next(numbers))
        if request.param == "memory":
            return open_store(MEMORY_URL)
        if request.param == "disk":
            return open_store(path)
        if request.param == "small":  # everything in the second segment, nothing in memory
            return CellStore.open(path, segment_bytes=4_096, recent_entries=5, cache_bytes=1_000)
        return CellStore.open(str(path), disk=SimDisk(1), segment_bytes=8_192)

    return new


def test_every_store_keeps_the_protocol(make: Callable[[], Store]) -> None:
    check_store(make)


def test_every_store_loads_many_cells_at_once(make: Callable[[], Store]) -> None:
    rows = [[number, f"{number:090d}"] for number in range(256)]
    log = Vector.of(rows)
    with make() as store:
        store.put_encodings([(hash, encoding) for hash, encoding, _ in novelty(log, store)])
        leaves = branch_hashes(encode(log))
        assert len(leaves) == 16
        one = store.load(leaves[3])
        loaded = store.load_many(leaves)
        assert [value_hash(leaf) for leaf in loaded] == leaves
        assert same(loaded[3], one)
        again = store.load(value_hash(log))
        assert isinstance(again, Vector)
        assert columns(again, [1], 2, 5, 250) == [[text for _, text in rows[5:250]]]
        absent = [bytes(32), bytes([1]) * 32]
        with pytest.raises(MissingData) as error:
            store.load_many([leaves[0], absent[0], leaves[1], absent[1]])
        assert error.value.hashes == tuple(absent)


@pytest.fixture(params=["memory", "folder"], name="timed")
def fixture_timed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, StoppedClock]:
    clock = StoppedClock(1_000_000_000)
    if request.param == "memory":
        return MemoryStore(clock=clock), clock
    return CellStore.open(tmp_path / "s", segment_bytes=8_192, clock=clock), clock


def test_a_memory_store_reads_the_clock_once_for_a_batch_of_cells() -> None:
    class Counted(StoppedClock):
        reads = 0

        def now_ms(self) -> int:
            self.reads += 1
            return super().now_ms()

    clock = Counted(1_000)
    store = MemoryStore(clock=clock)
    cells = {hash: encoding for hash, encoding, _ in novelty(texts(0), store)}
    clock.reads = 0
    assert store.put_encodings(cells.items()) == len(cells) > 40
    assert clock.reads == 1
    assert store.size_bytes() == sum(map(len, cells.values()))


def texts(first: int, count: int = 40) -> Vector:
    return Vector.of([f"{number} ".ljust(400, "x") for number in range(first, first + count)])


def test_every_store_keeps_former_roots_pins_and_leases_through_collections(
    timed: tuple[Store, StoppedClock],
) -> None:
    store, clock = timed
    with store:
        roots = [store.commit(texts(1_000 * number)).root_hash for number in range(5)]
        former, pinned, leased, gone, present = roots
        assert store.resolve("HEAD~4") == former
        store.pins.pin(pinned, "release")
        lease = store.lease(leased, 60)
        with store.lease(former, 3 * 3_600):
            clock.now += 2 * 3_600_000
            store.history.forget(clock.now)
            assert store.collect(dry_run=True).is_dry
            assert store.has(gone)
            store.put(texts(9_000))
            done = store.collect()
            assert done.leases_ended == 1
            assert done.cells_removed == 2 * len(novelty(texts(0))), "of two roots"
            assert same(store.load(former), texts(0))
        assert not store.has(gone)
        assert not store.has(leased), "the lease has ended"
        with pytest.raises(MissingData):
            lease.renew(60)
        assert store.resolve("release") == pinned
        assert same(store.load(pinned), texts(1_000))
        assert same(store.root(), texts(4_000))
        assert store.resolve("HEAD") == present
        assert same(store.load(value_hash(texts(9_000))), texts(9_000)), "younger than the grace"
        clock.now += 2 * 3_600_000
        before = store.size_bytes()
        store.pins.unpin("release")
        assert store.collect().cells_removed == 3 * len(novelty(texts(0)))
        assert store.size_bytes() < before
        with pytest.raises(MissingData):
            store.load(pinned)
        store.commit(texts(1_000))
        assert same(store.root(), texts(1_000))


def test_every_store_refuses_a_value_over_cells_that_a_collection_removed(
    timed: tuple[Store, StoppedClock],
) -> None:
    store, clock = timed
    with store:
        store.commit(texts(0))
        opened = store.root()
        assert isinstance(opened, Vector)
        store.commit(texts(1_000))
        store.history.forget(clock.now)
        clock.now += 2 * 3_600_000
        assert store.collect().cells_removed
        with pytest.raises(MissingData):
            store.commit(Vector.of([opened, "more"]))
        assert same(store.root(), texts(1_000))
        with pytest.raises(UsageError, match="grace"):
            store.collect(grace_ms=-1)


@pytest.mark.parametrize(("where", "read_only"), [("redis://x", False), (MEMORY_URL, True)])
def test_other_places_are_refused(where: str, read_only: bool) -> None:
    with pytest.raises(UsageError):
        open_store(where, read_only=read_only)


def test_a_store_in_memory_is_a_context_manager() -> None:
    with MemoryStore() as store:
        store.commit(1)
        assert store.root() == 1


def test_a_store_is_of_its_own_kind_whatever_was_asked_before(tmp_path: Path) -> None:
    # Compiled classes below an ABC answered for each other.
    with MemoryStore() as memory, CellStore.open(tmp_path / "s") as disk:
        assert not isinstance(memory, CellStore)
        assert isinstance(memory, Store)
        assert not isinstance(disk, MemoryStore)
        assert isinstance(disk, CellStore)
        assert isinstance(disk, Store)
        assert not isinstance(memory, CellStore)
