"""Index ranges: the entries of an index between two keys, and the union of several ranges.

Work that is divided by ranges of keys can so be divided and merged without walking the entries:
subtrees are shared in both directions.

Source: CAD003 "Index"; docs/cells.md "Index".
"""

from __future__ import annotations

from collections.abc import Iterable

from datalattice.cells.index import EMPTY_INDEX, Index, _reach, _union
from datalattice.cells.indexparts import parts_of


def index_between(index: Index, low: bytes | None, high: bytes | None) -> Index:
    """Return the entries with `low` <= key bytes < `high`; None is no bound.

    Cost:   the paths to the two bounds; subtrees between them are shared.
    Raises: MissingData: a node is missing. BadFormat: it is not an index node.
    """
    inside: list[Index] = []
    stack: list[tuple[Index, bytes | None, bytes | None]] = []
    if index._count:
        stack.append((index, low, high))
    while stack:
        node, above, below = stack.pop()
        if above is not None:
            from_low = _order(node, above)
            if from_low < 0:
                continue
            if from_low > 0:
                above = None
        if below is not None:
            from_high = _order(node, below)
            if from_high > 0:
                continue
            if from_high < 0:
                below = None
        # All of it lies between the bounds: the subtree is shared as it is.
        if above is None and below is None:
            inside.append(node)
            continue
        parts = parts_of(node)
        # Parts are in order, so only the first of those left can reach below the low bound.
        first = 0 if above is None else _first_from(parts, above, 0)
        stop = len(parts) if below is None else _first_from(parts, below, 1)
        # Backwards, as the last one pushed is visited first: `inside` is in order.
        for i in range(stop - 1, first - 1, -1):
            stack.append(
                (parts[i], above if i == first else None, below if i == stop - 1 else None)
            )
    return index_joined(inside)


def _first_from(parts: list[Index], bound: bytes, order: int) -> int:
    """Return the number of parts before the first whose `_order` is at least `order`."""
    first, stop = 0, len(parts)
    while first < stop:
        middle = (first + stop) // 2
        if _order(parts[middle], bound) < order:
            first = middle + 1
        else:
            stop = middle
    return first


def index_joined(parts: Iterable[Index]) -> Index:
    """Return one index of the entries of all parts; the last of equal keys wins.

    Cost:   one path per part if their ranges of keys do not overlap.
    Raises: as `index_between`.
    """
    made = EMPTY_INDEX
    for part in parts:
        # Parts of different ranges meet on one path only.
        made = _union(made, part, 0)
    return made


def index_bounds(index: Index, count: int) -> list[bytes]:
    """Return at most `count - 1` key bytes that cut an index into ranges of about equal size.

    Each is the first key of a range, in order; the first range needs none.
    Cost:   one path for each.
    Raises: as `index_between`.
    """
    size = len(index)
    positions = sorted({size * i // count for i in range(1, count)} - {0})
    return [_key_at(index, position) for position in positions]


def _order(node: Index, bound: bytes) -> int:
    """Return 1 if all keys of a node are at or above a bound, -1 if below, 0 if on both sides."""
    digits = node._any().hex()[: _reach(node)]
    limit = bound.hex()
    shared = min(len(digits), len(limit))
    # Hex digits compare as the bytes do: byte order is the order of an Index.
    if digits[:shared] != limit[:shared]:
        return 1 if digits[:shared] > limit[:shared] else -1
    if len(digits) >= len(limit):
        return 1
    return -1 if node._count == 1 else 0  # a key that is a prefix of the bound is below it


def _key_at(index: Index, position: int) -> bytes:
    """Return the key bytes of the entry at `position`."""
    node = index
    while node._count > 1:
        for part in parts_of(node):
            if position < part._count:
                node = part
                break
            position -= part._count
    return node._any()
