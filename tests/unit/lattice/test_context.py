"""What merges know, whom they believe, and what they report."""

from __future__ import annotations

import pickle

import pytest

from datalattice.cells import Address, Keyword
from datalattice.crypto import KeyPair
from datalattice.lattice import (
    EMPTY_CONTEXT,
    EntryDropped,
    MergeContext,
    MergeNotice,
    OwnerForked,
    QueueForked,
    WriteSuperseded,
    discard,
    is_public_key,
    verify_did,
)

KEY = KeyPair(b"\x01" * 32)
OTHER_KEY = KeyPair(b"\x02" * 32)


def test_a_public_key_is_exactly_32_bytes() -> None:
    assert is_public_key(KEY.public_key)
    assert not is_public_key(KEY.public_key[:31])
    assert not is_public_key(KEY.public_key + b"\x00")
    assert not is_public_key("x" * 32)
    assert not is_public_key(None)


def test_a_public_key_speaks_for_itself_whatever_the_verifier_says() -> None:
    context = MergeContext(verifier=lambda _owner, _signer: True)
    assert context.verify_owner(KEY.public_key, KEY.public_key)
    assert not context.verify_owner(KEY.public_key, OTHER_KEY.public_key)
    assert not context.authorises(KEY.public_key, OTHER_KEY.public_key)


@pytest.mark.parametrize("owner", [Address(7), "did:web:x", b"\x01" * 31, None, 1])
def test_other_owners_are_for_the_verifier(owner: object) -> None:
    asked: list[tuple[object, bytes]] = []

    def verifier(who: object, signer: bytes) -> bool:
        asked.append((who, signer))
        return signer == KEY.public_key

    context = MergeContext(verifier=verifier)
    assert context.verify_owner(owner, KEY.public_key)
    assert not context.verify_owner(owner, OTHER_KEY.public_key)
    assert context.authorises(owner, KEY.public_key)
    assert asked[0] == (owner, KEY.public_key)


def test_without_a_verifier_values_are_accepted_and_nobody_may_sign() -> None:
    assert EMPTY_CONTEXT.verify_owner("did:web:x", KEY.public_key)
    assert not EMPTY_CONTEXT.authorises("did:web:x", KEY.public_key)


def test_children_carry_everything_and_a_longer_path() -> None:
    reports: list[MergeNotice] = []
    context = MergeContext(5, KEY, verify_did, report=reports.append)
    below = context.child(Keyword("a")).child(1)
    assert below.path == (Keyword("a"), 1)
    assert (below.timestamp, below.key_pair, below.verifier) == (5, KEY, verify_did)
    below.report(EntryDropped(below.path))
    assert reports == [EntryDropped((Keyword("a"), 1))]
    placed = context.at(("x",), "me")
    assert (placed.path, placed.owner) == (("x",), "me")
    assert placed.child("y").owner == "me"
    assert placed.preferring("own").child("y").prefer == "own"


def test_reports_are_equal_when_they_say_the_same_of_the_same_values() -> None:
    assert EntryDropped((1,)) == EntryDropped((1,))
    assert EntryDropped((1,)) != EntryDropped((True,))
    assert EntryDropped((1,)) != EntryDropped((1, 2))
    assert QueueForked((1,), 2) == QueueForked((1,), 2)
    assert QueueForked((1,), 2) != QueueForked((1,), 3)
    assert OwnerForked("a", ()) != OwnerForked("b", ())
    assert OwnerForked("a", ()) != EntryDropped(("a",))
    assert EntryDropped(()) != ()
    assert len({EntryDropped((1,)), EntryDropped((1,)), QueueForked((1,), 2)}) == 2


def test_reports_and_contexts_show_what_they_hold_but_no_seed() -> None:
    assert repr(EntryDropped((1,))) == "EntryDropped(path=(1,))"
    assert "offset=3" in repr(QueueForked((), 3))
    assert "owner='me'" in repr(OwnerForked("me", ()))
    shown = repr(MergeContext(key_pair=KEY))
    assert KEY.public_key.hex() in shown
    assert KEY.seed.hex() not in shown


def test_reports_and_contexts_can_be_pickled() -> None:
    for report in (EntryDropped((1, "a")), QueueForked((1,), 2), OwnerForked("o", (1,))):
        assert pickle.loads(pickle.dumps(report)) == report
    context = MergeContext(5, KEY, verify_did, path=("a",), owner="me", prefer="own")
    back = pickle.loads(pickle.dumps(context))
    assert (back.timestamp, back.key_pair, back.verifier) == (5, KEY, verify_did)
    assert (back.path, back.owner, back.prefer, back.report) == (("a",), "me", "own", discard)


def test_a_superseded_write_says_which_side_lost() -> None:
    lost = WriteSuperseded(("k", "f"), "own")
    assert lost.kind == "write-superseded"
    assert lost != WriteSuperseded(("k", "f"), "other")
    assert pickle.loads(pickle.dumps(lost)) == lost
    assert "lost='own'" in repr(lost)
