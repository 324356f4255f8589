"""Conversion of Python objects: what is converted, and what is refused with which advice."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import numpy as np
import pandas as pd
import pytest

from datalattice.apps.kv import Database
from datalattice.cells import (
    Index,
    List,
    Map,
    Set,
    Value,
    Vector,
    decode,
    decode_message,
    encode,
    encode_message,
    same,
    to_cell,
    to_cells,
    to_json,
    to_python,
)
from datalattice.errors import TypeMismatch


class Size(enum.IntEnum):
    BIG = 3


class Way(enum.StrEnum):
    NORTH = "north"


class Colour(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int


class Row(TypedDict):
    x: int


@dataclasses.dataclass
class Order:
    x: int


ROWS: list[tuple[object, Value]] = [
    (None, None),
    (True, True),
    (1, 1),
    (-(2**100), -(2**100)),
    (1.5, 1.5),
    ("text", "text"),
    (b"bytes", b"bytes"),
    (bytearray(b"b"), b"b"),
    (memoryview(b"b"), b"b"),
    ([1, "a"], Vector.of([1, "a"])),
    ((1, "a"), Vector.of([1, "a"])),
    ({"a": [1]}, Map.of([("a", Vector.of([1]))])),
    (Row(x=1), Map.of([("x", 1)])),
    ({1, 2}, Set.of([1, 2])),
    (frozenset({1, 2}), Set.of([1, 2])),
    (Size.BIG, 3),
    (Way.NORTH, "north"),
    (np.int64(5), 5),
    (np.uint8(5), 5),
    (np.float64(0.5), 0.5),
    (np.float32(0.1), float(np.float32(0.1))),
    (np.float16(0.5), 0.5),
    (np.bool_(True), True),
    (np.str_("a"), "a"),
    (np.bytes_(b"a"), b"a"),
]


@pytest.mark.parametrize(("given", "cell"), ROWS, ids=range(len(ROWS)))
def test_a_converted_object_reads_back_as_something_equal(given: object, cell: Value) -> None:
    made = to_cell(given)
    assert same(made, cell)
    again = decode(encode(made))
    if isinstance(given, (tuple, frozenset)):  # which have hashes of their own
        assert to_python(again) == to_python(made)
    else:
        assert again == given
    assert same(to_cell([given]), Vector.of([cell]))


def test_nan_reads_back_as_nan() -> None:
    for nan in (math.nan, np.float32("nan"), np.float64("nan")):
        made = decode(encode(to_cell(nan)))
        assert isinstance(made, float)
        assert math.isnan(made)


REFUSED: list[tuple[object, str]] = [
    (Colour.RED, r"\.value, or name a type"),
    (decimal.Decimal(1), r"str\(value\), or name a type"),
    (UUID(int=1), r"\.bytes, or name a type"),
    (
        dt.datetime.now(dt.UTC),
        r"datetime\.datetime has no cell kind; store \.isoformat\(\), or name a type: queue\(",
    ),
    (dt.datetime.now(dt.UTC).replace(tzinfo=None), "or give it a time zone"),
    (pd.Timestamp("2026-01-02"), "or give it a time zone"),
    (dt.date(2026, 1, 2), r"\.isoformat\(\), or name a type"),
    (dt.time(1), r"store \.isoformat\(\)$"),
    (dt.timedelta(1), r"\.total_seconds\(\), or name a type"),
    (Order(1), r"dataclasses\.asdict\(value\), or name a type: queue\(\"orders\", of=Order\)"),
    (Point(1), r"\._asdict\(\), or name a type: queue\(\"orders\", of=Point\)"),
    (np.array([1]), r"store \.tolist\(\)$"),
    (np.longdouble(1), r"store float\(value\)$"),
    (np.datetime64("2026-01-02"), r"store str\(value\)$"),
    (array.array("i"), r"store \.tolist\(\)$"),
    (pd.NA, "store None$"),
    (pd.NaT, "store None$"),
    (pd.Series([1]), r"store \.tolist\(\)$"),
    (pd.Index([1]), r"store \.tolist\(\)$"),
    (pd.DataFrame(), r'store \.to_dict\("records"\)$'),
    (iter([1]), r"store list\(value\)$"),
    ((one for one in [1]), r"store list\(value\)$"),
    (range(3), r"store list\(value\)$"),
    (collections.deque(), r"store list\(value\)$"),
    (1j, r"store \[value\.real, value\.imag\]$"),
    (fractions.Fraction(1), r"store str\(value\)$"),
    (pathlib.Path("a"), r"store str\(value\)$"),
    (object(), "accepted are None, bool"),
    (print, "accepted are None, bool"),
]


@pytest.mark.parametrize(("given", "advice"), REFUSED, ids=range(len(REFUSED)))
def test_a_refused_object_is_named_with_its_path_and_the_call_that_converts_it(
    given: object, advice: str
) -> None:
    for value, path in (
        (given, ()),
        ([1, given], (1,)),
        ({"items": [1, 2, ({"when": given},)]}, ("items", 2, 0, "when")),
        ({3: {True: given}}, (3, True)),
    ):
        with pytest.raises(TypeMismatch, match=advice) as caught:
            to_cell(value)
        assert caught.value.path == path


def test_the_text_has_the_path_as_subscripts() -> None:
    with pytest.raises(TypeMismatch) as caught:
        to_cell({"items": [0, 0, 0, {"when": 1j, "x" * 99: 1}]})
    assert str(caught.value).startswith('value["items"][3]["when"]: builtins.complex has no')
    with pytest.raises(TypeMismatch) as caught:
        to_cell({"x" * 1_000: 1j})
    assert len(str(caught.value)) < 200


def test_a_refused_key_or_element_is_named_by_its_container() -> None:
    with pytest.raises(TypeMismatch) as caught:
        to_cell({"a": [{1j: 1}]})
    assert caught.value.path == ("a", 0)
    with pytest.raises(TypeMismatch) as caught:
        to_cell({"a": {1j}})
    assert caught.value.path == ("a",)


BAD = {"when": 1j}
BATCHES: list[tuple[Callable[[], object], tuple[object, ...]]] = [
    (lambda: to_cells([1, BAD]), (1, "when")),
    (lambda: Vector.of([1, BAD]), (1, "when")),
    (lambda: Vector([1, BAD]), (1, "when")),
    (lambda: List.of([1, BAD]), (1, "when")),
    (lambda: Vector.of([1]).extend([2, 3, BAD]), (2, "when")),
    (lambda: Map.of({"a": 1, "b": BAD}), ("b", "when")),
    (lambda: Index.of({"a": 1, "b": BAD}), ("b", "when")),
    (lambda: Database.create().set_many({"a": 1, "b": BAD}), ("b", "when")),
    (lambda: Database.create().update({"b": BAD}), ("b", "when")),
    (lambda: Database.create().hset_many("h", {"f": BAD}), ("f", "when")),
    (lambda: Database.create().rpush("l", 1, BAD), (1, "when")),
    (lambda: Database.create().sadd("s", 1, BAD), (1, "when")),
]


@pytest.mark.parametrize(("batch", "path"), BATCHES, ids=range(len(BATCHES)))
def test_in_a_batch_the_path_begins_with_the_position_or_key(
    batch: Callable[[], object], path: tuple[object, ...]
) -> None:
    with pytest.raises(TypeMismatch, match=r'\["when"\]: builtins.complex') as caught:
        batch()
    assert caught.value.path == path


def test_equal_things_hash_alike() -> None:
    assert Vector.of([1, [2]]) == [1, [2]]
    assert Vector.of([1]) != (1,)
    assert Set.of([1]) == {1}
    assert Set.of([1]) != frozenset({1})
    assert Map.of({"a": 1}) == {"a": 1}
    some: list[Any] = ["x" * 5_000, b"y" * 5_000, 1, None, 1.5]
    for one in some:
        cell = decode_message(encode_message(one))
        assert cell == one
        assert hash(cell) == hash(one)


def test_json_of_cells_and_of_python_objects() -> None:
    value = to_cell({"a": [1, {"b": None}]})
    assert json.loads(json.dumps({"x": value}, default=to_python)) == {"x": {"a": [1, {"b": None}]}}
    assert to_json({"a": (1, 2)}) == '{"a":[1,2]}'
    with pytest.raises(TypeMismatch):
        to_json([1j])
