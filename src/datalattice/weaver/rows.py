"""Rows: the tables of one store's log and the bytes of their rows.

Integers in keys are big-endian, so that scans run in order; in values little-endian. `seq` is the
place in the witness log and `number` the place of an author in the order of first appearance, both
counted from 1; 0 stands for "none".

A witness row holds an intention and the other fields of its record, so the log costs one row and
one index entry an intention:

    number u32, height u32, contents u32, prev seq u32, skip seq u32, base seq u32, wall u64,
    depth u8, flags u8, length of frontier u32, content hash before 32, frontier, signature 64, then
    the Borsh bytes without author and store id

Author and store are left out: the number names the author, whose key stands in its first row, in
the field of the predecessor, which a first intention lacks.

Length: one layout, with classes instead of tuples for rows that are made for each intention.

Source: docs/design/weaver.md "Tables of a store".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from datalattice.clock import HLC_ZERO, Hlc
from datalattice.crypto import SEAL_BYTES, SIGNATURE_BYTES
from datalattice.engine import ReadTxn, successor
from datalattice.errors import Corruption, DataLatticeError
from datalattice.protobuf import read_varint, varint
from datalattice.weaver.intention import ZERO_HASH, SignedIntention

WITNESS: Final = "witness"
WITNESS_INDEX: Final = "witness_index"
AUTHORS: Final = "authors"
AUTHOR_TIPS: Final = "author_tips"
FLOATING: Final = "floating"
FLOATING_BY_PREV: Final = "floating_by_prev"
FLOATING_BY_DEP: Final = "floating_by_dep"
LOG_META: Final = "log_meta"

LOG_TABLES: Final = (
    WITNESS,
    WITNESS_INDEX,
    AUTHORS,
    AUTHOR_TIPS,
    FLOATING,
    FLOATING_BY_PREV,
    FLOATING_BY_DEP,
    LOG_META,
)
"""The tables that an engine needs for the logs of its stores."""

HEAD_KEY: Final = b"head"
FORK_PREFIX: Final = b"fork/"
FORK_END: Final = b"fork0"  # "0" is the character after "/"
RANGE_PREFIX: Final = b"range/"
"""Rows of `log_meta`: the head; for each floating branch of a fork, the witnessed one; for each
first byte of a hash, how many witnessed ones begin with it and their XOR."""

SEQ_MAX: Final = 2**32 - 1
"""Most intentions of a store: rows point at each other in 4 bytes."""

SUBMITTED_HERE: Final = 1
"""Flag of a row: it was submitted here, so it moved the clock by a tick and not by an update."""

Frontier = dict[int, int]
"""The greatest seq seen of each author, by number."""


def seq_key(seq: int) -> bytes:
    """Return the key of `witness`, and the last part of the keys of waiting intentions."""
    return seq.to_bytes(8, "big")  # "seq u64 big-endian"


def read_author(txn: ReadTxn, number: int) -> bytes:
    """Return the key of an author.

    Raises: Corruption: the row is missing.
    """
    found = txn.get(AUTHORS, number_key(number))
    if found is None:
        raise Corruption(f"{AUTHORS} {number}: the row is missing")
    return found


def number_key(number: int) -> bytes:
    """Return the key of `authors`."""
    return number.to_bytes(4, "big")


# --- places -----------------------------------------------------------------------------------


class Place:
    """Where an intention is witnessed: its seq, and its author's number."""

    __slots__ = ("number", "seq")

    def __init__(self, seq: int, number: int) -> None:
        self.seq = seq
        self.number = number

    def encode(self) -> bytes:
        """Return the value of `witness_index`."""
        return _PLACE.pack(self.seq, self.number)


# With the author's number, a frontier is tested for an intention without reading its row.
_PLACE: Final = Struct(">II")


def decode_place(data: bytes) -> Place:
    """Return a value of `witness_index`."""
    if len(data) != _PLACE.size:  # fixed width: damage shows as a length
        raise Corruption(f"{WITNESS_INDEX}: a value of {len(data)} bytes, not {_PLACE.size}")
    seq, number = _PLACE.unpack(data)
    return Place(seq, number)


def read_place(txn: ReadTxn, hash: bytes) -> Place | None:
    """Return where an intention is witnessed, or None."""
    found = txn.get(WITNESS_INDEX, hash)
    return None if found is None else decode_place(found)


# --- witness rows -----------------------------------------------------------------------------


_STAMP: Final = Struct("<QI")
WITNESS_ROW: Final = Struct("<IIIIIIQBBI32s")
"""The front of a row of `witness`, as far as its length is fixed."""


class WitnessRow:
    """One row of `witness`, the intention still encoded in `body`.

    height: position in the author's chain, from 1. contents: the author's intentions up to here
    that are not empty. prev: seq of its `store_prev`. skip: seq of the author's intention at height
    `height & (height - 1)`, so that a walk back to any height reads few rows. wall: when it was
    witnessed. before: hash of the content of the record before. base: seq of the row that the
    frontier is the difference to, 0 where it is complete; depth: rows to read for all of it.
    """

    __slots__ = (
        "base",
        "before",
        "body",
        "contents",
        "depth",
        "flags",
        "frontier",
        "height",
        "number",
        "prev",
        "signature",
        "skip",
        "wall",
    )

    def __init__(
        self,
        number: int,
        height: int,
        contents: int,
        prev: int,
        skip: int,
        base: int,
        wall: int,
        depth: int,
        flags: int,
        before: bytes,
        frontier: bytes,
        signature: bytes,
        body: bytes,
    ) -> None:
        self.number = number
        self.height = height
        self.contents = contents
        self.prev = prev
        self.skip = skip
        self.base = base
        self.wall = wall
        self.depth = depth
        self.flags = flags
        self.before = before
        self.frontier = frontier
        self.signature = signature
        self.body = body

    def encode(self) -> bytes:
        """Return the bytes of the row."""
        head = WITNESS_ROW.pack(
            self.number,
            self.height,
            self.contents,
            self.prev,
            self.skip,
            self.base,
            self.wall,
            self.depth,
            self.flags,
            len(self.frontier),
            self.before,
        )
        return b"".join((head, self.frontier, self.signature, self.body))

    @property
    def stamp(self) -> Hlc:
        """The intention's stamp."""
        wall, counter = _STAMP.unpack_from(self.body)
        return Hlc(wall, counter)

    @property
    def new_author(self) -> bytes | None:
        """The author's key in its first row, None in others."""
        # The height tells which of the two the field holds.
        return self.body[12:44] if self.height == 1 else None

    def signed(self, store_id: bytes, author: bytes) -> SignedIntention:
        """Return the intention.

        Raises: BadFormat: the row is damaged.
        """
        body = self.body
        prev = ZERO_HASH if self.height == 1 else body[12:44]
        borsh = b"".join((author, body[:12], store_id, prev, body[44:]))
        return SignedIntention.of(borsh, self.signature)


def body_of(signed: SignedIntention, height: int) -> bytes:
    """Return what a row keeps of the bytes of an intention."""
    borsh = signed.borsh
    # Borsh: author 0-32, stamp 32-44, store id 44-60, store_prev 60-92, condition and payload.
    return b"".join((borsh[32:44], borsh[:32] if height == 1 else borsh[60:92], borsh[92:]))


def witness_content(
    store_id: bytes, intention_hash: bytes, wall_ms: int, prev_hash: bytes
) -> bytes:
    """Return the encoding of a `WitnessContent`, without its class: one is hashed an intention."""
    # Tags and lengths in protobuf: field 1 has 16 bytes, 2 has 32, 3 is the time, 4 has 32.
    wall = _wall_field(wall_ms)
    return b"".join(
        (b"\x0a\x10", store_id, b"\x12\x20", intention_hash, wall, b"\x22\x20", prev_hash)
    )


@lru_cache(16)  # the records of one call carry one time
def _wall_field(wall_ms: int) -> bytes:
    # proto3: a scalar with its default is left out.
    return b"\x18" + varint(wall_ms) if wall_ms else b""


def decode_witness(data: bytes, seq: int) -> WitnessRow:
    """Return a row of `witness`.

    Raises: Corruption: it is shorter than its layout.
    """
    at = WITNESS_ROW.size
    if len(data) >= at + SIGNATURE_BYTES:
        number, height, contents, prev, skip, base, wall, depth, flags, length, before = (
            WITNESS_ROW.unpack_from(data)
        )
        end = at + length
        body = end + SIGNATURE_BYTES
        if body <= len(data):
            return WitnessRow(
                number,
                height,
                contents,
                prev,
                skip,
                base,
                wall,
                depth,
                flags,
                before,
                data[at:end],
                data[end:body],
                data[body:],
            )
    raise Corruption(f"{WITNESS} {seq}: a row of {len(data)} bytes is too short")


def read_witness(txn: ReadTxn, seq: int) -> WitnessRow:
    """Return the row at `seq`.

    Raises: Corruption: the row is missing or damaged.
    """
    found = txn.get(WITNESS, seq_key(seq))
    if found is None:
        raise Corruption(f"{WITNESS} {seq}: the row is missing")
    return decode_witness(found, seq)


def seq_at(row_of: Callable[[int], WitnessRow], seq: int, height: int, wanted: int) -> int:
    """Return the seq of an author's intention at height `wanted`; 0 for height 0.

    seq, height: of the intention from which it walks back.

    Cost: about the square of the logarithm of the distance, in rows.
    """
    while height > wanted > 0:
        row = row_of(seq)
        # Clearing the lowest bit gives steps of every power of two, as in a Fenwick tree.
        skipped = height & (height - 1)
        seq, height = (row.skip, skipped) if skipped >= wanted else (row.prev, height - 1)
    return seq if wanted else 0  # height 0 is before the first


# --- frontiers --------------------------------------------------------------------------------


def encode_frontier(frontier: Iterable[tuple[int, int]], seq: int) -> bytes:
    """Return pairs of author number and seq, by number, as differences: seqs count back from `seq`.

    Neighbours in the log are what most frontiers hold, so most pairs take two bytes.
    """
    out = bytearray()
    last = 0
    for number, seen in sorted(frontier):  # sorted: gaps are never negative
        gap, back = number - last, seq - seen
        last = number
        if gap < 0x80 and back < 0x80:
            out.append(gap)
            out.append(back)
        else:
            out += varint(gap)
            out += varint(back)
    return bytes(out)


def decode_frontier(data: bytes, seq: int) -> Frontier:
    """Return the pairs that `encode_frontier` wrote."""
    out: Frontier = {}
    number = at = 0
    size = len(data)
    while at < size:
        gap = data[at]
        if gap < 0x80:
            at += 1
        else:
            gap, at = read_varint(data, at)
        back, at = read_varint(data, at)
        number += gap
        out[number] = seq - back
    return out


# --- tips and head ----------------------------------------------------------------------------


_TIP: Final = Struct("<IIIIQIB32s32s")


class Tip:
    """An author's newest witnessed intention, with the complete frontier there.

    content_hash: hash of the author's newest intention that is not empty, ZERO for none.
    """

    __slots__ = (
        "content_hash",
        "contents",
        "depth",
        "frontier",
        "hash",
        "height",
        "number",
        "seq",
        "stamp",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.seq = 0
        self.height = 0
        self.contents = 0
        self.content_hash = ZERO_HASH
        self.stamp: Hlc = HLC_ZERO
        self.depth = 0
        self.hash = ZERO_HASH
        self.frontier: Frontier = {}

    def encode(self) -> bytes:
        """Return the value of `author_tips`."""
        wall, counter = self.stamp
        return _TIP.pack(
            self.number,
            self.seq,
            self.height,
            self.contents,
            wall,
            counter,
            self.depth,
            self.hash,
            self.content_hash,
        ) + encode_frontier(self.frontier.items(), self.seq)


def decode_tip(data: bytes) -> Tip:
    """Return a value of `author_tips`.

    Raises: Corruption: it is damaged.
    """
    if len(data) < _TIP.size:
        raise Corruption(f"{AUTHOR_TIPS}: a value of {len(data)} bytes is too short")
    number, seq, height, contents, wall, counter, depth, hash, content_hash = _TIP.unpack_from(data)
    tip = Tip(number)
    tip.seq = seq
    tip.height = height
    tip.contents = contents
    tip.content_hash = content_hash
    tip.stamp = Hlc(wall, counter)
    tip.depth = depth
    tip.hash = hash
    tip.frontier = decode_frontier(data[_TIP.size :], seq)
    return tip


def read_tip(txn: ReadTxn, author: bytes) -> Tip | None:
    """Return an author's tip, or None for an author without a witnessed intention."""
    found = txn.get(AUTHOR_TIPS, author)
    return None if found is None else decode_tip(found)


_HEAD: Final = Struct("<IIIQQQI32s32s32s")
_NO_SEAL: Final = bytes(SEAL_BYTES)


@dataclass(slots=True)
class Head:
    """The end of the log in one row, written with every change, so that opening reads one row.

    seq: of the newest record, which is also the number of witnessed intentions. fingerprint: XOR of
    their hashes. seal: the node's, of the newest record. arrival: number of the next waiting
    intention. clock: the store's hybrid clock.
    """

    seq: int = 0
    authors: int = 0
    floating_count: int = 0
    floating_bytes: int = 0
    arrival: int = 1
    clock: Hlc = HLC_ZERO
    content_hash: bytes = ZERO_HASH
    fingerprint: bytes = ZERO_HASH
    seal: bytes = _NO_SEAL

    @property
    def count(self) -> int:
        """The number of witnessed intentions."""
        return self.seq

    def encode(self) -> bytes:
        """Return the value in `log_meta`."""
        return _HEAD.pack(
            self.seq,
            self.authors,
            self.floating_count,
            self.floating_bytes,
            self.arrival,
            self.clock.wall,
            self.clock.counter,
            self.content_hash,
            self.fingerprint,
            self.seal,
        )


def decode_head(data: bytes) -> Head:
    """Return the head in `log_meta`.

    Raises: Corruption: it is damaged.
    """
    if len(data) != _HEAD.size:
        raise Corruption(f"{LOG_META}: a head of {len(data)} bytes, not {_HEAD.size}")
    seq, authors, count, size, arrival, wall, counter, content, fingerprint, seal = _HEAD.unpack(
        data
    )
    return Head(seq, authors, count, size, arrival, Hlc(wall, counter), content, fingerprint, seal)


def read_head(txn: ReadTxn) -> Head:
    """Return the head; that of an empty log before the first write."""
    found = txn.get(LOG_META, HEAD_KEY)
    # Nothing is written when a store is opened.
    return Head() if found is None else decode_head(found)


_RANGE: Final = Struct("<I32s")


class RangeSum(NamedTuple):
    """How many witnessed hashes lie in a range, and their XOR as a number."""

    size: int
    xor: int

    def encode(self) -> bytes:
        """Return the value in `log_meta`."""
        return _RANGE.pack(self.size, self.xor.to_bytes(32, "big"))


def range_key(first: int) -> bytes:
    """Return the key of the sum of all hashes that begin with this byte."""
    return RANGE_PREFIX + bytes([first])


def decode_range(data: bytes | None) -> RangeSum:
    """Return the sum in a row of `log_meta`; zero before the first.

    Raises: Corruption: it is damaged.
    """
    if data is None:
        return RangeSum(0, 0)
    if len(data) != _RANGE.size:
        raise Corruption(f"{LOG_META}: a sum of {len(data)} bytes, not {_RANGE.size}")
    count, xor = _RANGE.unpack(data)
    return RangeSum(count, int.from_bytes(xor, "big"))


# --- waiting intentions -----------------------------------------------------------------------


_FLOATING: Final = Struct("<QQ64s")


class FloatingRow:
    """An intention that waits: its number in the order of arrival, and when it came."""

    __slots__ = ("arrival", "received_ms", "signed")

    def __init__(self, arrival: int, received_ms: int, signed: SignedIntention) -> None:
        self.arrival = arrival
        self.received_ms = received_ms
        self.signed = signed

    def encode(self) -> bytes:
        """Return the value of `floating`."""
        return _FLOATING.pack(self.arrival, self.received_ms, self.signed.signature) + (
            self.signed.borsh
        )  # the Borsh bytes as they came: their hash is the row's key


def decode_floating(data: bytes) -> FloatingRow:
    """Return a value of `floating`.

    Raises: Corruption: it is damaged.
    """
    if len(data) < _FLOATING.size:
        raise Corruption(f"{FLOATING}: a value of {len(data)} bytes is too short")
    arrival, received, signature = _FLOATING.unpack_from(data)
    try:
        signed = SignedIntention.of(data[_FLOATING.size :], signature)
    except DataLatticeError as error:
        raise Corruption(f"{FLOATING}: {error}") from error
    return FloatingRow(arrival, received, signed)


def read_floating(txn: ReadTxn, hash: bytes) -> FloatingRow | None:
    """Return the waiting intention with this hash, or None."""
    found = txn.get(FLOATING, hash)
    return None if found is None else decode_floating(found)


def line_key(store_prev: bytes, author: bytes) -> bytes:
    """Return the prefix in `floating_by_prev` of the author's intentions after `store_prev`.

    With the author: only its own intentions can follow, and ZERO precedes the first of every
    author.
    """
    return store_prev + author  # 32 and 32 bytes, so no prefix is one of another


def waiting_rows(txn: ReadTxn, table: str, prefix: bytes) -> list[tuple[int, bytes]]:
    """Return (arrival, hash) of the intentions waiting below `prefix`, in order of arrival."""
    return [
        (int.from_bytes(key[-8:], "big"), hash)
        for key, hash in txn.scan(table, prefix, successor(prefix))
    ]
