"""Convert: Python objects to values and back.

Source: CAD002; docs/cells.md "Python values".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from datalattice.cells.blobs import Blob, Text
from datalattice.cells.cell import Cell, Value, admit, admit_hook, not_a_value
from datalattice.cells.index import Index
from datalattice.cells.maps import Map, Set
from datalattice.cells.tagged import Record, Signed
from datalattice.cells.vectors import List, Vector
from datalattice.errors import TypeMismatch, UsageError
from datalattice.limits import TEXT_DEPTH_MAX


class _Made:
    """A Python container during conversion to a value; a mapping yields keys and values in turn."""

    __slots__ = ("items", "made", "source")

    def __init__(self, source: object) -> None:
        self.source = source
        self.made: list[Value] = []
        self.items: Iterator[object]
        if isinstance(source, Mapping):
            self.items = iter([part for entry in source.items() for part in entry])
        else:
            assert isinstance(source, (list, tuple, AbstractSet))
            self.items = iter(source)

    def value(self) -> Value:
        """Return the finished container."""
        if isinstance(self.source, (list, tuple)):
            return Vector.of(self.made)
        if isinstance(self.source, Mapping):
            return Map.of(zip(self.made[::2], self.made[1::2], strict=True))
        return Set.of(self.made)


def _is_container(value: object) -> bool:
    kind = type(value)
    if kind is str or kind is int or value is None or kind is float or kind is bytes:
        return False  # common types first: isinstance of an abstract class is slow
    return isinstance(value, (list, tuple, Mapping, AbstractSet)) and not isinstance(value, Cell)


def _convert(value: object) -> Value:
    """Return the value of a Python container or of an instance of a plain type's subclass.

    Open containers are kept in a list, so nesting uses no stack.
    """
    if not _is_container(value):
        return _plain(value)
    opened = [_Made(value)]
    while True:
        top = opened[-1]
        for item in top.items:
            if _is_container(item):
                # "Down to 500 levels" (docs/cells.md "Python values"); this also ends a list that
                # contains itself.
                if len(opened) >= TEXT_DEPTH_MAX:
                    raise UsageError(
                        f"Python containers are converted down to {TEXT_DEPTH_MAX} levels"
                    )
                opened.append(_Made(item))
                break
            top.made.append(admit(item))
        else:
            done = opened.pop().value()
            if not opened:
                return done
            opened[-1].made.append(done)


def _plain(value: object) -> Value:
    """Return the plain value of a subclass instance (an IntEnum, a numpy float64)."""
    if isinstance(value, int):
        return admit(int(value))
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeMismatch(not_a_value(value))


def to_cell(value: object) -> Value:
    """Return `value` as a lattice value: dict to Map, list and tuple to Vector, set to Set.

    Values are returned as they are.
    Raises: TypeMismatch: it, or a part of it, has no counterpart. UsageError: containers nested
            more than 500 levels.
    """
    return admit(value)


class _Plain:
    """A value during conversion to a Python container."""

    __slots__ = ("items", "made", "value")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.made: list[object] = []
        self.items: Iterator[Value]
        if isinstance(value, (Map, Index)):
            self.items = value.values()
        else:
            assert isinstance(value, (Vector, List, Record))
            self.items = iter(value)

    def python(self) -> object:
        """Return the finished container."""
        if not isinstance(self.value, (Map, Index)):
            return self.made
        keys = [_plain_key(key) for key in self.value]
        made = dict(zip(keys, self.made, strict=True))
        # True, 1 and 1.0 are one key of a dict, but three keys of a Map.
        return made if len(made) == len(keys) else self.value


def to_python(value: Value) -> object:
    """Return the nearest plain Python object.

    Map and Index become dict; Vector, List and Record list; Set set; long texts and blobs str and
    bytes; a signed value its content. Keywords, symbols and other scalars stay. So does a container
    whose keys a dict or set cannot distinguish.

    Raises: MissingData: a part of it is missing.
    """
    value = _unsigned(value)
    if not isinstance(value, (Vector, List, Record, Map, Index)):
        return _python_leaf(value)
    opened = [_Plain(value)]
    while True:
        top = opened[-1]
        for item in top.items:
            inner = _unsigned(item)
            if isinstance(inner, (Vector, List, Record, Map, Index)):
                opened.append(_Plain(inner))
                break
            top.made.append(_python_leaf(inner))
        else:
            done = opened.pop().python()
            if not opened:
                return done
            opened[-1].made.append(done)


def _unsigned(value: Value) -> Value:
    while isinstance(value, Signed):
        value = value.value
    return value


def _python_leaf(value: Value) -> object:
    if isinstance(value, Set):
        items = [_plain_key(item) for item in value]
        return set(items) if len(set(items)) == len(items) else value
    return _plain_key(value)


def _plain_key(key: Value) -> Value:
    return bytes(key) if isinstance(key, Blob) else str(key) if isinstance(key, Text) else key


admit_hook[0] = _convert
