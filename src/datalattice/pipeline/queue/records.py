"""Convert Arrow rows to records in the form that the leaves of a log contain.

In the common case all records are small and plain. Then Arrow joins them from the columns: the
encoding of a string is a head, which depends on its length, followed by its bytes. Other rows are
encoded one by one (`splice`).

Source: docs/spark-writing.md "Columns"; docs/queue.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from datalattice.arrow import ValueFormat
from datalattice.cells import CellList, encode
from datalattice.errors import UsageError
from datalattice.limits import EMBEDDED_BYTES_MAX
from datalattice.pipeline.arrow_rows import MapPlan, maps_of, shape_column
from datalattice.pipeline.columns import cell, entries_or_none, present_column, stamps_ms
from datalattice.pipeline.queue.splice import (
    ENCODED_NIL,
    ENTRY_HEAD,
    encoded_records,
    spliced_records,
)

if TYPE_CHECKING:
    import pyarrow as pa

_STAMP_BYTES: Final = 6
_STAMP_MIN: Final = 1 << 40
_STAMP_MAX: Final = (1 << 47) - 1
"""Times from 2004 to 6429, whose encodings all have six bytes after the head."""


def record_values(
    rows: pa.RecordBatch, name: str, format: ValueFormat | None
) -> Sequence[object] | None:
    """Return a column as values, with strings and numbers as Python objects."""
    given = entries_or_none(rows, name)
    if given is None:
        return None
    # `splice` encodes Python's strings and numbers directly, without making cells of them.
    if format in (None, ValueFormat.STRING):
        return given
    some = next(item for item in given if item is not None)
    if format is ValueFormat.BYTES and isinstance(some, bytes):
        return given
    return [cell(item, name, format) for item in given]


def records_of_rows(
    rows: pa.RecordBatch,
    value_format: ValueFormat | None,
    key_format: ValueFormat | None,
    stamp_ms: int,
    cells: CellList,
) -> pa.Array:
    """Return the records of rows with lower-case column names, as an Array of binaries.

    Referenced cells are appended to `cells`, children before parents.
    stamp_ms: the time of rows whose timestamp is absent.
    Raises: UsageError: a row cannot become a record.
    """
    import pyarrow as pa

    made = _joined(rows, value_format, key_format, stamp_ms)
    if made is not None:
        return made
    values = record_values(rows, "value", value_format)
    # "Required in every row" (docs/spark-writing.md, Columns): nil would delete a key in a
    # compaction.
    if values is None or any(value is None for value in values):
        raise UsageError(
            "the column value is NULL in a row: a record needs a value; "
            "leave such rows out, or give them a value"
        )
    keys = record_values(rows, "key", key_format)
    headers = _headers(rows)
    stamps = [stamp_ms if at is None else at for at in stamps_ms(rows, "timestamp")]
    listed = None if keys is None else list(keys)
    return pa.array(spliced_records(listed, list(values), stamps, headers, cells), pa.binary())


def records_of_maps(
    rows: pa.RecordBatch, maps: MapPlan, stamp_ms: int, cells: CellList
) -> pa.Array:
    """Return the records of rows whose value is the map of the columns. See `records_of_rows`."""
    import pyarrow as pa

    values = maps_of(rows, maps, cells)
    keys = None
    if maps.key is not None:
        keys = shape_column(rows, maps.key, maps, cells).kids(rows.num_rows, cells)
    return pa.array(encoded_records(keys, values, stamp_ms, cells), pa.binary())


def _joined(
    rows: pa.RecordBatch,
    value_format: ValueFormat | None,
    key_format: ValueFormat | None,
    stamp_ms: int,
) -> pa.Array | None:
    """Return the records if all of them are small and plain, otherwise None."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = _plain(present_column(rows, "value"), value_format)
    # Headers are maps, which have no fixed form.
    if values is None or values.null_count or present_column(rows, "headers") is not None:
        return None
    key_column = present_column(rows, "key")
    keys = None if key_column is None else _plain(key_column, key_format)
    stamps = _stamps(rows, stamp_ms)
    value_heads = _heads(values, value_format)
    key_heads = None if keys is None else _heads(keys, key_format)
    if stamps is None or value_heads is None:
        return None
    if key_column is None:
        start = [pa.scalar(ENTRY_HEAD + ENCODED_NIL, pa.binary())]
    elif keys is None or key_heads is None:
        return None
    else:
        start = [pa.scalar(ENTRY_HEAD, pa.binary()), key_heads, pc.fill_null(keys, b"")]
    made = pc.binary_join_element_wise(
        *start,
        value_heads,
        values,
        stamps,
        pa.scalar(ENCODED_NIL, pa.binary()),
        pa.scalar(b"", pa.binary()),
    )
    longest = pc.max(pc.binary_length(made)).as_py()
    # A longer record is stored by reference, which `splice` makes.
    return made if longest <= EMBEDDED_BYTES_MAX else None


def _plain(column: pa.Array | None, format: ValueFormat | None) -> pa.Array | None:
    """Return a column as binaries if its bytes are the contents of its cells, otherwise None."""
    import pyarrow as pa

    if column is None or format not in (ValueFormat.BYTES, ValueFormat.STRING):
        return None
    if format is ValueFormat.STRING and not pa.types.is_string(column.type):
        return None
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        return None
    return column.cast(pa.binary())


def _heads(column: pa.Array, format: ValueFormat | None) -> pa.Array | None:
    """Return the encoding's head for each string, nil for NULL; None if a string is too long."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = pc.binary_length(column)
    longest = pc.max(sizes).as_py()
    # A longer string is a cell of its own, so the record refers to it.
    if longest > EMBEDDED_BYTES_MAX:
        return None
    blank: str | bytes = " " if format is ValueFormat.STRING else b" "
    heads = [
        encode(blank * size)[:-size] if size else encode(blank[:0]) for size in range(longest + 1)
    ]
    # One head for each length, and nil as the last entry, for NULL.
    table = pa.array([*heads, ENCODED_NIL], pa.binary())
    return table.take(pc.fill_null(sizes, longest + 1))


def _stamps(rows: pa.RecordBatch, stamp_ms: int) -> pa.Array | pa.Scalar | None:
    """Return the encoded times; None if their lengths differ."""
    import pyarrow as pa

    if present_column(rows, "timestamp") is None:
        return pa.scalar(encode(stamp_ms), pa.binary())
    given = stamps_ms(rows, "timestamp")
    stamps = [stamp_ms if at is None else at for at in given]
    # Integers of other lengths have another head.
    if not _STAMP_MIN <= min(stamps) <= max(stamps) <= _STAMP_MAX:
        return None
    head = encode(_STAMP_MIN)[:-_STAMP_BYTES]
    return pa.array([head + at.to_bytes(_STAMP_BYTES, "big") for at in stamps], pa.binary())


def _headers(rows: pa.RecordBatch) -> list[object] | None:
    """Return headers as mappings, from a MAP or from Kafka's ARRAY of key and value."""
    given = entries_or_none(rows, "headers")
    if given is None:
        return None
    # "Of several headers with one key, which Kafka allows, the last counts".
    return [None if row is None else dict(map(_header, row)) for row in given]


def _header(pair: Any) -> tuple[object, object]:
    name, value = pair.values() if isinstance(pair, Mapping) else pair or (None, None)
    if name is None:
        raise UsageError("the column headers has a NULL header, or a header with a NULL key")
    return name, value
