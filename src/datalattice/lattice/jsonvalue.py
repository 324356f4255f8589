"""JSON values: maps merge key by key at every depth; of two other values one wins.

A conflict is decided by the order None < the type's own zero < leaf < Index < Map, and between two
leaves by the greater value hash. Hashes cannot decide between a container and a leaf: a merge
changes the hash of a container, so the outcome would depend on the order of merges.

Foreign values may nest without bound, so pairs of differing containers wait on an explicit stack.

Source: CAD024 "JSON value lattice"; docs/lattices.md "JSON values"; docs/design/forks.md "The
    order"; docs/design/decisions.md "D3".
"""

from __future__ import annotations

from typing import Final

from datalattice.cells import (
    ABSENT,
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    Map,
    Value,
    same,
    value_hash,
)
from datalattice.lattice.base import Lattice, as_operand, greater
from datalattice.lattice.context import EMPTY_CONTEXT, OWN, MergeContext
from datalattice.lattice.order import (
    UNTIMED,
    Element,
    EntryOrder,
    Latest,
    Walk,
    contrast,
    element,
    malformed,
)

_DEPTH_MAX: Final = 64
"""Depth to which the order of forked values compares containers; deeper ones compare by hash."""

_NIL: Final = 0
_ZERO: Final = 1
_LEAF: Final = 2
_INDEX: Final = 3
_MAP: Final = 4


class JSONLattice(Lattice):
    """Any JSON value; objects are Maps with String keys. Its zero is the empty Map."""

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the merge: containers of one type key by key, otherwise the greater value.

        Below a last-write-preferred lattice the newer side wins a conflict.
        Cost: entries that differ.
        """
        if other is None or own is other:
            return own
        if own is None:
            return other
        if not _mergeable(own, other):
            # The zero loses however new it is: a merge with it must change nothing.
            has_zero = self._rank(own) == _ZERO or self._rank(other) == _ZERO
            return self._conflict(own, other, None if has_zero else context.prefer)
        return _merge_trees(self, own, other, context)

    def zero(self) -> Value:
        return EMPTY_MAP

    def has_order(self) -> bool:
        return True

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the greatest rank, leaf or entry of each side."""
        return self._latest_at(own, other, own is not None, other is not None, walk, 0)

    def _latest_at(
        self, own: Value, other: Value, has: bool, had: bool, walk: Walk, depth: int
    ) -> Latest:
        # The container counts before its entries, which matter only if both sides are of one type.
        top = contrast(
            self._element(own, depth) if has else None, self._element(other, depth) if had else None
        )
        # The ranks differ: they decide, whatever the entries are.
        if top[0] is not None or top[1] is not None or depth >= _DEPTH_MAX:
            return top
        if not _mergeable(own, other):
            return top
        pair = (depth, value_hash(own), value_hash(other))
        # A few shared cells can hold more pairs than can be visited, so each pair is walked once.
        known = walk.pairs.get(pair)
        if known is None:
            order = _JSONOrder(self, depth + 1)
            if isinstance(own, Map) and isinstance(other, Map):
                known = order.of_map(own, other, walk)
            elif isinstance(own, Index) and isinstance(other, Index):
                known = order.of_index(own, other, walk)
            else:
                known = top
            walk.pairs[pair] = known
        return known

    def _element(self, value: Value, depth: int) -> Element:
        rank = self._rank(value)
        # Deeper containers compare by hash, since a walk without bound could cost any time.
        if rank > _LEAF and depth >= _DEPTH_MAX:
            return malformed(value)
        tail = bytes([rank])
        return element(UNTIMED, tail + value_hash(value) if rank == _LEAF else tail)

    def check_foreign(self, value: Value) -> bool:
        """Return True: any value is valid, at least as a leaf."""
        return True

    def child(self, key: Value) -> Lattice | None:
        """Return this lattice: it is the same at every depth."""
        return self

    def _rank(self, value: Value) -> int:
        if value is None:
            return _NIL
        if isinstance(value, Map):
            # "The order is nil, the type's zero, leaf, Index, Map" (docs/design/decisions.md "D3").
            return _MAP if len(value) else _ZERO
        return _INDEX if isinstance(value, Index) else _LEAF

    def _conflict(self, own: Value, other: Value, prefer: str | None) -> Value:
        """Return the winner of two values that are not None and do not merge."""
        if same(own, other):
            return own
        mine, theirs = self._rank(own), self._rank(other)
        if prefer is not None:
            return own if prefer == OWN else other
        # "The order is nil, the type's zero, leaf, Index, Map" (docs/design/decisions.md "D3").
        if mine != theirs:
            return own if mine > theirs else other
        return greater(own, other)


class JSONIndexLattice(JSONLattice):
    """Like `JSONLattice`, with the empty Index as its zero."""

    def zero(self) -> Value:
        return EMPTY_INDEX

    def _rank(self, value: Value) -> int:
        if value is None:
            return _NIL
        if isinstance(value, Index):
            # The zero of this lattice is the empty Index, so that one ranks lowest.
            return _INDEX if len(value) else _ZERO
        return _MAP if isinstance(value, Map) else _LEAF


class _JSONOrder(EntryOrder):
    """The order elements of the entries of a JSON container at one depth."""

    def __init__(self, lattice: JSONLattice, depth: int) -> None:
        super().__init__()
        self._lattice: Final = lattice
        self._depth: Final = depth

    def entry(
        self,
        key: Value,
        own: Value,
        other: Value,
        own_present: bool,
        other_present: bool,
        walk: Walk,
    ) -> Latest:
        """Return the lattice's answer for one entry."""
        return self._lattice._latest_at(own, other, own_present, other_present, walk, self._depth)


def _mergeable(own: Value, other: Value) -> bool:
    return (isinstance(own, Map) and isinstance(other, Map)) or (
        isinstance(own, Index) and isinstance(other, Index)
    )


class _MergeLevel:
    """A pair of containers of one type being merged; `pending` has its unmerged child pairs."""

    def __init__(
        self, lattice: JSONLattice, own: Value, other: Value, context: MergeContext
    ) -> None:
        self._lattice: Final = lattice
        self._context: Final = context
        self.own: Final = own
        self.other: Final = other
        self.pending: Final[list[tuple[Value, Value, Value]]] = []
        self.result: Value = None

    def join(
        self, key: Value, own: Value, other: Value, own_present: bool, other_present: bool
    ) -> Value:
        """Merge one entry; a pair of containers is postponed until this level is done."""
        if not other_present or other is None:
            # None is the least value, so own's stays.
            return own if own_present or other_present else ABSENT
        if own is None:
            return other
        # Later, on the explicit stack: foreign values may nest without bound.
        if _mergeable(own, other):
            self.pending.append((key, own, other))
            return own
        return self._lattice._conflict(own, other, self._context.prefer)

    def start(self) -> None:
        """Merge the entries of this level."""
        own, other = self.own, self.other
        if isinstance(own, Map):
            assert isinstance(other, Map)
            self.result = own.merge_with(other, self.join, self._context.work)
        else:
            assert isinstance(own, Index)
            assert isinstance(other, Index)
            self.result = own.merge_with(other, self.join, work=self._context.work)

    def put(self, key: Value, value: Value) -> None:
        """Set the merged value of a postponed entry."""
        result = self.result
        if isinstance(result, Map):
            self.result = result.put(key, value)
        elif isinstance(result, Index):
            # Keys of equal bytes are one entry: the stored one stays, whatever its kind.
            stored = result.key_cell(key)
            self.result = result.put(key if stored is None else stored, value)

    def finish(self) -> Value:
        """Return the merged container, as own or other itself if it equals them."""
        return as_operand(self.result, self.own, self.other)


def _merge_trees(lattice: JSONLattice, own: Value, other: Value, context: MergeContext) -> Value:
    """Return the merge of two containers of one type.

    "Equal pairs of JSON containers are merged once" (docs/design/decisions.md "Bounded merges"): a
    few shared cells can hold more pairs than can be visited.
    """
    top = _MergeLevel(lattice, own, other, context)
    top.start()
    stack = [top]
    joined: dict[tuple[bytes, bytes], Value] = {}
    while True:
        level = stack[-1]
        if level.pending:
            key, mine, theirs = level.pending[-1]
            pair = (value_hash(mine), value_hash(theirs))
            # The merge depends on the two values alone, so an equal pair has the same result.
            if pair in joined:
                level.pending.pop()
                level.put(key, joined[pair])
                continue
            below = _MergeLevel(lattice, mine, theirs, context)
            below.start()
            stack.append(below)
            continue
        done = level.finish()
        stack.pop()
        if not stack:
            return done
        above = stack[-1]
        key, mine, theirs = above.pending.pop()
        joined[value_hash(mine), value_hash(theirs)] = done
        # Unchanged: the container above keeps its entry, and may stay itself.
        if done is not mine:
            above.put(key, done)
