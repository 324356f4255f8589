"""Check single cells, for the tasks of an audit.

A cell is read once. Its hash, canonical form and signatures are checked, and that the store has the
cells that it refers to. References of many cells are looked up together, in index order.

Source: docs/spark-jobs.md "Audit".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from datalattice.cells import (
    Cell,
    Value,
    branch_hashes,
    decode,
    encode,
    inline_signed,
    may_refer,
)
from datalattice.errors import BadFormat, Corruption
from datalattice.limits import EMBEDDED_BYTES_MAX
from datalattice.store.gc import StorePartitionReader
from datalattice.store.log import locate

INSPECTED_BYTES: Final = 4 * 1024 * 1024
"""Bytes of cells after which their references are looked up."""

INSPECTED_TOGETHER: Final = 256
"""Cells that are read and hashed together."""

_MAYBE_SIGNED: Final = re.compile(rb"\x90.{97}", re.DOTALL)
"""May be a signed value: tag, key, signature and a value. Other bytes may match too."""


class CellFault(Enum):
    """Kinds of faults."""

    PACK = "pack"
    """A pack is damaged or missing, and the index leads into it."""
    HASH = "hash"
    """A cell's bytes do not have its hash, or cannot be read."""
    ENCODING = "encoding"
    """A cell has its hash, but is not a canonical encoding."""
    REFERENCE = "reference"
    """A cell refers to one that is not in the store."""
    SIGNATURE = "signature"
    """A signature is not valid for the key beside it."""
    ROOT = "root"
    """The root of HEAD, of a pin or of a lease is not in the store."""
    SCAR = "scar"
    """Packs are damaged or missing, but the index does not lead there."""


class FoundFault(NamedTuple):
    """One fault."""

    kind: CellFault
    hash: bytes | None
    file: str
    offset: int
    detail: str


class Inspector:
    """Checks the cells of one partition; faults come in the order of the cells, batch by batch."""

    def __init__(self, reader: StorePartitionReader) -> None:
        self._reader = reader
        self.cells = 0
        self.signed = 0
        """Signed values whose signature was checked."""
        self.bytes = 0
        self.faults = 0
        self._waiting: list[tuple[bytes, int, list[bytes]]] = []
        self._waiting_bytes = 0

    def counts(self) -> dict[str, int]:
        """Return the numbers of checked cells, bytes and signatures, and of faults."""
        return {
            "cells": self.cells,
            "bytes": self.bytes,
            "signed": self.signed,
            "faults": self.faults,
        }

    def inspect(self, cells: Iterable[tuple[bytes, int]]) -> Iterator[FoundFault]:
        """Yield the faults of cells, given as (hash, location)."""
        left = iter(cells)
        while batch := list(islice(left, INSPECTED_TOGETHER)):
            found = self._reader.read_many(batch)
            for (hash, location), data in zip(batch, found, strict=True):
                yield from self._inspect(hash, location, data)
                if self._waiting_bytes >= INSPECTED_BYTES:
                    yield from self.finish()

    def _inspect(self, hash: bytes, location: int, data: bytes | None) -> Iterable[FoundFault]:
        """Return the faults of a cell. data: its bytes; None: they do not have its hash."""
        self.cells += 1
        # A cell is identified by the SHA3-256 of its encoding (docs/cells.md).
        if data is None:
            return (self._misfit(hash, location),)
        self.bytes += len(data)
        self._waiting_bytes += len(data)
        try:
            value = decode(data)
            again = encode(value)
        except BadFormat as error:
            return (self._found(CellFault.ENCODING, hash, location, str(error)),)
        # A value has one encoding (docs/cells.md): a second one would give it a second hash.
        if again != data:
            text = "its value is encoded otherwise"
            return (self._found(CellFault.ENCODING, hash, location, text),)
        if not may_refer(data):  # most cells: neither references nor signed values
            return ()
        refs = branch_hashes(data)
        if refs:
            self._waiting.append((hash, location, refs))
        if _MAYBE_SIGNED.search(data) is not None:
            return self._check_signed(hash, location, value)
        return ()

    def _misfit(self, hash: bytes, location: int) -> FoundFault:
        """Return the fault of a cell that cannot be read, or has another hash."""
        try:
            self._reader.read(location)
        except Corruption as error:
            return self._found(CellFault.HASH, hash, location, str(error))
        return self._found(CellFault.HASH, hash, location, "the cell does not fit its hash")

    def _check_signed(self, hash: bytes, location: int, value: Value) -> Iterator[FoundFault]:
        if not isinstance(value, Cell):
            return
        for signed in inline_signed(value):
            if not signed.public_key:
                continue  # without a key, the signer depends on the position in a root
            self.signed += 1
            if not signed.verify():
                where = "" if signed is value else " inside it"
                text = f"the signature{where} is not one of the key 0x{signed.public_key.hex()}"
                yield self._found(CellFault.SIGNATURE, hash, location, text)

    def finish(self) -> Iterator[FoundFault]:
        """Yield the missing references of the cells since the last call."""
        waiting, self._waiting = self._waiting, []
        self._waiting_bytes = 0
        # In hash order, which is the order of the index: neighbours are on one page.
        wanted = sorted({ref for _, _, refs in waiting for ref in refs})
        locations = self._reader.locations(wanted)
        wrong = {
            ref: at
            for ref, at in zip(wanted, locations, strict=True)
            # "If the encoding of a child has at most 140 bytes, its parent contains that encoding".
            if at < 0 or locate(at)[2] <= EMBEDDED_BYTES_MAX
        }
        if not wrong:
            return
        for hash, location, refs in waiting:
            for ref in dict.fromkeys(refs):
                at = wrong.get(ref)
                if at is None:
                    continue
                if at < 0:
                    text = f"refers to 0x{ref.hex()}, which is not in the store"
                    yield self._found(CellFault.REFERENCE, hash, location, text)
                else:
                    text = (
                        f"refers by hash to 0x{ref.hex()}, a cell of {locate(at)[2]} bytes, "
                        "which belongs inside it"
                    )
                    yield self._found(CellFault.ENCODING, hash, location, text)

    def _found(self, kind: CellFault, hash: bytes, location: int, detail: str) -> FoundFault:
        self.faults += 1
        segment, offset, _ = locate(location)
        return FoundFault(kind, hash, self._reader.path(segment), offset, detail)
