"""Values become columns and come back; a queue's own quick way gives the same columns."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from datalattice.arrow.values import (
    VARIANT_BYTES_MAX,
    NotBytes,
    ValueFormat,
    accepted_types,
    column_type,
    parse,
    to_column_value,
    variant_parts,
)
from datalattice.cells import (
    Blob,
    Char,
    Keyword,
    Map,
    Text,
    Value,
    Vector,
    decode,
    encode,
    make_blob,
    make_text,
    novelty,
    same,
    to_cell,
)
from datalattice.errors import BadFormat, LimitExceeded, UsageError
from datalattice.pipeline.queue.options import parse_options
from datalattice.pipeline.queue.plan import PartitionLog, PartitionName, Slice
from datalattice.pipeline.queue.rows import slice_batches
from datalattice.testing import strategies

pa: Any = pytest.importorskip("pyarrow")

CELL, BYTES, STRING, JSON, VARIANT = ValueFormat
BAD_TEXT = decode(bytes.fromhex("3005") + b"a\xe2\x82\xffb")
"""A String whose bytes are no UTF-8."""


def in_queue(value: Value, format: ValueFormat) -> object:
    """Return the column that a queue's rows have for a record's value."""
    vector = Vector.of([Vector.of((None, value, 1, None))])
    cells = {hash: encoding for hash, encoding, _ in novelty(vector)}
    options = parse_options({"store": "s", "columns": "value", "valueFormat": format.value})
    kind = pa.binary() if format is CELL else pa.string()
    part = Slice(PartitionName("0xaa", "t", "0"), PartitionLog(0, 1, encode(vector)), 0, 1)
    (batch,) = slice_batches(part, options, pa.schema([("value", kind)]), cells.__getitem__)
    return batch.column(0).to_pylist()[0]


@given(strategies.values())
@example(BAD_TEXT)
@example(to_cell([BAD_TEXT, {"a\\udc": BAD_TEXT}]))
@example("\\udc80 \\\\udc80")
def test_columns_are_those_of_queue_rows(value: Any) -> None:
    for format in (CELL, STRING, JSON):
        assert to_column_value(value, format) == in_queue(value, format)


@given(strategies.values())
def test_the_cell_format_gives_back_the_very_value(value: Any) -> None:
    assert same(parse(to_column_value(value, CELL), CELL), value)


@pytest.mark.parametrize(
    ("value", "format", "column"),
    [
        (None, CELL, None),
        (None, VARIANT, None),
        (b"\x00\xff", BYTES, b"\x00\xff"),
        ("é", BYTES, "é".encode()),
        (make_blob(b"x" * 10_000), BYTES, b"x" * 10_000),
        (make_text("y" * 10_000), STRING, "y" * 10_000),
        (BAD_TEXT, BYTES, b"a\xe2\x82\xffb"),
        (BAD_TEXT, STRING, "a\ufffd\ufffdb"),
        (Keyword("k"), STRING, "k"),
        (7, STRING, "7"),
        (to_cell({"a": [1, None]}), JSON, '{"a":[1,null]}'),
        (to_cell([BAD_TEXT]), JSON, '["a\ufffd\ufffdb"]'),
        (Char(0xD800), STRING, "\ufffd"),
    ],
)
def test_render(value: Value, format: ValueFormat, column: object) -> None:
    assert to_column_value(value, format) == column


def test_bytes_are_those_of_blobs_and_strings_only() -> None:
    for value in (1, True, 1.5, Keyword("k"), Map.of({"a": 1}), Vector.of([b"a"])):
        with pytest.raises(NotBytes):
            to_column_value(value, BYTES)


def test_types() -> None:
    assert [column_type(format) for format in ValueFormat] == [
        *["BINARY"] * 2,
        *["STRING"] * 2,
        "VARIANT",
    ]
    assert [accepted_types(format) for format in ValueFormat] == [
        ("BINARY",),
        ("BINARY", "STRING"),
        ("STRING",),
        ("STRING",),
        ("VARIANT",),
    ]


@pytest.mark.parametrize(
    ("column", "format", "value"),
    [
        (None, JSON, None),
        (b"\x01", BYTES, b"\x01"),
        ("é", BYTES, "é".encode()),
        ('{"a":1}', STRING, '{"a":1}'),
        ('{"a":1.0}', JSON, to_cell({"a": 1.0})),
        (encode(to_cell([1, 2])), CELL, to_cell([1, 2])),
    ],
)
def test_parse(column: object, format: ValueFormat, value: Value) -> None:
    assert same(parse(column, format), value)


def test_long_columns_become_trees() -> None:
    assert isinstance(parse(b"x" * 10_000, BYTES), Blob)
    assert isinstance(parse("x" * 10_000, STRING), Text)


@pytest.mark.parametrize(
    ("column", "format"),
    [
        ("text", CELL),
        (7, BYTES),
        (b"x", STRING),
        (1.5, JSON),
        ("{}", VARIANT),
        ({"value": b""}, VARIANT),
    ],
)
def test_a_column_of_another_type_is_refused(column: object, format: ValueFormat) -> None:
    accepted = " or ".join(accepted_types(format))
    with pytest.raises(UsageError, match=rf"format {format.value} .* the type {accepted}, got"):
        parse(column, format)


@pytest.mark.parametrize(
    ("column", "format"), [(b"\xff\xff", CELL), (b"", CELL), ("{", JSON), ("", JSON)]
)
def test_a_column_that_cannot_be_read_is_refused(column: object, format: ValueFormat) -> None:
    with pytest.raises(BadFormat):
        parse(column, format)


JSONS = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x != 0),
        st.text(st.characters(codec="utf-8"), max_size=20),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=4),
    ),
    max_leaves=12,
)


class TestVariant:
    @given(JSONS)
    def test_there_and_back(self, document: Any) -> None:
        value = to_cell(document)
        found = parse(to_column_value(value, VARIANT), VARIANT)
        assert same(found, value)

    def test_arrow_takes_it(self) -> None:
        from pyspark.sql.pandas.types import to_arrow_type
        from pyspark.sql.types import VariantType

        kind = to_arrow_type(VariantType())
        array = pa.array([to_column_value(to_cell({"a": 1}), VARIANT), None], kind)
        assert [parse(entry, VARIANT) for entry in array.to_pylist()] == [Map.of({"a": 1}), None]

    def test_what_json_has_not(self) -> None:
        from pyspark.sql.types import VariantVal

        # As Spark's own variants may be: decimals without fraction, long ones, dates, binaries.
        digits = "123456789012345678901234567890"
        for text, value in [(digits, int(digits)), ("1.50", 1.5), ("1.0E10", 1e10)]:
            assert same(parse(VariantVal.parseJson(text), VARIANT), value)
        binary = VariantVal(bytes([15 << 2, 2, 0, 0, 0]) + b"hi", b"\x01\x00\x00")
        date = VariantVal(bytes([11 << 2]) + (1).to_bytes(4, "little"), b"\x01\x00\x00")
        assert parse(binary, VARIANT) == b"hi"
        assert parse(date, VARIANT) == dt.date(1970, 1, 2).isoformat()
        assert Decimal(digits) == parse(VariantVal.parseJson(digits), VARIANT)

    def test_half_characters_are_replaced(self) -> None:
        found = parse(to_column_value(to_cell([BAD_TEXT, Char(0xD800)]), VARIANT), VARIANT)
        assert same(found, Vector.of(["a\ufffd\ufffdb", "\ufffd"]))

    @pytest.mark.parametrize("data", [b"", b"\xff", b"\x02\x01\x00\x00\x05\x00"])
    def test_damaged(self, data: bytes) -> None:
        with pytest.raises(BadFormat, match="variant is malformed"):
            parse({"value": data, "metadata": b"\x01\x00\x00"}, VARIANT)

    def test_size_limit(self) -> None:
        # A long string has five bytes before its text.
        for size, fits in ((-1, True), (0, True), (1, False)):
            text = json.dumps("x" * (VARIANT_BYTES_MAX - 5 + size))
            if fits:
                assert len(variant_parts(text)["value"]) == VARIANT_BYTES_MAX + size
            else:
                with pytest.raises(LimitExceeded, match="does not fit into a variant"):
                    variant_parts(text)

    def test_too_deep_or_too_many_digits(self) -> None:
        for text in ("[" * 2_000 + "]" * 2_000, "1" * 5_000):
            with pytest.raises(LimitExceeded, match="read it as json or cell"):
                variant_parts(text)
