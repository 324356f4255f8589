"""Leasing: what a task and a stream keep, and for how long."""

from __future__ import annotations

from datalattice.pipeline.leasing import (
    LEASE_LEFT_MS,
    TASK_LEASE_SECONDS,
    Keeper,
    LeasedRoot,
    NoLease,
    StreamLeases,
)
from datalattice.testing.clocks import StoppedClock

ROOT, NEXT, LAST = (bytes([number]) * 32 for number in (1, 2, 3))


class Told:
    """A lease that tells what becomes of it."""

    def __init__(self, place: Place, root_hash: bytes, seconds: float) -> None:
        self.root_hash = root_hash
        self._place = place
        self.expires_ms = place.clock.now + round(seconds * 1_000)

    def renew(self, seconds: float) -> None:
        self.expires_ms = self._place.clock.now + round(seconds * 1_000)
        self._place.did.append(("renew", self.root_hash, seconds))

    def release(self) -> None:
        self._place.did.append(("release", self.root_hash, 0))


class Place:
    def __init__(self) -> None:
        self.clock = StoppedClock()
        self.did: list[tuple[str, bytes, float]] = []

    def lease(self, hash: bytes, seconds: float) -> Told:
        self.did.append(("take", hash, seconds))
        return Told(self, hash, seconds)


def test_a_task_within_the_lease_of_its_plan_takes_none() -> None:
    place = Place()
    snapshot = LeasedRoot(ROOT, place.clock.now + LEASE_LEFT_MS)
    with Keeper(place, snapshot, place.clock) as keeper:
        keeper.touch()
    assert place.did == []


def test_a_task_that_outlasts_it_takes_one_and_renews_it() -> None:
    place = Place()
    snapshot = LeasedRoot(ROOT, place.clock.now + LEASE_LEFT_MS)
    with Keeper(place, snapshot, place.clock) as keeper:
        place.clock.now += 1
        keeper.touch()
        keeper.touch()
        assert place.did == [("take", ROOT, TASK_LEASE_SECONDS)]
        place.clock.now += TASK_LEASE_SECONDS * 1_000 - LEASE_LEFT_MS
        keeper.touch()
        assert len(place.did) == 1
        place.clock.now += 1
        keeper.touch()
        assert place.did[1:] == [("renew", ROOT, TASK_LEASE_SECONDS)]
    assert place.did[2:] == [("release", ROOT, 0)]


def test_a_task_that_begins_late_takes_one_at_once() -> None:
    place = Place()
    with Keeper(place, LeasedRoot(ROOT, place.clock.now - 1), place.clock):
        assert place.did == [("take", ROOT, TASK_LEASE_SECONDS)]


def test_without_a_lease_of_the_plan_tasks_take_none() -> None:
    place = Place()
    for snapshot in (LeasedRoot(ROOT, 0), LeasedRoot(None, 0)):
        with Keeper(place, snapshot, place.clock) as keeper:
            place.clock.now += 10**9
            keeper.touch()
    assert place.did == []


def test_a_stream_keeps_the_root_of_a_batch_until_it_is_done() -> None:
    place = Place()
    leases = StreamLeases(100, place.clock)
    assert leases.hold(place, ROOT) == LeasedRoot(ROOT, place.clock.now + 100_000)
    leases.done(ROOT)
    assert place.did == [("take", ROOT, 100)]
    leases.hold(place, NEXT)
    leases.hold(place, LAST)
    leases.done(LAST)
    assert place.did[1:] == [
        ("take", NEXT, 100),
        ("take", LAST, 100),
        ("release", ROOT, 0),
        ("release", NEXT, 0),
    ]
    leases.release()
    leases.release()
    assert place.did[5:] == [("release", LAST, 0)]


def test_a_root_that_stays_is_renewed_when_half_of_its_time_is_over() -> None:
    place = Place()
    leases = StreamLeases(100, place.clock)
    leases.hold(place, ROOT)
    place.clock.now += 50_000
    leases.hold(place, ROOT)
    assert len(place.did) == 1
    place.clock.now += 1
    assert leases.hold(place, ROOT) == LeasedRoot(ROOT, place.clock.now + 100_000)
    assert place.did[1:] == [("renew", ROOT, 100)]


def test_where_no_lease_is_taken_tasks_know_it() -> None:
    class Node:
        def lease(self, hash: bytes, seconds: float) -> NoLease:
            return NoLease(hash)

    leases = StreamLeases(100, StoppedClock())
    assert leases.hold(Node(), ROOT) == LeasedRoot(ROOT, 0)
    assert leases.hold(Node(), ROOT) == LeasedRoot(ROOT, 0)
    leases.done(ROOT)
    leases.release()
