"""Convert: Python objects to values and back.

An object is converted only if reading it back gives an equal one. Any other object is refused, by
an error with its position in the given value and the call that converts it.

Source: CAD002; docs/cells.md "Python values".
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Set as AbstractSet
from datetime import datetime
from typing import Final

from datalattice.cells.blobs import Blob, Text
from datalattice.cells.cell import Cell, Value, to_value, to_value_hook, to_values
from datalattice.cells.index import Index
from datalattice.cells.maps import Map, Set
from datalattice.cells.tagged import Record, Signed
from datalattice.cells.vectors import List, Vector
from datalattice.errors import TypeMismatch, UsageError
from datalattice.limits import TEXT_DEPTH_MAX

ACCEPTED: Final = (
    "None, bool, int, float, str, bytes, list, tuple, dict, set, numpy scalars and the cell classes"
)

_ADVICE: Final[dict[str, str]] = {
    "enum.Enum": ".value",
    "decimal.Decimal": "str(value)",
    "uuid.UUID": ".bytes",
    "datetime.datetime": ".isoformat()",
    "datetime.date": ".isoformat()",
    "datetime.time": ".isoformat()",
    "datetime.timedelta": ".total_seconds()",
    "numpy.ndarray": ".tolist()",
    "numpy.generic": "str(value)",
    "numpy.floating": "float(value)",
    "array.array": ".tolist()",
    "pandas.core.series.Series": ".tolist()",
    "pandas.core.indexes.base.Index": ".tolist()",
    "pandas.core.frame.DataFrame": '.to_dict("records")',
    "pandas._libs.missing.NAType": "None",
    "pandas._libs.tslibs.nattype.NaTType": "None",
    "builtins.range": "list(value)",
    "collections.deque": "list(value)",
    "builtins.complex": "[value.real, value.imag]",
    "fractions.Fraction": "str(value)",
    "pathlib.PurePath": "str(value)",
}
"""What to store instead of an object that is refused, by its class or a base of it."""

_NAMED_TYPES: Final = frozenset(
    {
        "enum.Enum",
        "decimal.Decimal",
        "uuid.UUID",
        "datetime.datetime",
        "datetime.date",
        "datetime.timedelta",
    }
)
"""Refused classes that a handle with `of=` converts."""


class _FromPython:
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

    def step(self) -> list[object]:
        """Return the subscript of the next part; none for a key, or an element of a set."""
        count = len(self.made)
        if isinstance(self.source, (list, tuple)):
            return [count]
        return [self.made[-1]] if count % 2 and isinstance(self.source, Mapping) else []


def _is_container(value: object) -> bool:
    kind = type(value)
    if kind is str or kind is int or value is None or kind is float or kind is bytes:
        return False  # common types first: isinstance of an abstract class is slow
    if isinstance(value, tuple):
        return not hasattr(kind, "_fields")  # "NamedTuple: refused", since its names would be lost
    return isinstance(value, (list, Mapping, AbstractSet)) and not isinstance(value, Cell)


def _convert(value: object) -> Value:
    """Return the value of a Python container or of an instance of a plain type's subclass.

    Open containers are kept in a list, so nesting uses no stack.
    """
    if not _is_container(value):
        return _plain(value)
    opened = [_FromPython(value)]
    try:
        while True:
            top = opened[-1]
            for item in top.items:
                # A container inside is opened next; the rest of this one waits.
                if _is_container(item):
                    # "Down to 500 levels" (docs/cells.md "Python values"); this also ends a list
                    # that contains itself.
                    if len(opened) >= TEXT_DEPTH_MAX:
                        raise UsageError(
                            f"Python containers are converted down to {TEXT_DEPTH_MAX} levels"
                        )
                    opened.append(_FromPython(item))
                    break
                top.made.append(to_value(item))
            else:
                done = opened.pop().value()
                if not opened:
                    return done
                opened[-1].made.append(done)
    except TypeMismatch as error:
        steps: list[object] = []
        for part in opened:
            steps += part.step()
        raise error.below(*steps) from None


def _plain(value: object) -> Value:
    """Return the plain value of a subclass instance (an IntEnum) or of a numpy scalar."""
    # A subclass such as IntEnum is stored as "the plain value" (docs/cells.md "Python values").
    if isinstance(value, int):
        return to_value(int(value))
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    # numpy is not imported for this: a program that passes its scalars has imported it.
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.integer, numpy.floating, numpy.bool_)):
        item: object = value.item()
        if isinstance(item, (bool, int, float)):  # a longdouble would lose digits
            return item
    raise TypeMismatch(refusal(value), ())


def refusal(value: object) -> str:
    """Return the reason why an object is not converted, and what to store instead."""
    kind = type(value)
    reason = f"{kind.__module__}.{kind.__qualname__} has no cell kind; "
    typed = f', or name a type: queue("orders", of={kind.__name__})'
    if hasattr(kind, "__dataclass_fields__"):
        return f"{reason}store dataclasses.asdict(value){typed}"
    if isinstance(value, tuple):
        return f"{reason}store ._asdict(){typed}"
    for base in kind.__mro__:
        name = f"{base.__module__}.{base.__qualname__}"
        advice = _ADVICE.get(name)
        if advice is None:
            continue
        # A named type (`of=`) converts the others by itself.
        if name not in _NAMED_TYPES:
            return f"{reason}store {advice}"
        # A time without a zone names no moment, so a handle refuses it too.
        if isinstance(value, datetime) and value.utcoffset() is None:
            return f"{reason}store .isoformat(), or give it a time zone and name a type with of="
        return f'{reason}store {advice}, or name a type: queue("orders", of=Order)'
    # An iterator can be read once: a failed write could not be repeated.
    if isinstance(value, Iterator):
        return f"{reason}store list(value)"
    return f"{reason}accepted are {ACCEPTED}"


def to_cell(value: object) -> Value:
    """Return `value` as a lattice value: dict to Map, list and tuple to Vector, set to Set.

    Values are returned as they are. Instances of subclasses of int, float, str and bytes, numpy
    scalars, bytearray and memoryview become the plain value.
    Raises: TypeMismatch: `value`, or its part at the error's `path`, has no counterpart.
            UsageError: containers nested more than 500 levels.
    """
    return to_value(value)


def to_cells(values: Iterable[object]) -> list[Value]:
    """Return `to_cell` of each; the position is the first step of an error's path."""
    return to_values(values)


class _ToPython:
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
    whose keys a dict or set cannot distinguish. `json.dumps(value, default=to_python)` writes
    containers of JSON's types; `to_json` writes every value.

    Raises: MissingData: a cell of `value` is missing.
    """
    value = _unsigned(value)
    if not isinstance(value, (Vector, List, Record, Map, Index)):
        return _python_leaf(value)
    opened = [_ToPython(value)]
    while True:
        top = opened[-1]
        for item in top.items:
            inner = _unsigned(item)
            if isinstance(inner, (Vector, List, Record, Map, Index)):
                opened.append(_ToPython(inner))
                break
            top.made.append(_python_leaf(inner))
        else:
            done = opened.pop().python()
            if not opened:
                return done
            opened[-1].made.append(done)


def _unsigned(value: Value) -> Value:
    # A signed value may hold another one.
    while isinstance(value, Signed):
        value = value.value
    return value


def _python_leaf(value: Value) -> object:
    if isinstance(value, Set):
        items = [_plain_key(item) for item in value]
        # "If a dict or set could not distinguish the keys of a container, the container stays a
        # cell" (docs/cells.md "Python values").
        return set(items) if len(set(items)) == len(items) else value
    return _plain_key(value)


def _plain_key(key: Value) -> Value:
    return bytes(key) if isinstance(key, Blob) else str(key) if isinstance(key, Text) else key


to_value_hook[0] = _convert
