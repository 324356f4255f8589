"""Reader: find and list the records of an Etch file, also while another process writes to it.

The data length is read once, so records appended later are not seen. Blocks of the index are
followed up to the end of the file, because a writer moves records into new blocks. For any bytes,
every call ends in bounded time, with a result or with a `Corruption` that names the offset.

Source: CAD047 "Index"; docs/etch.md "File", "Durability".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from datalattice.cells import NIL_HASH
from datalattice.crypto import sha3_256
from datalattice.errors import Corruption, StoreVersion, UsageError
from datalattice.limits import CELL_BYTES_MAX, HASH_BYTES
from datalattice.store.disk import Disk, DiskFile
from datalattice.store.etch.layout import (
    BLOCK,
    DATA_START,
    ETCH_HEADER_BYTES,
    ETCH_RECORD_BYTES_MAX,
    ETCH_SLOT_BYTES,
    ETCH_VERSION,
    FIRST,
    FLAGS_AT,
    LENGTH_AT,
    LEVELS,
    MAGIC,
    NEXT,
    NO_ETCH_ROOT,
    RECORD_HEAD,
    ROOT_AT,
    ROOT_BLOCK,
    STATUS_MASK,
    TARGET_MASK,
    EtchRecord,
    block_bytes,
    digit_of,
    slot_count,
)

READ_AHEAD: Final = 512
"""Bytes read at once for a record; most records are shorter."""

Complaint = Callable[[int, str], None]
"""Called with an offset and the fault there."""


class EtchSlot(NamedTuple):
    """A slot that is not empty, with the way to it."""

    block: int
    level: int
    number: int
    """Which slot of its block."""
    kind: int
    target: int
    digits: tuple[int, ...]
    """Digits that lead from level 0 to the block."""

    @property
    def offset(self) -> int:
        """Where the slot is in the file."""
        return self.block + ETCH_SLOT_BYTES * self.number


class EtchFile:
    """An Etch file, for reading."""

    def __init__(self, disk: Disk, path: str, *, write: bool = False) -> None:
        """Open the file.

        Raises: UsageError: it is not an Etch file. StoreVersion: an unknown version.
                Corruption: its header is invalid.
        """
        self.path: Final = path
        self._file: DiskFile = disk.open(path, write=write)
        try:
            self.size = self._file.size()
            self.length, self.root_hash = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> tuple[int, bytes]:
        header = self._file.read(0, ETCH_HEADER_BYTES)
        if header[: len(MAGIC)] != MAGIC[: max(1, len(header))] or not header:
            raise UsageError(f"{self.path}: not an Etch file; one begins with {MAGIC.hex()}")
        if len(header) < ETCH_HEADER_BYTES:
            raise self.broken(len(header), "the file ends inside its header")
        version = int.from_bytes(header[2:LENGTH_AT], "big")
        if version != ETCH_VERSION:
            raise StoreVersion(
                f"{self.path}: an Etch file of version {version}; this package reads {ETCH_VERSION}"
            )
        # "The data length is read once, so a reader sees the file as it was when it was opened".
        length = int.from_bytes(header[LENGTH_AT:ROOT_AT], "big")
        self._check_length(length)
        return length, header[ROOT_AT:ETCH_HEADER_BYTES]

    def _check_length(self, length: int) -> None:
        if length < DATA_START:
            raise self.broken(LENGTH_AT, f"the data length is {length}, less than {DATA_START}")
        # An intact file is at least as long as its data: this one was cut.
        if length > self.size:
            raise self.broken(
                LENGTH_AT, f"the data length is {length}, and the file has {self.size} bytes"
            )

    def broken(self, offset: int, reason: str) -> Corruption:
        """Return the error for bytes that cannot be right."""
        return Corruption(f"{self.path} at byte {offset}: {reason}")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    # --- bytes ---

    def _read(self, offset: int, count: int) -> bytes:
        data = self._file.read(offset, count)
        if len(data) < count:
            raise self.broken(offset, f"{count} bytes should be here, and the file ends")
        return data

    def read_some(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes of the file as it is, fewer at its end."""
        return self._file.read(offset, count)

    def _slot(self, block: int, index: int) -> int:
        return int.from_bytes(self._read(block + ETCH_SLOT_BYTES * index, ETCH_SLOT_BYTES), "big")

    def _key_at(self, position: int) -> bytes:
        return self._read(position, HASH_BYTES)

    def _next_block(self, slot_at: int, target: int, level: int) -> int:
        """Return the block that a slot leads to, which must lie inside the file."""
        # Two 32-byte keys differ in one of the 60 levels: deeper is damage.
        if level >= LEVELS:
            raise self.broken(slot_at, f"the index has at most {LEVELS} levels; this slot has one")
        end = target + block_bytes(level)
        if target < DATA_START or (end > self.length and end > self._file.size()):
            raise self.broken(slot_at, f"an index block at {target} is outside the data")
        return target

    def _is_at(self, key: bytes, slot_at: int, target: int) -> bool:
        """Return whether the record that a slot leads to has this key."""
        if target >= self.length:
            return False  # appended after the data length was read, or torn by a crash
        # A slot is untrusted: every target is checked before it is read.
        if target < DATA_START or target + RECORD_HEAD > self.length:
            raise self.broken(slot_at, f"a record at {target} is outside the data")
        return self._key_at(target) == key

    # --- lookup ---

    def find(self, key: bytes) -> int | None:
        """Return where the record of a key is, None when there is none."""
        block = ROOT_BLOCK
        # Bounded by the levels, so that a damaged index cannot make the search endless.
        for level in range(LEVELS):
            count = slot_count(level)
            index = digit_of(key, level)
            slot = self._slot(block, index)
            kind, target = slot >> 62, slot & TARGET_MASK
            slot_at = block + ETCH_SLOT_BYTES * index
            # "11: absent (the slot is lent to another digit's chain)."
            if slot == 0 or kind == NEXT:
                return None
            # "01: go to that block, next level."
            if kind == BLOCK:
                block = self._next_block(slot_at, target, level + 1)
                continue
            if self._is_at(key, slot_at, target):
                return target
            return self._find_in_chain(key, block, index, count) if kind == FIRST else None
        raise self.broken(block, f"the index has at most {LEVELS} levels")

    def _find_in_chain(self, key: bytes, block: int, first: int, count: int) -> int | None:
        # "A record that continues one (3), which may go on from the last slot of a block in the
        # first" (docs/etch.md "File").
        for step in range(1, count):
            index = (first + step) % count
            slot = self._slot(block, index)
            if slot >> 62 != NEXT:
                return None
            target = slot & TARGET_MASK
            if self._is_at(key, block + ETCH_SLOT_BYTES * index, target):
                return target
        return None

    def record(self, position: int) -> EtchRecord:
        """Return the record at an offset. Its key is not compared with its encoding.

        Raises: Corruption: no record can be there.
        """
        # The header and the first index block lie before DATA_START.
        if position < DATA_START or position + RECORD_HEAD > self.length:
            raise self.broken(position, "a record is outside the data")
        room = self.length - position
        data = self._read(position, min(READ_AHEAD, room))
        length = int.from_bytes(data[RECORD_HEAD - 2 : RECORD_HEAD], "big")
        # Before the bytes are read: a damaged length must not allocate memory.
        if not 1 <= length <= CELL_BYTES_MAX:
            raise self.broken(
                position, f"a record's encoding has 1 to {CELL_BYTES_MAX} bytes, got {length}"
            )
        if RECORD_HEAD + length > room:
            raise self.broken(position, f"a record of {length} bytes goes beyond the data")
        if RECORD_HEAD + length > len(data):
            data = self._read(position, RECORD_HEAD + length)
        return EtchRecord(
            position,
            data[:HASH_BYTES],
            data[FLAGS_AT],
            int.from_bytes(data[FLAGS_AT + 1 : FLAGS_AT + 9], "big"),
            data[RECORD_HEAD : RECORD_HEAD + length],
        )

    def get(self, key: bytes) -> EtchRecord | None:
        """Return the record of a key, None when there is none."""
        position = self.find(key)
        return None if position is None else self.record(position)

    def status_of(self, key: bytes) -> int:
        """Return the status of a key's record, 0 when there is none."""
        position = self.find(key)
        return 0 if position is None else self._flags_at(position) & STATUS_MASK

    def _flags_at(self, position: int) -> int:
        return self._read(position + FLAGS_AT, 1)[0]

    @property
    def has_root(self) -> bool:
        """Whether a root was ever set."""
        return self.root_hash != NO_ETCH_ROOT

    # --- everything ---

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield offset and level of every index block, each before those below it."""
        yield ROOT_BLOCK, 0
        for slot in self.slots():
            if slot.kind == BLOCK:
                yield slot.target, slot.level + 1

    def slots(self, complain: Complaint | None = None) -> Iterator[EtchSlot]:
        """Yield every slot that is not empty, in the order of keys; chains are not resolved.

        Blocks that overlap are entered once. Invalid slots are reported to `complain` and omitted.
        Raises: Corruption: a slot is invalid, and `complain` is None.
        """
        # A damaged file may have cycles: each block is entered once.
        entered = _Ranges()
        entered.add(ROOT_BLOCK, block_bytes(0))
        stack = [self._slots_of(ROOT_BLOCK, 0, ())]
        while stack:
            slot = next(stack[-1], None)
            if slot is None:
                stack.pop()
                continue
            if slot.kind == BLOCK:
                try:
                    block = self._next_block(slot.offset, slot.target, slot.level + 1)
                    if not entered.add(block, block_bytes(slot.level + 1)):
                        raise self.broken(
                            slot.offset, f"an index block at {block} overlaps another one"
                        )
                except Corruption:
                    if complain is None:
                        raise
                    complain(slot.offset, f"an index block at {slot.target} cannot be there")
                    continue
                stack.append(self._slots_of(block, slot.level + 1, (*slot.digits, slot.number)))
            yield slot

    def _slots_of(self, block: int, level: int, digits: tuple[int, ...]) -> Iterator[EtchSlot]:
        data = self._read(block, block_bytes(level))
        at = _next_used(data, 0)
        while at >= 0:
            slot = int.from_bytes(data[at : at + ETCH_SLOT_BYTES], "big")
            yield EtchSlot(
                block, level, at // ETCH_SLOT_BYTES, slot >> 62, slot & TARGET_MASK, digits
            )
            at = _next_used(data, at + ETCH_SLOT_BYTES)

    def records(self) -> Iterator[EtchRecord]:
        """Yield every record in the order of the index.

        Raises: Corruption: a slot leads nowhere.
        """
        for slot in self.slots():
            # A target after the data length was appended after it was read.
            if slot.kind != BLOCK and slot.target < self.length:
                yield self.record(slot.target)

    def scan(self, start: int) -> Iterator[EtchRecord]:
        """Yield the complete records from `start` on, as long as they are contiguous.

        Index blocks between them are skipped. Records after the data length are included.
        """
        known = {offset: block_bytes(level) for offset, level in self._blocks_found()}
        position, size = start, self._file.size()
        while position < size:
            # "Records and further index blocks, in any mix" (docs/etch.md "File").
            skip = known.get(position)
            if skip is not None:
                position += skip
                continue
            found = parse_record(self._file.read(position, ETCH_RECORD_BYTES_MAX), position)
            if found is None:
                return
            yield found
            position = found.end

    def look_behind(self) -> None:
        """Include records after the data length when the root is one of them.

        A crash, or a writer at work, can leave the root ahead of the length.
        """
        if self.root_hash in (NO_ETCH_ROOT, NIL_HASH) or self.find(self.root_hash) is not None:
            return
        length = self.length
        # "If the root is not found within the data length, whole records after it are looked at"
        # (docs/etch.md "Durability").
        self.length = max((record.end for record in self.scan(length)), default=length)
        if self.find(self.root_hash) is None:
            self.length = length

    def _blocks_found(self) -> Iterator[tuple[int, int]]:
        for slot in self.slots(lambda _offset, _reason: None):
            if slot.kind == BLOCK:
                yield slot.target, slot.level + 1


def parse_record(data: bytes, position: int) -> EtchRecord | None:
    """Return the record that `data` begins with, None where there is no complete one."""
    length = int.from_bytes(data[RECORD_HEAD - 2 : RECORD_HEAD], "big")
    encoding = data[RECORD_HEAD : RECORD_HEAD + length]
    if not 1 <= length <= CELL_BYTES_MAX or len(encoding) < length:
        return None
    # After the data length only the hash proves that a record was written completely.
    if sha3_256(encoding) != data[:HASH_BYTES]:
        return None
    memory_size = int.from_bytes(data[FLAGS_AT + 1 : FLAGS_AT + 9], "big")
    return EtchRecord(position, data[:HASH_BYTES], data[FLAGS_AT], memory_size, encoding)


_EMPTY: Final = bytes(4_096)


def _next_used(data: bytes, start: int) -> int:
    """Return where the next slot that is not empty begins, -1 when there is none."""
    at = start
    while at < len(data):
        if at % 4_096 == 0 and data[at : at + 4_096] == _EMPTY:
            at += 4_096
        elif data[at : at + ETCH_SLOT_BYTES] == _EMPTY[:ETCH_SLOT_BYTES]:
            at += ETCH_SLOT_BYTES
        else:
            return at
    return -1


class _Ranges:
    """Disjoint ranges of the file."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, count: int) -> bool:
        """Add a range; return False, and add nothing, when it overlaps one that is there."""
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] < start + count:
            return False
        if at and self._ends[at - 1] > start:
            return False
        self._starts.insert(at, start)
        self._ends.insert(at, start + count)
        return True
