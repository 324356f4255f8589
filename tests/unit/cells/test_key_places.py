"""A key stands under its own digits: a tree that says otherwise is refused where it is merged."""

from __future__ import annotations

import pytest

from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    EMPTY_SET,
    Index,
    Map,
    Set,
    Value,
    decode,
    encode,
    value_hash,
)
from datalattice.crypto import sha3_256
from datalattice.errors import BadFormat
from datalattice.lattice import DataLattice
from datalattice.testing.cells_kit import CellDict

VALUES = [bytes([n]) * 200 for n in range(40)]
GOOD = Index.of([(value_hash(value), value) for value in VALUES])


def keep(_key: Value, own: Value, other: Value, has: bool, _had: bool) -> object:
    return own if has else other


def misplaced(index: Index, old: bytes, new: bytes) -> Index:
    """Return an index in which one key has other bytes in the same position."""
    cells = CellDict()
    cells.kept(index)
    cells[value_hash(index)] = encode(index)
    renamed = {old: new}
    while value_hash(index) not in renamed:
        for hash, data in list(cells.items()):
            fresh = data
            for before, after in renamed.items():
                fresh = fresh.replace(before, after)
            if fresh != data and hash not in renamed:
                renamed[hash] = sha3_256(fresh)
                cells[renamed[hash]] = fresh
    found = decode(cells[renamed[value_hash(index)]], cells)
    assert isinstance(found, Index)
    return found


def with_digit(key: bytes, digit: int) -> bytes:
    """Return the key with another first digit."""
    return bytes(((digit << 4) | (key[0] & 15),)) + key[1:]


def test_a_key_under_another_digit_does_not_take_the_place_of_an_own_one() -> None:
    key = value_hash(VALUES[7])
    evil = misplaced(GOOD, key, with_digit(key, (key[0] >> 4) ^ 8))
    for own in (GOOD, Index.of(list(GOOD.entries())[:2]), EMPTY_INDEX):
        with pytest.raises(BadFormat, match="not its own"):
            own.merge_with(evil, keep)
        with pytest.raises(BadFormat, match="not its own"):
            DataLattice().merge(own, evil)


def test_a_key_under_another_digit_is_found_in_a_subtree_that_only_other_has() -> None:
    def run(first: int) -> list[tuple[bytes, int]]:
        return [(bytes((first, n << 4)) * 3, n) for n in range(3)]

    other = Index.of(run(0x10) + run(0x20))
    evil = misplaced(other, bytes((0x10, 0x10)) * 3, bytes((0x10, 0x70)) * 3)
    for own in (Index.of(run(0x20)), EMPTY_INDEX):
        with pytest.raises(BadFormat, match="not its own"):
            own.merge_with(evil, keep)


def two_children(first: Map | Set, second: Map | Set) -> Value:
    """Return a node over two tries, under the digits 1 and 2 of the first position."""
    cells = CellDict()
    kids = b""
    for one in (first, second):
        cells.kept(one)
        data = encode(one)
        hash = value_hash(one)
        cells[hash] = data
        kids += b"\x20" + hash
    tag = 0x82 if isinstance(first, Map) else 0x83
    count = len(first) + len(second)
    return decode(bytes((tag, count, 0, 0, 0b110)) + kids, cells)


@pytest.mark.parametrize("kind", [Map, Set])
def test_a_map_or_set_node_with_keys_under_other_digits_is_refused(kind: type[Map | Set]) -> None:
    named = [str(n) * 40 for n in range(400)]
    by_digit: dict[int, list[str]] = {}
    for name in named:
        by_digit.setdefault(value_hash(name)[0] >> 4, []).append(name)

    def made(digit: int, count: int) -> Map | Set:
        names = by_digit[digit][:count]
        return Map.of([(name, 1) for name in names]) if kind is Map else Set.of(names)

    sound, evil = two_children(made(1, 9), made(2, 9)), two_children(made(3, 9), made(2, 9))
    assert isinstance(sound, (Map, Set))
    for own in (sound, made(1, 9), made(2, 12), EMPTY_MAP if kind is Map else EMPTY_SET):
        with pytest.raises(BadFormat):
            _ = own.union(evil) if isinstance(own, Set) else own.merge_with(evil, keep)  # type: ignore[arg-type]
