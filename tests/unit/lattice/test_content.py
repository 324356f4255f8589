"""Content stores: unions that a wrong key cannot poison."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, strategies as st

from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    Keyword,
    Value,
    Work,
    branch_hashes,
    encode,
    same,
    value_hash,
)
from datalattice.crypto import sha3_256
from datalattice.errors import BadFormat, WorkExceeded
from datalattice.lattice import CASLattice, DataLattice, EntryDropped, MergeContext, MergeNotice
from datalattice.limits import WORK_LIMITS
from datalattice.store import MemoryStore
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


BLOBS = st.binary(max_size=20) | st.binary(min_size=141, max_size=200)
KEYS = st.binary(max_size=33) | st.sampled_from(["text", Keyword("k"), b"\x01" * 32])


@given(
    st.lists(BLOBS | st.none(), max_size=60),
    st.lists(st.tuples(KEYS, BLOBS | st.none()), max_size=2),
    st.lists(BLOBS, max_size=30),
)
def test_a_stored_tree_is_merged_as_one_in_memory_is(
    values: list[Value], wrong: list[tuple[Value, Value]], own: list[Value]
) -> None:
    made = Index.of([*((value_hash(value), value) for value in values), *wrong])
    with MemoryStore() as store:
        store.commit(made)
        there = store.root()
        base = stored(*own, *[value for value in values[::3] if value is not None])
        assert same(DATA.merge(base, there), DATA.merge(base, made))
        assert same(DATA.merge(EMPTY_INDEX, there), DATA.merge(EMPTY_INDEX, made))


def many(count: int) -> Index:
    return stored(*[number.to_bytes(2, "big") * 100 for number in range(count)])


def test_entries_under_their_own_hash_are_accepted_without_a_cell_for_each() -> None:
    with MemoryStore() as store:
        store.commit(many(2_000))
        there = store.root()
        assert isinstance(there, Index)
        joined: list[Value] = []

        def join(key: Value, _own: Value, other: Value, _has: bool, _had: bool) -> Value:
            joined.append(key)
            return other

        assert EMPTY_INDEX.merge_with(there, join, addressed=True) is there
        assert there._kids is None
        assert joined == []
        assert EMPTY_INDEX.merge_with(there, join) is there
        assert len(joined) == 2_000


def test_a_stored_tree_costs_the_work_that_its_entries_cost() -> None:
    with MemoryStore() as store:
        store.commit(many(300))
        there = store.root()
        assert isinstance(there, Index)
        addressed, each = Work(), Work()
        EMPTY_INDEX.merge_with(there, _second, addressed=True, work=addressed)
        list(EMPTY_INDEX.differences(there, work=each))
        assert addressed.spent == each.spent + 300 * WORK_LIMITS.joined
        little = Work(WORK_LIMITS._replace(start=each.spent), earn_max=0)
        with pytest.raises(WorkExceeded):
            EMPTY_INDEX.merge_with(there, _second, addressed=True, work=little)


def _second(_key: Value, _own: Value, other: Value, _has: bool, _had: bool) -> Value:
    return other


def planted(*changes: tuple[bytes, bytes]) -> Value:
    """Return a stored tree, at whose top some bytes are replaced by others."""
    tree = many(300)
    store = MemoryStore()
    store.commit(tree)
    data = encode(tree)
    for old, new in changes:
        assert old in data
        data = data.replace(old, new, 1)
    hash = sha3_256(data)
    store.put_encodings([(hash, data)])  # the store believes it
    return store.load(hash)


def test_a_stored_tree_that_is_not_canonical_is_refused() -> None:
    data = encode(many(300))
    first, second = branch_hashes(data)[:2]
    assert data[:3] == b"\x84\x82\x2c"
    with pytest.raises(BadFormat, match="do not add up"):
        DATA.merge(EMPTY_INDEX, planted((b"\x84\x82\x2c", b"\x84\x82\x2d")))
    with pytest.raises(BadFormat, match="under digits that are not its own"):
        DATA.merge(EMPTY_INDEX, planted((first, second)))
