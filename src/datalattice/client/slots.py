"""Slots: the parts of a root that an edit changed, in the form that is sent to a node.

An edit is made on a copy of the root. A *slot* is a path with its value before and after: the entry
of an owner, or the deepest path that the lattice names. A node sets all slots of an edit at once if
each still has the value that the edit began with. Otherwise it sets none, and the edit runs again
on the newer root. So each edit is applied once, to the root that it read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    Keyword,
    Map,
    Value,
    Vector,
    brief,
    same,
    value_hash,
)
from datalattice.errors import UsageError
from datalattice.lattice import (
    KeyedLattice,
    Lattice,
    OwnerLattice,
    SignedLattice,
    assoc_in,
    get_in,
)

SLOTS_MAX: Final = 1_000  # a node sets them without doing anything else meanwhile
"""Most slots of one edit."""

_SLOT_DEPTH_MAX: Final = 8  # deeper paths are inside one signed slot
"""Most keys of a slot's path."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A path in a root with its value before and after an edit; None: no value."""

    path: tuple[Value, ...]
    before: Value
    after: Value

    def to_cell(self) -> Vector:
        """Return the slot as it is sent: [path, hash of the value before, value after]."""
        # The hash is enough, because the node has the value.
        return Vector.of((Vector.of(self.path), value_hash(self.before), self.after))


WantedSlot = tuple[tuple[Value, ...], Value, Value]
"""A path, the hash of its value before, and its value after."""


class SlotMoved(Exception):
    """A slot no longer has the value that the edit began with."""


def changed_slots(lattice: Lattice, before: Value, after: Value) -> list[Slot]:
    """Return the slots that differ between two roots.

    Raises: UsageError: more than `SLOTS_MAX` differ.
    """
    slots: list[Slot] = []
    for slot in differing_slots(lattice, before, after):
        if len(slots) == SLOTS_MAX:
            raise UsageError(f"one edit changes at most {SLOTS_MAX} slots; make several edits")
        slots.append(slot)
    return slots


def differing_slots(lattice: Lattice, before: Value, after: Value) -> Iterator[Slot]:
    """Yield the slots that differ between two roots, without a limit."""
    return _differing(lattice, (), before, after)


def _differing(
    lattice: Lattice, path: tuple[Value, ...], before: Value, after: Value
) -> Iterator[Slot]:
    if same(before, after):
        return
    # A missing value is compared as empty: all parts of `after` are new.
    own = _emptied(lattice.zero()) if before is None else before
    if _is_entered(lattice, path) and _are_containers(own, after):
        assert isinstance(own, (Map, Index))
        # The two are of one kind, which the checker cannot see.
        for key, _, mine, _, theirs in own.differences(after):  # type: ignore[arg-type]
            below = lattice.child(key)
            if below is None:
                raise UsageError(f"the lattice has nothing at {brief((*path, key))}")
            yield from _differing(below, (*path, key), mine, theirs)
        return
    yield Slot(path, before, after)


def _emptied(zero: Value) -> Value:
    """Return an empty container of the kind of a zero, which may itself have entries."""
    if isinstance(zero, Index):
        return EMPTY_INDEX
    return EMPTY_MAP if isinstance(zero, Map) else zero


def _is_entered(lattice: Lattice, path: tuple[Value, ...]) -> bool:
    if isinstance(lattice, (KeyedLattice, OwnerLattice)):
        return True
    # The level above signed values, so that each owner's value is a slot.
    return len(path) < _SLOT_DEPTH_MAX and isinstance(lattice.child(Keyword("any")), SignedLattice)


def _are_containers(before: Value, after: Value) -> bool:
    return any(isinstance(before, kind) and isinstance(after, kind) for kind in (Map, Index))


def read_slots(cell: Value) -> list[WantedSlot]:
    """Return (path, hash of the value before, value after) of slots in their sent form.

    Raises: UsageError: the cell has another shape.
    """
    if not isinstance(cell, Vector) or not 0 < len(cell) <= SLOTS_MAX:
        raise UsageError(f"slots are a vector of 1 to {SLOTS_MAX}")
    found: list[WantedSlot] = []
    for one in cell:
        if not isinstance(one, Vector) or len(one) != 3 or not isinstance(one[0], Vector):
            raise UsageError(f"a slot is [path hash value], got {brief(one)}")
        if not 0 < len(one[0]) <= _SLOT_DEPTH_MAX:
            raise UsageError(f"the path of a slot has 1 to {_SLOT_DEPTH_MAX} keys")
        found.append((tuple(one[0]), one[1], one[2]))
    return found


def present_slots(root: Value, wanted: Iterable[WantedSlot]) -> list[Slot]:
    """Return slots with their values in `root`.

    Raises: SlotMoved: one has another value than expected.
    """
    found: list[Slot] = []
    for path, expected, after in wanted:
        before = get_in(root, path)
        # "The node sets all of them in its live value at once if each still has that hash"
        # (docs/design/control.md).
        if value_hash(before) != expected:
            raise SlotMoved  # "otherwise it sets none": the edit is made again
        found.append(Slot(path, before, after))
    return found


def with_slots(lattice: Lattice, root: Value, slots: Iterable[Slot]) -> Value:
    """Return a root with the slots' values after the edit."""
    for slot in slots:
        # An entry without a value after the edit is removed, not set to None.
        if slot.after is not None:
            root = assoc_in(root, slot.path, slot.after, lattice)
            continue
        container = get_in(root, slot.path[:-1])
        if isinstance(container, (Map, Index)):
            root = assoc_in(root, slot.path[:-1], container.remove(slot.path[-1]), lattice)
    return root
