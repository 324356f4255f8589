"""Entries of Arrow columns as Python values, and values as entries, by the type of the column.

Both directions recurse over the type, because Python's objects do not tell a map from a list.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

from datalattice.arrow.values import plain
from datalattice.cells import to_cell
from datalattice.errors import TypeMismatch

if TYPE_CHECKING:
    import pyarrow as pa

Convert = Callable[[Any], object]


def value_maker(kind: pa.DataType) -> Convert:
    """Return the function that converts an entry of `to_pylist`, of this type, for `to_cell`.

    Structs and maps become maps, lists vectors, decimals Integers or Doubles, dates and times ISO
    texts; other objects are unchanged. It raises TypeMismatch if a map has a key twice.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return value_maker(kind.value_type)
    if pa.types.is_map(kind):
        of_key, of_item = value_maker(kind.key_type), value_maker(kind.item_type)
        return lambda pairs: _map(pairs, of_key, of_item)
    if _is_list(kind):
        of_member = value_maker(kind.value_type)
        return lambda members: [_made(of_member, member) for member in members]
    if pa.types.is_struct(kind):
        fields = {field.name: value_maker(field.type) for field in kind}
        return lambda row: {name: _made(fields[name], item) for name, item in row.items()}
    return plain


def _map(pairs: list[tuple[object, object]], of_key: Convert, of_item: Convert) -> object:
    # Keys of any type: a lattice Map takes every value as a key, and cells can be hashed.
    found = {to_cell(of_key(key)): _made(of_item, item) for key, item in pairs}
    if len(found) < len(pairs):
        raise TypeMismatch(f"a map has a key twice: {pairs}")
    return found


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    checks = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
    return any(getattr(pa.types, f"is_{check}")(kind) for check in checks)


def _made(convert: Convert, item: object) -> object:
    return None if item is None else convert(item)


def plain_column(rows: pa.RecordBatch, name: str) -> list[object]:
    """Return the entries of a column for `to_cell`.

    Raises: TypeMismatch: an entry cannot be a value.
    """
    import pyarrow as pa

    column, kind = rows.column(name), rows.schema.field(name).type
    make = value_maker(kind)
    try:
        if pa.types.is_time64(kind) and kind.unit == "ns":
            # Python's times have microseconds: this refuses finer ones, `to_pylist` rounds them.
            column = column.cast(pa.time64("us"))
        return [_made(make, entry) for entry in column.to_pylist()]
    except KeyError as error:
        reason = f"its time zone is unknown: {error}"
    except (pa.ArrowException, ValueError, OverflowError, TypeMismatch) as error:
        reason = str(error)
    raise TypeMismatch(
        f"the column {name!r} of the type {kind} has an entry that cannot be a value: {reason}"
    )


# --- structs --------------------------------------------------------------------------------------


def entry_maker(kind: pa.DataType) -> Convert:
    """Return the function that converts a Python value, as of `to_python`, for `pa.array`.

    It does what `pa.array` itself does not: it reads the texts and numbers that `value_maker` makes
    of times and decimals, and refuses to cut off a fraction. It raises TypeMismatch, or an error of
    pyarrow, for a text or a number that does not fit. `pa.array` refuses values of another type.
    """
    import pyarrow as pa

    if pa.types.is_struct(kind):
        makers = [(field.name, entry_maker(field.type)) for field in kind]
        return lambda row: _fields(row, makers)
    if pa.types.is_map(kind):
        of_key, of_item = entry_maker(kind.key_type), entry_maker(kind.item_type)
        return lambda row: (
            [(of_key(key), _made(of_item, item)) for key, item in row.items()]
            if isinstance(row, dict)
            else row
        )
    if _is_list(kind):
        of_member = entry_maker(kind.value_type)
        return lambda members: (
            [_made(of_member, member) for member in members]
            if isinstance(members, list)
            else members
        )
    if pa.types.is_decimal(kind):
        return _decimal
    if pa.types.is_integer(kind):
        return _whole
    if pa.types.is_temporal(kind):
        return lambda item: _units(item, kind) if isinstance(item, str) else _whole(item)
    return _itself


def _fields(row: object, makers: list[tuple[str, Convert]]) -> object:
    if not isinstance(row, dict):
        return row
    return {name: make(row[name]) for name, make in makers if row.get(name) is not None}


def _itself(item: object) -> object:
    return item


def _whole(item: object) -> object:
    if isinstance(item, float) and not item.is_integer():
        raise TypeMismatch(f"{item} is not a whole number")
    return item


def _decimal(item: object) -> object:
    # A decimal is loaded as a Double, and stored by a typed handle as a String.
    if not isinstance(item, (float, str)):
        return item
    try:
        return Decimal(item if isinstance(item, str) else repr(item))
    except InvalidOperation:
        raise TypeMismatch(f"{item!r} is not a number") from None


def _units(text: str, kind: pa.DataType) -> object:
    """Return the time of an ISO text in units of the type."""
    import pyarrow as pa

    if not pa.types.is_time(kind):
        return pa.scalar(text).cast(kind).value
    try:
        time = dt.time.fromisoformat(text)
    except ValueError as error:
        raise TypeMismatch(str(error)) from None
    if time.tzinfo is not None or time.isoformat() != text:  # Arrow's times have no zone
        raise TypeMismatch(f"{text!r} is not a time such as 12:30:00 or 12:30:00.000500")
    return pa.scalar(time).cast(kind).value


class Misfit(Exception):
    """The value at the position `at` does not fit a struct. The caller names it."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at: Final = at


def struct_array(values: list[object], kind: pa.StructType) -> pa.Array:
    """Return values, as of `to_python`, as an array of structs.

    Raises: Misfit: a value does not fit.
    """
    import pyarrow as pa

    misfits = (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeMismatch)
    try:
        return _structs(values, kind)
    except misfits:
        # Arrow does not say which entry misfits, so each is converted again by itself.
        for at, value in enumerate(values):
            for field in kind:
                try:
                    _structs([value], pa.struct([field]))
                except misfits as error:
                    raise Misfit(at, _reason(value, field, error)) from None
        raise


def _reason(value: object, field: pa.Field, error: Exception) -> str:
    if not isinstance(value, dict):
        return f"a struct is made of a Map, got {type(value).__name__}"
    return f"{field.name!r} is {field.type}{'' if field.nullable else ' not null'}: {error}"


def _structs(values: list[object], kind: pa.StructType) -> pa.Array:
    import pyarrow as pa

    make = entry_maker(kind)
    made = pa.array([_made(make, value) for value in values], kind)
    for field, column in zip(kind, made.flatten(), strict=True):
        # pyarrow itself does not check it, and readers would take absent entries for zeros.
        if not field.nullable and column.null_count > made.null_count:
            raise TypeMismatch("it is absent")
    return made
