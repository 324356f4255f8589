"""Changes: paths of every kind, and nothing touched that is shared."""

from __future__ import annotations

import pytest

from datalattice.cells import (
    ABSENT,
    Index,
    Keyword,
    Map,
    Record,
    Set,
    Signed,
    Value,
    Vector,
    Work,
    arrivals,
    arriving_names,
    changes,
    decode,
    encode,
    references,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.errors import WorkExceeded
from datalattice.limits import WORK_LIMITS
from datalattice.store import MemoryStore
from datalattice.testing.cells_kit import CellDict

KEYS = KeyPair(bytes(32))
OTHER = KeyPair(bytes([1]) * 32)
TINY = WORK_LIMITS._replace(start=500)


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (1, 1, []),
        (None, None, []),
        (1, 2, [((), 1, 2)]),
        (1, 1.0, [((), 1, 1.0)]),
        (Map.of({"a": 1, "b": 2}), Map.of({"a": 1, "b": 3}), [(("b",), 2, 3)]),
        (Map.of({"a": 1}), Map.of({}), [(("a",), 1, ABSENT)]),
        (Map.of({}), Map.of({"a": None}), [(("a",), ABSENT, None)]),
        (Map.of({}), Index.of({}), [((), Map.of({}), Index.of({}))]),
        (Index.of({"a": Map.of({"b": 1})}), Index.of({"a": Map.of({})}), [(("a", "b"), 1, ABSENT)]),
        (Vector.of([1, 2]), Vector.of([1, 3, 4]), [((1,), 2, 3), ((2,), ABSENT, 4)]),
        (Set.of([1, 2]), Set.of([2]), [((1,), 1, ABSENT)]),
        (Set.of([]), Set.of(["x"]), [(("x",), ABSENT, "x")]),
        (
            Index.of({"k" * 32 + "old": 1, "z": 1}),
            Index.of({"k" * 32 + "new": 1, "z": 1}),
            [(("k" * 32 + "old",), 1, ABSENT), (("k" * 32 + "new",), ABSENT, 1)],
        ),
        (Record(1, [5, 6]), Record(1, [5, 7]), [((1,), 6, 7)]),
        (Record(1, [5]), Record(2, [5]), [((), Record(1, [5]), Record(2, [5]))]),
    ],
)
def test_what_differs_is_named_by_its_path(
    before: Value, after: Value, wanted: list[object]
) -> None:
    assert list(changes(before, after)) == wanted
    back = [(path, b, a) for path, a, b in changes(after, before)]
    assert sorted(back, key=repr) == sorted(wanted, key=repr)


def test_a_signed_value_is_entered_and_its_signature_counts_where_nothing_else_does() -> None:
    a, b = Signed.sign(KEYS, Vector.of([1])), Signed.sign(KEYS, Vector.of([1, 2]))
    assert list(changes(a, b)) == [((Keyword("value"), 1), ABSENT, 2)]
    other = Signed.sign(OTHER, Vector.of([1]))
    assert [path for path, _, _ in changes(a, other)] == [
        (Keyword("public-key"),),
        (Keyword("signature"),),
    ]
    forged = Signed(KEYS.public_key, bytes(64), Vector.of([1]))
    assert [path for path, _, _ in changes(a, forged)] == [(Keyword("signature"),)]


def test_shared_subtrees_are_not_loaded() -> None:
    store = MemoryStore()
    deep = Map.of({n: Vector.of([n, "text " * 60]) for n in range(20_000)})
    before = store.commit(Map.of({"deep": deep, "other": 1})).root_hash
    root = store.load(before)
    assert isinstance(root, Map)
    inner = root["deep"]
    assert isinstance(inner, Map)
    after = store.commit(root.put("deep", inner.put(17, Vector.of(["new"])))).root_hash
    loads: list[bytes] = []

    class Counting(MemoryStore):
        def get_encoding(self, hash: bytes, *, verify: bool = True) -> bytes | None:
            loads.append(hash)
            return super().get_encoding(hash, verify=verify)

    counting = Counting(cache_bytes=0)
    counting._encodings = store._encodings
    found = list(changes(counting.load(before), counting.load(after)))
    assert [path for path, _, _ in found] == [("deep", 17, 0), ("deep", 17, 1)]
    assert len(loads) < 40, "the paths to what differs, of both sides"


def test_long_chains_take_no_stack() -> None:
    a: Value = 1
    b: Value = 2
    for _ in range(3_000):
        a, b = Vector.of([a]), Vector.of([b])
    ((path, mine, theirs),) = changes(a, b)
    assert (len(path), mine, theirs) == (3_000, 1, 2)
    assert value_hash(a) != value_hash(b)


@pytest.mark.parametrize("kind", [Map, Index])
def test_arriving_names_lead_to_values_and_load_none(kind: type[Map | Index]) -> None:
    long, longer = Vector.of(["x" * 200]), Vector.of(["y" * 200])
    entries: dict[str, Value] = {f"key {n}": "z" * 200 for n in range(40)}
    before = kind.of({**entries, "short": 1, "gone": long})
    after = kind.of({**entries, "short": Vector.of([long]), "new": longer})
    store = MemoryStore()
    store.commit(after)
    values = {value_hash(long), value_hash(longer), value_hash(Vector.of([long]))}
    for hash in values:
        store._encodings.pop(hash, None)
    known = store.get_encoding(value_hash(after))
    assert known is not None
    found = dict(arriving_names(before, kind_of(decode(known, store))))
    assert found == {
        "short": references(encode(Vector.of([long]))),
        "new": references(encode(longer)),
    }


def database(kind: type[Map | Index], keys: range, value: int = 1) -> Map | Index:
    return kind.of({f"key {n}": Vector.of([n, value]) for n in keys})


@pytest.mark.parametrize("kind", [Map, Index])
@pytest.mark.parametrize(
    ("own", "other"),
    [(0, 0), (0, 5), (5, 0), (5, 9), (9, 40), (300, 3), (300, 200), (200, 900)],
)
def test_arrivals_are_what_the_other_has_and_own_has_not(
    kind: type[Map | Index], own: int, other: int
) -> None:
    mine = database(kind, range(own))
    theirs = kind_of(
        CellDict().kept(database(kind, range(other // 2, other // 2 + other), other % 3))
    )
    wanted = {key: (mine.get(key), value) for key, value in theirs.items()}
    found = {key: (held, value) for key, held, value in arrivals(mine, theirs)}
    assert found == {key: pair for key, pair in wanted.items() if pair[0] != pair[1]}


@pytest.mark.parametrize("kind", [Map, Index])
def test_arrivals_are_paid_for_by_what_the_other_has(kind: type[Map | Index]) -> None:
    few = kind_of(CellDict().kept(database(kind, range(3), 2)))
    costs = []
    for count in (100, 3_000):
        work = Work()
        assert (
            len(list(arrivals(kind_of(CellDict().kept(database(kind, range(count)))), few, work)))
            == 3
        )
        costs.append(work.spent)
    assert 0 < costs[0] <= costs[1] < 2 * costs[0]
    with pytest.raises(WorkExceeded):
        list(
            arrivals(
                few, kind_of(CellDict().kept(database(kind, range(3_000)))), Work(TINY, earn_max=0)
            )
        )


def kind_of(value: Value) -> Map | Index:
    assert isinstance(value, (Map, Index))
    return value
