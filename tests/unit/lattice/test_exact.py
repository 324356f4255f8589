"""Exact joins and owners by DID: a foreign key is judged as it was written."""

from __future__ import annotations

import pickle

import pytest

from datalattice.cells import EMPTY_INDEX, EMPTY_MAP, Index, Keyword, Map, Signed, Value, same
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.lattice import (
    DIDOwnerLattice,
    DIDVerifier,
    IndexLattice,
    Judge,
    MaxLattice,
    MergeContext,
    MergeNotice,
    SignedLattice,
    did_of,
    merge_judged,
)
from datalattice.testing.lattice_kit import check_foreign_merge, check_lattice

KEY, OTHER = (KeyPair.generate(SeededEntropy(number)) for number in range(2))
DID = did_of(KEY.public_key)
OWNERS = DIDOwnerLattice(IndexLattice(MaxLattice()))


class Strings(Judge):
    """Admits Strings as keys, and adds numbers up."""

    def __init__(self) -> None:
        self.asked: list[Value] = []

    def admits(self, key: Value, value: Value) -> bool:
        self.asked.append(key)
        return isinstance(key, str)

    def join(self, key: Value, own: Value, other: Value) -> Value:
        if other is None:
            return None
        return other if own is None else f"{own}+{other}"


def test_sound_entries_are_joined_and_others_left_out() -> None:
    judge = Strings()
    own = Index.of({"a": "1", "b": "2"})
    merged = merge_judged(own, Index.of({"b": "3", "c": "4", b"d": "5"}), judge)
    assert merged == Index.of({"a": "1", "b": "2+3", "c": "4"})
    assert judge.asked == ["b", "c", b"d"]
    assert merge_judged(own, own, Strings()) is own
    assert merge_judged(own, EMPTY_INDEX, Strings()) is own
    other = Index.of({"x": "1"})
    assert merge_judged(EMPTY_INDEX, other, Strings()) is other


@pytest.mark.parametrize("value", ["1", "2"])
def test_an_own_key_is_not_respelled(value: str) -> None:
    own = Index.of({"a": "1"})
    for spelling in (b"a", Keyword("a")):
        assert merge_judged(own, Index.of({spelling: value}), Strings()) is own


def test_two_keys_of_one_beginning_contend_by_their_hashes() -> None:
    names = ["x" * 32 + end for end in "ab"]
    indexes = [Index.of({name: "1"}) for name in names]
    merged = [merge_judged(a, b, Strings()) for a, b in (indexes, indexes[::-1])]
    assert same(merged[0], merged[1])
    assert len(merged[0]) == 1
    assert any(same(merged[0], one) for one in indexes)


def test_a_join_may_make_nothing() -> None:
    own = Index.of({"a": "1"})
    assert merge_judged(own, Index.of({"a": None, "b": None}), Strings()) is own
    names = ["x" * 32 + end for end in "ab"]
    for first, second in (names, names[::-1]):
        held = Index.of({first: "1"})
        assert merge_judged(held, Index.of({second: None}), Strings()) is held


def test_the_plain_judge_takes_nothing() -> None:
    own, other = Index.of({"a": "1"}), Index.of({"b": "1"})
    assert merge_judged(own, other, Judge()) is own
    assert Judge().join("a", None, "1") == "1"
    assert Judge().join("a", "2", "1") == "2"


# --- owners by DID ---------------------------------------------------------------------------


def owned(key: KeyPair, **values: int) -> Signed:
    return Signed.sign(key, Index.of(values))


def test_owners_by_did_are_a_lattice() -> None:
    values = [
        OWNERS.zero(),
        Index.of({DID: owned(KEY, a=1)}),
        Index.of({DID: owned(KEY, b=2), did_of(OTHER.public_key): owned(OTHER, c=3)}),
    ]
    check_lattice(OWNERS, values, MergeContext(key_pair=KEY))


@pytest.mark.parametrize(
    ("key", "signer", "kind"),
    [
        (DID, OTHER, "not-owner"),
        (DID + "/a", KEY, "entry-dropped"),
        (DID.encode(), KEY, "entry-dropped"),
        (KEY.public_key, KEY, "entry-dropped"),
        ("did:web:a", KEY, "not-owner"),
    ],
)
def test_only_a_did_s_own_key_is_believed(key: Value, signer: KeyPair, kind: str) -> None:
    foreign = Index.of({key: owned(signer, a=1)})
    for own in (OWNERS.zero(), Index.of({DID: owned(KEY, b=1)})):
        reports = check_foreign_merge(OWNERS, own, foreign)
        assert [report.kind for report in reports] == [kind]
        assert OWNERS.merge(own, foreign) is own


def test_other_methods_are_for_the_context_s_verifier() -> None:
    foreign = Index.of({"did:web:a": owned(KEY, a=1)})
    trusting = MergeContext(verifier=lambda _owner, signer: signer == KEY.public_key)
    assert OWNERS.merge(None, foreign, trusting) is foreign
    stranger = Index.of({"did:web:a": owned(OTHER, a=1)})
    assert same(OWNERS.merge(None, stranger, trusting), EMPTY_INDEX)
    assert not DIDVerifier(trusting.verifier)("web:a", KEY.public_key)
    assert not DIDVerifier(trusting.verifier)(7, KEY.public_key)


def test_an_empty_map_counts_as_an_empty_index() -> None:
    own = Index.of({DID: owned(KEY, a=1)})
    assert OWNERS.merge(own, EMPTY_MAP) is own
    assert same(OWNERS.merge(None, EMPTY_MAP), EMPTY_INDEX)
    assert not OWNERS.check_foreign(Map.of({1: 2}))
    assert OWNERS.resolve_key(DID) == DID
    assert OWNERS.resolve_key("00") is None
    assert OWNERS.resolve_key(KEY.public_key) is None


def test_what_is_signed_is_taken_whole_or_not_at_all() -> None:
    lattice = SignedLattice(IndexLattice(MaxLattice()), whole=True)
    bad = Signed.sign(KEY, Index.of({"a": 1, "b": "no number"}))
    good = owned(KEY, a=1)
    reports: list[MergeNotice] = []
    context = MergeContext(report=reports.append)
    assert lattice.merge(None, bad, context) is None
    assert {report.path for report in reports} == {(Keyword("value"), "b"), ()}
    assert lattice.merge(good, bad, context) is good
    assert lattice.merge(None, good) is good
    signed = lattice.merge(None, bad, MergeContext(key_pair=KEY))
    assert same(signed, good)
    assert SignedLattice(IndexLattice(MaxLattice())).merge(None, bad) is bad


def test_lattices_of_owners_are_pickled_as_what_they_are() -> None:
    bad = Signed.sign(KEY, Index.of({"b": "no number"}))
    for lattice in (OWNERS, SignedLattice(IndexLattice(MaxLattice()), whole=True)):
        again = pickle.loads(pickle.dumps(lattice))
        assert type(again) is type(lattice)
        foreign = Index.of({DID: bad}) if lattice is OWNERS else bad
        assert same(again.merge(None, foreign), lattice.merge(None, foreign))
