"""Laws of all values: one encoding each, read back unchanged, alone and as a message."""

from __future__ import annotations

import json
import math
import pickle

from hypothesis import given, strategies as st

from datalattice.cells import (
    Cell,
    Value,
    branch_hashes,
    close_cells,
    decode,
    decode_message,
    encode,
    encode_message,
    from_json,
    inline_signed,
    is_embedded,
    may_refer,
    memory_size,
    missing,
    novelty,
    same,
    to_cell,
    to_json,
    to_text,
    validate,
    value_hash,
)
from datalattice.crypto import sha3_256
from datalattice.errors import MissingData
from datalattice.limits import CELL_BYTES_MAX, EMBEDDED_BYTES_MAX
from datalattice.testing.strategies import json_values, scalars, values

unknown = object()


class Shelf:
    """A loader over a dict of encodings, as small as one can be."""

    def __init__(self) -> None:
        self.cells: dict[bytes, bytes] = {}
        self.loads = 0

    def load(self, hash: bytes) -> Value:
        self.loads += 1
        if hash not in self.cells:
            raise MissingData([hash])
        return decode(self.cells[hash], self)


@given(values())
def test_cells_that_surely_have_no_references_have_none(value: Value) -> None:
    for encoding in (encode(value), *(below for _, below, _ in novelty(value))):
        if not may_refer(encoding):
            assert branch_hashes(encoding) == []
            found = decode(encoding)
            assert not isinstance(found, Cell) or list(inline_signed(found)) == []


@given(values())
def test_encoding_read_back_gives_the_same_value(value: Value) -> None:
    encoding = encode(value)
    again = decode(encoding)
    assert encode(again) == encoding
    assert value_hash(again) == value_hash(value) == sha3_256(encoding)
    assert same(again, value)
    assert len(encoding) <= CELL_BYTES_MAX


@given(scalars())
def test_scalars_come_back_as_equal_python_objects(value: Value) -> None:
    again = decode_message(encode_message(value))
    if isinstance(value, float) and math.isnan(value):
        assert isinstance(again, float)
        assert math.isnan(again)
    else:
        assert again == value
        assert value == again


@given(values(), values())
def test_values_are_the_same_exactly_when_their_encodings_are(a: Value, b: Value) -> None:
    assert same(a, b) == (encode(a) == encode(b)) == (value_hash(a) == value_hash(b))
    assert same(a, a)


@given(values())
def test_message_holds_every_branch_once_and_reads_back_complete(value: Value) -> None:
    message = encode_message(value)
    whole = decode_message(message)
    assert encode_message(whole) == message
    assert validate(whole) == []
    assert missing(whole) == []
    assert memory_size(whole) == memory_size(value)
    assert to_text(whole) == to_text(value)


@given(values())
def test_value_from_its_cell_alone_names_what_is_missing(value: Value) -> None:
    direct = set(branch_hashes(encode(value)))
    bare = decode(encode(value))
    assert set(missing(bare)) == direct
    assert set(validate(bare)) == direct
    assert missing(bare, limit=1) == missing(bare)[:1]


@given(values())
def test_only_short_encodings_stand_inside_their_parent(value: Value) -> None:
    inside = len(encode(value)) <= EMBEDDED_BYTES_MAX
    assert is_embedded(value) == inside
    parent = encode(to_cell([value]))
    assert parent[2:] == (encode(value) if inside else b"\x20" + value_hash(value))


@given(values())
def test_novelty_is_every_branch_once_children_first(value: Value) -> None:
    parts = novelty(value)
    hashes = [digest for digest, _, _ in parts]
    assert len(set(hashes)) == len(hashes)
    seen: set[bytes] = set()
    for digest, encoding, cell in parts:
        assert sha3_256(encoding) == digest == value_hash(cell)
        assert len(encoding) > EMBEDDED_BYTES_MAX
        assert set(branch_hashes(encoding)) <= seen
        seen.add(digest)
    assert set(branch_hashes(encode(value))) <= seen
    assert (value_hash(value) in seen) == (not is_embedded(value))


@given(values())
def test_settled_values_read_as_before_and_are_no_news(value: Value) -> None:
    before = to_text(value), encode_message(value)
    shelf = Shelf()
    parts = novelty(value, shelf)
    for digest, encoding, _ in parts:
        shelf.cells[digest] = encoding
    close_cells(parts, shelf)
    assert (to_text(value), encode_message(value)) == before
    assert validate(value) == []
    again = decode(encode(value), shelf)
    assert encode_message(again) == before[1]
    if not is_embedded(value):
        kids = [digest for digest, _, _ in novelty(value, shelf)]
        assert kids == [value_hash(value)]


@given(values())
def test_pickles_carry_the_whole_value(value: Value) -> None:
    assert same(pickle.loads(pickle.dumps(value)), value)


@given(values())
def test_values_are_cells_already(value: Value) -> None:
    assert to_cell(value) is value or isinstance(value, (str, bytes))
    assert not isinstance(value, Cell) or value == decode_message(encode_message(value))


@given(json_values())
def test_json_text_is_stable(value: Value) -> None:
    text = to_json(value)
    again = from_json(text)
    assert same(again, value)
    assert to_json(again) == text


@given(values(), st.booleans())
def test_any_value_has_text_that_can_be_stored(value: Value, json5: bool) -> None:
    assert to_text(value).encode()
    assert json.loads(to_json(value, json5=json5).encode()) is not unknown
