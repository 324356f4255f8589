"""Messages of a reconciliation by sketches; `sketches.py` says in which order they come.

Integers are little-endian, hashes have 32 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from datalattice.errors import ProtocolViolation
from datalattice.limits import HASH_BYTES
from datalattice.protobuf import Field, Message
from datalattice.sync.reconcile.sketchset import ID_BYTES, unpack_integers


class SketchOpening(Message, name="datalattice.reconcile.SketchOpening"):
    """Begins a session: random bytes, number and XOR of the sender's hashes."""

    nonce: Annotated[bytes, Field(1)] = b""
    count: Annotated[int, Field(2, "uint64")] = 0
    fingerprint: Annotated[bytes, Field(3)] = b""


class SketchEstimate(Message, name="datalattice.reconcile.SketchEstimate"):
    """Begins an attempt: the receiver's side of the opening, and its sums or its regions.

    sums: 64 times 4 bytes. regions: 256 times 4 bytes. Neither: the sender lists its ids.
    """

    nonce: Annotated[bytes, Field(1)] = b""
    count: Annotated[int, Field(2, "uint64")] = 0
    fingerprint: Annotated[bytes, Field(3)] = b""
    attempt: Annotated[int, Field(4, "uint32")] = 0
    sums: Annotated[bytes, Field(5)] = b""
    regions: Annotated[bytes, Field(6)] = b""


class SketchCells(Message, name="datalattice.reconcile.SketchCells"):
    """A window of cells: 8 bytes of ids for each, then 4 bytes of checks for each.

    regions: in the first window of an attempt by regions, a bit for each that differs.
    """

    attempt: Annotated[int, Field(1, "uint32")] = 0
    start: Annotated[int, Field(2, "uint32")] = 0
    cells: Annotated[bytes, Field(3)] = b""
    regions: Annotated[bytes, Field(4)] = b""


class SketchResult(Message, name="datalattice.reconcile.SketchResult"):
    """What the receiver lacks, by ids of 8 bytes, and what the sender lacks, by hashes."""

    wanted: Annotated[bytes, Field(1)] = b""
    given: Annotated[bytes, Field(2)] = b""


class SketchMessage(Message, name="datalattice.reconcile.SketchMessage"):
    """One message of a session.

    ids:    all ids of the sender, 8 bytes each. hashes: those of the wanted ids, in their order.
    retry:  the result does not hold. more: the cells so far are not enough.
    """

    opening: Annotated[SketchOpening | None, Field(1, oneof="message")] = None
    estimate: Annotated[SketchEstimate | None, Field(2, oneof="message")] = None
    cells: Annotated[SketchCells | None, Field(3, oneof="message")] = None
    ids: Annotated[bytes | None, Field(4, oneof="message")] = None
    more: Annotated[bool | None, Field(5, oneof="message")] = None
    result: Annotated[SketchResult | None, Field(6, oneof="message")] = None
    retry: Annotated[bool | None, Field(7, oneof="message")] = None
    hashes: Annotated[bytes | None, Field(8, oneof="message")] = None


def read_ids(data: bytes) -> Sequence[int]:
    """Return the ids of a message.

    Raises: ProtocolViolation: the bytes are not a multiple of 8, or an id comes twice.
    """
    if len(data) % ID_BYTES:
        raise illegal(f"{len(data)} bytes of ids; each has {ID_BYTES}")
    ids = unpack_integers("q", data)
    if len(set(ids)) < len(ids):
        raise illegal("an id comes twice")  # the XOR of both would be zero
    return ids


def read_hashes(data: bytes) -> tuple[bytes, ...]:
    """Return the hashes of a message.

    Raises: ProtocolViolation: the bytes are not a multiple of 32, or a hash comes twice.
    """
    if len(data) % HASH_BYTES:
        raise illegal(f"{len(data)} bytes of hashes; each has {HASH_BYTES}")
    hashes = tuple([data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)])
    if len(set(hashes)) < len(hashes):
        raise illegal("a hash comes twice")
    return hashes


def illegal(text: str) -> ProtocolViolation:
    """Return the error of a message that no honest peer sends."""
    return ProtocolViolation(f"reconciliation by sketches: {text}")
