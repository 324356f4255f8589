"""Convert: Python objects to values and back."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from datalattice.cells.blobs import Blob, Text
from datalattice.cells.cell import Value, admit, admit_hook, not_a_value
from datalattice.cells.index import Index
from datalattice.cells.tagged import Record, Signed
from datalattice.cells.trie import Map, Set
from datalattice.cells.vectors import List, Vector
from datalattice.errors import TypeMismatch, UsageError
from datalattice.limits import TEXT_DEPTH_MAX


def _convert(value: object, depth: int = 0) -> Value:
    """Return a value made from a Python container or from a subclass of a plain type."""
    if depth > TEXT_DEPTH_MAX:
        raise UsageError(f"Python containers are converted down to {TEXT_DEPTH_MAX} levels")
    if isinstance(value, (list, tuple)):
        return Vector.of([_held(item, depth) for item in value])
    if isinstance(value, Mapping):
        return Map.of([(_held(key, depth), _held(item, depth)) for key, item in value.items()])
    if isinstance(value, AbstractSet):
        return Set.of([_held(item, depth) for item in value])
    # Subclasses of plain types (an IntEnum, a numpy float64) count as what they are made of.
    if isinstance(value, int):
        return admit(int(value))
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeMismatch(not_a_value(value))


def _held(value: object, depth: int) -> Value:
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return _convert(value, depth + 1)
    return admit(value)


def to_cell(value: object) -> Value:
    """Return `value` as a lattice value: dict to Map, list and tuple to Vector, set to Set; values as they are.

    Raises: TypeMismatch: it, or something inside it, has no counterpart.
    Source: CAD002.
    """
    return admit(value)


def to_python(value: Value) -> object:
    """Return the nearest plain Python object: Map and Index to dict, Vector, List and Record to list, Set to set, long texts to str.

    Keywords, symbols and other scalars stay; so do containers that a dict or set cannot tell apart or hash (they come as their cells).
    Raises: MissingData: a part of it is not here.
    Source: CAD002.
    """
    if isinstance(value, (Vector, List, Record)):
        return [to_python(item) for item in value]
    if isinstance(value, (Map, Index)):
        pairs = [(_plain_key(key), to_python(item)) for key, item in value.entries()]
        made = dict(pairs)
        if len(made) != len(pairs):  # True, 1 and 1.0 are one key to Python and three to us
            return value
        return made
    if isinstance(value, Set):
        items = [_plain_key(item) for item in value]
        return set(items) if len(set(items)) == len(items) else value
    if isinstance(value, Blob):
        return bytes(value)
    if isinstance(value, Text):
        return str(value)
    if isinstance(value, Signed):
        return to_python(value.value)
    return value


def _plain_key(key: Value) -> Value:
    return bytes(key) if isinstance(key, Blob) else str(key) if isinstance(key, Text) else key


admit_hook[0] = _convert
