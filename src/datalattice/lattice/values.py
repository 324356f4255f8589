"""Values: lattices of sets and single values, and joins given as functions.

Where no rule of the value itself decides, the greater value hash does: one total order for all
replicas, whichever side is own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from datalattice.cells import EMPTY_SET, Keyword, Map, Set, Value, same, value_hash
from datalattice.errors import TypeMismatch
from datalattice.lattice.base import Lattice, as_integer, greater, is_integer, is_long
from datalattice.lattice.context import EMPTY_CONTEXT, OTHER, OWN, EntryDropped, MergeContext
from datalattice.lattice.order import (
    UNTIMED,
    Element,
    Latest,
    Walk,
    contrast,
    element,
    malformed,
    number_tail,
    wider,
)

TIMESTAMP: Final = Keyword("timestamp")

Stamp = Callable[[Value], int]
"""Reads the time of a value. It answers for any value and does not raise."""


def map_timestamp(value: Value) -> int:
    """Return the `:timestamp` of a Map in Unix milliseconds, 0 for anything without a 64-bit one.

    Source: CAD024 "LWW lattice"; docs/lattices.md "Last write wins".
    """
    if isinstance(value, Map):
        stamp = value.get(TIMESTAMP)
        number = as_integer(stamp)
        if number is not None and is_long(stamp):
            return number
    return 0


def _function(value: object, what: str) -> None:
    if not callable(value):
        raise TypeMismatch(f"{what} is a function, got {type(value).__name__}")


class SetLattice(Lattice):
    """A grow-only set; the join is the union.

    Source: CAD024 "Set lattice"; docs/lattices.md "Sets and numbers".
    """

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the union.

        Source: CAD024 "Set lattice"; docs/lattices.md "Sets and numbers".
        """
        if other is None or own is other or not self.accepts(other, context):
            return own
        assert isinstance(other, Set)
        return own.union(other, context.work) if isinstance(own, Set) else other

    def zero(self) -> Value:
        """Return the empty set.

        Source: CAD024 "Set lattice"; docs/lattices.md "Sets and numbers".
        """
        return EMPTY_SET

    def has_order(self) -> bool:
        """Return True.

        Source: docs/design/forks.md "The order".
        """
        return True

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the element of each side: its size, for a superset has more.

        Source: docs/design/forks.md "The order".
        """
        return contrast(self._element(own), self._element(other))

    def _element(self, value: Value) -> Element | None:
        if value is None:
            return None
        if not isinstance(value, Set):
            return malformed(value)
        return element(UNTIMED, number_tail(len(value)))

    def check_foreign(self, value: Value) -> bool:
        """Return whether the value is a Set.

        Source: CAD024 "Set lattice"; docs/lattices.md "Sets and numbers".
        """
        return isinstance(value, Set)


class MaxLattice(Lattice):
    """The larger of two integers of any size.

    `zero` is the least value foreigners may send; nil: there is none.

    Source: CAD024 "Max lattice"; docs/lattices.md "Sets and numbers".
    """

    def __init__(self, zero: int | None = 0) -> None:
        given: object = zero
        if not is_integer(given) and given is not None:
            raise TypeMismatch(
                f"the zero of a MaxLattice is an int or None, got {type(given).__name__}"
            )
        self._zero: Final = zero

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the larger; own on equal.

        Source: CAD024 "Max lattice"; docs/lattices.md "Sets and numbers".
        """
        if other is None:
            return own
        mine, theirs = as_integer(own), as_integer(other)
        if mine is None:
            return other if self.accepts(other, context) else own
        if theirs is None:
            context.report(EntryDropped(context.path))
            return own
        return other if theirs > mine else own

    def zero(self) -> Value:
        """Return the zero given at construction.

        Source: CAD024 "Max lattice"; docs/lattices.md "Sets and numbers".
        """
        return self._zero

    def has_order(self) -> bool:
        """Return True.

        Source: docs/design/forks.md "The order".
        """
        return True

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the element of each side: its number.

        Source: docs/design/forks.md "The order".
        """
        return contrast(self._element(own), self._element(other))

    def _element(self, value: Value) -> Element | None:
        if value is None:
            return None
        number = as_integer(value)
        if number is None or not self.check_foreign(value):
            return malformed(value)
        return element(UNTIMED, number_tail(number))

    def check_foreign(self, value: Value) -> bool:
        """Return whether the value is an Integer and not below the zero.

        Source: CAD024 "Max lattice"; docs/lattices.md "Sets and numbers";
                docs/design/decisions.md "Law domain".
        """
        number, zero = as_integer(value), self._zero
        return number is not None and (zero is None or number >= zero)

    def _arguments(self) -> tuple[object, ...]:
        return (self._zero,)


class MinLattice(Lattice):
    """The smaller of two integers of any size.

    Source: CAD024 "Min lattice"; docs/lattices.md "Sets and numbers".
    """

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the smaller; own on equal.

        Source: CAD024 "Min lattice"; docs/lattices.md "Sets and numbers".
        """
        if other is None or not self.accepts(other, context):
            return own
        mine, theirs = as_integer(own), as_integer(other)
        assert theirs is not None
        return other if mine is None or theirs < mine else own

    def has_order(self) -> bool:
        """Return True.

        Source: docs/design/forks.md "The order".
        """
        return True

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the element of each side: its number, negated.

        Source: docs/design/forks.md "The order".
        """
        return contrast(self._element(own), self._element(other))

    def _element(self, value: Value) -> Element | None:
        if value is None:
            return None
        number = as_integer(value)
        return malformed(value) if number is None else element(UNTIMED, number_tail(-number))

    def check_foreign(self, value: Value) -> bool:
        """Return whether the value is an Integer.

        Source: CAD024 "Min lattice"; docs/lattices.md "Sets and numbers".
        """
        return is_integer(value)


class LWWLattice(Lattice):
    """Last write wins: the value with the greater time, taken whole.

    On equal times the greater value hash.

    Units:  `timestamp` reads Unix milliseconds from a value; without it the `:timestamp` of a Map
            counts, else 0.
    Source: CAD024 "LWW lattice"; docs/lattices.md "Last write wins"; docs/design/decisions.md "D1".
    """

    def __init__(self, timestamp: Stamp = map_timestamp) -> None:
        _function(timestamp, "the timestamp of an LWWLattice")
        self._timestamp: Final = timestamp

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the later value, whole.

        Source: CAD024 "LWW lattice"; docs/lattices.md "Last write wins";
                docs/design/decisions.md "D1".
        """
        if other is None or own is other:
            return own
        if own is None:
            return other
        stamp = self._timestamp
        mine, theirs = stamp(own), stamp(other)
        if mine != theirs:
            return own if mine > theirs else other
        return greater(own, other)

    def has_order(self) -> bool:
        """Return True.

        Source: docs/design/forks.md "The order".
        """
        return True

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the element of each side: its time and hash.

        Source: docs/design/forks.md "The order".
        """
        return contrast(self._element(own), self._element(other))

    def _element(self, value: Value) -> Element | None:
        return None if value is None else element(self._timestamp(value), value_hash(value))

    def check_foreign(self, value: Value) -> bool:
        """Return True: any value may be written.

        Source: CAD024 "LWW lattice"; docs/lattices.md "Last write wins".
        """
        return True

    def _arguments(self) -> tuple[object, ...]:
        return (self._timestamp,)


class LWPLattice(Lattice):
    """Last write preferred.

    The inner join, in which the newer side wins what the inner lattice cannot decide.

    The newer value is preferred through the context, and not by changing places with the older one,
    because only what stands in the other place is checked as foreign.

    Units:  `timestamp` reads Unix milliseconds from a value.
    Source: CAD024 "LWP lattice"; docs/lattices.md "Last write preferred";
            docs/design/decisions.md "D3".
    """

    def __init__(self, inner: Lattice, timestamp: Stamp = map_timestamp) -> None:
        _function(timestamp, "the timestamp of an LWPLattice")
        self._inner: Final = inner
        self._timestamp: Final = timestamp

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the inner join, preferring the later side.

        On equal times the inner lattice decides alone.

        Source: CAD024 "LWP lattice"; docs/lattices.md "Last write preferred";
                docs/design/decisions.md "D3".
        """
        if other is None or own is other or not self.accepts(other, context):
            return own
        if own is not None:
            mine, theirs = self._timestamp(own), self._timestamp(other)
            if mine != theirs:
                context = context.preferring(OWN if mine > theirs else OTHER)
        return self._inner.merge(own, other, context)

    def zero(self) -> Value:
        """Return the inner zero.

        Source: CAD024 "LWP lattice"; docs/lattices.md "Last write preferred".
        """
        return self._inner.zero()

    def has_order(self) -> bool:
        """Return whether the inner lattice has an order.

        Source: docs/design/forks.md "The order".
        """
        return self._inner.has_order()

    def within(self) -> tuple[Lattice, ...]:
        """Return the inner lattice.

        Source: CAD024 "LWP lattice"; docs/lattices.md "Last write preferred".
        """
        return (self._inner,)

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the time of each side, and what the inner lattice says.

        Source: docs/design/forks.md "The order".
        """
        stamp = self._timestamp
        top = contrast(
            None if own is None else element(stamp(own)),
            None if other is None else element(stamp(other)),
        )
        return wider(top, self._inner.latest(own, other, walk))

    def check_foreign(self, value: Value) -> bool:
        """Return what the inner lattice says.

        Source: CAD024 "LWP lattice"; docs/lattices.md "Last write preferred".
        """
        return self._inner.check_foreign(value)

    def child(self, key: Value) -> Lattice | None:
        """Return the inner child.

        Source: CAD024 "LWP lattice"; docs/lattices.md "Last write preferred".
        """
        return self._inner.child(key)

    def resolve_key(self, key: Value) -> Value:
        """Return the inner canonical key.

        Source: CAD024 "LWP lattice"; docs/lattices.md "Last write preferred".
        """
        return self._inner.resolve_key(key)

    def canonical_key(self, key: Value) -> Value:
        """Return the inner canonical key.

        Source: docs/design/decisions.md "D10".
        """
        return self._inner.canonical_key(key)

    def _arguments(self) -> tuple[object, ...]:
        return self._inner, self._timestamp


class CompareLattice(Lattice):
    """The greater value by a comparison function; where it says equal, the greater value hash.

    Shapes: cmp(a, b) -> int, above zero when a is the greater: a total preorder.
    Source: CAD024 "Compare lattice"; docs/lattices.md "Given functions";
            docs/design/decisions.md "Laws come first".
    """

    def __init__(self, cmp: Callable[[Value, Value], int]) -> None:
        _function(cmp, "the comparison of a CompareLattice")
        self._cmp: Final = cmp

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the greater value.

        Source: CAD024 "Compare lattice"; docs/lattices.md "Given functions".
        """
        if other is None or own is other:
            return own
        if own is None:
            return other
        order = self._cmp(own, other)
        if order == 0:
            return _tie(own, other, context)
        return own if order > 0 else other

    def check_foreign(self, value: Value) -> bool:
        """Return whether there is a value.

        Source: CAD024 "Compare lattice"; docs/lattices.md "Given functions".
        """
        return value is not None

    def _arguments(self) -> tuple[object, ...]:
        return (self._cmp,)


class FunctionLattice(Lattice):
    """A join given as a function of two values that are not nil.

    The laws are the function's to keep.

    Source: CAD024 "Function lattice"; docs/lattices.md "Given functions".
    """

    def __init__(self, function: Callable[[Value, Value], Value]) -> None:
        _function(function, "the join of a FunctionLattice")
        self._function: Final = function

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return `function(own, other)`.

        Below a last-write-preferred lattice the newer value comes first.

        Source: CAD024 "Function lattice", "LWP lattice"; docs/lattices.md "Given functions",
                "Last write preferred".
        """
        if other is None or own is other or same(own, other):
            return own
        if own is None:
            return other
        function = self._function
        merged = function(other, own) if context.prefer == OTHER else function(own, other)
        if merged is own or same(merged, own):
            return own
        return other if same(merged, other) else merged

    def check_foreign(self, value: Value) -> bool:
        """Return True: the function judges.

        Source: CAD024 "Function lattice"; docs/lattices.md "Given functions".
        """
        return True

    def _arguments(self) -> tuple[object, ...]:
        return (self._function,)


def _tie(own: Value, other: Value, context: MergeContext) -> Value:
    if context.prefer is not None and not same(own, other):
        return own if context.prefer == OWN else other
    return greater(own, other)
