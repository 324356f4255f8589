"""Order of database entries: by which of two forked databases has the newest write.

An entry's element carries the greatest time inside the entry and ranks above its members. So the
members are compared only if the elements of the two entries are equal.

Source: docs/design/forks.md "The order"; docs/kv.md "Merge".
"""

from __future__ import annotations

from typing import Final

from datalattice.apps.kv.entries import Entry, read_entry
from datalattice.apps.kv.kinds import COUNTER_TAG, SET_TAG, STRUCTURE_KINDS, ZSET_TAG, StructureKind
from datalattice.cells import Value, Vector, Work, value_hash
from datalattice.lattice import (
    NO_LATEST,
    NO_TIME,
    UNTIMED,
    Element,
    EntryOrder,
    Latest,
    Walk,
    as_integer,
    contrast,
    contrast_all,
    element,
    malformed,
    number_tail,
    wider,
)
from datalattice.limits import WORK_LIMITS

_ADDED: Final = b"\x01"
_REMOVED: Final = b"\x00"
_NO_EXPIRY: Final = b"\xff"
"""Ranks nil above every number, as a merge does."""


class _MemberOrder(EntryOrder):
    """The elements of a structure's members, limited to writes later than its base."""

    def __init__(self, kind: StructureKind, base: int = NO_TIME) -> None:
        super().__init__()
        self._kind: Final = kind
        self._base: Final = base

    def entry(
        self,
        key: Value,
        own: Value,
        other: Value,
        own_present: bool,
        other_present: bool,
        walk: Walk,
    ) -> Latest:
        """Return each side's newest time or column that the other lacks."""
        mine = self._elements(key, own) if own_present else []
        theirs = self._elements(key, other) if other_present else []
        return contrast_all(mine, theirs)

    def _elements(self, key: Value, member: Value) -> list[Element]:
        kind = self._kind
        if not isinstance(member, Vector) or not kind.holds(key, member):
            return [malformed(member)]
        if self._base >= 0 and not kind.untimed:
            # "Nothing in it is as old as its base": a foreign structure may violate this rule.
            member = kind.cut(member, self._base)
            if not isinstance(member, Vector):
                return []  # all of it was cleared
        parts = member.to_list()
        if kind.tag == COUNTER_TAG:
            return [  # untimed: columns only grow, so the greater is the newer
                element(UNTIMED, _ADDED + number_tail(_number(parts[0]))),
                element(UNTIMED, _REMOVED + number_tail(_number(parts[1]))),
            ]
        if kind.tag == SET_TAG:
            return [element(_number(parts[1]), _ADDED), element(_number(parts[2]), _REMOVED)]
        if kind.tag == ZSET_TAG:
            score = value_hash(Vector.of((parts[0], parts[1])))
            return [
                element(_number(parts[2]), _ADDED + score),
                element(_number(parts[3]), _REMOVED),
            ]
        return [element(_number(parts[1]), value_hash(member))]


_MEMBERS: Final = {tag: _MemberOrder(kind) for tag, kind in STRUCTURE_KINDS.items()}


def latest_of_entries(own: Value, other: Value, walk: Walk) -> Latest:
    """Return the greatest element of each entry that the other lacks; None is an absent entry.

    Cost:   proportional to the members that differ; times of large structures are cached.
    """
    walk.spend(WORK_LIMITS.entry)
    a, b = read_entry(own), read_entry(other)
    found = contrast(_element(own, a, walk.work), _element(other, b, walk.work))
    if a is None or b is None or found[0] is not None or found[1] is not None:
        return found
    kind = a.kind
    # Different kinds: the entries' own elements have decided.
    if kind is None or b.kind is not kind:
        return NO_LATEST
    order = _MEMBERS[kind.tag] if a.base < 0 else _MemberOrder(kind, a.base)
    return wider(found, order.of_index(a.members, b.members, walk))


def _element(cell: Value, entry: Entry | None, work: Work | None) -> Element | None:
    if cell is None:
        return None
    if entry is None:
        return malformed(cell)
    if entry.is_zero():  # the least of all, and still more than an absent entry
        return element(UNTIMED)
    rank = bytes([entry.rank])
    if entry.kind is None:
        return element(entry.utime, rank + value_hash(cell))
    expiry = _NO_EXPIRY if entry.expire is None else number_tail(entry.expire)
    return element(entry.time(work), rank + number_tail(entry.base) + expiry)


def _number(value: Value) -> int:
    number = as_integer(value)
    assert number is not None
    return number
