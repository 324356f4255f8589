"""Ranges of a log as Arrow batches with the columns of the source.

Source: docs/spark.md "Columns", "Values as columns".
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from datalattice.cells import FetchCell, FetchCells, element_runs
from datalattice.errors import BadFormat, UsageError
from datalattice.limits import FAN_OUT
from datalattice.pipeline.arrow_batches import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from datalattice.pipeline.options import bad_option
from datalattice.pipeline.queue import leaves
from datalattice.pipeline.queue.leaves import Columns, Unfit, gathered
from datalattice.pipeline.queue.options import PartitionFormat, QueueOptions
from datalattice.pipeline.queue.plan import Slice
from datalattice.pipeline.queue.spans import Longs, Spans
from datalattice.pipeline.values import ValueFormat, variant_parts

if TYPE_CHECKING:
    import pyarrow as pa

assert BATCH_RECORDS_MAX % FAN_OUT == 0

_MODES: Final = {
    ValueFormat.CELL: leaves.CELL,
    ValueFormat.BYTES: leaves.BYTES,
    ValueFormat.STRING: leaves.STRING,
    ValueFormat.JSON: leaves.JSON,
    ValueFormat.VARIANT: leaves.JSON,  # Spark's own parser makes a variant of it
}
_LONG: Final = re.compile(r"-?[0-9]{1,19}")


def batches(
    part: Slice,
    options: QueueOptions,
    schema: pa.Schema,
    fetch: FetchCell,
    many: FetchCells | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a slice as Arrow batches with this schema (that of `options.types`).

    many: fetches several neighbouring leaves at once.
    Cost:   one fetch for each leaf of 16 records, and for each record or value with its own cell.
    Raises: UsageError: a value does not fit its format, or a partition id is not an integer.
            BadFormat. MissingData.
    """
    import pyarrow as pa

    makers = _column_makers(part, options, schema)
    wanted = set(options.columns)

    def columns_from(first: int) -> Columns:
        return Columns(
            fetch,
            first,
            _MODES[options.key_format] if "key" in wanted else leaves.SKIP,
            _MODES[options.value_format] if "value" in wanted else leaves.SKIP,
            stamps="timestamp" in wanted,
            headers="headers" in wanted,
            byte_max=BATCH_BYTES_MAX,
        )

    def batch(columns: Columns) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([make(columns) for make in makers], schema=schema)

    if not wanted & {"timestamp", "key", "value", "headers"}:
        # Offsets are known without the records, so no leaf is read.
        for first in range(part.first, part.stop, BATCH_RECORDS_MAX):
            columns = columns_from(first)
            columns.count = min(BATCH_RECORDS_MAX, part.stop - first)
            yield batch(columns)
        return
    start = part.log.start
    # The vector begins at the log's start: truncated records are not in it.
    found = element_runs(part.log.entries, part.first - start, part.stop - start, fetch, many)
    try:
        for columns in gathered(found, part.first, columns_from, BATCH_RECORDS_MAX):
            yield batch(columns)
    except Unfit as unfit:
        raise _refused(part, options, unfit) from None
    except (IndexError, UsageError) as error:  # UsageError: a reference is cut off
        # A verified cell has its hash, so the cause is an error of this program.
        if options.verify:
            raise
        raise BadFormat(
            f"{part.name}: a cell of records {part.first} to {part.stop - 1} is damaged; "
            "verify=true, the default, names it"
        ) from error


def _refused(part: Slice, options: QueueOptions, unfit: Unfit) -> UsageError:
    what, option, chosen = (
        ("value", "valueFormat", options.value_format)
        if unfit.is_value
        else ("key", "keyFormat", options.key_format)
    )
    return bad_option(
        option,
        chosen.value,
        f"the {what} of record {unfit.offset} in {part.name} is neither Blob nor String; "
        "cell, string and json take every value",
    )


_Maker = Callable[[Columns], "pa.Array"]


def _column_makers(part: Slice, options: QueueOptions, schema: pa.Schema) -> list[_Maker]:
    """Return for each column of the rows the function that makes it."""
    import numpy as np
    import pyarrow as pa

    def parts(format: ValueFormat, kind: pa.DataType, column: Callable[[Columns], Spans]) -> _Maker:
        if format is ValueFormat.VARIANT:
            return lambda columns: _variants(_strings(column(columns), columns, pa.string()), kind)
        return lambda columns: _strings(column(columns), columns, kind)

    def maker(name: str, kind: pa.DataType) -> _Maker:
        if name == "offset":
            return lambda columns: pa.array(
                np.arange(columns.first, columns.first + columns.count, dtype=np.int64)
            )
        if name == "timestamp":
            return lambda columns: _numbers(columns.stamps, kind)
        if name == "key":
            return parts(options.key_format, kind, lambda columns: columns.keys)
        if name == "value":
            return parts(options.value_format, kind, lambda columns: columns.values)
        if name == "headers":
            return lambda columns: pa.array(
                [None if found is None else list(found.items()) for found in columns.headers], kind
            )
        return _constant(_name_value(part, options, name), kind)

    return [maker(name, schema.field(name).type) for name in options.columns]


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

    count = len(longs.marks)
    if longs.absent == count:
        return pa.nulls(count, kind)
    numbers = _native(longs.numbers.getvalue(), 8)
    return pa.Array.from_buffers(kind, count, [_validity(longs), numbers], longs.absent)


def _strings(spans: Spans, columns: Columns, kind: pa.DataType) -> pa.Array:
    """Return keys or values as a column of `kind`, BINARY or STRING."""
    import numpy as np
    import pyarrow as pa

    count = len(spans.marks)
    if spans.absent == count:
        return pa.nulls(count, kind)
    # The bounds delimit the entries and the bytes between them. So only every second string is
    # an entry.
    bounds = _native(spans.bounds.getvalue(), 4)
    text = pa.py_buffer(columns.sheet.text())
    strings = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, bounds, text])
    numbers = pa.py_buffer(np.arange(0, 2 * count, 2, dtype=np.int32))
    chosen = pa.Array.from_buffers(pa.int32(), count, [_validity(spans), numbers], spans.absent)
    found = strings.take(chosen)
    if kind == pa.binary():
        return found
    try:
        return found.cast(kind)
    except pa.ArrowInvalid:  # not UTF-8: replace as the rest of Spark does
        contents = found.to_pylist()
        return pa.array([one and one.decode("utf-8", "replace") for one in contents], kind)


def _validity(column: Longs | Spans) -> pa.Buffer | None:
    """Return the marks of a column as Arrow's validity bits; None if no entry is absent."""
    import numpy as np
    import pyarrow as pa

    if not column.absent:
        return None
    marks = np.frombuffer(column.marks.getvalue(), dtype=np.uint8)
    return pa.py_buffer(np.packbits(marks, bitorder="little"))


def _native(numbers: bytes, width: int) -> pa.Buffer:
    """Return little-endian integers of `width` bytes in this machine's byte order."""
    import numpy as np
    import pyarrow as pa

    if sys.byteorder == "little":
        return pa.py_buffer(numbers)
    return pa.py_buffer(np.frombuffer(numbers, dtype=f"<i{width}").astype(f"=i{width}"))


def _variants(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    return pa.array([_variant(text) for text in texts.to_pylist()], kind)


def _variant(text: object) -> dict[str, bytes] | None:
    return None if text is None else variant_parts(str(text))


def _name_value(part: Slice, options: QueueOptions, name: str) -> str | int:
    text = str(getattr(part.name, name))
    if name != "partition" or options.partition_format is PartitionFormat.STRING:
        return text
    # Another node may use any value as a partition's id; a BIGINT holds integers only.
    if not _LONG.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
        raise bad_option(
            "partitionFormat",
            options.partition_format.value,
            f"{part.name} has an id that is not a 64-bit integer; string takes every id",
        )
    return int(text)
