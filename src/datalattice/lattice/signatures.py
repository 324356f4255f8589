"""Signatures: differences between two roots, by the owners who signed them.

Source: docs/history.md "Who signed what".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from datalattice.cells import EMPTY_INDEX, EMPTY_MAP, Index, Map, Signed, Value, same

_SLOT_DEPTH_MAX: Final = 3
"""Greatest depth of signed values below a root; standard sections have two or three keys."""

ChangedSlot = tuple[tuple[Value, ...], Value, Value]
"""(path, value before, value after); None for an absent value."""


def slot_changes(before: Value, after: Value) -> Iterator[ChangedSlot]:
    """Yield the signed slots that differ between two roots, and unsigned differences by section.

    A slot is a path at which either root has a Signed cell. All differences of a section outside
    slots are yielded as one change at the section's key.
    Raises: MissingData: a needed cell is missing.
    Cost:   proportional to the slots that differ.
    """
    for path, mine, theirs in _below((), before, after):
        # A slot is signed as one value, so it changes as one.
        if _is_slot(mine, theirs):
            yield path, mine, theirs
            continue
        found, rest = _slots(path, mine, theirs)
        yield from found
        # One change per section: its unsigned parts have no owner to list them under.
        if rest:
            yield path, mine, theirs


def _slots(path: tuple[Value, ...], before: Value, after: Value) -> tuple[list[ChangedSlot], bool]:
    """Return the differing slots below a pair, and whether anything else differs there."""
    # Deeper values are data of the section, not slots of owners.
    if len(path) == _SLOT_DEPTH_MAX or not (_is_map(before) or _is_map(after)):
        return [], True
    found: list[ChangedSlot] = []
    rest = False
    for change in _below(path, before, after):
        if _is_slot(change[1], change[2]):
            found.append(change)
        else:
            more, other = _slots(*change)
            found += more
            rest = rest or other
    return found, rest


def _is_slot(before: Value, after: Value) -> bool:
    return isinstance(before, Signed) or isinstance(after, Signed)


def _is_map(value: Value) -> bool:
    return isinstance(value, (Map, Index))


def _below(path: tuple[Value, ...], before: Value, after: Value) -> Iterator[ChangedSlot]:
    """Yield the entries that differ; a value that is not a Map or Index counts as empty."""
    if same(before, after):
        return
    # Both kinds: a value may change from one to the other.
    own = before if isinstance(before, Map) else EMPTY_MAP
    other = after if isinstance(after, Map) else EMPTY_MAP
    for key, _, mine, _, theirs in own.differences(other):
        yield (*path, key), mine, theirs
    left = before if isinstance(before, Index) else EMPTY_INDEX
    right = after if isinstance(after, Index) else EMPTY_INDEX
    for key, _, mine, _, theirs in left.differences(right):
        yield (*path, key), mine, theirs
