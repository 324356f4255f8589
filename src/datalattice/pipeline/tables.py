"""Tables: rows of Python objects as Arrow batches, bounded; for formats that are no hot path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from datalattice.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

BATCH_RECORDS_MAX: Final = 8_192
"""Rows of one Arrow batch: enough to make the cost of a batch small beside them."""

BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""A batch ends when its rows have this many bytes, so that large values stay few."""

Row = tuple[Sequence[object], int]
"""The columns of a row, and about how many bytes they are."""


def ddl(types: Mapping[str, str]) -> str:
    """Return columns as Spark's DDL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in types.items())


def check_schema(schema: StructType, types: Mapping[str, str], format: str, options: str) -> None:
    """Check that a schema which the user may have given is that of the rows.

    options: names of the options that choose columns and types.
    Raises: UsageError: it is not.
    """
    given = [(field.name, field.dataType.simpleString().upper()) for field in schema.fields]
    if given != [(name, kind.replace(" ", "")) for name, kind in types.items()]:
        columns = ", ".join(f"{name} {kind}" for name, kind in types.items())
        raise UsageError(
            f"the rows of {format} are ({columns}): leave schema() away, and choose columns and "
            f"types with the options {options}"
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of Spark's."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def batches(rows: Iterable[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches, each of at most `BATCH_RECORDS_MAX` rows.

    A batch ends, too, with the row that brings it to `BATCH_BYTES_MAX` bytes or more.
    """
    waiting: list[Sequence[object]] = []
    size = 0
    for row, row_bytes in rows:
        waiting.append(row)
        size += row_bytes
        if len(waiting) >= BATCH_RECORDS_MAX or size >= BATCH_BYTES_MAX:
            yield _batch(waiting, schema)
            waiting, size = [], 0
    if waiting:
        yield _batch(waiting, schema)


def _batch(rows: list[Sequence[object]], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = zip(*rows, strict=True) if len(schema) else ()
    arrays = [_array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(column: Sequence[object], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_timestamp(kind):  # from integers: microseconds, which no datetime has to be made
        return pa.array(column, pa.int64()).cast(kind)
    return pa.array(column, kind)


def micros(stamp_ms: int | None) -> int | None:
    """Return Unix milliseconds as a column of type TIMESTAMP takes them; nil past its range."""
    if stamp_ms is None or not -_STAMP_MAX <= stamp_ms <= _STAMP_MAX:
        return None
    return stamp_ms * _MICROS


_MICROS: Final = 1_000
_STAMP_MAX: Final = (2**63 - 1) // _MICROS
