"""What is written meanwhile is joined with what others changed, and only that is looked into."""

from __future__ import annotations

import random

import pytest

from datalattice.apps.kv import Database
from datalattice.apps.queue import Topics
from datalattice.cells import Index, Keyword, Value, same, value_hash
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import (
    EMPTY_CONTEXT,
    Lattice,
    MergeContext,
    OwnerLattice,
    discard,
    root_lattice,
)
from datalattice.sync.lattice.latticestate import overlaid
from datalattice.testing.clocks import StoppedClock

KEYS = [KeyPair(bytes([n]) * 32) for n in range(1, 5)]
LATTICE = root_lattice()


def written(base: Value, dice: random.Random, key: KeyPair, times: int) -> Value:
    """Return a root in which an owner wrote here and there."""
    root = RootLattice(LATTICE, base, MergeContext(key_pair=key))
    for _ in range(times):
        clock = StoppedClock(dice.randrange(1, 10_000))
        match dice.randrange(3):
            case 0:
                Topics.at(root, key.public_key, clock).partition("t", 0).offer(dice.random())
            case 1:
                database = Database.at(root, key.public_key, "d", clock=clock, replica="x")
                database.set(f"k{dice.randrange(9)}", dice.randrange(99))
            case _:
                blob = dice.randbytes(200)
                root.path(Keyword("data")).set(Index.of([(value_hash(blob), blob)]))
    return root.get()


@pytest.mark.parametrize("seed", range(40))
def test_it_says_what_a_merge_says(seed: int) -> None:
    dice = random.Random(seed)
    context = MergeContext(key_pair=KEYS[0])
    base: Value = LATTICE.zero()
    for key in KEYS:
        base = written(base, dice, key, dice.randrange(3))
    live = written(base, dice, KEYS[0], dice.randrange(3))
    root = base
    for key in KEYS:
        theirs = written(base, dice, key, dice.randrange(3))
        root = LATTICE.merge(root, theirs, MergeContext(report=discard))
    made = overlaid(LATTICE, base, live, root, context)
    assert same(made, LATTICE.merge(live, root, context))


def test_what_the_writer_did_not_touch_is_not_looked_into() -> None:
    dice = random.Random(1)
    base = written(LATTICE.zero(), dice, KEYS[1], 5)
    base = written(base, dice, KEYS[0], 5)
    live = written(base, dice, KEYS[0], 9)
    root = written(written(base, dice, KEYS[1], 9), dice, KEYS[2], 9)
    merged: list[Value] = []

    queues = LATTICE.child(Keyword("queue"))
    assert isinstance(queues, OwnerLattice)
    child = queues._arguments()[0]
    assert isinstance(child, Lattice)
    below: Lattice = child

    class Watching(Lattice):
        def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
            merged.append(context.owner)
            return below.merge(own, other, context)

        def zero(self) -> Value:
            return below.zero()

        def check_foreign(self, value: Value) -> bool:
            return below.check_foreign(value)

    children: dict[Keyword, Lattice] = dict(LATTICE.children())
    children[Keyword("queue")] = OwnerLattice(Watching())
    lattice = type(LATTICE)(children)
    made = overlaid(lattice, base, live, root, MergeContext(key_pair=KEYS[0]))
    assert same(made, LATTICE.merge(live, root, MergeContext(key_pair=KEYS[0])))
    assert set(merged) == {KEYS[0].public_key}


def test_what_a_writer_took_away_comes_back_as_in_a_merge() -> None:
    base = written(LATTICE.zero(), random.Random(2), KEYS[1], 5)
    root = written(base, random.Random(3), KEYS[2], 5)
    assert isinstance(base, Index)
    live = base.remove(Keyword("queue"))
    assert same(overlaid(LATTICE, base, live, root, MergeContext()), root)
