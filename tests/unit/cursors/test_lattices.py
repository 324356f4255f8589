"""Lattice cursors: navigation, creation, merging, forking and syncing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    EMPTY_SET,
    Index,
    Keyword,
    Map,
    Set,
    Signed,
    Value,
    same,
    to_cell,
    value_hash,
)
from datalattice.crypto import KeyPair, KeyRing
from datalattice.cursors import Descended, LatticeCursor, RootLattice, SignedCursor
from datalattice.errors import (
    BadSignature,
    NoSigningKey,
    NoSuchPath,
    TypeMismatch,
    UnsupportedOperation,
)
from datalattice.lattice import (
    EMPTY_CONTEXT,
    TIMESTAMP,
    VALUE_KEY,
    IndexLattice,
    KeyedLattice,
    Lattice,
    LWWLattice,
    MapLattice,
    MaxLattice,
    MergeContext,
    MergeNotice,
    OwnerForked,
    OwnerLattice,
    SetLattice,
    SignedLattice,
    verify_did,
)

ALICE, BOB = KeyPair(b"\x01" * 32), KeyPair(b"\x02" * 32)
AS_ALICE = MergeContext(key_pair=ALICE)
A, B, M, O = Keyword("a"), Keyword("b"), Keyword("m"), Keyword("o")  # noqa: E741 - key names
TREE = KeyedLattice(
    {
        "a": KeyedLattice({"b": MaxLattice(), "s": SetLattice()}),
        "m": MapLattice(IndexLattice(LWWLattice())),
        "o": OwnerLattice(MapLattice(SetLattice())),
    }
)


class Hooked(Lattice):
    """A set lattice that lets something happen in the middle of a merge."""

    def __init__(self, hook: Callable[[], object]) -> None:
        self.hook = hook
        self.sets = SetLattice()

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        self.hook()
        return self.sets.merge(own, other, context)

    def zero(self) -> Value:
        return EMPTY_SET

    def check_foreign(self, value: Value) -> bool:
        return self.sets.check_foreign(value)


def add(cursor: LatticeCursor, *items: Value) -> None:
    for item in items:
        cursor.accumulate_and_get(item, with_item)


def with_item(value: Value, item: Value) -> Value:
    found = EMPTY_SET if value is None else value
    assert isinstance(found, Set)
    return found.add(item)


def noting(seen: list[Value], result: object = None) -> Callable[[Value], object]:
    """Return a function that notes its argument and returns it, or `result`."""

    def function(value: Value) -> object:
        seen.append(value)
        return value if result is None else result

    return function


def stamped(stamp: int, data: Value) -> Map:
    return Map.of([(TIMESTAMP, stamp), ("data", data)])


# --- navigation -------------------------------------------------------------------------------


def test_keys_between_signatures_become_one_cursor() -> None:
    root = RootLattice(TREE, None, AS_ALICE)
    cursor = root.path(O, ALICE.public_key, VALUE_KEY, "drive", "deep")
    assert isinstance(cursor, Descended)
    assert cursor._keys == ("drive", "deep")
    signed = cursor._parent
    assert isinstance(signed, SignedCursor)
    owner = signed._base
    assert isinstance(owner, Descended)
    assert owner._keys == (O, ALICE.public_key)
    assert owner._parent is root


def test_the_lattice_goes_along_until_it_ends() -> None:
    root = RootLattice(TREE)
    assert isinstance(root.path(A, B).lattice, MaxLattice)
    assert isinstance(root.path(O, b"k").lattice, SignedLattice)
    assert isinstance(root.path(O, b"k", VALUE_KEY).lattice, MapLattice)
    assert root.path(A, "unknown").lattice is None
    assert root.path(A, "unknown", "deeper").lattice is None
    assert root.path(M, "x", b"k", "inside").lattice is None


def test_cursors_know_where_they_are() -> None:
    context = MergeContext(key_pair=ALICE, path=("above",))
    root = RootLattice(TREE, None, context)
    cursor = root.path("o", ALICE.public_key).path("value", "x")
    assert cursor.context.path == ("above", O, ALICE.public_key, VALUE_KEY, "x")
    assert cursor.context.owner == ALICE.public_key
    assert cursor.context.key_pair is ALICE
    assert cursor.fork().path("y").context.path[-2:] == ("x", "y")
    assert root.path(A).context.owner is None


def test_with_context_sets_it_here_and_not_on_cursors_made_before() -> None:
    root = RootLattice(TREE)
    before = root.path(O, ALICE.public_key, VALUE_KEY)
    assert root.with_context(AS_ALICE) is root
    after = root.path(O, ALICE.public_key, VALUE_KEY)
    assert before.context.key_pair is None
    assert after.context.key_pair is ALICE
    after.set({})
    with pytest.raises(NoSigningKey):
        before.set({"x": 1})
    before.with_context(AS_ALICE).path("x").set(Set.of([1]))
    assert before.context.path == (O, ALICE.public_key, VALUE_KEY)
    assert after.get("x") == Set.of([1])


def test_names_become_canonical_at_keyed_and_signed_levels_only() -> None:
    by_word, by_name = (RootLattice(TREE, None, AS_ALICE) for _ in range(2))
    by_word.path(A, B).set(3)
    by_name.path("a", "b").set(3)
    by_word.path(O, ALICE.public_key, VALUE_KEY, "s").set(Set.of([1]))
    by_name.path("o", ALICE.public_key, "value", "s").set(Set.of([1]))
    by_word.path(M, "a").set(EMPTY_INDEX)
    by_name.path("m", "a").set(EMPTY_INDEX)
    assert same(by_word.get(), by_name.get())
    assert by_name.get(M, Keyword("a")) is None
    by_name.assoc("a", EMPTY_INDEX)
    by_name.assoc_in(4, "a", "b")
    by_word.path(A).set(EMPTY_INDEX)
    by_word.path(A, B).set(4)
    assert same(by_word.get(), by_name.get())


# --- creating ---------------------------------------------------------------------------------


def test_a_write_creates_what_its_lattice_says() -> None:
    root = RootLattice(TREE)
    root.path(A, B).set(3)
    root.path(M, "x", b"\x01").set("leaf")
    assert same(
        root.get(),
        Index.of([(A, Index.of([(B, 3)])), (M, Map.of([("x", Index.of([(b"\x01", "leaf")]))]))]),
    )
    with pytest.raises(NoSuchPath):
        root.path(Keyword("nope"), "x").set(1)
    lenient = RootLattice(TREE, strict=False)
    lenient.assoc(Keyword("plain"), 1)
    with pytest.raises(TypeMismatch):
        lenient.path(Keyword("plain"), "x").set(1)


def test_update_functions_below_a_path_get_the_zero_of_an_absent_value() -> None:
    root = RootLattice(TREE)
    seen: list[Value] = []
    cursor = root.path(A, Keyword("s"))
    assert cursor.get() is None
    cursor.update(noting(seen))
    assert seen == [EMPTY_SET]
    assert root.get() is None
    assert cursor.get_and_update(noting([], {1})) is None
    assert cursor.accumulate_and_get(2, with_item) == Set.of([1, 2])
    assert not root.path(A, B).compare_and_set(0, 1)
    assert root.path(A, B).compare_and_set(None, 1)


def test_roots_and_forks_get_the_real_nil() -> None:
    for cursor in (RootLattice(SetLattice()), RootLattice(SetLattice()).fork()):
        seen: list[Value] = []
        cursor.update(noting(seen, 1))
        assert seen == [None]


# --- merging ----------------------------------------------------------------------------------


def test_merge_joins_with_the_present_value_as_own() -> None:
    root = RootLattice(SetLattice(), {1})
    assert root.merge({2}) == Set.of([1, 2])
    before = root.get()
    assert root.merge({1}) is before
    assert root.get() is before


def test_merge_below_a_path_creates_from_zero() -> None:
    root = RootLattice(TREE)
    root.path(A, B).merge(5)
    root.path(A, B).merge(3)
    assert same(root.get(), Index.of([(A, Index.of([(B, 5)]))]))
    root.path(A, Keyword("s")).merge(None)
    assert same(root.get(), Index.of([(A, Index.of([(B, 5)]))]))


def test_merge_below_the_last_lattice_happens_further_up() -> None:
    root = RootLattice(MapLattice(LWWLattice()), {"x": stamped(1, {"in": 1})})
    older = root.path("x").get()
    assert root.path("x", TIMESTAMP).merge(9) == 9
    assert same(root.get("x"), stamped(9, {"in": 1}))
    assert root.path("x", TIMESTAMP).merge(2) == 9
    assert older == stamped(1, {"in": 1})
    deep = root.path("x", "data").path("in")
    assert deep.lattice is None
    assert deep.merge(5) in {1, 5}


def test_merge_without_any_lattice_is_unsupported() -> None:
    root = RootLattice(None, {"a": {"b": 1}})
    for cursor in (root, root.path("a"), root.path("a", "b"), root.fork()):
        with pytest.raises(UnsupportedOperation):
            cursor.merge({"b": 2})


def test_reports_of_a_merge_below_a_path_start_at_the_root() -> None:
    reports: list[MergeNotice] = []
    context = MergeContext(key_pair=BOB, report=reports.append)
    own, other = (Signed.sign(ALICE, to_cell({"s": {n}})) for n in (1, 2))
    root = RootLattice(TREE, Index.of([(O, Map.of([(ALICE.public_key, own)]))]), context)
    root.path(O, ALICE.public_key).merge(other)
    assert reports == [OwnerForked(ALICE.public_key, (O, ALICE.public_key))]
    assert root.get(O, ALICE.public_key) is max(own, other, key=value_hash)


# --- fork and sync ----------------------------------------------------------------------------


def test_a_fork_is_apart_until_it_syncs_and_hands_over_its_very_object() -> None:
    root = RootLattice(SetLattice(), {1})
    fork = root.fork()
    add(fork, 2)
    add(fork, 3)
    assert root.get() == Set.of([1])
    held = fork.get()
    assert fork.sync() is held
    assert root.get() is held
    assert fork.initial_value == Set.of([1])
    add(fork, 4)
    fork.sync()
    assert root.get() == Set.of([1, 2, 3, 4])


def test_both_sides_news_are_joined() -> None:
    root = RootLattice(SetLattice(), {0})
    first, second = root.fork(), root.fork()
    add(first, 1)
    add(second, 2)
    add(root, 3)
    first.sync()
    assert root.get() == first.get() == Set.of([0, 1, 3])
    second.sync()
    assert root.get() == second.get() == Set.of([0, 1, 2, 3])
    held = root.get()
    assert first.sync() is held
    assert root.get() is held


def test_an_unedited_fork_takes_the_parents_news_and_leaves_its_object() -> None:
    root = RootLattice(SetLattice(), {0})
    fork = root.fork()
    add(root, 1)
    held = root.get()
    assert fork.sync() is held
    assert root.get() is held
    assert fork.get() is held


def test_forks_of_forks_sync_one_level() -> None:
    root = RootLattice(SetLattice(), {0})
    outer = root.fork()
    inner = outer.fork()
    add(inner, 1)
    inner.sync()
    assert outer.get() == Set.of([0, 1])
    assert root.get() == Set.of([0])
    outer.sync()
    assert root.get() == Set.of([0, 1])


def test_a_parent_with_an_equal_value_counts_as_unchanged() -> None:
    root = RootLattice(LWWLattice(), stamped(5, "x"))
    fork = root.fork()
    root.set(stamped(5, "y"))
    root.set(stamped(5, "x"))
    fork.set(stamped(1, "older, and still the fork's edit"))
    fork.sync()
    assert same(root.get(), stamped(1, "older, and still the fork's edit"))


def test_forks_of_an_absent_place_create_it_on_sync() -> None:
    root = RootLattice(TREE)
    fork = root.path(A, Keyword("s")).fork()
    assert fork.get() is None
    fork.sync()
    assert root.get() is None
    add(fork, 1)
    fork.sync()
    assert same(root.get(), Index.of([(A, Index.of([(Keyword("s"), Set.of([1]))]))]))


def test_a_fork_without_a_lattice_overwrites() -> None:
    root = RootLattice(MapLattice(LWWLattice()), {"x": {"y": 1}})
    fork = root.path("x", "y").fork()
    fork.set(2)
    root.path("x", "y").set(3)
    assert fork.sync() == 2
    assert root.get("x", "y") == 2


def test_writes_made_during_a_sync_stay_for_the_next() -> None:
    late: list[Value] = []

    def write_late() -> None:
        while late:
            add(fork.path("s"), late.pop())

    root = RootLattice(MapLattice(Hooked(write_late)), {"s": {0}})
    fork = root.fork()
    add(fork.path("s"), 1)
    add(root.path("s"), 2)
    late.append(9)
    synced = fork.sync()
    assert same(synced, to_cell({"s": {0, 1, 2}}))
    assert same(root.get(), to_cell({"s": {0, 1, 2}}))
    assert same(fork.get(), to_cell({"s": {0, 1, 2, 9}}))
    fork.sync()
    assert same(root.get(), to_cell({"s": {0, 1, 2, 9}}))


def test_only_the_sync_of_the_root_calls_out() -> None:
    calls: list[Value] = []
    root = RootLattice(SetLattice(), {0}, on_sync=noting(calls))
    fork = root.fork()
    add(fork, 1)
    fork.sync()
    assert calls == []
    assert root.sync() is root.get()
    assert calls == [Set.of([0, 1])]
    tree = RootLattice(TREE, EMPTY_INDEX, on_sync=noting(calls))
    tree.path(A, B).set(1)
    assert tree.path(A, B).sync() == 1
    assert len(calls) == 2


def test_a_root_takes_over_what_its_callback_returns() -> None:
    stored = to_cell({1})
    root = RootLattice(SetLattice(), {1}, on_sync=lambda _value: stored)
    assert root.sync() is stored
    assert root.get() is stored
    assert RootLattice(SetLattice(), {1}).sync() == Set.of([1])


def test_a_write_during_the_callback_is_joined() -> None:
    def busy(value: Value) -> Value:
        add(root, "late")
        assert isinstance(value, Set)
        return value.add("stored")

    root = RootLattice(SetLattice(), {1}, on_sync=busy)
    assert root.sync() == Set.of([1, "late", "stored"])

    def racing(_value: Value) -> Value:
        plain.set(2)
        return 3

    plain = RootLattice(None, 1, on_sync=racing)
    with pytest.raises(UnsupportedOperation):
        plain.sync()
    assert plain.get() == 2


# --- signed -----------------------------------------------------------------------------------


def alice(root: RootLattice) -> LatticeCursor:
    return root.path(O, ALICE.public_key, VALUE_KEY)


def cell_of(root: RootLattice) -> Value:
    return root.get(O, ALICE.public_key)


def test_writes_below_a_signature_are_signed() -> None:
    root = RootLattice(TREE, None, AS_ALICE)
    add(alice(root).path("s"), 1, 2)
    assert same(cell_of(root), Signed.sign(ALICE, to_cell({"s": {1, 2}})))
    assert alice(root).get("s") == Set.of([1, 2])
    merged = alice(root).merge({"s": {3}})
    assert same(merged, to_cell({"s": {1, 2, 3}}))
    assert same(cell_of(root), Signed.sign(ALICE, merged))


def test_without_a_key_one_can_read_only_and_the_base_stays() -> None:
    cell = Signed.sign(ALICE, to_cell({"s": {1}}))
    root = RootLattice(TREE, Index.of([(O, Map.of([(ALICE.public_key, cell)]))]))
    before = root.get()
    assert alice(root).get("s") == Set.of([1])
    writes: list[Callable[[], object]] = [
        lambda: alice(root).set({}),
        lambda: add(alice(root).path("s"), 2),
        lambda: alice(root).merge({"s": {2}}),
        lambda: alice(root).compare_and_set({"s": {1}}, {}),
    ]
    for write in writes:
        with pytest.raises(NoSigningKey, match="needs a MergeContext with key_pair"):
            write()
    alice(root).update(lambda value: value)
    alice(root).merge({"s": {1}})
    assert not alice(root).compare_and_set(5, 6)
    assert root.get() is before


def test_what_says_the_same_keeps_the_signature_unless_another_key_signs() -> None:
    root = RootLattice(TREE, None, AS_ALICE, strict=False)
    alice(root).set({"s": {1}})
    cell = cell_of(root)
    alice(root).set(alice(root).get())
    assert cell_of(root) is cell
    alice(root).update(lambda _value: to_cell({"s": {1}}))
    assert same(cell_of(root), cell)
    alice(root).with_context(MergeContext(key_pair=BOB)).set({"s": {1}})
    assert same(cell_of(root), Signed.sign(BOB, to_cell({"s": {1}})))


def test_nil_is_stored_unsigned_and_needs_a_key_in_the_place_of_a_value() -> None:
    root = RootLattice(TREE, None, AS_ALICE)
    alice(root).with_context(EMPTY_CONTEXT).set(None)
    alice(root).set({"s": {1}})
    with pytest.raises(NoSigningKey):
        alice(root).with_context(EMPTY_CONTEXT).set(None)
    alice(root).set(None)
    assert same(root.get(O), Map.of([(ALICE.public_key, None)]))
    assert alice(root).get() is None


def test_an_update_of_an_absent_value_gets_the_inner_zero() -> None:
    root = RootLattice(TREE, None, AS_ALICE)
    seen: list[Value] = []
    alice(root).update(noting(seen))
    assert seen == [EMPTY_MAP]
    assert root.get() is None


@pytest.mark.parametrize(
    ("cell", "error"),
    [
        (Signed(ALICE.public_key, bytes(64), to_cell({"s": {1}})), BadSignature),
        ("no cell", TypeMismatch),
    ],
    ids=["bad signature", "no cell"],
)
def test_a_value_that_does_not_verify_is_an_error_and_stays(cell: Value, error: type) -> None:
    root = RootLattice(TREE, Index.of([(O, Map.of([(ALICE.public_key, cell)]))]), AS_ALICE)
    before = root.get()
    uses: list[Callable[[], object]] = [
        lambda: alice(root).get(),
        lambda: alice(root).get("s"),
        lambda: alice(root).set({}),
        lambda: alice(root).path("s").get(),
        lambda: alice(root).fork(),
    ]
    for use in uses:
        with pytest.raises(error):
            use()
    assert root.get() is before


def test_a_fork_below_a_signature_is_signed_once_at_sync() -> None:
    root = RootLattice(TREE, None, AS_ALICE)
    alice(root).set({})
    cell = cell_of(root)
    fork = alice(root).fork()
    add(fork.path("s"), 1, 2)
    add(fork.path("t"), 3)
    assert cell_of(root) is cell
    fork.sync()
    assert same(cell_of(root), Signed.sign(ALICE, to_cell({"s": {1, 2}, "t": {3}})))


def test_a_fork_without_a_key_fails_at_sync_and_keeps_its_edits() -> None:
    root = RootLattice(TREE)
    fork = alice(root).fork()
    fork.set({"s": {1}})
    with pytest.raises(NoSigningKey):
        fork.sync()
    assert root.get() is None
    assert same(fork.get(), to_cell({"s": {1}}))
    root.with_context(AS_ALICE)
    again = alice(root).fork()
    again.set(fork.get())
    again.sync()
    assert same(cell_of(root), Signed.sign(ALICE, to_cell({"s": {1}})))


def test_sync_of_a_signed_cursor_goes_to_the_root() -> None:
    calls: list[Value] = []
    root = RootLattice(TREE, None, AS_ALICE, on_sync=noting(calls))
    alice(root).set({"s": {1}})
    assert same(alice(root).sync(), to_cell({"s": {1}}))
    assert len(calls) == 1


@pytest.mark.parametrize("steps", [1, 2], ids=["at once", "step by step"])
def test_strict_cursors_refuse_a_key_that_is_not_the_owners(steps: int) -> None:
    def at(root: LatticeCursor, owner: Value) -> LatticeCursor:
        if steps == 1:
            return root.path(O, owner, VALUE_KEY)
        return root.path(O).path(owner).path(VALUE_KEY)

    strict = RootLattice(TREE, None, MergeContext(key_pair=BOB))
    with pytest.raises(NoSigningKey, match="no key here may sign for the owner"):
        at(strict, ALICE.public_key).set({})
    with pytest.raises(NoSigningKey):
        at(strict, "did:web:x").set({})
    fork = at(strict, ALICE.public_key).fork()
    fork.set({})
    with pytest.raises(NoSigningKey):
        fork.sync()
    assert strict.get() is None
    at(strict, BOB.public_key).set({})
    trusting = MergeContext(key_pair=BOB, verifier=lambda _owner, key: key == BOB.public_key)
    at(strict.with_context(trusting), "did:web:x").set({})
    held = strict.get(O)
    assert isinstance(held, Map)
    assert len(held) == 2
    lenient = RootLattice(TREE, None, MergeContext(key_pair=BOB, verifier=verify_did), strict=False)
    at(lenient, ALICE.public_key).set({})
    forged = RootLattice(TREE, lenient.get(), AS_ALICE)
    with pytest.raises(BadSignature, match="may not sign for its owner"):
        at(forged, ALICE.public_key).get()
    with pytest.raises(BadSignature):
        at(forged, ALICE.public_key).set({})


def test_a_key_of_the_ring_signs_for_its_owner_and_the_identity_for_itself() -> None:
    context = MergeContext(key_pair=BOB, keys=KeyRing(ALICE))
    root = RootLattice(TREE, None, context)
    for owner in (ALICE, BOB):
        root.path(O, owner.public_key, VALUE_KEY).set({"s": {1}})
        cell = root.path(O, owner.public_key).get()
        assert isinstance(cell, Signed)
        assert cell.public_key == owner.public_key
    alone = RootLattice(TREE, None, MergeContext(keys=KeyRing(ALICE)))
    alone.path(O, ALICE.public_key, VALUE_KEY).set({"s": {1}})
    with pytest.raises(NoSigningKey, match="no key here"):
        alone.path(O, BOB.public_key, VALUE_KEY).set({"s": {1}})


def test_strict_does_not_concern_a_signed_value_without_an_owner() -> None:
    root = RootLattice(SignedLattice(MaxLattice()), None, AS_ALICE)
    root.path("value").set(5)
    assert same(root.get(), Signed.sign(ALICE, 5))
    assert root.path(VALUE_KEY).initial_value is None
