"""Staging: cells reach the store children first, and only when nothing below them is missing."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, strategies as st

from datalattice.cells import (
    MessageCells,
    Value,
    Vector,
    decode_parts,
    encode_message,
    references,
    value_hash,
)
from datalattice.sync.lattice.incomplete import HELD_LOOKS_MAX, Completion, IncompleteCells
from datalattice.testing.steps import steps_of


class Home:
    """Where stored cells are."""

    def __init__(self) -> None:
        self.cells: dict[bytes, bytes] = {}

    def lengths(self, hashes: Iterable[bytes]) -> dict[bytes, int]:
        return {hash: len(self.cells[hash]) for hash in hashes if hash in self.cells}

    def get_encoding(self, hash: bytes) -> bytes | None:
        return self.cells.get(hash)

    def keep(self, progress: Completion) -> None:
        self.cells.update(progress.stored)


def tree(leaves: int, salt: str = "") -> tuple[bytes, dict[bytes, bytes]]:
    """Return (root hash, all cells) of a vector of long texts."""
    texts = Vector.of([f"{salt}{n} ".ljust(200, "x") for n in range(leaves)])
    value: Value = Vector.of([texts, "long enough to be a branch itself ".ljust(130)])
    return value_hash(value), _cells(value)


def _cells(value: Value) -> dict[bytes, bytes]:
    parts: MessageCells = decode_parts(encode_message(Vector.of([value])))[1]
    return parts.encodings()


def test_a_complete_value_passes_at_once_children_first() -> None:
    root, cells = tree(40)
    staging = IncompleteCells(Home())
    progress = staging.claim("claim", [root], cells)
    assert progress.complete == ["claim"]
    assert progress.missing == []
    order = [hash for hash, _ in progress.stored]
    assert order[-1] == root
    assert set(order) == cells.keys()
    assert len(staging) == 0
    assert staging.size_bytes == 0


def _levels(root: bytes, cells: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return cells in the order in which a node answers: level by level."""
    found: dict[bytes, bytes] = {}
    front = [root]
    while front:
        fresh = {hash: cells[hash] for hash in front if hash not in found}
        found |= fresh
        front = [ref for encoding in fresh.values() for ref in references(encoding)]
    return found


@given(st.randoms(use_true_random=False), st.sampled_from([1, 5, 14, 20, 40]), st.integers(0, 3))
def test_a_message_passes_whatever_the_order_of_its_cells(
    random: object, leaves: int, shared: int
) -> None:
    texts = [f"{n} ".ljust(200, "x") for n in range(leaves)]
    low = Vector.of([*texts, "long enough to be a branch itself ".ljust(130)])
    # The first leaves and `low` are below several cells, at two depths.
    value = Vector.of(
        [low, Vector.of([*texts[:shared], low, "y" * 130]), "z" * 130, *texts[:shared]]
    )
    root, cells = value_hash(value), _cells(value)
    shuffled = list(cells.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for came in (cells, _levels(root, cells), dict(shuffled)):
        for stored in ({}, _levels(value_hash(low), cells)):
            home = Home()
            home.cells |= stored
            progress = IncompleteCells(home).claim("claim", [root], came)
            assert progress.complete == ["claim"]
            assert dict(progress.stored) == {h: c for h, c in cells.items() if h not in stored}
            here = set(stored)
            for hash, encoding in progress.stored:
                assert here.issuperset(references(encoding))
                here.add(hash)
            assert progress.tree == (None if stored else root)


@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_cells_may_come_in_any_order_and_portions(random: object, leaves: int) -> None:
    root, cells = tree(leaves)
    home = Home()
    staging = IncompleteCells(home)
    progress = staging.claim("claim", [root], {})
    wanted = list(progress.missing)
    complete = list(progress.complete)
    while wanted:
        random.shuffle(wanted)  # type: ignore[attr-defined]
        portion, wanted = wanted[:7], wanted[7:]
        progress = staging.add({hash: cells[hash] for hash in portion})
        for hash, _ in progress.stored:
            assert hash not in home.cells
        home.keep(progress)
        wanted += [hash for hash in progress.missing if hash not in wanted]
        complete += progress.complete
    assert complete == ["claim"]
    assert home.cells == cells
    assert len(staging) == 0


def test_what_is_stored_is_neither_asked_for_nor_entered() -> None:
    root, cells = tree(40)
    home = Home()
    home.keep(IncompleteCells(home).claim("first", [root], cells))
    progress = IncompleteCells(home).claim("again", [root], cells)
    assert progress.complete == ["again"]
    assert progress.stored == []


def test_cells_that_nobody_waits_for_are_not_kept() -> None:
    root, cells = tree(20)
    other, more = tree(20, "other")
    staging = IncompleteCells(Home())
    progress = staging.claim("claim", [root], {**cells, **more})
    assert {hash for hash, _ in progress.stored} == cells.keys()
    assert staging.add({other: more[other]}).stored == []
    assert len(staging) == 0


def test_two_claims_share_their_cells() -> None:
    root, cells = tree(40)
    staging = IncompleteCells(Home())
    first = staging.claim("first", [root], {})
    second = staging.claim("second", [root], {})
    assert first.missing == second.missing == [root]
    progress = staging.add(cells)
    while progress.missing:
        progress = staging.add(cells)
    assert sorted(map(str, progress.complete)) == ["first", "second"]


def test_whoever_states_what_another_left_open_is_asked_for_it_too() -> None:
    root, cells = tree(3)
    staging = IncompleteCells(Home())
    leaf = next(hash for hash in cells if b"1 xxx" in cells[hash] and not references(cells[hash]))
    partial = {hash: cell for hash, cell in cells.items() if hash != leaf}
    assert staging.claim("one", [root], partial).missing == [leaf]
    assert staging.claim("two", [root], {}).missing == [leaf]


@pytest.mark.parametrize("more", [0, 1])
def test_no_more_than_so_many_cells_are_looked_through_for_what_is_left_open(more: int) -> None:
    value: Value = "x" * 200
    for _ in range(HELD_LOOKS_MAX + more):
        value = Vector.of([value, "y" * 130])
    cells = _cells(value)
    staging = IncompleteCells(Home())
    partial = {hash: cell for hash, cell in cells.items() if hash != value_hash("x" * 200)}
    assert staging.claim("one", [value_hash(value)], partial).missing == [value_hash("x" * 200)]
    told = staging.claim("two", [value_hash(value)], {}).missing
    assert told == [value_hash("x" * 200)][more:]


def test_a_dropped_claim_takes_its_own_cells_along() -> None:
    root, cells = tree(40)
    other, more = tree(40, "other")
    staging = IncompleteCells(Home())
    staging.claim("one", [root], {root: cells[root]})
    staging.claim("two", [other], {other: more[other]})
    lost = staging.add({}).missing or [h for h in more if staging.is_wanted(h)]
    assert staging.claims_above(lost) == ["two"]
    staging.drop(["two"])
    assert len(staging) == 1
    assert not any(staging.is_wanted(hash) for hash in more)
    progress = staging.add(cells)
    while progress.missing:
        progress = staging.add(cells)
    assert progress.complete == ["one"]


def test_a_released_claim_leaves_its_cells_to_the_next() -> None:
    root, cells = tree(40)
    staging = IncompleteCells(Home())
    staging.claim("old", [root], {root: cells[root]})
    staging.release("old")
    progress = staging.claim("new", [root], {})
    progress = staging.add(cells)
    while progress.missing:
        progress = staging.add(cells)
    assert progress.complete == ["new"]


def test_a_complete_value_brings_what_another_waits_for() -> None:
    root, cells = tree(40)
    staging = IncompleteCells(Home())
    first = staging.claim("first", [root], {})
    assert first.missing == [root]
    second = staging.claim("second", [root], cells)
    assert sorted(map(str, second.complete)) == ["first", "second"]
    assert {hash for hash, _ in second.stored} == cells.keys()
    assert len(staging) == 0


@pytest.mark.parametrize("beside", [1, 5])
def test_a_shared_cell_comes_once_and_before_all_that_refer_to_it(beside: int) -> None:
    shared: Value = Vector.of(["deep " * 40])
    below = Vector.of([shared, *[f"{n}" * 150 for n in range(beside)]])  # with 5, its own cell
    value: Value = Vector.of([shared, below, "y" * 150, "z" * 100])
    cells = _cells(value)
    progress = IncompleteCells(Home()).claim("claim", [value_hash(value)], cells)
    order = [hash for hash, _ in progress.stored]
    assert len(order) == len(set(order)) == len(cells)
    for hash, encoding in progress.stored:
        assert all(order.index(ref) < order.index(hash) for ref in references(encoding))


def test_the_heaviest_make_up_a_quarter() -> None:
    staging = IncompleteCells(Home())
    sizes: dict[str, int] = {}
    # They come without leaves, so everything else waits.
    for claim, leaves in [("a1", 40), ("b1", 100), ("c1", 500), ("b2", 450)]:
        root, cells = tree(leaves, claim)
        cells = {hash: cell for hash, cell in cells.items() if references(cell)}
        before = staging.size_bytes
        staging.claim(claim, [root], cells)
        sizes[claim] = staging.size_bytes - before
    assert sizes["c1"] > sizes["b2"] > sizes["b1"] > sizes["a1"]
    assert staging.heaviest(lambda claim: claim) == ["c1"]
    assert staging.heaviest(lambda claim: str(claim)[0]) in (["b1", "b2"], ["c1"])
    assert staging.heaviest(lambda _claim: None) == ["a1", "b1", "c1", "b2"]
    staging.drop(staging.heaviest(lambda claim: claim))
    staging.drop(staging.heaviest(lambda claim: claim))
    assert staging.size_bytes == sizes["a1"] + sizes["b1"]
    staging.drop(["a1", "b1"])
    assert staging.heaviest(lambda claim: claim) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=40))
def test_what_is_given_up_leaves_the_rest_as_it_was(events: list[tuple[int, int]]) -> None:
    trees = [tree(30, salt) for salt in ("a", "b", "a")]
    cells = {hash: cell for _, found in trees for hash, cell in found.items()}
    both: Value = Vector.of(["z" * 150, "y" * 150])
    staging = IncompleteCells(Home())
    alive: set[object] = set()
    for step, number in events:
        if step < 2:
            root = trees[number % 3][0]
            staging.release(number)
            alive.discard(number)
            if staging.claim(number, [root, value_hash(both)], {root: cells[root]}).complete:
                return
            alive.add(number)
        elif step == 2:
            wanted = sorted(hash for hash in cells if staging.is_wanted(hash))
            staging.add({hash: cells[hash] for hash in wanted[: number + 1]})
        else:
            gaps = staging.drop([number])
            alive.discard(number)
            assert not any(staging.is_wanted(hash) for hash in gaps)
    wanted = [hash for hash in cells if staging.is_wanted(hash)]
    assert set(staging.claims_above(wanted)) <= alive
    gone = staging.drop(alive)
    assert (len(staging), staging.size_bytes) == (0, 0)
    assert {hash for hash in wanted if hash in gone} == set(wanted)
    assert not any(staging.is_wanted(hash) for hash in (*cells, value_hash(both)))


@pytest.mark.parametrize("others", [1, 50])
def test_to_give_up_a_claim_costs_what_goes_with_it(others: int) -> None:
    staging = IncompleteCells(Home())
    for number in range(others):
        root, cells = tree(40, f"other {number}")
        staging.claim(number, [root], {h: cell for h, cell in cells.items() if references(cell)})
    root, cells = tree(40)
    staging.claim("goes", [root], {root: cells[root]})
    # All others have some 50 cells and 40 gaps each.
    assert steps_of(lambda: staging.drop(["goes"])) < 150
