"""Rows of Python objects as Arrow batches of bounded size, for formats with few or large rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_RECORDS_MAX: Final = 8_192
"""Rows of one Arrow batch, enough to make the fixed cost of a batch small."""

BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""A batch ends when its rows reach this size, which bounds memory for large values."""

ROW_BYTES: Final = 64
"""Approximate size of a row without its texts, binaries and variants."""

Row = Sequence[object]
"""The columns of a row: Python objects, with variants as Arrow's structs."""


def row_batches(rows: Iterable[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches of at most `BATCH_RECORDS_MAX` rows.

    A batch also ends with the row that brings it to `BATCH_BYTES_MAX` bytes.
    """
    waiting: list[Row] = []
    size = 0
    for row in rows:
        waiting.append(row)
        size += row_bytes(row)
        # Whichever comes first: many small rows, or few large ones.
        if len(waiting) >= BATCH_RECORDS_MAX or size >= BATCH_BYTES_MAX:
            yield _batch(waiting, schema)
            waiting, size = [], 0
    if waiting:
        yield _batch(waiting, schema)


def row_bytes(row: Row) -> int:
    """Return the approximate size of a row."""
    return ROW_BYTES + sum(map(_size, row))


def _size(column: object) -> int:
    """Return the approximate size of a column's entry; numbers and times are in `ROW_BYTES`."""
    if isinstance(column, (str, bytes)):
        return len(column)
    # Lists and maps are not counted: they are short in all formats that use this function.
    if isinstance(column, dict):  # a variant
        return sum(map(len, column.values()))
    return 0


def record_batch(rows: Sequence[Row], columns: str) -> pa.RecordBatch:
    """Return rows as one Arrow batch; `columns` are names and types in Spark's DDL.

    A TIMESTAMP is given as microseconds.
    """
    import pyarrow as pa

    kinds = {
        "STRING": pa.string(),
        "BINARY": pa.binary(),
        "BOOLEAN": pa.bool_(),
        "INT": pa.int32(),
        "BIGINT": pa.int64(),
        "TIMESTAMP": pa.timestamp("us"),
        "ARRAY<STRING>": pa.list_(pa.string()),
    }
    named = [column.split(" ") for column in columns.split(", ")]
    return _batch(rows, pa.schema([(name, kinds[kind]) for name, kind in named]))


def _batch(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    # Spark may select no column at all, as for a count.
    columns = zip(*rows, strict=True) if len(schema) else ()
    arrays = [_array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(column: Sequence[object], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    # Spark's TIMESTAMP counts microseconds since 1970 in UTC, as Arrow's `timestamp("us")` does.
    if pa.types.is_timestamp(kind):  # from integer microseconds, without a datetime per entry
        return pa.array(column, pa.int64()).cast(kind)
    return pa.array(column, kind)


def micros(stamp_ms: int | None) -> int | None:
    """Return Unix milliseconds as microseconds for a TIMESTAMP; None if out of its range."""
    # "A time outside of TIMESTAMP's range is NULL" (docs/spark-kv.md, Columns).
    if stamp_ms is None or not -_STAMP_MAX <= stamp_ms <= _STAMP_MAX:
        return None
    return stamp_ms * _MICROS


_MICROS: Final = 1_000
_STAMP_MAX: Final = (2**63 - 1) // _MICROS
