"""Content: stores of values under their hashes, joined by union."""

from __future__ import annotations

from typing import Final

from datalattice.cells import ABSENT, EMPTY_INDEX, Index, Value, encode, value_hash
from datalattice.lattice.base import Lattice, as_operand, greater
from datalattice.lattice.context import EMPTY_CONTEXT, MALFORMED, EntryDropped, MergeContext
from datalattice.lattice.order import (
    NIL,
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
    """The elements of content: each entry's hash, below the number of entries."""

    def entry(
        self,
        key: Value,
        own: Value,
        other: Value,
        own_present: bool,
        other_present: bool,
        walk: Walk,
    ) -> Latest:
        """Return the hash of each side's value, which is above nil as in the merge."""
        return contrast(
            _entry_element(own) if own_present else None,
            _entry_element(other) if other_present else None,
        )


def _entry_element(value: Value) -> Element:
    return element(NIL) if value is None else element(PRESENT, value_hash(value))


_ORDER: Final = _ContentOrder()


def content_latest(own: Value, other: Value, walk: Walk) -> Latest:
    """Return by what two content stores differ: their sizes, else their greatest entry.

    A store that contains another has more entries.
    Cost:   entries that differ, if the sizes are equal.
    Source: docs/design/forks.md "The order".
    """
    found = contrast(_size(own), _size(other))
    if found[0] is None and isinstance(own, Index) and isinstance(other, Index):
        return _ORDER.of_index(own, other, walk)
    return found


def _size(value: Value) -> Element | None:
    if value is None:
        return None
    if not isinstance(value, Index):
        return malformed(value)
    return element(UNTIMED, number_tail(len(value)))


class DataLattice(Lattice):
    """Values by their own hash.

    A received key is never believed, so a wrong one cannot poison the store.

    Shapes: Index from 32-byte hash to the value.
    Source: CAD024 "Data lattice"; docs/lattices.md "Content stores".
    """

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return own with every value of other that it lacks, each under its recomputed hash.

        Nil own is the empty Index.

        Source: CAD024 "Data lattice"; docs/lattices.md "Content stores".
        """
        if own is other and own is not None:
            return own
        base = own if isinstance(own, Index) else EMPTY_INDEX
        if other is None or not self.accepts(other, context):
            return base
        assert isinstance(other, Index)
        filing = _Filing(context)
        # What is under its own hash is taken unseen, unless some of it is not sound.
        is_whole, work = not context.holes, context.work
        result = base.merge_with(other, filing.join, addressed=is_whole, own_keys=True, work=work)
        for value in filing.strays:
            if work is not None:
                work.spend(work.limits.hashed + len(encode(value)) // work.limits.hashed_bytes)
            digest = value_hash(value)
            if digest not in result:
                result = result.put(digest, value)
        return as_operand(result, other if own is None else own, other)

    def has_order(self) -> bool:
        """Return True.

        Source: docs/design/forks.md "The order".
        """
        return True

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the size of each side, of equal sizes the greatest entry.

        Source: docs/design/forks.md "The order".
        """
        return content_latest(own, other, walk)

    def zero(self) -> Value:
        """Return the empty Index.

        Source: CAD024 "Data lattice"; docs/lattices.md "Content stores".
        """
        return EMPTY_INDEX

    def check_foreign(self, value: Value) -> bool:
        """Return whether the value is an Index.

        Source: CAD024 "Data lattice"; docs/lattices.md "Content stores".
        """
        return isinstance(value, Index)


class _Filing:
    """Collects the foreign values that do not stand under their own hash."""

    def __init__(self, context: MergeContext) -> None:
        self._context: Final = context
        self.strays: Final[list[Value]] = []

    def join(
        self, key: Value, own: Value, other: Value, own_present: bool, other_present: bool
    ) -> Value:
        """Return own's value; other's is filed later, under the hash that it has."""
        if not other_present or other is None or _is_spoiled(self._context, key, other):
            return own if own_present else ABSENT
        self.strays.append(other)
        return own if own_present else ABSENT


class CASLattice(Lattice):
    """Content by keys that its writers computed, such as SHA-256.

    Equal keys mean equal content; if not, the greater hash stays.

    Shapes: Index from a byte-like key to a value.
    Source: CAD024 "Content addressable store"; docs/lattices.md "Content stores";
            docs/design/decisions.md "D3".
    """

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the union.

        Cost: entries that differ.
        Source: CAD024 "Content addressable store"; docs/lattices.md "Content stores";
                docs/design/decisions.md "D3".
        """
        if other is None or own is other or not self.accepts(other, context):
            return own
        assert isinstance(other, Index)
        join = _Keeping(context).join
        if isinstance(own, Index):
            return own.merge_with(other, join, work=context.work)
        if context.holes:
            return as_operand(EMPTY_INDEX.merge_with(other, join, work=context.work), own, other)
        return other

    def has_order(self) -> bool:
        """Return True.

        Source: docs/design/forks.md "The order".
        """
        return True

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the size of each side, of equal sizes the greatest entry.

        Source: docs/design/forks.md "The order".
        """
        return content_latest(own, other, walk)

    def zero(self) -> Value:
        """Return the empty Index.

        Source: CAD024 "Content addressable store"; docs/lattices.md "Content stores".
        """
        return EMPTY_INDEX

    def check_foreign(self, value: Value) -> bool:
        """Return whether the value is an Index.

        Source: CAD024 "Content addressable store"; docs/lattices.md "Content stores".
        """
        return isinstance(value, Index)


class _Keeping:
    """Joins entries by the greater hash."""

    def __init__(self, context: MergeContext) -> None:
        self._context: Final = context

    def join(
        self, key: Value, own: Value, other: Value, own_present: bool, other_present: bool
    ) -> Value:
        """Return the value that stays."""
        if not other_present or (other is None and own_present):
            return own
        if _is_spoiled(self._context, key, other):
            return own if own_present else ABSENT
        if not own_present or own is None:
            return other
        return greater(own, other)


def _is_spoiled(context: MergeContext, key: Value, value: Value) -> bool:
    """Return whether the value of a foreign entry is not sound, and report that."""
    if not context.holes.spoils(value):
        return False
    context.report(EntryDropped((*context.path, key), MALFORMED))
    return True
