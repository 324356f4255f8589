"""Signatures: who signed what differs between two roots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from datalattice.cells import EMPTY_INDEX, EMPTY_MAP, Index, Map, Signed, Value, same

SLOT_DEPTH_MAX: Final = 3
"""How deep below a root signed values are looked for: the standard ones have two or three keys."""

SlotChange = tuple[tuple[Value, ...], Value, Value]
"""(path, value before, value after); nil where there is none."""


def slot_changes(before: Value, after: Value) -> Iterator[SlotChange]:
    """Yield the slots of signers that differ between two roots, and other sections as a whole.

    A slot is where a Signed cell is, or was: the value of one owner in one section. What differs
    in a section beside such slots is one change at the section's key.
    Raises: MissingData: a cell known by hash only is not at hand.
    Cost:   proportional to the slots that differ.
    Source: docs/history.md "Who signed what".
    """
    for path, mine, theirs in _below((), before, after):
        if _is_slot(mine, theirs):
            yield path, mine, theirs
            continue
        found, rest = _slots(path, mine, theirs)
        yield from found
        if rest:
            yield path, mine, theirs


def _slots(path: tuple[Value, ...], before: Value, after: Value) -> tuple[list[SlotChange], bool]:
    """Return the slots below a pair that differs, and whether something else differs there."""
    if len(path) == SLOT_DEPTH_MAX or not (_is_map(before) or _is_map(after)):
        return [], True
    found: list[SlotChange] = []
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


def _below(path: tuple[Value, ...], before: Value, after: Value) -> Iterator[SlotChange]:
    """Yield what differs one key below two values; one that is no container is an empty one."""
    if same(before, after):
        return
    if isinstance(before, Map) or (isinstance(after, Map) and not isinstance(before, Index)):
        own = before if isinstance(before, Map) else EMPTY_MAP
        other = after if isinstance(after, Map) else EMPTY_MAP
        for key, _, mine, _, theirs in own.differences(other):
            yield (*path, key), mine, theirs
    else:
        left = before if isinstance(before, Index) else EMPTY_INDEX
        right = after if isinstance(after, Index) else EMPTY_INDEX
        for key, _, mine, _, theirs in left.differences(right):
            yield (*path, key), mine, theirs
