"""Checking: verify every byte of an Etch file; report offset and reason of every fault.

The check covers the header, every slot and every record: key, labels, canonical encoding, hash. No
two of them may overlap. If a cell is marked as complete, all cells it refers to must be here and
marked too. Bytes that no slot refers to are counted: a crash leaves some, and they are harmless.

Source: CAD047; docs/etch.md "Check".
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from datalattice.cells import NIL_HASH, branch_hashes, decode
from datalattice.crypto import sha3_256
from datalattice.errors import BadFormat, Corruption
from datalattice.limits import EMBEDDED_BYTES_MAX
from datalattice.store.disk import Disk, RealDisk
from datalattice.store.etch.layout import (
    BLOCK,
    EMBEDDED,
    ETCH_HEADER_BYTES,
    ETCH_SLOT_BYTES,
    FIRST,
    LEVELS,
    NEXT,
    NOT_EMBEDDED,
    PERSISTED,
    ROOT_AT,
    STATUS_NAMES,
    EtchRecord,
    block_bytes,
    digit_of,
    slot_count,
)
from datalattice.store.etch.reader import EtchFile, EtchSlot
from datalattice.store.etch.writer import CELL_OVERHEAD
from datalattice.store.records import CheckProgress

_FAULTS_MAX: Final = 1_000
"""Most faults that are listed; further ones are only counted."""


@dataclass(frozen=True, slots=True)
class EtchFault:
    """A fault in a file."""

    offset: int
    reason: str
    key: bytes | None = None
    """The cell it concerns, if any."""

    def __str__(self) -> str:
        about = "" if self.key is None else f" (cell 0x{self.key.hex()})"
        return f"byte {self.offset}: {self.reason}{about}"


@dataclass(slots=True)
class EtchReport:
    """The result of a check."""

    path: str
    file_bytes: int = 0
    length: int = 0
    root_hash: bytes = b""
    faults: list[EtchFault] = field(default_factory=list)
    """The first `_FAULTS_MAX` faults."""
    fault_count: int = 0
    blocks: int = 0
    cells: int = 0
    empty_slots: int = 0
    encoding_bytes: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    unreached_bytes: int = 0
    """Bytes below the data length that no slot refers to."""

    @property
    def is_clean(self) -> bool:
        """Whether there is no fault."""
        return self.fault_count == 0

    def add(self, offset: int, reason: str, key: bytes | None = None) -> None:
        """Note a fault."""
        self.fault_count += 1
        if len(self.faults) < _FAULTS_MAX:
            self.faults.append(EtchFault(offset, reason, key))


def check_etch(
    path: str | os.PathLike[str],
    *,
    disk: Disk | None = None,
    progress: CheckProgress | None = None,
) -> EtchReport:
    """Check a complete file; nothing is written.

    Raises: UsageError: it is not an Etch file. StoreVersion: an unknown version.
    Cost:   reads every byte once, and a record again for each reference; memory of an eighth of
            the data length.
    """
    where = os.fspath(path)
    report = EtchReport(where)
    try:
        file = EtchFile(disk or RealDisk(), where)
    except Corruption as error:
        report.add(0, str(error).removeprefix(f"{where} at "))
        return report  # without a header nothing can be found
    try:
        _Checker(file, report, progress).run()
    finally:
        file.close()
    return report


class _Checker:
    def __init__(self, file: EtchFile, report: EtchReport, progress: CheckProgress | None) -> None:
        self.file = file
        self.report = report
        self.progress = progress
        self.taken = _Taken(file.length)
        self.heads: dict[int, list[int]] = {}  # where chains began, by block
        self.seen_bytes = ETCH_HEADER_BYTES

    def run(self) -> None:
        file, report = self.file, self.report
        report.file_bytes, report.length = file.size, file.length
        report.root_hash = file.root_hash
        self.taken.take(0, ETCH_HEADER_BYTES)
        self._take_block(0, ETCH_HEADER_BYTES)
        for slot in file.slots(report.add):
            # All slots of its block were counted as empty; the file yields the used ones alone.
            report.empty_slots -= 1
            if slot.kind == BLOCK:
                self._take_block(slot.level + 1, slot.target)
            else:
                self._check_slot(slot)
        report.unreached_bytes = self.taken.free()
        self._check_root()

    def _take_block(self, level: int, offset: int) -> None:
        self.report.blocks += 1
        self.report.empty_slots += slot_count(level)
        self._advance(block_bytes(level))
        if offset + block_bytes(level) > self.file.length:
            self.report.add(offset, "an index block goes beyond the data")
        # Records and blocks are only appended, so two of them never overlap in an intact file.
        elif not self.taken.take(offset, block_bytes(level)):
            self.report.add(offset, "an index block overlaps something else")

    def _advance(self, count: int) -> None:
        self.seen_bytes += count
        if self.progress is not None:
            self.progress(self.seen_bytes, self.file.length)

    # --- records ---

    def _check_slot(self, slot: EtchSlot) -> None:
        self._check_chain(slot)
        try:
            record = self.file.record(slot.target)
        except Corruption as error:
            self.report.add(slot.offset, f"leads to {error}".replace(f"{self.file.path} at ", ""))
            return
        if not self.taken.take(record.offset, record.end - record.offset):
            self.report.add(slot.offset, f"the record at {record.offset} overlaps something else")
            return
        self.report.cells += 1
        self.report.encoding_bytes += len(record.encoding)
        self._advance(record.end - record.offset)
        self._check_place(slot, record)
        self._check_record(record)

    def _check_chain(self, slot: EtchSlot) -> None:
        count = slot_count(slot.level)
        if slot.kind == NEXT:
            # "Type 11 preceded (cyclically) by 10 or 11; type 10 followed by 11".
            before = self.file._slot(slot.block, (slot.number - 1) % count) >> 62
            if before not in (FIRST, NEXT):
                self.report.add(slot.offset, "a chain goes on here and never began")
        elif slot.kind == FIRST:
            after = self.file._slot(slot.block, (slot.number + 1) % count) >> 62
            if after != NEXT:
                self.report.add(slot.offset, "a chain begins here and does not go on")

    def _check_place(self, slot: EtchSlot, record: EtchRecord) -> None:
        key = record.key
        # "The key of each record starts with the digits that lead to its block".
        if any(digit_of(key, level) != digit for level, digit in enumerate(slot.digits)):
            self.report.add(slot.offset, "the record's key does not belong in this block", key)
            return
        digit = digit_of(key, slot.level)
        # A record outside of a chain has the slot of its own digit.
        if slot.kind != NEXT:
            if digit != slot.number:
                self.report.add(slot.offset, "the record's key does not belong in this slot", key)
            return
        if self._head_of(slot) != digit:
            self.report.add(slot.offset, "the record's key does not belong in this chain", key)

    def _head_of(self, slot: EtchSlot) -> int:
        """Return the slot in which the chain of a slot begins, -1 if there is none.

        All chains of a block are followed at once: a chain may fill the block.
        """
        heads = self.heads.get(slot.block)
        if heads is None:
            count = slot_count(slot.level)
            data = self.file.read_some(slot.block, ETCH_SLOT_BYTES * count)
            kinds = [first >> 6 for first in data[::ETCH_SLOT_BYTES]]
            heads = [-1] * count
            head = -1
            for turn in range(2):  # a chain may go on from the last slot to the first
                for number, kind in enumerate(kinds):
                    head = number if kind == FIRST else head if kind == NEXT else -1
                    if turn:
                        heads[number] = head
            # The walk is in one block of each level at a time, so no more are asked for again.
            if len(self.heads) > LEVELS:
                self.heads.pop(next(iter(self.heads)))
            self.heads[slot.block] = heads
        return heads[slot.number]

    def _check_record(self, record: EtchRecord) -> None:
        key, at = record.key, record.offset
        name = STATUS_NAMES.get(record.status)
        self.report.statuses[name or f"status {record.status}"] += 1
        if name is None:
            self.report.add(at, f"the status {record.status} has no meaning", key)
        long = len(record.encoding) > EMBEDDED_BYTES_MAX
        # Cells of at most 140 bytes are embedded in their parents.
        if record.flags & (EMBEDDED if long else NOT_EMBEDDED):
            self.report.add(at, "the label says wrongly whether the cell is embedded", key)
        if sha3_256(record.encoding) != key:
            self.report.add(at, "the encoding has another hash than the key", key)
            return
        try:
            decode(record.encoding)
        except BadFormat as error:
            self.report.add(at, f"the encoding is not canonical: {error}", key)
            return
        self._check_below(record, long)

    def _check_below(self, record: EtchRecord, long: bool) -> None:
        key, at = record.key, record.offset
        # "Memory size (bytes, CAD006); 0 while below PERSISTED": a lower status guarantees nothing
        # below.
        if record.status < PERSISTED:
            if record.memory_size:
                self.report.add(at, "a memory size stands at a cell that is not persisted", key)
            return
        size = len(record.encoding) + CELL_OVERHEAD if long else 0
        for branch in branch_hashes(record.encoding):
            below = self._find(branch)
            if below is None:
                self.report.add(at, f"refers to 0x{branch.hex()}, which is not here", key)
                return
            # Persisted: "all cells below are here" (docs/etch.md "File").
            if below.status < PERSISTED:
                self.report.add(at, f"refers to 0x{branch.hex()}, which is not persisted", key)
                return
            size += below.memory_size
        # "Each branch counts as the length of its encoding and 64 more, as often as it occurs"
        # (docs/cells.md "Embedding").
        if size != record.memory_size:
            self.report.add(at, f"the memory size is {record.memory_size}, not {size}", key)

    def _find(self, key: bytes) -> EtchRecord | None:
        try:
            return self.file.get(key)
        except Corruption:
            return None  # reported where that record is checked

    def _check_root(self) -> None:
        root = self.file.root_hash
        if not self.file.has_root or root == NIL_HASH:
            return
        found = self._find(root)
        if found is None:
            self.report.add(ROOT_AT, "the root's record is missing", root)
        elif found.status < PERSISTED:
            self.report.add(ROOT_AT, "the root is not persisted", root)


class _Taken:
    """Which bytes of the data are referred to: one bit each."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._bits = bytearray((length + 7) // 8)
        self._count = 0

    def take(self, start: int, count: int) -> bool:
        """Take a range; return False, and take nothing, when a part of it is taken."""
        first, last = start // 8, (start + count - 1) // 8
        low = 0xFF >> start % 8
        high = 0xFF << 7 - (start + count - 1) % 8 & 0xFF
        bits = self._bits
        if first == last:
            mask = low & high
            if bits[first] & mask:
                return False
            bits[first] |= mask
        else:
            middle = last - first - 1
            if bits[first] & low or bits[last] & high or any(bits[first + 1 : last]):
                return False
            bits[first] |= low
            bits[last] |= high
            bits[first + 1 : last] = b"\xff" * middle
        self._count += count
        return True

    def free(self) -> int:
        """Return how many bytes are not taken."""
        return self._length - self._count
