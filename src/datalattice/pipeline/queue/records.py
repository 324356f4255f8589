"""Records: Arrow rows as records, each as it stands in the leaf of a log.

Where all records of some rows are small and plain, which is the rule, Arrow joins them from their
columns: the encoding of a string is its bytes behind a head that depends on their number alone.
Everything else is encoded row by row (`splice`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from datalattice.cells import CellList, encode
from datalattice.errors import UsageError
from datalattice.limits import EMBEDDED_BYTES_MAX
from datalattice.pipeline.columns import cell, entries, stamps_ms
from datalattice.pipeline.queue.splice import encoded_records, records
from datalattice.pipeline.rowmaps import MapPlan, maps_of
from datalattice.pipeline.rowmaps import column_of as map_column
from datalattice.pipeline.values import ValueFormat

if TYPE_CHECKING:
    import pyarrow as pa

_ENTRY_HEAD: Final = b"\x80\x04"  # a Vector of four
_NIL: Final = b"\x00"
_STAMP_BYTES: Final = 6
_STAMP_MIN: Final = 1 << 40
_STAMP_MAX: Final = (1 << 47) - 1
"""Times whose encodings all have six bytes behind their head: those from 2004 to 6429."""


def column_of(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return a column, None when it is not there or has nothing but NULLs."""
    names = rows.schema.names
    if name not in names:
        return None
    column = rows.column(names.index(name))
    return None if column.null_count == len(column) else column


def listed_column(rows: pa.RecordBatch, name: str) -> list[Any] | None:
    """Return the entries of a column; None when it is not there or has nothing but NULLs."""
    column = column_of(rows, name)
    return None if column is None else entries(column, name)


def values_of(
    rows: pa.RecordBatch, name: str, format: ValueFormat | None
) -> Sequence[object] | None:
    """Return a column as values, strings and numbers as Python's own."""
    given = listed_column(rows, name)
    if given is None:
        return None
    if format in (None, ValueFormat.STRING):
        return given
    some = next(item for item in given if item is not None)
    if format is ValueFormat.BYTES and isinstance(some, bytes):
        return given
    return [cell(item, name, format) for item in given]


def records_of(
    rows: pa.RecordBatch,
    value_format: ValueFormat | None,
    key_format: ValueFormat | None,
    stamp_ms: int,
    cells: CellList,
) -> pa.Array:
    """Return the records of rows, whose columns have names in lower case, as binaries.

    Cells that records refer to are added to `cells`, those below a cell before it.
    stamp_ms: the time of rows without one of their own.
    Raises: UsageError: a row that cannot be a record.
    """
    import pyarrow as pa

    made = _joined(rows, value_format, key_format, stamp_ms)
    if made is not None:
        return made
    values = values_of(rows, "value", value_format)
    if values is None or any(value is None for value in values):
        raise UsageError(
            "the column value is NULL in a row: a record needs a value; "
            "leave such rows out, or give them a value that says so"
        )
    keys = values_of(rows, "key", key_format)
    headers = _headers(rows)
    stamps = [stamp_ms if at is None else at for at in stamps_ms(rows, "timestamp")]
    listed = None if keys is None else list(keys)
    return pa.array(records(listed, list(values), stamps, headers, cells), pa.binary())


def records_of_maps(
    rows: pa.RecordBatch, maps: MapPlan, stamp_ms: int, cells: CellList
) -> pa.Array:
    """Return the records of rows whose values are maps of their columns. See `records_of`."""
    import pyarrow as pa

    values = maps_of(rows, maps, cells)
    keys = None
    if maps.key is not None:
        keys = map_column(rows, maps.key, maps, cells).kids(rows.num_rows, cells)
    return pa.array(encoded_records(keys, values, stamp_ms, cells), pa.binary())


def _joined(
    rows: pa.RecordBatch,
    value_format: ValueFormat | None,
    key_format: ValueFormat | None,
    stamp_ms: int,
) -> pa.Array | None:
    """Return the records when all of them are small and plain, None otherwise."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = _plain(column_of(rows, "value"), value_format)
    if values is None or values.null_count or column_of(rows, "headers") is not None:
        return None
    key_column = column_of(rows, "key")
    keys = None if key_column is None else _plain(key_column, key_format)
    stamps = _stamps(rows, stamp_ms)
    value_heads = _heads(values, value_format)
    key_heads = None if keys is None else _heads(keys, key_format)
    if stamps is None or value_heads is None:
        return None
    if key_column is None:
        start = [pa.scalar(_ENTRY_HEAD + _NIL, pa.binary())]
    elif keys is None or key_heads is None:
        return None
    else:
        start = [pa.scalar(_ENTRY_HEAD, pa.binary()), key_heads, pc.fill_null(keys, b"")]
    made = pc.binary_join_element_wise(
        *start,
        value_heads,
        values,
        stamps,
        pa.scalar(_NIL, pa.binary()),
        pa.scalar(b"", pa.binary()),
    )
    longest = pc.max(pc.binary_length(made)).as_py()
    return made if longest <= EMBEDDED_BYTES_MAX else None


def _plain(column: pa.Array | None, format: ValueFormat | None) -> pa.Array | None:
    """Return a column of strings as binaries where their bytes are the content of their cells."""
    import pyarrow as pa

    if column is None or format not in (ValueFormat.BYTES, ValueFormat.STRING):
        return None
    if format is ValueFormat.STRING and not pa.types.is_string(column.type):
        return None
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        return None
    return column.cast(pa.binary())


def _heads(column: pa.Array, format: ValueFormat | None) -> pa.Array | None:
    """Return what stands before the content of each string; nil for NULL; None: one is long."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = pc.binary_length(column)
    longest = pc.max(sizes).as_py()
    if longest > EMBEDDED_BYTES_MAX:
        return None
    blank: str | bytes = " " if format is ValueFormat.STRING else b" "
    heads = [
        encode(blank * size)[:-size] if size else encode(blank[:0]) for size in range(longest + 1)
    ]
    table = pa.array([*heads, _NIL], pa.binary())
    return table.take(pc.fill_null(sizes, longest + 1))


def _stamps(rows: pa.RecordBatch, stamp_ms: int) -> pa.Array | pa.Scalar | None:
    """Return the encodings of the times; None when they are of several lengths."""
    import pyarrow as pa

    if column_of(rows, "timestamp") is None:
        return pa.scalar(encode(stamp_ms), pa.binary())
    given = stamps_ms(rows, "timestamp")
    stamps = [stamp_ms if at is None else at for at in given]
    if not _STAMP_MIN <= min(stamps) <= max(stamps) <= _STAMP_MAX:
        return None
    head = encode(_STAMP_MIN)[:-_STAMP_BYTES]
    return pa.array([head + at.to_bytes(_STAMP_BYTES, "big") for at in stamps], pa.binary())


def _headers(rows: pa.RecordBatch) -> list[object] | None:
    """Return headers as mappings, from a MAP or from an ARRAY of key and value, as Kafka has it."""
    given = listed_column(rows, "headers")
    if given is None:
        return None
    return [None if row is None else dict(map(_header, row)) for row in given]


def _header(pair: Any) -> tuple[object, object]:
    name, value = pair.values() if isinstance(pair, Mapping) else pair or (None, None)
    if name is None:
        raise UsageError("the column headers has a header that is NULL, or whose key is")
    return name, value
