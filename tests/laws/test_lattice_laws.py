"""Laws of every lattice type, on states of their own making and on foreign states of any kind."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from datalattice.cells import (
    Index,
    Keyword,
    Map,
    Set,
    Signed,
    Value,
    Vector,
    same,
    to_cell,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.lattice import (
    LOCAL_LATTICE,
    P2P,
    TIMESTAMP,
    CASLattice,
    CompareLattice,
    DataLattice,
    FunctionLattice,
    IndexLattice,
    JSONIndexLattice,
    JSONLattice,
    KeyedLattice,
    Lattice,
    LWPLattice,
    LWWLattice,
    MapLattice,
    MaxLattice,
    MergeContext,
    MinLattice,
    OwnerForked,
    OwnerLattice,
    SetLattice,
    SignedLattice,
    StringKeyedLattice,
    TupleLattice,
    VectorLattice,
    root_lattice,
)
from datalattice.testing.lattice_kit import (
    check_foreign_merge,
    check_joins_rise,
    check_lattice,
    check_order,
    observed,
)
from datalattice.testing.strategies import index_keys, map_keys, plain_scalars, values

Strategy = st.SearchStrategy[Value]
KEYS = [KeyPair(bytes([n]) * 32) for n in range(1, 4)]
RULES = MergeContext(verifier=lambda _owner, signer: signer in {k.public_key for k in KEYS[:2]})


def tens(value: Value) -> int:
    return value // 10 if isinstance(value, int) else -1


def by_tens(a: Value, b: Value) -> int:
    return tens(a) - tens(b)


def larger(a: Value, b: Value) -> Value:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else a


# --- states -----------------------------------------------------------------------------------

SOME_KEYS = st.sampled_from(["a", "b", "c", 1, True, 1.0, Keyword("a"), b"a"])
NUMBERS = st.integers(0, 5)
FEW = st.sampled_from(["x", "y", 1, True, 1.0, None, b"z"])
SMALL_SETS = st.lists(FEW, max_size=4).map(Set.of)


def mapping(elements: Strategy, keys: Strategy = SOME_KEYS, size: int = 5) -> Strategy:
    return st.lists(st.tuples(keys, elements), max_size=size).map(Map.of)


def many(elements: Strategy) -> Strategy:
    """Return maps that are trees: their entries differ in a few places."""
    base = [(f"key-{n}", n % 3) for n in range(60)]
    changes = st.lists(
        st.tuples(st.integers(0, 80).map(lambda n: f"key-{n}"), elements), max_size=4
    )
    return changes.map(lambda new: Map.of([*base, *new]))


def indexed(elements: Strategy, keys: Strategy | None = None) -> Strategy:
    pairs = st.tuples(index_keys() if keys is None else keys, elements)
    return st.lists(pairs, max_size=6).map(Index.of)


def or_nil(elements: Strategy) -> Strategy:
    return st.one_of(st.none(), elements)


STAMPED = st.one_of(
    st.builds(
        lambda stamp, data: Map.of([(TIMESTAMP, stamp), (Keyword("data"), data)]), NUMBERS, FEW
    ),
    st.builds(lambda stamp: Map.of([(TIMESTAMP, stamp)]), NUMBERS),
    st.sampled_from(["bare", 7, Map.of([(TIMESTAMP, "no time")]), Index.of([(TIMESTAMP, 9)])]),
)
TIMED_NUMBERS = st.builds(
    lambda stamp, fields: fields.put(TIMESTAMP, stamp) if isinstance(fields, Map) else fields,
    NUMBERS,
    mapping(NUMBERS),
)
LEAVES = st.sampled_from([0, True, "s", Vector.of([1])])
TEXT = st.sampled_from(["a", "b", "c"])
NODES = st.one_of(LEAVES, mapping(LEAVES, TEXT, 2), indexed(LEAVES, TEXT))
JSON = st.one_of(
    NODES,
    mapping(or_nil(NODES), st.just("a"), 1),
    mapping(or_nil(mapping(or_nil(NODES), TEXT, 2)), TEXT, 2),
    indexed(or_nil(NODES), TEXT),
)
TIMED_JSON = st.builds(
    lambda stamp, fields: fields.put(TIMESTAMP, stamp) if isinstance(fields, Map) else fields,
    NUMBERS,
    JSON,
)
CONTENT = st.lists(plain_scalars().filter(lambda value: value is not None), max_size=6).map(
    lambda items: Index.of([(value_hash(item), item) for item in items])
)


def chain(start: list[int], steps: int) -> Value:
    """Return the value an owner has after `steps` writes: each adds to the one before."""
    return Map.of([("n", Set.of(start[:steps]))])


def owned(signers: list[KeyPair]) -> Strategy:
    """Return owner maps in which each owner's values form a chain."""
    history = [5, 3, 9, 1]
    entry = st.tuples(st.sampled_from(signers), st.integers(1, 4))
    return st.lists(entry, max_size=4).map(
        lambda entries: Map.of(
            [(key.public_key, Signed.sign(key, chain(history, steps))) for key, steps in entries]
        )
    )


def owned_registers(signers: list[KeyPair], wrap: bool) -> Strategy:
    """Return owner maps of registers; a higher time is a later link of the owner's chain."""

    def value(stamp: int) -> Value:
        info = Map.of([(TIMESTAMP, stamp)])
        return Map.of([(Keyword("slot"), info)]) if wrap else info

    entry = st.tuples(st.sampled_from(signers), st.integers(1, 4))
    return st.lists(entry, max_size=3).map(
        lambda entries: Map.of(
            [(key.public_key, Signed.sign(key, value(stamp))) for key, stamp in entries]
        )
    )


def keyed(fields: dict[str, Strategy]) -> Strategy:
    """Return indexes that have some of the fields."""
    options = {Keyword(name): element for name, element in fields.items()}
    return st.fixed_dictionaries({}, optional=options).map(lambda found: Index.of(found.items()))


LAWFUL: dict[str, tuple[Lattice, Strategy]] = {
    "set": (SetLattice(), SMALL_SETS),
    "max": (MaxLattice(), st.integers(0, 2**70)),
    "max-any": (MaxLattice(zero=None), st.integers(-(2**70), 2**70)),
    "min": (MinLattice(), st.integers(-(2**70), 2**70)),
    "lww": (LWWLattice(), STAMPED),
    "lww-own-time": (LWWLattice(tens), st.integers(0, 40)),
    "lwp": (LWPLattice(MapLattice(MaxLattice())), TIMED_NUMBERS),
    "compare": (CompareLattice(by_tens), st.integers(0, 40)),
    "function": (FunctionLattice(larger), st.integers(0, 9)),
    "map-max": (MapLattice(MaxLattice()), mapping(or_nil(NUMBERS))),
    "map-set": (MapLattice(SetLattice()), mapping(or_nil(SMALL_SETS))),
    "map-lww": (MapLattice(LWWLattice()), mapping(or_nil(STAMPED), map_keys())),
    "map-tree": (MapLattice(MaxLattice()), many(or_nil(NUMBERS))),
    "map-map": (
        MapLattice(MapLattice(MaxLattice())),
        mapping(or_nil(mapping(or_nil(NUMBERS), TEXT, 3)), TEXT, 3),
    ),
    "index-max": (IndexLattice(MaxLattice()), indexed(or_nil(NUMBERS))),
    "index-set": (IndexLattice(SetLattice()), indexed(SMALL_SETS)),
    "vector-max": (
        VectorLattice(MaxLattice()),
        st.lists(or_nil(NUMBERS), max_size=40).map(Vector.of),
    ),
    "vector-set": (VectorLattice(SetLattice()), st.lists(SMALL_SETS, max_size=5).map(Vector.of)),
    "tuple": (
        TupleLattice(MaxLattice(), SetLattice(), LWWLattice()),
        st.builds(lambda a, b, c: Vector.of([a, b, c]), NUMBERS, SMALL_SETS, or_nil(STAMPED)),
    ),
    "keyed": (
        KeyedLattice({"n": MaxLattice(), "s": SetLattice(), "m": MapLattice(LWWLattice())}),
        keyed({"n": or_nil(NUMBERS), "s": SMALL_SETS, "m": mapping(STAMPED, TEXT, 3)}),
    ),
    "string-keyed": (
        StringKeyedLattice({"n": MaxLattice(), "s": SetLattice()}),
        st.fixed_dictionaries({}, optional={"n": or_nil(NUMBERS), "s": SMALL_SETS}).map(
            lambda found: Map.of(found.items())
        ),
    ),
    "json": (JSONLattice(), JSON),
    "json-index": (JSONIndexLattice(), JSON),
    "data": (DataLattice(), CONTENT),
    "cas": (CASLattice(), indexed(or_nil(FEW))),
    "signed": (
        SignedLattice(MapLattice(SetLattice())),
        st.integers(1, 4).map(lambda n: Signed.sign(KEYS[0], chain([5, 3, 9, 1], n))),
    ),
    "owner": (OwnerLattice(MapLattice(SetLattice())), owned(KEYS)),
    "local": (LOCAL_LATTICE, owned_registers(KEYS, wrap=True)),
    "p2p": (
        P2P,
        owned_registers(KEYS, wrap=False).map(lambda nodes: Index.of([(Keyword("nodes"), nodes)])),
    ),
    "root": (
        root_lattice(),
        keyed(
            {
                "data": CONTENT,
                "local": owned_registers(KEYS, wrap=True),
                "p2p": keyed({"nodes": owned_registers(KEYS, wrap=False)}),
            }
        ),
    ),
}

# Hypothesis prepares each strategy that a test builds: these are built once, not by each example.
OWN = {name: or_nil(states) for name, (_, states) in LAWFUL.items()}
SEVERAL = {name: st.lists(states, min_size=3, max_size=3) for name, (_, states) in LAWFUL.items()}
FOREIGN = st.one_of(values(6), *[states for _, states in LAWFUL.values()])
SEVERAL_FOREIGN = {
    name: st.lists(st.one_of(FOREIGN, states), min_size=3, max_size=4)
    for name, (_, states) in LAWFUL.items()
}


@pytest.mark.parametrize("name", LAWFUL)
@given(data=st.data())
def test_laws(name: str, data: st.DataObject) -> None:
    check_lattice(LAWFUL[name][0], data.draw(SEVERAL[name]))


ORDERED = [name for name in LAWFUL if LAWFUL[name][0].has_order()]


def test_all_lattices_have_an_order_but_given_functions_and_what_is_owned() -> None:
    unordered = set(LAWFUL) - set(ORDERED)
    assert unordered == {"compare", "function", "owner", "local", "p2p", "signed", "root"}


@pytest.mark.parametrize("name", ORDERED)
@given(data=st.data())
def test_forked_values_are_in_a_total_order(name: str, data: st.DataObject) -> None:
    lattice, some = LAWFUL[name][0], data.draw(SEVERAL[name])
    joined = [lattice.merge(some[0], some[1])]
    check_order(lattice, [*some, *joined])
    check_joins_rise(lattice, [*some, *joined])


@given(st.lists(TIMED_JSON, min_size=3, max_size=3))
def test_last_write_preferred_json_has_a_total_order(states: list[Value]) -> None:
    check_order(LWPLattice(JSONLattice()), states)


@pytest.mark.parametrize("name", ORDERED)
@given(data=st.data())
def test_whatever_was_signed_is_in_the_order_too(name: str, data: st.DataObject) -> None:
    check_order(LAWFUL[name][0], data.draw(SEVERAL_FOREIGN[name]))


def test_malformed_integers_are_in_the_order_of_their_merge() -> None:
    check_order(MaxLattice(0), [Set.of([]), *(-number for number in range(1, 100)), 3])


@given(st.lists(TIMED_JSON, min_size=2, max_size=3))
def test_last_write_preferred_json_is_commutative_and_idempotent(states: list[Value]) -> None:
    # One time stands for parts of different age: associativity is outside its laws.
    check_lattice(LWPLattice(JSONLattice()), states, associative=False)


@given(st.lists(st.lists(FEW, max_size=4), min_size=3, max_size=3))
def test_signed_laws_for_concurrent_values_when_the_context_holds_the_key(
    states: list[list[Value]],
) -> None:
    cells = [Signed.sign(KEYS[0], Set.of(items)) for items in states]
    check_lattice(SignedLattice(SetLattice()), cells, MergeContext(key_pair=KEYS[0]))
    check_lattice(SignedLattice(SetLattice(), KEYS[0]), cells)


@given(st.lists(st.lists(FEW, max_size=4), min_size=3, max_size=3))
def test_owner_laws_for_concurrent_values_when_the_context_holds_the_key(
    states: list[list[Value]],
) -> None:
    maps = [Map.of([(KEYS[0].public_key, Signed.sign(KEYS[0], Set.of(s)))]) for s in states]
    check_lattice(OwnerLattice(SetLattice()), maps, MergeContext(key_pair=KEYS[0]))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5)), min_size=3, max_size=3))
def test_several_authorised_signers_of_one_owner_agree(states: list[tuple[int, int]]) -> None:
    """The inner values obey the laws; equal inner values lead to one cell."""
    lattice = OwnerLattice(MaxLattice())
    maps = [Map.of([("did:web:x", Signed.sign(KEYS[who], n))]) for who, n in states]
    check_lattice(lattice, maps, RULES)


# --- foreign states ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAWFUL)
@given(data=st.data())
def test_any_foreign_value_can_be_merged_and_changes_nothing_twice(
    name: str, data: st.DataObject
) -> None:
    own = data.draw(OWN[name])
    # A function joins what it is made for.
    foreign = data.draw(st.integers() if name == "function" else FOREIGN)
    check_foreign_merge(LAWFUL[name][0], own, foreign)


BAD = st.sampled_from(["bad", 2.5, Set.of([1]), -4])
DIRTY: dict[str, tuple[Lattice, Strategy]] = {
    "map": (MapLattice(MaxLattice()), mapping(st.one_of(NUMBERS, BAD))),
    "index": (IndexLattice(MaxLattice()), indexed(st.one_of(NUMBERS, BAD), TEXT)),
    "vector": (
        VectorLattice(MaxLattice()),
        st.lists(st.one_of(NUMBERS, BAD), max_size=6).map(Vector.of),
    ),
    "tuple": (
        TupleLattice(MaxLattice(), SetLattice()),
        st.builds(lambda a, b: Vector.of([a, b]), st.one_of(NUMBERS, BAD), st.one_of(BAD)),
    ),
    "keyed": (
        KeyedLattice({"n": MaxLattice(), "s": SetLattice()}),
        keyed({"n": st.one_of(NUMBERS, BAD), "s": st.one_of(SMALL_SETS, BAD), "z": FEW}),
    ),
    "data": (DataLattice(), indexed(FEW)),
    "map-map": (
        MapLattice(MapLattice(MaxLattice())),
        mapping(st.one_of(BAD, mapping(st.one_of(NUMBERS, BAD), TEXT, 3)), TEXT, 3),
    ),
}

SEVERAL_DIRTY = {
    name: st.lists(states, min_size=3, max_size=3) for name, (_, states) in DIRTY.items()
}


@pytest.mark.parametrize("name", DIRTY)
@given(data=st.data())
def test_what_is_left_of_foreign_states_obeys_the_laws(name: str, data: st.DataObject) -> None:
    """Cleaning is merging into nothing; it makes no difference whether it happens before."""
    lattice, dirty = DIRTY[name][0], data.draw(SEVERAL_DIRTY[name])
    clean = [lattice.merge(None, state) for state in dirty]
    check_lattice(lattice, clean)
    for own in clean:
        for raw, cleaned in zip(dirty, clean, strict=True):
            assert same(lattice.merge(own, raw), lattice.merge(own, cleaned))


@given(st.lists(st.sets(st.integers(0, 6)), min_size=2, max_size=4), st.integers(0, 3))
def test_a_fork_of_an_owner_ends_when_the_owner_merges(writes: list[set[int]], order: int) -> None:
    """Relays keep what they have and report; the owner signs the join; then all agree."""
    lattice, key = OwnerLattice(SetLattice()), KEYS[0]
    states = [Map.of([(key.public_key, Signed.sign(key, to_cell(w)))]) for w in writes]
    relay: Value = None
    reports: list[object] = []
    context = observed(MergeContext(key_pair=KEYS[1]), reports)  # type: ignore[arg-type]
    for state in states[order % len(states) :] + states[: order % len(states)]:
        relay = lattice.merge(relay, state, context)
    assert all(isinstance(report, OwnerForked) for report in reports)
    owner: Value = None
    for state in states:
        owner = lattice.merge(owner, state, MergeContext(key_pair=key))
    joined = to_cell(set().union(*writes))
    assert isinstance(owner, Map)
    assert same(owner[key.public_key], Signed.sign(key, joined))
    assert same(lattice.merge(relay, owner, context), owner)
    assert lattice.merge(owner, relay, context) is owner
