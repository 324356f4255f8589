"""Challenges and their answers: any terms and any damage end in an answer, never in a fault."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from datalattice.cells import Keyword, Signed, Value, Vector, encode, encode_message, value_hash
from datalattice.crypto import KeyPair
from datalattice.errors import BadFormat, LimitExceeded, PeerError
from datalattice.testing.strategies import values
from datalattice.wire import (
    Challenge,
    Result,
    answer_challenge,
    decode_payload,
    encode_challenge,
    proved_key,
)

ASKER = KeyPair(b"a" * 32)
OWN = KeyPair(b"o" * 32)
TOKEN = b"t" * 32


def result_of(payload: bytes) -> Result:
    message, _ = decode_payload(payload)
    assert isinstance(message, Result)
    return message


@given(id=values(), token=values(), context=st.lists(values(), max_size=1))
def test_whatever_is_signed_comes_back_signed(
    id: Value, token: Value, context: list[Value]
) -> None:
    asked, _ = decode_payload(encode_challenge(id, ASKER, token, None, *context))
    assert isinstance(asked, Challenge)
    result = result_of(answer_challenge(asked, OWN))
    assert value_hash(result.id) == value_hash(id)
    assert proved_key(result.value, ASKER.public_key, token, None, *context) == OWN.public_key


@given(carried=st.lists(values(), max_size=3), signed=values())
def test_whatever_is_carried_is_answered_or_refused(carried: list[Value], signed: Value) -> None:
    for last in ([], [Signed.sign(ASKER, signed)]):
        payload = encode_message(Vector.of((Keyword("CH"), 1, *last, *carried)))
        asked, _ = decode_payload(payload)
        assert isinstance(asked, Challenge)
        result = result_of(answer_challenge(asked, OWN))
        assert result.error is None or result.error.name in {"FORMAT", "TRUST"}
        if result.error is None:
            assert isinstance(result.value, Signed)
            assert result.value.public_key == OWN.public_key


@given(
    place=st.floats(0, 1, exclude_max=True),
    byte=st.integers(0, 255),
    wanted=st.sampled_from([None, OWN.public_key]),
)
def test_a_changed_byte_of_a_challenge_is_never_answered_as_before(
    place: float, byte: int, wanted: bytes | None
) -> None:
    good = encode_challenge(1, ASKER, TOKEN, wanted)
    at = int(place * len(good))
    changed = good[:at] + bytes([byte]) + good[at + 1 :]
    try:
        asked, _ = decode_payload(changed)
    except (BadFormat, LimitExceeded):
        return
    if isinstance(asked, Challenge) and changed != good and encode(asked.id) == encode(1):
        assert result_of(answer_challenge(asked, OWN)).error is not None


@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_a_changed_byte_of_an_answer_proves_nothing(place: float, byte: int) -> None:
    asked, _ = decode_payload(encode_challenge(1, ASKER, TOKEN, None))
    assert isinstance(asked, Challenge)
    good = encode(result_of(answer_challenge(asked, OWN)).value)
    at = int(place * len(good))
    changed = good[:at] + bytes([byte]) + good[at + 1 :]
    if changed == good:
        return
    try:
        message, _ = decode_payload(b"\xdd\x05\x11\x01" + changed + bytes(3))
    except (BadFormat, LimitExceeded):
        return
    if isinstance(message, Result):
        with pytest.raises(PeerError):
            proved_key(message.value, ASKER.public_key, TOKEN, OWN.public_key)
