"""Content stores: unions that a wrong key cannot poison."""

from __future__ import annotations

from itertools import permutations

from datalattice.cells import EMPTY_INDEX, EMPTY_MAP, Index, Keyword, Value, same, value_hash
from datalattice.lattice import CASLattice, DataLattice, EntryDropped, MergeContext, MergeNotice
from datalattice.testing.lattice_kit import observed

DATA = DataLattice()
CAS = CASLattice()


def stored(*values: Value) -> Index:
    return Index.of([(value_hash(value), value) for value in values])


def test_values_are_filed_under_their_own_hash() -> None:
    wrong = Index.of([("name", "a"), (b"\x01" * 32, "b"), (Keyword("k"), "a")])
    assert same(DATA.merge(EMPTY_INDEX, wrong), stored("a", "b"))
    assert same(DATA.merge(None, wrong), stored("a", "b"))
    assert same(DATA.merge(stored("a"), stored("b")), stored("a", "b"))


def test_a_value_under_a_key_that_is_taken_is_not_lost() -> None:
    wrong = Index.of([(value_hash("a"), "b")])
    for order in permutations([stored("a"), wrong, stored("c")]):
        merged: Value = EMPTY_INDEX
        for state in order:
            merged = DATA.merge(merged, state)
        assert same(merged, stored("a", "b", "c"))


def test_own_entries_never_change_and_nil_is_ignored() -> None:
    own = stored("a")
    assert DATA.merge(own, Index.of([(value_hash("a"), None), ("x", None)])) is own
    assert DATA.merge(own, stored("a")) is own
    assert DATA.merge(own, None) is own


def test_nil_own_is_the_empty_store() -> None:
    assert DATA.merge(None, None) is EMPTY_INDEX
    other = stored("a")
    assert DATA.merge(None, other) is other
    assert DATA.merge(EMPTY_INDEX, other) is other
    empty = Index()
    assert DATA.merge(None, empty) is empty


def test_a_hash_in_another_type_of_key_is_filed_as_a_blob() -> None:
    digest = value_hash("a")
    name = digest.decode("utf-8", "surrogateescape")
    assert same(DATA.merge(EMPTY_INDEX, Index.of([(name, "a")])), stored("a"))


def test_what_is_no_index_is_refused() -> None:
    reports: list[MergeNotice] = []
    context = observed(MergeContext(), reports)
    assert DATA.merge(EMPTY_INDEX, EMPTY_MAP, context) is EMPTY_INDEX
    own = Index.of([("k", 1)])
    assert CAS.merge(own, EMPTY_MAP, context) is own
    assert CAS.merge("broken", own, context) is own
    assert reports == [EntryDropped(()), EntryDropped(())]
    assert DATA.path("x") is None
    assert CAS.path("x") is None


def test_under_one_key_the_greater_hash_stays() -> None:
    a, b = Index.of([("k", "one")]), Index.of([("k", "two")])
    winner = a if value_hash("one") > value_hash("two") else b
    assert CAS.merge(a, b) is winner
    assert CAS.merge(b, a) is winner
    assert same(CAS.merge(a, Index.of([("l", 1)])), Index.of([("k", "one"), ("l", 1)]))


def test_nil_content_gives_way_to_any() -> None:
    nil, value = Index.of([("k", None)]), Index.of([("k", 1)])
    assert CAS.merge(nil, value) is value
    assert CAS.merge(value, nil) is value
    assert CAS.merge(EMPTY_INDEX, nil) is nil
    assert CAS.zero() is EMPTY_INDEX
