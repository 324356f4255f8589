"""Entries: a record of a queue is a Vector of key, value, time and headers.

Source: CAD040 "Entry", "offer", "range"; docs/queue.md "Entry", "Appending", "Reading".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from datalattice.cells import EMPTY_MAP, Map, Value, Vector, columns, encode, put_plain, to_cell
from datalattice.errors import TypeMismatch, UsageError
from datalattice.lattice import is_long
from datalattice.limits import EMBEDDED_BYTES_MAX

_KEY: Final = 0
_VALUE: Final = 1
_STAMP: Final = 2
_HEADERS: Final = 3
_ENTRY_COUNT: Final = 4

_ENTRY_HEAD: Final = b"\x80\x04"  # a Vector of four
_NIL: Final = b"\x00"
_PLAIN: Final = frozenset({bytes, str, int, float, bool, type(None)})


def is_entry(value: Value) -> bool:
    """Return whether `value` is a Vector of at least four elements with a time as the third."""
    # "Anything other than a Vector of at least four with a 64-bit time reads as a record without
    # key, value and headers" (docs/queue.md "Entry").
    return isinstance(value, Vector) and len(value) >= _ENTRY_COUNT and is_long(value[_STAMP])


def make_entry(key: Value, value: Value, stamp_ms: int, headers: Value = None) -> Vector:
    """Return the record `[key value stamp_ms headers]`; all arguments are cells."""
    return Vector.of((key, value, stamp_ms, headers))


class NewRecords:
    """Records to append in one update, all with the same time.

    Shapes: if all are small and scalar, `rows` holds their encodings, end to end, and the end of
            each; otherwise `rows` is None and `entries` holds the records.
    """

    def __init__(
        self,
        values: Iterable[object],
        stamp_ms: int,
        keys: Iterable[object] | None = None,
        headers: Iterable[object] | None = None,
    ) -> None:
        row = list_argument("values", values)
        key_row = row_argument("keys", keys, len(row))
        header_row = row_argument("headers", headers, len(row))
        rows: tuple[bytes, list[int]] | None = None
        # Headers are Maps, so records with headers are encoded one by one.
        if header_row is None:
            rows = _packed(row, stamp_ms, key_row)
        self.rows: Final = rows
        self.entries: Final = _entries(row, stamp_ms, key_row, header_row) if rows is None else []
        self.count: Final = len(row)

    def append_to(self, log: Vector) -> Vector:
        """Return `log` with these records at its end."""
        rows = self.rows
        return log.extend(self.entries) if rows is None else log.extend_encoded(rows[0], rows[1])


def list_argument(name: str, column: object) -> list[object]:
    """Return an argument as a list. Raises: TypeMismatch: it is not an iterable."""
    if not isinstance(column, Iterable):
        raise TypeMismatch(f"`{name}` is not an iterable: {type(column).__name__}")
    return list(column)


def row_argument(name: str, column: Iterable[object] | None, count: int) -> list[object] | None:
    """Return an argument that has one element for each of `count` values as a list, or None.

    Raises: TypeMismatch: it is not an iterable. UsageError: it has another length.
    """
    if column is None:
        return None
    row = list_argument(name, column)
    # "Appends all or none in one update": a short row must not shift keys to other values.
    if len(row) != count:
        raise UsageError(
            f"`{name}` has {len(row)} elements for {count} values; give one for each value, or None"
        )
    return row


def _packed(
    values: list[object], stamp_ms: int, keys: list[object] | None
) -> tuple[bytes, list[int]] | None:
    """Return the encodings of the records; None if a record is too large or not scalar."""
    tail: bytes = encode(stamp_ms) + _NIL
    head: bytes = _ENTRY_HEAD + _NIL
    out = BytesWriter()
    ends: list[int] = []
    begin: i64 = 0
    for position in range(len(values)):
        # Of these types alone; `to_cell` converts a value of a subclass first.
        if keys is None:
            out.write(head)
        else:
            key = keys[position]
            out.write(_ENTRY_HEAD)
            if type(key) not in _PLAIN or not put_plain(out, key):
                return None
        value = values[position]
        if type(value) not in _PLAIN or not put_plain(out, value):
            return None
        out.write(tail)
        end: i64 = len(out)
        # A record of more than EMBEDDED_BYTES_MAX is a separate cell, which only `_entries` makes.
        if end - begin > EMBEDDED_BYTES_MAX:
            return None
        ends.append(end)
        begin = end
    return out.getvalue(), ends


def _entries(
    values: list[object], stamp_ms: int, keys: list[object] | None, headers: list[object] | None
) -> list[Vector]:
    entries: list[Vector] = []
    for position in range(len(values)):
        key = None if keys is None else to_cell(keys[position])
        header = None if headers is None else checked_headers(headers[position])
        entries.append(make_entry(key, to_cell(values[position]), stamp_ms, header))
    return entries


def checked_headers(headers: object) -> Value:
    """Return `headers` as a Map cell, or None.

    Raises: TypeMismatch: `headers` is neither a mapping nor None.
    """
    if headers is None:
        return None
    cell = to_cell(headers)
    if not isinstance(cell, Map):
        raise TypeMismatch(f"`headers` is not a mapping or None: {type(headers).__name__}")
    return cell


def entry_key(entry: Value) -> Value:
    """Return the key of a record; None if it has no key or `entry` is not a record."""
    return entry[_KEY] if isinstance(entry, Vector) and is_entry(entry) else None


def entry_value(entry: Value) -> Value:
    """Return the value of a record; None if `entry` is not a record."""
    return entry[_VALUE] if isinstance(entry, Vector) and is_entry(entry) else None


def entry_values(log: Vector, start: int, stop: int) -> list[Value]:
    """Return the values of `log[start:stop]`; None for each element that is not a record."""
    values, stamps = columns(log, [_VALUE, _STAMP], _ENTRY_COUNT, start, stop)
    return [values[i] if is_long(stamps[i]) else None for i in range(len(values))]


def entry_stamp_ms(entry: Value) -> int | None:
    """Return a record's time in Unix milliseconds; None if `entry` is not a record."""
    if not isinstance(entry, Vector) or not is_entry(entry):
        return None
    stamp = entry[_STAMP]
    return stamp if isinstance(stamp, int) else None


def entry_headers(entry: Value) -> Map:
    """Return the headers of a record; an empty Map if it has none or `entry` is not a record."""
    headers = entry[_HEADERS] if isinstance(entry, Vector) and is_entry(entry) else None
    return headers if isinstance(headers, Map) else EMPTY_MAP
