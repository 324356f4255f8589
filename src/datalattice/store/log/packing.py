"""Packing: the bytes of segments and packs. Pure functions, compiled with the kernel.

All integers are big-endian. A segment is a header followed by packs; zeros after the last one are
preallocated space.

    segment header, 44 bytes: magic `DLSG`, format version (2 bytes), zero 2, store id 16, segment
        number 4, sequence of its first pack 8, zero 4, CRC-32 of all that 4
    pack header, 100 bytes: magic `DLPK`, format version (2 bytes), flags 2, sequence 8, last
        sequence known durable 8, Unix milliseconds 8, segment number 4, offset 4, length of the
        whole pack 4, cells 4, staged cells 4, promoted hashes 4, promoted spans 4, trailer of the
        pack before 4, root hash 32, CRC-32 of all that 4
    pack body: the cells' lengths (2 each), their hashes (32 each), the promoted hashes (32 each),
        the promoted spans (segment and offset 8, length 4, cells 4 each), the cells' encodings
    pack trailer: CRC-32 of the body, begun with the header's

A pack of version 1 has no spans, and its header, of 96 bytes, no number of them.

When a damaged segment is searched for the next pack, bytes that a user stored as a value must not
be taken for one. So the checksum of a pack header starts from the checksum of the store id, which
is random and never leaves the machine, and the header repeats its own position.

A *location* says where a cell's encoding is, in 62 bits: segment 20, offset 27, length 14, staged
1.

Source: docs/store.md "Segments and packs".
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from mypy_extensions import i64

try:
    from datalattice__checksums import crc32_of as _crc32_of
except ImportError:  # not compiled

    def _crc32_of(parts: Sequence[bytes | memoryview], start: int, /) -> int:
        for part in parts:
            start = zlib.crc32(part, start)
        return start


FORMAT_VERSION: Final = 2

SEGMENT_MAGIC: Final = b"DLSG"
PACK_MAGIC: Final = b"DLPK"
SEGMENT_HEADER_BYTES: Final = 44
PACK_HEADER_BYTES: Final = 100
PACK_TRAILER_BYTES: Final = 4
LOG_STORE_ID_BYTES: Final = 16

FLAG_ROOT: Final = 1
"""The pack sets the root to the hash in its header."""
FLAG_PART: Final = 2
"""The pack is a part of a commit that a later pack completes."""
PARTS_SHIFT: Final = 2
"""The upper 14 bits of the flags: the number of parts that a pack with a root completes."""
PARTS_MAX: Final = (1 << 14) - 1

SEGMENTS_MAX: Final = 1 << 20
OFFSET_BITS: Final = 27
OFFSET_MAX: Final = 1 << OFFSET_BITS
NO_ROOT: Final = bytes(32)

CELL_ENTRY_BYTES: Final = 34
"""Bytes of a cell in a pack beside its encoding: length 2, hash 32."""

LONG_CELL_BYTES: Final = 1_024
"""If cells are longer than this on average, they are not copied on their way to the file."""

_SEGMENT: Final = struct.Struct(">4sHH16sIQI")
_PACK: Final = struct.Struct(">4sHHQQQIIIIIIII32s")
_PACK_1: Final = struct.Struct(">4sHHQQQIIIIIII32s")
_SPANS_AT: Final = 12  # the field of the spans' number, which a header of version 1 lacks
_SPAN: Final = struct.Struct(">QII")
SPAN_BYTES: Final = 16
_CRC: Final = struct.Struct(">I")


class LogSpan(NamedTuple):
    """A part of a segment in which every cell is announced."""

    begin: int
    """Its first byte, as the upper bits of a location: segment and offset."""
    end: int
    cells: int
    """The number of its cells."""


class PackHeader(NamedTuple):
    """The fields of a pack header, in the order of the bytes."""

    magic: bytes
    version: int
    flags: int
    sequence: int
    durable: int
    time_ms: int
    segment: int
    offset: int
    length: int
    cells: int
    staged: int
    promoted: int
    spans: int
    before: int
    root: bytes
    checksum: int

    @property
    def bytes(self) -> int:
        """The length of the header itself."""
        return header_bytes(self.version)


def header_bytes(version: int) -> int:
    """Return the length of a pack header of a format version."""
    return PACK_HEADER_BYTES - 4 if version == 1 else PACK_HEADER_BYTES


def seed_of(store_id: bytes) -> int:
    """Return the start value of the pack header checksums of a store."""
    return zlib.crc32(store_id)


def segment_header(store_id: bytes, segment: int, first_sequence: int) -> bytes:
    """Return the header of a segment."""
    # The two zero fields are reserved; readers ignore them.
    head = _SEGMENT.pack(SEGMENT_MAGIC, FORMAT_VERSION, 0, store_id, segment, first_sequence, 0)
    return head + _CRC.pack(zlib.crc32(head))


def read_segment_header(data: bytes) -> tuple[int, bytes, int, int] | None:
    """Return (version, store id, segment, first sequence), or None for damaged bytes."""
    # The caller reports damaged bytes, and bytes of another file, with their position.
    if len(data) < SEGMENT_HEADER_BYTES or data[:4] != SEGMENT_MAGIC:
        return None
    head = data[: SEGMENT_HEADER_BYTES - 4]
    checksum: int = _CRC.unpack_from(data, SEGMENT_HEADER_BYTES - 4)[0]
    if checksum != zlib.crc32(head):
        return None
    _, version, _, store_id, segment, first, _ = _SEGMENT.unpack(head)
    return version, store_id, segment, first


def pack_length(lengths: list[int], promoted: int, spans: int = 0) -> int:
    """Return the length of a pack of cells, `promoted` hashes and `spans` spans.

    lengths: of the cells' encodings. A cell takes 34 bytes beside it: length and hash.
    """
    total = PACK_HEADER_BYTES + PACK_TRAILER_BYTES + CELL_ENTRY_BYTES * len(lengths)
    return total + _promoted_bytes(promoted, spans) + sum(lengths)


def _promoted_bytes(promoted: int, spans: int) -> int:
    return 32 * promoted + SPAN_BYTES * spans


def build_pack(
    *,
    seed: int,
    flags: int,
    sequence: int,
    durable: int,
    time_ms: int,
    before: int,
    segment: int,
    offset: int,
    length: int,
    root: bytes,
    hashes: list[bytes],
    lengths: list[int],
    encodings: list[bytes],
    staged: int,
    promoted: list[bytes],
    spans: list[LogSpan],
) -> tuple[list[bytes], list[int]]:
    """Return (the bytes of the pack in parts, locations of its cells).

    encodings: those of all cells, end to end, in any number of pieces.
    The trailer is the last part. The last `staged` cells are staged.
    """
    count = len(lengths)
    head = _PACK.pack(
        PACK_MAGIC,
        FORMAT_VERSION,
        flags,
        sequence,
        durable,
        time_ms,
        segment,
        offset,
        length,
        count,
        staged,
        len(promoted),
        len(spans),
        before,
        root,
    )
    # Begun with the CRC of the secret store id: a value cannot forge a pack (module docstring).
    checksum = zlib.crc32(head, seed)
    # Order of the body: lengths (2 bytes each), hashes, promoted hashes and spans, encodings.
    front = b"".join([struct.pack(f">{count}H", *lengths), *hashes, *promoted, pack_spans(spans)])
    cells = encodings if length >= count * LONG_CELL_BYTES else [b"".join(encodings)]
    body = _crc32_of([front, *cells], checksum)
    parts = [head + _CRC.pack(checksum) + front, *cells, _CRC.pack(body)]
    before_cells = _promoted_bytes(len(promoted), len(spans))
    begin = offset + PACK_HEADER_BYTES
    return parts, locations_of(segment, begin, lengths, before_cells, staged)


def read_pack_header(data: bytes, seed: int, segment: int, offset: int) -> PackHeader | None:
    """Return the header at the front of `data`, or None when it is not one for this location."""
    # Anything else at this offset is a torn write, damage, or preallocated zeros.
    version = int.from_bytes(data[4:6], "big")
    size = header_bytes(version)
    if len(data) < size or data[:4] != PACK_MAGIC:
        return None
    head = data[: size - 4]
    checksum: int = _CRC.unpack_from(data, size - 4)[0]
    if checksum != zlib.crc32(head, seed):
        return None
    if version == 1:
        fields = _PACK_1.unpack(head)
        header = PackHeader._make((*fields[:_SPANS_AT], 0, *fields[_SPANS_AT:], checksum))
    else:
        header = PackHeader._make((*_PACK.unpack(head), checksum))
    # "The header repeats its own position": a copy at another offset, or a leftover of an older
    # log, is not a pack here.
    if header.segment != segment or header.offset != offset:
        return None
    return header


def trailer_of(rest: bytes) -> int:
    """Return the trailer of a pack, which its successor repeats."""
    trailer: int = _CRC.unpack_from(rest, len(rest) - PACK_TRAILER_BYTES)[0]
    return trailer


def body_is_whole(header: PackHeader, rest: bytes) -> bool:
    """Return whether `rest`, the bytes after a header, are its body and trailer."""
    # The end of the file has cut the pack.
    if len(rest) != header.length - header.bytes or len(rest) < PACK_TRAILER_BYTES:
        return False
    body = memoryview(rest)[: len(rest) - PACK_TRAILER_BYTES]
    checksum: int = _CRC.unpack_from(rest, len(rest) - PACK_TRAILER_BYTES)[0]
    return checksum == _crc32_of([body], header.checksum)


def locations_of(
    segment: int, begin: int, lengths: list[int], promoted_bytes: int, staged: int
) -> list[int]:
    """Return the locations of the cells of a pack whose body begins at the byte `begin`."""
    count = len(lengths)
    position: i64 = begin + CELL_ENTRY_BYTES * count + promoted_bytes
    # Location: segment 20 bits, offset 27, length 14, staged 1.
    base: i64 = segment << 42
    fresh: i64 = count - staged
    out: list[int] = []
    for index in range(count):
        size: i64 = lengths[index]
        location: i64 = base | (position << 15) | (size << 1)
        # The staged cells are the last ones of a pack.
        if index >= fresh:
            location |= 1
        out.append(location)
        position += size
    return out


def read_entries(
    header: PackHeader, body: bytes
) -> tuple[list[bytes], list[int], list[bytes], list[LogSpan]]:
    """Return (hashes, locations, promoted hashes, promoted spans) of a pack.

    `body` needs `list_bytes` only.
    """
    count = header.cells
    lengths = list(struct.unpack_from(f">{count}H", body, 0))
    # Lengths of 2 bytes each come first, then hashes of 32.
    at = 2 * count
    hashes = [body[i : i + 32] for i in range(at, at + 32 * count, 32)]
    at += 32 * count
    promoted = [body[i : i + 32] for i in range(at, at + 32 * header.promoted, 32)]
    spans = read_spans(body, at + 32 * header.promoted, header.spans)
    before_cells = _promoted_bytes(header.promoted, header.spans)
    begin = header.offset + header.bytes
    locations = locations_of(header.segment, begin, lengths, before_cells, header.staged)
    return hashes, locations, promoted, spans


def pack_spans(spans: list[LogSpan]) -> bytes:
    """Return the bytes of spans, for `read_spans`."""
    return b"".join([_SPAN.pack(begin, end - begin, cells) for begin, end, cells in spans])


def read_spans(data: bytes, start: int, count: int) -> list[LogSpan]:
    """Return the spans whose bytes are in `data` from `start` on."""
    found: list[LogSpan] = []
    for at in range(start, start + SPAN_BYTES * count, SPAN_BYTES):
        begin, length, cells = _SPAN.unpack_from(data, at)
        found.append(LogSpan(begin, begin + length, cells))
    return found


def list_bytes(header: PackHeader) -> int:
    """Return how many bytes of a pack, after its header, list its cells."""
    return CELL_ENTRY_BYTES * header.cells + _promoted_bytes(header.promoted, header.spans)


def sizes_fit(header: PackHeader) -> bool:
    """Return whether the counts of a header can belong to a pack of its length."""
    return (
        header.length >= header.bytes + PACK_TRAILER_BYTES + list_bytes(header)
        and header.staged <= header.cells
        and header.offset + header.length <= OFFSET_MAX
    )


def upper_bits(segment: int, offset: int) -> int:
    """Return a segment and a byte of it as the upper bits of a location have them."""
    return (segment << OFFSET_BITS) + offset


def locate(location: int) -> tuple[int, int, int]:
    """Return (segment, offset, length) of a location."""
    where: i64 = location
    return where >> 42, (where >> 15) & 0x7FFFFFF, (where >> 1) & 0x3FFF
