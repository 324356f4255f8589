"""Witness: the records of a node's witness log, chained by hash and signed by the node.

A record says that this node had everything an intention depends on, and when. Its content names the
content of the record before, so one signature covers all records up to it, and a record may be sent
without its own where one with a signature follows.

The log is the node's own: another node's records prove only what that node claims.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Final, NamedTuple

from datalattice.crypto import (
    SIGNATURE_BYTES,
    KeyPair,
    blake3,
    first_unverified,
    verify_lenient,
)
from datalattice.errors import BadFormat, PeerError
from datalattice.limits import HASH_BYTES
from datalattice.protobuf import Field, Message, read_varint
from datalattice.weaver.intention import ZERO_HASH, read_envelope, write_envelope
from datalattice.weaver.rows import witness_content
from datalattice.weaver.storeid import STORE_ID_BYTES


class WitnessContent(Message, name="lattice.weaver.WitnessContent"):
    """What a record says; `wall_time` in Unix milliseconds."""

    store_id: Annotated[bytes, Field(1)] = b""
    intention_hash: Annotated[bytes, Field(2)] = b""
    wall_time: Annotated[int, Field(3, "uint64")] = 0
    prev_hash: Annotated[bytes, Field(4)] = b""


class ChainBroken(PeerError):
    """A record that does not follow from those before it. `seq` is its place, counted from 1."""

    code = "chain-broken"

    def __init__(self, seq: int, text: str) -> None:
        super().__init__(f"witness record {seq}: {text}")
        self.seq = seq


class ChainEnd(NamedTuple):
    """Where a chain ends: its last seq and the hash of that record's content."""

    seq: int
    content_hash: bytes


_USUAL_BYTES: Final = 128  # `witness_content` writes 97 at most

CHAIN_START = ChainEnd(0, ZERO_HASH)  # an empty log: "32 zero bytes for seq 1"


class WitnessRecord(Message, name="lattice.weaver.WitnessRecord"):
    """One record: the encoded content, as signed, and the signature of its hash."""

    content: Annotated[bytes, Field(1)] = b""
    signature: Annotated[bytes, Field(2)] = b""

    @classmethod
    def build(
        cls, store_id: bytes, intention_hash: bytes, wall_ms: int, prev_hash: bytes, key: KeyPair
    ) -> WitnessRecord:
        """Return the signed record that follows the one with content hash `prev_hash`."""
        content = witness_content(store_id, intention_hash, wall_ms, prev_hash)
        # "signed as the 32-byte BLAKE3 hash of the bytes, never the bytes themselves"
        return cls(content, key.sign(blake3(content)))

    @classmethod
    def decode(cls, data: bytes) -> WitnessRecord:
        """Return the record that `data` encodes.

        Raises: BadFormat: it does not encode a record.
        """
        canonical = read_envelope(data)
        if canonical is not None:
            return cls(*canonical)
        if data[:1] == b"\x0a":
            length, at = read_varint(data, 1)
            if len(data) == at + length:
                return cls(data[at:])
        return super().decode(data)

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        if not self.content or len(self.signature) != SIGNATURE_BYTES:
            return super().encode()
        return write_envelope(self.content, self.signature)

    @property
    def content_hash(self) -> bytes:
        """The hash that the next record names: of the bytes as received, never encoded again."""
        return blake3(self.content)

    def read(self) -> WitnessContent:
        """Return what the record says.

        Raises: BadFormat: the content is not one, or a field has a wrong length.
        """
        # A peer may send thousands with unknown fields of megabytes: those are not cached.
        is_usual = len(self.content) <= _USUAL_BYTES
        found = _read_cached(self.content) if is_usual else _read(self.content)
        if self.signature and len(self.signature) != SIGNATURE_BYTES:
            raise BadFormat(f"a signature has {SIGNATURE_BYTES} bytes, got {len(self.signature)}")
        return found

    def verify(self, node: bytes) -> bool:
        """Return whether the node with this public key signed the record."""
        # The signer is known beforehand, so ordinary verification is enough.
        return verify_lenient(node, self.signature, self.content_hash)


def _read(content: bytes) -> WitnessContent:
    found = _canonical_content(content) or WitnessContent.decode(content)
    lengths = (len(found.store_id), len(found.intention_hash), len(found.prev_hash))
    if lengths != (STORE_ID_BYTES, HASH_BYTES, HASH_BYTES):
        raise BadFormat(
            "a witness content has 16 bytes of store id and hashes of 32 bytes, got "
            + ", ".join(map(str, lengths))
        )
    return found


# A copied record is read when it comes, and when its chain is checked.
_read_cached = lru_cache(4_096)(_read)


def _canonical_content(content: bytes) -> WitnessContent | None:
    """Return what `witness_content` wrote with a time; None for any other encoding."""
    # Without the general decoder: a copied log has a record for each intention.
    if (content[:2], content[18:20], content[52:53]) != (b"\x0a\x10", b"\x12\x20", b"\x18"):
        return None
    wall_ms, at = read_varint(content, 53)
    if len(content) != at + 2 + HASH_BYTES or content[at : at + 2] != b"\x22\x20":
        return None
    return WitnessContent(content[2:18], content[20:52], wall_ms, content[at + 2 :])


def check_chain(
    records: Iterable[WitnessRecord], store_id: bytes, node: bytes, after: ChainEnd = CHAIN_START
) -> ChainEnd:
    """Check records that follow `after` in the log of `node`; return where they end.

    Every signature that there is must verify, and the last record must have one: it covers those
    before it.

    Raises: ChainBroken: the first record that is malformed, of another store, not signed by `node`,
            or does not name the record before it.
    """
    signed: list[tuple[bytes, bytes, bytes]] = []
    seqs: list[int] = []  # of the records that have a signature
    end, broken = after, None
    for record in records:
        try:
            end = _linked(record, store_id, end)
        except ChainBroken as error:
            broken = error  # raised below, unless a signature before it fails
            break
        if record.signature:
            signed.append((node, record.signature, end.content_hash))
            seqs.append(end.seq)
    unsigned = first_unverified(signed)
    if unsigned is not None:
        raise ChainBroken(seqs[unsigned], "the signature does not verify")
    if broken is not None:
        raise broken
    if end.seq > max(seqs, default=after.seq):
        raise ChainBroken(end.seq, "neither it nor a later one is signed")
    return end


def _linked(record: WitnessRecord, store_id: bytes, before: ChainEnd) -> ChainEnd:
    """Return where the chain ends with a record. Raises: ChainBroken: it does not follow."""
    seq = before.seq + 1
    try:
        content = record.read()
    except BadFormat as error:
        raise ChainBroken(seq, str(error)) from error
    # A record of another store of the same node is signed by it, too.
    if content.store_id != store_id:
        raise ChainBroken(seq, f"it is of store {content.store_id.hex()}")
    # "seq is not part of the content": only this link fixes the order.
    if content.prev_hash != before.content_hash:
        expected = before.content_hash.hex()
        raise ChainBroken(seq, f"it follows {content.prev_hash.hex()}, not {expected}")
    # Of the bytes as received: unknown fields in a content are part of what was signed.
    return ChainEnd(seq, record.content_hash)
