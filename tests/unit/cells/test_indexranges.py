"""Index ranges: whatever the bounds, they hold each entry once, and join to the very same index."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from datalattice.cells import (
    EMPTY_INDEX,
    Index,
    decode_trusted,
    encode,
    index_between,
    index_bounds,
    index_joined,
    key_bytes,
    novelty,
    value_hash,
)

KEYS = st.text("ab\x00\xff", max_size=6)
ENTRIES = st.dictionaries(KEYS, st.integers(0, 3) | st.just("v" * 200), max_size=60)
BOUNDS = st.lists(KEYS, max_size=4).map(lambda keys: sorted({key.encode() for key in keys}))


@given(ENTRIES, BOUNDS)
def test_ranges_hold_each_entry_once_and_join_to_the_same_index(
    entries: dict[str, object], bounds: list[bytes]
) -> None:
    index = Index(entries)
    parts = [index_between(index, low, high) for low, high in pairwise([None, *bounds, None])]
    for part, (low, high) in zip(parts, pairwise([None, *bounds, None]), strict=True):
        inside = {
            key: value
            for key, value in entries.items()
            if (low is None or key.encode() >= low) and (high is None or key.encode() < high)
        }
        assert encode(part) == encode(Index(inside))
    assert encode(index_joined(parts)) == encode(index)


@given(ENTRIES, ENTRIES)
def test_of_two_parts_with_one_key_the_later_wins(
    one: dict[str, object], two: dict[str, object]
) -> None:
    assert encode(index_joined([Index(one), Index(two)])) == encode(Index({**one, **two}))


@given(ENTRIES, st.integers(1, 70))
def test_bounds_cut_into_ranges_of_about_one_size(entries: dict[str, object], count: int) -> None:
    index = Index(entries)
    bounds = index_bounds(index, count)
    assert bounds == sorted(set(bounds))
    sizes = [len(index_between(index, low, high)) for low, high in pairwise([None, *bounds, None])]
    assert sum(sizes) == len(index)
    assert max(sizes) <= -(-len(index) // count)
    assert len(sizes) == min(count, max(1, len(index)))


def test_what_lies_between_two_bounds_is_not_loaded() -> None:
    index = Index({f"k{i:05}": "v" * 100 + str(i) for i in range(5_000)})
    loaded: list[bytes] = []
    cells = {hash: encoding for hash, encoding, _ in novelty(index)}

    class Loading:
        def load(self, hash: bytes) -> object:
            loaded.append(hash)
            return decode_trusted(cells[hash], hash, self)

    top = value_hash(index)
    stored = decode_trusted(cells[top], top, Loading())
    assert isinstance(stored, Index)
    part = index_between(stored, b"k01000", b"k04000")
    assert len(part) == 3_000
    assert len(loaded) < 100
    assert key_bytes(next(iter(part))) == b"k01000"


def test_no_entries_have_no_bounds() -> None:
    assert index_bounds(EMPTY_INDEX, 5) == []
    assert index_between(EMPTY_INDEX, b"a", None) is EMPTY_INDEX
    assert index_joined([]) is EMPTY_INDEX
