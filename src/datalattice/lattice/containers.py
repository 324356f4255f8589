"""Containers: lattices of maps, indexes, vectors and tuples, merged entry by entry.

A merge descends both trees together and visits only what differs. A foreign value of the wrong type
is rejected; an own value of the wrong type is replaced by a right one.

Source: CAD024 "Tuple lattice", "Vector lattice", "Index lattice", "Map lattice"; docs/lattices.md
    "Vectors and tuples", "Maps and indexes"; docs/design/forks.md "The order";
    docs/design/decisions.md "D4", "D9", "D10", "Law domain"; docs/cells.md "Exact keys".
"""

from __future__ import annotations

from typing import Final

from datalattice.cells import (
    ABSENT,
    EMPTY_INDEX,
    EMPTY_MAP,
    EMPTY_VECTOR,
    Index,
    Map,
    Value,
    Vector,
    same,
)
from datalattice.errors import TypeMismatch
from datalattice.lattice.base import (
    ChildOrder,
    EntryMerge,
    Lattice,
    as_integer,
    as_operand,
    child_latest,
    is_integer,
    join_entry,
)
from datalattice.lattice.context import EMPTY_CONTEXT, MergeContext
from datalattice.lattice.exactkeys import exact_merge, key_of
from datalattice.lattice.order import (
    PRESENT,
    Element,
    EntryOrder,
    Latest,
    Walk,
    below,
    contrast,
    element,
    malformed,
    step_of,
    wider,
)
from datalattice.limits import MERGE_RECORDS_MAX, WORK_LIMITS


def need_lattice(value: object, what: str) -> Lattice:
    """Return `value` if it is a Lattice; raise TypeMismatch, naming it as `what`, otherwise."""
    if not isinstance(value, Lattice):
        raise TypeMismatch(f"{what} is not a Lattice: {type(value).__name__}")
    return value


def present(value: Value, good: bool) -> Element | None:
    """Return the element of a container itself, None for an absent one."""
    if value is None:
        return None
    return element(PRESENT) if good else malformed(value)


def latest_of_maps(order: EntryOrder, own: Value, other: Value, walk: Walk) -> Latest:
    """Return the greatest elements of two Maps and their entries; other values have no entries."""
    mine = own if isinstance(own, Map) else None
    theirs = other if isinstance(other, Map) else None
    top = contrast(present(own, mine is not None), present(other, theirs is not None))
    return wider(top, order.of_map(mine, theirs, walk))


def latest_of_indexes(order: EntryOrder, own: Value, other: Value, walk: Walk) -> Latest:
    """Return the greatest elements of two Indexes, as `latest_of_maps` does."""
    mine = own if isinstance(own, Index) else None
    theirs = other if isinstance(other, Index) else None
    top = contrast(present(own, mine is not None), present(other, theirs is not None))
    return wider(top, order.of_index(mine, theirs, walk))


class OfElements(Lattice):
    """Base of the containers whose values share one lattice."""

    def __init__(self, element: Lattice) -> None:
        need_lattice(element, f"the child of {type(self).__name__}")
        self._element: Final = element
        self._order: Final = ChildOrder(element)

    def has_order(self) -> bool:
        return self._element.has_order()

    def within(self) -> tuple[Lattice, ...]:
        return (self._element,)

    def child(self, key: Value) -> Lattice | None:
        return self._element

    def _arguments(self) -> tuple[object, ...]:
        return (self._element,)


class MapLattice(OfElements):
    """A Map whose values share a lattice."""

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the union of the keys; the child lattice merges values present on both sides.

        Cost: entries that differ; equal subtrees are skipped.
        """
        # "A nil own is treated as the zero, and every foreign entry is checked"
        # (docs/design/decisions.md "D4"): so the first contact merges into the empty container
        # below.
        if other is None or own is other or not self.accepts(other, context):
            return own
        assert isinstance(other, Map)
        join = EntryMerge(self._element, context).join
        if isinstance(own, Map):
            return own.merge_with(other, join, context.work)
        return as_operand(EMPTY_MAP.merge_with(other, join, context.work), other, other)

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        return latest_of_maps(self._order, own, other, walk)

    def zero(self) -> Value:
        return EMPTY_MAP

    def check_foreign(self, value: Value) -> bool:
        return isinstance(value, Map)


class IndexLattice(OfElements):
    """An Index whose values share a lattice.

    Keys with equal bytes are one entry, under the key cell with the greater hash.
    """

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the union of the keys; the child lattice merges values present on both sides.

        Cost: entries that differ; equal subtrees are skipped.
        """
        if other is None or own is other or not self.accepts(other, context):
            return own
        assert isinstance(other, Index)
        join = EntryMerge(self._element, context).join
        if isinstance(own, Index):
            return own.merge_with(other, join, work=context.work)
        return as_operand(EMPTY_INDEX.merge_with(other, join, work=context.work), other, other)

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        return latest_of_indexes(self._order, own, other, walk)

    def zero(self) -> Value:
        return EMPTY_INDEX

    def check_foreign(self, value: Value) -> bool:
        return isinstance(value, Index)


class ExactIndexLattice(IndexLattice):
    """An Index whose keys are names of any length, in which every byte counts."""

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the union of the names; the child lattice merges values present on both sides.

        Malformed keys are left out and reported.
        Cost: entries that differ; equal subtrees are skipped.
        """
        if other is None or own is other or not self.accepts(other, context):
            return own
        assert isinstance(other, Index)
        merging = exact_merge(EntryMerge(self._element, context).join, context)
        # An own value of the wrong type is replaced by a right one.
        base = own if isinstance(own, Index) else EMPTY_INDEX
        made = base.merge_with(other, merging.join, rival=merging.rival, work=context.work)
        return made if isinstance(own, Index) else as_operand(made, other, other)

    def canonical_key(self, key: Value) -> Value:
        """Return the key under which a name is stored."""
        # "The key of a name of up to 32 bytes is the name. For a longer name a *made key* is
        # computed" (docs/cells.md "Exact keys").
        return key_of(key) if isinstance(key, str) else key


class VectorLattice(OfElements):
    """A Vector whose positions share a lattice.

    The merge has the greater length; a missing position counts as None.
    """

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the positions merged one by one.

        A bad foreign position that own lacks becomes None.
        Cost:   positions that differ; equal subtrees are skipped.
        """
        if other is None or own is other or not self.accepts(other, context):
            return own
        assert isinstance(other, Vector)
        join = EntryMerge(self._element, context).join_slot
        if isinstance(own, Vector):
            return own.merge_with(other, join, context.work)
        return as_operand(EMPTY_VECTOR.merge_with(other, join, context.work), other, other)

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        mine = own if isinstance(own, Vector) and self.check_foreign(own) else None
        theirs = other if isinstance(other, Vector) and self.check_foreign(other) else None
        # The container itself first: an absent one is less than any present one.
        found = contrast(present(own, mine is not None), present(other, theirs is not None))
        left = EMPTY_VECTOR if mine is None else mine
        right = EMPTY_VECTOR if theirs is None else theirs
        for position, has, value, had, their_value in left.differences(right, walk.work):
            walk.spend(WORK_LIMITS.compared)
            step = step_of(position)
            made = child_latest(self._element, value, their_value, has, had, walk)
            found = wider(found, below(step, made))
        return found

    def zero(self) -> Value:
        return EMPTY_VECTOR

    def check_foreign(self, value: Value) -> bool:
        """Return whether the value is a Vector of at most 16,777,216 elements."""
        # "Every loop over elements has a bound" (docs/design/decisions.md "Bounded merges"): a
        # dozen shared cells can have any number of elements.
        return isinstance(value, Vector) and len(value) <= MERGE_RECORDS_MAX

    def child(self, key: Value) -> Lattice | None:
        """Return the child lattice for an Integer position, else None."""
        return self._element if is_integer(key) else None


class TupleLattice(Lattice):
    """A Vector with a fixed number of positions, each with its own lattice."""

    def __init__(self, *children: Lattice) -> None:
        for child in children:
            need_lattice(child, "each child of a TupleLattice")
        self._children: Final = children

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the positions merged one by one; own elements past the last are kept."""
        if other is None or own is other or not self.accepts(other, context):
            return own
        assert isinstance(other, Vector)
        base = own if isinstance(own, Vector) else self.zero()
        assert isinstance(base, Vector)
        values = list(base)
        # Own may be shorter: it is not checked, and its missing positions count as None.
        values.extend([None] * (len(self._children) - len(values)))
        changed = False
        for position, child in enumerate(self._children):
            mine, theirs = values[position], other[position]
            # Equal positions are skipped: a bad one that both sides have was reported before.
            if mine is theirs or same(mine, theirs):
                continue
            merged = join_entry(child, context, position, mine, theirs)
            if merged is not mine:
                values[position] = None if merged is ABSENT else merged
                changed = True
        # The same object, by which callers see that there is nothing to sign or to store.
        if not changed and base is own:
            return own
        return as_operand(Vector.of(values), own, other)

    def has_order(self) -> bool:
        return all(child.has_order() for child in self._children)

    def within(self) -> tuple[Lattice, ...]:
        return self._children

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        mine = own if isinstance(own, Vector) and self.check_foreign(own) else None
        theirs = other if isinstance(other, Vector) and self.check_foreign(other) else None
        found = contrast(present(own, mine is not None), present(other, theirs is not None))
        for position, child in enumerate(self._children):
            value = None if mine is None else mine[position]
            their_value = None if theirs is None else theirs[position]
            if not same(value, their_value):
                has, had = mine is not None, theirs is not None
                made = child_latest(child, value, their_value, has, had, walk)
                found = wider(found, below(step_of(position), made))
        return found

    def zero(self) -> Value:
        return Vector.of([child.zero() for child in self._children])

    def check_foreign(self, value: Value) -> bool:
        """Return whether the value is a Vector with as many elements as there are children."""
        # A tuple of another length has other meanings at its positions.
        return isinstance(value, Vector) and len(value) == len(self._children)

    def child(self, key: Value) -> Lattice | None:
        """Return the lattice of an Integer position in range, else None."""
        position = as_integer(key)
        if position is None or not 0 <= position < len(self._children):
            return None
        return self._children[position]

    def _arguments(self) -> tuple[object, ...]:
        return self._children
