"""Entries: one record of a queue, a Vector of key, value, time and headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final

from datalattice.cells import EMPTY_MAP, Map, Value, Vector, to_cell
from datalattice.errors import TypeMismatch, UsageError
from datalattice.lattice import is_long

KEY: Final = 0
VALUE: Final = 1
STAMP: Final = 2
HEADERS: Final = 3
ENTRY_COUNT: Final = 4


def is_entry(value: Value) -> bool:
    """Return whether `value` is a record: a Vector of at least four whose third position is a time.

    Source: CAD040 "Entry"; spec/queue.md section 1.
    """
    return isinstance(value, Vector) and len(value) >= ENTRY_COUNT and is_long(value[STAMP])


def make_entry(key: Value, value: Value, stamp_ms: int, headers: Value = None) -> Vector:
    """Return the record `[key value stamp_ms headers]`; all four are cells already.

    Source: CAD040 "Entry"; spec/queue.md section 1.
    """
    return Vector.of((key, value, stamp_ms, headers))


def make_entries(
    values: Iterable[object],
    stamp_ms: int,
    keys: Iterable[object] | None = None,
    headers: Iterable[object] | None = None,
) -> list[Vector]:
    """Return one record for each of `values`, all with the same time.

    `keys` and `headers` run beside `values` and are as long; without them every key or header is
    nil.

    Units:  stamp_ms: Unix milliseconds.
    Raises: UsageError: a nil value, or `keys` or `headers` of another length.
    Source: CAD040 "offer"; spec/queue.md section 3.
    """
    if keys is None and headers is None:
        # The hot path of bulk appends: bytes and strings are cells as they are.
        of = Vector.of
        return [of((None, checked_value(value), stamp_ms, None)) for value in values]
    return list(_keyed_entries(list(values), stamp_ms, keys, headers))


def _keyed_entries(
    values: Sequence[object],
    stamp_ms: int,
    keys: Iterable[object] | None,
    headers: Iterable[object] | None,
) -> Iterator[Vector]:
    count = len(values)
    key_row = _row("keys", keys, count)
    header_row = _row("headers", headers, count)
    for key, value, header in zip(key_row, values, header_row, strict=False):
        yield make_entry(to_cell(key), checked_value(value), stamp_ms, checked_headers(header))


def _row(name: str, column: Iterable[object] | None, count: int) -> Iterable[object]:
    if column is None:
        return repeat(None, count)
    row = list(column)
    if len(row) != count:
        raise UsageError(
            f"{name}: {len(row)} given for {count} values; give one for each value or none"
        )
    return row


def checked_value(value: object) -> Value:
    """Return `value` as a cell.

    Raises: UsageError: nil, which a record cannot carry.
    Source: CAD040 "offer"; spec/queue.md section 3.
    """
    if value is None:
        raise UsageError(
            "a record's value is nil; offer any other value (nil means: no record here)"
        )
    return to_cell(value)


def checked_headers(headers: object) -> Value:
    """Return `headers` as a Map cell, or nil.

    Raises: TypeMismatch: neither a mapping nor nil.
    Source: CAD040 "Entry"; spec/queue.md section 1.
    """
    if headers is None:
        return None
    cell = to_cell(headers)
    if not isinstance(cell, Map):
        raise TypeMismatch(f"headers are a mapping or nil, not {type(headers).__name__}")
    return cell


def entry_key(entry: Value) -> Value:
    """Return the key of a record; nil when there is none, or no record.

    Source: CAD040 "Entry"; spec/queue.md section 1.
    """
    return entry[KEY] if isinstance(entry, Vector) and is_entry(entry) else None


def entry_value(entry: Value) -> Value:
    """Return the value of a record; nil when it is no record.

    Source: CAD040 "Entry"; spec/queue.md section 1.
    """
    return entry[VALUE] if isinstance(entry, Vector) and is_entry(entry) else None


def entry_stamp_ms(entry: Value) -> int | None:
    """Return when a record was appended, in Unix milliseconds; None when it is no record.

    Source: CAD040 "Entry"; spec/queue.md section 1.
    """
    if not isinstance(entry, Vector) or not is_entry(entry):
        return None
    stamp = entry[STAMP]
    return stamp if isinstance(stamp, int) else None


def entry_headers(entry: Value) -> Map:
    """Return the headers of a record; the empty Map when there are none, or no record.

    Source: CAD040 "Entry"; spec/queue.md section 1.
    """
    headers = entry[HEADERS] if isinstance(entry, Vector) and is_entry(entry) else None
    return headers if isinstance(headers, Map) else EMPTY_MAP
