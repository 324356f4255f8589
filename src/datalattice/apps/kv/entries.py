"""Entries: a key of a database holds a Vector `[value, type, utime, expire]`.

A hash, set, sorted set or counter is a structure: its value is an Index of members with their own
times, and an optional fifth element is its base, the time up to which it was cleared. All other
entries, tombstones included, are registers: a merge takes one or the other. This module handles
entries; `kinds` handles members.

Source: CAD037 "Tombstones", "Merge", "Entry", "checkForeign"; docs/kv.md "Entries", "Merge", "What
    a merge drops", "What foreigners may send"; docs/design/decisions.md "Base".
"""

from __future__ import annotations

from typing import Final

from datalattice.apps.kv.kinds import STRUCTURE_KINDS, StructureKind
from datalattice.cells import EMPTY_INDEX, Index, Value, Vector, Work, packed_vector
from datalattice.clock import checked_stamp
from datalattice.lattice import NO_TIME, as_integer, is_long

VALUE_TAG: Final = 0
LIST_TAG: Final = 4

VALUE: Final = 0
TAG: Final = 1
UTIME: Final = 2
EXPIRE: Final = 3
BASE: Final = 4

_ENTRY_COUNT: Final = 4
ENTRY_COUNT_MAX: Final = 5

REGISTER_RANK: Final = 9  # a register wins over a structure of the same time
"""Rank of registers. If two entries have equal times, the greater rank wins."""


_TOMBSTONE: Final = "tombstone"
_REGISTER_NAMES: Final = {VALUE_TAG: "value", LIST_TAG: "list"}


class Entry:
    """The elements of an entry; `cell` is its Vector. A class compiles better than a NamedTuple.

    Shapes: value: the element, of a structure perhaps None. kind: None for a register. tag: -1 if
            the type is nil, -2 if it is not an integer. members: those of a structure, empty for a
            register. base: -1 if absent.
    Units:  utime, expire, base: Unix milliseconds.
    """

    __slots__ = ("base", "cell", "expire", "kind", "members", "tag", "utime", "value")

    def __init__(
        self,
        cell: Vector,
        value: Value,
        kind: StructureKind | None,
        tag: int,
        members: Index,
        utime: int,
        expire: int | None,
        base: int,
    ) -> None:
        self.cell: Final = cell
        self.value: Final = value
        self.kind: Final = kind
        self.tag: Final = tag
        self.members: Final = members
        self.utime: Final = utime
        self.expire: Final = expire
        self.base: Final = base

    def __repr__(self) -> str:
        return f"<Entry: {self.type_name}>"

    @property
    def rank(self) -> int:
        """The rank that decides between entries with equal times."""
        return REGISTER_RANK if self.kind is None else self.kind.tag

    @property
    def type_name(self) -> str:
        """The name of the type: value, hash, set, zset, list, counter; tombstone, unknown."""
        if self.kind is not None:
            return self.kind.name
        if self.is_tombstone():
            return _TOMBSTONE
        return _REGISTER_NAMES.get(self.tag, "unknown")

    def is_tombstone(self) -> bool:
        """Return whether the key was deleted: value and type are nil."""
        return self.tag == NO_TIME and self.value is None

    def is_zero(self) -> bool:
        """Return whether the entry is `[nil nil 0 nil]`, which loses to every other entry."""
        return (
            self.utime == 0
            and len(self.cell) == _ENTRY_COUNT
            and self.is_tombstone()
            and self.cell[EXPIRE] is None
        )

    def shows(self, work: Work | None = None) -> bool:
        """Return whether readers see the entry, regardless of its expiry."""
        kind = self.kind
        if kind is None:
            return not self.is_tombstone()
        for key, member in self.members.entries(work):
            if work is not None:
                work.spend(kind.ticks)
            if kind.holds(key, member) and kind.shows(member):
                return True  # one live member shows the structure
        return False

    def time(self, work: Work | None = None) -> int:
        """Return the greatest of `utime` and all times inside."""
        if self.kind is None:
            return self.utime
        return max(self.utime, self.kind.times(self.members, work).last)


def read_entry(cell: Value) -> Entry | None:
    """Return the entry in `cell`, None if it is malformed; its members are not checked."""
    # "An entry is well formed when it is a Vector of at least four with a 64-bit `utime` of at
    # least 0" (docs/kv.md "What foreigners may send").
    if not isinstance(cell, Vector) or len(cell) < _ENTRY_COUNT:
        return None
    parts = cell.to_list(0, ENTRY_COUNT_MAX)
    utime = _time(parts[UTIME])
    if utime is None:
        return None
    given = parts[TAG]
    number = as_integer(given)
    # -2 is neither a known kind nor a tombstone.
    tag = (NO_TIME if given is None else -2) if number is None or number < 0 else number
    expire = _long(parts[EXPIRE])
    value = parts[VALUE]
    kind = None if tag == VALUE_TAG else STRUCTURE_KINDS.get(tag)
    # "Everything else, a type not known here included, is a *register*" (docs/kv.md "Entries").
    if kind is None:
        return Entry(cell, value, None, tag, EMPTY_INDEX, utime, expire, NO_TIME)
    if value is None:
        value = EMPTY_INDEX
    # A structure's expiry counts in a merge, so it must be a number.
    if not isinstance(value, Index) or (expire is None and parts[EXPIRE] is not None):
        return None
    base = NO_TIME
    if len(parts) == ENTRY_COUNT_MAX and parts[BASE] is not None:
        stated = _time(parts[BASE])
        # "Its base nil or from 0 up to below `utime`" (docs/kv.md "What foreigners may send").
        if stated is None or stated >= utime:
            return None
        base = stated
    return Entry(cell, parts[VALUE], kind, tag, value, utime, expire, base)


def is_sound_entry(cell: Value) -> bool:
    """Return whether `cell` is an entry and all its members are well formed.

    Cost:   reads every member of a structure.
    """
    entry = read_entry(cell)
    if entry is None:
        return False
    kind = entry.kind
    if kind is not None:
        for key, member in entry.members.entries():
            if not kind.holds(key, member):
                return False
    return True


def _long(value: Value) -> int | None:
    return as_integer(value) if is_long(value) else None


def _time(value: Value) -> int | None:
    number = _long(value)
    return None if number is None or number < 0 else number


def pack_register(value: Value, tag: int | None, utime: int, expire: int | None) -> Vector:
    """Return the entry of a value or list; of a tombstone if `value` and `tag` are None.

    Units:  utime, expire: Unix milliseconds.
    """
    stamp = checked_stamp(utime)
    if type(value) is str or type(value) is bytes:
        # Most entries: made from its encoding, it needs no objects beside its bytes.
        packed = packed_vector((value, tag, stamp, expire))
        if packed is not None:
            return packed
    return Vector.of((value, tag, stamp, expire))


def structure(
    kind: StructureKind, index: Index, utime: int, expire: int | None, base: int
) -> Vector:
    """Return the entry of a structure: four elements, and a fifth if `base` is not -1.

    Units:  utime, expire, base: Unix milliseconds.
    """
    stamp = checked_stamp(utime)
    if base < 0:  # "usually absent": equal values must be equal bytes
        return Vector.of((index, kind.tag, stamp, expire))
    return Vector.of((index, kind.tag, stamp, expire, base))


ZERO_ENTRY: Final = Vector.of((None, None, 0, None))
"""The entry that loses to every other."""
