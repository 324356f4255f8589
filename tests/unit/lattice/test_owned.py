"""Signed values and owners: the merge is the security boundary."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from datalattice.cells import (
    EMPTY_MAP,
    Address,
    Map,
    Set,
    Signed,
    Value,
    decode,
    decode_message,
    encode,
    encode_message,
    same,
    to_cell,
    value_hash,
)
from datalattice.crypto import KeyPair, KeyRing
from datalattice.errors import MissingData
from datalattice.lattice import (
    EMPTY_CONTEXT,
    VALUE_KEY,
    EntryDropped,
    FunctionLattice,
    Latest,
    Lattice,
    MapLattice,
    MaxLattice,
    MergeContext,
    MergeNotice,
    OwnerForked,
    OwnerLattice,
    SetLattice,
    SignedLattice,
    Walk,
)
from datalattice.testing.lattice_kit import observed

ALICE, BOB, EVE = (KeyPair(bytes([n]) * 32) for n in (1, 2, 3))
SIGNED = SignedLattice(SetLattice())
OWNER = OwnerLattice(SetLattice())
DID = "did:web:river.example"


def said(key: KeyPair, *items: Value) -> Signed:
    return Signed.sign(key, Set.of(items))


def forged(cell: Signed, **changes: object) -> Signed:
    """Return an unverified copy of a cell with one part exchanged."""
    parts: dict[str, object] = {
        "public_key": cell.public_key,
        "signature": cell.signature,
        "value": cell.value,
    }
    parts.update(changes)
    key, signature = parts["public_key"], parts["signature"]
    assert isinstance(key, bytes)
    assert isinstance(signature, bytes)
    return Signed(key, signature, parts["value"])


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def keyless(cell: Signed) -> Value:
    """Return the key-less form of a cell, which readers accept and nobody writes."""
    return decode(b"\x91" + cell.signature + encode(cell.value))


def merged(
    lattice: SignedLattice | OwnerLattice,
    own: Value,
    other: Value,
    context: MergeContext = EMPTY_CONTEXT,
) -> tuple[Value, list[MergeNotice]]:
    reports: list[MergeNotice] = []
    return lattice.merge(own, other, observed(context, reports)), reports


GOOD = said(ALICE, "a")
ATTACKS: dict[str, Callable[[], Value]] = {
    "altered value under an old signature": lambda: forged(GOOD, value=Set.of(["a", "evil"])),
    "altered signature": lambda: forged(GOOD, signature=flipped(GOOD.signature, 0)),
    "altered last byte of the signature": lambda: forged(
        GOOD, signature=flipped(GOOD.signature, 63)
    ),
    "altered public key": lambda: forged(GOOD, public_key=flipped(GOOD.public_key, 5)),
    "another key on the signature": lambda: forged(said(EVE, "evil"), public_key=ALICE.public_key),
    "another signer's cell": lambda: said(EVE, "a", "evil"),
    "empty signature": lambda: forged(GOOD, signature=bytes(64), value=Set.of(["a", "evil"])),
    "missing public key": lambda: keyless(said(ALICE, "a", "evil")),
    "unsigned value": lambda: Set.of(["a", "evil"]),
    "value of another kind, well signed": lambda: Signed.sign(ALICE, "no set"),
    "nil, well signed": lambda: Signed.sign(ALICE, None),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("own", [None, GOOD], ids=["first contact", "over an entry"])
def test_attacks_on_an_owner_leave_own_and_are_reported(attack: str, own: Value) -> None:
    cell = ATTACKS[attack]()
    state = EMPTY_MAP if own is None else Map.of([(ALICE.public_key, own)])
    attacked = Map.of([(ALICE.public_key, cell), (EVE.public_key, said(EVE, 1))])
    for context in (EMPTY_CONTEXT, MergeContext(key_pair=ALICE), MergeContext(key_pair=EVE)):
        result, reports = merged(OWNER, state, attacked, context)
        assert same(result, state.put(EVE.public_key, said(EVE, 1)))
        assert reports == [EntryDropped((ALICE.public_key,))]


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name != "another signer's cell"])
def test_attacks_on_a_bare_signed_value_leave_own_and_are_reported(attack: str) -> None:
    cell = ATTACKS[attack]()
    assert merged(SIGNED, GOOD, cell) == (GOOD, [EntryDropped(())])
    assert merged(SIGNED, None, cell) == (None, [EntryDropped(())])


def test_a_replay_of_the_victims_cell_under_the_attackers_key_is_refused() -> None:
    result, reports = merged(OWNER, EMPTY_MAP, Map.of([(EVE.public_key, GOOD)]))
    assert result is EMPTY_MAP
    assert reports == [EntryDropped((EVE.public_key,))]


def test_first_contact_without_any_own_value_is_verified_too() -> None:
    attacked = Map.of([(ALICE.public_key, said(EVE, "evil")), (BOB.public_key, said(BOB, 1))])
    result, _ = merged(OWNER, None, attacked)
    assert same(result, Map.of([(BOB.public_key, said(BOB, 1))]))


def test_an_update_by_the_owner_is_taken_as_it_is() -> None:
    own = Map.of([(ALICE.public_key, GOOD)])
    update = Map.of([(ALICE.public_key, said(ALICE, "a", "b"))])
    assert merged(OWNER, own, update) == (update, [])
    assert OWNER.merge(own, update) is update
    assert OWNER.merge(update, own) is update


def test_a_verdict_is_remembered_on_the_cell() -> None:
    good = decode_message(encode_message(GOOD))
    assert isinstance(good, Signed)
    assert good._verdict == 0
    assert SIGNED.check_foreign(good)
    assert good._verdict == 1
    bad = forged(GOOD, signature=bytes(64))
    assert not SIGNED.check_foreign(bad)
    assert bad._verdict == -1


@pytest.mark.parametrize("owner", [DID, Address(1337), b"\x01" * 31, 5], ids=repr)
def test_other_owners_are_judged_by_the_verifier(owner: Value) -> None:
    context = MergeContext(verifier=lambda who, key: who == owner and key == BOB.public_key)
    entry = Map.of([(owner, said(BOB, 1))])
    assert merged(OWNER, EMPTY_MAP, entry, context) == (entry, [])
    refused, reports = merged(OWNER, entry, Map.of([(owner, said(EVE, 1, 2))]), context)
    assert refused is entry
    assert reports == [EntryDropped((owner,))]


def test_a_nil_under_an_owner_claims_nothing_and_is_kept() -> None:
    nil = Map.of([(ALICE.public_key, None)])
    full = Map.of([(ALICE.public_key, GOOD)])
    assert OWNER.merge(EMPTY_MAP, nil) is nil
    assert OWNER.merge(nil, full) is full
    assert OWNER.merge(full, nil) is full


# --- signing the join ------------------------------------------------------------------------


A, B = said(ALICE, "a"), said(ALICE, "b")
JOIN = said(ALICE, "a", "b")


def owner_map(cell: Value, owner: Value = ALICE.public_key) -> Map:
    return Map.of([(owner, cell)])


def test_the_owner_signs_the_join_and_every_node_of_it_alike() -> None:
    context = MergeContext(key_pair=ALICE)
    assert merged(OWNER, owner_map(A), owner_map(B), context) == (owner_map(JOIN), [])
    assert merged(OWNER, owner_map(B), owner_map(A), context) == (owner_map(JOIN), [])


@pytest.mark.parametrize("context", [EMPTY_CONTEXT, MergeContext(key_pair=BOB)])
def test_all_relays_keep_the_same_branch_and_report_the_other(context: MergeContext) -> None:
    kept, lost = sorted([A, B], key=value_hash, reverse=True)
    for own, other in ((A, B), (B, A)):
        result, reports = merged(OWNER, owner_map(own), owner_map(other), context)
        assert result == owner_map(kept)
        (report,) = reports
        assert report == OwnerForked(ALICE.public_key, (ALICE.public_key,))
        assert isinstance(report, OwnerForked)
        assert (report.kept, report.other, report.branch) == (kept, lost, "owner")
        assert merged(OWNER, owner_map(own), owner_map(JOIN), context) == (owner_map(JOIN), [])


def test_for_an_owner_that_is_no_key_signing_needs_the_verifiers_word() -> None:
    own, other = owner_map(said(BOB, 1), DID), owner_map(said(BOB, 2), DID)
    unsure = MergeContext(key_pair=BOB)
    result, reports = merged(OWNER, own, other, unsure)
    greatest = max(said(BOB, 1), said(BOB, 2), key=value_hash)
    assert same(result, owner_map(greatest, DID))
    assert reports == [OwnerForked(DID, (DID,))]
    sure = MergeContext(key_pair=BOB, verifier=lambda _who, key: key == BOB.public_key)
    assert merged(OWNER, own, other, sure) == (owner_map(said(BOB, 1, 2), DID), [])


def test_a_bare_signed_value_is_signed_by_the_context_or_by_the_lattice() -> None:
    assert merged(SIGNED, A, B, MergeContext(key_pair=EVE)) == (said(EVE, "a", "b"), [])
    assert SignedLattice(SetLattice(), BOB).merge(A, B) == said(BOB, "a", "b")
    own_key = SignedLattice(SetLattice(), BOB)
    assert own_key.merge(A, B, MergeContext(key_pair=EVE)) == said(EVE, "a", "b")
    result, reports = merged(SIGNED, A, B)
    assert result is max(A, B, key=value_hash)
    assert reports == [OwnerForked(ALICE.public_key, ())]


def test_below_an_owner_the_key_of_the_lattice_must_be_authorised_as_well() -> None:
    lattice = SignedLattice(SetLattice(), ALICE)
    context = MergeContext(key_pair=EVE, owner=ALICE.public_key)
    assert lattice.merge(A, B, context) == JOIN
    assert lattice.merge(A, B, MergeContext(owner=BOB.public_key)) is A  # none of it is Bob's
    other = KeyRing(KeyPair(b"\x09" * 32), ALICE)
    assert SIGNED.merge(A, B, MergeContext(owner=ALICE.public_key, keys=other)) == JOIN


def test_signatures_of_a_side_that_covers_the_other_survive() -> None:
    context = MergeContext(key_pair=EVE)
    assert SIGNED.merge(A, JOIN, context) is JOIN
    assert SIGNED.merge(JOIN, A, context) is JOIN


def test_of_two_cells_with_one_value_the_verified_one_with_the_greater_hash_stays() -> None:
    first, second = said(ALICE, 1), said(BOB, 1)
    winner = max([first, second], key=value_hash)
    assert SIGNED.merge(first, second) is winner
    assert SIGNED.merge(second, first) is winner
    bad = forged(first, signature=bytes(64))
    assert SIGNED.merge(bad, second) is second
    assert merged(SIGNED, second, bad) == (second, [EntryDropped(())])


def test_a_broken_own_value_gives_way_to_a_signed_one() -> None:
    assert SIGNED.merge("broken", GOOD) is GOOD
    full = owner_map(GOOD)
    assert OWNER.merge("broken", full) is full


def test_an_own_value_that_the_owner_never_signed_gives_way() -> None:
    for bad in (said(EVE, "a", "b"), forged(JOIN, signature=bytes(64)), "unsigned"):
        assert same(OWNER.merge(owner_map(bad), owner_map(GOOD)), owner_map(GOOD))


def test_a_replayed_cell_of_long_ago_changes_nothing() -> None:
    slot: Value = owner_map(JOIN)
    for old in (A, B, JOIN, A):
        result, reports = merged(OWNER, slot, owner_map(old))
        assert result is slot
        assert reports == []


def test_the_owner_signs_the_same_join_whichever_side_was_own_and_whatever_is_malformed() -> None:
    lattice = OwnerLattice(MapLattice(MaxLattice()))
    one = Signed.sign(ALICE, to_cell({"n": 1, "m": 5, "bad": "x"}))
    two = Signed.sign(ALICE, to_cell({"n": 2, "m": 1, "worse": "y"}))
    context = MergeContext(key_pair=ALICE)
    left = lattice.merge(owner_map(one), owner_map(two), context)
    assert same(left, lattice.merge(owner_map(two), owner_map(one), context))
    assert isinstance(left, Map)
    joined = left[ALICE.public_key]
    assert isinstance(joined, Signed)
    assert isinstance(joined.value, Map)
    assert (joined.value["n"], joined.value["m"]) == (2, 5)


def test_a_join_is_signed_only_when_it_is_greater_than_both() -> None:
    """A lattice whose joins are the lesser by its own order: the slot keeps the greater side."""

    class Falling(Lattice):
        def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
            return 0

        def check_foreign(self, value: Value) -> bool:
            return True

        def has_order(self) -> bool:
            return True

        def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
            return MaxLattice().latest(own, other, walk)

    lattice = OwnerLattice(Falling())
    high, low = Signed.sign(ALICE, 7), Signed.sign(ALICE, 4)
    result, reports = merged(lattice, owner_map(low), owner_map(high), MergeContext(key_pair=ALICE))
    assert result == owner_map(high)
    assert reports == [OwnerForked(ALICE.public_key, (ALICE.public_key,))]


def _larger(a: Value, b: Value) -> Value:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else a


def test_without_an_order_the_side_that_covers_stays_else_the_greater_hash() -> None:
    lattice = OwnerLattice(MapLattice(FunctionLattice(_larger)))
    assert not lattice.within()[0].has_order()
    small, large = Signed.sign(ALICE, to_cell({"n": 1})), Signed.sign(ALICE, to_cell({"n": 2}))
    other = Signed.sign(ALICE, to_cell({"m": 1}))
    for own, theirs in ((small, large), (large, small)):
        assert merged(lattice, owner_map(own), owner_map(theirs)) == (owner_map(large), [])
    for own, theirs in ((small, other), (other, small)):
        result, _ = merged(lattice, owner_map(own), owner_map(theirs))
        assert result == owner_map(max(small, other, key=value_hash))


# --- inside -----------------------------------------------------------------------------------


def test_bad_entries_inside_a_signed_value_are_skipped_and_reported_with_their_path() -> None:
    lattice = OwnerLattice(MapLattice(MaxLattice()))
    own = owner_map(Signed.sign(ALICE, to_cell({"n": 1})))
    other = owner_map(Signed.sign(ALICE, to_cell({"n": 1, "bad": "x"})))
    result, reports = merged(lattice, own, other)
    assert result is own
    assert reports == [EntryDropped((ALICE.public_key, VALUE_KEY, "bad"))]
    assert merged(lattice, EMPTY_MAP, other) == (other, [])


def test_an_inner_value_that_is_not_here_is_asked_for() -> None:
    big = Signed.sign(ALICE, Set.of(["x" * 100, "y" * 100]))
    half = decode(encode(big))
    with pytest.raises(MissingData) as caught:
        SIGNED.merge(GOOD, half)
    assert caught.value.hashes == (value_hash(big.value),)


# --- addresses --------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [VALUE_KEY, "value", b"value"], ids=repr)
def test_a_signed_value_is_entered_by_value(key: Value) -> None:
    assert SIGNED.resolve_key(key) == VALUE_KEY
    assert SIGNED.canonical_key(key) == VALUE_KEY


def test_only_the_keyword_itself_finds_the_inner_lattice() -> None:
    assert isinstance(SIGNED.path(VALUE_KEY), SetLattice)
    assert SIGNED.path("value") is None
    assert SIGNED.resolve_key("other") is None
    assert SIGNED.resolve_key(5) is None
    assert SIGNED.canonical_key("other") == "other"
    assert SIGNED.zero() is None
    assert OWNER.zero() is EMPTY_MAP


def test_owners_are_named_by_hex_in_outside_paths() -> None:
    text = ALICE.public_key.hex()
    assert OWNER.resolve_key(text) == ALICE.public_key
    assert OWNER.resolve_key("0x" + text.upper()) == ALICE.public_key
    assert OWNER.resolve_key(ALICE.public_key) is ALICE.public_key
    assert OWNER.resolve_key(Address(5)) == Address(5)


@pytest.mark.parametrize("name", [DID, "abc", "", "0x", "0xzz", "ab cd", "\uff41\uff42", "0x0xab"])
def test_a_name_that_is_not_hex_stands_for_itself(name: str) -> None:
    assert OWNER.resolve_key(name) is name
    assert OWNER.canonical_key("ab" * 32) == "ab" * 32


def test_every_owner_has_a_signed_value() -> None:
    assert isinstance(OWNER.path("anyone"), SignedLattice)
    assert isinstance(OWNER.path(Address(5), VALUE_KEY), SetLattice)
    assert OWNER.resolve_path([DID, "value"]) == [DID, VALUE_KEY]


def test_signed_and_owner_lattices_can_be_pickled() -> None:
    for lattice in (SIGNED, OWNER, SignedLattice(SetLattice(), BOB)):
        back = pickle.loads(pickle.dumps(lattice))
        assert repr(back) == repr(lattice)
    assert BOB.seed.hex() not in repr(SignedLattice(SetLattice(), BOB))


def test_wrong_parts_are_refused() -> None:
    with pytest.raises(TypeError, match=r"Lattice.* None(Type)?$"):
        SignedLattice(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="KeyPair"):
        SignedLattice(SetLattice(), b"seed")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Lattice.* str$"):
        OwnerLattice("x")  # type: ignore[arg-type]
