"""Containers: the published bytes, the shapes at their borders, and the habits of Python."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence, Set as AbstractSet

import pytest

from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_LIST,
    EMPTY_MAP,
    EMPTY_SET,
    EMPTY_VECTOR,
    Address,
    Coded,
    Extension,
    Index,
    Keyword,
    List,
    Map,
    Record,
    Set,
    Symbol,
    Syntax,
    Value,
    Vector,
    decode,
    encode,
    key_bytes,
    same,
    value_hash,
)
from datalattice.errors import TypeMismatch, UsageError

# --- published bytes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (EMPTY_VECTOR, "8000"),
        (EMPTY_LIST, "8100"),
        (EMPTY_MAP, "8200"),
        (EMPTY_SET, "8300"),
        (EMPTY_INDEX, "8400"),
        (Vector.of([101, "Hello", Set.of([])]), "80031165300548656c6c6f8300"),
        (List.of([1, 2]), "810211021101"),
        (Map.of([("key-1", 1), ("key-0", 0)]), "820230056b65792d31110130056b65792d3010"),
        (Index.of([(b"\x12", 1)]), "84013101121101"),
        (Index.of([(b"", 1)]), "840131001101"),
        (Index.of([(b"\x10", 1), (b"\x20", 2)]), "84020000000684013101101101840131012011 02"),
        (Index.of([(b"\x12", 1), (b"\x12\x34", 2)]), "84028031011211010200088401310212341102"),
        (Syntax(1), "88110100"),
        (Syntax(1, EMPTY_MAP), "88110100"),
        (Coded(3, 1, 2), "c311011102"),
        (Record(0, []), "d000"),
        (Record(4, [1]), "d4011101"),
    ],
)
def test_containers_have_the_published_encodings(value: Value, text: str) -> None:
    assert encode(value) == bytes.fromhex(text)
    assert encode(decode(bytes.fromhex(text))) == bytes.fromhex(text)


def test_a_vector_of_17_writes_its_tail_first() -> None:
    prefix = "8010" + "10" + "".join(f"11{n:02x}" for n in range(1, 16))
    assert encode(Vector.of(range(17))).hex() == "80111110" + prefix


def test_a_map_of_16_small_integers_is_one_cell() -> None:
    assert encode(Map.of([(n, n) for n in range(16)])).hex().startswith("821000b7d7")


@pytest.mark.parametrize(
    ("count", "kids"),
    [(16, 16), (17, 2), (32, 2), (256, 16), (257, 2), (272, 2), (512, 2), (4096, 16), (4112, 2)],
)
def test_vectors_have_the_published_shapes(count: int, kids: int) -> None:
    vector = Vector.of(range(count))
    assert len(vector._children()) == kids


def test_a_vector_of_5000_is_8_elements_and_two_trees() -> None:
    vector = Vector.of(range(5000))
    prefix = vector._children()[-1]
    assert len(vector._children()) == 9
    assert isinstance(prefix, Vector)
    assert len(prefix) == 4992
    assert [len(child) for child in prefix._children()] == [4096, 896]  # type: ignore[arg-type]


# --- vectors ---------------------------------------------------------------------------------


def test_containers_are_what_python_calls_them() -> None:
    kinds: list[tuple[object, type]] = [
        (EMPTY_VECTOR, Sequence),
        (EMPTY_LIST, Sequence),
        (Record(1, []), Sequence),
        (EMPTY_MAP, Mapping),
        (EMPTY_INDEX, Mapping),
        (EMPTY_SET, AbstractSet),
    ]
    for container, kind in kinds:
        assert isinstance(container, kind)
    assert not EMPTY_VECTOR
    assert not EMPTY_MAP
    assert Vector.of([1])


def test_vectors_search_by_value_not_by_equality() -> None:
    vector = Vector.of([1, True, 1.0, "1", b"1", None, 1])
    assert vector.index(True) == 1
    assert vector.index(1.0) == 2
    assert vector.count(1) == 2
    assert vector.index(1, 1) == 6
    assert b"1" in vector
    assert 2 not in vector
    with pytest.raises(ValueError, match="not in the vector"):
        vector.index(False)


@pytest.mark.parametrize("position", [3, -4, 2**70])
def test_positions_outside_are_index_errors(position: int) -> None:
    with pytest.raises(IndexError):
        Vector.of([1, 2, 3])[position]
    with pytest.raises(IndexError):
        Vector.of([1, 2, 3]).set(position, 0)
    if position >= 0:
        vector = Vector.of([1, 2, 3])
        assert vector.get(position) is List.of([1]).get(position) is None
        assert vector.to_list(1, position) == [2, 3]
        assert list(vector.iter_range(1, position)) == [2, 3]
        assert vector.to_list(position) == []
        assert vector.drop(position) == Vector()
        assert vector.take(position) is vector


def test_a_position_must_be_a_number() -> None:
    with pytest.raises(TypeMismatch, match="int or a slice"):
        Vector.of([1])["0"]  # type: ignore[index]


def test_get_takes_no_negative_positions() -> None:
    vector = Vector.of([1, 2])
    assert vector.get(1) == 2
    assert vector.get(2, "none") == "none"
    assert vector.get(-1, "none") == "none"


def test_appending_in_two_directions_from_one_vector() -> None:
    base = Vector.of(range(3))
    left, right = base.append("l"), base.append("r")
    assert list(left.append("x")) == [0, 1, 2, "l", "x"]
    assert list(right) == [0, 1, 2, "r"]
    assert list(base) == [0, 1, 2]


def test_dropping_a_multiple_of_16_shares_the_leaves() -> None:
    vector = Vector.of([f"element {n}" for n in range(1000)])
    encode(vector)
    kept = vector.drop(512)
    assert list(kept) == list(vector)[512:]
    assert vector.drop(0) is vector
    assert vector.drop(-1) is vector
    assert vector.drop(1000) is EMPTY_VECTOR
    assert vector.drop(2000) is EMPTY_VECTOR


def test_taking_the_first_shares_the_leaves() -> None:
    vector = Vector.of([f"element {n}" for n in range(1000)])
    kept = vector.take(999)
    assert list(kept) == list(vector)[:999]
    assert kept._leaf(5)[0] is vector._leaf(5)[0]
    assert vector.take(1000) is vector
    assert vector.take(0) is EMPTY_VECTOR
    assert vector.take(-1) is EMPTY_VECTOR


# --- maps and sets ---------------------------------------------------------------------------


def test_a_map_told_apart_what_python_takes_for_one_key() -> None:
    made = Map.of([(True, "flag"), (1, "integer"), (1.0, "double"), ("1", "text"), (b"1", "blob")])
    assert len(made) == 5
    assert (made[True], made[1], made[1.0], made["1"], made[b"1"]) == (
        "flag",
        "integer",
        "double",
        "text",
        "blob",
    )
    assert len(Set.of([True, 1, 1.0, 0.0, -0.0])) == 5


def test_keys_stay_apart_however_often_they_are_looked_up() -> None:
    made = Map.of([(1, "integer"), ("1", "text"), (b"1", "blob"), (10**6, "many")])
    for number in range(5_000):  # more than are cached
        assert EMPTY_MAP.put(f"name {number}", number)[f"name {number}"] == number
        assert f"name {number}" not in made
    for _ in range(2):
        assert [made.get(key) for key in (True, 1.0, 1, "1", b"1", 10**6)] == [
            None,
            None,
            "integer",
            "text",
            "blob",
            "many",
        ]
        assert made.put(True, "flag")[1] == "integer"
        assert len(made.put(1.0, "double").put("1" * 41, "long")) == 6


def test_a_nil_value_is_present_and_an_absent_key_is_not() -> None:
    made = EMPTY_MAP.put("a", None)
    assert "a" in made
    assert made.get("a", 5) is None
    assert made.get("b", 5) == 5
    with pytest.raises(KeyError):
        made["b"]


def test_containers_can_be_keys() -> None:
    key = Vector.of([1, Map.of([("a", 1)])])
    made = Map.of([(key, "found"), ([1, {"a": 2}], "other")])
    assert made[[1, {"a": 1}]] == "found"
    assert made[(1, {"a": 2})] == "other"


@pytest.mark.parametrize("count", [14, 15, 16, 17, 100])
def test_removing_across_the_border_of_leaf_and_tree(count: int) -> None:
    made = Map.of([(n, n) for n in range(count)])
    for n in range(count):
        made = made.remove(n)
        rest = [(m, m) for m in range(n + 1, count)]
        assert encode(made) == encode(Map.of(rest))
    assert same(made, EMPTY_MAP)


def test_sets_join_with_any_iterable() -> None:
    made = Set.of([1, 2, 3])
    assert same(made | [3, 4], Set.of([1, 2, 3, 4]))
    assert same(made & [3, 4], Set.of([3]))
    assert same(made - [3, 4], Set.of([1, 2]))
    assert same(made ^ [3, 4], Set.of([1, 2, 4]))
    assert Set.of([1]) < made
    assert made > Set.of([1])
    assert made >= Set.of([3, 2, 1])


# --- indexes ---------------------------------------------------------------------------------


def test_keys_with_equal_bytes_are_one_key_and_the_later_cell_stays() -> None:
    made = Index.of([("ab", 1), (b"ab", 2)])
    assert len(made) == 1
    assert made.key_cell("ab") == b"ab"
    for key in ("ab", b"ab", Keyword("ab"), Symbol("ab")):
        assert made[key] == 2
        assert made.put(key, 3).key_cell(b"ab") == key
    assert made.key_cell("other") is None


def test_only_32_bytes_of_a_key_count() -> None:
    long, longer = b"k" * 32, b"k" * 33
    made = Index.of([(long, 1), (longer, 2)])
    assert len(made) == 1
    assert made.key_cell(long) == longer
    assert "k" * 5000 in made
    assert key_bytes("é" * 40) == ("é" * 16).encode()


def test_numbers_are_keys_by_their_eight_bytes() -> None:
    made = Index.of([(Address(1), "a"), (Extension(3, 2), "b")])
    assert made[(1).to_bytes(8, "big")] == "a"
    assert made[Address(2)] == "b"


def test_an_index_is_ordered_by_bytes_a_prefix_first() -> None:
    keys = [b"\x12\x34", b"\x12", b"", b"\x13", b"\x02", b"\x12\x34\x00"]
    assert list(Index.of([(key, None) for key in keys])) == sorted(keys)


@pytest.mark.parametrize("key", [1, None, True, 1.5, EMPTY_VECTOR])
def test_what_is_not_byte_like_is_no_key(key: Value) -> None:
    with pytest.raises(TypeMismatch, match="an index key is"):
        EMPTY_INDEX.put(key, 1)
    assert key not in Index.of([(b"", 1)])
    assert Index.of([(b"", 1)]).get(key, "none") == "none"


# --- records, coded values, syntax -----------------------------------------------------------


@pytest.mark.parametrize("digit", [-1, 16])
def test_digits_are_0_to_15(digit: int) -> None:
    with pytest.raises(UsageError, match="0 to 15"):
        Record(digit, [])
    with pytest.raises(UsageError, match="0 to 15"):
        Coded(digit, 1, 2)


def test_a_long_record_is_a_vector_below_its_tag() -> None:
    record = Record(5, range(40))
    assert encode(record)[1:] == encode(Vector.of(range(40)))[1:]
    assert list(decode(encode(record))) == list(range(40))  # type: ignore[call-overload]
    assert record[39] == 39
    assert record.get(40, "none") == "none"


def test_metadata_stands_in_full_whatever_its_length() -> None:
    meta = Map.of([(n, "x" * 100) for n in range(5)])
    value = Syntax("v", meta)
    assert encode(value) == b"\x88\x30\x01v" + encode(meta)
    again = decode(encode(value))
    assert isinstance(again, Syntax)
    assert again.meta == meta
    assert again.value == "v"
    with pytest.raises(TypeMismatch, match="Map or None"):
        Syntax(1, [1])


# --- equality --------------------------------------------------------------------------------


def test_cells_are_equal_by_value_and_unequal_to_anything_else() -> None:
    assert Vector.of([1, 2]) == Vector.of([1]).append(2)
    assert Vector.of([1]) != List.of([1])
    assert Vector.of([1]) == [1]
    assert Map.of({"a": 1}) == {"a": 1}
    assert Vector.of([1]) != [True]
    for stranger in (object(), object, 3j, {"a": object()}):
        assert stranger != EMPTY_VECTOR
        assert operator.ne(EMPTY_MAP, stranger)
        assert not operator.eq(EMPTY_MAP, stranger)


def test_cells_can_be_kept_in_python_sets() -> None:
    assert len({Vector.of([1]), Vector.of([1]), Vector.of([2])}) == 2
    assert hash(Map.of({"a": 1})) == hash(Map.of([("a", 1)]))


def test_values_of_a_container_must_be_values() -> None:
    for build in (
        lambda: Vector.of([object()]),
        lambda: EMPTY_VECTOR.append(object()),
        lambda: EMPTY_MAP.put("a", object()),
        lambda: EMPTY_MAP.put(object(), 1),
        lambda: Set.of([3j]),
        lambda: EMPTY_INDEX.put("a", object()),
    ):
        with pytest.raises(TypeMismatch, match="has no cell kind"):
            build()


def test_texts_that_are_no_unicode_are_refused() -> None:
    with pytest.raises(UsageError, match="UTF-8"):
        encode("\ud800")
    with pytest.raises(UsageError, match="UTF-8"):
        value_hash(Vector.of(["\ud800"]))


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 32, 33])
@pytest.mark.parametrize("long", [False, True])
def test_a_class_makes_what_its_bulk_builder_makes(count: int, long: bool) -> None:
    items: list[object] = [str(i) * (50 if long else 1) for i in range(count)]
    pairs = [(item, item) for item in items]
    made: list[tuple[Value, Value]] = [
        (Vector(items), Vector.of(items)),
        (List(items), List.of(items)),
        (Set(items), Set.of(items)),
        (Map(pairs), Map.of(pairs)),
        (Index(pairs), Index.of(pairs)),
    ]
    for one, other in made:
        assert encode(one) == encode(other)
        assert value_hash(one) == value_hash(other)
    assert list(Set(items)) == list(Set.of(items))
    assert sorted(Map(pairs).items()) == sorted(pairs)
    assert list(Vector(items)) == items
    assert list(List(items)) == items


def test_an_index_of_one_vector_that_was_read_is_that_of_a_new_vector() -> None:
    new = Vector(["text", 7])
    read = decode(encode(new))
    wanted = encode(Index.of({"key": new}))
    for made in (Index({"key": read}), Index.of({"key": read}), EMPTY_INDEX.put("key", read)):
        assert encode(made) == wanted
        assert made["key"] == new
        assert encode(made.put("other", read).remove("other")) == wanted
