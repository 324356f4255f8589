"""Long byte strings built in parts, and edited, are the very cells of their whole bytes."""

from __future__ import annotations

from hypothesis import given, strategies as st

from datalattice.cells import (
    BlobBuilder,
    Value,
    blob_from,
    blob_length,
    blob_overwrite,
    blob_truncate,
    encode,
    make_blob,
    value_hash,
)
from datalattice.store import MemoryStore

CHUNK = 4096
SIZES = st.sampled_from([0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 16 * CHUNK - 1, 16 * CHUNK]) | (
    st.integers(0, 40 * CHUNK)
)
PATTERN = bytes(range(251)) * 700


def pattern(size: int, seed: int = 0) -> bytes:
    return PATTERN[seed : seed + size]


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    size = draw(SIZES)
    return bytes(size) if draw(st.booleans()) else pattern(size, draw(st.integers(0, 250)))


def agree(value: Value, wanted: bytes) -> None:
    whole = make_blob(wanted)
    assert type(value) is type(whole)
    assert encode(value) == encode(whole)
    assert blob_length(value) == len(wanted)


@given(st.lists(contents(), max_size=4), st.booleans())
def test_pieces_make_the_blob_of_their_bytes(pieces: list[bytes], staged: bool) -> None:
    store = MemoryStore()
    value = blob_from(pieces, store.put if staged else None)
    wanted = b"".join(pieces)
    agree(value, wanted)
    assert (value if isinstance(value, bytes) else value.read(0, len(wanted))) == wanted  # type: ignore[attr-defined]


@given(contents(), contents(), st.integers(0, 40 * CHUNK), st.booleans())
def test_a_builder_goes_on_from_any_blob(
    start: bytes, more: bytes, zeros: int, plain: bool
) -> None:
    builder = BlobBuilder(start if plain else make_blob(start))
    builder.write_zeros(zeros)
    builder.write(more)
    agree(builder.finish(), start + bytes(zeros) + more)
    assert len(builder) == len(start) + zeros + len(more)


@given(contents(), SIZES, st.binary(max_size=40) | contents())
def test_overwriting_is_as_on_bytes(start: bytes, position: int, data: bytes) -> None:
    blob = make_blob(start)
    edited = bytearray(start)
    if data:
        edited.extend(bytes(max(position - len(start), 0)))
        edited[position : position + len(data)] = data
    result = blob_overwrite(blob, position, data)
    agree(result, bytes(edited))
    assert (result is blob) == (edited == start)
    assert encode(blob) == encode(make_blob(start))


@given(contents(), SIZES)
def test_truncating_is_as_on_bytes(start: bytes, size: int) -> None:
    blob = make_blob(start)
    result = blob_truncate(blob, size)
    agree(result, start[:size])
    assert (result is blob) == (size >= len(start))


@given(contents(), SIZES, st.binary(min_size=1, max_size=20))
def test_edits_of_a_stored_blob_touch_one_path(start: bytes, position: int, data: bytes) -> None:
    store = MemoryStore()
    store.commit(make_blob(start))
    held = store.load(value_hash(make_blob(start)))
    edited = blob_overwrite(held, position, data)
    new = store.put(edited)
    # The edited chunk or two, the old last one, the chunk of zeros, and the nodes above.
    assert new <= 12
