"""Splice: records as they stand in the leaves of a log, made without an object for each.

A task lays them end to end, and the driver puts them into leaves: it alone knows how many records
are there already, and so where leaves begin. Pure and compiled: no Spark, no Arrow.
"""

from __future__ import annotations

from typing import Final

from datalattice.cells import encode, novelty, to_cell, value_hash
from datalattice.crypto import sha3_256
from datalattice.limits import CHUNK_BYTES, EMBEDDED_BYTES_MAX

CellList = list[tuple[bytes, bytes]]
"""Cells as (hash, encoding), those below a cell before it."""

_ENTRY_HEAD: Final = b"\x80\x04"  # a Vector of four
_NIL: Final = b"\x00"
_REF: Final = b"\x20"
_PLAIN: Final = frozenset({int, float, bool})


def records(
    keys: list[object] | None,
    values: list[object],
    stamps: list[int],
    headers: list[object] | None,
    cells: CellList,
) -> list[bytes]:
    """Return records `[key value stamp headers]`, each as it stands in the leaf of a log.

    What stands in a leaf is the encoding, or the hash of what is longer; the cells meant by hashes
    are added to `cells`.
    Shapes: all columns are as long as `values`; keys and headers may be None in a row.
    """
    rows: list[bytes] = []
    for position in range(len(values)):
        key = _NIL if keys is None else as_kid(keys[position], cells)
        tail = _NIL if headers is None else as_kid(headers[position], cells)
        value = as_kid(values[position], cells)
        row: bytes = _ENTRY_HEAD + key + value + encode(stamps[position]) + tail
        if len(row) > EMBEDDED_BYTES_MAX:
            hash = sha3_256(row)
            cells.append((hash, row))
            row = _REF + hash
        rows.append(row)
    return rows


def as_kid(given: object, cells: CellList) -> bytes:
    """Return a value as it stands in the cell that holds it: its encoding, or its hash.

    Cells below it are added to `cells`, and its own where its hash stands for it.
    """
    if given is None:
        return _NIL
    kind = type(given)
    if kind in _PLAIN:
        value = to_cell(given)
        encoding = encode(value)
        if len(encoding) <= EMBEDDED_BYTES_MAX:
            return encoding
    elif (isinstance(given, bytes) and len(given) <= CHUNK_BYTES) or (
        isinstance(given, str) and len(given) <= CHUNK_BYTES // 4
    ):
        encoding = encode(given)  # all of it, whatever characters there are
        if len(encoding) <= EMBEDDED_BYTES_MAX:
            return encoding
        hash = sha3_256(encoding)
        cells.append((hash, encoding))
        return _REF + hash
    value = to_cell(given)
    for hash, encoding, _ in novelty(value):
        cells.append((hash, encoding))
    encoding = encode(value)
    return encoding if len(encoding) <= EMBEDDED_BYTES_MAX else _REF + value_hash(value)
