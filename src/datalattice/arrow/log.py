"""Ranges of a log as Arrow batches, straight from the encodings of its leaves.

Source: docs/spark.md "Columns", "Values as columns"; docs/design/columns.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from datalattice.arrow import leaves
from datalattice.arrow.batches import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from datalattice.arrow.leaves import Columns, gathered
from datalattice.arrow.spans import Longs, Spans
from datalattice.arrow.values import ValueFormat, variant_parts
from datalattice.cells import FetchCell, FetchCells, element_runs
from datalattice.limits import FAN_OUT

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

# Records are counted after each leaf, so a full batch ends with one.
assert BATCH_RECORDS_MAX % FAN_OUT == 0

RECORD_COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")
"""The columns of a record; all others have the same value in every row."""

_MODES: Final = {
    ValueFormat.CELL: leaves.CELL_LEAF,
    ValueFormat.BYTES: leaves.BYTES_LEAF,
    ValueFormat.STRING: leaves.STRING_LEAF,
    ValueFormat.JSON: leaves.JSON_LEAF,
    ValueFormat.VARIANT: leaves.JSON_LEAF,  # Spark's own parser makes a variant of it
}


@dataclass(frozen=True, slots=True)
class LogRange:
    """The offsets `first` to `stop` - 1 of a log."""

    entries: bytes
    """Encoding of the vector of entries."""
    start: int
    """Offset of the vector's first entry: truncated records are not in it."""
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class LogColumns:
    """The columns that a range is read into."""

    schema: pa.Schema
    key_format: ValueFormat
    value_format: ValueFormat
    constants: Mapping[str, object]
    """The value of each column that is not among `RECORD_COLUMNS`."""


def log_batches(
    part: LogRange, wanted: LogColumns, fetch: FetchCell, many: FetchCells | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range as Arrow batches.

    many: fetches several neighbouring leaves at once.
    Cost:   one fetch for each leaf of 16 records, and for each record or value with its own cell.
    Raises: Unfit: a key or value does not fit its format. BadFormat. MissingData.
    """
    import pyarrow as pa

    schema = wanted.schema
    makers = [_maker(field, wanted) for field in schema]
    names = set(schema.names)

    def columns_from(first: int) -> Columns:
        return Columns(
            fetch,
            first,
            _MODES[wanted.key_format] if "key" in names else leaves.SKIP,
            _MODES[wanted.value_format] if "value" in names else leaves.SKIP,
            stamps="timestamp" in names,
            headers="headers" in names,
            byte_max=BATCH_BYTES_MAX,
        )

    def batch(columns: Columns) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([make(columns) for make in makers], schema=schema)

    if not names & {"timestamp", "key", "value", "headers"}:
        # Offsets are known without the records, so no leaf is read.
        for first in range(part.first, part.stop, BATCH_RECORDS_MAX):
            columns = columns_from(first)
            columns.count = min(BATCH_RECORDS_MAX, part.stop - first)
            yield batch(columns)
        return
    first, stop = part.first - part.start, part.stop - part.start
    found = element_runs(part.entries, first, stop, fetch, many)
    for columns in gathered(found, part.first, columns_from, BATCH_RECORDS_MAX):
        yield batch(columns)


_Maker = Callable[[Columns], "pa.Array"]


def _maker(field: pa.Field, wanted: LogColumns) -> _Maker:
    """Return the function that makes a column of the rows."""
    import numpy as np
    import pyarrow as pa

    name, kind = field.name, field.type

    def parts(format: ValueFormat, column: Callable[[Columns], Spans]) -> _Maker:
        if format is ValueFormat.VARIANT:
            return lambda columns: _variants(_strings(column(columns), columns, pa.string()), kind)
        return lambda columns: _strings(column(columns), columns, kind)

    if name == "offset":
        return lambda columns: pa.array(
            np.arange(columns.first, columns.first + columns.count, dtype=np.int64)
        )
    if name == "timestamp":
        return lambda columns: _numbers(columns.stamps, kind)
    if name == "key":
        return parts(wanted.key_format, lambda columns: columns.keys)
    if name == "value":
        return parts(wanted.value_format, lambda columns: columns.values)
    if name == "headers":
        return lambda columns: pa.array(
            [None if found is None else list(found.items()) for found in columns.headers], kind
        )
    return _constant(wanted.constants[name], kind)


def _constant(value: object, kind: pa.DataType) -> _Maker:
    """Return the maker of a column with the same value in every row."""
    import pyarrow as pa

    # The column is built once, and each batch gets a slice of it.
    scalar = pa.scalar(value, kind)
    longest = pa.repeat(scalar, 0)

    def column(columns: Columns) -> pa.Array:
        nonlocal longest
        if len(longest) < columns.count:
            longest = pa.repeat(scalar, columns.count)
        return longest.slice(0, columns.count)

    return column


def _numbers(longs: Longs, kind: pa.DataType) -> pa.Array:
    """Return integers as a column of `kind`."""
    import pyarrow as pa

    count = int(longs.count)
    if longs.absent == count:
        return pa.nulls(count, kind)
    numbers = _native(longs.numbers.getvalue(), 8)
    validity = _validity(_presence(longs)) if longs.absent else None
    return pa.Array.from_buffers(kind, count, [validity, numbers], longs.absent)


def _strings(spans: Spans, columns: Columns, kind: pa.DataType) -> pa.Array:
    """Return keys or values as a column of `kind`, BINARY or STRING."""
    import numpy as np
    import pyarrow as pa

    count, present = int(spans.count), int(spans.count - spans.absent)
    if not present:
        return pa.nulls(count, kind)
    # The bounds delimit the entries and the bytes between them, so every second string is an entry.
    bounds = _native(spans.bounds.getvalue(), 4)
    text = pa.py_buffer(columns.sheet.text())
    strings = pa.Array.from_buffers(pa.binary(), 2 * present - 1, [None, bounds, text])
    validity, numbers = None, np.arange(0, 2 * present, 2, dtype=np.int32)
    if spans.absent:
        presence = _presence(spans)
        validity = _validity(presence)
        numbers = np.zeros(count, dtype=np.int32)
        numbers[presence] = np.arange(0, 2 * present, 2, dtype=np.int32)
    buffers = [validity, pa.py_buffer(numbers)]
    chosen = pa.Array.from_buffers(pa.int32(), count, buffers, spans.absent)
    found = strings.take(chosen)
    if kind == pa.binary():
        return found
    try:
        return found.cast(kind)
    except pa.ArrowInvalid:  # not UTF-8: replace as the rest of Spark does
        contents = found.to_pylist()
        return pa.array([one and one.decode("utf-8", "replace") for one in contents], kind)


def _presence(column: Longs | Spans) -> np.ndarray[Any, Any]:
    """Return whether each entry of a column is there."""
    import numpy as np

    presence = np.ones(int(column.count), dtype=np.bool_)
    presence[np.frombuffer(column.gaps.getvalue(), dtype="<i4")] = False
    return presence


def _validity(presence: np.ndarray[Any, Any]) -> pa.Buffer:
    """Return Arrow's validity bits."""
    import numpy as np
    import pyarrow as pa

    return pa.py_buffer(np.packbits(presence, bitorder="little"))


def _native(numbers: bytes, width: int) -> pa.Buffer:
    """Return little-endian integers of `width` bytes in this machine's byte order."""
    import numpy as np
    import pyarrow as pa

    # Arrow reads numbers in the byte order of the machine.
    if sys.byteorder == "little":
        return pa.py_buffer(numbers)
    return pa.py_buffer(np.frombuffer(numbers, dtype=f"<i{width}").astype(f"=i{width}"))


def _variants(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    parts = [None if text is None else variant_parts(text) for text in texts.to_pylist()]
    return pa.array(parts, kind)
