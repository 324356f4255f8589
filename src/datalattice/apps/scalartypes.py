"""Scalar types: the conversions of Python types whose values are stored as one plain value.

Source: docs/cells.md "Python types".
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, Final
from uuid import UUID  # noqa: TID251 - the type of values; none is made up here

from datalattice.cells import Blob, Text, Value, refusal, render, to_cell, value_hash
from datalattice.errors import TypeMismatch, UsageError

ToCell = Callable[[Any], Value]
FromCell = Callable[[Value], Any]
Conversions = tuple[ToCell, FromCell]
"""The two conversions of one type, its pair: to a cell, and from a cell."""

UNCONVERTED_TYPES: Final = (bool, int, float, str, bytes)
_MICROSECOND: Final = timedelta(microseconds=1)
_ABSENT: Final = frozenset({"NAType", "NaTType"})  # pandas' values for "no value"


def type_name(of: Any) -> str:
    """Return the bounded name of a type, for errors."""
    return (getattr(of, "__name__", None) or str(of))[:100]  # bounded: a type may have any name


def misfit(value: object, of: Any) -> TypeMismatch:
    """Return the error for a value that a type does not accept."""
    kind = type(value).__name__
    if kind in _ABSENT:
        return TypeMismatch(refusal(value), ())
    return TypeMismatch(f"{kind} is not {type_name(of)}", ())


def unreadable(cell: Value, of: Any, why: object = "") -> TypeMismatch:
    """Return the error for a stored value that does not read as a type."""
    reason = f"; {why}" if str(why) else ""
    # Bounded: a stored value may be of any size.
    return TypeMismatch(f"{render(cell)[:80]} does not read as {type_name(of)}{reason}", ())


def is_none(value: object) -> bool:
    """Return whether a value is None, or pandas' NA or NaT."""
    # By name, so that pandas need not be installed.
    return value is None or type(value).__name__ in _ABSENT


def plain_python(cell: Value) -> Value:
    """Return a long text or blob as str or bytes."""
    return str(cell) if isinstance(cell, Text) else bytes(cell) if isinstance(cell, Blob) else cell


def plain_pair(of: type) -> Conversions:
    """Return the pair of bool, int, float, str or bytes."""

    def encode(value: object) -> Value:
        cell = to_cell(value)
        found = plain_python(cell)
        if type(found) is of:
            return cell
        # As type checkers accept them: a bool where an int is declared, an int where a float is.
        if of is int and isinstance(found, bool):
            return int(found)
        # Only where the float reads back as the same number: 2**53 + 1 would change.
        if of is float and type(found) is int and float(found) == found:
            return float(found)
        raise misfit(value, of)

    def decode(cell: Value) -> object:
        found = plain_python(cell)
        if type(found) is of:
            return found
        if of is float and type(found) is int:
            return float(found)
        raise unreadable(cell, of)

    return encode, decode


def _scalar(
    of: Any,
    accepts: Callable[[Any], bool],
    store: Callable[[Any], Value],
    kind: type,
    read: Callable[[Any], Any],
) -> Conversions:
    """Return the pair of a type that is stored as one plain value.

    kind: the type of the stored value. read: raises ValueError or ArithmeticError if it does not
    fit.
    """

    def encode(value: object) -> Value:
        # NA and NaT are stored as None; no other type accepts them, though NaT is a datetime.
        if not accepts(value) or (of is not None and type(value).__name__ in _ABSENT):
            raise misfit(value, of)
        return store(value)

    def decode(cell: Value) -> object:
        found = plain_python(cell)
        if type(found) is not kind:
            raise unreadable(cell, of)
        try:
            return read(found)
        except ValueError as error:
            raise unreadable(cell, of, error) from error
        except ArithmeticError as error:  # its text is a list of decimal signals
            raise unreadable(cell, of) from error

    return encode, decode


def numpy_pair(of: Any) -> Conversions:
    """Return the pair of a numpy scalar type; a stored value must read back exactly."""

    def encode(value: object) -> Value:
        # Numpy itself would convert between its types, with loss.
        if not isinstance(value, of):
            raise misfit(value, of)
        return to_cell(value)

    def decode(cell: Value) -> object:
        found = plain_python(cell)
        if type(found) not in UNCONVERTED_TYPES:
            raise unreadable(cell, of)
        try:
            read = of(found)
        except (TypeError, ValueError, OverflowError) as error:
            raise unreadable(cell, of, error) from error
        if to_cell(read) != found and found == found:  # NaN equals nothing
            raise unreadable(cell, of)
        return read

    return encode, decode


def literal_pair(of: Any, values: tuple[Any, ...]) -> Conversions:
    """Return the pair of a `Literal` of these values."""
    # By hash: `1`, `1.0` and `True` are equal in Python but three different cells.
    known = {value_hash(to_cell(value)): value for value in values}

    def encode(value: object) -> Value:
        cell = to_cell(value)
        if value_hash(cell) not in known:
            raise misfit(value, of)
        return cell

    def decode(cell: Value) -> object:
        digest = value_hash(cell)
        if digest not in known:
            raise unreadable(cell, of)
        return known[digest]

    return encode, decode


def enum_pair(of: type[Enum]) -> Conversions:
    """Return the pair of an Enum, whose members are stored by value.

    Raises: UsageError: a member's value has no cell kind.
    """
    members: dict[bytes, Enum] = {}
    for member in of:
        try:
            members[value_hash(to_cell(member.value))] = member
        except TypeMismatch as error:
            raise UsageError(
                f"{member} has a value without a cell kind: {type(member.value).__name__}"
            ) from error

    def encode(value: object) -> Value:
        if not isinstance(value, of):
            raise misfit(value, of)
        return to_cell(value.value)

    def decode(cell: Value) -> object:
        found = members.get(value_hash(cell))
        if found is None and issubclass(of, Flag) and type(cell) is int:
            try:
                return of(cell)  # a combination of members
            except ValueError as error:
                raise unreadable(cell, of, error) from error
        if found is None:
            raise unreadable(cell, of)
        return found

    return encode, decode


def _store_datetime(value: datetime) -> Value:
    if value.utcoffset() is None:
        # Without a zone, the reader's machine would decide which moment it is.
        raise TypeMismatch("a datetime without a time zone; give it one, for example UTC", ())
    _refuse_nanoseconds(getattr(value, "nanosecond", 0))
    return value.astimezone(UTC).isoformat(timespec="microseconds")


def _read_datetime(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:  # every stored time names a moment, whoever reads it
        raise ValueError("it has no time zone")
    return found


def _store_timedelta(value: timedelta) -> Value:
    _refuse_nanoseconds(getattr(value, "nanoseconds", 0))
    return value // _MICROSECOND  # an integer: exact, and the same for every reader


def _refuse_nanoseconds(count: int) -> None:
    """Raise TypeMismatch for a pandas time that a stored one cannot equal."""
    # "With microseconds" (docs/cells.md "Python types"): a conversion happens only where reading
    # can undo it.
    if count:
        raise TypeMismatch("a time with nanoseconds, which are not stored; round it", ())


def _is(of: type | tuple[type, ...]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, of)


_BYTES_LIKE: Final = (bytes, bytearray, memoryview)

SCALARS: Final[dict[type, Conversions]] = {
    type(None): _scalar(None, is_none, lambda _: None, type(None), lambda _: None),
    bytearray: _scalar(bytearray, _is(_BYTES_LIKE), bytes, bytes, bytearray),
    memoryview: _scalar(memoryview, _is(_BYTES_LIKE), bytes, bytes, memoryview),
    datetime: _scalar(datetime, _is(datetime), _store_datetime, str, _read_datetime),
    date: _scalar(
        date,
        lambda value: isinstance(value, date) and not isinstance(value, datetime),
        date.isoformat,
        str,
        date.fromisoformat,
    ),
    timedelta: _scalar(
        timedelta,
        _is(timedelta),
        _store_timedelta,
        int,
        lambda number: timedelta(microseconds=number),
    ),
    Decimal: _scalar(Decimal, _is(Decimal), str, str, Decimal),
    UUID: _scalar(UUID, _is(UUID), lambda value: value.bytes, bytes, lambda raw: UUID(bytes=raw)),
}
