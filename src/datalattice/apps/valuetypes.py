"""Value types: Python types whose values a typed handle stores as cells and reads back.

A type is compiled once into a pair of functions. Values of the types of JSON are stored as by
`to_cell`; the others as this table says.

    Enum                  its value
    Decimal, date         String
    UUID                  Blob of 16 bytes
    aware datetime        String: ISO 8601 in UTC, with microseconds
    timedelta             Integer of microseconds
    dataclass, NamedTuple, TypedDict    Map of the fields by name

Source: docs/cells.md "Python types".
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, cast

from datalattice.apps.scalartypes import (
    SCALARS,
    UNCONVERTED_TYPES,
    Conversions,
    enum_pair,
    is_none,
    literal_pair,
    misfit,
    numpy_pair,
    plain_pair,
    plain_python,
    type_name,
    unreadable,
)
from datalattice.cells import (
    Index,
    List,
    Map,
    Set,
    Value,
    Vector,
    to_cell,
)
from datalattice.errors import TypeMismatch, UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    T = typing.TypeVar("T")
"""The type of a handle's values; Any without `of=`."""


_SEQUENCES: Final = (list, Sequence)
_MAPPINGS: Final = (dict, Mapping)
_SETS: Final = (set, AbstractSet)
_WRAPPERS: Final = {typing.Annotated, typing.Required, typing.NotRequired, typing.Final}


class ValueType(Generic[T]):
    """A Python type of values, with the conversions to and from cells; `of` is None without one."""

    __slots__ = ("from_cell", "of", "to_cell")

    to_cell: Callable[[T], Value]
    """Return the cell that stores a value.

    Raises: TypeMismatch: the value, or the part of it at the error's `path`, has another type.
    """

    from_cell: Callable[[Value], T]
    """Return the value that a cell stores; unknown fields are ignored.

    Raises: TypeMismatch: the cell, or the part of it at the error's `path`, does not fit.
    """

    def __init__(self, of: Any, pair: Conversions) -> None:
        self.of: Final = of
        # The functions themselves, not methods: a read or a write of a value calls one.
        self.to_cell, self.from_cell = pair

    def to_cells(self, values: Iterable[T]) -> list[Value]:
        """Return `to_cell` of each; the position is the first step of an error's path."""
        return _each(values, self.to_cell)

    def from_rows(self, rows: list[Any], names: Iterable[object]) -> list[T]:
        """Return the values that rows of a table are: each is read as if it were stored.

        `names` has a name for each row, which is the first step of an error's path.
        """
        if self.of is None:
            return rows
        made: list[T] = []
        for name, row in zip(names, rows, strict=True):
            try:
                made.append(self.from_cell(to_cell(row)))
            except TypeMismatch as error:
                raise error.below(name) from None
        return made

    def __repr__(self) -> str:
        return f"ValueType({type_name(self.of)})"


def value_type(of: type[T] | None) -> ValueType[T]:
    """Return the value type of a Python type; without one `UNTYPED`.

    Raises: UsageError: a type in it has no cell kind.
    """
    # "Values are cells, converted as \"Python values\" says" where no type is named.
    if of is None:
        return UNTYPED
    try:
        return cast("ValueType[T]", _value_type(cast("Hashable", of)))
    except TypeError as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"`of` is not a type: {type_name(of)}") from error


@lru_cache(maxsize=256)
def _value_type(of: Hashable) -> ValueType[Any]:
    return ValueType(of, _Compiler().pair(of))


def _itself(cell: Value) -> Value:
    return cell


UNTYPED: Final[ValueType[Any]] = ValueType(None, (to_cell, _itself))
"""The value type of a handle without `of=`: values are given as to `to_cell`, and read as cells."""


def _each(values: Iterable[Any], convert: Callable[[Any], Any]) -> list[Any]:
    made: list[Any] = []
    try:
        for value in values:
            made.append(convert(value))
    except TypeMismatch as error:
        raise error.below(len(made)) from None  # the position leads to the value at fault
    return made


class _Compiler:
    """Makes the pair of a type and of the types inside it.

    _open: the pairs of the records that are being compiled, by type; empty until the pair is made.
    """

    def __init__(self) -> None:
        self._open: dict[object, list[Conversions]] = {}

    def pair(self, of: Any) -> Conversions:
        """Return the pair of functions of a type."""
        of = _plain_form(of)
        if of is Any or of is object:  # no type: as without `of=`
            return to_cell, _itself
        origin, given = typing.get_origin(of) or of, typing.get_args(of)
        if origin in {typing.Union, types.UnionType}:
            return self._union(of, given)
        if origin is typing.Literal:
            return literal_pair(of, given)
        if origin is tuple:
            return self._tuple(of, given)
        if origin in _SEQUENCES:
            return self._items(of, list, Vector, (Vector, List), given)
        if origin in _SETS or origin is frozenset:
            return self._items(of, set if origin in _SETS else frozenset, Set, (Set,), given)
        if origin in _MAPPINGS:
            return self._mapping(of, given)
        if isinstance(origin, type):
            return self._class(origin)
        raise UsageError(f"`of` has no cell kind: {type_name(of)}; it accepts {_ACCEPTED}")

    def _class(self, of: type) -> Conversions:
        if of in UNCONVERTED_TYPES:
            return plain_pair(of)
        if of in SCALARS:
            return SCALARS[of]
        if issubclass(of, Enum):
            return enum_pair(of)
        # Not imported here: a caller who names a numpy type has imported it.
        numpy = sys.modules.get("numpy")
        if numpy is not None and issubclass(of, numpy.generic):
            return numpy_pair(of)
        if typing.is_typeddict(of) or is_dataclass(of) or _is_named_tuple(of):
            return self._record(of)
        raise UsageError(f"`of` has no cell kind: {type_name(of)}; it accepts {_ACCEPTED}")

    # --- containers ---

    def _union(self, of: Any, members: tuple[Any, ...]) -> Conversions:
        others = [one for one in members if one is not type(None)]
        # "`X | None` | nil, or as X; pandas' NA and NaT count as None" (docs/cells.md "Python
        # types").
        if len(others) == 1:
            inner_to, inner_from = self.pair(others[0])
            return (
                lambda value: None if is_none(value) else inner_to(value),
                lambda cell: None if cell is None else inner_from(cell),
            )
        # The stored kind decides how a union is read, so its members need distinct kinds.
        if not all(one in UNCONVERTED_TYPES for one in others):
            raise UsageError(
                f"`of` has a union that the stored value cannot tell apart: {of}; accepted are "
                "unions with None, and of bool, int, float, str and bytes"
            )
        is_optional = len(others) < len(members)

        def checked(value: object) -> Value:
            if is_optional and is_none(value):
                return None
            cell = to_cell(value)
            # The kind as it reads back: what is written must be read as the same type.
            if type(plain_python(cell)) not in others:
                raise misfit(value, of)
            return cell

        def read(cell: Value) -> object:
            found = plain_python(cell)
            if type(found) in others or (found is None and is_optional):
                return found
            raise unreadable(cell, of)

        return checked, read

    def _tuple(self, of: Any, given: tuple[Any, ...]) -> Conversions:
        if not given or given[1:] == (Ellipsis,):
            return self._items(of, tuple, Vector, (Vector, List), given[:1])
        # `tuple[()]` has one argument, the empty tuple.
        pairs = [self.pair(one) for one in given if one != ()]
        count = len(pairs)

        def encode(value: object) -> Value:
            # Lists, too: JSON knows no tuples.
            if not isinstance(value, (tuple, list)) or len(value) != count:
                raise misfit(value, of)
            return Vector.of(_each(zip(pairs, value, strict=True), lambda one: one[0][0](one[1])))

        def decode(cell: Value) -> object:
            if not isinstance(cell, (Vector, List)) or len(cell) != count:
                raise unreadable(cell, of)
            return tuple(_each(zip(pairs, cell, strict=True), lambda one: one[0][1](one[1])))

        return encode, decode

    def _items(
        self, of: Any, made: Any, cell_kind: Any, read_kinds: tuple[Any, ...], given: Sequence[Any]
    ) -> Conversions:
        inner_to, inner_from = self.pair(given[0] if given else Any)
        # A set has no positions, so its errors name the set.
        accepted = (set, frozenset) if cell_kind is Set else (list, tuple)

        def encode(value: object) -> Value:
            if not isinstance(value, accepted):
                raise misfit(value, of)
            return cast("Value", cell_kind.of(_each(cast("Iterable[Any]", value), inner_to)))

        def decode(cell: Value) -> object:
            if not isinstance(cell, read_kinds):
                raise unreadable(cell, of)
            return made(_each(cast("Iterable[Any]", cell), inner_from))

        return encode, decode

    def _mapping(self, of: Any, given: tuple[Any, ...]) -> Conversions:
        key_to, key_from = self.pair(given[0] if given else Any)
        value_to, value_from = self.pair(given[1] if given else Any)

        def encode(value: object) -> Value:
            if not isinstance(value, Mapping):
                raise misfit(value, of)
            return Map.of(_entries(value.items(), key_to, value_to))

        def decode(cell: Value) -> object:
            if not isinstance(cell, (Map, Index)):
                raise unreadable(cell, of)
            return dict(_entries(cell.entries(), key_from, value_from))

        return encode, decode

    def _record(self, of: Any) -> Conversions:
        known = self._open.get(of)
        if known is not None:  # the class contains itself: its pair is read when it is used
            return _later(known)
        holder = self._open[of] = []
        try:
            hints = typing.get_type_hints(of, include_extras=True)
        except NameError as error:
            raise UsageError(
                f"the types of {type_name(of)}'s fields are not known: {error}; define or import "
                "them at the top level of its module, outside `if TYPE_CHECKING`"
            ) from error
        names, defaults = _fields(of, hints)
        pairs = {name: self.pair(hints[name]) for name in names}
        holder.append(_record_pair(of, pairs, defaults))
        return holder[0]


def _later(holder: list[Conversions]) -> Conversions:
    def encode(value: object) -> Value:
        return holder[0][0](value)

    def decode(cell: Value) -> object:
        return holder[0][1](cell)

    return encode, decode


def _always(value: object) -> Callable[[], Any]:
    return lambda: value


def _entries(
    entries: Iterable[tuple[Any, Any]], key: Callable[[Any], Any], value: Callable[[Any], Any]
) -> list[tuple[Any, Any]]:
    made: list[tuple[Any, Any]] = []
    for name, held in entries:
        try:
            made.append((key(name), value(held)))
        except TypeMismatch as error:
            raise error.below(name) from None
    return made


def _record_pair(
    of: Any, pairs: Mapping[str, Conversions], defaults: Mapping[str, Callable[[], Any]]
) -> Conversions:
    is_mapping = typing.is_typeddict(of)

    def encode(value: object) -> Value:
        if not isinstance(value, Mapping if is_mapping else of):
            # A dataclass of another class with the same fields is another type.
            raise misfit(value, of)
        made: list[tuple[str, Value]] = []
        for name, (to_value, _) in pairs.items():
            if is_mapping and name not in cast("Mapping[str, Any]", value):
                if name in defaults:
                    continue
                raise TypeMismatch(f"the field of {type_name(of)} is missing", (name,))
            held = value[name] if isinstance(value, Mapping) else getattr(value, name)
            try:
                made.append((name, to_value(held)))
            except TypeMismatch as error:
                raise error.below(name) from None
        return Map.of(made)

    def decode(cell: Value) -> object:
        if not isinstance(cell, (Map, Index)):
            raise unreadable(cell, of)
        found: dict[str, Any] = {}
        for name, (_, from_value) in pairs.items():
            if name in cell:
                try:
                    found[name] = from_value(cell[name])
                except TypeMismatch as error:
                    raise error.below(name) from None
            elif name not in defaults:
                # "Unknown fields are ignored, and missing ones need a default" (docs/cells.md
                # "Python types"): so a field may be added to a class whose values are stored
                # already.
                raise TypeMismatch(
                    f"the field is missing, and {type_name(of)} has no default for it", (name,)
                )
            elif not is_mapping:
                found[name] = defaults[name]()
        try:
            return of(**found)  # its own checks run when a stored value is read, too
        except (TypeError, ValueError) as error:  # from `__post_init__`
            raise unreadable(cell, of, error) from error

    return encode, decode


def _fields(of: Any, hints: Mapping[str, Any]) -> tuple[list[str], dict[str, Callable[[], Any]]]:
    """Return the names of the fields that are stored, and what makes their default values."""
    if typing.is_typeddict(of):
        # Python 3.11 leaves `NotRequired` unread where annotations are strings.
        marks = {name: typing.get_origin(hint) for name, hint in hints.items()}
        return list(hints), {
            name: _always(None)
            for name, mark in marks.items()
            if mark is typing.NotRequired
            or (name in of.__optional_keys__ and mark is not typing.Required)
        }
    if _is_named_tuple(of):
        return list(of._fields), {name: _always(one) for name, one in of._field_defaults.items()}
    defaults: dict[str, Callable[[], Any]] = {}
    # Fields that the constructor does not take are computed.
    stored = [one for one in fields(of) if one.init]
    for one in stored:
        if one.default_factory is not MISSING:
            defaults[one.name] = one.default_factory
        elif one.default is not MISSING:
            defaults[one.name] = _always(one.default)
    return [one.name for one in stored], defaults


def _plain_form(of: Any) -> Any:
    """Return a type without the wrappers that say nothing about its values."""
    while True:
        if of is None:
            return type(None)
        if isinstance(of, typing.NewType):
            of = of.__supertype__
        elif typing.get_origin(of) in _WRAPPERS:
            of = typing.get_args(of)[0]
        else:
            return of


def _is_named_tuple(of: type) -> bool:
    return issubclass(of, tuple) and hasattr(of, "_fields")


_ACCEPTED: Final = (
    "dataclasses, NamedTuple, TypedDict, Enum, Decimal, UUID, datetime, date, timedelta, "
    "None, bool, int, float, str, bytes, and list, tuple, dict, set and Optional of these"
)
