"""A clock that is far off is an error of the writes it dates, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from datalattice import Database, Drive, KeyPair, UsageError, Venue, value_hash
from datalattice.apps.queue import Topics
from datalattice.cells import Vector, same
from datalattice.clock import LAST_MS, BoundedClock
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, root_contains, root_lattice
from datalattice.store import CellStore
from datalattice.testing.clocks import StoppedClock

NOW_MS = 1_700_000_000_000
KEYS = KeyPair(bytes(32))
OWNER = KEYS.public_key
YEAR_2263_MS = 9_246_000_000_000


class World:
    """One of each application below one root, all by one clock."""

    def __init__(self) -> None:
        self.clock = StoppedClock(NOW_MS)
        self.root = RootLattice(root_lattice(), None, MergeContext(key_pair=KEYS))
        self.shop = Database.at(self.root, OWNER, "shop", clock=self.clock)
        self.log = Topics.at(self.root, OWNER, self.clock).partition("log", 0)
        self.papers = Drive.at(self.root, OWNER, "papers", clock=self.clock)
        self.venue = Venue.at(self.root, KEYS, clock=self.clock)
        self.job = b""

    def writes(self) -> list[Callable[[], object]]:
        return [
            lambda: self.shop.__setitem__("a", 1),
            lambda: self.shop.hset("fields", "b", 2),
            lambda: self.log.offer("x"),
            lambda: self.log.set_meta("k", len(self.log)),
            lambda: self.log.truncate(1),
            lambda: self.papers.write("/a", b"1"),
            lambda: self.papers.makedirs("/b/c"),
            lambda: self.papers.move("/a", "/d"),
            self.create_job,
            lambda: self.venue.update_job(self.job, {"n": 1}),
        ]

    def create_job(self) -> None:
        self.job = self.venue.create_job({})


@pytest.mark.parametrize("off_ms", [LAST_MS + 1, 2**64, 10**30])
def test_a_write_that_cannot_be_dated_is_refused_and_the_next_one_is_not(off_ms: int) -> None:
    world = World()
    for write in world.writes():
        write()
    before = world.root.get()
    for write in world.writes():
        world.clock.now = off_ms
        with pytest.raises(UsageError, match=r"clock|stamp"):
            write()
        assert same(world.root.get(), before), "nothing of it is written"
    world.clock.now = NOW_MS + 1
    for write in world.writes():
        write()
    assert root_contains(world.root.get(), before)


def test_a_clock_before_1970_dates_nothing() -> None:
    world = World()
    world.clock.now = -1
    writes = world.writes()
    for write in (writes[0], writes[2], writes[5], writes[8]):
        with pytest.raises(UsageError, match="the clock shows -1 ms"):
            write()


def test_times_past_2262_are_times() -> None:
    world = World()
    world.clock.now = YEAR_2263_MS
    for write in world.writes():
        write()
    world.clock.now = NOW_MS  # the clock is set right: later writes still win
    for write in world.writes():
        write()
    assert world.shop["a"] == 1
    assert world.papers.read("/d") == b"1"


@pytest.mark.parametrize("off_ms", [-5, YEAR_2263_MS, LAST_MS, LAST_MS + 1, 2**64])
def test_a_store_dates_its_roots_by_whatever_clock(off_ms: int, tmp_path: Path) -> None:
    clock = StoppedClock(NOW_MS)
    roots = [Vector.of([number]) for number in range(3)]
    with CellStore.open(tmp_path / "s", clock=clock) as store:
        store.commit(roots[0])
        clock.now = off_ms
        store.commit(roots[1])
        store.pins.pin(value_hash(roots[1]), "pinned")
        store.stats()
        store.collect(grace_ms=0)
        clock.now = NOW_MS + 1
        store.commit(roots[2])
    with CellStore.open(tmp_path / "s", clock=clock) as store:
        assert same(store.root(), roots[2])
        assert store.check().is_clean
        assert store.damage == ()
        assert store.history.damage == ()
        assert [entry.root_hash for entry in store.history.entries()][-1] == value_hash(roots[2])


@pytest.mark.parametrize(
    ("now_ms", "bounded_ms"), [(-1, 0), (0, 0), (LAST_MS, LAST_MS), (LAST_MS + 1, LAST_MS)]
)
def test_a_bounded_clock(now_ms: int, bounded_ms: int) -> None:
    assert BoundedClock(StoppedClock(now_ms)).now_ms() == bounded_ms
