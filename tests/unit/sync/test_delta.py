"""Delta: complete, and no dearer than what differs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from datalattice.cells import Map, Value, Vector, encode, novelty, value_hash
from datalattice.sync.lattice.delta import beyond

ENOUGH = 10**9


def _cells(value: Value) -> dict[bytes, bytes]:
    return {hash: encoding for hash, encoding, _ in novelty(value)}


class Shelf:
    """Cells by hash that counts what is fetched."""

    def __init__(self, *values: Value) -> None:
        self.cells: dict[bytes, bytes] = {}
        for value in values:
            self.cells.update(_cells(value))
        self.fetched = 0

    def fetch(self, hashes: Sequence[bytes]) -> list[bytes | None]:
        self.fetched += len(hashes)
        return [self.cells.get(hash) for hash in hashes]


def _long(name: str, count: int) -> Vector:
    return Vector.of([f"{name} {number}".ljust(100) for number in range(count)])


VALUES = st.lists(
    st.one_of(
        st.integers(0, 30).map(lambda n: _long("x", n)),
        st.dictionaries(st.text("ab", max_size=3), st.text("y", max_size=400), max_size=20).map(
            Map.of
        ),
        st.integers(),
    ),
    max_size=6,
).map(Vector.of)


@given(VALUES, VALUES, VALUES)
def test_with_what_is_known_it_is_whole(one: Vector, two: Vector, value: Vector) -> None:
    shelf = Shelf(one, two, value)
    found = beyond([one, two], value, shelf.fetch, ENOUGH)
    assert found is not None
    assert found.items() <= _cells(value).items()
    assert _cells(value).keys() <= found.keys() | _cells(one).keys() | _cells(two).keys()


def test_all_of_a_value_when_nothing_is_known() -> None:
    value = _long("x", 1_000)
    assert beyond([None], value, Shelf(value).fetch, ENOUGH) == _cells(value)
    assert beyond([value], value, Shelf().fetch, ENOUGH) == {}
    assert beyond([value], 5, Shelf(value).fetch, ENOUGH) == {}


def test_what_is_shared_is_entered_on_neither_side() -> None:
    """A hub that knows one long queue of a site and tells it of a short one reads few cells."""
    long = _long("x", 20_000)
    before = Map.of({"a": long})
    after = Map.of({"a": long, "b": _long("y", 40), "c": "z" * 300})
    shelf = Shelf(before, after)
    found = beyond([before], after, shelf.fetch, ENOUGH)
    assert found is not None
    assert found.keys() == _cells(after).keys() - _cells(long).keys()
    assert shelf.fetched < 40


@pytest.mark.parametrize("count", [16, 17, 255, 256, 257, 4_095, 4_096, 4_097, 20_000])
def test_an_append_costs_a_path(count: int) -> None:
    """Also when the tree grows by a level."""
    before = Map.of({"a": _long("x", count), "b": _long("y", 5_000)})
    after = Map.of({"a": _long("x", count + 20), "b": _long("y", 5_000)})
    shelf = Shelf(before, after)
    found = beyond([before], after, shelf.fetch, ENOUGH)
    assert found is not None
    assert len(found) < 12
    assert shelf.fetched < 100
    assert _cells(after).keys() <= found.keys() | _cells(before).keys()


def test_it_ends_where_it_becomes_too_long() -> None:
    value = _long("x", 5_000)
    size = sum(map(len, _cells(value).values()))
    shelf = Shelf(value)
    assert beyond([None], value, shelf.fetch, size) is not None
    assert beyond([None], value, shelf.fetch, size - 1) is None
    shelf.fetched = 0
    assert beyond([None], value, shelf.fetch, 50_000) is None
    assert shelf.fetched <= 300


def test_what_is_known_is_read_no_further_than_the_bound() -> None:
    before, after = _long("x", 50_000), _long("y", 20)
    shelf = Shelf(before, after)
    found = beyond([before], after, shelf.fetch, 20_000)
    assert found == _cells(after)
    assert shelf.fetched < 300


def test_cells_that_are_not_here() -> None:
    before, after = _long("x", 500), _long("x", 600)
    whole = _cells(after)
    assert beyond([before], after, Shelf().fetch, ENOUGH) is None
    # Less known of the other side means that more is sent.
    found = beyond([before], after, Shelf(after).fetch, ENOUGH)
    assert found is not None
    assert found.keys() <= whole.keys()
    assert value_hash(after) in found
    assert encode(after) == found[value_hash(after)]
