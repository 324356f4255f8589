"""Challenges: who signs what, and which answers prove a key."""

from __future__ import annotations

import pytest

from datalattice.cells import Keyword, Signed, Text, Value, Vector, encode, encode_message
from datalattice.crypto import KeyPair
from datalattice.errors import BadSignature, PeerError, ProtocolViolation
from datalattice.wire import (
    Challenge,
    LatticeMessage,
    Result,
    Unknown,
    answer_challenge,
    decode_payload,
    encode_challenge,
    proved_key,
)

ASKER = KeyPair(b"a" * 32)
OWN = KeyPair(b"o" * 32)
OTHER = KeyPair(b"x" * 32)
TOKEN = b"t" * 32
CH = Keyword("CH")


def read(payload: bytes) -> LatticeMessage:
    return decode_payload(payload)[0]


def answered(payload: bytes, own: KeyPair | None = OWN) -> Result:
    challenge = read(payload)
    assert isinstance(challenge, Challenge)
    result = read(answer_challenge(challenge, own))
    assert isinstance(result, Result)
    return result


def error_of(payload: bytes, own: KeyPair | None = OWN) -> str:
    result = answered(payload, own)
    assert isinstance(result.value, str)
    assert result.error is not None
    return result.error.name


def asked(*elements: Value) -> bytes:
    return encode_message(Vector.of((CH, *elements)))


@pytest.mark.parametrize("wanted", [None, OWN.public_key])
@pytest.mark.parametrize("context", [(), (Keyword("net"),)])
@pytest.mark.parametrize("token", [TOKEN, 7, None, Text.of("z" * 9_000)])
def test_a_key_is_proved(wanted: bytes | None, context: tuple[Value, ...], token: Value) -> None:
    result = answered(encode_challenge(1, ASKER, token, wanted, *context))
    assert (result.id, result.error) == (1, None)
    assert isinstance(result.value, Signed)
    assert encode(result.value.value) == encode(Vector.of((token, ASKER.public_key, *context)))
    proved = proved_key(result.value, ASKER.public_key, token, wanted, *context)
    assert proved == OWN.public_key


@pytest.mark.parametrize("id", [0, -1, 2**80, "a", None, TOKEN, Keyword("k")])
def test_any_id_is_echoed(id: Value) -> None:
    result = answered(encode_challenge(id, ASKER, TOKEN, None))
    assert result.error is None
    assert encode(result.id) == encode(id)
    assert encode(answered(asked(id)).id) == encode(id)


def test_without_an_id_it_is_no_request() -> None:
    assert isinstance(read(asked()), Unknown)


@pytest.mark.parametrize(
    "carried",
    [
        (),
        (None,),
        (5,),
        (Signed.sign(ASKER, 5),),
        (Signed.sign(ASKER, Vector.of([TOKEN])),),
        (Signed.sign(ASKER, Vector.of([TOKEN, None, 3, 4])),),
        (Signed.sign(ASKER, Vector.of(range(100))),),
    ],
)
def test_what_is_no_challenge_is_a_matter_of_form(carried: tuple[Value, ...]) -> None:
    assert error_of(asked(1, *carried)) == "FORMAT"


def test_two_and_three_elements_are_taken() -> None:
    for count, taken in ((1, False), (2, True), (3, True), (4, False)):
        signed = Signed.sign(ASKER, Vector.of([TOKEN, None, 3, 4][:count]))
        assert (answered(asked(1, signed)).error is None) is taken


def test_what_follows_is_ignored() -> None:
    signed = Signed.sign(ASKER, Vector.of([TOKEN, None]))
    assert answered(asked(1, signed, "more", 2)).error is None


def test_cells_that_did_not_come_along_are_a_matter_of_form() -> None:
    long = Text.of("z" * 500)
    for terms in ([long, None], [TOKEN, None, long], [Vector.of([long]), None]):
        signed = Signed.sign(ASKER, Vector.of(terms))
        whole = asked(1, signed)
        assert answered(whole).error is None
        for cut in (
            encode(Vector.of((CH, 1, signed))),
            whole[: len(whole) - 2 - len(encode(long))],
        ):
            assert error_of(cut) == "FORMAT"


def test_trust_is_refused() -> None:
    good = encode_challenge(1, ASKER, TOKEN, None)
    assert error_of(good, None) == "TRUST"
    assert error_of(encode_challenge(1, ASKER, TOKEN, OTHER.public_key)) == "TRUST"
    stated = Vector.of([TOKEN, None])
    assert error_of(asked(1, Signed(ASKER.public_key, bytes(64), stated))) == "TRUST"
    assert error_of(asked(1, Signed(b"", bytes(64), stated))) == "TRUST"
    for wrong in (5, "key", OWN.public_key[:-1]):
        signed = Signed.sign(ASKER, Vector.of([TOKEN, wrong]))
        assert error_of(asked(1, signed)) == "TRUST"


def answer(*terms: Value, key: KeyPair = OWN) -> Signed:
    return Signed.sign(key, Vector.of(terms))


@pytest.mark.parametrize(
    ("value", "wanted", "context"),
    [
        (None, None, ()),
        (TOKEN, None, ()),
        (answer(TOKEN), None, ()),
        (answer(b"s" * 32, ASKER.public_key), None, ()),
        (answer(TOKEN, OTHER.public_key), None, ()),
        (answer(TOKEN, ASKER.public_key), OTHER.public_key, ()),
        (answer(TOKEN, ASKER.public_key), None, (1,)),
        (answer(TOKEN, ASKER.public_key, 1), None, ()),
        (answer(TOKEN, ASKER.public_key, True), None, (1,)),
    ],
)
def test_an_answer_to_something_else_proves_nothing(
    value: Value, wanted: bytes | None, context: tuple[Value, ...]
) -> None:
    with pytest.raises(ProtocolViolation):
        proved_key(value, ASKER.public_key, TOKEN, wanted, *context)


def test_a_forged_answer_proves_nothing() -> None:
    stated = Vector.of([TOKEN, ASKER.public_key])
    for forged in (Signed(OWN.public_key, bytes(64), stated), Signed(b"", bytes(64), stated)):
        with pytest.raises(BadSignature):
            proved_key(forged, ASKER.public_key, TOKEN, None)
    with pytest.raises(PeerError):
        proved_key(answer(TOKEN, ASKER.public_key, key=OTHER), ASKER.public_key, TOKEN, b"o" * 32)
