"""Intentions: bytes, names, signatures, and what is refused at which stage."""

from __future__ import annotations

import pytest

from datalattice.clock import Hlc
from datalattice.crypto import blake3
from datalattice.errors import BadFormat, UsageError
from datalattice.testing.log_kit import KIT_STORE, Author, author
from datalattice.weaver import (
    ZERO_HASH,
    Intention,
    IntentionRefused,
    LogLimits,
    SignedIntention,
    admit,
)

A = author(1)
HASHES = [bytes([n]) * 32 for n in range(1, 6)]


def intention(**changed: object) -> Intention:
    plain = Intention(A.public_key, Hlc(1000, 5), KIT_STORE, ZERO_HASH, (), b"\1\2\3\4")
    return plain._replace(**changed)  # type: ignore[arg-type]


def refusal(envelope: bytes, limits: LogLimits | None = None) -> str:
    with pytest.raises(IntentionRefused) as refused:
        admit([envelope], KIT_STORE, limits or LogLimits())
    assert refused.value.index == 0
    return refused.value.stage


def test_round_trip() -> None:
    given = intention(deps=tuple(HASHES))
    assert Intention.decode(given.encode()) == given
    signed = given.sign(A)
    assert SignedIntention.decode(signed.encode()) == signed
    assert signed.hash == blake3(signed.borsh)


def test_bytes_stand_where_the_layout_says() -> None:
    data = intention(deps=(HASHES[0],)).encode()
    assert len(data) == 101 + 32 + 4
    assert data[:32] == A.public_key
    assert data[32:44] == (1000).to_bytes(8, "little") + (5).to_bytes(4, "little")
    assert data[44:60] == KIT_STORE
    assert data[60:92] == ZERO_HASH
    assert data[92:97] == b"\0\1\0\0\0"
    assert data[97:129] == HASHES[0]
    assert data[129:] == b"\4\0\0\0\1\2\3\4"


@pytest.mark.parametrize(
    "changed",
    [
        {"author": author(2).public_key},
        {"stamp": Hlc(1000, 6)},
        {"stamp": Hlc(1001, 5)},
        {"store_id": bytes(16)},
        {"store_prev": HASHES[0]},
        {"deps": (HASHES[0],)},
        {"payload": b""},
    ],
)
def test_every_field_changes_the_hash(changed: dict[str, object]) -> None:
    assert blake3(intention(**changed).encode()) != blake3(intention().encode())


def test_build_sorts_the_condition_and_keeps_equal_hashes() -> None:
    given = [HASHES[2], HASHES[0], HASHES[2]]
    built = Intention.build(A.public_key, Hlc(0, 0), KIT_STORE, ZERO_HASH, given, b"")
    assert built.deps == (HASHES[0], HASHES[2], HASHES[2])


@pytest.mark.parametrize("cut", range(0, 105, 7))
def test_a_shorter_intention_is_not_one(cut: int) -> None:
    with pytest.raises(BadFormat):
        Intention.decode(intention().encode()[:cut])


def test_counts_beyond_the_bytes_are_refused_before_anything_is_taken() -> None:
    data = bytearray(intention().encode())
    data[93:97] = b"\xff" * 4
    with pytest.raises(BadFormat, match="4294967295 condition hashes"):
        Intention.decode(bytes(data))


def test_fields_that_do_not_fit_are_refused() -> None:
    for changed in (
        {"author": b"short"},
        {"store_id": b"short"},
        {"deps": (b"short",)},
        {"stamp": Hlc(2**64, 0)},
        {"stamp": Hlc(0, 2**32)},
    ):
        with pytest.raises(UsageError):
            intention(**changed).encode()
    with pytest.raises(UsageError, match="key of its author"):
        intention().sign(author(2))


def test_an_envelope_in_another_protobuf_form_is_read() -> None:
    signed = intention().sign(A)
    swapped = b"\x12@" + signed.signature + b"\x0a\x69" + signed.borsh + b"\x18\x07"
    assert admit([swapped], KIT_STORE) == [signed]


def test_a_signature_of_63_bytes_is_refused_at_decode() -> None:
    signed = intention().sign(A)
    assert refusal(b"\x0a\x69" + signed.borsh + b"\x12\x3f" + signed.signature[1:]) == "decode"
    assert refusal(b"") == "decode"


def test_tampered_signature_refused() -> None:
    signed = intention().sign(A)
    assert refusal(signed._replace(signature=bytes(64)).encode()) == "signature"
    other = intention(payload=b"\1\2\3\5").encode()
    assert refusal(signed._replace(borsh=other).encode()) == "signature"


def test_the_identity_point_is_no_author() -> None:
    # With this key and R the equation holds for every message where only it is checked.
    identity = b"\1" + bytes(31)
    borsh = intention(author=identity).encode()
    signed = SignedIntention.of(borsh, identity + bytes(32))
    assert refusal(signed.encode()) == "signature"


def test_wrong_store_refused() -> None:
    assert refusal(intention(store_id=bytes(16)).sign(A).encode()) == "store_id"


def test_a_condition_out_of_order_is_refused_and_equal_neighbours_are_not() -> None:
    assert refusal(intention(deps=(HASHES[1], HASHES[0])).sign(A).encode()) == "canonical"
    twice = intention(deps=(HASHES[0], HASHES[0])).sign(A)
    assert admit([twice.encode()], KIT_STORE) == [twice]


def test_oversize_and_too_many_deps_refused_and_exact_maximum_accepted() -> None:
    limits = LogLimits(payload_bytes=10, deps=2)
    for payload, deps, stage in (
        (10, 2, ""),
        (9, 1, ""),
        (11, 0, "limit"),
        (0, 3, "limit"),
        (1_000_000, 0, "limit"),
    ):
        signed = intention(payload=bytes(payload), deps=tuple(HASHES[:deps])).sign(A)
        if stage:
            assert refusal(signed.encode(), limits) == stage
        else:
            assert admit([signed.encode()], KIT_STORE, limits) == [signed]


def test_the_shipped_limits_accept_a_mebibyte_and_1024_hashes() -> None:
    deps = tuple(n.to_bytes(32, "big") for n in range(1, 1026))
    largest = intention(payload=bytes(1 << 20), deps=deps[:1024]).sign(A)
    assert admit([largest.encode()], KIT_STORE) == [largest]
    assert refusal(intention(payload=bytes((1 << 20) + 1)).sign(A).encode()) == "limit"
    assert refusal(intention(deps=deps).sign(A).encode()) == "limit"


def test_one_bad_intention_refuses_the_call_and_is_named() -> None:
    writer = Author()
    good = [signed.encode() for signed in writer.chain(3)]
    with pytest.raises(IntentionRefused, match=r"intention 2: .*\(decode\)") as refused:
        admit([*good[:2], b"\x0a\x01x", good[2]], KIT_STORE)
    assert refused.value.index == 2
    assert admit([], KIT_STORE) == []
