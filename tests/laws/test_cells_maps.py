"""Laws of maps, sets and indexes against dicts keyed by hash or by key bytes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from datalattice.cells import (
    ABSENT,
    EMPTY_INDEX,
    EMPTY_MAP,
    EMPTY_SET,
    Index,
    Map,
    Set,
    Value,
    decode_message,
    encode,
    encode_message,
    key_bytes,
    same,
    validate,
    value_hash,
)
from datalattice.testing.strategies import (
    by_hash,
    index_keys,
    map_keys,
    pairs,
    plain_scalars,
    sequences,
)

Pairs = Sequence[tuple[Value, Value]]


def map_pairs() -> st.SearchStrategy[Pairs]:
    return pairs(map_keys(), plain_scalars(), max_size=40)


def index_pairs() -> st.SearchStrategy[Pairs]:
    return pairs(index_keys(), plain_scalars(), max_size=40)


def by_bytes(entries: Pairs) -> dict[bytes, tuple[Value, Value]]:
    """Return what an index must hold: a later put replaces key and value."""
    return {key_bytes(key): (key, value) for key, value in entries}


def holds(found: Map | Index, twin: dict[bytes, tuple[Value, Value]]) -> None:
    """Check that a map or index holds exactly the entries of its twin, in order of the names."""
    entries = list(found.entries())
    wanted = [twin[name] for name in sorted(twin)]
    assert len(found) == len(entries) == len(wanted)
    for (key, value), (other_key, other_value) in zip(entries, wanted, strict=True):
        assert same(key, other_key)
        assert same(value, other_value)
    assert all(map(same, found, [key for key, _ in wanted]))
    assert all(map(same, found.values(), [value for _, value in wanted]))


# --- maps ---------------------------------------------------------------------------------------


@given(map_pairs())
def test_maps_hold_what_a_dict_by_hash_holds(entries: Pairs) -> None:
    made = EMPTY_MAP
    for key, value in entries:
        made = made.put(key, value)
    holds(made, by_hash(entries))
    assert encode_message(made) == encode_message(Map.of(entries))
    assert validate(made) == []
    holds(decode_message(encode_message(made)), by_hash(entries))  # type: ignore[arg-type]


@given(map_pairs(), st.randoms(use_true_random=False))
def test_maps_do_not_depend_on_the_order_of_building(entries: Pairs, random: object) -> None:
    distinct = list(by_hash(entries).values())
    shuffled = distinct[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert encode(Map.of(shuffled)) == encode(Map.of(distinct))
    assert encode(EMPTY_MAP.put_many(shuffled)) == encode(Map.of(distinct))
    half = Map.of(shuffled[: len(shuffled) // 2])
    assert encode(half.put_many(shuffled)) == encode(Map.of(distinct))


@given(map_pairs(), st.data())
def test_removing_equals_building_without(entries: Pairs, data: st.DataObject) -> None:
    twin = by_hash(entries)
    made = Map.of(entries)
    gone = data.draw(st.lists(st.one_of(map_keys(), st.sampled_from([*range(3)])), max_size=5))
    if twin:
        gone += [key for key, _ in data.draw(st.lists(st.sampled_from(list(twin.values()))))]
    for key in gone:
        less = made.remove(key)
        if twin.pop(value_hash(key), None) is None:
            assert less is made
        assert key not in less
        made = less
    assert encode_message(made) == encode_message(Map.of(list(twin.values())))


@given(map_pairs(), map_keys(), plain_scalars())
def test_map_lookups_agree_with_the_twin(entries: Pairs, key: Value, value: Value) -> None:
    made = Map.of(entries)
    twin = by_hash(entries)
    name = value_hash(key)
    assert (key in made) == (name in twin)
    if name in twin:
        assert same(made[key], twin[name][1])
        assert same(made.get(key, value), twin[name][1])
        assert made.put(key, twin[name][1]) is made
    else:
        assert made.get(key, value) is value
        with pytest.raises(KeyError):
            made[key]
    changed = made.put(key, value)
    assert same(changed[key], value)
    holds(made, twin)


@given(map_pairs(), map_pairs(), map_pairs(), st.sampled_from(["greater", "own", "drop", "other"]))
def test_map_merge_equals_a_naive_merge(
    shared: Pairs, own_only: Pairs, other_only: Pairs, rule: str
) -> None:
    base = Map.of(shared)
    own, other = base.put_many(own_only), base.put_many(other_only)
    mine, theirs = by_hash([*shared, *own_only]), by_hash([*shared, *other_only])
    check_merge(own, other, mine, theirs, rule, Map.of)
    apart = decode_message(encode_message(other))
    assert isinstance(apart, Map)
    check_merge(own, apart, mine, theirs, rule, Map.of)


def joined(rule: str, own: Value, other: Value, has: bool, had: bool) -> object:
    assert had, "what only own has is never asked about"
    if rule == "drop" and not has:
        return ABSENT
    if has and rule == "own":
        return own
    if not has or rule == "other":
        return other
    return max(own, other, key=encode)


def check_merge(
    own: Map | Index,
    other: Map | Index,
    mine: dict[bytes, tuple[Value, Value]],
    theirs: dict[bytes, tuple[Value, Value]],
    rule: str,
    build: object,
) -> None:
    """Check a merge by a rule against the same rule applied name by name."""
    asked: list[bytes] = []

    def join(key: Value, a: Value, b: Value, has: bool, had: bool) -> object:
        name = value_hash(key) if isinstance(own, Map) else key_bytes(key)
        asked.append(name)
        assert has == (name in mine)
        assert had == (name in theirs)
        assert same(a, mine[name][1] if has else None)
        assert same(b, theirs[name][1] if had else None)
        return joined(rule, a, b, has, had)

    wanted: list[tuple[Value, Value]] = []
    differing: set[bytes] = set()
    for name in {*mine, *theirs}:
        has, had = name in mine, name in theirs
        key = mine[name][0] if has else theirs[name][0]
        if has and had and not same(theirs[name][0], key):
            key = max(key, theirs[name][0], key=value_hash)
        a, b = (mine[name][1] if has else None), (theirs[name][1] if had else None)
        if has and had and same(a, b):
            wanted.append((key, a))
            continue
        if not had:
            wanted.append((key, a))
            continue
        differing.add(name)
        result = joined(rule, a, b, has, had)
        if result is not ABSENT:
            wanted.append((key, result))
    result = own.merge_with(other, join)  # type: ignore[arg-type]
    expected = build(wanted)  # type: ignore[operator]
    assert sorted(asked) == sorted(differing), (
        "the rule is asked once for each entry of other that differs"
    )
    assert encode_message(result) == encode_message(expected)
    if same(expected, own):
        assert result is own
    elif same(expected, other):
        assert result is other


@given(map_pairs(), map_pairs())
def test_map_differences_are_the_differing_entries(shared: Pairs, more: Pairs) -> None:
    own = Map.of(shared)
    other = decode_message(encode_message(own.put_many(more)))
    assert isinstance(other, Map)
    mine, theirs = by_hash(shared), by_hash([*shared, *more])
    wanted = {
        name for name in theirs if name not in mine or not same(mine[name][1], theirs[name][1])
    }
    found = [value_hash(entry[0]) for entry in own.differences(other)]
    assert sorted(found) == sorted(wanted)


# --- sets ---------------------------------------------------------------------------------------


def set_items() -> st.SearchStrategy[Sequence[Value]]:
    return sequences(map_keys(), max_size=40)


@given(set_items(), set_items())
def test_sets_are_maps_without_values(items: Sequence[Value], others: Sequence[Value]) -> None:
    made = EMPTY_SET
    for item in items:
        made = made.add(item)
    mine = {value_hash(item): item for item in items}
    assert encode_message(made) == encode_message(Set.of(items))
    assert [value_hash(item) for item in made] == sorted(mine)
    assert len(made) == len(mine)
    assert validate(made) == []
    for item in others:
        assert (item in made) == (value_hash(item) in mine)
        less = made.remove(item)
        assert (less is made) == (value_hash(item) not in mine)
        rest = [held for name, held in mine.items() if name != value_hash(item)]
        assert encode(less) == encode(Set.of(rest))


@given(set_items(), set_items(), set_items(), st.booleans())
def test_union_takes_all_and_returns_the_side_that_had_all(
    shared: Sequence[Value], own_only: Sequence[Value], other_only: Sequence[Value], apart: bool
) -> None:
    own, other = Set.of([*shared, *own_only]), Set.of([*shared, *other_only])
    if apart:
        other = decode_message(encode_message(other))  # type: ignore[assignment]
    wanted = Set.of([*shared, *own_only, *other_only])
    result = own.union(other)
    assert encode_message(result) == encode_message(wanted)
    if same(wanted, own):
        assert result is own
    elif same(wanted, other):
        assert result is other
    assert same(own | other, wanted)
    names, their_names = {value_hash(x) for x in own}, {value_hash(x) for x in other}
    assert {value_hash(x) for x in own & other} == names & their_names
    assert {value_hash(x) for x in own - other} == names - their_names
    assert {value_hash(x) for x in own ^ other} == names ^ their_names
    assert (own <= other) == (names <= their_names)
    assert (own < other) == (names < their_names)
    assert own.isdisjoint(other) == names.isdisjoint(their_names)


# --- indexes ------------------------------------------------------------------------------------


@given(index_pairs())
def test_indexes_hold_what_a_dict_by_bytes_holds(entries: Pairs) -> None:
    made = EMPTY_INDEX
    for key, value in entries:
        made = made.put(key, value)
    twin = by_bytes(entries)
    holds(made, twin)
    assert encode_message(made) == encode_message(Index.of(entries))
    assert validate(made) == []
    again = decode_message(encode_message(made))
    assert isinstance(again, Index)
    holds(again, twin)
    for name, (key, value) in twin.items():
        assert same(again.key_cell(name), key)
        assert same(again[name], value)
        assert again.put(key, value) is again


@given(index_pairs(), st.randoms(use_true_random=False))
def test_indexes_do_not_depend_on_the_order_of_building(entries: Pairs, random: object) -> None:
    distinct = list(by_bytes(entries).values())
    shuffled = distinct[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert encode(Index.of(shuffled)) == encode(Index.of(distinct))
    assert encode(Index.of(distinct[:3]).put_many(shuffled)) == encode(Index.of(distinct))


@given(index_pairs(), st.data())
def test_removing_from_an_index_equals_building_without(
    entries: Pairs, data: st.DataObject
) -> None:
    twin = by_bytes(entries)
    made = Index.of(entries)
    if data.draw(st.booleans()):
        made = decode_message(encode_message(made))  # type: ignore[assignment]
    gone = data.draw(st.lists(index_keys(), max_size=5))
    if twin:
        gone += [key for key, _ in data.draw(st.lists(st.sampled_from(list(twin.values()))))]
    for key in gone:
        less = made.remove(key)
        if twin.pop(key_bytes(key), None) is None:
            assert less is made
        assert key not in less
        made = less
    assert encode_message(made) == encode_message(Index.of(list(twin.values())))


@given(
    index_pairs(),
    index_pairs(),
    index_pairs(),
    st.sampled_from(["greater", "own", "drop", "other"]),
)
def test_index_merge_equals_a_naive_merge(
    shared: Pairs, own_only: Pairs, other_only: Pairs, rule: str
) -> None:
    base = Index.of(shared)
    own, other = base.put_many(own_only), base.put_many(other_only)
    mine, theirs = by_bytes([*shared, *own_only]), by_bytes([*shared, *other_only])
    check_merge(own, other, mine, theirs, rule, Index.of)
    apart = decode_message(encode_message(other))
    assert isinstance(apart, Index)
    check_merge(own, apart, mine, theirs, rule, Index.of)
