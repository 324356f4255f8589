"""Exchange: nodes that state one owner's forked value to each other come to one cell.

Who asks whom, in which order, and what a stranger says again makes no difference.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from itertools import combinations, permutations

import pytest

from datalattice.cells import Set, Signed, Value, same, value_hash
from datalattice.conformance.forks import FORK_LATTICES
from datalattice.crypto import KeyPair
from datalattice.lattice import (
    OWN,
    EntryDropped,
    Lattice,
    MergeContext,
    MergeNotice,
    OwnerForked,
    SetLattice,
    SignedLattice,
    Walk,
    is_greater,
)
from datalattice.testing.branches import BRANCH_WRITES, bad, grown
from datalattice.testing.clocks import StoppedClock

IS_FULL = os.environ.get("DATALATTICE_PROFILE") == "full"
IS_PURE = os.environ.get("DATALATTICE_EXPECT_COMPILED") == "0"
USUAL = ("20" if IS_PURE else "200") if IS_FULL else "6"
CASES = int(os.environ.get("DATALATTICE_EXCHANGES", USUAL))
"""Cases of each lattice and kind; `make laws` has 2,000, which take a quarter of an hour."""

OWNER = KeyPair(b"o" * 32)
ROUNDS_MAX = 16

Order = Callable[[int, random.Random], Iterator[tuple[int, int]]]


def ring(count: int, _chance: random.Random) -> Iterator[tuple[int, int]]:
    for at in range(count):
        yield at, (at + 1) % count


def pairs(count: int, chance: random.Random) -> Iterator[tuple[int, int]]:
    found = [(a, b) for a in range(count) for b in range(count) if a != b]
    chance.shuffle(found)
    yield from found


class World:
    """Nodes that hold one slot each; `keys` has the owner's key for those of the owner."""

    def __init__(self, lattice: Lattice, cells: list[Signed], owners: int = 0) -> None:
        self.lattice = SignedLattice(lattice)
        self.cells = cells
        self.evidence: dict[bytes, Signed] = {}
        self.logs: set[bytes] = set()
        self.changes = 0
        first_third = len(cells) - owners
        self.keys = [None] * first_third + [OWNER] * owners

    def tell(self, node: int, said: Signed) -> None:
        """Have a node take what another one states; its rank never falls."""
        reports: list[MergeNotice] = []
        note: Callable[[MergeNotice], None] = reports.append
        context = MergeContext(key_pair=self.keys[node], owner=OWNER.public_key, report=note)
        before = self.cells[node]
        after = self.lattice.merge(before, said, context)
        assert isinstance(after, Signed)
        for report in reports:
            if isinstance(report, OwnerForked):
                assert isinstance(report.other, Signed)
                self.evidence[value_hash(report.other)] = report.other
                if report.branch == "log":
                    self.logs.add(value_hash(report.other))
        if same(before, after):
            return
        self.changes += 1
        self.cells[node] = after
        hashes = value_hash(after), value_hash(before)
        inner = self.lattice.inner
        assert is_greater(inner, after.value, hashes[0], before.value, hashes[1], Walk())

    def settle(self, order: Order, chance: random.Random, *, in_step: bool = False) -> int:
        """Exchange until nothing changes; return the number of rounds."""
        for turn in range(ROUNDS_MAX):
            before, stated = self.changes, list(self.cells)
            for teller, hearer in order(len(self.cells), chance):
                self.tell(hearer, stated[teller] if in_step else self.cells[teller])
            if self.changes == before:
                return turn
        raise AssertionError(f"not equal after {ROUNDS_MAX} rounds")


def forked(name: str, chance: random.Random, *, malformed: bool) -> list[Signed]:
    """Return what devices of an owner signed while they were apart."""
    lattice, write = FORK_LATTICES[name], BRANCH_WRITES[name]
    clock = StoppedClock(1_000)
    common = grown(lattice, write, lattice.zero(), chance, clock)
    made: list[Value] = []
    for _ in range(chance.randrange(2, 5)):
        clock.now = 1_000 + chance.randrange(20)
        start = chance.choice([common, *made])
        made.append(grown(lattice, write, start, chance, clock))
    if malformed:
        made[chance.randrange(len(made))] = bad(chance.choice(made))
    return [Signed.sign(OWNER, value) for value in made]


@pytest.mark.parametrize("malformed", [False, True], ids=["honest", "malformed"])
@pytest.mark.parametrize("name", FORK_LATTICES)
def test_third_parties_come_to_the_same_cell_in_any_order_of_exchanges(
    name: str, malformed: bool
) -> None:
    for seed in range(CASES):
        chance = random.Random(seed)
        branches = forked(name, chance, malformed=malformed)
        start = [chance.choice(branches) for _ in range(chance.randrange(1, 4))] + branches
        ends: set[bytes] = set()
        for order in (ring, pairs, pairs):
            world = World(FORK_LATTICES[name], list(start))
            world.settle(order, chance)
            for cell in chance.choices(branches, k=5):  # a stranger says old cells again
                world.tell(chance.randrange(len(start)), cell)
            world.settle(order, chance)
            ends |= {value_hash(cell) for cell in world.cells}
        assert len(ends) == 1, f"{name}, seed {seed}"


@pytest.mark.parametrize("malformed", [False, True], ids=["honest", "malformed"])
@pytest.mark.parametrize("name", FORK_LATTICES)
def test_owners_nodes_that_come_at_any_time_bring_all_branches_together(
    name: str, malformed: bool
) -> None:
    lattice = FORK_LATTICES[name]
    for seed in range(CASES):
        chance = random.Random(seed)
        branches = forked(name, chance, malformed=malformed)
        world = World(lattice, [*branches, *chance.choices(branches, k=2)], owners=2)
        world.settle(pairs, chance)
        for _ in range(ROUNDS_MAX):  # evidence is handed to the owner's nodes, and told on
            before = world.changes
            for cell in list(world.evidence.values()):
                world.tell(len(world.cells) - chance.choice([1, 2]), cell)
            world.settle(pairs, chance)
            if world.changes == before:
                break
        (end,) = {value_hash(cell): cell for cell in world.cells}.values()
        if malformed:
            continue  # that one cell comes of it is all that holds
        for branch in branches:
            # Of metadata that two set for the first time nothing tells which is newer: own stays.
            context = MergeContext().preferring(OWN)
            is_whole = same(lattice.merge(end.value, branch.value, context), end.value)
            assert is_whole or value_hash(branch) in world.logs, f"{name}, seed {seed}"
            assert is_whole or name == "queue"


def test_what_is_malformed_is_dropped_or_ordered_and_is_in_these_cases() -> None:
    dropped = 0
    for seed in range(CASES):
        (*_, last) = forked("kv", random.Random(seed), malformed=True)
        reports: list[MergeNotice] = []
        note: Callable[[MergeNotice], None] = reports.append
        lattice = FORK_LATTICES["kv"]
        lattice.merge(lattice.zero(), last.value, MergeContext(report=note))
        dropped += any(isinstance(one, EntryDropped) for one in reports)
    assert dropped


@pytest.mark.parametrize("name", FORK_LATTICES)
def test_a_ring_in_step_settles_and_a_stranger_cannot_keep_it_going(name: str) -> None:
    """Three nodes state at the same moment to the next one; a stranger says old cells for ever."""
    for seed in range(CASES):
        chance = random.Random(seed)
        branches = forked(name, chance, malformed=seed % 2 == 1)
        for three in chance.sample(list(combinations(branches * 2, 3)), 3):
            world = World(FORK_LATTICES[name], list(three))
            assert world.settle(ring, chance, in_step=True) <= len(three)
            before = world.changes
            for _ in range(5):
                world.tell(chance.randrange(3), chance.choice(three))
            assert world.changes == before
            for _ in range(
                100
            ):  # from the start, too, a slot changes at most as often as cells are
                world.tell(0, chance.choice(branches))
            assert world.changes - before <= len(branches)  # each new one once at most


def test_three_states_that_a_rule_of_containment_and_hashes_goes_round_in_settle() -> None:
    """Take what contains one's own, else the greater hash: from 1 to 1 7, to 3, and to 1 again."""
    one, more, other = (Signed.sign(OWNER, Set.of(of)) for of in ([1], [1, 7], [3]))
    assert value_hash(more) < value_hash(other) < value_hash(one)
    for order in permutations([one, more, other]):
        world = World(SetLattice(), list(order))
        assert world.settle(ring, random.Random(0), in_step=True) <= 3
        assert len({value_hash(cell) for cell in world.cells}) == 1
