"""Lattice: what every lattice type offers, and the one rule by which containers join an entry.

A lattice is a pure object that knows how to join two values of its kind. Joins are commutative,
associative and idempotent on values that its own writers produce and on foreign values that pass
`check_foreign` at every level.

Two rules run through all types. A merge looks at its other value before it uses it, reports it when
it is bad, and keeps own; it never raises on foreign data (only `MissingData`, when cells have to be
fetched first). And a merge that changes nothing returns own itself, one whose result equals other
returns other itself, so that nothing is encoded or stored twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mypy_extensions import mypyc_attr

from datalattice.cells import ABSENT, Keyword, Value, same, to_cell, value_hash
from datalattice.errors import UnsupportedOperation
from datalattice.lattice.context import EMPTY_CONTEXT, EntryDropped, MergeContext
from datalattice.lattice.order import (
    NIL,
    NOTHING,
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


@mypyc_attr(allow_interpreted_subclasses=True)
class Lattice:
    """How values of one kind are joined, checked and addressed.

    This base takes nothing: subclasses say what they do.

    Source: CAD024 "Lattice"; docs/lattices.md "The contract".
    """

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the least value that contains both `own` and `other`.

        Returns `own` itself when nothing changes, and `other` itself when the result equals it. An
        `other` that fails `check_foreign` is reported and not taken.
        Raises: MissingData: a needed cell is not at hand.
        Source: CAD024 "merge"; docs/lattices.md "The contract".
        """
        return own

    def zero(self) -> Value:
        """Return the value that changes nothing when merged; nil for most registers.

        Source: CAD024 "zero"; docs/lattices.md "The contract".
        """
        return None

    def check_foreign(self, value: Value) -> bool:
        """Return whether a value from outside has the right shape at its top.

        Never raises on bad data.

        Source: CAD024 "checkForeign"; docs/lattices.md "The contract".
        """
        return False

    def has_order(self) -> bool:
        """Return whether `latest` decides between values of this lattice.

        Without an order, values below an owner that fork cannot be chosen alike by everybody.
        Source: docs/design/forks.md "The order".
        """
        return False

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the greatest element that only `own` has, and the greatest that only `other` has.

        Elements are `(time, key path, tail)`. The greater of the two returned is exact; the lesser
        may be understated, or missing, for it decides nothing. Nil: a value that is not there.

        Cost:   the difference of the two.
        Raises: MissingData: a differing cell is not at hand. UnsupportedOperation: this lattice
                has no order.
        Source: docs/design/forks.md "The order".
        """
        raise UnsupportedOperation(f"{self!r} has no order between values that fork")

    def within(self) -> tuple[Lattice, ...]:
        """Return the lattices that this one is made of, one level down.

        Source: CAD024 "Lattice"; docs/lattices.md "The contract".
        """
        return ()

    def child(self, key: Value) -> Lattice | None:
        """Return the lattice of the value at `key`, nil when there is none.

        Source: CAD024 "path"; docs/lattices.md "The contract".
        """
        return None

    def path(self, *keys: object) -> Lattice | None:
        """Return the lattice at the end of `keys`, nil as soon as one step has none.

        No keys: this lattice.

        Source: CAD024 "path"; docs/lattices.md "The contract".
        """
        found: Lattice | None = self
        for key in keys:
            if found is None:
                return None
            found = found.child(to_cell(key))
        return found

    def resolve_key(self, key: Value) -> Value:
        """Return the canonical key for one from outside (such as JSON), nil when it means nothing.

        Source: CAD024 "resolveKey"; docs/lattices.md "The contract".
        """
        return key

    def canonical_key(self, key: Value) -> Value:
        """Return the key under which a cursor reads and writes here.

        Most lattices take keys as they are.

        Source: docs/design/decisions.md "D10".
        """
        return key

    def resolve_path(self, keys: Iterable[object]) -> list[Value] | None:
        """Return the canonical keys of a path from outside, nil when a step cannot be made.

        Source: CAD024 "resolvePath"; docs/lattices.md "Keys and paths";
                docs/design/decisions.md "D8".
        """
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
        """Return whether a foreign value passes `check_foreign`; report it when not.

        Source: docs/design/decisions.md "D9".
        """
        if self.check_foreign(other):
            return True
        context.report(EntryDropped(context.path))
        return False

    def _arguments(self) -> tuple[object, ...]:
        """Return what the constructor was given, for pickling and printing."""
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
    """The elements of entries that share a lattice.

    Source: docs/design/forks.md "The order".
    """

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
        """Return what the child lattice says; a nil that is there ranks below every value.

        Source: docs/design/forks.md "The order"; docs/design/decisions.md "Law domain".
        """
        return child_latest(self._child, own, other, own_present, other_present, walk)


def child_latest(
    child: Lattice, own: Value, other: Value, own_present: bool, other_present: bool, walk: Walk
) -> Latest:
    """Return the greatest elements of an entry of a container by its lattice.

    Source: docs/design/forks.md "The order".
    """
    found = contrast(
        element(NIL) if own is None and own_present else None,
        element(NIL) if other is None and other_present else None,
    )
    return found if own is None and other is None else wider(found, child.latest(own, other, walk))


def is_greater(
    lattice: Lattice, own: Value, own_hash: bytes, other: Value, other_hash: bytes, walk: Walk
) -> bool:
    """Return whether `own` is the greater of two values; of equal elements the hashes decide.

    Shapes: the hashes are those of the Signed cells around the values. The lattice has an order.
    Cost:   the difference of the two.
    Raises: MissingData: a differing cell is not at hand.
    Source: docs/design/forks.md "The order".
    """
    found = 0 if same(own, other) else verdict(lattice.latest(own, other, walk))
    return own_hash > other_hash if found == 0 else found > 0


def same_elements(lattice: Lattice, own: Value, other: Value, walk: Walk) -> bool:
    """Return whether two values have the same elements: they say the same, spelled differently.

    Source: docs/design/forks.md "The order".
    """
    if same(own, other):
        return True
    return lattice.has_order() and lattice.latest(own, other, walk) == NOTHING


class EntryMerge:
    """Joins the entries of one container whose children share a lattice.

    `join` is what a parallel descent calls.

    Source: CAD024 "Map lattice"; docs/lattices.md "Maps and indexes".
    """

    def __init__(self, child: Lattice, context: MergeContext) -> None:
        self._child: Final = child
        self._context: Final = context

    def join(
        self, key: Value, own: Value, other: Value, own_present: bool, other_present: bool
    ) -> Value:
        """Return the joined value of an entry on which two containers differ, or ABSENT.

        Source: CAD024 "Map lattice"; docs/lattices.md "Maps and indexes".
        """
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
        """Return the joined value of a vector position.

        A position that is not there counts as nil.

        Source: CAD024 "Vector lattice"; docs/lattices.md "Vectors and tuples".
        """
        merged = join_entry(self._child, self._context, position, own, other)
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
    """Return the join of one entry: a value, or ABSENT when there is to be none.

    Absent is below nil and nil below every value, so a relay keeps a nil it receives. An own entry
    with no counterpart is trusted. A bad foreign entry is reported and leaves own as it is; no zero
    is planted for it.
    Source: CAD024 "Map lattice"; docs/lattices.md "Maps and indexes";
            docs/design/decisions.md "Law domain", "D4", "D9".
    """
    if not other_present or other is None:
        return own if own_present or other_present else ABSENT
    inner = context.child(key)
    if not child.accepts(other, inner):
        return own if own_present else ABSENT
    merged = child.merge(own, other, inner)
    if merged is None and own is None and own_present:
        return None
    return ABSENT if merged is None else merged


def as_operand(result: Value, own: Value, other: Value) -> Value:
    """Return `own` or `other` itself where the result equals it.

    Source: CAD024 "Merge efficiency"; docs/lattices.md "The contract".
    """
    if result is own or result is other:
        return result
    if same(result, own):
        return own
    return other if same(result, other) else result


def greater(a: Value, b: Value) -> Value:
    """Return the value with the greater hash, in unsigned byte order.

    `a` when they are the same value.

    Source: docs/design/decisions.md "D1".
    """
    return b if value_hash(b) > value_hash(a) else a


def as_integer(value: Value) -> int | None:
    """Return the number that an Integer is, nil for any other value (a boolean is not one).

    Source: CAD002 "Integer"; docs/cells.md "Encoding table".
    """
    # The type is asked before it is narrowed: compiled code turns what it knows to be an int into a
    # number, and a boolean would become one.
    return value if type(value) is int else None


def is_integer(value: Value) -> bool:
    """Return whether a value is an Integer (a boolean is not).

    Source: CAD002 "Integer"; docs/cells.md "Encoding table".
    """
    return type(value) is int


def is_long(value: Value) -> bool:
    """Return whether a value is an Integer of at most 64 bits.

    Source: CAD002 "Integer"; docs/cells.md "Encoding table".
    """
    number = as_integer(value)
    return number is not None and LONG_MIN <= number <= LONG_MAX


def to_json_key(key: Value) -> Value:
    """Return a key as JSON-style paths write it.

    A Keyword by its name, bytes in hex, everything else unchanged.

    Source: CAD024 "toJSONKey"; docs/lattices.md "Keys and paths".
    """
    if isinstance(key, Keyword):
        return key.name
    if isinstance(key, bytes):
        return key.hex()
    return key
