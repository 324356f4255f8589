"""Row maps: what comes out of columns is what the maps of the rows are, cell by cell."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pytest

pa: Any = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from datalattice.cells import Map, encode, novelty, to_cell  # noqa: E402 - needs Arrow
from datalattice.errors import UsageError  # noqa: E402 - needs Arrow
from datalattice.limits import CHUNK_BYTES, MAP_LEAF_MAX  # noqa: E402 - needs Arrow
from datalattice.pipeline.arrow_rows import MapPlan, column_values, maps_of  # noqa: E402 - needs Arrow

PLAN = MapPlan(None, (), drop_nulls=False)
DROPPING = MapPlan(None, (), drop_nulls=True)
SIZES = (0, 1, 127, 128, 136, 137, 138, 139, 140, 141, CHUNK_BYTES, CHUNK_BYTES + 1, 70_000)
NUMBERS = [
    sign * ((1 << bits) + more)
    for bits in (0, 6, 7, 8, 15, 16, 23, 24, 31, 32, 55, 56, 62)
    for more in (-1, 0, 1)
    for sign in (1, -1)
]
NAN = float("nan")
COLUMNS: dict[str, Any] = {
    "int64": pa.array([0, (1 << 63) - 1, -(1 << 63), None, *NUMBERS], pa.int64()),
    "int8": pa.array([0, 1, -1, 127, -128, None], pa.int8()),
    "uint64": pa.array([0, (1 << 64) - 1, None], pa.uint64()),
    "double": pa.array([0.0, -0.0, 1.5, NAN, float("inf"), -float("inf"), 5e-324, None]),
    "float": pa.array([0.1, NAN, None], pa.float32()),
    "bool": pa.array([True, False, None]),
    "text": pa.array([*("x" * size for size in SIZES), *("ü" * size for size in SIZES), None]),
    "blob": pa.array([*(b"x" * size for size in SIZES), None], pa.binary()),
    "wide text": pa.array(["x", "ü" * 200, None], pa.large_string()),
    "date": pa.array([dt.date(2013, 1, 2), None, dt.date(1, 1, 1)]),
    "time": pa.array([dt.datetime(2013, 1, 2, 5, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
    "whole": pa.array([decimal.Decimal(7), None], pa.decimal128(30, 0)),
    "decimal": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2)),
    "list": pa.array([[1, None], [], None, list(range(100))], pa.list_(pa.int64())),
    "struct": pa.array([{"q": "x" * 200}, None], pa.struct([("q", pa.string())])),
    "map": pa.array([[("a", 1.5)], None], pa.map_(pa.string(), pa.float64())),
    "nothing": pa.nulls(3),
}


def expected(rows: Any, plan: MapPlan) -> list[Map]:
    """Return the map of each row, made one by one."""
    names = rows.schema.names
    columns = [column_values(rows, name, plan) for name in names]
    return [
        Map.of([p for p in zip(names, row, strict=True) if not plan.drop_nulls or p[1] is not None])
        for row in zip(*columns, strict=True)
    ]


def check(rows: Any, plan: MapPlan = PLAN) -> None:
    cells: list[tuple[bytes, bytes]] = []
    made = maps_of(rows, plan, cells)
    wanted = expected(rows, plan)
    assert made == [encode(value) for value in wanted]
    below = [part for value in wanted for part in novelty(value) if part[2] is not value]
    assert {hash: encoding for hash, encoding, _ in below} == dict(cells)


def together(count: int) -> Any:
    """Return rows that have all columns, each entry of the longest beside some of the others."""
    rows = max(map(len, COLUMNS.values()))
    names = list(COLUMNS)[:count]
    columns = [COLUMNS[name] for name in names]
    taken = [
        column.take(pa.array([row % len(column) for row in range(rows)])) for column in columns
    ]
    return pa.record_batch(taken, names)


@pytest.mark.parametrize("name", list(COLUMNS))
@pytest.mark.parametrize("plan", [PLAN, DROPPING])
def test_a_column_of_each_type(name: str, plan: MapPlan) -> None:
    rows = pa.record_batch([COLUMNS[name]], ["a column"])
    check(rows, plan)
    check(rows.slice(1), plan)  # buffers that begin elsewhere
    check(rows.slice(2, 1), plan)


@pytest.mark.parametrize("count", [2, MAP_LEAF_MAX, MAP_LEAF_MAX + 1, len(COLUMNS)])
@pytest.mark.parametrize("plan", [PLAN, DROPPING])
def test_many_columns(count: int, plan: MapPlan) -> None:
    check(together(count), plan)


def test_so_many_columns_that_maps_are_trees_of_trees() -> None:
    wide = {f"column {i}": pa.array([i, i << 20, None]) for i in range(300)}
    check(pa.record_batch(wide))
    narrow = {f"column {i}": pa.array([i, i + 1]) for i in range(300)}
    check(pa.record_batch(narrow), DROPPING)


def test_names_that_are_cells_of_their_own() -> None:
    check(pa.record_batch({"n" * 200: pa.array([1, 2]), "x": pa.array([None, "y"])}))
    check(pa.record_batch({"n" * 137: pa.array([1, 2]), "": pa.array([None, "y"])}))


def test_names_that_have_cells_below_them() -> None:
    for size in (CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES):
        check(pa.record_batch({"ü" * (size // 2) + "n": pa.array([1, None])}), DROPPING)
        check(pa.record_batch({"n" * size: pa.array([1, None]), "x": pa.array([2, 3])}))


def test_numbers_are_made_of_their_types() -> None:
    rows = pa.record_batch({"a": pa.array([1.0]), "b": pa.array([1]), "c": pa.array([True])})
    cells: list[tuple[bytes, bytes]] = []
    assert maps_of(rows, PLAN, cells) == [encode(to_cell({"a": 1.0, "b": 1, "c": True}))]
    assert not cells


def test_an_entry_that_no_value_can_hold_is_named() -> None:
    rows = pa.record_batch({"took": pa.array([dt.timedelta(1)], pa.duration("us"))})
    with pytest.raises(UsageError, match="column took: "):
        maps_of(rows, PLAN, [])
