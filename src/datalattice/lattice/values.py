"""Values: lattices of sets and single values, and merges given as functions.

Where the values themselves do not decide, the greater value hash wins: one total order for all
replicas, independent of the side.

Source: CAD024; docs/lattices.md "Given functions", "Last write preferred", "Last write wins", "Sets
    and numbers"; docs/design/decisions.md "Laws come first", "D10", "D3", "D1", "Law domain";
    docs/design/forks.md "The order".
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

TimeOf = Callable[[Value], int]
"""Returns the time of any value; does not raise."""


def map_timestamp(value: Value) -> int:
    """Return the `:timestamp` of a Map in Unix milliseconds, 0 if there is no 64-bit one."""
    if isinstance(value, Map):
        stamp = value.get(TIMESTAMP)
        number = as_integer(stamp)
        # A stamp beyond 64 bits counts as 0: it would win against every honest writer.
        if number is not None and is_long(stamp):
            return number
    return 0


def _need_function(value: object, what: str) -> None:
    if not callable(value):
        raise TypeMismatch(f"{what} is not a function: {type(value).__name__}")


class Register(Lattice):
    """Base of lattices whose values have one element in the order of forked values."""

    def has_order(self) -> bool:
        return True

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        return contrast(
            None if own is None else self._element(own),
            None if other is None else self._element(other),
        )

    def _element(self, value: Value) -> Element:
        """Return the element of a value that is not None."""
        return malformed(value)


class SetLattice(Register):
    """A grow-only set; the merge is the union."""

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        if other is None or own is other or not self.accepts(other, context):
            return own
        assert isinstance(other, Set)
        # An own value of the wrong type is replaced by the foreign set, which was checked.
        return own.union(other, context.work) if isinstance(own, Set) else other

    def zero(self) -> Value:
        return EMPTY_SET

    def _element(self, value: Value) -> Element:
        # A superset has more members, so the size orders all states of one set's history.
        if isinstance(value, Set):
            return element(UNTIMED, number_tail(len(value)))
        return malformed(value)

    def check_foreign(self, value: Value) -> bool:
        return isinstance(value, Set)


class MaxLattice(Register):
    """The larger of two integers of any size.

    `zero` is the least value accepted from peers; None accepts all.
    """

    def __init__(self, zero: int | None = 0) -> None:
        given: object = zero
        if not is_integer(given) and given is not None:
            raise TypeMismatch(
                f"the zero of a MaxLattice is not an int or None: {type(given).__name__}"
            )
        self._zero: Final = zero

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the larger; own on equal."""
        if other is None:
            return own
        mine, theirs = as_integer(own), as_integer(other)
        # An own value that is not an integer is replaced by any integer that is accepted.
        if mine is None:
            return other if self.accepts(other, context) else own
        if theirs is None:
            context.report(EntryDropped(context.path))
            return own
        # Equal integers are the same value, so own stays and nothing changes.
        return other if theirs > mine else own

    def zero(self) -> Value:
        return self._zero

    def _element(self, value: Value) -> Element:
        number = as_integer(value)
        if number is None:
            return malformed(value)
        if not self.check_foreign(value):
            # A merge of two integers below the zero keeps the larger, so the smaller is the worse.
            return (*malformed(value)[:3], number_tail(-number))
        return element(UNTIMED, number_tail(number))

    def check_foreign(self, value: Value) -> bool:
        """Return whether the value is an Integer of at least the zero."""
        number, zero = as_integer(value), self._zero
        # Below the zero: a merge with the zero would change it, which no lattice allows.
        return number is not None and (zero is None or number >= zero)

    def _arguments(self) -> tuple[object, ...]:
        return (self._zero,)


class MinLattice(Register):
    """The smaller of two integers of any size."""

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the smaller; own on equal."""
        if other is None or not self.accepts(other, context):
            return own
        mine, theirs = as_integer(own), as_integer(other)
        assert theirs is not None
        # Equal integers: own itself, by which callers see that nothing changed.
        return other if mine is None or theirs < mine else own

    def _element(self, value: Value) -> Element:
        number = as_integer(value)
        # Negated: in the order of forked values the smaller number is the later state.
        return malformed(value) if number is None else element(UNTIMED, number_tail(-number))

    def check_foreign(self, value: Value) -> bool:
        return is_integer(value)


class LWWLattice(Register):
    """Last write wins: the value with the greater time; on equal times the greater value hash.

    `timestamp` reads Unix milliseconds from a value; by default the `:timestamp` of a Map, else 0.
    """

    def __init__(self, timestamp: TimeOf = map_timestamp) -> None:
        _need_function(timestamp, "the timestamp of an LWWLattice")
        self._timestamp: Final = timestamp

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the later value."""
        if other is None or own is other:
            return own
        if own is None:
            return other
        stamp = self._timestamp
        mine, theirs = stamp(own), stamp(other)
        if mine != theirs:
            return own if mine > theirs else other
        # "On equal times the greater value hash wins, for every last-write-wins register"
        # (docs/design/decisions.md "D1"), whichever side is own.
        return greater(own, other)

    def _element(self, value: Value) -> Element:
        # Time first, then the hash: the same order as in the merge.
        return element(self._timestamp(value), value_hash(value))

    def check_foreign(self, value: Value) -> bool:
        return True

    def _arguments(self) -> tuple[object, ...]:
        return (self._timestamp,)


class LWPLattice(Lattice):
    """Last write preferred: the inner merge, in which the newer side wins undecided conflicts.

    `timestamp` reads Unix milliseconds from a value. The context carries the preference; swapping
    the sides instead would skip the checks of foreign data, which apply to `other` only.
    """

    def __init__(self, inner: Lattice, timestamp: TimeOf = map_timestamp) -> None:
        _need_function(timestamp, "the timestamp of an LWPLattice")
        self._inner: Final = inner
        self._timestamp: Final = timestamp

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the inner merge, preferring the later side; on equal times neither."""
        if other is None or own is other or not self.accepts(other, context):
            return own
        if own is not None:
            mine, theirs = self._timestamp(own), self._timestamp(other)
            # The newer side wins where nothing else decides; on equal times the value hash does, as
            # without a preference.
            if mine != theirs:
                context = context.preferring(OWN if mine > theirs else OTHER)
        return self._inner.merge(own, other, context)

    def zero(self) -> Value:
        return self._inner.zero()

    def has_order(self) -> bool:
        return self._inner.has_order()

    def within(self) -> tuple[Lattice, ...]:
        return (self._inner,)

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the time of each side, and the inner lattice's answer."""
        stamp = self._timestamp
        # The time of the side decides before anything inside it.
        top = contrast(
            None if own is None else element(stamp(own)),
            None if other is None else element(stamp(other)),
        )
        return wider(top, self._inner.latest(own, other, walk))

    def check_foreign(self, value: Value) -> bool:
        return self._inner.check_foreign(value)

    def child(self, key: Value) -> Lattice | None:
        return self._inner.child(key)

    def resolve_key(self, key: Value) -> Value:
        return self._inner.resolve_key(key)

    def canonical_key(self, key: Value) -> Value:
        return self._inner.canonical_key(key)

    def _arguments(self) -> tuple[object, ...]:
        return self._inner, self._timestamp


class CompareLattice(Lattice):
    """The greater value by a comparison function; the greater value hash where it returns 0.

    `cmp(a, b)` is positive if a is the greater; it must be a total preorder.
    """

    def __init__(self, cmp: Callable[[Value, Value], int]) -> None:
        _need_function(cmp, "the comparison of a CompareLattice")
        self._cmp: Final = cmp

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the greater value."""
        if other is None or own is other:
            return own
        if own is None:
            return other
        order = self._cmp(own, other)
        # The function may be a preorder: without the hash, two replicas could keep one value each.
        if order == 0:
            return _tie(own, other, context)
        return own if order > 0 else other

    def check_foreign(self, value: Value) -> bool:
        return value is not None

    def _arguments(self) -> tuple[object, ...]:
        return (self._cmp,)


class FunctionLattice(Lattice):
    """A merge given as a function of two values that are not None.

    The function must be commutative, associative and idempotent.
    """

    def __init__(self, function: Callable[[Value, Value], Value]) -> None:
        _need_function(function, "the join of a FunctionLattice")
        self._function: Final = function

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return `function(own, other)`.

        Below a last-write-preferred lattice the newer value is the first argument.
        """
        if other is None or own is other or same(own, other):
            return own
        if own is None:
            return other
        function = self._function
        # A function that treats two values as equal keeps the first: the preferred side.
        merged = function(other, own) if context.prefer == OTHER else function(own, other)
        # An operand itself where the result equals it: nothing is stored or sent again.
        if merged is own or same(merged, own):
            return own
        return other if same(merged, other) else merged

    def check_foreign(self, value: Value) -> bool:
        """Return True: the function decides."""
        return True

    def _arguments(self) -> tuple[object, ...]:
        return (self._function,)


def _tie(own: Value, other: Value, context: MergeContext) -> Value:
    # `LWPLattice` prefers the newer side where nothing else decides.
    if context.prefer is not None and not same(own, other):
        return own if context.prefer == OWN else other
    return greater(own, other)
