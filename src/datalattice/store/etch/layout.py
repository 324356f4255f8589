"""Layout: the bytes of an Etch file.

    0    magic e7 c6, version 00 01
    4    data length L: where the next block goes; bytes from there on are undefined
    12   hash of the root; zeros: never set
    44   the index block of level 0, 65,536 slots of 8 bytes
    ...  records and further index blocks in any order

A slot is 0 (empty), or two bits of kind and 62 bits of target. A record is its key (32), flags (1),
memory size (8), the length of the encoding (2) and the encoding. All integers are big-endian.

Source: CAD047 "Layout", "Index", "Record"; docs/etch.md "File".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from datalattice.limits import CELL_BYTES_MAX, HASH_BYTES

MAGIC: Final = b"\xe7\xc6"
ETCH_VERSION: Final = 1

LENGTH_AT: Final = 4
ROOT_AT: Final = 12
ETCH_HEADER_BYTES: Final = 44
ROOT_BLOCK: Final = ETCH_HEADER_BYTES

ETCH_SLOT_BYTES: Final = 8
TARGET_MASK: Final = (1 << 62) - 1

SINGLE: Final = 0
"""Kind of a slot: one record (and 0 for an empty one)."""
BLOCK: Final = 1
"""An index block of the next level."""
FIRST: Final = 2
"""A record, the first of a chain that continues in the next slots."""
NEXT: Final = 3
"""A record that continues the chain begun in an earlier slot, cyclically."""

LEVELS: Final = 60
"""Levels of the index: 0 takes two bytes of the key, 1 one byte, the others half a byte each."""

NO_ETCH_ROOT: Final = bytes(HASH_BYTES)

FLAGS_AT: Final = HASH_BYTES
RECORD_HEAD: Final = HASH_BYTES + 1 + 8 + 2
ETCH_RECORD_BYTES_MAX: Final = RECORD_HEAD + CELL_BYTES_MAX

STATUS_MASK: Final = 0x0F
EMBEDDED: Final = 0x10
NOT_EMBEDDED: Final = 0x20

STORED: Final = 1
"""The cell is here; cells below it may be missing."""
PERSISTED: Final = 3
"""The cell and all cells below it are here."""
ANNOUNCED: Final = 4
"""As PERSISTED, and it was published."""

STATUS_NAMES: Final = {
    STORED: "stored",
    2: "validated",
    PERSISTED: "persisted",
    ANNOUNCED: "announced",
    5: "marked",
    15: "internal",
}


def slot_count(level: int) -> int:
    """Return how many slots an index block of a level has."""
    # "Level 0 takes two bytes of the hash, level 1 one, every further level half a byte"
    # (docs/etch.md).
    return (65_536, 256)[level] if level < 2 else 16


def block_bytes(level: int) -> int:
    """Return the length of an index block of a level."""
    return ETCH_SLOT_BYTES * slot_count(level)


def digit_of(key: bytes, level: int) -> int:
    """Return the slot of a key in the blocks of a level."""
    if level == 0:
        return key[0] << 8 | key[1]
    if level == 1:
        return key[2]
    # Levels 2 and 3 take byte 3, 4 and 5 take byte 4, and so on.
    byte = key[(level + 4) // 2]
    return byte & 0x0F if level % 2 else byte >> 4


DATA_START: Final = ROOT_BLOCK + block_bytes(0)
"""Where the first record goes; the data length of a new file."""


@dataclass(frozen=True, slots=True)
class EtchRecord:
    """One record of a file."""

    offset: int
    key: bytes
    flags: int
    memory_size: int
    encoding: bytes

    @property
    def status(self) -> int:
        """What the file guarantees of the cell: STORED, PERSISTED, ..."""
        return self.flags & STATUS_MASK

    @property
    def end(self) -> int:
        """Where the bytes after the record begin."""
        return self.offset + RECORD_HEAD + len(self.encoding)


def pack_record(key: bytes, flags: int, memory_size: int, encoding: bytes) -> bytes:
    """Return the bytes of a record."""
    # [hash 32][flags 1][memory size 8][length of the encoding 2][encoding].
    return b"".join(
        (
            key,
            bytes((flags,)),
            memory_size.to_bytes(8, "big"),
            len(encoding).to_bytes(2, "big"),
            encoding,
        )
    )


def pack_header(length: int, root: bytes) -> bytes:
    """Return the first bytes of a file, up to the index."""
    # [magic 2][version 2][data length 8][root 32].
    return MAGIC + ETCH_VERSION.to_bytes(2, "big") + length.to_bytes(8, "big") + root


def flags_for(status: int, encoding_bytes: int, has_branches: bool, embedded_max: int) -> int:
    """Return the flags of a new record: the status, and whether parents embed the cell."""
    if encoding_bytes > embedded_max:
        return status | NOT_EMBEDDED
    return status | EMBEDDED if has_branches else status


assert DATA_START == 524_332
assert 2 * HASH_BYTES == 4 + 2 + (LEVELS - 2)
