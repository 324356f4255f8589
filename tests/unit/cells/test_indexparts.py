"""Index parts: what they hold together is the difference, whatever the split; equal parts stay."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from datalattice.cells import Index, IndexPart, decode, encode
from datalattice.errors import BadFormat
from datalattice.testing.cells_kit import CellDict

KEYS = st.text("ab\x00\xff", max_size=6)
ENTRIES = st.dictionaries(KEYS, st.integers(0, 3) | st.just("v" * 200), max_size=40)


def expected(before: dict[str, object], after: dict[str, object]) -> list[object]:
    return [
        (key, key in before, before.get(key), key in after, after.get(key))
        for key in sorted({*before, *after}, key=str.encode)
        if (key in before) != (key in after) or before.get(key) != after.get(key)
    ]


def leaves(part: IndexPart) -> list[IndexPart]:
    """Return the parts that splitting again and again ends at."""
    below = part.split()
    if len(below) == 1 and below[0].size <= 2 and part.size == below[0].size:
        return below
    return list(itertools.chain.from_iterable(map(leaves, below)))


@given(ENTRIES, ENTRIES)
def test_the_differences_are_those_of_two_dicts_in_key_order(
    before: dict[str, object], after: dict[str, object]
) -> None:
    part = IndexPart(Index.of(before), Index.of(after))
    assert list(part.differences()) == expected(before, after)


@given(ENTRIES, ENTRIES)
def test_the_parts_of_a_split_have_the_same_differences_in_the_same_order(
    before: dict[str, object], after: dict[str, object]
) -> None:
    part = IndexPart(Index.of(before), Index.of(after))
    for parts in (part.split(), leaves(part)):
        told = [change for below in parts for change in below.differences()]
        assert told == expected(before, after)


@given(ENTRIES)
def test_one_index_alone_is_all_its_entries(entries: dict[str, object]) -> None:
    index = Index.of(entries)
    for part in (IndexPart(None, index), IndexPart(index, None)):
        assert part.size == len(entries)
        assert sum(below.size for below in part.split()) == len(entries)
        told = [change for leaf in leaves(part) for change in leaf.differences()]
        assert [change[0] for change in told] == list(index)
        assert [change[2] if part.own else change[4] for change in told] == list(index.values())


def test_what_is_equal_is_not_loaded() -> None:
    before = Index.of({f"key{i:05}": "x" * 150 + str(i) for i in range(5_000)})
    loader = CellDict()
    own, other = loader.kept(before), loader.kept(before.put("key02500", "other"))
    assert [change[0] for change in IndexPart(own, other).differences()] == ["key02500"]
    assert loader.loads < 60
    loader.loads = 0
    part = IndexPart(own, other)
    while len(below := part.split()) == 1 and below[0].size > 2:
        part = below[0]
    assert part.size < 40
    assert loader.loads < 60


def test_the_same_index_twice_has_no_parts() -> None:
    index = Index.of({"a": 1, "b": 2})
    assert IndexPart(index, index).split() == []
    assert list(IndexPart(index, index).differences()) == []
    assert IndexPart(None, None).split() == []
    assert IndexPart(Index(), None).size == 0


def test_a_part_that_refers_to_one_subtree_twice_is_refused() -> None:
    one = Index.of({f"a{i}": "x" * 100 for i in range(9)})
    loader = CellDict()
    loader.kept(one)
    # The node of a and b, where b's place leads to a's subtree again.
    twice = {f"{first}{i}": "x" * 100 for first in "ab" for i in range(9)}
    both = encode(Index.of(twice))
    forged = both[:-33] + b"\x20" + one.hash
    made = decode(forged, loader)
    assert isinstance(made, Index)
    with pytest.raises(BadFormat, match="not in order"):
        list(IndexPart(None, made).differences())
