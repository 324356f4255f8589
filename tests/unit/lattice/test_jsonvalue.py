"""JSON values: containers merge, leaves are ordered, and depth does not matter."""

from __future__ import annotations

from itertools import pairwise

import pytest

from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    Keyword,
    Map,
    Set,
    Value,
    Vector,
    same,
    to_cell,
    value_hash,
)
from datalattice.lattice import EMPTY_CONTEXT, JSONIndexLattice, JSONLattice

JSON = JSONLattice()
INDEX = JSONIndexLattice()


def test_objects_merge_key_by_key_at_every_depth() -> None:
    own = to_cell({"u": {"age": 3}, "mine": 1, "nil": None})
    other = to_cell({"u": {"name": "x"}, "theirs": 2, "nil": 0})
    wanted = to_cell({"u": {"age": 3, "name": "x"}, "mine": 1, "theirs": 2, "nil": 0})
    assert same(JSON.merge(own, other), wanted)
    assert same(JSON.merge(other, own), wanted)
    assert JSON.merge(wanted, own) is wanted
    assert JSON.merge(own, wanted) is wanted


def test_conflicts_follow_the_order_of_kinds() -> None:
    leaf = max([1, "x", Vector.of([1]), Set.of([2])], key=value_hash)
    ladders: list[tuple[JSONLattice, list[Value]]] = [
        (JSON, [None, EMPTY_MAP, leaf, EMPTY_INDEX, to_cell({"a": 1})]),
        (INDEX, [None, EMPTY_INDEX, leaf, Index.of([("a", 1)]), EMPTY_MAP]),
    ]
    for lattice, ladder in ladders:
        for low, high in pairwise(ladder):
            assert lattice.merge(low, high) is high
            assert lattice.merge(high, low) is high
            a, b = Map.of([("k", low)]), Map.of([("k", high)])
            assert lattice.merge(a, b) is b
            assert lattice.merge(b, a) is b


def test_of_two_leaves_the_greater_hash_wins() -> None:
    for a, b in [(1, 2), (1, True), ("1", 1), (Vector.of([1]), Set.of([1]))]:
        winner = max([a, b], key=value_hash)
        assert JSON.merge(a, b) is winner
        assert JSON.merge(b, a) is winner


@pytest.mark.parametrize("lattice", [JSON, INDEX])
def test_a_container_against_a_leaf_is_associative(lattice: JSONLattice) -> None:
    leaf = "leaf"
    for grow in (
        [to_cell({"a": 1}), to_cell({"b": 2})],
        [Index.of([("a", 1)]), Index.of([("b", 2)])],
    ):
        a, b = grow
        left = lattice.merge(lattice.merge(a, leaf), b)
        right = lattice.merge(a, lattice.merge(leaf, b))
        both = lattice.merge(a, b)
        assert same(left, right)
        assert same(left, both)


def test_indexes_merge_too_and_keep_the_greater_key_cell() -> None:
    own = Index.of([("ab", Index.of([("x", 1)]))])
    other = Index.of([(Keyword("ab"), Index.of([("y", 2)]))])
    merged = INDEX.merge(own, other)
    assert isinstance(merged, Index)
    assert same(merged["ab"], Index.of([("x", 1), ("y", 2)]))
    assert merged.key_cell("ab") == max(["ab", Keyword("ab")], key=value_hash)
    assert same(merged, INDEX.merge(other, own))


def test_the_preferred_side_wins_every_conflict_below_the_top() -> None:
    own, other = to_cell({"x": {"deep": 1}, "y": 2}), to_cell({"x": 3, "y": {}})
    assert same(JSON.merge(own, other, EMPTY_CONTEXT.preferring("own")), own)
    assert same(JSON.merge(own, other, EMPTY_CONTEXT.preferring("other")), other)


def test_the_zero_changes_nothing_however_new_it_is() -> None:
    for side in ("own", "other"):
        context = EMPTY_CONTEXT.preferring(side)
        assert JSON.merge("leaf", EMPTY_MAP, context) == "leaf"
        assert JSON.merge(EMPTY_MAP, "leaf", context) == "leaf"


def test_values_nested_far_deeper_than_python_recurses_are_merged() -> None:
    own: Value = to_cell({"left": 1})
    other: Value = to_cell({"right": 2})
    for _ in range(20_000):
        own, other = Map.of([("k", own)]), Map.of([("k", other)])
    merged = JSON.merge(own, other)
    assert JSON.merge(merged, other) is merged
    for _ in range(20_000):
        assert isinstance(merged, Map)
        merged = merged["k"]
    assert same(merged, to_cell({"left": 1, "right": 2}))


def test_every_key_leads_to_the_same_lattice() -> None:
    assert JSON.path("a", "b") is JSON
    assert JSON.zero() is EMPTY_MAP
    assert INDEX.zero() is EMPTY_INDEX
    assert JSON.check_foreign(None)


@pytest.mark.parametrize("kind", [Map, Index])
def test_trees_that_share_their_branches_many_times_over_are_joined_branch_by_branch(
    kind: type[Map | Index],
) -> None:
    lattice = JSON if kind is Map else INDEX
    own: Value = kind.of([("mine", 1)])
    other: Value = kind.of([("theirs", 2)])
    wanted: Value = kind.of([("mine", 1), ("theirs", 2)])
    for _ in range(60):
        own, other, wanted = (
            kind.of([(f"k{i}", value) for i in range(8)]) for value in (own, other, wanted)
        )
    assert same(lattice.merge(own, other), wanted)
    assert same(lattice.merge(other, own), wanted)
