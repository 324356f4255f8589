"""A crash at every I/O point of commits and pins: no pin is lost, no root is remembered wrongly."""

from __future__ import annotations

import contextlib

import pytest

from datalattice.cells import Value, Vector, missing
from datalattice.crypto import SeededEntropy
from datalattice.store import CellStore
from datalattice.store.kept import Retention
from datalattice.testing.clocks import TickingClock
from datalattice.testing.disk import SimDisk, SimulatedCrash

FOLDER = "store"


class PinnedStore:
    """A store's life with pins; it notes what was promised."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.clock = TickingClock()
        self.pins: dict[str, bytes] = {}
        self.changing = ""
        """The name whose pin was being set or removed."""
        self.roots: list[bytes] = []
        self.attempted: list[bytes] = []

    def open(self) -> CellStore:
        return CellStore.open(
            FOLDER,
            disk=self.disk,
            entropy=SeededEntropy(1),
            segment_bytes=4_096,
            recent_entries=20,
            clock=self.clock,
            retention=Retention(4, 1_000, ((2_000, 10),)),
        )

    def go(self) -> None:
        store = self.open()
        value: Value = Vector.of([])
        for number in range(12):
            assert isinstance(value, Vector)
            value = value.extend([f"{number} {part} ".ljust(150, "x") for part in range(3)])
            self.attempted.append(Vector.of(value).hash)
            done = store.commit(value)
            self.roots.append(done.root_hash)
            if number % 3 == 0:
                self.set(store, f"pin{number}", done.root_hash)
            if number % 4 == 3:
                store.history.roots()
            if number == 7:
                self.remove(store, "pin3")
                store.close()
                store = self.open()
                value = store.root()
        store.close()

    def set(self, store: CellStore, name: str, hash: bytes) -> None:
        self.changing = name
        store.pins.pin(hash, name)
        self.pins[name] = hash
        self.changing = ""

    def remove(self, store: CellStore, name: str) -> None:
        self.changing = name
        store.pins.unpin(name)
        del self.pins[name]
        self.changing = ""

    def check(self) -> None:
        with self.open() as store:
            found = {pin.name: pin.root_hash for pin in store.pins.all()}
            sure = {name: hash for name, hash in self.pins.items() if name != self.changing}
            assert {name: found.get(name) for name in sure} == sure, "a pin is lost"
            assert set(found) <= {*sure, self.changing}, "a pin came back"
            entries = store.history.entries()
            order = [self.attempted.index(entry.root_hash) for entry in entries]
            assert order == sorted(order), "roots in their order"
            assert [one.time_ms for one in entries] == sorted(one.time_ms for one in entries)
            for root in [*found.values(), *store.history.roots()]:
                assert missing(store.load(root)) == [], "all of it is here"
            if self.roots:
                assert entries, "the present root is remembered"
                assert entries[-1].root_hash == store.root_hash()


def steps_of_a_life() -> int:
    disk = SimDisk(0)
    life = PinnedStore(disk)
    life.go()
    life.check()
    return disk.steps


@pytest.mark.parametrize("power_failure", [False, True])
def test_a_crash_anywhere(power_failure: bool) -> None:
    for step in range(1, steps_of_a_life()):
        disk = SimDisk(step)
        disk.crash_at = step
        life = PinnedStore(disk)
        with contextlib.suppress(SimulatedCrash):
            life.go()
        disk.restart(power_failure=power_failure)
        life.check()
