"""JSON values: maps merge key by key at every depth.

Everything else is a leaf, and of two leaves one wins.

The order nil < the type's own zero < leaf < Index < Map decides a conflict, between two leaves the
greater value hash. A container against a leaf cannot be left to hashes: a container that grows by a
merge changes its hash, and the outcome would depend on when.

Foreign values may nest without bound, so pairs of containers that differ wait on a stack of our own
instead of the machine's.
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

DEPTH_MAX: Final = 64
"""Containers in one another that the order of forked values looks into; below, hashes decide."""

NIL: Final = 0
ZERO: Final = 1
LEAF: Final = 2
INDEX: Final = 3
MAP: Final = 4


class JSONLattice(Lattice):
    """Any JSON value; objects are Maps with String keys. Its zero is the empty Map.

    Source: CAD024 "JSON value lattice"; docs/lattices.md "JSON values";
            docs/design/decisions.md "D3".
    """

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the join: containers of one kind key by key, of anything else the greater.

        Below a last-write-preferred lattice the newer side wins a conflict instead.
        Cost: entries that differ.
        Source: CAD024 "JSON value lattice"; docs/lattices.md "JSON values";
                docs/design/decisions.md "D3".
        """
        if other is None or own is other:
            return own
        if own is None:
            return other
        if not _mergeable(own, other):
            zero = (
                self._rank(own) == ZERO or self._rank(other) == ZERO
            )  # the zero changes nothing, however new
            return self._conflict(own, other, None if zero else context.prefer)
        return _merge_trees(self, own, other, context)

    def zero(self) -> Value:
        """Return the empty Map.

        Source: CAD024 "JSON value lattice"; docs/lattices.md "JSON values".
        """
        return EMPTY_MAP

    def has_order(self) -> bool:
        """Return True.

        Source: docs/design/forks.md "The order".
        """
        return True

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the greatest rank, leaf or entry of each side.

        Source: docs/design/forks.md "The order".
        """
        return self._latest_at(own, other, own is not None, other is not None, walk, 0)

    def _latest_at(
        self, own: Value, other: Value, has: bool, had: bool, walk: Walk, depth: int
    ) -> Latest:
        # A container ranks above what is in it, so entries count only where both are of one kind.
        top = contrast(
            self._element(own, depth) if has else None, self._element(other, depth) if had else None
        )
        if top[0] is not None or top[1] is not None or depth >= DEPTH_MAX:
            return top
        if not _mergeable(own, other):
            return top
        pair = (depth, value_hash(own), value_hash(other))
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
        if rank > LEAF and depth >= DEPTH_MAX:
            return malformed(value)
        tail = bytes([rank])
        return element(UNTIMED, tail + value_hash(value) if rank == LEAF else tail)

    def check_foreign(self, value: Value) -> bool:
        """Return True: any value is a leaf at least.

        Source: CAD024 "JSON value lattice"; docs/lattices.md "JSON values".
        """
        return True

    def child(self, key: Value) -> Lattice | None:
        """Return this lattice: it is the same at every depth.

        Source: CAD024 "JSON value lattice"; docs/lattices.md "JSON values".
        """
        return self

    def _rank(self, value: Value) -> int:
        if value is None:
            return NIL
        if isinstance(value, Map):
            return MAP if len(value) else ZERO
        return INDEX if isinstance(value, Index) else LEAF

    def _conflict(self, own: Value, other: Value, prefer: str | None) -> Value:
        """Return the winner of two values that are not nil and do not merge."""
        if same(own, other):
            return own
        mine, theirs = self._rank(own), self._rank(other)
        if prefer is not None:
            return own if prefer == OWN else other
        if mine != theirs:
            return own if mine > theirs else other
        return greater(own, other)


class JSONIndexLattice(JSONLattice):
    """As `JSONLattice`, with the empty Index as its zero.

    Source: CAD024 "JSON value lattice"; docs/lattices.md "JSON values".
    """

    def zero(self) -> Value:
        """Return the empty Index.

        Source: CAD024 "JSON value lattice"; docs/lattices.md "JSON values".
        """
        return EMPTY_INDEX

    def _rank(self, value: Value) -> int:
        if value is None:
            return NIL
        if isinstance(value, Index):
            return INDEX if len(value) else ZERO
        return MAP if isinstance(value, Map) else LEAF


class _JSONOrder(EntryOrder):
    """The elements of the entries of a JSON container, some levels down."""

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
        """Return what the lattice says of one entry."""
        return self._lattice._latest_at(own, other, own_present, other_present, walk, self._depth)


def _mergeable(own: Value, other: Value) -> bool:
    return (isinstance(own, Map) and isinstance(other, Map)) or (
        isinstance(own, Index) and isinstance(other, Index)
    )


class _Level:
    """A pair of containers of one kind being merged; pairs below it that wait are in `pending`."""

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
        """Join one entry, putting a pair of containers off until this level is through."""
        if not other_present or other is None:
            return own if own_present or other_present else ABSENT
        if own is None:
            return other
        if _mergeable(own, other):
            self.pending.append((key, own, other))
            return own
        return self._lattice._conflict(own, other, self._context.prefer)

    def start(self) -> None:
        """Join the entries of this level."""
        own, other = self.own, self.other
        if isinstance(own, Map):
            assert isinstance(other, Map)
            self.result = own.merge_with(other, self.join, self._context.work)
        else:
            assert isinstance(own, Index)
            assert isinstance(other, Index)
            self.result = own.merge_with(other, self.join, work=self._context.work)

    def put(self, key: Value, value: Value) -> None:
        """Set the joined value of an entry that was put off."""
        result = self.result
        if isinstance(result, Map):
            self.result = result.put(key, value)
        elif isinstance(result, Index):
            stored = result.key_cell(key)
            self.result = result.put(key if stored is None else stored, value)

    def finish(self) -> Value:
        """Return the joined container, as own or other itself where it equals them."""
        return as_operand(self.result, self.own, self.other)


def _merge_trees(lattice: JSONLattice, own: Value, other: Value, context: MergeContext) -> Value:
    """Return the join of two containers of one kind.

    Equal pairs are joined once: a few cells that refer to one another many times over hold more
    pairs than anybody could visit.
    """
    top = _Level(lattice, own, other, context)
    top.start()
    stack = [top]
    joined: dict[tuple[bytes, bytes], Value] = {}
    while True:
        level = stack[-1]
        if level.pending:
            key, mine, theirs = level.pending[-1]
            pair = (value_hash(mine), value_hash(theirs))
            if pair in joined:
                level.pending.pop()
                level.put(key, joined[pair])
                continue
            below = _Level(lattice, mine, theirs, context)
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
        if done is not mine:
            above.put(key, done)
