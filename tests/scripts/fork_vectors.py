"""Write `lattice-forks.json`: forked values of each lattice, which is the greater, and their join.

    python tests/scripts/fork_vectors.py tests/vectors/lattice-forks.json

The pairs come from fixed seeds, so the file is the same each time until a rule changes; then the
difference shows which answers did.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

from datalattice.apps.dlfs import Drive
from datalattice.apps.kv import Database
from datalattice.apps.queue import LatticeMQ
from datalattice.cells import Index, Map, Set, Value, Vector, encode_message, value_hash
from datalattice.conformance.forks import ANSWERS, FORK_LATTICES, KIND
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError, WrongType
from datalattice.lattice import TIMESTAMP, Lattice, Walk, verdict
from datalattice.testing.clocks import StoppedClock

PAIRS = 12
Write = Callable[[RootLattice, random.Random, StoppedClock], None]


def queue(cursor: RootLattice, chance: random.Random, clock: StoppedClock) -> None:
    queue = LatticeMQ(cursor, clock).partition("t", chance.randrange(2))
    act = chance.randrange(5)
    if act < 3:
        queue.offer_many([f"r{chance.randrange(100)}" for _ in range(chance.randrange(1, 20))])
    elif act == 3:
        queue.truncate(chance.randrange(12))
    else:
        queue.set_meta(chance.choice("ab"), chance.randrange(3))


def database(cursor: RootLattice, chance: random.Random, clock: StoppedClock) -> None:
    store = Database(cursor, clock=clock, replica=chance.choice("rs"))
    key = chance.choice("kl")
    acts: list[Callable[[], object]] = [
        lambda: store.set(key, chance.randrange(9)),
        lambda: store.delete(key),
        lambda: store.hset(key, chance.choice("fg"), chance.randrange(9)),
        lambda: store.sadd(key, chance.choice("xy")),
        lambda: store.incr(key),
    ]
    chance.choice(acts)()


def drive(cursor: RootLattice, chance: random.Random, clock: StoppedClock) -> None:
    files = Drive(cursor, clock)
    path = chance.choice(["a", "b", "a/a", "a/b"])
    acts: list[Callable[[], object]] = [
        lambda: files.mkdir(path),
        lambda: files.write(path, bytes([chance.randrange(9)])),
        lambda: files.delete(path),
        lambda: files.remove_tree(path),
    ]
    chance.choice(acts)()


def members(cursor: RootLattice, chance: random.Random, _clock: StoppedClock) -> None:
    value = cursor.get()
    assert isinstance(value, Set)
    cursor.set(value.add(chance.randrange(20)))


def registers(cursor: RootLattice, chance: random.Random, clock: StoppedClock) -> None:
    value = cursor.get()
    assert isinstance(value, Map)
    made = Map.of([(TIMESTAMP, clock.now_ms()), ("value", chance.randrange(9))])
    cursor.set(value.put(chance.choice("ab"), made))


def jobs(cursor: RootLattice, chance: random.Random, clock: StoppedClock) -> None:
    made = {"updated": clock.now_ms(), "status": chance.choice(["STARTED", "PENDING"])}
    cursor.set(Map.of(made))


WRITES: dict[str, Write] = {
    "queue": queue,
    "kv": database,
    "dlfs": drive,
    "set": members,
    "lww": registers,
    "job": jobs,
}


def branches(lattice: Lattice, write: Write, seed: int) -> tuple[Value, Value]:
    """Return the states of two devices that went on alone from one state."""
    chance = random.Random(seed)
    clock = StoppedClock(1_000)
    made: list[Value] = []
    common = _written(lattice, write, lattice.zero(), chance, clock)
    for _ in range(2):
        clock.now = 1_000 + chance.randrange(20)  # clocks differ, and some repeat
        made.append(_written(lattice, write, common, chance, clock))
    return made[0], made[1]


def _written(
    lattice: Lattice, write: Write, value: Value, chance: random.Random, clock: StoppedClock
) -> Value:
    cursor = RootLattice(lattice, value)
    for _ in range(chance.randrange(1, 5)):
        clock.now += chance.randrange(3)
        try:
            write(cursor, chance, clock)
        except (UsageError, WrongType):
            continue  # what cannot be done just now is not done
    return cursor.get()


def bad(value: Value) -> Value:
    """Return a value with something malformed inside."""
    if isinstance(value, Map):
        return value.put("malformed", 7)
    if isinstance(value, Index):
        return value.put("malformed", 7)
    return Vector.of(["malformed"])


def cell(value: Value) -> dict[str, str]:
    """Return a value as the vectors have it: all its cells and its hash."""
    return {"message": encode_message(value).hex(), "hash": value_hash(value).hex()}


def vectors() -> list[dict[str, object]]:
    """Return all vectors."""
    found: list[dict[str, object]] = []
    for name, write in WRITES.items():
        lattice = FORK_LATTICES[name]
        pairs = [branches(lattice, write, seed) for seed in range(PAIRS)]
        pairs += [(own, bad(other)) for own, other in pairs[:2]]
        pairs.append((pairs[0][0], pairs[0][0]))
        for own, other in pairs:
            found.append(
                {
                    "id": f"lattice-forks-{len(found) + 1:03}",
                    "kind": KIND,
                    "lattice": name,
                    "own": cell(own),
                    "other": cell(other),
                    "greater": ANSWERS[verdict(lattice.latest(own, other, Walk()))],
                    "join": cell(lattice.merge(own, other)),
                }
            )
    return found


def main(path: str) -> None:
    """Write the file."""
    lines = ",\n".join(json.dumps(one) for one in vectors())
    head = '{"format": "forks-1", "group": "lattice-forks", "vectors": [\n'
    Path(path).write_text(f"{head}{lines}\n]}}\n")


if __name__ == "__main__":
    main(sys.argv[1])
