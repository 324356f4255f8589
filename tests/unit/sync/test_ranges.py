"""Ranges: both sides learn what they lack, whatever the sets, and a hostile side learns little."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from datalattice.crypto import SeededEntropy
from datalattice.errors import ProtocolViolation
from datalattice.sync.reconcile import (
    HASH_END,
    HASH_START,
    RANGE_LIMITS,
    RangeFingerprint,
    RangeItems,
    RangeLimits,
    RangeMessage,
    RangeReconciliation,
    SortedHashes,
    first_cut,
    middle,
    reference_middle,
)

DONE = RangeMessage(done=True)


def name(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def names(numbers: Iterable[int]) -> set[bytes]:
    return {name(number) for number in numbers}


class Outcome:
    """What a session between two sets came to."""

    def __init__(
        self,
        a: set[bytes],
        b: set[bytes],
        limits: RangeLimits = RANGE_LIMITS,
        cut: bytes | None = None,
        *,
        differs: bool = False,
    ) -> None:
        sides = [RangeReconciliation(SortedHashes(each), limits) for each in (a, b)]
        needs: list[set[bytes]] = [set(), set()]
        self.sizes: list[int] = []
        payload: Sequence[RangeMessage] = sides[0].start(cut, differs=differs)
        receiver = 1
        while payload:
            self.sizes.append(sum(len(message.encode()) for message in payload))
            step = sides[receiver].receive(payload)
            needs[receiver] |= set(step.needs)
            payload, receiver = step.answer, 1 - receiver
        self.partial = sides[0].partial or sides[1].partial
        self.a_needs, self.b_needs = needs


sets = st.sets(st.integers(0, 300)).map(names)


cuts = st.none() | st.integers(0, 9).map(SeededEntropy).map(first_cut)


@given(sets, sets, cuts, st.booleans())
def test_both_sides_learn_exactly_what_they_lack(
    a: set[bytes], b: set[bytes], cut: bytes | None, differs: bool
) -> None:
    found = Outcome(a, b, cut=cut, differs=differs)
    assert found.a_needs == b - a
    assert found.b_needs == a - b
    assert not found.partial


def test_sets_known_to_differ_are_halved_three_times_at_once() -> None:
    a, b = names(range(5_000)), names(range(10, 5_010))
    cut = first_cut(SeededEntropy(0))
    whole, halved = (Outcome(a, b, cut=cut, differs=differs) for differs in (False, True))
    assert len(halved.sizes) == len(whole.sizes) - 3
    assert sum(halved.sizes) < sum(whole.sizes)
    assert (halved.a_needs, halved.b_needs) == (whole.a_needs, whole.b_needs)


@pytest.mark.parametrize(("most", "opened"), [(15, 8), (16, 16), (17, 16)])
def test_so_many_ranges_open_a_session_of_sets_that_differ(most: int, opened: int) -> None:
    side = RangeReconciliation(SortedHashes([]), RangeLimits(first_ranges=most))
    opening = side.start(first_cut(SeededEntropy(0)), differs=True)
    spans = [(one.start, one.end) for each in opening if (one := each.fingerprint) is not None]
    assert len(spans) == opened
    assert (spans[0][0], spans[-1][1]) == (HASH_START, HASH_END)
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    # "The 24 bytes of ff make all later middles equal to those of the reference."
    assert all(middle(*span) == reference_middle(*span) for span in spans)


def test_neighbouring_hashes_are_told_apart() -> None:
    low = [number.to_bytes(32, "big") for number in range(200)]
    found = Outcome(set(low), set(low[::2]))
    assert found.b_needs == set(low[1::2])
    assert len(found.sizes) <= RANGE_LIMITS.payloads


def test_large_differences_take_several_sessions_of_bounded_payloads() -> None:
    limits = RangeLimits(answer_bytes=20_000, session_bytes=50_000, session_hash_bytes=0)
    a: set[bytes] = set()
    b = names(range(3_000))
    sessions = 0
    partial = True
    while partial:
        sessions += 1
        found = Outcome(a, b, limits)
        assert max(found.sizes) <= limits.answer_bytes
        assert sum(found.sizes) <= 2 * limits.session_bytes + limits.answer_bytes
        a |= found.a_needs
        partial = found.partial
        assert found.a_needs or not partial
    assert a == b
    assert sessions > 1


@pytest.mark.once
@pytest.mark.timeout(300)
def test_300_000_hashes_against_an_empty_set_end_in_partial_sessions() -> None:
    a: set[bytes] = set()
    b = names(range(300_000))
    sessions = 0
    is_over = False
    while not is_over:
        sessions += 1
        found = Outcome(a, b)
        assert max(found.sizes) < 8 * 1024 * 1024  # a frame
        a |= found.a_needs
        is_over = not found.partial
    assert a == b
    assert sessions == 3


def test_sets_crafted_to_equal_fingerprints_differ_at_a_random_cut() -> None:
    a, b = crafted_pair()
    assert a != b
    assert len(a) == len(b)
    whole = (HASH_START, HASH_END)
    assert SortedHashes(a).fingerprint(*whole) == SortedHashes(b).fingerprint(*whole)
    assert not Outcome(a, b).a_needs
    for seed in range(5):
        a |= Outcome(a, b, cut=first_cut(SeededEntropy(seed))).a_needs
    assert a >= b


def crafted_pair() -> tuple[set[bytes], set[bytes]]:
    """Return two sets of equal XOR and size, by linear algebra over 300 hashes and their parity."""
    pool = [name(number) for number in range(300)]
    # Each hash is a vector of 256 bits; a further bit makes chosen subsets even in number.
    basis: dict[int, tuple[int, int]] = {}
    for position, each in enumerate(pool):
        vector, members = int.from_bytes(each, "big") << 1 | 1, 1 << position
        while vector and vector.bit_length() in basis:
            other, others = basis[vector.bit_length()]
            vector, members = vector ^ other, members ^ others
        if vector:
            basis[vector.bit_length()] = vector, members
            continue
        # The XOR of these members is zero: halves of them have equal XOR.
        chosen = [pool[bit] for bit in range(300) if members >> bit & 1]
        half = len(chosen) // 2
        return set(chosen[:half]), set(chosen[half:])
    raise AssertionError("300 vectors of 257 bits are dependent")


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_below_the_first_cut_both_middles_are_equal(start: bytes, end: bytes) -> None:
    start, end = min(start, end), max(start, end)
    assert start <= reference_middle(start, end) <= middle(start, end) <= end
    cut = first_cut(SeededEntropy(int.from_bytes(start[:4], "big")))
    for span in ((HASH_START, cut), (cut, HASH_END)):
        low, high = span
        for digit in start[:20]:
            half = middle(low, high)
            assert half == reference_middle(low, high)
            low, high = (low, half) if digit & 1 else (half, high)


def fingerprint(start: bytes, end: bytes, count: int = 100) -> RangeMessage:
    return RangeMessage(fingerprint=RangeFingerprint(start, end, b"\1" * 32, count))


def request(start: bytes, end: bytes, *hashes: bytes) -> RangeMessage:
    return RangeMessage(items_request=RangeItems(start, end, hashes))


def reply(start: bytes, end: bytes, *hashes: bytes) -> RangeMessage:
    return RangeMessage(items_reply=RangeItems(start, end, hashes))


WHOLE = (HASH_START, HASH_END)
HALF = middle(*WHOLE)
LOW = (HASH_START, HALF)
HIGH = (HALF, HASH_END)


def opened(hashes: int = 20) -> RangeReconciliation:
    side = RangeReconciliation(SortedHashes(names(range(hashes))))
    side.start()
    return side


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ([fingerprint(*WHOLE)], "is no half of a range sent"),
        ([fingerprint(HASH_START, middle(*LOW))], "is no half of a range sent"),
        ([fingerprint(*LOW), fingerprint(*LOW)], "is answered twice"),
        ([fingerprint(*LOW), request(*WHOLE)], "is answered twice"),
        ([request(*WHOLE), fingerprint(*HIGH)], "is answered twice"),
        ([request(*LOW)], "no fingerprint was sent of"),
        ([reply(*WHOLE)], "no list was requested of"),
        ([request(*WHOLE, *sorted(names(range(13))))], "has 13 hashes; at most 12 fit"),
        ([request(*WHOLE, name(1), name(1))], "does not ascend within it"),
        ([request(*WHOLE, b"short")], "does not ascend within it"),
        ([request(*WHOLE, HASH_END)], "does not ascend within it"),
        ([fingerprint(HASH_END, HASH_START)], "is not a range"),
        ([fingerprint(b"", HASH_END)], "is not a range"),
        ([RangeMessage(fingerprint=RangeFingerprint(*LOW, b"", 0))], "a fingerprint has 32 bytes"),
        ([RangeMessage()], "a message without a kind"),
    ],
)
def test_a_payload_that_answers_nothing_asked_ends_the_session(
    payload: list[RangeMessage], reason: str
) -> None:
    with pytest.raises(ProtocolViolation, match=reason):
        opened().receive(payload)


def test_a_list_may_fill_the_threshold_exactly() -> None:
    step = opened(20).receive([request(*WHOLE, *sorted(names(range(100, 112))))])
    assert len(step.needs) == 12


def test_a_list_is_answered_once() -> None:
    side = opened(20)
    step = side.receive([fingerprint(*LOW, 1), fingerprint(*HIGH, 1)])
    spans = [(m.items_request.start, m.items_request.end) for m in step.answer if m.items_request]
    assert spans == [LOW, HIGH]
    with pytest.raises(ProtocolViolation, match="no list was requested"):
        side.receive([reply(*LOW), reply(*LOW)])


@pytest.mark.parametrize("halve", [middle, reference_middle])
def test_halves_at_either_middle_are_accepted(halve: Callable[[bytes, bytes], bytes]) -> None:
    cut = bytes.fromhex("3fd4235992edcf451a1afe878b33e968617959ce3f1f65a8de5271007814e8a2")
    assert middle(cut, HASH_END) != reference_middle(cut, HASH_END)
    side = RangeReconciliation(SortedHashes([]))
    side.start(cut)
    half = halve(cut, HASH_END)
    side.receive([DONE, fingerprint(cut, half), fingerprint(half, HASH_END)])


def steps(count: int) -> list[RangeMessage]:
    cuts = [bytes([number]) + bytes(31) for number in range(count)]
    return [fingerprint(low, high) for low, high in zip(cuts, [*cuts[1:], HASH_END], strict=True)]


@pytest.mark.parametrize("ranges", [1, 15, 16])
def test_a_session_may_open_with_up_to_16_ranges(ranges: int) -> None:
    RangeReconciliation(SortedHashes([])).receive(steps(ranges))


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ([], "opens with 1 to 16 fingerprints"),
        (steps(17), "opens with 1 to 16 fingerprints"),
        ([DONE], "opens with 1 to 16 fingerprints"),
        ([request(*WHOLE)], "opens with 1 to 16 fingerprints"),
        ([fingerprint(*HIGH), fingerprint(*LOW)], "overlap or do not ascend"),
        ([fingerprint(*WHOLE), fingerprint(*HIGH)], "overlap or do not ascend"),
    ],
)
def test_a_wrong_opening_ends_the_session(payload: list[RangeMessage], reason: str) -> None:
    with pytest.raises(ProtocolViolation, match=reason):
        RangeReconciliation(SortedHashes([])).receive(payload)


def test_the_number_of_payloads_is_bounded() -> None:
    side = RangeReconciliation(SortedHashes([]), RangeLimits(payloads=3))
    side.start()
    for _ in range(3):
        side.receive([DONE])
    with pytest.raises(ProtocolViolation, match="more than 3 payloads"):
        side.receive([DONE])


def test_an_honest_deepest_session_stays_within_the_payloads() -> None:
    a = {number.to_bytes(32, "big") for number in range(64)}
    assert len(Outcome(a, {HASH_START}).sizes) <= RANGE_LIMITS.payloads
