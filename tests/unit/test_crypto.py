"""Crypto: BLAKE3, and what strict verification refuses."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from datalattice import crypto
from datalattice.crypto import (
    VERIFIED_PER_THREAD,
    Blake3,
    KeyPair,
    PlainVerification,
    Verification,
    blake3,
    first_unverified,
    verification,
    verify,
    verify_lenient,
    verify_strict,
)
from datalattice.testing.polling import LIMIT_S

Begin = Callable[[int, list[tuple[bytes, bytes, bytes]]], Verification]
KEY = KeyPair(b"\x2a" * 32)
ORDER = 2**252 + 27742317777372353535851937790883648493
SMALL_ORDER = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


def test_blake3_of_the_published_examples() -> None:
    assert blake3(b"").hex().startswith("af1349b9f5f9a1a6a0404dea36dcc949")
    assert blake3(bytes([0, 1, 2])).hex().startswith("e1be4d7a8ab5560aa4199eea339849ba")


def test_blake3_of_parts_is_that_of_their_sum() -> None:
    hasher = Blake3()
    for part in (b"\x00", bytearray(b"\x01"), b"", b"\x02"):
        hasher.update(part)
    assert hasher.digest() == blake3(bytes([0, 1, 2])) == hasher.digest()


@pytest.mark.parametrize("check", [verify, verify_strict, verify_lenient])
def test_a_signature_verifies_for_its_key_and_message_alone(check: object) -> None:
    assert callable(check)
    signature = KEY.sign(b"message")
    assert check(KEY.public_key, signature, b"message")
    assert not check(KEY.public_key, signature, b"massage")
    assert not check(KeyPair(b"\x2b" * 32).public_key, signature, b"message")
    assert not check(KEY.public_key, signature[:-1], b"message")
    assert not check(KEY.public_key[:-1], signature, b"message")
    assert not check(KEY.public_key, bytes(64), b"message")


def test_an_s_beyond_the_group_order_is_refused() -> None:
    signature = KEY.sign(b"message")
    raised = int.from_bytes(signature[32:], "little") + ORDER
    assert not verify_strict(
        KEY.public_key, signature[:32] + raised.to_bytes(32, "little"), b"message"
    )


@pytest.mark.parametrize("point", SMALL_ORDER)
@pytest.mark.parametrize("sign", [0, 0x80])
def test_keys_of_small_order_are_refused(point: str, sign: int) -> None:
    raw = bytearray.fromhex(point)
    raw[31] |= sign
    # With S = 0 and R = A, one message in eight verifies where such an A is allowed.
    for text in range(64):
        assert not verify_strict(bytes(raw), bytes(raw) + bytes(32), b"%d" % text)


def test_an_r_of_small_order_is_refused_though_the_equation_holds() -> None:
    # R is the identity, so S = k a solves S B = R + k A; the key is an ordinary one.
    identity = (1).to_bytes(32, "little")
    secret = int.from_bytes(hashlib.sha512(KEY.seed).digest()[:32], "little")
    secret = secret & (2**254 - 8) | 2**254
    digest = hashlib.sha512(identity + KEY.public_key + b"message").digest()
    s = int.from_bytes(digest, "little") % ORDER * secret % ORDER
    signature = identity + s.to_bytes(32, "little")
    assert verify_lenient(KEY.public_key, signature, b"message")
    assert not verify_strict(KEY.public_key, signature, b"message")


def test_a_seal_is_that_of_one_pair_and_message() -> None:
    pair = KeyPair(b"\x01" * 32)
    seal = pair.seal(b"message")
    assert (len(seal), seal) == (32, KeyPair(pair.seed).seal(b"message"))
    assert seal not in {pair.seal(b"massage"), KeyPair(b"\x02" * 32).seal(b"message")}
    assert seal != blake3(b"message")


def test_a_pair_whose_halves_do_not_fit_is_not_sound() -> None:
    pair, other = KeyPair(b"\x01" * 32), KeyPair(b"\x02" * 32)
    assert pair.is_sound
    other.public_key = pair.public_key
    assert not other.is_sound


@pytest.mark.parametrize("processors", [1, 2, 3])
@pytest.mark.parametrize("begin", [crypto._begin, PlainVerification], ids=["here", "plain"])
def test_the_first_bad_signature_is_found_on_any_number_of_threads(
    begin: Begin, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crypto, "_PROCESSORS", processors)
    monkeypatch.setattr(crypto, "_begin", begin)
    messages = [b"%d" % number for number in range(3 * VERIFIED_PER_THREAD)]
    signed = [(KEY.public_key, KEY.sign(message), message) for message in messages]
    assert first_unverified(signed) is None
    assert first_unverified([]) is None
    for bad in ([0], [len(signed) - 1], [100, 71, 72], [5, 4]):
        forged = list(signed)
        for index in bad:
            forged[index] = (KEY.public_key, bytes(64), messages[index])
        assert first_unverified(forged) == min(bad)


class Watched:
    """Work that notes who assists, and lets a test go on meanwhile."""

    def __init__(self) -> None:
        self.assistants: list[int] = []
        self.is_assisted, self.may_end = threading.Event(), threading.Event()

    def assist(self) -> None:
        self.assistants.append(threading.get_ident())
        self.is_assisted.set()
        assert self.may_end.wait(60)

    def finish(self) -> int | None:
        self.may_end.set()
        return None


MANY = [(KEY.public_key, KEY.sign(b"m"), b"m")] * (4 * VERIFIED_PER_THREAD)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Watched]]:
    """Give the work of each call, in order, on two processors."""
    found: list[Watched] = []

    def begin(_function: int, _signed: object) -> Watched:
        found.append(Watched())
        return found[-1]

    monkeypatch.setattr(crypto, "_PROCESSORS", 2)
    monkeypatch.setattr(crypto, "_begin", begin)
    yield found
    for one in found:
        one.may_end.set()


def test_signatures_are_verified_before_they_are_asked_for(watched: list[Watched]) -> None:
    finish = verification(MANY)
    assert watched[0].is_assisted.wait(60)
    assert watched[0].assistants != [threading.get_ident()]
    assert finish() is None


def test_a_thread_that_is_done_goes_on_with_the_signatures_of_another_caller(
    watched: list[Watched],
) -> None:
    first, second = verification(MANY), verification(MANY)
    assert watched[0].is_assisted.wait(60)
    assert not watched[1].assistants, "both processors are in use: by it, and by a caller"
    assert first() is None
    assert watched[1].is_assisted.wait(60)
    assert watched[1].assistants == watched[0].assistants
    assert second() is None


def test_few_signatures_and_one_processor_have_the_caller_alone(
    watched: list[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert first_unverified(MANY[: 2 * VERIFIED_PER_THREAD - 1]) is None
    monkeypatch.setattr(crypto, "_PROCESSORS", 1)
    assert first_unverified(MANY) is None
    assert [one.assistants for one in watched] == [[], []]


def test_a_forked_child_verifies_with_threads_of_its_own(watched: list[Watched]) -> None:
    finish = verification(MANY)
    assert watched[0].is_assisted.wait(60)
    with crypto._assistants._lock:  # as another thread may, at that moment
        child = os.fork()
        if not child:
            code = 1
            try:
                signal.alarm(30)  # what would wait for ever ends
                in_child = verification(MANY)
                code = 0 if watched[1].is_assisted.wait(LIMIT_S) and in_child() is None else 2
            finally:
                os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert finish() is None


def test_where_no_thread_is_to_be_had_the_caller_verifies_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(crypto, "_PROCESSORS", 3)
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", none)
        assert first_unverified(MANY) is None
    assert first_unverified([*MANY, (b"", b"", b"")]) == len(MANY)


@pytest.mark.parametrize("begin", [crypto._begin, PlainVerification], ids=["here", "plain"])
def test_what_is_no_bytes_is_an_error_of_the_caller(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crypto, "_begin", begin)
    with pytest.raises(TypeError):
        first_unverified([*MANY, (KEY.public_key, KEY.sign(b"m"), "m"), *MANY])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "wrong",
    [
        (KEY.public_key[:-1], KEY.sign(b"m"), b"m"),
        (KEY.public_key, KEY.sign(b"m")[:-1], b"m"),
        (KEY.public_key, KEY.sign(b"m") + b"\0", b"m"),
        (KEY.public_key, KEY.sign(b"m"), b""),
        (b"", b"", b""),
    ],
)
def test_bytes_of_another_length_are_not_verified(wrong: tuple[bytes, bytes, bytes]) -> None:
    good = (KEY.public_key, KEY.sign(b"m"), b"m")
    empty = (KEY.public_key, KEY.sign(b""), b"")
    assert first_unverified([good, empty, wrong, wrong, good]) == 2
