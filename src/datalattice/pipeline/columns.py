"""Columns: what sinks ask of the columns they are given, and how they read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from datalattice.cells import Value, to_cell
from datalattice.errors import DataLatticeError, UsageError
from datalattice.limits import CHUNK_BYTES
from datalattice.pipeline.values import ValueFormat, accepted_types, parse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

PLAIN_TYPES: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "BOOLEAN")
"""Types whose entries are values as they are."""

_FORMAT_BY_TYPE: Final = {
    "BINARY": ValueFormat.CELL,
    "STRING": ValueFormat.STRING,
    "VARIANT": ValueFormat.VARIANT,
}

_MICROS: Final = 1_000

NAME_BYTES_MAX: Final = CHUNK_BYTES
"""Longest name of a topic or database in UTF-8: what one cell holds, as with keys."""


def column_types(schema: StructType) -> dict[str, DataType]:
    """Return the type of each column by its name in lower case.

    Raises: UsageError: two columns have one name.
    """
    types: dict[str, DataType] = {}
    for field in schema.fields:
        name = field.name.lower()
        if name in types:
            raise UsageError(f"column {name} is there twice; upper and lower case are one")
        types[name] = field.dataType
    return types


def lower_names(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows, the names of their columns in lower case.

    Raises: UsageError: a text is no UTF-8, which Spark lets pass.
    """
    return checked_texts(rows.rename_columns([name.lower() for name in rows.schema.names]))


def checked_texts(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows, their texts checked.

    Raises: UsageError: a text is no UTF-8, which Spark lets pass.
    """
    import pyarrow as pa

    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pa.types.is_string(column.type):  # sinks may copy its bytes; others are read one by one
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                raise _no_text(name, error) from None
    return rows


def slices(rows: pa.RecordBatch, rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield rows in parts of bounded size, a row that is larger alone."""
    if not rows.num_rows:
        return
    each = max(rows.nbytes // rows.num_rows, 1)
    step = min(max(bytes_max // each, 1), rows_max)
    for first in range(0, rows.num_rows, step):
        yield rows.slice(first, step)


def check_known(
    types: Mapping[str, DataType], what: str, written: Sequence[str], ignored: Sequence[str]
) -> None:
    """Check that all columns are among those that are written, or are ignored.

    what: names what a row is.
    Raises: UsageError: one is neither.
    """
    for name in types:
        if name not in written and name not in ignored:
            raise UsageError(
                f"column {name} is not one of a {what}: {', '.join(written)}; rename it, or make "
                "it a part of value, as with to_json(struct(...))"
            )


def check_name(name: str, what: str) -> None:
    """Check that a name is short enough.

    Raises: UsageError: it is not.
    """
    size = len(name.encode())
    if size > NAME_BYTES_MAX:
        raise UsageError(
            f"the name of a {what} has at most {NAME_BYTES_MAX} bytes of UTF-8, got {size}"
        )


def type_name(kind: DataType) -> str:
    """Return a type as Spark's DDL names it."""
    return kind.simpleString().upper()


def check_type(types: Mapping[str, DataType], name: str, accepted: Sequence[str]) -> None:
    """Check the type of a column, if it is there.

    Raises: UsageError: it is not among the accepted ones.
    """
    if name in types and type_name(types[name]) not in accepted:
        raise UsageError(
            f"column {name} has the type {type_name(types[name])}; it is {' or '.join(accepted)}"
        )


def value_format(kind: DataType, name: str, chosen: ValueFormat | None) -> ValueFormat | None:
    """Return how a column of values is read; None for numbers and truth values, as they are.

    name: of the column; the option that chooses its format is `<name>Format`.
    Raises: UsageError: it is not of a type that is written.
    """
    found = type_name(kind)
    if chosen is None:
        if found not in _FORMAT_BY_TYPE and found not in PLAIN_TYPES:
            raise UsageError(
                f"column {name} has the type {found}; it is BINARY, STRING, VARIANT, a number or "
                "a truth value (to_json makes a STRING of everything else)"
            )
        return _FORMAT_BY_TYPE.get(found)
    accepted = accepted_types(chosen)
    if found not in accepted:
        raise UsageError(
            f"column {name} has the type {found}; {name}Format={chosen.value} takes "
            f"{' or '.join(accepted)}"
        )
    return chosen


def listed(rows: pa.RecordBatch, name: str) -> list[Any]:
    """Return the entries of a column; NULLs where it is not there."""
    names = rows.schema.names
    if name not in names:
        return [None] * rows.num_rows
    return entries(rows.column(names.index(name)), name)


def entries(column: pa.Array, name: str) -> list[Any]:
    """Return the entries of a column as Python's objects.

    Raises: UsageError: a text is no UTF-8.
    """
    try:
        found: list[Any] = column.to_pylist()
    except UnicodeDecodeError as error:
        raise _no_text(name, error) from None
    return found


def _no_text(name: str, error: Exception) -> UsageError:
    return UsageError(
        f"the column {name} has a STRING that is no UTF-8 ({error}); cast it to BINARY, or leave "
        "such rows out"
    )


def cell(entry: object, name: str, format: ValueFormat | None) -> Value:
    """Return the value of an entry of a column; see `value_format`.

    Raises: UsageError: it is none in this format.
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

    names = rows.schema.names
    if name not in names:
        return [None] * rows.num_rows
    micros = rows.column(names.index(name)).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    return [None if at is None else at // _MICROS for at in micros.to_pylist()]
