"""Keyed lattices: fixed names, addressed by their bytes."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    Address,
    Index,
    Keyword,
    Set,
    Symbol,
    Value,
    same,
    to_cell,
)
from datalattice.errors import TypeMismatch, UsageError
from datalattice.lattice import (
    EntryDropped,
    FunctionLattice,
    KeyedLattice,
    MapLattice,
    MaxLattice,
    MergeContext,
    MergeNotice,
    SetLattice,
    StringKeyedLattice,
    name_bytes,
)
from datalattice.testing.lattice_kit import observed

N, S = Keyword("n"), Keyword("s")
KEYED = KeyedLattice({N: MaxLattice(), S: SetLattice()})
STRINGS = StringKeyedLattice({"n": MaxLattice(), "s": SetLattice()})


def test_only_configured_keys_of_other_are_joined() -> None:
    own = Index.of([(N, 5), (Keyword("mine"), 1)])
    other = Index.of([(N, 9), (S, Set.of([1])), (Keyword("theirs"), 1)])
    merged = KEYED.merge(own, other)
    assert same(merged, Index.of([(N, 9), (S, Set.of([1])), (Keyword("mine"), 1)]))
    first = KEYED.merge(None, other)
    assert same(first, Index.of([(N, 9), (S, Set.of([1]))]))


def test_nothing_new_gives_own_and_everything_new_gives_other() -> None:
    own, other = Index.of([(N, 5)]), Index.of([(N, 6), (S, Set.of([]))])
    assert KEYED.merge(other, own) is other
    assert KEYED.merge(own, other) is other
    assert KEYED.merge(EMPTY_INDEX, other) is other
    assert KEYED.merge(own, EMPTY_INDEX) is own
    assert KEYED.merge(own, None) is own


def test_nil_entries_are_kept_below_values() -> None:
    nil, value = Index.of([(N, None)]), Index.of([(N, 0)])
    assert KEYED.merge(EMPTY_INDEX, nil) is nil
    assert KEYED.merge(nil, value) is value
    assert KEYED.merge(value, nil) is value


def test_bad_entries_are_dropped_and_reported_with_their_path() -> None:
    reports: list[MergeNotice] = []
    context = observed(MergeContext(path=("r",)), reports)
    own = Index.of([(N, 5)])
    merged = KEYED.merge(own, Index.of([(N, "bad"), (S, 7)]), context)
    assert merged is own
    assert reports == [EntryDropped(("r", N)), EntryDropped(("r", S))]
    assert KEYED.merge(own, EMPTY_MAP, context) is own
    assert reports[2:] == [EntryDropped(("r",))]


def test_a_join_to_nil_takes_the_entry_away() -> None:
    gone = FunctionLattice(lambda _a, _b: None)
    own = Index.of([(N, 1), (S, 2)])
    assert same(KeyedLattice({N: gone}).merge(own, Index.of([(N, 2)])), Index.of([(S, 2)]))
    strings = StringKeyedLattice({"n": gone})
    assert same(strings.merge(to_cell({"n": 1}), to_cell({"n": 2})), EMPTY_MAP)


@pytest.mark.parametrize("key", [N, "n", b"n", Symbol("n")], ids=repr)
def test_a_child_is_found_by_the_bytes_of_its_name(key: Value) -> None:
    assert isinstance(KEYED.path(key), MaxLattice)
    assert KEYED.resolve_key(key) == N
    assert isinstance(KEYED.resolve_key(key), Keyword)
    assert isinstance(KEYED.canonical_key(key), Keyword)


@pytest.mark.parametrize("key", ["x", 5, None, Address(1), Set.of([])], ids=repr)
def test_unknown_keys_lead_nowhere_and_stay_as_they_are(key: Value) -> None:
    assert KEYED.path(key) is None
    assert KEYED.resolve_key(key) is None
    assert KEYED.canonical_key(key) is key


def test_entries_come_in_under_the_keyword_whatever_key_they_had() -> None:
    merged = KEYED.merge(Index.of([(N, 1)]), Index.of([("n", 2), ("s", Set.of([]))]))
    assert same(merged, Index.of([(N, 2), (S, Set.of([]))]))
    untouched = Index.of([("n", 5)])
    assert KEYED.merge(untouched, Index.of([(N, 3)])) is untouched


def test_names_that_an_index_cannot_tell_apart_are_refused() -> None:
    long = "k" * 32
    with pytest.raises(UsageError, match="are the same key"):
        KeyedLattice({long + "a": MaxLattice(), long + "b": MaxLattice()})
    alone = KeyedLattice({long + "a": MaxLattice()})
    assert isinstance(alone.path(Keyword(long + "a")), MaxLattice)
    assert name_bytes(long + "a") == b"k" * 32


def test_wrong_children_and_names_are_refused() -> None:
    with pytest.raises(TypeMismatch, match="a key of a KeyedLattice is not a Keyword or a str"):
        KeyedLattice({5: MaxLattice()})  # type: ignore[arg-type]
    with pytest.raises(TypeMismatch, match="the child :n of a KeyedLattice is not a Lattice"):
        KeyedLattice({N: None})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="1 to 128 bytes"):
        KeyedLattice({"": MaxLattice()})
    with pytest.raises(TypeMismatch, match="a key of a StringKeyedLattice is not a str"):
        StringKeyedLattice({N: MaxLattice()})  # type: ignore[dict-item]
    with pytest.raises(TypeMismatch, match="the child 'n'"):
        StringKeyedLattice({"n": 5})  # type: ignore[dict-item]


def test_a_child_can_be_added_or_replaced() -> None:
    more = KEYED.add_lattice(Keyword("m"), MapLattice(MaxLattice()))
    assert isinstance(more.path("m", "x"), MaxLattice)
    assert KEYED.path("m") is None
    assert isinstance(more.add_lattice(N, SetLattice()).path(N), SetLattice)


def test_string_keyed_states_are_maps_with_string_keys() -> None:
    own, other = to_cell({"n": 5, "mine": 1}), to_cell({"n": 9, "theirs": 1})
    assert same(STRINGS.merge(own, other), to_cell({"n": 9, "mine": 1}))
    assert STRINGS.merge(own, to_cell({"n": 5})) is own
    assert STRINGS.merge(EMPTY_MAP, to_cell({"n": 5})) == to_cell({"n": 5})
    assert STRINGS.merge("broken", to_cell({"n": 5})) == to_cell({"n": 5})
    assert STRINGS.merge(own, EMPTY_INDEX) is own
    assert isinstance(STRINGS.path("s"), SetLattice)
    assert STRINGS.path(N) is None
    assert STRINGS.resolve_key("n") == "n"
    assert STRINGS.resolve_key(N) is None
    assert STRINGS.resolve_key("x") is None
    assert STRINGS.zero() is EMPTY_MAP


def test_keyed_lattices_can_be_pickled() -> None:
    for lattice in (KEYED, STRINGS):
        back = pickle.loads(pickle.dumps(lattice))
        assert repr(back) == repr(lattice)
        assert isinstance(back.path("n"), MaxLattice)


@pytest.mark.parametrize("kind", [KeyedLattice, StringKeyedLattice])
@pytest.mark.parametrize("children", [None, 5, "a", [Keyword("a")]])
def test_children_that_are_no_mapping_are_refused(
    kind: Callable[[object], object], children: object
) -> None:
    with pytest.raises(TypeMismatch, match="mapping of names to lattices"):
        kind(children)
