"""JSON laws: the marked text of any value reads back as exactly that value."""

from __future__ import annotations

import io
import json
import sys

import pytest
from hypothesis import given, strategies as st

from datalattice.cells import (
    Map,
    Value,
    encode,
    from_json,
    from_text,
    read_json,
    to_json,
    to_text,
    write_json,
)
from datalattice.cells.jsontree import STACK_MAX
from datalattice.errors import BadFormat
from datalattice.testing import strategies


def written(value: Value, *, marked: bool = True) -> str:
    out = io.StringIO()
    assert write_json(value, out, marked=marked) == len(out.getvalue())
    return out.getvalue()


class Slow:
    """A source that gives little at a time, so that everything is cut somewhere."""

    def __init__(self, data: str | bytes, count: int) -> None:
        self._file = io.BytesIO(data) if isinstance(data, bytes) else io.StringIO(data)
        self._count = count

    def read(self, _count: int) -> str | bytes:
        return self._file.read(self._count)


@given(strategies.values())
def test_marked_text_reads_back_as_the_same_value(value: Value) -> None:
    text = written(value)
    json.loads(text)  # and any reader of JSON can read it
    assert encode(read_json(io.StringIO(text))) == encode(value)


@given(strategies.values(max_leaves=4), st.integers(1, 40))
def test_where_the_text_is_cut_makes_no_difference(value: Value, count: int) -> None:
    text = written(value)
    assert encode(read_json(Slow(text, count))) == encode(value)
    assert encode(read_json(Slow(text.encode(), count))) == encode(value)


def by_steps(text: str, *, marked: bool = True) -> Value:
    """Read a text as one too long to be looked at whole: with such a stack nothing is."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(STACK_MAX + 1)
    try:
        return read_json(io.StringIO(text), marked=marked)
    finally:
        sys.setrecursionlimit(before)


@given(strategies.values())
def test_reading_step_by_step_makes_no_difference(value: Value) -> None:
    text = written(value)
    assert encode(by_steps(text)) == encode(value)
    plain = written(value, marked=False)
    try:
        whole = from_json(plain)
    except BadFormat:  # a lone half of a character pair
        with pytest.raises(BadFormat):
            by_steps(plain, marked=False)
    else:
        assert encode(by_steps(plain, marked=False)) == encode(whole)


@given(strategies.values(max_leaves=4), strategies.map_keys())
def test_any_value_may_be_a_key(value: Value, key: Value) -> None:
    whole = Map.of([(key, value), (value, key)])
    assert encode(read_json(io.StringIO(written(whole)))) == encode(whole)


@given(strategies.values())
def test_plain_text_is_that_of_the_mapping(value: Value) -> None:
    assert written(value, marked=False) == to_json(value)


@given(strategies.json_values())
def test_plain_text_reads_as_the_mapping_does(value: Value) -> None:
    text = to_json(value)
    assert encode(read_json(io.StringIO(text), marked=False)) == encode(from_json(text))


@given(strategies.json_values())
def test_the_printed_form_of_json_values_reads_back_as_the_same_value(value: Value) -> None:
    assert encode(from_text(to_text(value))) == encode(value)
