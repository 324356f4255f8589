"""Records read from encodings equal the records read through the cells' own objects."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from hashlib import sha3_256

import pytest
from hypothesis import example, given, strategies as st

from datalattice.arrow import leaves
from datalattice.arrow.leaves import Columns, Unfit
from datalattice.arrow.spans import Spans
from datalattice.cells import (
    Blob,
    Char,
    Keyword,
    List,
    Map,
    Text,
    Value,
    Vector,
    decode_message,
    element_runs,
    encode,
    json_in_utf8,
    novelty,
    same,
    to_json,
)
from datalattice.cells.scalars import encode_vlq
from datalattice.errors import BadFormat, LimitExceeded, MissingData
from datalattice.testing import strategies

Fetch = Callable[[bytes], bytes]


def cells_of(value: Value) -> Fetch:
    """Return a fetch of the cells of `value`, that knows no others."""
    cells = {hash: encoding for hash, encoding, _ in novelty(value)}

    def fetch(hash: bytes) -> bytes:
        if hash not in cells:
            raise MissingData([hash])
        return cells[hash]

    return fetch


def entry(value: Value, key: Value = None, stamp: Value = 1_000, headers: Value = None) -> Vector:
    return Vector.of((key, value, stamp, headers))


def read(
    entries: Sequence[Value],
    mode: int = leaves.CELL_LEAF,
    first: int = 0,
    stop: int | None = None,
    key_mode: int | None = None,
) -> Columns:
    vector = Vector.of(entries)
    fetch = cells_of(vector)
    found = Columns(
        fetch, first, mode if key_mode is None else key_mode, mode, stamps=True, headers=True
    )
    for run in element_runs(encode(vector), first, len(entries) if stop is None else stop, fetch):
        found.take(run)
    return found


def contents(found: Columns, spans: Spans) -> list[bytes | None]:
    """Return the byte strings of a column."""
    text = found.sheet.text()
    bounds = array("i", spans.bounds.getvalue())
    assert list(bounds) == sorted(bounds)
    gaps = array("i", spans.gaps.getvalue())
    assert len(gaps) == spans.absent
    pairs = zip(bounds[::2], bounds[1::2], strict=True)
    parts = [None if i in gaps else text[slice(*next(pairs))] for i in range(spans.count)]
    assert next(pairs, None) is None
    return parts


def values(found: Columns) -> list[bytes | None]:
    return contents(found, found.values)


def keys(found: Columns) -> list[bytes | None]:
    return contents(found, found.keys)


def texts(column: list[bytes | None]) -> list[str | None]:
    return [None if one is None else one.decode() for one in column]


def stamps(found: Columns) -> list[int | None]:
    numbers = array("q", found.stamps.numbers.getvalue())
    gaps = array("i", found.stamps.gaps.getvalue())
    assert len(gaps) == found.stamps.absent
    assert len(numbers) == found.stamps.count
    return [None if i in gaps else number for i, number in enumerate(numbers)]


@given(st.lists(st.tuples(strategies.values(), strategies.values()), max_size=40))
def test_cells_come_back_exactly(parts: list[tuple[Value, Value]]) -> None:
    found = read([entry(value, key) for key, value in parts])
    assert found.count == len(parts)
    for column, position in ((keys(found), 0), (values(found), 1)):
        for message, part in zip(column, parts, strict=True):
            if part[position] is None:
                assert message is None
            else:
                assert isinstance(message, bytes)
                assert same(decode_message(message), part[position])


@given(st.lists(strategies.values(), max_size=20))
def test_json_is_what_to_json_writes(given: list[Value]) -> None:
    found = read([entry(value) for value in given], leaves.JSON_LEAF)
    for text, value in zip(texts(values(found)), given, strict=True):
        assert text == (None if value is None else json_in_utf8(value))


WIDE = Map.of((f"field-{i}", [i, i / 2, "x" * i]) for i in range(100))


@pytest.mark.parametrize(
    "value",
    [
        WIDE,
        Vector.of([WIDE] * 3 + [[]]),
        Vector.of(range(5_000)),
        '\b\f\n\r\t\\"/ é \u2028 \x7f \x00',
        "long " * 2_000,
        {"\b": 1, Keyword("k"): 2, 3: 4, b"\x01": 5, None: 6, "": {}},
        [0.1, 1.0, 5e-324, 1e300, -0.0, float("nan"), float("inf"), 123456.75],
        2**2000,
        [List([1, 2]), {1, 2}, Keyword("k"), Char(0xD800), b"\xff"],
    ],
)
def test_json_of_large_and_odd_values(value: object) -> None:
    cell = entry(value)[1]
    assert texts(values(read([entry(value)], leaves.JSON_LEAF))) == [json_in_utf8(cell)]


def test_deep_values_are_written_too() -> None:
    value: Value = 1
    for _ in range(300):
        value = Vector.of([value, "x" * 150])
    assert texts(values(read([entry(value)], leaves.JSON_LEAF))) == [to_json(value)]


@given(st.lists(st.binary(max_size=300) | st.text(max_size=200), max_size=40))
def test_bytes_are_the_content_of_blobs_and_strings(given: list[bytes | str]) -> None:
    found = read([entry(content, content) for content in given], leaves.BYTES_LEAF)
    expected = [content.encode() if isinstance(content, str) else content for content in given]
    assert values(found) == expected
    assert keys(found) == expected


@pytest.mark.parametrize("size", [127, 128, 137, 138, 4096, 4097, 5000, 16384, 65537, 200_000])
def test_bytes_of_every_length(size: int) -> None:
    data = bytes(i * 7 % 251 for i in range(size))
    text = "é" * (size // 2)
    found = read([entry(Blob.of(data)), entry(Text.of(text))], leaves.BYTES_LEAF)
    assert values(found) == [data, text.encode()]
    assert texts(values(read([entry(Text.of(text))], leaves.STRING_LEAF))) == [text]


def test_a_blob_whose_chunks_are_wrong_is_refused() -> None:
    vector = Vector.of([entry(Blob.of(bytes(range(251)) * 20))])
    fetch = cells_of(vector)

    def shorter(hash: bytes) -> bytes:
        encoding = fetch(hash)
        return encode(bytes(200)) if encoding[0] == 0x31 and len(encoding) > 200 else encoding

    found = Columns(shorter, 0, leaves.SKIP, leaves.BYTES_LEAF, stamps=False, headers=False)
    (run,) = element_runs(encode(vector), 0, 1, fetch)
    with pytest.raises(BadFormat):
        found.take(run)


@pytest.mark.parametrize(("mode", "is_value"), [(leaves.SKIP, True), (leaves.BYTES_LEAF, False)])
def test_bytes_refuse_other_values_and_say_which(mode: int, is_value: bool) -> None:
    entries = [entry("a", "k"), entry("b", "k"), entry({"x": 1} if is_value else "c", 17)]
    with pytest.raises(Unfit) as caught:
        read(entries, leaves.BYTES_LEAF, key_mode=mode)
    assert (caught.value.offset, caught.value.is_value) == (2, is_value)


def test_strings_stay_and_all_else_is_json() -> None:
    given = ["text", 'say "x"', Keyword("name"), b"\x01\xff", 12, 1.5, [1, "a"], Char(34), True]
    found = read([entry(value) for value in given], leaves.STRING_LEAF)
    expected = ["text", 'say "x"', "name", "0x01ff", "12", "1.5", '[1,"a"]', '"', "true"]
    assert texts(values(found)) == expected


def test_strings_that_are_not_utf8_stay_as_they_are() -> None:
    encoded = encode(entry("ab")).replace(b"ab", b"\xff\xfe")
    found = Columns(cells_of(None), 0, leaves.SKIP, leaves.STRING_LEAF, stamps=False, headers=False)
    for run in element_runs(b"\x80\x01" + encoded, 0, 1, cells_of(None)):
        found.take(run)
    assert values(found) == [b"\xff\xfe"]


@pytest.mark.parametrize(
    ("stamp", "micros"),
    [
        (0, 0),
        (1, 1_000),
        (-1, -1_000),
        (1_700_000_000_123, 1_700_000_000_123_000),
        ((2**63 - 1) // 1000, (2**63 - 1) // 1000 * 1000),
        ((2**63 - 1) // 1000 + 1, None),
        (2**63 - 1, None),
        (-(2**63), None),
    ],
)
def test_times_become_microseconds_where_there_is_such_a_time(
    stamp: int, micros: int | None
) -> None:
    assert stamps(read([entry("v", None, stamp)])) == [micros]


@pytest.mark.parametrize(
    "odd",
    [
        None,
        17,
        "text",
        Vector.of([]),
        Vector.of([None, "v", 5]),
        Vector.of([None, "v", "no time", None]),
        Vector.of([None, "v", None, None]),
        Vector.of([None, "v", 2**63, None]),
        Vector.of([None, "v", "x" * 300, {"h": "y" * 300}]),
        Vector.of(["x" * 200] * 4),
        List([None, "v", 5, None]),
        Map.of([(1, 2)]),
        Blob.of(bytes(5_000)),
    ],
)
def test_what_is_not_a_record_has_no_parts_and_hides_no_other(odd: Value) -> None:
    found = read([entry("before", "k"), odd, entry("after")], leaves.STRING_LEAF)
    assert found.count == 3
    assert values(found) == [b"before", None, b"after"]
    assert keys(found) == [b"k", None, None]
    assert stamps(found) == [1_000_000, None, 1_000_000]
    assert found.headers == [None, None, None]


@pytest.mark.parametrize("extra", [1, 12, 13, 30])
def test_records_may_have_further_parts(extra: int) -> None:
    for filler in (1, "x" * 30, "x" * 200):
        longer = Vector.of(["key", "value", 5, {"h": "v"}] + [filler] * extra)
        found = read([longer, entry("next")], leaves.STRING_LEAF)
        assert values(found) == [b"value", b"next"]
        assert keys(found) == [b"key", None]
        assert stamps(found) == [5_000, 1_000_000]
        assert found.headers == [{"h": "v"}, None]


def test_headers_are_texts() -> None:
    headers = {"trace": "abc", Keyword("n"): 12, "none": None, 5: [1], "long": "y" * 5_000}
    found = read([entry("v", None, 1, Map.of(headers)), entry("v", None, 1, 17)])
    assert found.headers == [
        {"trace": "abc", "n": "12", "none": None, "5": "[1]", "long": "y" * 5_000},
        None,
    ]
    wide = {f"h{i}": str(i) for i in range(60)}
    assert read([entry("v", None, 1, Map.of(wide.items()))]).headers == [wide]


def test_a_header_without_a_name_is_not_nil() -> None:
    assert read([entry("v", None, 1, Map.of({"": "a", None: "b"}))]).headers == [
        {"": "a", "nil": "b"}
    ]


class Forge:
    """Cells that others made, by hand: each may stand at many places."""

    def __init__(self) -> None:
        self.cells: dict[bytes, bytes] = {}

    def ref(self, encoding: bytes) -> bytes:
        hash = sha3_256(encoding).digest()
        self.cells[hash] = encoding
        return b"\x20" + hash

    def levels(self, cell: bytes, head: Callable[[int], bytes], count: int, levels: int) -> bytes:
        for _ in range(levels):
            count *= 16
            cell = head(count) + self.ref(cell) * 16
        return cell

    def read(self, value: bytes, mode: int) -> Columns:
        log = b"\x80\x01" + self.ref(b"\x80\x04\x00" + self.ref(value) + b"\x11\x05\x00")
        found = Columns(self.cells.__getitem__, 0, leaves.SKIP, mode, stamps=False, headers=False)
        for run in element_runs(log, 0, 1, self.cells.__getitem__):
            found.take(run)
        return found


FULL_LEAF = b"\x80\x10" + b"\x18\x7f\0\0\0\0\0\0\0" * 16
FULL_CHUNK = b"\x31\xa0\x00" + bytes(4_096)
FULL_MAP = b"\x82\x0f" + b"".join(
    b"\x12\x7f" + bytes([i]) + b"\x18\x7f" + bytes(7) for i in range(15)
)


@pytest.mark.parametrize("mode", [leaves.JSON_LEAF, leaves.STRING_LEAF])
def test_a_text_of_a_few_cells_that_claim_to_be_many_is_refused(mode: int) -> None:
    forge = Forge()
    for cell, head, count in (
        (FULL_LEAF, lambda count: b"\x80" + encode_vlq(count), 16),
        (FULL_MAP, lambda count: b"\x82" + encode_vlq(count) + b"\x00\xff\xff", 15),
    ):
        with pytest.raises(LimitExceeded, match="100000000 characters"):
            forge.read(forge.levels(cell, head, count, 12), mode)
    # The same cells again and again, and each of them is small.
    text = b"\x30\xa0\x00" + b"x" * 4_096
    with pytest.raises(LimitExceeded, match="100000000 characters"):
        forge.read(forge.levels(text, lambda _: b"\x80\x10", 16, 30), mode)


def test_a_text_of_nothing_comes_to_an_end() -> None:
    forge = Forge()
    nothing = b"\x82\x10\x00\xff\xff" + b"\x82\x00" * 16
    full = b"\x82\x10\x00\xff\xff" + nothing * 3 + b"\x82\x00" * 13
    with pytest.raises(BadFormat, match="no entries"):
        forge.read(forge.levels(full, lambda _: b"\x82\x10\x00\xff\xff", 16, 30), leaves.JSON_LEAF)
    with pytest.raises(BadFormat, match="inside its parent"):
        forge.read(
            forge.levels(nothing, lambda _: b"\x82\x10\x00\xff\xff", 16, 30), leaves.JSON_LEAF
        )


def test_a_blob_that_no_column_holds_is_refused_before_it_is_read() -> None:
    forge = Forge()
    blob = forge.levels(FULL_CHUNK, lambda count: b"\x31" + encode_vlq(count), 4_096, 7)
    with pytest.raises(LimitExceeded, match=str(4_096 << 28)):
        forge.read(blob, leaves.BYTES_LEAF)
    with pytest.raises(LimitExceeded, match="100000000 characters"):
        forge.read(blob, leaves.JSON_LEAF)
    assert values(forge.read(blob, leaves.CELL_LEAF)) != [None]


def test_skipped_columns_stay_empty() -> None:
    vector = Vector.of([entry("v", "k"), 5])
    found = Columns(cells_of(vector), 0, leaves.SKIP, leaves.SKIP, stamps=False, headers=False)
    for run in element_runs(encode(vector), 0, 2, cells_of(vector)):
        found.take(run)
    assert found.count == 2
    assert (keys(found), values(found), stamps(found), found.headers) == ([], [], [], [])


def test_bytes_read_are_counted() -> None:
    assert 1_000 < read([entry("x" * 1_000)]).byte_count < 1_200
    assert 5_000 < read([entry("x" * 5_000)]).byte_count < 5_200


@given(st.integers(0, 2**63 - 1))
@example(127)
@example(128)
@example(16_384)
def test_counts_are_written_as_the_format_has_them(count: int) -> None:
    blob_head = encode(Vector.of([0] * min(count, 300)))
    if count <= 300:
        assert blob_head[1 : 1 + len(encode_vlq(count))] == encode_vlq(count)
    value = 0
    for byte in encode_vlq(count):
        value = value << 7 | byte & 0x7F
    assert value == count
    assert encode_vlq(count)[0] != 0x80


def test_json_text_is_json() -> None:
    (text,) = texts(values(read([entry(WIDE)], leaves.JSON_LEAF)))
    assert isinstance(text, str)
    assert json.loads(text)["field-7"] == [7, 3.5, "x" * 7]
