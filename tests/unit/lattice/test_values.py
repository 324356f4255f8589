"""Registers: who wins, what is refused, and which object comes back."""

from __future__ import annotations

import pickle

import pytest

from datalattice.cells import EMPTY_SET, Index, Map, Set, Value, same, to_cell, value_hash
from datalattice.errors import TypeMismatch
from datalattice.lattice import (
    EMPTY_CONTEXT,
    TIMESTAMP,
    CompareLattice,
    EntryDropped,
    FunctionLattice,
    JSONLattice,
    Lattice,
    LWPLattice,
    LWWLattice,
    MapLattice,
    MaxLattice,
    MergeContext,
    MergeNotice,
    MinLattice,
    SetLattice,
    map_timestamp,
)
from datalattice.testing.lattice_kit import observed


def stamped(stamp: Value, data: Value = None) -> Map:
    return Map.of([(TIMESTAMP, stamp), ("data", data)])


def timed(stamp: int, fields: dict[str, object]) -> Map:
    return Map.of([(TIMESTAMP, stamp), *fields.items()])


def size(value: Value) -> int:
    return len(value) if isinstance(value, str) else 0


def by_size(a: Value, b: Value) -> int:
    return size(a) - size(b)


def joined(a: Value, b: Value) -> Value:
    return f"{a}+{b}"


def merged_and_reported(
    lattice: Lattice, own: Value, other: Value
) -> tuple[Value, list[MergeNotice]]:
    reports: list[MergeNotice] = []
    context = observed(MergeContext(path=("here",)), reports)
    return lattice.merge(own, other, context), reports


# --- set, max, min ----------------------------------------------------------------------------


def test_set_is_the_union_and_keeps_the_covering_object() -> None:
    small, large = Set.of([1]), Set.of([1, True, 1.0])
    lattice = SetLattice()
    assert same(lattice.merge(Set.of([1]), Set.of([2])), Set.of([2, 1]))
    assert lattice.merge(large, small) is large
    assert lattice.merge(small, large) is large
    assert lattice.zero() is EMPTY_SET


def test_max_compares_integers_of_any_size_and_refuses_what_is_below_its_zero() -> None:
    lattice = MaxLattice()
    assert lattice.merge(3, 2**90) == 2**90
    assert lattice.merge(-1, -5) == -1
    assert lattice.check_foreign(0)
    assert not lattice.check_foreign(-1)
    assert MaxLattice(zero=-5).check_foreign(-5)
    assert not MaxLattice(zero=-5).check_foreign(-6)
    assert MaxLattice(zero=None).check_foreign(-(2**90))
    assert MaxLattice(zero=None).zero() is None


def test_min_is_the_smaller() -> None:
    assert MinLattice().merge(3, -(2**90)) == -(2**90)
    assert MinLattice().merge(3, 7) == 3
    assert MinLattice().zero() is None


@pytest.mark.parametrize(
    ("lattice", "good", "bad"),
    [
        (SetLattice(), Set.of([1]), Map.of([])),
        (SetLattice(), Set.of([1]), "x"),
        (MaxLattice(), 1, True),
        (MaxLattice(), 1, 2.0),
        (MaxLattice(), 1, "9"),
        (MinLattice(), 1, False),
        (MinLattice(), 1, None),
        (CompareLattice(by_size), "x", None),
    ],
)
def test_what_is_of_another_kind_is_refused_reported_and_not_taken(
    lattice: Lattice, good: Value, bad: Value
) -> None:
    assert not lattice.check_foreign(bad)
    expected = [] if bad is None else [EntryDropped(("here",))]
    assert merged_and_reported(lattice, good, bad) == (good, expected)
    assert merged_and_reported(lattice, None, bad) == (None, expected)


@pytest.mark.parametrize("lattice", [MaxLattice(), MinLattice(), SetLattice()])
def test_a_broken_own_value_gives_way(lattice: Lattice) -> None:
    good: Value = Set.of([1]) if isinstance(lattice, SetLattice) else 4
    assert lattice.merge("broken", good) is good


def test_max_says_what_its_zero_may_be() -> None:
    with pytest.raises(TypeMismatch, match="int or None: bool"):
        MaxLattice(zero=True)


# --- last write -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "stamp"),
    [
        (stamped(7), 7),
        (stamped(-7), -7),
        (stamped(2**63 - 1), 2**63 - 1),
        (stamped(2**63), 0),
        (stamped(True), 0),
        (stamped(7.0), 0),
        (stamped("7"), 0),
        (Map.of([]), 0),
        (Index.of([(TIMESTAMP, 7)]), 0),
        (7, 0),
    ],
)
def test_the_time_of_a_value_is_a_long_under_timestamp_of_a_map(value: Value, stamp: int) -> None:
    assert map_timestamp(value) == stamp


def test_the_later_value_is_taken_whole() -> None:
    early, late = stamped(1, "a"), stamped(2, None)
    assert LWWLattice().merge(early, late) is late
    assert LWWLattice().merge(late, early) is late


def test_a_tie_goes_to_the_greater_hash() -> None:
    a, b = stamped(5, "a"), stamped(5, "b")
    winner = a if value_hash(a) > value_hash(b) else b
    assert LWWLattice().merge(a, b) is winner
    assert LWWLattice().merge(b, a) is winner


def test_a_negative_time_loses_to_none() -> None:
    assert LWWLattice().merge(stamped(-1), "no time") == "no time"


def test_last_write_takes_its_own_time_function() -> None:
    assert LWWLattice(size).merge("long", "short") == "short"
    assert LWWLattice(size).merge("longer", "short") == "longer"
    with pytest.raises(TypeMismatch, match="timestamp of an LWWLattice is not a function: int"):
        LWWLattice(5)  # type: ignore[arg-type]


def test_last_write_preferred_keeps_what_only_one_side_has() -> None:
    lattice = LWPLattice(JSONLattice())
    old = timed(5, {"p": {"q": 1}, "x": "old", "mine": 1})
    new = timed(9, {"p": {"q": 0, "r": 2}, "x": "new"})
    wanted = timed(9, {"p": {"q": 0, "r": 2}, "x": "new", "mine": 1})
    assert same(lattice.merge(old, new), wanted)
    assert same(lattice.merge(new, old), wanted)


def test_last_write_preferred_lets_a_newer_leaf_replace_a_container() -> None:
    lattice = LWPLattice(JSONLattice())
    old = timed(5, {"x": {"deep": 1}})
    new = timed(9, {"x": 3})
    assert lattice.merge(old, new) is new
    assert lattice.merge(new, old) is new


def test_last_write_preferred_with_equal_times_leaves_it_to_the_inner_lattice() -> None:
    lattice = LWPLattice(JSONLattice())
    leaf, tree = to_cell({"x": 3}), to_cell({"x": {"deep": 1}})
    assert same(lattice.merge(leaf, tree), tree)
    assert same(lattice.merge(tree, leaf), tree)


def test_last_write_preferred_checks_a_newer_foreign_value_entry_by_entry() -> None:
    lattice = LWPLattice(MapLattice(MaxLattice()))
    own = Map.of([(TIMESTAMP, 1), ("n", 4)])
    newer = Map.of([(TIMESTAMP, 9), ("n", "forged")])
    merged, reports = merged_and_reported(lattice, own, newer)
    assert same(merged, Map.of([(TIMESTAMP, 9), ("n", 4)]))
    assert reports == [EntryDropped(("here", "n"))]


def test_last_write_preferred_is_addressed_as_its_inner_lattice() -> None:
    lattice = LWPLattice(MapLattice(MaxLattice()))
    assert isinstance(lattice.path("a"), MaxLattice)
    assert lattice.resolve_key("a") == "a"
    assert same(lattice.zero(), Map.of([]))
    assert not lattice.check_foreign(5)


# --- given functions --------------------------------------------------------------------------


def test_compare_takes_the_greater_and_breaks_ties_by_hash() -> None:
    lattice = CompareLattice(by_size)
    assert lattice.merge("aaa", "b") == "aaa"
    assert lattice.merge("b", "aaa") == "aaa"
    assert lattice.merge("x", "y") == lattice.merge("y", "x")
    newer_wins = EMPTY_CONTEXT.preferring("other")
    assert lattice.merge("x", "y", newer_wins) == "y"
    assert lattice.merge("y", "x", newer_wins) == "x"


def test_a_function_is_called_with_two_values_only() -> None:
    lattice = FunctionLattice(joined)
    assert lattice.merge("a", "b") == "a+b"
    assert lattice.merge("a", "b", EMPTY_CONTEXT.preferring("other")) == "b+a"
    assert lattice.merge("a", None) == "a"
    assert lattice.merge(None, "b") == "b"
    assert lattice.merge("a", "a") == "a"
    with pytest.raises(TypeMismatch, match="join of a FunctionLattice is not a function"):
        FunctionLattice("f")  # type: ignore[arg-type]


def test_a_function_result_that_equals_a_side_is_that_side() -> None:
    a, b = to_cell({"k": 1}), to_cell({"k": 2})
    assert FunctionLattice(lambda _a, _b: to_cell({"k": 1})).merge(a, b) is a
    assert FunctionLattice(lambda _a, _b: to_cell({"k": 2})).merge(a, b) is b


@pytest.mark.parametrize(
    "lattice",
    [
        SetLattice(),
        MaxLattice(zero=-3),
        MinLattice(),
        LWWLattice(size),
        LWPLattice(JSONLattice()),
        CompareLattice(by_size),
        FunctionLattice(joined),
    ],
)
def test_lattices_can_be_pickled_and_shown(lattice: Lattice) -> None:
    back = pickle.loads(pickle.dumps(lattice))
    assert repr(back) == repr(lattice)
    assert type(lattice).__name__ in repr(lattice)
    assert back.merge("aaa", "b") == lattice.merge("aaa", "b")
