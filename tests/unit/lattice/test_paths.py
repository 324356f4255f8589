"""Reading and writing a place deep inside a value."""

from __future__ import annotations

import pytest

from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    Address,
    Index,
    Keyword,
    List,
    Map,
    Record,
    Set,
    Signed,
    Value,
    Vector,
    same,
    to_cell,
)
from datalattice.crypto import KeyPair
from datalattice.errors import NoSuchPath, TypeMismatch
from datalattice.lattice import (
    IndexLattice,
    KeyedLattice,
    LWWLattice,
    MapLattice,
    MaxLattice,
    OwnerLattice,
    SetLattice,
    TupleLattice,
    VectorLattice,
    assoc,
    assoc_in,
    get_in,
    select,
    to_json_key,
    value_below,
    values_along,
)

TREE = Map.of([("m", to_cell({"x": 1})), ("v", to_cell([10, 20]))])


def test_steps_go_through_every_kind_of_structure() -> None:
    value = Map.of(
        [
            ("i", Index.of([(Keyword("k"), Vector.of(["zero", List.of(["first", "second"])]))])),
            ("s", Set.of([1])),
        ]
    )
    assert get_in(value, ["i", Keyword("k"), 1, 1]) == "second"
    assert get_in(value, ["i", "k", 0]) == "zero"
    assert get_in(value, ["s", 1]) is True
    assert get_in(value, ["s", True]) is False
    assert get_in(value, []) is value
    assert get_in(None, ["x"]) is None


@pytest.mark.parametrize(
    "keys",
    [["x"], ["m", "y"], ["v", 2], ["v", -1], ["v", "0"], ["v", True], ["m", "x", 1], ["v", 0, 0]],
    ids=repr,
)
def test_a_step_that_cannot_be_made_gives_nil(keys: list[Value]) -> None:
    assert get_in(TREE, keys) is None


@pytest.mark.parametrize("keys", [[], ["m"], ["m", "x"], ["m", "y", 1], ["v", 2], ["new", "x"]])
def test_a_write_takes_the_values_that_were_read_on_the_way(keys: list[Value]) -> None:
    along = values_along(TREE, keys)
    assert len(along) == len(keys) + 1
    assert [get_in(TREE, keys[:depth]) for depth in range(len(along))] == along
    lattice = MapLattice(MapLattice(MapLattice(MaxLattice())))
    assert same(assoc_in(TREE, keys, 7, lattice, along), assoc_in(TREE, keys, 7, lattice))


def test_a_key_in_another_form_is_read_again_under_its_canonical_one() -> None:
    lattice = KeyedLattice({Keyword("data"): MapLattice(MaxLattice())})
    value = Index.of([(Keyword("data"), Map.of([("a", 1)]))])
    along = values_along(value, ["data", "a"])
    made = assoc_in(value, ["data", "a"], 2, lattice, along)
    assert same(made, Index.of([(Keyword("data"), Map.of([("a", 2)]))]))


@pytest.mark.parametrize("key", [5, None, 2.5, Set.of([])], ids=repr)
def test_a_key_that_no_index_can_have_is_just_not_there(key: Value) -> None:
    assert value_below(EMPTY_INDEX.put("a", 1), key) is None


def test_other_cells_are_not_entered() -> None:
    signed = Signed.sign(KeyPair(b"\x01" * 32), to_cell({"a": 1}))
    assert value_below(signed, Keyword("value")) is None
    assert value_below(Record(1, [1, 2]), 0) is None
    assert value_below("text", 0) is None


def test_keys_that_python_takes_for_equal_are_different_places() -> None:
    value = Map.of([(1, "int"), (True, "bool"), (1.0, "double")])
    assert [get_in(value, [key]) for key in (1, True, 1.0)] == ["int", "bool", "double"]
    assert same(assoc_in(value, [True], 0), Map.of([(1, "int"), (True, 0), (1.0, "double")]))


def test_writing_rebuilds_the_containers_on_the_way() -> None:
    assert same(assoc_in(TREE, ["m", "x"], 2), to_cell({"m": {"x": 2}, "v": [10, 20]}))
    assert same(assoc_in(TREE, ["v", 1], 2), to_cell({"m": {"x": 1}, "v": [10, 2]}))
    assert same(assoc_in(TREE, ["v", 2], 2), to_cell({"m": {"x": 1}, "v": [10, 20, 2]}))
    assert same(assoc_in(TREE, ["new"], None), TREE.put("new", None))
    assert assoc_in(TREE, [], 5) == 5


INNER = Vector.of([1])


@pytest.mark.parametrize(
    ("container", "key", "value"),
    [
        (Map.of([("a", INNER)]), "a", INNER),
        (Index.of([("a", 1)]), "a", 1),
        (Vector.of([1, 2]), 1, 2),
        (List.of([1, 2]), 1, 2),
        (Set.of([1]), 1, True),
        (Set.of([1]), True, False),
    ],
    ids=repr,
)
def test_writing_what_is_there_already_gives_the_same_object(
    container: Value, key: Value, value: Value
) -> None:
    assert assoc(container, key, value) is container
    outer = Map.of([("c", container)])
    assert assoc_in(outer, ["c", key], value) is outer


def test_sets_take_membership_and_lists_their_positions() -> None:
    assert same(assoc(Set.of([1]), 2, True), Set.of([1, 2]))
    assert same(assoc(Set.of([1]), 1, False), Set.of([]))
    assert same(assoc(List.of([1, 2]), 0, 9), List.of([9, 2]))


@pytest.mark.parametrize(
    ("container", "key", "value"),
    [
        (EMPTY_INDEX, 5, 1),
        (Vector.of([1]), 2, 1),
        (Vector.of([1]), -1, 1),
        (Vector.of([1]), "0", 1),
        (Vector.of([1]), True, 1),
        (List.of([1]), 1, 1),
        (Set.of([1]), 1, None),
        (Set.of([1]), 1, 1),
        ("text", 0, "x"),
        (5, "a", 1),
    ],
    ids=repr,
)
def test_what_does_not_fit_is_a_type_mismatch(container: Value, key: Value, value: Value) -> None:
    with pytest.raises(TypeMismatch):
        assoc(container, key, value)


# --- creating ---------------------------------------------------------------------------------

LATTICE = KeyedLattice(
    {
        "m": MapLattice(IndexLattice(SetLattice())),
        "t": TupleLattice(MaxLattice(), SetLattice()),
        "v": VectorLattice(SetLattice()),
        "o": OwnerLattice(MaxLattice()),
        "w": LWWLattice(),
    }
)
M = Keyword("m")


def test_what_is_nil_on_the_way_becomes_the_zero_of_its_lattice() -> None:
    made = assoc_in(None, [M, "x", b"k"], Set.of([1]), LATTICE)
    assert same(made, Index.of([(M, Map.of([("x", Index.of([(b"k", Set.of([1]))]))]))]))
    made = assoc_in(EMPTY_INDEX, [Keyword("t"), 1, 7], True, LATTICE)
    assert same(made, Index.of([(Keyword("t"), Vector.of([0, Set.of([7])]))]))
    made = assoc_in(None, [Keyword("v"), 0, "x"], True, LATTICE)
    assert same(made, Index.of([(Keyword("v"), Vector.of([Set.of(["x"])]))]))
    nil = Index.of([(M, None)])
    assert same(assoc_in(nil, [M, "x"], 1, LATTICE), Index.of([(M, to_cell({"x": 1}))]))


def test_existing_containers_are_used_even_if_the_lattice_would_make_another_kind() -> None:
    value = Index.of([(M, Index.of([("x", EMPTY_MAP)]))])
    wanted = Index.of([(M, Index.of([("x", to_cell({"y": 1}))]))])
    assert same(assoc_in(value, [M, "x", "y"], 1, LATTICE), wanted)


def test_keyed_and_signed_levels_write_their_canonical_key() -> None:
    by_name = assoc_in(None, ["m", "x"], 1, LATTICE)
    assert same(by_name, assoc_in(None, [M, "x"], 1, LATTICE))
    old = Index.of([("m", EMPTY_MAP)])
    assert same(assoc_in(old, ["m", "x"], 1, LATTICE), Index.of([(M, to_cell({"x": 1}))]))


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ([Keyword("unknown"), "x"], "at depth 1 of .*no lattice defines what to create"),
        ([Keyword("w"), "x"], r"at depth 1 of .*LWWLattice\(.*has no container to create"),
        ([Keyword("o"), b"k", Keyword("value")], "at depth 2 of .*SignedLattice"),
    ],
    ids=repr,
)
def test_nothing_is_guessed(keys: list[Value], text: str) -> None:
    with pytest.raises(NoSuchPath, match=text):
        assoc_in(None, keys, 1, LATTICE)


def test_without_a_lattice_every_container_must_be_there() -> None:
    with pytest.raises(NoSuchPath, match=r"at depth 0 of .*no lattice"):
        assoc_in(None, ["a"], 1)
    with pytest.raises(NoSuchPath, match="at depth 1"):
        assoc_in(EMPTY_MAP, ["a", "b"], 1)


def test_a_step_through_something_else_names_its_depth() -> None:
    with pytest.raises(TypeMismatch, match="cannot write through a int at depth 2"):
        assoc_in(TREE, ["m", "x", "y"], 1)


@pytest.mark.parametrize(
    ("key", "json"),
    [
        (Keyword("kv"), "kv"),
        ("text", "text"),
        (b"\x84\x2a", "842a"),
        (b"", ""),
        (5, 5),
        (1.0, 1.0),
        (None, None),
        (Address(5), Address(5)),
    ],
    ids=repr,
)
def test_keys_in_json_paths(key: Value, json: Value) -> None:
    assert same(to_json_key(key), json)


def test_select_keeps_what_lies_at_the_paths_and_the_way_there() -> None:
    value = to_cell({"a": {"x": 1, "y": 2}, "b": {"z": 3}, "c": 4})
    assert same(select(value, [["a", "x"], ["c"]]), to_cell({"a": {"x": 1}, "c": 4}))
    assert same(select(value, [["a", "x"], ["a", "y"]]), to_cell({"a": {"x": 1, "y": 2}}))
    assert same(select(value, [["a"], ["a", "x"]]), to_cell({"a": {"x": 1, "y": 2}}))
    assert select(value, [[]]) is value
    assert select(value, []) is None
    assert select(value, [["c", "deeper"], ["nothing"]]) is None
    index = Index.of({Keyword("kv"): 1, Keyword("fs"): 2})
    assert same(select(index, [["kv"]]), Index.of({Keyword("kv"): 1}))
