"""Checks of the columns that sinks receive, and their conversion to values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from datalattice.arrow import ValueFormat, accepted_types, parse
from datalattice.cells import Value, to_cell
from datalattice.errors import DataLatticeError, UsageError
from datalattice.limits import CHUNK_BYTES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

PLAIN_TYPES: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "BOOLEAN")
"""Types whose entries become values directly."""

_FORMAT_BY_TYPE: Final = {
    "BINARY": ValueFormat.CELL,
    "STRING": ValueFormat.STRING,
    "VARIANT": ValueFormat.VARIANT,
}

_MICROS: Final = 1_000

_NAME_BYTES_MAX: Final = CHUNK_BYTES
"""Longest name of a topic or database in UTF-8: the content of one cell, as for keys."""


def column_types(schema: StructType) -> dict[str, DataType]:
    """Return the type of each column by lower-case name.

    Raises: UsageError: two columns have the same name.
    """
    types: dict[str, DataType] = {}
    for field in schema.fields:
        # Spark's column names are case-insensitive, unless a setting says otherwise.
        name = field.name.lower()
        if name in types:
            raise UsageError(f"there are two columns {name}; names are case-insensitive")
        types[name] = field.dataType
    return types


def lower_names(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with lower-case column names. Raises: as `checked_texts`."""
    return checked_texts(rows.rename_columns([name.lower() for name in rows.schema.names]))


def checked_texts(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows after checking their STRING columns, since Spark does not check UTF-8.

    Raises: UsageError: a STRING is not UTF-8.
    """
    import pyarrow as pa

    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pa.types.is_string(column.type):  # sinks copy its bytes; other types are converted
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                raise _no_text(name, error) from None
    return rows


def row_slices(rows: pa.RecordBatch, rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of 1 to `rows_max` rows and about `bytes_max` bytes each."""
    if not rows.num_rows:
        return
    # By the average length of a row, so a slice with longer rows may be larger.
    each = max(rows.nbytes // rows.num_rows, 1)
    step = min(max(bytes_max // each, 1), rows_max)
    for first in range(0, rows.num_rows, step):
        yield rows.slice(first, step)


def check_known(
    types: Mapping[str, DataType], what: str, written: Sequence[str], ignored: Sequence[str]
) -> None:
    """Check that every column is among those that are written or ignored.

    what: the kind of row, for the error text.
    Raises: UsageError: a column is neither.
    """
    for name in types:
        # "Any other column is an error": the data of a misspelt column would be lost unnoticed.
        if name not in written and name not in ignored:
            raise UsageError(
                f"column {name} is not one of a {what}: {', '.join(written)}; rename it, or make "
                "it a part of value, as with to_json(struct(...))"
            )


def check_name_length(name: str, what: str) -> None:
    """Check the length of a topic's or database's name. Raises: UsageError: it is too long."""
    size = len(name.encode())
    # "Up to 4,096 bytes" (docs/spark-writing.md, Columns).
    if size > _NAME_BYTES_MAX:
        raise UsageError(
            f"the name of a {what} has at most {_NAME_BYTES_MAX} bytes of UTF-8, got {size}"
        )


def ddl_type(kind: DataType) -> str:
    """Return a type's name in Spark's DDL, in upper case."""
    return kind.simpleString().upper()


def check_type(types: Mapping[str, DataType], name: str, accepted: Sequence[str]) -> None:
    """Check the type of a column, if the column exists.

    Raises: UsageError: the type is not accepted.
    """
    if name in types and ddl_type(types[name]) not in accepted:
        raise UsageError(
            f"column {name} has the type {ddl_type(types[name])}; it takes {' or '.join(accepted)}"
        )


def value_format(kind: DataType, name: str, chosen: ValueFormat | None) -> ValueFormat | None:
    """Return the format of a column of values; None for numbers and booleans.

    name: of the column; the option `<name>Format` chooses the format.
    Raises: UsageError: the column's type cannot be written.
    """
    found = ddl_type(kind)
    if chosen is None:
        # "A written column is read according to its type" (docs/spark.md, Values as columns).
        if found not in _FORMAT_BY_TYPE and found not in PLAIN_TYPES:
            raise UsageError(
                f"column {name} has the type {found}; it takes BINARY, STRING, VARIANT, a number "
                "or a BOOLEAN (to_json makes a STRING of everything else)"
            )
        return _FORMAT_BY_TYPE.get(found)
    accepted = accepted_types(chosen)
    if found not in accepted:
        raise UsageError(
            f"column {name} has the type {found}; {name}Format={chosen.value} takes "
            f"{' or '.join(accepted)}"
        )
    return chosen


def present_column(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return a column; None if it is absent or all NULL."""
    names = rows.schema.names
    if name not in names:
        return None
    column = rows.column(names.index(name))
    # A column of NULLs counts as absent, so that optional columns cost nothing.
    return None if column.null_count == len(column) else column


def entries_or_none(rows: pa.RecordBatch, name: str) -> list[Any] | None:
    """Return the entries of a column; None if it is absent or all NULL."""
    column = present_column(rows, name)
    return None if column is None else python_entries(column, name)


def entries_or_nulls(rows: pa.RecordBatch, name: str) -> list[Any]:
    """Return the entries of a column; NULLs if the column is absent."""
    return entries_or_none(rows, name) or [None] * rows.num_rows


def python_entries(column: pa.Array, name: str) -> list[Any]:
    """Return the entries of a column as Python objects.

    Raises: UsageError: a STRING is not UTF-8.
    """
    try:
        found: list[Any] = column.to_pylist()
    except UnicodeDecodeError as error:
        raise _no_text(name, error) from None
    return found


def _no_text(name: str, error: Exception) -> UsageError:
    return UsageError(
        f"the column {name} has a STRING that is not UTF-8 ({error}); cast it to BINARY, or leave "
        "such rows out"
    )


def cell(entry: object, name: str, format: ValueFormat | None) -> Value:
    """Return a column's entry as a value; `format` is that of `value_format`.

    Raises: UsageError: the entry is not of this format.
    """
    if format is None:
        return to_cell(entry)
    try:
        return parse(entry, format)
    except DataLatticeError as error:
        raise UsageError(
            f"the column {name} has a row that is not of {name}Format={format.value}: {error}"
        ) from None


def stamps_ms(rows: pa.RecordBatch, name: str) -> list[int | None]:
    """Return the entries of a TIMESTAMP column as Unix milliseconds."""
    import pyarrow as pa

    column = present_column(rows, name)
    if column is None:
        return [None] * rows.num_rows
    micros = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    # "In whole milliseconds" (docs/spark-writing.md, Columns); rounded down before 1970 as well.
    return [None if at is None else at // _MICROS for at in micros.to_pylist()]
