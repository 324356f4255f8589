"""Content: stores of values by hash, merged by union.

Source: CAD024 "Content addressable store", "Data lattice"; docs/lattices.md "Content stores";
    docs/design/forks.md "The order"; docs/design/decisions.md "D3".
"""

from __future__ import annotations

from typing import Final

from datalattice.cells import ABSENT, EMPTY_INDEX, Index, Value, encode, value_hash
from datalattice.lattice.base import Lattice, as_operand, greater
from datalattice.lattice.context import EMPTY_CONTEXT, MALFORMED, EntryDropped, MergeContext
from datalattice.lattice.order import (
    NIL_TIME,
    PRESENT,
    UNTIMED,
    Element,
    EntryOrder,
    Latest,
    Walk,
    contrast,
    element,
    malformed,
    number_tail,
)


class _ContentOrder(EntryOrder):
    """The order elements of content stores: the entry hashes, below the number of entries."""

    def entry(
        self,
        key: Value,
        own: Value,
        other: Value,
        own_present: bool,
        other_present: bool,
        walk: Walk,
    ) -> Latest:
        """Return the hash of each side's value; None ranks below every value, as in the merge."""
        return contrast(
            _entry_element(own) if own_present else None,
            _entry_element(other) if other_present else None,
        )


def _entry_element(value: Value) -> Element:
    # "Nil less than a value" (docs/design/decisions.md "Law domain").
    return element(NIL_TIME) if value is None else element(PRESENT, value_hash(value))


_ORDER: Final = _ContentOrder()


def _size(value: Value) -> Element | None:
    if value is None:
        return None
    if not isinstance(value, Index):
        return malformed(value)
    return element(UNTIMED, number_tail(len(value)))


def content_latest(own: Value, other: Value, walk: Walk) -> Latest:
    """Return the difference in size of two content stores, or else their greatest entries.

    Cost:   entries that differ, if the sizes are equal.
    """
    # The size comes first: a store that contains another has more entries.
    found = contrast(_size(own), _size(other))
    if found[0] is None and isinstance(own, Index) and isinstance(other, Index):
        return _ORDER.of_index(own, other, walk)
    return found


class ContentStore(Lattice):
    """Base of the lattices of an Index that holds values by hash."""

    def has_order(self) -> bool:
        return True

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the size of each side, or their greatest entries if the sizes are equal."""
        return content_latest(own, other, walk)

    def zero(self) -> Value:
        return EMPTY_INDEX

    def check_foreign(self, value: Value) -> bool:
        return isinstance(value, Index)


class DataLattice(ContentStore):
    """An Index from 32-byte hash to the value with that hash.

    A merge recomputes the hashes, so a wrong foreign key cannot replace an entry.
    """

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return own with every value of other that it lacks, under its recomputed hash.

        An own of None counts as the empty Index.
        """
        if own is other and own is not None:
            return own
        # "A nil own is treated as the zero" (docs/design/decisions.md "D4").
        base = own if isinstance(own, Index) else EMPTY_INDEX
        if other is None or not self.accepts(other, context):
            return base
        assert isinstance(other, Index)
        filing = _Filing(context)
        # Entries already under their own hash are merged by subtree, unless parts are malformed.
        is_sound, work = not context.holes, context.work
        result = base.merge_with(other, filing.join, addressed=is_sound, own_keys=True, work=work)
        for value in filing.strays:
            if work is not None:
                work.spend(work.limits.hashed + len(encode(value)) // work.limits.hashed_bytes)
            # Never the key that the peer gave: a wrong key could hide or replace another value.
            digest = value_hash(value)
            # "The own key stays, and a value under any other key is stored under its hash"
            # (docs/design/foreign-data.md "Merges").
            if digest not in result:
                result = result.put(digest, value)
        return as_operand(result, other if own is None else own, other)


class _Filing:
    """Collects the foreign values that are not under their own hash."""

    def __init__(self, context: MergeContext) -> None:
        self._context: Final = context
        self.strays: Final[list[Value]] = []

    def join(
        self, key: Value, own: Value, other: Value, own_present: bool, other_present: bool
    ) -> Value:
        """Return own's value; other's is added later, under its recomputed hash."""
        if not other_present or other is None or _is_spoiled(self._context, key, other):
            return own if own_present else ABSENT
        # Put after the walk, since the recomputed key has another position in the tree.
        self.strays.append(other)
        return own if own_present else ABSENT


class CASLattice(ContentStore):
    """An Index from keys computed by the writers, such as SHA-256, to values.

    Equal keys should mean equal content; if not, the value with the greater hash stays.
    """

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the union. Cost: entries that differ."""
        if other is None or own is other or not self.accepts(other, context):
            return own
        assert isinstance(other, Index)
        join = _GreaterHash(context).join
        if isinstance(own, Index):
            return own.merge_with(other, join, work=context.work)
        # With holes each entry is judged; without any all of other is taken as it is.
        if context.holes:
            return as_operand(EMPTY_INDEX.merge_with(other, join, work=context.work), own, other)
        return other


class _GreaterHash:
    """Merges entries by the greater hash."""

    def __init__(self, context: MergeContext) -> None:
        self._context: Final = context

    def join(
        self, key: Value, own: Value, other: Value, own_present: bool, other_present: bool
    ) -> Value:
        """Return the value with the greater hash, of those present."""
        # None has no content, so own's value stays.
        if not other_present or (other is None and own_present):
            return own
        if _is_spoiled(self._context, key, other):
            return own if own_present else ABSENT
        if not own_present or own is None:
            return other
        # "The greater value hash wins" (docs/design/decisions.md "D3").
        return greater(own, other)


def _is_spoiled(context: MergeContext, key: Value, value: Value) -> bool:
    """Return whether the value of a foreign entry is malformed; report it if so."""
    if not context.holes.spoils(value):
        return False
    context.report(EntryDropped((*context.path, key), MALFORMED))
    return True
