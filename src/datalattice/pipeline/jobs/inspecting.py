"""Inspecting: what is wrong with a cell, as the tasks of an audit find it.

A cell is read once: its hash, its form, the signatures in it, and whether what it refers to is
here. For the last, the references of many cells are looked up together, in the order of the index.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from datalattice.cells import (
    Cell,
    Signed,
    Value,
    branch_hashes,
    decode,
    encode,
    inline_signed,
    may_refer,
)
from datalattice.errors import BadFormat, Corruption
from datalattice.limits import EMBEDDED_BYTES_MAX
from datalattice.store import StretchReader, locate

INSPECTED_BYTES: Final = 4 * 1024 * 1024
"""References are looked up together for cells of so many bytes."""

_sha3: Final = hashlib.sha3_256
_MAYBE_SIGNED: Final = re.compile(rb"\x90.{97}", re.DOTALL)
"""Where a signed value stands, and now and then elsewhere: tag, key, signature, and a value."""


class CellFault(Enum):
    """What can be wrong."""

    PACK = "pack"
    """A pack is damaged or missing, and held what the index leads to."""
    HASH = "hash"
    """A cell has other bytes than its hash says, or none."""
    ENCODING = "encoding"
    """A cell has its hash, and is not the canonical encoding of anything."""
    REFERENCE = "reference"
    """A cell refers to one that is not here."""
    SIGNATURE = "signature"
    """A signature is not that of the key beside it."""
    ROOT = "root"
    """The present root, a pin's or a lease's, is not here."""
    SCAR = "scar"
    """Bytes of packs that are damaged or missing, and held nothing that the index leads to."""


class FoundFault(NamedTuple):
    """One fault."""

    kind: CellFault
    hash: bytes | None
    file: str
    offset: int
    detail: str


class Inspector:
    """Inspects cells of one stretch; the faults come in the order of the cells, batch by batch."""

    def __init__(self, reader: StretchReader) -> None:
        self._reader = reader
        self.cells = 0
        self.signed = 0
        """Signed values whose signature was checked."""
        self.bytes = 0
        self.faults = 0
        self._waiting: list[tuple[bytes, int, list[bytes]]] = []
        self._waiting_bytes = 0

    def counts(self) -> dict[str, int]:
        """Return how much was inspected, and how many faults were found."""
        return {
            "cells": self.cells,
            "bytes": self.bytes,
            "signed": self.signed,
            "faults": self.faults,
        }

    def inspect(self, cells: Iterable[tuple[bytes, int]]) -> Iterator[FoundFault]:
        """Yield what is wrong with cells, given as (hash, place)."""
        for hash, place in cells:
            yield from self._inspect(hash, place)
            if self._waiting_bytes >= INSPECTED_BYTES:
                yield from self.finish()

    def _inspect(self, hash: bytes, place: int) -> Iterable[FoundFault]:
        self.cells += 1
        try:
            data = self._reader.read(place)
        except Corruption as error:
            return (self._found(CellFault.HASH, hash, place, str(error)),)
        self.bytes += len(data)
        self._waiting_bytes += len(data)
        if _sha3(data).digest() != hash:
            return (self._found(CellFault.HASH, hash, place, "the cell does not fit its hash"),)
        try:
            value = decode(data)
            again = encode(value)
        except BadFormat as error:
            return (self._found(CellFault.ENCODING, hash, place, str(error)),)
        if again != data:
            text = "its value is encoded otherwise"
            return (self._found(CellFault.ENCODING, hash, place, text),)
        if not may_refer(data):  # as most cells: neither references nor signed values
            return ()
        refs = branch_hashes(data)
        if refs:
            self._waiting.append((hash, place, refs))
        if _MAYBE_SIGNED.search(data) is not None:
            return self._check_signed(hash, place, value)
        return ()

    def _check_signed(self, hash: bytes, place: int, value: Value) -> Iterator[FoundFault]:
        if not isinstance(value, Cell):
            return
        for signed in inline_signed(value):
            if not signed.public_key:
                continue  # nothing here says whose it is to be
            self.signed += 1
            if not signed.verify():
                yield self._found(CellFault.SIGNATURE, hash, place, _forged(signed, value))

    def finish(self) -> Iterator[FoundFault]:
        """Yield the references that lead nowhere, of the cells since the last call."""
        waiting, self._waiting = self._waiting, []
        self._waiting_bytes = 0
        wanted = sorted({ref for _, _, refs in waiting for ref in refs})
        places = self._reader.places(wanted)
        wrong = {
            ref: at
            for ref, at in zip(wanted, places, strict=True)
            if at < 0 or locate(at)[2] <= EMBEDDED_BYTES_MAX
        }
        if not wrong:
            return
        for hash, place, refs in waiting:
            for ref in dict.fromkeys(refs):
                at = wrong.get(ref)
                if at is None:
                    continue
                if at < 0:
                    text = f"refers to 0x{ref.hex()}, which is not here"
                    yield self._found(CellFault.REFERENCE, hash, place, text)
                else:
                    text = (
                        f"refers by hash to 0x{ref.hex()}, a cell of {locate(at)[2]} bytes, "
                        "which belongs inside it"
                    )
                    yield self._found(CellFault.ENCODING, hash, place, text)

    def _found(self, kind: CellFault, hash: bytes, place: int, detail: str) -> FoundFault:
        self.faults += 1
        segment, offset, _ = locate(place)
        return FoundFault(kind, hash, self._reader.path(segment), offset, detail)


def _forged(signed: Signed, value: Value) -> str:
    where = "" if signed is value else " inside it"
    return f"the signature{where} is not one of the key 0x{signed.public_key.hex()}"
