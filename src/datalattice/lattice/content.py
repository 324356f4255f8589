"""Content: stores of values under their hashes, joined by union."""

from __future__ import annotations

from typing import Final

from datalattice.cells import ABSENT, EMPTY_INDEX, Index, Value, value_hash
from datalattice.lattice.base import Lattice, as_operand, greater
from datalattice.lattice.context import EMPTY_CONTEXT, MergeContext


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
        filing = _Filing()
        result = base.merge_with(other, filing.join, addressed=True, own_keys=True)
        for value in filing.strays:
            digest = value_hash(value)
            if digest not in result:
                result = result.put(digest, value)
        return as_operand(result, other if own is None else own, other)

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

    def __init__(self) -> None:
        self.strays: Final[list[Value]] = []

    def join(
        self, key: Value, own: Value, other: Value, own_present: bool, other_present: bool
    ) -> Value:
        """Return own's value; other's is filed later, under the hash that it has."""
        if not other_present or other is None:
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
        if isinstance(own, Index):
            return own.merge_with(other, _keep_greater)
        return other

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


def _keep_greater(
    _key: Value, own: Value, other: Value, own_present: bool, other_present: bool
) -> Value:
    if not other_present or (other is None and own_present):
        return own
    if not own_present or own is None:
        return other
    return greater(own, other)
