"""Rows: columns, batches of bounded size, and what cannot be shown."""

from __future__ import annotations

from datetime import UTC, datetime
from types import NoneType
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from datalattice.apps.queue import make_entry
from datalattice.arrow import log
from datalattice.arrow.values import ValueFormat, to_column_value
from datalattice.cells import (
    Blob,
    CellRange,
    Char,
    Keyword,
    List,
    Map,
    Text,
    Value,
    Vector,
    decode,
    encode,
    make_blob,
    make_text,
    none_missing,
    novelty,
    value_hash,
    whole_cells,
)
from datalattice.errors import (
    BadFormat,
    DataLatticeError,
    LimitExceeded,
    MissingData,
    UsageError,
)
from datalattice.limits import HASH_BYTES
from datalattice.pipeline.queue.options import QUEUE_COLUMNS, QueueOptions, parse_options
from datalattice.pipeline.queue.plan import PartitionLog, PartitionName, Slice
from datalattice.pipeline.queue.rows import slice_batches
from datalattice.store.records import check_hash

pa: Any = pytest.importorskip("pyarrow")

TYPES = {
    "STRING": pa.string(),
    "BIGINT": pa.int64(),
    "BINARY": pa.binary(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "MAP<STRING, STRING>": pa.map_(pa.string(), pa.string()),
    "VARIANT": pa.struct([pa.field("value", pa.binary()), pa.field("metadata", pa.binary())]),
}


def options(**given: str) -> QueueOptions:
    return parse_options({"store": "s", **given})


def schema_of(given: QueueOptions) -> Any:
    return pa.schema([(name, TYPES[kind]) for name, kind in given.types.items()])


def read(
    entries: list[Value],
    *,
    start: int = 0,
    first: int | None = None,
    stop: int | None = None,
    partition: str = "0",
    **given: str,
) -> list[Any]:
    vector = Vector.of(entries)
    cells = {hash: encoding for hash, encoding, _ in novelty(vector)}
    log = PartitionLog(start, start + len(entries), encode(vector))
    part = Slice(
        PartitionName("0xaa", "t", partition),
        log,
        start if first is None else first,
        log.end if stop is None else stop,
    )
    chosen = options(**given)
    schema = schema_of(chosen)
    found = list(slice_batches(part, chosen, schema, cells.__getitem__))

    def many(hashes: list[bytes], _below: int) -> list[CellRange]:
        return none_missing(hashes, whole_cells(map(cells.get, hashes)))

    together = slice_batches(part, chosen, schema, cells.__getitem__, many)
    assert list(together) == found
    for batch in found:
        batch.validate(full=True)
    return found


LONG_TEXT = "é" * 5_000
VALUES: list[Value] = [
    None,
    "",
    b"",
    "text",
    b"\x00\xff",
    bytes(range(140)),
    "x" * 200,
    make_text(LONG_TEXT),
    make_text("x" * 4_095 + "é"),
    make_blob(bytes(range(256)) * 300),
    17,
    1.5,
    Keyword("name"),
    Vector.of(["a", None, "b" * 300]),
    Map.of([("k", "v" * 200), ("n", None)]),
    decode(b"\x30\x03a\xff\xc3"),
    decode(b"\x30\x02\xc3\xa9"),
    Char(0xD800),
    Vector.of([Char(0xDC80), "é", List([decode(b"\x30\x02\xc3a")])]),
]


@given(data=st.data(), mode=st.sampled_from(list(ValueFormat)))
def test_damaged_cells_make_wrong_rows_or_an_error_that_says_so(
    data: st.DataObject, mode: ValueFormat
) -> None:
    """Read without being verified, as they may be on request."""
    vector = Vector.of([make_entry(value, b"k", 5, {"h": "v"}) for value in VALUES * 3])
    cells = {hash: encoding for hash, encoding, _ in novelty(vector)}
    hash = data.draw(st.sampled_from(sorted(cells)))
    damaged = bytearray(cells[hash])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cells[hash] = bytes(damaged[: data.draw(st.integers(1, len(damaged)) | st.just(len(damaged)))])
    chosen = options(valueFormat=mode.value, columns=",".join(QUEUE_COLUMNS), verify="false")
    top = cells.get(value_hash(vector), encode(vector))
    part = Slice(PartitionName("0xaa", "t", "0"), PartitionLog(0, len(vector), top), 0, len(vector))

    def fetch(hash: bytes) -> bytes:
        if hash not in cells:
            raise MissingData([hash])
        return cells[hash]

    try:
        for batch in slice_batches(part, chosen, schema_of(chosen), fetch):
            batch.validate(full=True)
    except DataLatticeError:
        return


def test_a_reference_that_is_cut_off_is_damage_and_no_wrong_use() -> None:
    log = PartitionLog(0, 1, b"\x80\x01\x20" + bytes(HASH_BYTES - 1))  # a vector of one entry
    part = Slice(PartitionName("0xaa", "t", "0"), log, 0, 1)
    chosen = options(columns="value", verify="false")

    def fetch(hash: bytes) -> bytes:
        raise MissingData([check_hash(hash)])

    with pytest.raises(BadFormat, match="records 0 to 0 is damaged; verify=true"):
        list(slice_batches(part, chosen, schema_of(chosen), fetch))


@st.composite
def logs(draw: st.DrawFn, values: list[Value]) -> list[Value]:
    """Draw the entries of a log: records, and what is none, some of them cells of their own."""
    some = st.sampled_from(values)
    times = st.sampled_from([0, -1, 1_700_000_000_123, 2**62])
    odd = st.sampled_from([None, 7, "text", Vector.of([]), Vector.of(["k", "v"]), Map.of([(1, 2)])])
    records = st.builds(make_entry, some, some, times)
    length = draw(st.sampled_from([1, 15, 16, 17, 40, 300]))
    few = draw(st.lists(records | records | records | odd, min_size=1, max_size=20))
    return [few[i * i % len(few)] for i in range(length)]


def expected(entry: Value, part: int, format: ValueFormat) -> object:
    if not isinstance(entry, Vector) or len(entry) < 4 or not isinstance(entry[2], int):
        return None
    return to_column_value(entry[part], format)


@pytest.mark.parametrize("format", list(ValueFormat))
@given(data=st.data())
@settings(max_examples=15)
def test_batches_are_the_records_as_they_read_one_by_one(
    data: st.DataObject, format: ValueFormat
) -> None:
    fit = [
        value
        for value in VALUES
        if format is not ValueFormat.BYTES or isinstance(value, (NoneType, str, bytes, Text, Blob))
    ]
    entries = data.draw(logs(fit))
    stop = data.draw(st.integers(1, len(entries)))
    first = data.draw(st.integers(0, stop - 1))
    found = read(entries, start=5, first=5 + first, stop=5 + stop, valueFormat=format.value)
    rows = [row for batch in found for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(5 + first, 5 + stop))
    for row, entry in zip(rows, entries[first:stop], strict=True):
        assert row["key"] == expected(entry, 0, format)
        assert row["value"] == expected(entry, 1, format)
        has_time = isinstance(entry, Vector) and len(entry) == 4 and entry[2] != 2**62
        assert (row["timestamp"] is not None) == has_time
        assert row["owner"] == "0xaa"


def test_texts_that_are_not_utf8_show_a_mark() -> None:
    odd = make_entry("key", decode(b"\x30\x03a\xff\xc3"), 0)
    (batch,) = read([make_entry(None, "é", 0), odd], valueFormat="string")
    assert batch.column("value").to_pylist() == ["é", "a\ufffd\ufffd"]
    # Halves of one character at the end and the beginning of neighbours are no character.
    halves = [make_entry(None, decode(b"\x30\x01" + half), 0) for half in (b"\xc3", b"\xa9")]
    (batch,) = read(list(halves), valueFormat="string", columns="value")
    assert batch.column("value").to_pylist() == ["\ufffd", "\ufffd"]


def test_a_row_has_every_part_of_a_record() -> None:
    entry = make_entry("k", "v", 1_700_000_000_123, Vector.of([]))
    (batch,) = read([entry], start=7, valueFormat="string", includeHeaders="true")
    assert batch.to_pylist() == [
        {
            "owner": "0xaa",
            "topic": "t",
            "partition": 0,
            "offset": 7,
            "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
            "key": "k",
            "value": "v",
            "headers": None,
        }
    ]


def test_only_the_range_is_read_with_its_own_offsets() -> None:
    entries: list[Value] = [make_entry(None, i, 0) for i in range(100)]
    (batch,) = read(entries, start=1_000, first=1_017, stop=1_050, valueFormat="json")
    assert batch.column("offset").to_pylist() == list(range(1_017, 1_050))
    assert batch.column("value").to_pylist() == [str(i) for i in range(17, 50)]


def test_columns_come_in_the_order_asked_for() -> None:
    (batch,) = read([make_entry(None, "v", 5)], columns="value,topic,offset", valueFormat="bytes")
    assert batch.schema.names == ["value", "topic", "offset"]
    assert batch.to_pylist() == [{"value": b"v", "topic": "t", "offset": 0}]


def test_every_choice_of_columns_has_its_types() -> None:
    for value_format, kind in {"cell": "BINARY", "json": "STRING"}.items():
        types = options(valueFormat=value_format, includeHeaders="true").types
        assert tuple(types) == QUEUE_COLUMNS
        assert types["key"] == types["value"] == kind
    assert options(keyFormat="bytes", valueFormat="string", columns="key,value").types == {
        "key": "BINARY",
        "value": "STRING",
    }
    assert options(columns="partition", partitionFormat="string").types == {"partition": "STRING"}


def test_where_a_record_lies_is_known_without_reading_it() -> None:
    vector = Vector.of([make_entry(None, "v" * 100, 5)] * 20_000)
    part = Slice(PartitionName("o", "t", "3"), PartitionLog(0, 20_000, encode(vector)), 10, 20_000)
    chosen = options(columns="offset,partition")
    nothing: dict[bytes, bytes] = {}
    found = list(slice_batches(part, chosen, schema_of(chosen), nothing.__getitem__))
    assert [batch.num_rows for batch in found] == [8_192, 8_192, 3_606]
    assert found[-1].to_pylist()[-1] == {"offset": 19_999, "partition": 3}


def test_batches_are_bounded_in_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "BATCH_RECORDS_MAX", 32)
    found = read([make_entry(None, i, 0) for i in range(100)], valueFormat="json")
    assert [batch.num_rows for batch in found] == [32, 32, 32, 4]
    assert [row["offset"] for batch in found for row in batch.to_pylist()] == list(range(100))


def test_batches_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "BATCH_BYTES_MAX", 100_000)
    found = read([make_entry(None, bytes(1_000), 0) for _ in range(400)], valueFormat="bytes")
    assert sum(batch.num_rows for batch in found) == 400
    assert all(80 <= batch.num_rows <= 112 for batch in found[:-1])


def test_large_values_come_in_small_batches() -> None:
    found = read([make_entry(None, bytes(1_000_000), 0) for _ in range(64)], valueFormat="bytes")
    assert [batch.num_rows for batch in found] == [5] * 12 + [4]
    assert [row for batch in found for row in batch.column("offset").to_pylist()] == list(range(64))


@pytest.mark.parametrize("column", ["key", "value"])
def test_what_a_format_does_not_take_names_option_and_record(column: str) -> None:
    parts: dict[str, Value] = {"key": "k", "value": "v"} | {column: 17}
    entries = [make_entry("k", "v", 0)] * 40 + [make_entry(parts["key"], parts["value"], 0)]
    with pytest.raises(UsageError) as caught:
        read(list(entries), start=100, valueFormat="bytes")
    assert str(caught.value) == (
        f"option {column}Format='bytes' is not accepted: the {column} of record 140 in partition 0 "
        "of topic 't' of owner 0xaa is neither Blob nor String; cell, string and json take every "
        "value"
    )


@pytest.mark.parametrize("partition", ['"0"', ":p", str(2**63), "0x01"])
def test_ids_that_are_no_integers_need_the_string_form(partition: str) -> None:
    with pytest.raises(UsageError, match=r"option partitionFormat='long' .* string takes every id"):
        read([make_entry(None, "v", 0)], partition=partition)
    (batch,) = read([make_entry(None, "v", 0)], partition=partition, partitionFormat="string")
    assert batch.column("partition").to_pylist() == [partition]


@pytest.mark.parametrize("partition", [-(2**63), -1, 0, 2**63 - 1])
def test_all_64_bit_ids_are_numbers(partition: int) -> None:
    (batch,) = read([make_entry(None, "v", 0)], partition=str(partition))
    assert batch.column("partition").to_pylist() == [partition]


def test_headers_are_a_map() -> None:
    headers = Vector.of([None, "v", 0, {"a": "1", "b": 2}])
    (batch,) = read([headers], columns="headers")
    assert [sorted(row["headers"]) for row in batch.to_pylist()] == [[("a", "1"), ("b", "2")]]


def test_variants_are_what_their_json_means() -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.types import VariantVal

    values: list[Value] = [{"delay": -3, "carrier": "UA"}, "plain", 7, None, Vector.of([1, None])]
    entries: list[Value] = [make_entry(value, value, 0) for value in values]
    (batch,) = read(entries, valueFormat="variant")
    for name in ("key", "value"):
        found = [
            row and VariantVal(row["value"], row["metadata"]).toPython()
            for row in batch.column(name).to_pylist()
        ]
        assert found == [{"delay": -3, "carrier": "UA"}, "plain", 7, None, [1, None]]


def test_a_variant_that_spark_cannot_hold_is_refused() -> None:
    pytest.importorskip("pyspark")
    value = Vector.of([10**5_000])
    with pytest.raises(LimitExceeded, match="read it as json or cell"):
        read([make_entry(None, value, 0)], valueFormat="variant", keyFormat="json")
