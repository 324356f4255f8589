"""Value types: what a typed handle stores, what it reads back, and what it refuses by its path."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict
from uuid import UUID

import numpy as np
import pandas as pd
import pytest

from datalattice.apps.valuetypes import UNTYPED, value_type
from datalattice.cells import Index, Map, Value, Vector, decode, encode, same, to_cell
from datalattice.errors import TypeMismatch, UsageError


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Size(enum.IntEnum):
    BIG = 3


class Way(enum.StrEnum):
    NORTH = "north"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: int = 7


class Address(TypedDict):
    city: str
    post: NotRequired[int]


@dataclass
class Order:
    id: UUID
    total: Decimal
    at: datetime
    lines: list[tuple[str, int]] = field(default_factory=list)
    note: str | None = None
    parent: Order | None = None


@dataclass
class Even:
    number: int
    half: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("not even")
        self.half = self.number // 2


Name = NewType("Name", str)
ID = UUID(int=5)
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
EAST = datetime(2026, 1, 2, 5, 4, 5, tzinfo=timezone(timedelta(hours=2)))
ORDER = Order(ID, Decimal("9.90"), NOW, [("tea", 2)], parent=Order(ID, Decimal(0), EAST))

ROUND_TRIPS: list[tuple[Any, object, Value]] = [
    (type(None), None, None),
    (bool, True, True),
    (int, -(2**80), -(2**80)),
    (float, 1.5, 1.5),
    (str, "x" * 9_000, "x" * 9_000),
    (bytes, b"y" * 9_000, b"y" * 9_000),
    (bytearray, bytearray(b"z"), b"z"),
    (memoryview, memoryview(b"z"), b"z"),
    (Any, to_cell([1]), Vector.of([1])),
    (list, to_cell([1]).to_list(), Vector.of([1])),  # type: ignore[attr-defined]
    (list[int], [1, 2], Vector.of([1, 2])),
    (Sequence[int], [1, 2], Vector.of([1, 2])),
    (tuple[int, ...], (1, 2), Vector.of([1, 2])),
    (tuple[int, Decimal], (1, Decimal("2.50")), Vector.of([1, "2.50"])),
    (tuple[()], (), Vector.of([])),
    (dict[str, date], {"a": date(2026, 1, 2)}, Map.of({"a": "2026-01-02"})),
    (Mapping[int, str], {1: "a"}, Map.of({1: "a"})),
    (set[UUID], {ID}, to_cell({ID.bytes})),
    (frozenset[int], frozenset({1}), to_cell({1})),
    (Colour, Colour.RED, "red"),
    (Colour, Colour.PAIR, Vector.of([1, 2])),
    (Size, Size.BIG, 3),
    (Way, Way.NORTH, "north"),
    (Right, Right.READ | Right.WRITE, 3),
    (np.int16, np.int16(5), 5),
    (np.float32, np.float32(0.1), float(np.float32(0.1))),
    (np.bool_, np.bool_(True), True),
    (Decimal, Decimal("1E+3"), "1E+3"),
    (UUID, ID, ID.bytes),
    (datetime, NOW, "2026-01-02T03:04:05.678901+00:00"),
    (datetime, EAST, "2026-01-02T03:04:05.000000+00:00"),
    (datetime, pd.Timestamp(NOW), "2026-01-02T03:04:05.678901+00:00"),
    (date, date(2026, 1, 2), "2026-01-02"),
    (timedelta, timedelta(days=-1, microseconds=3), -86_399_999_997),
    (int | None, None, None),
    (Decimal | None, Decimal(1), "1"),
    (int | str, "a", "a"),
    (int | str | None, None, None),
    (Literal["a", 1], 1, 1),
    (Annotated[int, "count"], 1, 1),
    (Name, "n", "n"),
    (Point, Point(1, 2), Map.of({"x": 1, "y": 2})),
    (Address, {"city": "Oslo"}, Map.of({"city": "Oslo"})),
    (Address, {"city": "Oslo", "post": 1}, Map.of({"city": "Oslo", "post": 1})),
    (Even, Even(4), Map.of({"number": 4})),
    (
        Order,
        ORDER,
        Map.of(
            {
                "id": ID.bytes,
                "total": "9.90",
                "at": "2026-01-02T03:04:05.678901+00:00",
                "lines": [["tea", 2]],
                "note": None,
                "parent": {
                    "id": ID.bytes,
                    "total": "0",
                    "at": "2026-01-02T03:04:05.000000+00:00",
                    "lines": [],
                    "note": None,
                    "parent": None,
                },
            }
        ),
    ),
]


@pytest.mark.parametrize(("of", "value", "cell"), ROUND_TRIPS, ids=range(len(ROUND_TRIPS)))
def test_a_value_is_stored_and_read_back_as_its_type(of: Any, value: object, cell: Value) -> None:
    kind = value_type(of)
    stored = kind.to_cell(value)
    assert same(stored, cell)
    again = kind.from_cell(stored)
    assert again == value
    assert type(again) is type(value) or isinstance(value, pd.Timestamp)


def test_fields_that_are_missing_take_their_defaults_and_unknown_ones_are_ignored() -> None:
    stored = Map.of({"id": ID.bytes, "total": "1", "at": "2026-01-02T00:00:00Z", "colour": 1})
    order = value_type(Order).from_cell(stored)
    assert order == Order(ID, Decimal(1), datetime(2026, 1, 2, tzinfo=UTC), [], None)
    assert value_type(Order).from_cell(Index.of(stored.entries())) == order
    assert value_type(Point).from_cell(Map.of({"x": 1})) == Point(1, 7)


WRITES: list[tuple[Any, object, tuple[object, ...], str]] = [
    (int, "1", (), "str is not int"),
    (int, 1.5, (), "float is not int"),
    (float, 2**60 + 1, (), "int is not float"),
    (str, b"a", (), "bytes is not str"),
    (list[int], {1}, (), "set is not list"),
    (list[int], [1, "a"], (1,), "str is not int"),
    (tuple[int, str], (1,), (), "tuple is not"),
    (tuple[int, str], (1, 2), (1,), "int is not str"),
    (dict[str, int], {"a": "b"}, ("a",), "str is not int"),
    (datetime, NOW.replace(tzinfo=None), (), "without a time zone"),
    (datetime, pd.NaT, (), "store None"),
    (datetime, pd.Timestamp("2026-01-02T00:00:00.000000001Z"), (), "nanoseconds"),
    (timedelta, pd.Timedelta(1, "ns"), (), "nanoseconds"),
    (date, NOW, (), "datetime is not date"),
    (Colour, "red", (), "str is not Colour"),
    (UUID, str(ID), (), "str is not UUID"),
    (int | str, 1.5, (), "float is not"),
    (Literal["a"], "b", (), "str is not"),
    (Address, {"post": 1}, ("city",), "the field of Address is missing"),
    (Point, (1, 2), (), "tuple is not Point"),
    (Order, Order(ID, Decimal(1), NOW, [("a", 1), ("b", "c")]), ("lines", 1, 1), "str is not int"),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("of", "value", "path", "text"), WRITES, ids=range(len(WRITES)))
def test_a_value_of_another_type_is_refused_with_its_path(
    of: Any, value: object, path: tuple[object, ...], text: str
) -> None:
    with pytest.raises(TypeMismatch, match=text) as caught:
        value_type(of).to_cell(value)
    assert caught.value.path == path
    with pytest.raises(TypeMismatch) as caught:
        value_type(of).to_cells([value])
    assert caught.value.path == (0, *path)


READS: list[tuple[Any, object, tuple[object, ...], str]] = [
    (int, True, (), "True does not read as int"),
    (list[int], [1, 1.5], (1,), "1.5 does not read as int"),
    (list[int], 1, (), "does not read as list"),
    (tuple[int, int], [1], (), "does not read as tuple"),
    (dict[str, int], {"a": None}, ("a",), "None does not read as int"),
    (dict[str, int], [1], (), "does not read as dict"),
    (datetime, "2026-01-02T00:00:00", (), "it has no time zone"),
    (datetime, 5, (), "5 does not read as datetime"),
    (date, "yesterday", (), "does not read as date"),
    (timedelta, 2**80, (), "does not read as timedelta"),
    (timedelta, "1", (), "does not read as timedelta"),
    (Decimal, "one", (), "does not read as Decimal"),
    (Decimal, 1.5, (), "does not read as Decimal"),
    (UUID, b"short", (), "does not read as UUID"),
    (Colour, "blue", (), "'blue' does not read as Colour"),
    (Right, 64, (), "does not read as Right"),
    (np.int8, 300, (), "300 does not read as int8"),
    (bytearray, "a", (), "does not read as bytearray"),
    (int | str, None, (), "None does not read as"),
    (Literal["a"], "b", (), "does not read as"),
    (type(None), 1, (), "1 does not read as None"),
    (Order, {"id": ID.bytes}, ("total",), "Order has no default for it"),
    (Point, {"x": "a"}, ("x",), "'a' does not read as int"),
    (Point, [1, 2], (), "does not read as Point"),
    (Even, {"number": 3}, (), "not even"),
]


@pytest.mark.parametrize(("of", "stored", "path", "text"), READS, ids=range(len(READS)))
def test_a_stored_value_that_does_not_fit_is_refused_with_its_path(
    of: Any, stored: object, path: tuple[object, ...], text: str
) -> None:
    cell = decode(encode(to_cell(stored)))
    with pytest.raises(TypeMismatch, match=text) as caught:
        value_type(of).from_cell(cell)
    assert caught.value.path == path


class Odd(enum.Enum):
    ODD = 1j


class Local(NamedTuple):
    what: Nowhere  # type: ignore[name-defined]  # noqa: F821 - a type that is not known


@pytest.mark.parametrize(
    "of",
    [complex, list[complex], object | int, Odd, list[int] | set[int], Local, [1], "Order"],
    ids=str,
)
def test_a_type_without_a_cell_kind_is_refused(of: Any) -> None:
    with pytest.raises(UsageError, match=r"`of`|ODD|not known"):
        value_type(of)


def test_pandas_words_for_no_value_are_none_where_the_type_allows_it() -> None:
    kind = value_type(datetime | None)  # type: ignore[arg-type]
    assert kind.to_cell(pd.NaT) is None
    assert value_type(int | None).to_cell(pd.NA) is None  # type: ignore[arg-type]


def test_an_untyped_handle_converts_as_to_cell() -> None:
    assert same(UNTYPED.to_cell([1]), Vector.of([1]))
    assert same(UNTYPED.from_cell(Vector.of([1])), Vector.of([1]))
    assert repr(value_type(Order)) == "ValueType(Order)"
    assert value_type(Order) is value_type(Order)
