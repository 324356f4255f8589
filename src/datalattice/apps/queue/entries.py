"""Entries: one record of a queue, a Vector of key, value, time and headers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from datalattice.cells import EMPTY_MAP, Map, Value, Vector, columns, encode, to_cell
from datalattice.errors import TypeMismatch, UsageError
from datalattice.lattice import is_long
from datalattice.limits import EMBEDDED_BYTES_MAX

KEY: Final = 0
VALUE: Final = 1
STAMP: Final = 2
HEADERS: Final = 3
ENTRY_COUNT: Final = 4

PACKED_MIN: Final = 32
"""Fewest records for which a batch is written without an object for each."""

_ENTRY_HEAD: Final = b"\x80\x04"  # a Vector of four
_NIL: Final = b"\x00"
_PLAIN: Final = frozenset({bytes, str, int, float, bool, type(None)})


def is_entry(value: Value) -> bool:
    """Return whether `value` is a record: a Vector of at least four whose third position is a time.

    Source: CAD040 "Entry"; docs/queue.md "Entry".
    """
    return isinstance(value, Vector) and len(value) >= ENTRY_COUNT and is_long(value[STAMP])


def make_entry(key: Value, value: Value, stamp_ms: int, headers: Value = None) -> Vector:
    """Return the record `[key value stamp_ms headers]`; all four are cells already.

    Source: CAD040 "Entry"; docs/queue.md "Entry".
    """
    return Vector.of((key, value, stamp_ms, headers))


class Batch:
    """Records to be appended in one go, all with the same time.

    Shapes: `rows` holds encodings of records when they are many, small and plain; otherwise
            `entries` holds the records.
    Source: CAD040 "offer"; docs/queue.md "Appending".
    """

    def __init__(
        self,
        values: Iterable[object],
        stamp_ms: int,
        keys: Iterable[object] | None = None,
        headers: Iterable[object] | None = None,
    ) -> None:
        listed = _listed("values", values)
        key_row = _row("keys", keys, len(listed))
        header_row = _row("headers", headers, len(listed))
        rows: list[bytes] | None = None
        if len(listed) >= PACKED_MIN and header_row is None:
            rows = _packed(listed, stamp_ms, key_row)
        self.rows: Final = rows
        self.entries: Final = (
            _entries(listed, stamp_ms, key_row, header_row) if rows is None else []
        )
        self.count: Final = len(listed)

    def append_to(self, log: Vector) -> Vector:
        """Return `log` with these records at its end.

        Source: docs/queue.md "Appending".
        """
        return log.extend(self.entries) if self.rows is None else log.extend_encoded(self.rows)


def _listed(name: str, column: object) -> list[object]:
    if not isinstance(column, Iterable):
        raise TypeMismatch(f"{name} are an iterable, got {type(column).__name__}")
    return list(column)


def _row(name: str, column: Iterable[object] | None, count: int) -> list[object] | None:
    if column is None:
        return None
    row = _listed(name, column)
    if len(row) != count:
        raise UsageError(
            f"{name}: {len(row)} given for {count} values; give one for each value or none"
        )
    return row


def _packed(values: list[object], stamp_ms: int, keys: list[object] | None) -> list[bytes] | None:
    """Return the encodings of the records; None when one is not small and plain."""
    tail: bytes = encode(stamp_ms) + _NIL
    key: bytes = _NIL
    rows: list[bytes] = []
    for position in range(len(values)):
        value = values[position]
        if not _is_small(value):
            return None
        if keys is not None:
            given = keys[position]
            if given is not None and not _is_small(given):
                return None
            key = encode(given)
        row: bytes = _ENTRY_HEAD + key + encode(value) + tail
        # A longer record is a branch of its own.
        if len(row) > EMBEDDED_BYTES_MAX:
            return None
        rows.append(row)
    return rows


def _is_small(value: object) -> bool:
    """Return whether a value is plain and its encoding stands for all of it.

    A long blob's does not, though it may be short: below it there are chunks.
    """
    if type(value) not in _PLAIN:
        return False
    return not isinstance(value, (bytes, str)) or len(value) <= EMBEDDED_BYTES_MAX


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
    """Return `headers` as a Map cell, or nil.

    Raises: TypeMismatch: neither a mapping nor nil.
    Source: CAD040 "Entry"; docs/queue.md "Entry".
    """
    if headers is None:
        return None
    cell = to_cell(headers)
    if not isinstance(cell, Map):
        raise TypeMismatch(f"headers are a mapping or nil, not {type(headers).__name__}")
    return cell


def entry_key(entry: Value) -> Value:
    """Return the key of a record; nil when there is none, or no record.

    Source: CAD040 "Entry"; docs/queue.md "Entry".
    """
    return entry[KEY] if isinstance(entry, Vector) and is_entry(entry) else None


def entry_value(entry: Value) -> Value:
    """Return the value of a record; nil when it is no record.

    Source: CAD040 "Entry"; docs/queue.md "Entry".
    """
    return entry[VALUE] if isinstance(entry, Vector) and is_entry(entry) else None


def entry_values(log: Vector, start: int, stop: int) -> list[Value]:
    """Return the values of the records in `log[start:stop]`, nil for each that is no record.

    Source: CAD040 "range"; docs/queue.md "Reading".
    """
    values, stamps = columns(log, [VALUE, STAMP], ENTRY_COUNT, start, stop)
    return [values[i] if is_long(stamps[i]) else None for i in range(len(values))]


def entry_stamp_ms(entry: Value) -> int | None:
    """Return when a record was appended, in Unix milliseconds; None when it is no record.

    Source: CAD040 "Entry"; docs/queue.md "Entry".
    """
    if not isinstance(entry, Vector) or not is_entry(entry):
        return None
    stamp = entry[STAMP]
    return stamp if isinstance(stamp, int) else None


def entry_headers(entry: Value) -> Map:
    """Return the headers of a record; the empty Map when there are none, or no record.

    Source: CAD040 "Entry"; docs/queue.md "Entry".
    """
    headers = entry[HEADERS] if isinstance(entry, Vector) and is_entry(entry) else None
    return headers if isinstance(headers, Map) else EMPTY_MAP
