"""Approach: which cells lie in whose slot, and what it costs to know that."""

from __future__ import annotations

from itertools import pairwise

from datalattice.cells import Vector, encode, value_hash
from datalattice.store import MemoryStore
from datalattice.sync.lattice.approach import Approach, SlotFetches
from datalattice.sync.lattice.incoming import Claim
from datalattice.sync.lattice.usage import OwnerSlot
from datalattice.sync.replica import Part, Probe
from datalattice.testing.steps import steps_of

LEAVES = [f"leaf {number} ".ljust(150) for number in range(6)]
HASHES = [value_hash(leaf) for leaf in LEAVES]


def part(number: int) -> Part:
    return Part(HASHES[number], encode(LEAVES[number]))


def followed(slots: int = 2) -> SlotFetches:
    """Return fetches in which slot 0 waits for the leaves, and others for a cell each."""
    approach = SlotFetches()
    top = Vector.of(LEAVES)
    approach.follow(
        [(OwnerSlot("kv", 0), [value_hash(top)])], {value_hash(top): encode(top)}, HASHES
    )
    for number in range(1, slots):
        names = [number.to_bytes(32, "big")]
        approach.follow([(OwnerSlot("kv", number), names)], {}, names)
    return approach


def test_cells_are_charged_to_the_slot_that_they_were_waited_for_in() -> None:
    approach = followed()
    size = len(encode(LEAVES[0]))
    assert sorted(approach.waits_for(OwnerSlot("kv", 0))) == sorted(HASHES)
    assert approach.arrived([part(0)], []) == [(OwnerSlot("kv", 0), size)]
    assert approach.arrived([part(0), part(1)], []) == [(OwnerSlot("kv", 0), 2 * size)]
    assert sorted(approach.waits_for(OwnerSlot("kv", 0))) == sorted(HASHES[2:])


def test_what_nothing_needs_is_not_waited_for_in_any_slot() -> None:
    approach = followed()
    approach.leave(HASHES[:4])
    assert sorted(approach.waits_for(OwnerSlot("kv", 0))) == sorted(HASHES[4:])
    assert approach.arrived([part(0)], []) == []


def test_a_slot_that_is_dropped_is_charged_nothing_more() -> None:
    approach = followed()
    approach.drop(OwnerSlot("kv", 0))
    assert approach.waits_for(OwnerSlot("kv", 0)) == []
    assert approach.arrived([part(0)], []) == []
    assert len(approach.waits_for(OwnerSlot("kv", 1))) == 1


def test_a_value_that_wants_further_upper_cells_keeps_those_that_came() -> None:
    approach = Approach(MemoryStore())
    claim, probe = Claim("peer", b""), Probe(b"", None)
    for number in range(3):
        assert approach.look(claim, probe, [HASHES[number]]) == [HASHES[number]]
        assert approach.take([part(number)]) == ([], [claim])
    assert approach.size_bytes == 3 * len(encode(LEAVES[0]))
    assert approach.forget(claim) is probe
    assert approach.size_bytes == 0


def test_a_slot_costs_the_same_however_many_others_wait() -> None:
    def work(approach: SlotFetches) -> int:
        def step() -> None:
            approach.arrived([part(0)], [])
            approach.waits_for(OwnerSlot("kv", 0))
            approach.drop(OwnerSlot("kv", 0))

        return steps_of(step)

    costs = [work(followed(count)) for count in (2, 300)]
    assert all(one == two for one, two in pairwise(costs))
