"""Columns: fields of many vectors are what reading each row gives, however the rows are held."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from datalattice.cells import (
    Value,
    Vector,
    columns,
    decode_message,
    encode_message,
    missing,
    same,
    to_cell,
)
from datalattice.cells.message import decode
from datalattice.errors import MissingData
from datalattice.testing.strategies import values

FIELDS = [1, 2]
WIDTH = 4


def plainly(rows: Sequence[Value], field: int) -> list[Value]:
    """Return a column the slow way."""
    return [row[field] if isinstance(row, Vector) and len(row) >= WIDTH else None for row in rows]


def rows() -> st.SearchStrategy[list[Value]]:
    row = st.lists(values(), max_size=6).map(to_cell)
    long = st.integers(17, 40).map(lambda n: Vector.of(range(n)))
    some = st.lists(st.one_of(row, row, long, values()), max_size=20)
    return st.tuples(some, st.integers(0, 20)).map(lambda pair: pair[0] * pair[1])


@given(rows(), st.integers(0, 400), st.integers(0, 400), st.booleans())
def test_a_column_is_the_field_of_every_row(
    items: list[Value], start: int, stop: int, closed: bool
) -> None:
    vector = Vector.of(items)
    if closed:
        again = decode_message(encode_message(vector))
        assert isinstance(again, Vector)
        vector = again
    for column, field in zip(columns(vector, FIELDS, WIDTH, start, stop), FIELDS, strict=True):
        expected = plainly(items[start:stop], field)
        assert len(column) == len(expected)
        assert all(map(same, column, expected))
    assert len(columns(vector, [0], 1)[0]) == len(items)


def test_a_field_that_is_not_here_is_named() -> None:
    row = Vector.of([0, "x" * 300, 2, 3])
    bare = decode(b"\x80\x02" + row.encoding + row.encoding)
    assert isinstance(bare, Vector)
    assert columns(bare, [2], WIDTH) == [[2, 2]]
    with pytest.raises(MissingData) as caught:
        columns(bare, FIELDS, WIDTH)
    assert list(caught.value.hashes) == missing(bare)
