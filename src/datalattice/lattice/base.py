"""Lattice: the interface of every lattice type, and the rule by which containers merge an entry.

A lattice is a pure object that merges two values of its type. Merges are commutative, associative
and idempotent on values written by this package and on foreign values that pass `check_foreign` at
every level.

Two rules hold for all types. A merge checks the foreign value first; if it is bad, the merge
reports it and keeps own. Foreign data never makes a merge raise, except `MissingData`. A merge that
changes nothing returns own itself, and one whose result equals other returns other itself, so that
nothing is encoded or stored twice.

Source: CAD024; docs/lattices.md "Keys and paths", "The contract", "Maps and indexes", "Vectors and
    tuples"; CAD002 "Integer"; docs/cells.md "Encoding table"; docs/design/decisions.md;
    docs/design/forks.md "The order".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mypy_extensions import mypyc_attr

from datalattice.cells import ABSENT, Keyword, Value, same, to_cell, value_hash
from datalattice.errors import UnsupportedOperation
from datalattice.lattice.context import EMPTY_CONTEXT, EntryDropped, MergeContext
from datalattice.lattice.order import (
    NIL_TIME,
    NO_LATEST,
    EntryOrder,
    Latest,
    Walk,
    contrast,
    element,
    verdict,
    wider,
)

LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1

NO_TIME: Final = -1
"""Less than every time; stands for an absent time or base."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Lattice:
    """How values of one type are merged, checked and addressed.

    This base class accepts no values; subclasses define their behaviour.
    """

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the least value that contains both `own` and `other`.

        Returns `own` itself when nothing changes, and `other` itself when the result equals it. An
        `other` that fails `check_foreign` is reported and ignored.
        Raises: MissingData: a needed cell is missing.
        """
        return own

    def zero(self) -> Value:
        """Return the neutral element of the merge; None for most registers."""
        return None

    def check_foreign(self, value: Value) -> bool:
        """Return whether a foreign value has the right shape at its top level; never raises."""
        return False

    def has_order(self) -> bool:
        """Return whether `latest` orders all values of this lattice.

        Without an order, nodes may choose differently between two forked values of one owner.
        """
        return False

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the greatest element that only `own` has, and the greatest that only `other` has.

        Elements are `(time, key path, tail)`. The greater of the two is exact; the lesser may be
        too small or None, since it never decides. A value of None is absent.

        Cost:   proportional to the difference.
        Raises: MissingData: a differing cell is missing. UnsupportedOperation: this lattice has no
                order.
        """
        raise UnsupportedOperation(f"{self!r} has no order between forked values")

    def within(self) -> tuple[Lattice, ...]:
        """Return the direct child lattices."""
        return ()

    def child(self, key: Value) -> Lattice | None:
        """Return the lattice of the value at `key`, or None."""
        return None

    def path(self, *keys: object) -> Lattice | None:
        """Return the lattice at the end of `keys`, or None; with no keys, this lattice."""
        found: Lattice | None = self
        for key in keys:
            if found is None:
                return None
            found = found.child(to_cell(key))
        return found

    def resolve_key(self, key: Value) -> Value:
        """Return the canonical key for an external one (such as JSON), or None if it is invalid."""
        return key

    def canonical_key(self, key: Value) -> Value:
        """Return the key under which a cursor reads and writes; by default `key` itself."""
        return key

    def resolve_path(self, keys: Iterable[object]) -> list[Value] | None:
        """Return the canonical keys of an external path, or None if a step is invalid."""
        found: Lattice | None = self
        resolved: list[Value] = []
        for key in keys:
            if found is None:
                return None
            canonical = found.resolve_key(to_cell(key))
            if canonical is None:
                return None
            resolved.append(canonical)
            found = found.child(canonical)
        return resolved

    def accepts(self, other: Value, context: MergeContext) -> bool:
        """Return whether a foreign value passes `check_foreign`; report it otherwise."""
        if self.check_foreign(other):
            return True
        # Reports never change a result: the merge goes on without this entry.
        context.report(EntryDropped(context.path))
        return False

    def _arguments(self) -> tuple[object, ...]:
        """Return the constructor's arguments, for pickling and printing."""
        return ()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._arguments()

    def __repr__(self) -> str:
        shown = [
            str(getattr(one, "__name__", one)) if callable(one) else repr(one)
            for one in self._arguments()
        ]
        return type(self).__name__ + "(" + ", ".join(shown) + ")"


class ChildOrder(EntryOrder):
    """The order elements of entries that share a lattice."""

    def __init__(self, child: Lattice) -> None:
        super().__init__()
        self._child: Final = child

    def entry(
        self,
        key: Value,
        own: Value,
        other: Value,
        own_present: bool,
        other_present: bool,
        walk: Walk,
    ) -> Latest:
        """Return the child lattice's answer; a present None ranks below every value."""
        return child_latest(self._child, own, other, own_present, other_present, walk)


def child_latest(
    child: Lattice, own: Value, other: Value, own_present: bool, other_present: bool, walk: Walk
) -> Latest:
    """Return the greatest elements of a container entry, by the lattice of its value."""
    # "Absent is less than nil, nil less than a value" (docs/design/decisions.md "Law domain").
    found = contrast(
        element(NIL_TIME) if own is None and own_present else None,
        element(NIL_TIME) if other is None and other_present else None,
    )
    return found if own is None and other is None else wider(found, child.latest(own, other, walk))


def is_greater(
    lattice: Lattice, own: Value, own_hash: bytes, other: Value, other_hash: bytes, walk: Walk
) -> bool:
    """Return whether `own` is the greater of two values; the hashes break ties.

    Args:   own_hash, other_hash: of the Signed cells around the values.
    Cost:   proportional to the difference.
    Raises: MissingData: a differing cell is missing. UnsupportedOperation: no order.
    """
    found = 0 if same(own, other) else verdict(lattice.latest(own, other, walk))
    # "Between equal sets the hash of the signed cell decides" (docs/design/forks.md "The order").
    return own_hash > other_hash if found == 0 else found > 0


def same_elements(lattice: Lattice, own: Value, other: Value, walk: Walk) -> bool:
    """Return whether two values have the same elements, perhaps in different encodings."""
    if same(own, other):
        return True
    # Without an order only equal hashes prove it.
    return lattice.has_order() and lattice.latest(own, other, walk) == NO_LATEST


class EntryMerge:
    """Merges the entries of one container whose values share a lattice, during a tree merge."""

    def __init__(self, child: Lattice, context: MergeContext) -> None:
        self._child: Final = child
        self._context: Final = context

    def join(
        self, key: Value, own: Value, other: Value, own_present: bool, other_present: bool
    ) -> Value:
        """Return the merged value of an entry on which two containers differ, or ABSENT."""
        return join_entry(
            self._child,
            self._context,
            key,
            own,
            other,
            own_present=own_present,
            other_present=other_present,
        )

    def join_slot(self, position: int, own: Value, other: Value) -> Value:
        """Return the merged value of a vector position; a missing position counts as None."""
        merged = join_entry(self._child, self._context, position, own, other)
        # A position of a Vector cannot be absent.
        return None if merged is ABSENT else merged


def join_entry(
    child: Lattice,
    context: MergeContext,
    key: Value,
    own: Value,
    other: Value,
    *,
    own_present: bool = True,
    other_present: bool = True,
) -> Value:
    """Return the merge of one entry, or ABSENT.

    Own entries without a counterpart are trusted. A bad foreign entry is reported and ignored; it
    does not create a zero.
    """
    # "Absent is less than nil, nil less than a value: so a relay can keep a nil inside a value
    # that it cannot sign" (docs/design/decisions.md "Law domain"). Own was checked when written.
    if not other_present or other is None:
        return own if own_present or other_present else ABSENT
    inner = context.child(key)
    # "Each is dropped and reported, and the own entry stays" (docs/design/decisions.md "D9").
    if not child.accepts(other, inner):
        return own if own_present else ABSENT
    merged = child.merge(own, other, inner)
    # A None that is present stays: absent is less than None.
    if merged is None and own is None and own_present:
        return None
    return ABSENT if merged is None else merged


def as_operand(result: Value, own: Value, other: Value) -> Value:
    """Return `own` or `other` itself if the result equals it."""
    if result is own or result is other:
        return result
    # Own first: a merge that changes nothing must return own itself, which callers test by
    # identity.
    if same(result, own):
        return own
    return other if same(result, other) else result


def greater(a: Value, b: Value) -> Value:
    """Return the value with the greater hash in unsigned byte order; `a` if they are equal."""
    # "On equal times the greater value hash wins, for every last-write-wins register"
    # (docs/design/decisions.md "D1"); if the side decided, replicas would keep different values.
    return b if value_hash(b) > value_hash(a) else a


def as_integer(value: Value) -> int | None:
    """Return an Integer as an int, None for any other value; a boolean is not an Integer."""
    # The type is compared instead of narrowed with isinstance: compiled code would turn a boolean
    # into a number.
    return value if type(value) is int else None


def is_integer(value: Value) -> bool:
    """Return whether a value is an Integer; a boolean is not."""
    return type(value) is int


def is_long(value: Value) -> bool:
    """Return whether a value is an Integer of at most 64 bits."""
    number = as_integer(value)
    return number is not None and LONG_MIN <= number <= LONG_MAX


def to_json_key(key: Value) -> Value:
    """Return a key as JSON-style paths write it: a Keyword as its name, bytes as hex."""
    if isinstance(key, Keyword):
        return key.name
    if isinstance(key, bytes):
        return key.hex()
    return key
