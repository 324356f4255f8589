"""Runs: the elements of a range of a vector, found in the encodings of its tree."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from datalattice.cells import (
    CellRange,
    FetchCell,
    FetchCells,
    Map,
    Value,
    Vector,
    element_runs,
    encode,
    novelty,
)
from datalattice.errors import BadFormat, MissingData


def cells_of(value: Value) -> FetchCell:
    """Return a fetch of the cells of `value`, that knows no others."""
    cells = {hash: encoding for hash, encoding, _ in novelty(value)}

    def fetch(hash: bytes) -> bytes:
        if hash not in cells:
            raise MissingData([hash])
        return cells[hash]

    return fetch


def together(fetch: FetchCell) -> FetchCells:
    """Return the same fetch for several cells, which come as ranges of one text, the last first."""

    def many(hashes: list[bytes], _below: int) -> list[CellRange]:
        cells = [fetch(hash) for hash in hashes]
        data = b"".join(cells[::-1])
        found = []
        end = len(data)
        for cell in cells:
            found.append(CellRange(data, end - len(cell), end))
            end -= len(cell)
        return found

    return many


def element_numbers(count: int, first: int, stop: int, *, ranges: bool = False) -> list[int]:
    vector = Vector.of(range(count))
    found = []
    fetch = cells_of(vector)
    many = together(fetch) if ranges else None
    for run in element_runs(encode(vector), first, stop, fetch, many):
        assert 1 <= run.count <= 16
        at = run.at
        for _ in range(run.count):
            end = at + 1 + run.data[at] - 0x10
            found.append(int.from_bytes(run.data[at + 1 : end], "big", signed=True))
            at = end
    return found


@given(st.data(), st.integers(0, 6_000))
def test_runs_cover_exactly_the_range_in_order(data: st.DataObject, count: int) -> None:
    first = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(first, count + 20))
    expected = list(range(first, min(stop, count)))
    assert element_numbers(count, first, stop) == expected
    assert element_numbers(count, first, stop, ranges=True) == expected


@pytest.mark.parametrize("count", [1, 15, 16, 17, 31, 32, 33, 255, 256, 257, 272, 511, 512, 4097])
def test_runs_cover_every_shape_of_vector(count: int) -> None:
    assert element_numbers(count, 0, count) == list(range(count))
    assert element_numbers(count, count - 1, count) == [count - 1]
    assert element_numbers(count, count // 2, count // 2 + 1) == [count // 2]


def test_runs_fetch_only_what_the_range_needs() -> None:
    vector = Vector.of([bytes(105)] * 16 * 16 * 16)
    asked: list[bytes] = []
    fetch = cells_of(vector)

    def counting(hash: bytes) -> bytes:
        asked.append(hash)
        return fetch(hash)

    list(element_runs(encode(vector), 160, 176, counting))
    assert len(asked) == 2  # one inner node, one leaf


def test_256_leaves_are_fetched_together_with_the_nodes_above_them_and_no_others() -> None:
    vector = Vector.of([bytes(105)] * 4_096 + [bytes(106)] * 4_096)
    fetch = cells_of(vector)
    asked: list[int] = []
    expected: list[int] = []

    def many(hashes: list[bytes], below: int) -> Sequence[CellRange]:
        asked.append(len(hashes))
        expected.append(below)
        return together(fetch)(hashes, below)

    assert sum(run.count for run in element_runs(encode(vector), 0, 8_192, fetch, many)) == 8_192
    assert asked == [16, 256, 16, 256]
    leaf = 2 + 16 * (2 + 105)
    assert expected == [0, 0, 256 * leaf, 0], "the second time it is known what is below"
    asked.clear()
    assert sum(run.count for run in element_runs(encode(vector), 250, 520, fetch, many)) == 270
    assert asked == [3, 1 + 16 + 1]


def test_a_node_of_the_wrong_size_is_refused_where_leaves_are_fetched_together() -> None:
    vector = Vector.of([bytes(105)] * 4_096)
    fetch = cells_of(vector)

    def refused(wrong: Value, number: int) -> None:
        asked = 0

        def many(hashes: list[bytes], below: int) -> list[CellRange]:
            nonlocal asked
            asked += 1
            found = list(together(fetch)(hashes, below))
            if asked == number:
                cell = encode(wrong)
                found[1] = CellRange(b"before" + cell + b"behind", 6, 6 + len(cell))
            return found

        with pytest.raises(BadFormat):
            list(element_runs(encode(vector), 0, 4_096, fetch, many))

    for wrong in (Vector.of([bytes(105)] * 240), Vector.of([1] * 16), Map.of([(1, bytes(200))])):
        refused(wrong, 1)
    for wrong in (Vector.of([bytes(105)] * 32), Vector.of([1] * 15), Map.of([(1, bytes(200))])):
        refused(wrong, 2)


def test_a_node_of_the_wrong_kind_is_refused() -> None:
    wrong: dict[bytes, bytes] = {}
    vector = Vector.of([bytes(130)] * 32)
    for node in (Vector.of([bytes(130)] * 15), Map.of([(1, bytes(200))])):
        wrong[encode(vector)[3:35]] = encode(node)
        with pytest.raises(BadFormat):
            list(element_runs(encode(vector), 0, 32, lambda _: next(iter(wrong.values()))))
    with pytest.raises(BadFormat):
        list(element_runs(encode(Map.of({})), 0, 1, wrong.__getitem__))


def test_a_missing_leaf_is_named() -> None:
    vector = Vector.of([bytes(100)] * 32)
    with pytest.raises(MissingData):
        list(element_runs(encode(vector), 0, 32, cells_of(Vector.of([1]))))
