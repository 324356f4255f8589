"""Who is at the other end: what is asked, when a connection goes on, and when it ends."""

from __future__ import annotations

import pytest

from datalattice.cells import Signed, Vector
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.lattice import MergeContext, SetLattice
from datalattice.store import MemoryStore
from datalattice.sync import Effects, LatticeProtocol, LatticeReplica, Replicator
from datalattice.sync.effects import ASK_TIMEOUT_MS
from datalattice.testing.clocks import StoppedClock
from datalattice.wire import (
    Challenge,
    ErrorCode,
    LatticeMessage,
    Ping,
    Result,
    decode_payload,
    encode_announcement,
    encode_failure,
    encode_ping,
    encode_result,
)

OWN = KeyPair(b"o" * 32)
PEER = KeyPair(b"p" * 32)
OTHER = KeyPair(b"x" * 32)


def node(key_pair: KeyPair | None = OWN) -> Replicator:
    replica = LatticeReplica(MemoryStore(), SetLattice(), MergeContext(key_pair=key_pair))
    clock = StoppedClock(1_800_000_000_000)
    return Replicator(replica, LatticeProtocol(clock, identity=key_pair, entropy=SeededEntropy(1)))


def said(effects: Effects) -> list[LatticeMessage]:
    return [decode_payload(payload)[0] for _, payload in effects.sends]


def kinds(effects: Effects) -> list[str]:
    return [note.kind for note in effects.notes]


def challenge_in(effects: Effects) -> Challenge:
    (found,) = [message for message in said(effects) if isinstance(message, Challenge)]
    return found


def proof(challenge: Challenge, key: KeyPair = PEER) -> bytes:
    """Return the answer of a node with this key, whoever is wanted."""
    assert challenge.signed is not None
    terms = (challenge.terms[0], challenge.signed.public_key)
    return encode_result(Result(challenge.id, Signed.sign(key, Vector.of(terms))))


def opened(
    key_pair: KeyPair | None = OWN, pinned: bytes | None = None, public_key: bytes | None = None
) -> tuple[Replicator, Effects]:
    one = node(key_pair)
    one.open("p", 0, outbound=True, public_key=public_key, pinned=pinned)
    return one, one.take_effects()


GREETING = [Ping]
"""The rest waits for the answer, which says what the peer is able to do."""


def test_a_node_with_a_key_challenges_whom_it_dials_and_goes_on_at_once() -> None:
    one, effects = opened()
    assert [type(message) for message in said(effects)] == [Challenge, *GREETING]
    challenge = challenge_in(effects)
    assert challenge.signed is not None
    assert challenge.signed.public_key == OWN.public_key
    assert challenge.signed.verify()
    token, wanted = challenge.terms
    assert isinstance(token, bytes)
    assert (wanted, len(token)) == (None, 32)
    one.receive("p", proof(challenge), 1)
    effects = one.take_effects()
    assert effects.identified == [("p", PEER.public_key)]
    assert (effects.sends, effects.closes) == ([], [])
    assert one.standings[0].public_key == PEER.public_key


def test_nobody_else_is_challenged() -> None:
    assert [type(message) for message in said(opened(None)[1])] == GREETING
    _, effects = opened(OWN, None, PEER.public_key)
    assert [type(message) for message in said(effects)] == GREETING
    one = node()
    one.open("p", 0, outbound=False)
    assert one.take_effects().sends == []


def test_tokens_do_not_come_twice() -> None:
    one = node()
    tokens = set()
    for id in ("p", "q", "r"):
        one.open(id, 0, outbound=True)
        tokens.add(challenge_in(one.take_effects()).terms[0])
    assert len(tokens) == 3


@pytest.mark.parametrize("key_pair", [OWN, None])
def test_a_wanted_key_is_proved_before_anything_else_is_said(key_pair: KeyPair | None) -> None:
    one, effects = opened(key_pair, PEER.public_key)
    (challenge,) = said(effects)
    assert isinstance(challenge, Challenge)
    assert challenge.terms[1] == PEER.public_key
    one.receive("p", encode_announcement((), SetLattice().zero(), ()), 1)
    one.receive("p", encode_ping(5), 1)
    effects = one.take_effects()
    assert (effects.sends, kinds(effects)) == ([], ["ignored", "ignored"])
    one.receive("p", proof(challenge), 2)
    effects = one.take_effects()
    assert effects.identified == [("p", PEER.public_key)]
    assert [type(message) for message in said(effects)] == GREETING


def test_the_wanted_key_that_the_transport_proved_is_not_asked_for() -> None:
    _, effects = opened(OWN, PEER.public_key, PEER.public_key)
    assert [type(message) for message in said(effects)] == GREETING


def bad_answers(challenge: Challenge) -> list[bytes]:
    assert challenge.signed is not None
    token, own = challenge.terms[0], challenge.signed.public_key
    forged = Signed(PEER.public_key, bytes(64), Vector.of([token, own]))
    return [
        proof(challenge, OTHER),
        encode_result(Result(challenge.id, forged)),
        encode_result(Result(challenge.id, Signed.sign(PEER, Vector.of([b"old" * 8, own])))),
        encode_result(Result(challenge.id, "it is me")),
        encode_failure(challenge.id, ErrorCode.TRUST, "no key"),
    ]


@pytest.mark.parametrize("number", range(5))
def test_a_wanted_key_that_is_not_proved_ends_the_connection(number: int) -> None:
    one, effects = opened(OWN, PEER.public_key)
    one.receive("p", bad_answers(challenge_in(effects))[number], 1)
    effects = one.take_effects()
    assert [id for id, _ in effects.closes] == ["p"]
    assert kinds(effects) == ["closed-untrusted"]
    assert effects.identified == []


@pytest.mark.parametrize("number", range(1, 5))
def test_without_a_wanted_key_a_bad_answer_is_noted_and_the_peer_stays(number: int) -> None:
    one, effects = opened()
    one.receive("p", bad_answers(challenge_in(effects))[number], 1)
    effects = one.take_effects()
    assert (effects.closes, kinds(effects)) == ([], ["unproved"])
    assert one.standings[0].public_key is None


def test_no_answer_in_time_ends_a_connection_where_a_key_is_wanted() -> None:
    for pinned, ends in ((PEER.public_key, True), (None, False)):
        one, _ = opened(OWN, pinned)
        one.tick(ASK_TIMEOUT_MS - 1)
        assert one.take_effects().closes == []
        one.tick(ASK_TIMEOUT_MS)
        effects = one.take_effects()
        assert bool(effects.closes) is ends
        assert ("closed-untrusted" if ends else "unproved") in kinds(effects)


def test_another_key_proved_by_the_transport_ends_the_connection() -> None:
    _, effects = opened(OWN, PEER.public_key, OTHER.public_key)
    assert kinds(effects) == ["closed-untrusted"]
    assert effects.sends == []


def test_a_connection_to_this_very_node_ends() -> None:
    _, effects = opened(OWN, None, OWN.public_key)
    assert (kinds(effects), effects.sends) == (["closed-myself"], [])
    one, effects = opened()
    one.receive("p", proof(challenge_in(effects), OWN), 1)
    effects = one.take_effects()
    # Whoever dials learns of it, and leaves the address alone.
    assert (kinds(effects), effects.identified) == (["closed-myself"], [("p", OWN.public_key)])


def test_an_answer_comes_once() -> None:
    one, effects = opened()
    answer = proof(challenge_in(effects))
    one.receive("p", answer, 1)
    one.take_effects()
    one.receive("p", answer, 2)
    effects = one.take_effects()
    assert (effects.identified, kinds(effects)) == ([], ["unasked"])


def test_challenges_are_answered_on_any_connection() -> None:
    asker, effects = opened(PEER)
    answerer = node(OWN)
    answerer.open("a", 0, outbound=False)
    answerer.receive("a", effects.sends[0][1], 1)
    ((_, answer),) = answerer.take_effects().sends
    asker.receive("p", answer, 2)
    assert asker.take_effects().identified == [("p", OWN.public_key)]
