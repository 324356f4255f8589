"""Index parts: an index, or the difference of two, divided so that workers can share it.

A part is a subtree of one index, or a pair of subtrees of two. Splitting it gives the parts one
level below, in key order, without those that are equal on both sides, which are never loaded.

Source: CAD003 "Index"; docs/cells.md "Index".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from datalattice.cells.cell import Value, broken, deref, same_kid, surely_same
from datalattice.cells.index import Index, _below, _entry, _reach, common_key_digits, index_node
from datalattice.cells.trie import digit_at

Difference = tuple[Value, bool, Value, bool, Value]
"""(key, own present, own value, other present, other value), as `Index.differences` yields it."""


class IndexPart:
    """The entries of two indexes with a common key prefix; None for a side without any."""

    __slots__ = ("_known", "other", "own")

    def __init__(self, own: Index | None, other: Index | None, known: int = 0) -> None:
        # An empty index counts as absent.
        self.own: Final = None if own is None or own._count == 0 else own
        self.other: Final = None if other is None or other._count == 0 else other
        self._known: Final = known  # digits shared by all keys

    @property
    def size(self) -> int:
        """The number of entries of both sides: an upper bound of the work."""
        own, other = self.own, self.other
        return (0 if own is None else own._count) + (0 if other is None else other._count)

    def split(self) -> list[IndexPart]:
        """Return the parts below this one in key order, without equal ones; one key gives itself.

        Cost:   loads the children of both top nodes, apart from equal ones.
        Raises: MissingData: a node is missing. BadFormat: it is not an index node.
        """
        own, other = self.own, self.other
        if own is None:
            return [] if other is None else [IndexPart(None, one) for one in parts_of(other)]
        if other is None:
            return [IndexPart(one, None) for one in parts_of(own)]
        # Equal hashes, so nothing below differs and nothing is loaded.
        if surely_same(own, other):
            return []
        return self._split_two(own, other)

    def _split_two(self, own: Index, other: Index) -> list[IndexPart]:
        own_end: i64 = _reach(own)
        other_end: i64 = _reach(other)
        low: i64 = min(own_end, other_end)
        # The digits known already are not compared again.
        fork = common_key_digits(own._any(), other._any(), self._known)
        if fork < low:
            # No key in common: each side is a part of its own.
            alone = [IndexPart(own, None, fork), IndexPart(None, other, fork)]
            return (
                alone if digit_at(own._any(), fork) < digit_at(other._any(), fork) else alone[::-1]
            )
        mine = _own_entry(own) if own_end == low and own._has_entry else None
        theirs = _own_entry(other) if other_end == low and other._has_entry else None
        found: list[IndexPart] = []
        if mine is None or theirs is None:
            if mine is not None or theirs is not None:
                found.append(IndexPart(mine, theirs, low))
        elif not _same_entry(mine, theirs):
            found.append(IndexPart(mine, theirs, low))
        for digit in range(16):
            left = _below(own, own_end, low, digit)
            right = _below(other, other_end, low, digit)
            if left is None and right is None:
                continue
            # Equal subtrees are left out, so workers share only what differs.
            if left is not None and right is not None and surely_same(left, right):
                continue
            found.append(
                IndexPart(
                    None if left is None else index_node(left, 0, low - 1),
                    None if right is None else index_node(right, 0, low - 1),
                    low + 1,
                )
            )
        return found

    def one_key(self) -> tuple[Value, Value, Value, Value] | None:
        """Return (own key, own value, other key, other value) if each side has one key, or None."""
        own, other = self.own, self.other
        if own is None or other is None or not self._is_one_key():
            return None
        mine, theirs = own._open(), other._open()
        return deref(mine[0]), deref(mine[1]), deref(theirs[0]), deref(theirs[1])

    def differences(self, *, apart: bool = False) -> Iterator[Difference]:
        """Yield the differing entries in key order.

        apart: two keys with the same first 32 bytes are reported as a removed and an added entry;
            otherwise as one changed entry.
        Cost:   the difference; memory for one path.
        Raises: as `split`; BadFormat also if the keys are not in order.
        """
        last: bytes | None = None
        stack: list[IndexPart] = [self]
        while stack:
            part = stack.pop()
            own, other = part.own, part.other
            if own is not None and other is not None and not part._is_one_key():
                below = part.split()
                # The stack gives the last one first.
                below.reverse()
                stack.extend(below)
                continue
            both = own is not None and other is not None
            whole = own if other is None else other
            if whole is None:
                continue
            for node in whole._nodes():
                key = node._key()
                # A few shared cells could otherwise make the walk endless.
                if last is not None and key <= last:
                    raise broken("the keys of an index are not in order")
                last = key
                kids = node._open()
                value = deref(kids[1])
                if not both:
                    mine = other is None
                    yield (
                        deref(kids[0]),
                        mine,
                        value if mine else None,
                        not mine,
                        None if mine else value,
                    )
                elif own is not None and not _same_entry(own, node):
                    before = own._open()
                    # Of an Index with exact keys these are two names in one position.
                    if apart and not same_kid(before[0], kids[0]):
                        yield deref(before[0]), True, deref(before[1]), False, None
                        yield deref(kids[0]), False, None, True, value
                    else:
                        yield deref(kids[0]), True, deref(before[1]), True, value

    def _is_one_key(self) -> bool:
        own, other = self.own, self.other
        if own is None or other is None or own._count > 1 or other._count > 1:
            return False
        return own._key() == other._key()  # by position: two names may share one


def parts_of(node: Index) -> list[Index]:
    """Return the subtrees of a node in key order: its own entry, then its children."""
    if node._count == 1:
        return [node]
    kids = node._open()
    found: list[Index] = []
    first: i64 = 0
    if node._has_entry:
        found.append(_own_entry(node))
        first = 2
    for i in range(first, len(kids)):
        found.append(index_node(kids[i], node._count, node._depth))
    return found


def _own_entry(node: Index) -> Index:
    """Return a node's own entry, as an index of one."""
    if node._count == 1:
        return node
    kids = node._open()
    return _entry(node._key(), kids[0], kids[1])


def _same_entry(own: Index, other: Index) -> bool:
    left, right = own._open(), other._open()
    return same_kid(left[0], right[0]) and same_kid(left[1], right[1])
