"""Ranges: reconcile two sets of 32-byte hashes by fingerprints of ranges.

A range is `start <= hash < end`. One side states the fingerprint and count of a range; the other
answers that it has the same, or the fingerprints of both halves, or, where few hashes are left, its
list. Whoever receives a list learns what it needs.

    fingerprint   -> done | two fingerprints | items_request with own hashes
    items_request -> items_reply with own hashes; needs what is in theirs alone
    items_reply   -> done; needs what is in theirs alone
    done          -> nothing

Each payload is answered by one payload with all answers. A peer may only answer the ranges of our
last payload, so it can make neither the rounds nor the work grow.

Source: Weaver specification "Reconciliation", "Limits and hostile peers".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from operator import xor
from typing import Annotated, Final, NamedTuple, Protocol

from datalattice.crypto import Entropy
from datalattice.errors import ProtocolViolation
from datalattice.limits import HASH_BYTES
from datalattice.protobuf import Field, Message

HASH_START: Final = bytes(HASH_BYTES)
HASH_END: Final = b"\xff" * HASH_BYTES
"""End of the space of hashes. A hash of this value lies outside and is never reconciled."""

_HALF_BITS: Final = 128
_HALF_MASK: Final = 2**_HALF_BITS - 1
_FIRST_CUT_BYTES: Final = 8  # "8 random bytes followed by 24 bytes ff"

_RANGE_BYTES: Final = 2 * (HASH_BYTES + 2) + 16
"""Bound of the encoded bytes of a range: its bounds, and tags, lengths and count around them."""

_HASH_BYTES: Final = HASH_BYTES + 2
"""Encoded bytes of a hash in a list: tag and length in front of it."""

HashRange = tuple[bytes, bytes]


class RangeFingerprint(Message, name="lattice.network.RangeFingerprint"):
    """XOR and number of the sender's hashes in a range."""

    start: Annotated[bytes, Field(1)] = b""
    end: Annotated[bytes, Field(2)] = b""
    fingerprint: Annotated[bytes, Field(3)] = b""
    count: Annotated[int, Field(4, "uint64")] = 0


class RangeItems(Message, name="lattice.network.RangeItems"):
    """The sender's hashes in a range, ascending."""

    start: Annotated[bytes, Field(1)] = b""
    end: Annotated[bytes, Field(2)] = b""
    hashes: Annotated[tuple[bytes, ...], Field(3)] = ()


class RangeMessage(Message, name="lattice.network.ReconcileMessage"):
    """One answer within a payload."""

    fingerprint: Annotated[RangeFingerprint | None, Field(1, oneof="message")] = None
    items_request: Annotated[RangeItems | None, Field(2, oneof="message")] = None
    items_reply: Annotated[RangeItems | None, Field(3, oneof="message")] = None
    done: Annotated[bool | None, Field(4, oneof="message")] = None


_DONE: Final = RangeMessage(done=True)


class HashSet(Protocol):
    """A set of hashes that does not change while it is reconciled."""

    def count(self, start: bytes, end: bytes) -> int:
        """Return the number of hashes in the range."""

    def fingerprint(self, start: bytes, end: bytes) -> bytes:
        """Return the 32-byte XOR of the hashes in the range; zeros for none."""

    def hashes(self, start: bytes, end: bytes) -> Sequence[bytes]:
        """Return the hashes in the range, ascending."""

    def iter_hashes(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the hashes in the range, ascending."""


class SortedHashes:
    """A `HashSet` over hashes in memory. Any range costs two binary searches."""

    def __init__(self, hashes: Iterable[bytes]) -> None:
        self._hashes = sorted(set(hashes))
        numbers = (int.from_bytes(each, "big") for each in self._hashes)
        # Running XORs: the fingerprint of any range is that of two prefixes.
        self._xors = list(accumulate(numbers, xor, initial=0))

    def _slice(self, start: bytes, end: bytes) -> tuple[int, int]:
        return bisect_left(self._hashes, start), bisect_left(self._hashes, end)

    def count(self, start: bytes, end: bytes) -> int:
        low, high = self._slice(start, end)
        return high - low

    def fingerprint(self, start: bytes, end: bytes) -> bytes:
        low, high = self._slice(start, end)
        return (self._xors[low] ^ self._xors[high]).to_bytes(HASH_BYTES, "big")

    def hashes(self, start: bytes, end: bytes) -> Sequence[bytes]:
        low, high = self._slice(start, end)
        return self._hashes[low:high]

    def iter_hashes(self, start: bytes, end: bytes) -> Iterator[bytes]:
        return iter(self.hashes(start, end))


class RangeLimits(NamedTuple):
    """Bounds of one session."""

    items: int = 32  # "own + peer count <= 32"
    """Most hashes of both sides in a range for which lists are sent in place of fingerprints."""
    first_ranges: int = 16  # "The first payload may hold 1 to 16 ranges"
    """Most ranges in the payload that opens a session."""
    payloads: int = 260  # "260 payloads end any legal session"
    """Most payloads of the peer: a range can be halved 256 times."""
    answer_bytes: int = 4 * 1024 * 1024  # "stay within 4 MiB": half of a frame
    """Bytes of one payload after which ranges are answered `done`, for a later session."""
    session_bytes: int = 16 * 1024 * 1024  # "At most 16 MiB + 40 bytes per own hash"
    """Bytes sent in a session, plus `session_hash_bytes` per own hash, with the same effect."""
    session_hash_bytes: int = 40


RANGE_LIMITS: Final = RangeLimits()


def middle(start: bytes, end: bytes) -> bytes:
    """Return floor((start + end) / 2)."""
    total = int.from_bytes(start, "big") + int.from_bytes(end, "big")
    return (total // 2).to_bytes(HASH_BYTES, "big")  # integers: no carry is lost


def reference_middle(start: bytes, end: bytes) -> bytes:
    """Return the middle as the reference computes it, which may be 2**127 below `middle`.

    It averages each 128-bit half and sets the top bit of the low one where the high sum was odd: a
    bit that is set already is not carried.
    """
    a, b = int.from_bytes(start, "big"), int.from_bytes(end, "big")
    high = (a >> _HALF_BITS) + (b >> _HALF_BITS)
    low = (a & _HALF_MASK) + (b & _HALF_MASK)
    half = low >> 1 | (high & 1) << (_HALF_BITS - 1)
    return ((high >> 1) << _HALF_BITS | half).to_bytes(HASH_BYTES, "big")


def first_cut(entropy: Entropy) -> bytes:
    """Return a random first cut of the space.

    XOR is linear, so a peer can craft two sets with equal fingerprints; it cannot know this cut.
    The 24 bytes of ff make all later middles equal to those of the reference.
    """
    return entropy.bytes(_FIRST_CUT_BYTES) + HASH_END[_FIRST_CUT_BYTES:]


class RangeStep(NamedTuple):
    """What follows from a payload.

    answer: messages to be sent as one payload; empty: nothing is sent.
    needs:  hashes of the peer that are not here, ascending.
    """

    answer: tuple[RangeMessage, ...]
    needs: tuple[bytes, ...]


class _Left:
    """The ranges of our last payload that the peer may answer, and those that it has answered.

    A fingerprint is answered by one list or by the two halves of its range, a list by one list.
    """

    def __init__(self, payload: Sequence[RangeMessage]) -> None:
        self._counts: dict[HashRange, int] = {}
        self._halves: dict[HashRange, tuple[HashRange, str]] = {}
        self._requested: set[HashRange] = set()
        self._answered: dict[HashRange, set[str]] = {}
        for message in payload:
            if message.fingerprint is not None:
                self._add(_span_of(message), message.fingerprint.count)
            elif message.items_request is not None:
                self._requested.add(_span_of(message))

    def _add(self, span: HashRange, count: int) -> None:
        start, end = span
        self._counts[span] = count
        # "Accept a half cut at either mid."
        for cut in {middle(start, end), reference_middle(start, end)}:
            self._halves[start, cut] = span, "low"
            self._halves[cut, end] = span, "high"

    def take(self, message: RangeMessage, items_max: int) -> None:
        """Strike out what `message` answers.

        Raises: ProtocolViolation: it answers nothing that is left.
        """
        span = _span_of(message)
        if message.items_reply is not None:
            # "an items_reply names a range we requested", once.
            if span not in self._requested:
                raise ProtocolViolation(f"reconciliation: no list was requested of {_text(span)}")
            self._requested.remove(span)
            return
        if message.items_request is not None:
            if span not in self._counts:
                raise ProtocolViolation(f"reconciliation: no fingerprint was sent of {_text(span)}")
            self._strike(span, "whole")
            # "no longer than 32 minus our count there": what the peer may list is bounded by what
            # we said.
            room = items_max - self._counts[span]
            if len(message.items_request.hashes) > room and not _is_narrow(span):
                raise ProtocolViolation(
                    f"reconciliation: the list of {_text(span)} has "
                    f"{len(message.items_request.hashes)} hashes; at most {max(0, room)} fit"
                )
            return
        parent, half = self._halves.get(span, (None, ""))
        # "covers exactly one half of a range whose fingerprint we sent in our last payload"
        if parent is None:
            raise ProtocolViolation(f"reconciliation: {_text(span)} is no half of a range sent")
        self._strike(parent, half)

    def _strike(self, span: HashRange, part: str) -> None:
        answered = self._answered.setdefault(span, set())
        # A fingerprint has one list or two halves for an answer.
        if part in answered or "whole" in answered or (part == "whole" and answered):
            raise ProtocolViolation(f"reconciliation: {_text(span)} is answered twice")
        answered.add(part)


class RangeReconciliation:
    """One side of a session, without sending or fetching: `start` or wait, then `receive`.

    partial: some range was answered `done` because of a size limit. If anything was exchanged,
             another session finds more.
    """

    def __init__(self, own: HashSet, limits: RangeLimits = RANGE_LIMITS) -> None:
        self.partial = False
        self._own = own
        self._limits = limits
        self._payloads = 0
        self._bytes_left = limits.session_bytes + limits.session_hash_bytes * own.count(
            HASH_START, HASH_END
        )
        self._left: _Left | None = None  # None: the peer opens the session

    def start(self, cut: bytes | None = None, *, differs: bool = False) -> tuple[RangeMessage, ...]:
        """Return the payload that opens a session: the full space, or two ranges around `cut`.

        differs: the sets are known to differ, so the ranges are halved at once, into 16. That saves
                 three payloads, and would cost 1.5 kB where the sets are equal.
        """
        bounds = [HASH_START, HASH_END] if cut is None else [HASH_START, cut, HASH_END]
        # "The first payload may hold 1 to 16 ranges."
        while differs and 2 * (len(bounds) - 1) <= self._limits.first_ranges:
            halves = [(start, middle(start, end)) for start, end in pairwise(bounds)]
            bounds = [*chain.from_iterable(halves), HASH_END]
        payload = tuple(map(self._fingerprint, bounds[:-1], bounds[1:]))
        self._left = _Left(payload)
        return payload

    def receive(self, payload: Sequence[RangeMessage]) -> RangeStep:
        """Take in a payload of the peer.

        Raises: ProtocolViolation: it opens a session wrongly, or is no answer to our last payload.
        """
        self._payloads += 1
        if self._payloads > self._limits.payloads:  # a peer may not keep a session open for ever
            raise ProtocolViolation(f"reconciliation: more than {self._limits.payloads} payloads")
        asked = [message for message in payload if message.done is None]
        for message in asked:
            _check_span(message)
        # Every message is checked before the first is answered.
        if self._left is None:
            self._check_opening(asked)
        else:
            for message in asked:
                self._left.take(message, self._limits.items)
        room = self._limits.answer_bytes
        answer: list[RangeMessage] = []
        needs: set[bytes] = set()
        for message in payload:
            if message.done is not None:
                continue
            needs.update(self._lacks(message))
            made = self._answer(message)
            size = sum(map(_size, made))
            # The first answer is always given, or a session could end without any result.
            if size > self._bytes_left or (size > room and room < self._limits.answer_bytes):
                self.partial = True
                made, size = [_DONE], 0
            room -= size
            self._bytes_left -= size
            answer += made
        self._left = _Left(answer)  # only what this payload says may be answered next
        return RangeStep(tuple(answer), tuple(sorted(needs)))

    def _check_opening(self, asked: Sequence[RangeMessage]) -> None:
        most = self._limits.first_ranges
        # "The first payload may hold 1 to 16 ranges, ascending and disjoint."
        if not 1 <= len(asked) <= most or any(message.fingerprint is None for message in asked):
            raise ProtocolViolation(
                f"reconciliation: a session opens with 1 to {most} fingerprints"
            )
        spans = [_span_of(message) for message in asked]
        if any(before[1] > after[0] for before, after in pairwise(spans)):
            raise ProtocolViolation("reconciliation: the first ranges overlap or do not ascend")

    def _lacks(self, message: RangeMessage) -> list[bytes]:
        theirs = message.items_request or message.items_reply
        if theirs is None:
            return []
        # One look-up of the range, not one a hash.
        held = set(self._own.hashes(theirs.start, theirs.end))
        return [each for each in theirs.hashes if each not in held]

    def _answer(self, message: RangeMessage) -> list[RangeMessage]:
        if message.items_reply is not None:
            return [_DONE]
        start, end = _span_of(message)
        theirs = message.fingerprint
        if theirs is None:
            return [RangeMessage(items_reply=self._items(start, end))]
        count = self._own.count(start, end)
        # "equal fingerprint and count": XOR alone can be made equal by a peer.
        if theirs.count == count and theirs.fingerprint == self._own.fingerprint(start, end):
            return [_DONE]
        cut = middle(start, end)
        # "Guard: mid equal to start or end: list items."
        if count + theirs.count <= self._limits.items or cut in {start, end}:
            return [RangeMessage(items_request=self._items(start, end))]
        return [self._fingerprint(start, cut), self._fingerprint(cut, end)]

    def _items(self, start: bytes, end: bytes) -> RangeItems:
        return RangeItems(start, end, tuple(self._own.hashes(start, end)))

    def _fingerprint(self, start: bytes, end: bytes) -> RangeMessage:
        count, fingerprint = self._own.count(start, end), self._own.fingerprint(start, end)
        return RangeMessage(fingerprint=RangeFingerprint(start, end, fingerprint, count))


def _span_of(message: RangeMessage) -> HashRange:
    part = message.fingerprint or message.items_request or message.items_reply
    if part is None:
        raise ProtocolViolation("reconciliation: a message without a kind")
    return part.start, part.end


def _check_span(message: RangeMessage) -> None:
    start, end = _span_of(message)
    if len(start) != HASH_BYTES or len(end) != HASH_BYTES or start > end:
        raise ProtocolViolation(
            f"reconciliation: {_text((start, end))} is not a range of {HASH_BYTES}-byte hashes"
        )
    if message.fingerprint is not None:
        if len(message.fingerprint.fingerprint) != HASH_BYTES:
            raise ProtocolViolation(f"reconciliation: a fingerprint has {HASH_BYTES} bytes")
        return
    items = message.items_request or message.items_reply
    assert items is not None
    last = b""
    for each in items.hashes:
        # "Lists ascend, without repeats, inside the range"
        if len(each) != HASH_BYTES or not start <= each < end or each <= last:
            raise ProtocolViolation(
                f"reconciliation: the list of {_text((start, end))} does not ascend within it"
            )
        last = each


def _is_narrow(span: HashRange) -> bool:
    """Return whether the range cannot be halved, so that it is listed whatever its counts."""
    start, end = span
    return middle(start, end) in span  # "not checked for a range of width 1"


def _size(message: RangeMessage) -> int:
    """Return a bound of the encoded bytes of a fingerprint or list; 0 for `done`."""
    if message.fingerprint is not None:
        return _RANGE_BYTES + _HASH_BYTES
    items = message.items_request or message.items_reply
    # `done` costs nothing, so it always fits.
    return 0 if items is None else _RANGE_BYTES + _HASH_BYTES * len(items.hashes)


def _text(span: HashRange) -> str:
    start, end = span
    return f"the range {start[:8].hex()}...{end[:8].hex()}"
