"""Packs read back as they were written, and nothing else reads as a pack."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence

from hypothesis import given, strategies as st

from datalattice.limits import CELL_BYTES_MAX
from datalattice.store.log.packing import (
    FLAG_ROOT,
    FORMAT_VERSION,
    OFFSET_MAX,
    PACK_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    SEGMENTS_MAX,
    LogSpan,
    body_is_whole,
    build_pack,
    locate,
    locations_of,
    pack_length,
    read_entries,
    read_pack_header,
    read_segment_header,
    seed_of,
    segment_header,
    sizes_fit,
    trailer_of,
)

SEED = seed_of(b"0123456789abcdef")
COUNTS = st.integers(0, (1 << 32) - 1)


def make(
    encodings: list[bytes], staged: int, promoted: list[bytes], spans: Sequence[LogSpan] = ()
) -> tuple[bytes, list[int]]:
    lengths = list(map(len, encodings))
    parts, locations = build_pack(
        seed=SEED,
        flags=FLAG_ROOT,
        sequence=9,
        durable=8,
        time_ms=1_000,
        before=77,
        segment=3,
        offset=1_000,
        length=pack_length(lengths, len(promoted), len(spans)),
        root=b"r" * 32,
        hashes=[hashlib.sha3_256(e).digest() for e in encodings],
        lengths=lengths,
        encodings=encodings,
        staged=staged,
        promoted=promoted,
        spans=list(spans),
    )
    assert len(parts[-1]) == 4, "the trailer"
    return b"".join(parts), locations


@given(
    st.lists(st.binary(max_size=300) | st.binary(min_size=2_000, max_size=4_000), max_size=20),
    st.lists(st.binary(min_size=32, max_size=32), max_size=5),
    st.lists(st.tuples(st.integers(0, 1 << 46), st.integers(0, 1 << 27), COUNTS), max_size=5),
    st.data(),
)
def test_a_pack_reads_back(
    encodings: list[bytes],
    promoted: list[bytes],
    begins: list[tuple[int, int, int]],
    data: st.DataObject,
) -> None:
    staged = data.draw(st.integers(0, len(encodings)))
    spans = [LogSpan(begin, begin + length, cells) for begin, length, cells in begins]
    pack, places = make(encodings, staged, promoted, spans)
    header = read_pack_header(pack, SEED, 3, 1_000)
    assert header is not None
    assert (header.version, header.sequence, header.durable) == (FORMAT_VERSION, 9, 8)
    assert (header.root, header.before, header.length) == (b"r" * 32, 77, len(pack))
    assert sizes_fit(header)
    rest = pack[PACK_HEADER_BYTES:]
    assert body_is_whole(header, rest)
    hashes, read_places, read_promoted, read_spans = read_entries(header, rest)
    assert read_spans == spans
    assert hashes == [hashlib.sha3_256(e).digest() for e in encodings]
    assert (read_places, read_promoted) == (places, promoted)
    for number, (place, encoding) in enumerate(zip(places, encodings, strict=True)):
        segment, offset, length = locate(place)
        assert segment == 3
        assert pack[offset - 1_000 : offset - 1_000 + length] == encoding
        assert place & 1 == (number >= len(encodings) - staged)
    assert trailer_of(rest) == int.from_bytes(pack[-4:], "big")
    # The bytes on disk: CRC-32 of the body, begun with the header's.
    assert trailer_of(rest) == zlib.crc32(rest[:-4], header.checksum)


@given(st.data())
def test_no_changed_byte_goes_unnoticed(data: st.DataObject) -> None:
    pack, _ = make([b"a" * 200, b"b" * 20], 1, [b"p" * 32], [LogSpan(70, 170, 2)])
    position = data.draw(st.integers(0, len(pack) - 1))
    changed = bytearray(pack)
    changed[position] ^= data.draw(st.integers(1, 255))
    header = read_pack_header(bytes(changed), SEED, 3, 1_000)
    assert header is None or not body_is_whole(header, bytes(changed[PACK_HEADER_BYTES:]))


@given(st.binary(max_size=200))
def test_other_bytes_are_no_headers(data: bytes) -> None:
    assert read_pack_header(data, SEED, 0, 0) is None
    assert read_segment_header(data) is None


def test_a_pack_belongs_to_its_store_and_place() -> None:
    pack, _ = make([b"a"], 0, [])
    assert read_pack_header(pack, seed_of(b"another store..."), 3, 1_000) is None
    assert read_pack_header(pack, SEED, 4, 1_000) is None
    assert read_pack_header(pack, SEED, 3, 1_001) is None
    header = read_pack_header(pack, SEED, 3, 1_000)
    assert header is not None
    assert not body_is_whole(header, pack[PACK_HEADER_BYTES:-1])
    assert not body_is_whole(header, b"")


def test_a_segment_header_reads_back() -> None:
    data = segment_header(b"i" * 16, 5, 77)
    assert len(data) == SEGMENT_HEADER_BYTES
    assert read_segment_header(data + b"more") == (FORMAT_VERSION, b"i" * 16, 5, 77)


def test_the_largest_place_fits_in_62_bits() -> None:
    offset = OFFSET_MAX - CELL_BYTES_MAX - PACK_HEADER_BYTES - 34 - 1
    begin = offset + PACK_HEADER_BYTES
    (place,) = locations_of(SEGMENTS_MAX - 1, begin, [CELL_BYTES_MAX], 0, 1)
    assert place < 1 << 62
    assert locate(place) == (SEGMENTS_MAX - 1, offset + PACK_HEADER_BYTES + 34, CELL_BYTES_MAX)
