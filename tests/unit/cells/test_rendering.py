"""Rendering: `repr` is short whatever the value, loads little, and never raises."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings

from datalattice.cells import (
    Address,
    Blob,
    Cell,
    Char,
    Coded,
    Extension,
    Flag,
    Index,
    Keyword,
    List,
    Map,
    NanBits,
    Record,
    Set,
    Signed,
    Symbol,
    Syntax,
    Text,
    Value,
    Vector,
    decode,
    encode,
    novelty,
    render,
    to_cell,
)
from datalattice.crypto import KeyPair
from datalattice.errors import MissingData, StoreClosed
from datalattice.testing.strategies import values

CALLS: list[object] = [
    Map({"age": 36, "name": "Ada"}),
    Vector([1, [2.5, None], "a", b"b"]),
    Vector([]),
    Set([1, "a"]),
    Set(),
    List([1, 2]),
    Index({"a": 1, "b": True}),
    Record(3, [1, 2]),
    Coded(2, 1, [3]),
    Syntax(1, Map({2: 3})),
    Keyword("foo"),
    Symbol("foo"),
    Char(65),
    Address(12),
    Extension(3, 7),
    Flag(5),
    NanBits(0x7FF8000000000001),
]


@pytest.mark.parametrize("value", CALLS, ids=range(len(CALLS)))
def test_a_small_value_prints_as_the_call_that_makes_it(value: object) -> None:
    again = eval(repr(value))
    assert again == value
    assert type(again) is type(value)
    assert str(value) == repr(value)


def test_a_large_value_prints_its_first_entries_and_the_number_of_the_others() -> None:
    assert repr(Vector(range(20_000))).endswith("14, 15, ... 19,984 more])")
    assert repr(Map({one: one for one in range(20_000)})).endswith("... 19,984 more})")
    assert repr(to_cell([[[[[1]]]]])) == "Vector([Vector([Vector([<Vector of 1>])])])"
    assert repr(Vector([1 << 300])) == "Vector([<Integer of 301 bits>])"
    assert repr(Text.of("x" * 9_000)) == f"<Text '{'x' * 79}... of 9,000 bytes>"
    assert repr(Blob.of(b"x" * 9_000)).endswith("... of 9,000 bytes>")


def test_a_signed_value_prints_its_signer() -> None:
    key = KeyPair.generate()
    assert repr(Signed.sign(key, [1])) == f"<Signed by {key.public_key.hex()[:8]}: Vector([1])>"


@given(values())
@settings(max_examples=1_000, suppress_health_check=list(HealthCheck))
def test_any_value_and_any_with_holes_prints_within_1000_characters(value: Value) -> None:
    assert len(render(value)) <= 1_000
    # Without a loader, every cell below the first is missing.
    assert len(render(decode(encode(value)))) <= 1_000


class Counting:
    """A loader that counts."""

    def __init__(self, value: Value, missing: int = 0) -> None:
        self._cells = {digest: cell for digest, cell, _value in novelty(value)}
        self._keep = {hash for at, hash in enumerate(sorted(self._cells)) if at % 7 >= missing}
        self.loads = 0

    def load(self, hash: bytes) -> Value:
        self.loads += 1
        if hash not in self._keep:
            raise MissingData([hash])
        return decode(self._cells[hash], self)


WIDE: list[Value] = [
    Vector.of(["x" * 300] * 5_000),
    Vector.of([["x" * 200 + str(one)] for one in range(500)]),
    Map.of({f"key {one}": {"inner": "y" * 200 + str(one)} for one in range(2_000)}),
    Index.of({f"key {one}": ["y" * 200, one] for one in range(2_000)}),
    Set.of(["z" * 200 + str(one) for one in range(2_000)]),
    List.of(["x" * 300 + str(one) for one in range(500)]),
    Blob.of(bytes(10_000_000)),
    to_cell([[[["a" * 200] * 20] * 20] * 20]),
]


@pytest.mark.parametrize("missing", [0, 1, 3, 7])
@pytest.mark.parametrize("at", range(len(WIDE)))
def test_at_most_32_cells_are_loaded_and_missing_ones_are_named(at: int, missing: int) -> None:
    loader = Counting(WIDE[at], missing)
    value = decode(encode(WIDE[at]), loader)
    start = time.thread_time()  # others may take the processor meanwhile
    text = repr(value)
    took = time.thread_time() - start
    assert len(text) <= 1_000
    assert loader.loads <= 32
    assert took < 0.1  # a millisecond on a quiet machine
    if missing == 7 and not isinstance(value, Blob):
        assert "<missing " in text


class Closed:
    """A loader whose store is closed."""

    def load(self, _hash: bytes) -> Value:
        raise StoreClosed("closed")


class Broken:
    """A loader with a fault."""

    def load(self, _hash: bytes) -> Value:
        raise ZeroDivisionError


def test_a_loader_that_fails_makes_no_error() -> None:
    encoding = encode(Vector.of(["x" * 300, 1]))
    assert repr(decode(encoding, Closed())).startswith("Vector([<StoreClosed ")
    assert repr(decode(encoding, Broken())) == "<Vector: ZeroDivisionError>"
    assert isinstance(decode(encoding, Broken()), Cell)
