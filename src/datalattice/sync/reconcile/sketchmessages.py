"""Messages of a reconciliation by sketches; `sketches.py` says what follows what.

Integers are little-endian, hashes have 32 bytes.
"""

from __future__ import annotations

from typing import Annotated

from datalattice.protobuf import Field, Message


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
