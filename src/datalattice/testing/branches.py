"""Branches: states of devices that diverged from one state, for each lattice with an order.

Each writer makes one random change through the public interface. A seed decides everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from datalattice.apps.dlfs import Drive
from datalattice.apps.kv import Database
from datalattice.apps.queue import Topics
from datalattice.cells import Index, Map, Set, Value, Vector
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError, WrongType
from datalattice.lattice import TIMESTAMP, Lattice
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.dice import Chance

BranchWrite = Callable[[RootLattice, Chance, StoppedClock], None]


def queue(cursor: RootLattice, chance: Chance, clock: StoppedClock) -> None:
    """Change a topic."""
    queue = Topics(cursor, clock).partition("t", chance.randrange(2))
    act = chance.randrange(5)
    if act < 3:
        queue.offer_many([f"r{chance.randrange(100)}" for _ in range(chance.randrange(1, 20))])
    elif act == 3:
        queue.truncate(chance.randrange(12))
    else:
        queue.set_meta(chance.choice("ab"), chance.randrange(3))


def database(cursor: RootLattice, chance: Chance, clock: StoppedClock) -> None:
    """Change a database."""
    store = Database(cursor, clock=clock, replica=chance.choice("rs"))
    key = chance.choice("kl")
    acts: list[Callable[[], object]] = [
        lambda: store.set(key, chance.randrange(9)),
        lambda: store.delete(key),
        lambda: store.hset(key, chance.choice("fg"), chance.randrange(9)),
        lambda: store.sadd(key, chance.choice("xy")),
        lambda: store.incr(key),
    ]
    chance.choice(acts)()  # one change, chosen at random


def drive(cursor: RootLattice, chance: Chance, clock: StoppedClock) -> None:
    """Change a drive."""
    files = Drive(cursor, clock)
    path = chance.choice(["a", "b", "a/a", "a/b"])
    acts: list[Callable[[], object]] = [
        lambda: files.mkdir(path),
        lambda: files.write(path, bytes([chance.randrange(9)])),
        lambda: files.delete(path),
        lambda: files.remove_tree(path),
    ]
    chance.choice(acts)()


def change_members(cursor: RootLattice, chance: Chance, _clock: StoppedClock) -> None:
    """Change a set."""
    value = cursor.get()
    assert isinstance(value, Set)
    cursor.set(value.add(chance.randrange(20)))


def registers(cursor: RootLattice, chance: Chance, clock: StoppedClock) -> None:
    """Change registers."""
    value = cursor.get()
    assert isinstance(value, Map)
    made = Map.of([(TIMESTAMP, clock.now_ms()), ("value", chance.randrange(9))])
    cursor.set(value.put(chance.choice("ab"), made))


def change_job(cursor: RootLattice, chance: Chance, clock: StoppedClock) -> None:
    """Change the state of a job."""
    made = {"updated": clock.now_ms(), "status": chance.choice(["STARTED", "PENDING"])}
    cursor.set(Map.of(made))


BRANCH_WRITES: Final[dict[str, BranchWrite]] = {
    "queue": queue,
    "kv": database,
    "dlfs": drive,
    "set": change_members,
    "lww": registers,
    "job": change_job,
}


def diverged_states(lattice: Lattice, write: BranchWrite, chance: Chance) -> tuple[Value, Value]:
    """Return the states of two devices that diverged from one state."""
    clock = StoppedClock(1_000)
    made: list[Value] = []
    common = grown(lattice, write, lattice.zero(), chance, clock)
    for _ in range(2):
        clock.now = 1_000 + chance.randrange(20)  # clocks differ, and some repeat
        made.append(grown(lattice, write, common, chance, clock))
    return made[0], made[1]


def grown(
    lattice: Lattice, write: BranchWrite, value: Value, chance: Chance, clock: StoppedClock
) -> Value:
    """Return a state after a few writes."""
    cursor = RootLattice(lattice, value)
    for _ in range(chance.randrange(1, 5)):
        clock.now += chance.randrange(3)  # a stamp may repeat
        try:
            write(cursor, chance, clock)
        except (UsageError, WrongType):
            continue  # a write that is impossible in this state
    return cursor.get()


def bad(value: Value) -> Value:
    """Return a value with something malformed inside."""
    if isinstance(value, Map | Index):
        return value.put("malformed", 7)
    return Vector.of(["malformed"])
