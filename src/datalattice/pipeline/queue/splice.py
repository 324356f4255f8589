"""Records in the form that the leaves of a log contain, made without an object for each.

A task concatenates them. The driver divides them into leaves, because leaf boundaries depend on the
number of records that the log already has. The module is compiled, and uses neither Spark nor
Arrow.

Source: docs/queue.md.
"""

from __future__ import annotations

from typing import Final

from datalattice.cells import CellList, Vector, as_kid, cell_as_kid, encode, to_cell
from datalattice.limits import CHUNK_BYTES, EMBEDDED_BYTES_MAX

ENCODED_NIL: Final = encode(None)
ENTRY_HEAD: Final = encode(Vector.of([None] * 4))[: -4 * len(ENCODED_NIL)]
"""The bytes before the four elements of a record."""

_PLAIN: Final = frozenset({int, float, bool})


def spliced_records(
    keys: list[object] | None,
    values: list[object],
    stamps: list[int],
    headers: list[object] | None,
    cells: CellList,
) -> list[bytes]:
    """Return records `[key value stamp headers]` in the form that a leaf contains.

    That is the encoding, or a reference if the encoding is long. Referenced cells are appended to
    `cells`.
    Shapes: all columns are as long as `values`; keys and headers may be None in a row.
    """
    rows: list[bytes] = []
    for position in range(len(values)):
        key = ENCODED_NIL if keys is None else _kid(keys[position], cells)
        tail = ENCODED_NIL if headers is None else _kid(headers[position], cells)
        value = _kid(values[position], cells)
        row: bytes = ENTRY_HEAD + key + value + encode(stamps[position]) + tail
        rows.append(cell_as_kid(row, cells))
    return rows


def _kid(given: object, cells: CellList) -> bytes:
    """Return a value in the form that its parent contains: its encoding, or a reference.

    Cells below it are appended to `cells`, and its own cell if it is referenced.
    """
    if given is None:
        return ENCODED_NIL
    kind = type(given)
    if kind in _PLAIN:
        value = to_cell(given)
        encoding = encode(value)
        # An Integer may have any size; a long one is a cell of its own.
        if len(encoding) <= EMBEDDED_BYTES_MAX:
            return encoding
    elif (isinstance(given, bytes) and len(given) <= CHUNK_BYTES) or (
        # A character has at most four bytes of UTF-8, so the text is one cell.
        isinstance(given, str) and len(given) <= CHUNK_BYTES // 4
    ):
        encoding = encode(given)
        return cell_as_kid(encoding, cells)
    return as_kid(to_cell(given), cells)


def encoded_records(
    keys: list[bytes] | None, values: list[bytes], stamp_ms: int, cells: CellList
) -> list[bytes]:
    """Return records with one time from encoded values; otherwise as `spliced_records`.

    keys: in the form that a record contains. Cells below keys and values are already in `cells`.
    """
    tail: bytes = encode(stamp_ms) + ENCODED_NIL
    rows: list[bytes] = []
    for position in range(len(values)):
        key = ENCODED_NIL if keys is None else keys[position]
        rows.append(
            cell_as_kid(ENTRY_HEAD + key + cell_as_kid(values[position], cells) + tail, cells)
        )
    return rows
