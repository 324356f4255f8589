"""Maps, indexes, vectors and tuples: entry by entry, and nothing rebuilt without need."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    EMPTY_VECTOR,
    Index,
    Keyword,
    Map,
    Set,
    Value,
    Vector,
    decode,
    decode_message,
    encode,
    encode_message,
    same,
    to_cell,
    value_hash,
)
from datalattice.errors import MissingData
from datalattice.lattice import (
    EMPTY_CONTEXT,
    EntryDropped,
    FunctionLattice,
    IndexLattice,
    Lattice,
    LWWLattice,
    MapLattice,
    MaxLattice,
    MergeContext,
    MergeNotice,
    SetLattice,
    TupleLattice,
    VectorLattice,
)
from datalattice.testing.lattice_kit import check_paths, observed

MAP = MapLattice(MaxLattice())
INDEX = IndexLattice(MaxLattice())
VECTOR = VectorLattice(MaxLattice())
TUPLE = TupleLattice(MaxLattice(), SetLattice())


Kind = type[Map] | type[Index]
Maker = Callable[[Lattice], Lattice]


class Counting(Lattice):
    """A max register that notes what it was asked to join, and in which context."""

    def __init__(self) -> None:
        self.calls: list[tuple[Value, Value, tuple[Value, ...]]] = []

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        self.calls.append((own, other, context.path))
        return MaxLattice().merge(own, other)

    def check_foreign(self, value: Value) -> bool:
        return isinstance(value, int)


def reported(lattice: Lattice, own: Value, other: Value) -> tuple[Value, list[MergeNotice]]:
    reports: list[MergeNotice] = []
    return lattice.merge(own, other, observed(MergeContext(path=("at",)), reports)), reports


@pytest.mark.parametrize(
    ("lattice", "zero", "others"),
    [
        (MAP, EMPTY_MAP, [EMPTY_INDEX, EMPTY_VECTOR, 1, "x", Set.of([])]),
        (INDEX, EMPTY_INDEX, [EMPTY_MAP, EMPTY_VECTOR, 1, b"x"]),
        (VECTOR, EMPTY_VECTOR, [EMPTY_MAP, EMPTY_INDEX, 1, 2.5]),
        (TUPLE, Vector.of([0, Set.of([])]), [EMPTY_MAP, Vector.of([1]), Vector.of([1, 2, 3])]),
    ],
)
def test_another_kind_is_refused_and_a_wrong_own_value_gives_way(
    lattice: Lattice, zero: Value, others: list[Value]
) -> None:
    assert same(lattice.zero(), zero)
    assert lattice.check_foreign(zero)
    assert not lattice.check_foreign(None)
    for other in others:
        assert not lattice.check_foreign(other)
        assert reported(lattice, zero, other) == (zero, [EntryDropped(("at",))])
        assert reported(lattice, None, other) == (None, [EntryDropped(("at",))])
    assert lattice.merge("broken", zero) is zero


@pytest.mark.parametrize("kind", [Map, Index])
def test_only_entries_that_differ_are_joined_and_they_know_their_path(kind: Kind) -> None:
    base = [(f"k{n}", n) for n in range(100)]
    child = Counting()
    lattice: Lattice = MapLattice(child) if kind is Map else IndexLattice(child)
    own, other = kind.of(base), kind.of(base)
    assert lattice.merge(own, other) is own
    assert child.calls == []
    own, other = own.put("k7", 700), other.put("k8", 800).put("new", 1).put("bad", "x")
    context = MergeContext(path=("root",))
    merged = lattice.merge(own, other, context)
    assert same(merged, own.put("k8", 800).put("new", 1))
    assert sorted(child.calls, key=str) == sorted(
        [
            (700, 7, ("root", "k7")),
            (8, 800, ("root", "k8")),
            (None, 1, ("root", "new")),
        ],
        key=str,
    )


@pytest.mark.parametrize(("lattice", "kind"), [(MAP, Map), (INDEX, Index)])
def test_bad_entries_are_dropped_one_by_one(lattice: Lattice, kind: Kind) -> None:
    own = kind.of([("a", 1), ("b", 2)])
    other = kind.of([("a", "bad"), ("b", 5), ("c", -1), ("d", 4)])
    merged, reports = reported(lattice, own, other)
    assert same(merged, kind.of([("a", 1), ("b", 5), ("d", 4)]))
    assert sorted(reports, key=repr) == [EntryDropped(("at", "a")), EntryDropped(("at", "c"))]
    first, _ = reported(lattice, None, other)
    assert same(first, kind.of([("b", 5), ("d", 4)]))


@pytest.mark.parametrize(("lattice", "kind"), [(MAP, Map), (INDEX, Index)])
def test_absent_is_below_nil_and_nil_below_a_value(lattice: Lattice, kind: Kind) -> None:
    absent, nil, value = kind.of([]), kind.of([("a", None)]), kind.of([("a", 0)])
    assert lattice.merge(absent, nil) is nil
    assert lattice.merge(nil, absent) is nil
    assert lattice.merge(nil, value) is value
    assert lattice.merge(value, nil) is value
    assert lattice.merge(None, nil) is nil


@pytest.mark.parametrize(("make", "kind"), [(MapLattice, Map), (IndexLattice, Index)])
def test_a_join_to_nil_takes_the_entry_away(make: Maker, kind: Kind) -> None:
    lattice = make(FunctionLattice(lambda _a, _b: None))
    own, other = kind.of([("a", 1), ("b", 2)]), kind.of([("a", 5)])
    assert same(lattice.merge(own, other), kind.of([("b", 2)]))


def test_keys_that_python_takes_for_equal_are_different_entries() -> None:
    own, other = Map.of([(1, 1), (True, 2)]), Map.of([(1.0, 3), (True, 9)])
    assert same(MAP.merge(own, other), Map.of([(1, 1), (True, 9), (1.0, 3)]))


def test_index_keys_with_equal_bytes_are_one_entry_and_the_greater_key_stays() -> None:
    forms: list[Value] = ["ab", b"ab", Keyword("ab")]
    greatest = max(forms, key=value_hash)
    for a in forms:
        for b in forms:
            merged = INDEX.merge(Index.of([(a, 1)]), Index.of([(b, 2)]))
            assert isinstance(merged, Index)
            assert len(merged) == 1
            assert merged["ab"] == 2
            assert merged.key_cell("ab") == max([a, b], key=value_hash)
    assert greatest in forms


def test_index_keys_with_equal_bytes_and_equal_values_still_agree_on_the_key() -> None:
    a, b = Index.of([("ab", 1)]), Index.of([(Keyword("ab"), 1)])
    assert same(INDEX.merge(a, b), INDEX.merge(b, a))


def test_vectors_join_positions_and_take_the_longer_length() -> None:
    own, other = to_cell([1, 5, 3]), to_cell([4, 2, 6, 7])
    assert same(VECTOR.merge(own, other), to_cell([4, 5, 6, 7]))
    assert same(VECTOR.merge(other, own), to_cell([4, 5, 6, 7]))
    assert VECTOR.merge(other, to_cell([1])) is other


def test_a_bad_position_keeps_own_or_becomes_nil() -> None:
    merged, reports = reported(VECTOR, to_cell([1]), to_cell(["x", "y", 3, "z"]))
    assert same(merged, to_cell([1, None, 3, None]))
    assert reports == [EntryDropped(("at", n)) for n in (0, 1, 3)]


def test_tuples_join_each_position_by_its_own_lattice() -> None:
    own, other = Vector.of([3, Set.of([1])]), Vector.of([9, Set.of([2])])
    assert same(TUPLE.merge(own, other), Vector.of([9, Set.of([1, 2])]))
    covered = Vector.of([1, Set.of([])])
    assert TUPLE.merge(own, covered) is own
    assert TUPLE.merge(covered, own) is own
    assert TUPLE.merge(None, own) is own


def test_tuples_keep_own_positions_past_the_last_and_drop_bad_ones() -> None:
    merged, reports = reported(TUPLE, Vector.of([1, Set.of([]), "extra"]), Vector.of([2, "bad"]))
    assert same(merged, Vector.of([2, Set.of([]), "extra"]))
    assert reports == [EntryDropped(("at", 1))]
    assert same(
        TUPLE.merge(Vector.of([1]), Vector.of([0, Set.of([4])])), Vector.of([1, Set.of([4])])
    )
    emptied = TupleLattice(FunctionLattice(lambda _a, _b: None))
    assert same(emptied.merge(Vector.of([1]), Vector.of([2])), Vector.of([None]))


def test_children_are_found_by_key() -> None:
    assert isinstance(MAP.path("any"), MaxLattice)
    assert isinstance(INDEX.path(b"any"), MaxLattice)
    assert isinstance(VECTOR.path(3), MaxLattice)
    assert VECTOR.path("3") is None
    assert VECTOR.path(True) is None
    assert isinstance(TUPLE.path(1), SetLattice)
    assert TUPLE.path(2) is None
    assert TUPLE.path(-1) is None
    assert TUPLE.path("1") is None
    assert MAP.path("any", "deeper") is None
    assert MAP.path("any", "deeper", "still") is None
    assert MAP.path() is MAP


def test_joins_agree_with_the_children_at_their_paths() -> None:
    deep = MapLattice(IndexLattice(SetLattice()))
    own = Map.of([("x", Index.of([("k", Set.of([1]))]))])
    other = Map.of([("x", Index.of([("k", Set.of([2])), ("l", Set.of([3]))]))])
    check_paths(deep, own, other, [["x"], ["x", "k"], ["x", "l"]])
    check_paths(TUPLE, Vector.of([1, Set.of([2])]), Vector.of([3, Set.of([])]), [[0], [1]])


class Recording:
    """A loader that notes what it was asked for."""

    def __init__(self, cells: dict[bytes, Value]) -> None:
        self.cells = cells
        self.asked: list[bytes] = []

    def load(self, hash: bytes) -> Value:
        self.asked.append(hash)
        if hash not in self.cells:
            raise MissingData([hash])
        return self.cells[hash]


def test_equal_branches_are_not_needed_and_a_missing_one_that_is_needed_is_named() -> None:
    words = ["a" * 100, "b" * 100]
    own = Map.of([("same", Set.of(["x" * 100, *words])), ("n", Set.of(words))])
    other = own.put("n", Set.of(["c" * 100, *words]))
    needed = value_hash(other["n"])
    half = decode(encode(other), Recording({}))
    with pytest.raises(MissingData) as caught:
        MapLattice(SetLattice()).merge(own, half)
    assert caught.value.hashes == (needed,)
    loader = Recording({needed: decode(encode(other["n"]), Recording({}))})
    merged = MapLattice(LWWLattice()).merge(own, decode(encode(other), loader))
    assert isinstance(merged, Map)
    assert set(loader.asked) == {needed}


def test_separately_decoded_values_are_descended_by_hash() -> None:
    base = Map.of([(f"key-{n}", n) for n in range(2_000)])
    child = Counting()
    copy = decode_message(encode_message(base.put("key-5", 99)))
    merged = MapLattice(child).merge(base, copy)
    assert merged is copy
    assert len(child.calls) == 1


@pytest.mark.parametrize(
    "lattice", [MAP, INDEX, VECTOR, TUPLE, MapLattice(IndexLattice(SetLattice()))]
)
def test_containers_can_be_pickled_and_shown(lattice: Lattice) -> None:
    assert repr(pickle.loads(pickle.dumps(lattice))) == repr(lattice)
    assert "Lattice(" in repr(lattice)


@pytest.mark.parametrize("make", [MapLattice, IndexLattice, VectorLattice, TupleLattice])
def test_a_child_that_is_no_lattice_is_refused(make: Maker) -> None:
    with pytest.raises(TypeError, match=r"Lattice.* int$"):
        make(5)  # type: ignore[arg-type]


def test_a_vector_of_more_elements_than_a_join_may_visit_is_dropped_and_reported() -> None:
    parts: dict[bytes, Value] = {}

    class Shelf:
        def load(self, hash: bytes) -> Value:
            return parts[hash]

    node: Value = Vector.of([7] * 16)
    encoding = encode(node)
    for count in ("8200", "a000", "848000", "c08000", "88808000", "8180808000"):  # 16**2 .. 16**7
        parts[value_hash(decode(encoding))] = decode(encoding, Shelf())
        child = encoding if len(encoding) <= 140 else b"\x20" + value_hash(decode(encoding))
        encoding = b"\x80" + bytes.fromhex(count) + child * 16
    huge = decode(encoding, Shelf())
    assert isinstance(huge, Vector)
    assert len(huge) == 16**7
    seen: list[MergeNotice] = []
    own = Vector.of([1])
    assert VECTOR.merge(own, huge, MergeContext(report=seen.append)) is own
    assert seen == [EntryDropped(())]


def test_a_lattice_is_printed_with_the_name_of_its_function() -> None:
    assert repr(MapLattice(LWWLattice())) == "MapLattice(LWWLattice(map_timestamp))"
