"""Decoders: any bytes and any text end in a value or `BadFormat`, within bounded memory and time.

A value that is accepted has the very bytes it was read from as its encoding, so nothing that is not
canonical slips through.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from datalattice.cells import (
    Blob,
    Cell,
    Index,
    List,
    Map,
    Record,
    Set,
    Signed,
    Syntax,
    Text,
    Value,
    Vector,
    branch_hashes,
    decode,
    decode_message,
    decode_parts,
    encode,
    encode_message,
    from_json,
    make_blob,
    make_text,
    memory_size,
    missing,
    novelty,
    to_json,
    to_text,
    validate,
    value_hash,
)
from datalattice.crypto import sha3_256
from datalattice.errors import BadFormat, LimitExceeded, MissingData
from datalattice.limits import CELL_BYTES_MAX, EMBEDDED_BYTES_MAX
from datalattice.testing.strategies import values

VECTORS = Path(__file__).parents[1] / "vectors"

LOOKED_AT_MAX = 500
"""Elements that are looked at in a value nobody validated."""

MEMORY_OF_INPUT = 200
"""Bytes of memory that decoding may take for each byte of input, beyond a constant."""

MEMORY_CONSTANT = 200_000

TAGS = bytes([0x00, 0x10, 0x19, 0x20, 0x30, 0x31, 0x80, 0x82, 0x83, 0x84, 0x88, 0x90, 0xC1, 0xD2])


def published_inputs() -> list[bytes]:
    """Return the inputs of the decode vectors: malformed in all the ways somebody thought of."""
    document = json.loads((VECTORS / "cells-decode.json").read_text(encoding="utf-8"))
    return [bytes.fromhex(vector["hex"]) for vector in document["vectors"]]


def changes() -> st.SearchStrategy[Callable[[bytes], bytes]]:
    """Return small changes of a byte string."""
    place = st.floats(0, 1, exclude_max=True)
    byte = st.one_of(st.integers(0, 255), st.sampled_from(list(TAGS)))

    def at(data: bytes, where: float) -> int:
        return int(where * len(data))

    def replaced(where: float, new: int) -> Callable[[bytes], bytes]:
        return lambda data: data[: at(data, where)] + bytes([new]) + data[at(data, where) + 1 :]

    def inserted(where: float, new: bytes) -> Callable[[bytes], bytes]:
        return lambda data: data[: at(data, where)] + new + data[at(data, where) :]

    def removed(where: float, count: int) -> Callable[[bytes], bytes]:
        return lambda data: data[: at(data, where)] + data[at(data, where) + count :]

    def stepped(where: float, by: int) -> Callable[[bytes], bytes]:
        return lambda data: (
            data[: at(data, where)]
            + bytes((b + by) & 0xFF for b in data[at(data, where) : at(data, where) + 1])
            + data[at(data, where) + 1 :]
        )

    def copied(where: float, source: float, count: int) -> Callable[[bytes], bytes]:
        return lambda data: (
            data[: at(data, where)]
            + data[at(data, source) : at(data, source) + count]
            + data[at(data, where) :]
        )

    return st.one_of(
        st.builds(replaced, place, byte),
        st.builds(stepped, place, st.sampled_from([1, -1, 16, 128])),
        st.builds(inserted, place, st.binary(min_size=1, max_size=4)),
        st.builds(removed, place, st.integers(1, 40)),
        st.builds(copied, place, place, st.integers(1, 80)),
    )


def mutated(sources: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    def apply(data: bytes, steps: list[Callable[[bytes], bytes]]) -> bytes:
        for step in steps:
            data = step(data)
        return data

    return st.builds(apply, sources, st.lists(changes(), min_size=1, max_size=3))


def long_elements() -> st.SearchStrategy[Value]:
    """Return elements, many of which are branches of their container."""
    return st.one_of(st.integers(0, 99), st.integers(0, 99).map(lambda n: f"{n:0160d}"))


def branched() -> st.SearchStrategy[Value]:
    """Return containers and blobs with branches in them."""
    few = st.lists(st.tuples(st.integers(0, 400), long_elements()), min_size=1, max_size=60)
    keyed = few.map(lambda pairs: [(f"k{n}".encode(), value) for n, value in pairs])
    return st.one_of(
        few.map(Map.of),
        few.map(lambda pairs: Set.of(value for _, value in pairs)),
        keyed.map(Index.of),
        few.map(lambda pairs: Vector.of(value for _, value in pairs)),
        few.map(lambda pairs: List.of(value for _, value in pairs)),
        few.map(lambda pairs: Record(3, [value for _, value in pairs])),
        st.integers(4000, 90_000).map(bytes).map(lambda data: make_blob(data + b"x" * 700)),
        st.integers(4000, 30_000).map(lambda size: make_text("é" * size)),
    )


def encodings() -> st.SearchStrategy[bytes]:
    published = st.sampled_from(published_inputs())
    return st.one_of(values().map(encode), branched().map(encode), published)


def messages() -> st.SearchStrategy[bytes]:
    published = st.sampled_from(published_inputs())
    return st.one_of(values().map(encode_message), branched().map(encode_message), published)


def measured(action: Callable[[], object], size: int) -> None:
    """Run a decoder and check what it allocates against the size of its input."""
    tracemalloc.start()
    try:
        action()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_CONSTANT + MEMORY_OF_INPUT * size


def check_cell(data: bytes) -> None:
    try:
        value = decode(data)
    except BadFormat:
        return
    assert encode(value) == data
    assert len(data) <= CELL_BYTES_MAX
    look_at(value)
    check_whole(value)


def check_message(data: bytes) -> None:
    try:
        value, parts = decode_parts(data)
    except BadFormat:
        return
    assert data.startswith(encode(value))
    assert all(len(cell) > EMBEDDED_BYTES_MAX for cell in parts.encodings().values())
    look_at(value)
    check_whole(value)


def check_whole(value: Value) -> None:
    """Do with a value what a node does with one from a peer; only a validated one is printed."""
    try:
        absent = validate(value)
    except BadFormat:
        absent = None
    if absent == []:
        assert missing(value) == []
        whole = decode_message(encode_message(value))
        assert value_hash(whole) == value_hash(value)
        assert memory_size(whole) >= 0
        assert to_text(whole).encode()
        assert to_json(whole).encode()
        assert {digest for digest, _, _ in novelty(whole)} >= set(branch_hashes(encode(whole)))
    elif absent is not None:
        with pytest.raises(MissingData):
            encode_message(value)


def look_at(value: Value) -> None:
    """Use a value that nobody validated: that ends, in an answer or one of two errors."""
    for action in uses(value):
        try:
            action()
        except (BadFormat, MissingData):
            continue


def uses(value: Value) -> Iterator[Callable[[], object]]:
    keys: list[Value] = [None, 1, "a", b"", b"ab", "x" * 200]
    yield lambda: value_hash(value)
    if isinstance(value, (Map, Index, Set)):
        yield lambda: [key in value for key in keys]
        yield lambda: list(islice(value, LOOKED_AT_MAX))
    if isinstance(value, (Map, Index)):
        yield lambda: list(islice(value.entries(), LOOKED_AT_MAX))
        yield lambda: [value.get(key) for key in keys]
        yield lambda: encode(value.put("a", 1))
        yield lambda: encode(value.put(b"\xff" * 32, 1))
        yield lambda: encode(value.remove("a"))
        yield lambda: [encode(value.remove(key)) for key in islice(value, 20)]
    if isinstance(value, Map):
        own = Map.of([("a", 1), (1, 2)])
        yield lambda: encode(own.merge_with(value, lambda _k, a, b, has, _h: a if has else b))
        yield lambda: encode(value.merge_with(own, lambda _k, a, b, has, _h: a if has else b))
        yield lambda: list(islice(own.differences(value), LOOKED_AT_MAX))
    if isinstance(value, Index):
        other = Index.of([("a", 1), (b"ab", 2), (b"\xff", 3)])
        yield lambda: encode(other.merge_with(value, lambda _k, a, b, has, _h: a if has else b))
        yield lambda: encode(value.merge_with(other, lambda _k, a, b, has, _h: a if has else b))
        yield lambda: list(islice(other.differences(value), LOOKED_AT_MAX))
    if isinstance(value, Set):
        yield lambda: encode(value.add("a"))
        yield lambda: encode(Set.of(range(20)).union(value))
        yield lambda: encode(value.union(Set.of(range(20))))
    if isinstance(value, (Vector, List, Record)):
        yield lambda: [value.get(i) for i in (0, 1, len(value) // 2, len(value) - 1)]
        yield lambda: list(islice(value, LOOKED_AT_MAX))
    if isinstance(value, Vector):
        yield lambda: encode(value.append(1))
        yield lambda: encode(value.extend(range(20)))
        yield lambda: encode(value.set(0, "a")) if len(value) else None
        yield lambda: encode(value.drop(16)) if len(value) < LOOKED_AT_MAX else None
    if isinstance(value, (Blob, Text)):
        yield lambda: value.read(0, 100)
        yield lambda: value.read(value.byte_length() - 5, value.byte_length())
    if isinstance(value, Signed):
        yield value.verify
        yield lambda: value.value
    if isinstance(value, Syntax):
        yield lambda: (value.value, value.meta)
    if isinstance(value, Cell):
        yield lambda: missing(value)
        yield lambda: memory_size(value)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_as_a_cell(data: bytes) -> None:
    check_cell(data)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_as_a_message(data: bytes) -> None:
    check_message(data)


@given(
    st.lists(st.sampled_from([*TAGS, 0x01, 0x02, 0x0F, 0x11, 0x7F, 0x81]), max_size=60).map(bytes)
)
@example(b"\x84\x02\x80")
def test_bytes_made_of_tags_and_counts(data: bytes) -> None:
    check_cell(data)
    check_message(data)


@given(mutated(encodings()))
def test_mutated_encodings_of_cells(data: bytes) -> None:
    check_cell(data)


@given(mutated(messages()))
def test_mutated_messages(data: bytes) -> None:
    check_message(data)


def with_one_cell_changed(value: Value, which: float, change: Callable[[bytes], bytes]) -> bytes:
    """Return the message of `value` after one of its cells was changed, the hashes above corrected.

    Each cell is well formed on its own then; that they fit together is what the readers must check.
    """
    parts = [(digest, encoding) for digest, encoding, _ in novelty(value)]
    if not parts or parts[-1][0] != value_hash(value):
        parts.append((value_hash(value), encode(value)))
    chosen = int(which * len(parts))
    renamed: dict[bytes, bytes] = {}
    made: list[bytes] = []
    for number, (digest, encoding) in enumerate(parts):
        cell = change(encoding) if number == chosen else encoding
        for old, new in renamed.items():
            cell = cell.replace(old, new)
        if cell != encoding:
            renamed[digest] = sha3_256(cell)
        made.append(cell)
    out = made[-1]
    for cell in made[:-1]:
        length = len(cell)
        out += (
            bytes([length]) if length < 128 else bytes([0x80 | length >> 7, length & 0x7F])
        ) + cell
    return out


@given(branched(), st.floats(0, 1, exclude_max=True), changes())
def test_messages_whose_cells_do_not_fit_together(
    value: Value, which: float, change: Callable[[bytes], bytes]
) -> None:
    check_message(with_one_cell_changed(value, which, change))


@given(branched(), branched(), st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_messages_with_a_cell_of_another_value(
    value: Value, other: Value, which: float, whose: float
) -> None:
    cells = [encoding for _, encoding, _ in novelty(other)] or [encode(other)]
    stranger = cells[int(whose * len(cells))]
    check_message(with_one_cell_changed(value, which, lambda _: stranger))


@given(mutated(messages()))
def test_decoding_takes_memory_in_proportion_to_the_input(data: bytes) -> None:
    def run() -> None:
        try:
            decode_message(data)
        except BadFormat:
            return

    measured(run, len(data))


HUGE = b"\xff" * 8 + b"\x7f"


@pytest.mark.parametrize("tag", range(256))
def test_huge_counts_reserve_nothing(tag: int) -> None:
    for rest in (b"", b"\x00" * 40, b"\x20" + b"\x01" * 32, (b"\x20" + b"\x01" * 32) * 16):
        data = bytes([tag]) + HUGE + rest

        def run(data: bytes = data) -> None:
            for decoder in (decode, decode_message):
                try:
                    look_at(decoder(data))
                except BadFormat:
                    continue

        measured(run, len(data))


def test_a_cell_is_bounded() -> None:
    big = b"\x90" + bytes(96) + b"\x10"
    assert encode(decode(big)) == big
    with pytest.raises(BadFormat):
        decode(b"\x31\xa0\x01" + b"\x31\x01\x00" * 6000)


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_message_is_bounded_by_the_limit_given(extra: int) -> None:
    message = encode_message(Vector.of(["x" * 300] * 3))
    if extra < 0:
        with pytest.raises(LimitExceeded):
            decode_message(message, limit=len(message) + extra)
    else:
        assert decode_message(message, limit=len(message) + extra) == decode_message(message)


@given(st.one_of(st.text(max_size=60), st.text('{}[]",:0123456789.eE+-tfn\\u\x00 ', max_size=60)))
@example("[" * 600)
@example('"\\ud800"')
@example("1e999")
@example("-")
@example("1" * 9866)
@example("\ud800")
def test_arbitrary_text_as_json(text: str) -> None:
    try:
        value = from_json(text)
    except BadFormat:
        return
    assert validate(value) == []
    assert to_text(value).encode()
    assert to_json(value).encode()
