"""Joining: the merge of two entries of one key; commutative, associative and idempotent.

The later time wins between registers, and between entries of different kinds. Two structures of one
kind are cut at the greater base and then merged member by member. A structure that wins over an
entry of another kind is cut at the time of that entry. The result equals a replay of all writes in
the order of their times.

Members that both sides share are not visited: the times of own are known (cached for large
structures), and those of other can differ only in the differing members.

Source: CAD037 "Merge"; docs/kv.md "Merge"; docs/design/decisions.md "Base".
"""

from __future__ import annotations

from typing import Final

from datalattice.apps.kv.entries import Entry, read_entry, structure
from datalattice.apps.kv.kinds import HASH, NEVER, MemberTimes, StructureKind
from datalattice.cells import ABSENT, EMPTY_INDEX, Index, Value, Work, same, value_hash
from datalattice.lattice import (
    EMPTY_CONTEXT,
    NO_TIME,
    OTHER,
    OWN,
    EntryDropped,
    ExactKeys,
    MergeContext,
    WriteSuperseded,
    as_operand,
    discard,
    exact_merge,
)


def merge_entries(own: Value, theirs: Entry, context: MergeContext) -> Value:
    """Return the merge of two entries; an operand itself if the result equals it.

    A malformed `own` loses. A malformed member of `theirs` is reported and skipped. Writes that
    lose are reported as `WriteSuperseded`.

    Shapes: own: a stored entry or None. theirs: the other entry.
    Cost:   proportional to the members that differ; a structure that wins over another kind, or
            whose base rises, is walked completely.
    """
    other = theirs.cell
    if own is other or same(own, other):
        return own
    mine = read_entry(own)
    # The zero entry loses to every entry, so the other one is taken without a join.
    if mine is None or mine.is_zero():
        return _sound(theirs, context)
    if theirs.is_zero():
        return own
    if mine.kind is not None and mine.kind is theirs.kind:
        # "Structures of one type merge member by member" (docs/kv.md "Merge").
        merged = _join(mine.kind, mine, theirs, context)
    else:
        # "Different types, or a tombstone: the later one wins" (docs/kv.md "Merge").
        merged = _win(mine, theirs, context)
    return as_operand(merged, own, other)


def _sound(entry: Entry, context: MergeContext) -> Value:
    """Return a foreign entry without malformed members; its own cell if there are none."""
    kind = entry.kind
    if kind is None:
        return entry.cell
    index = _sound_index(kind, entry.members, context)
    if index is entry.members:  # its own cell: nothing is signed anew
        return entry.cell
    return structure(kind, index, entry.utime, entry.expire, entry.base)


def _sound_index(kind: StructureKind, index: Index, context: MergeContext) -> Index:
    made = index
    work = context.work
    for key, member in index.entries(work):
        if work is not None:
            work.spend(kind.ticks)
        # "Leaves out single members in the same way" (docs/kv.md "What foreigners may send").
        if not kind.holds(key, member):
            context.report(EntryDropped((*context.path, key)))
            made = made.remove(key)
    return made


def cut_index(
    kind: StructureKind, index: Index, own_base: int, at: int, work: Work | None = None
) -> Index:
    """Return the members of a structure that are later than `at`; with -1, all of them."""
    if at < 0:
        return index
    # "A deletion also removes increments by writers that had not seen it" (docs/kv.md "Stamps"):
    # its columns have no times.
    if kind.untimed:
        return EMPTY_INDEX if at > own_base else index
    if kind.times(index, work).first > at:  # every write is later: nothing to cut
        return index
    made = index
    for key, member in index.entries(work):
        if work is not None:
            work.spend(kind.ticks)
        left = kind.cut(member, at) if kind.holds(key, member) else None
        if left is None:
            made = made.remove(key)  # a malformed member is removed, too
        elif left is not member:
            made = made.put(key, left)
    return made


# --- one kind -----------------------------------------------------------------------------------


class _Members:
    """Merges the differing members of two structures, and collects the times of other's."""

    def __init__(
        self, kind: StructureKind, at: int, theirs_gone: bool, context: MergeContext
    ) -> None:
        self._kind: Final = kind
        self._at: Final = at
        self._theirs_gone: Final = theirs_gone
        self._context: Final = context
        self._silent: Final = context.report is discard
        self.first = NEVER
        self.last = NO_TIME

    def join(
        self, key: Value, own: Value, other: Value, own_present: bool, other_present: bool
    ) -> Value:
        kind = self._kind
        kept = own if own_present else ABSENT
        work = self._context.work
        if work is not None:
            work.spend(kind.ticks)
        if not kind.holds(key, other):
            self._context.report(EntryDropped((*self._context.path, key)))
            return kept
        self.last = max(self.last, kind.last(other))
        fresh = None if self._theirs_gone else other
        if fresh is not None and self._at >= 0:
            fresh = kind.cut(other, self._at)
        if fresh is None:
            if not own_present:
                self._tell(key, other, None, OTHER)
            return kept
        self.first = min(self.first, kind.first(fresh))
        if not own_present or not kind.holds(key, own):  # a malformed member of own loses
            return fresh
        if same(own, fresh):
            return own
        joined = kind.join(own, fresh)
        self._tell(key, own, joined, OWN)
        self._tell(key, other, joined, OTHER)
        return joined

    def _tell(self, key: Value, member: Value, joined: Value, side: str) -> None:
        if not self._silent and self._kind.loses(member, joined):
            self._context.report(WriteSuperseded((*self._context.path, key), side))


def _join(kind: StructureKind, a: Entry, b: Entry, context: MergeContext) -> Value:
    """Return the merge of two structures of one kind."""
    # Both sides forget what either has cleared: "deleted data stays deleted when an old copy
    # arrives" (docs/kv.md "Stamps").
    base = max(a.base, b.base)
    work = context.work
    times = kind.times(a.members, work)
    mine = cut_index(kind, a.members, a.base, base, work)
    if mine is not a.members:
        _tell_cut(kind, a.members, mine, OWN, context)
    # A counter's columns have no times: the greater base decides for all of them.
    members = _Members(kind, base, kind.untimed and base > b.base, context)
    # Members named by their hash have one valid key; a rival with the same key bytes is malformed.
    rival = exact_merge(members.join, context).rival if kind is HASH else None
    index = mine.merge_with(b.members, members.join, own_keys=kind.hashed, rival=rival, work=work)
    first = min(times.first if mine is a.members else kind.times(mine, work).first, members.first)
    kind.remember(index, MemberTimes(first, max(times.last, members.last)))
    a_time, b_least = max(a.utime, times.last), max(b.utime, members.last)
    expire = _expiry(kind, a, b, a_time, b_least, work)
    return structure(kind, index, max(a_time, b_least), expire, base)


def _expiry(
    kind: StructureKind, a: Entry, b: Entry, a_time: int, b_least: int, work: Work | None
) -> int | None:
    """Return the expiry of the later side; for equal times, None if either is, else the later.

    Shapes: b_least: the time of b from its `utime` and the members that a lacks; shared members are
            read only if they could change the result.
    """
    if a.expire == b.expire:
        return a.expire
    b_time = b_least
    if b_time < a_time:
        b_time = max(b_time, kind.times(b.members, work).last)
    if a_time != b_time:
        return a.expire if a_time > b_time else b.expire
    # "At equal times nil if one is nil, else the later expiry" (docs/kv.md "Merge").
    if a.expire is None or b.expire is None:
        return None
    return max(a.expire, b.expire)


# --- different kinds, or registers --------------------------------------------------------------


def _win(a: Entry, b: Entry, context: MergeContext) -> Value:
    """Return the winner of two registers or of entries of different kinds, cut if necessary."""
    if a.kind is None and b.kind is None:
        # "Registers: the later one; at equal times the one with the greater value hash" (docs/kv.md
        # "Merge").
        a_time, b_time = a.utime, b.utime
        # Times are nearly always different, and then nothing is hashed.
        a_wins = a_time > b_time
        if a_time == b_time:
            a_wins = value_hash(a.cell) > value_hash(b.cell)
    else:
        a_time, b_time = a.time(context.work), b.time(context.work)
        a_wins = (a_time, a.rank) > (b_time, b.rank)
    if a_wins:
        winner, loser, time, past, side = a, b, a_time, b_time, OTHER
    else:
        winner, loser, time, past, side = b, a, b_time, a_time, OWN
    _tell_whole(winner, loser, side, context)
    kind = winner.kind
    if kind is None:
        return winner.cell
    index = winner.members if a_wins else _sound_index(kind, winner.members, context)
    # "A structure that wins drops all members that are not later than the entry it replaced, and
    # stores that entry's time as its base" (docs/kv.md "Merge").
    at = max(winner.base, past if loser.rank > winner.rank else past - 1)
    left = cut_index(kind, index, winner.base, at, context.work)
    _tell_cut(kind, index, left, OWN if a_wins else OTHER, context)
    return structure(kind, left, time, winner.expire, at)


def _tell_whole(winner: Entry, loser: Entry, side: str, context: MergeContext) -> None:
    """Report a losing entry, unless the winner has the same type and value."""
    # Readers lose nothing by a tombstone that loses.
    if context.report is discard or not loser.shows(context.work):
        return
    # "It does not report tombstones, nor values that are equal on both sides" (docs/kv.md "What a
    # merge drops").
    if winner.tag != loser.tag or not same(winner.cell[0], loser.cell[0]):
        context.report(WriteSuperseded(context.path, side))


def _tell_cut(
    kind: StructureKind, index: Index, left: Index, side: str, context: MergeContext
) -> None:
    """Report the members that a cut removed."""
    if context.report is discard or left is index:
        return
    for key, _there, member, _left, now in index.differences(left, context.work):
        if kind.holds(key, member) and kind.loses(member, now):
            context.report(WriteSuperseded((*context.path, key), side))


def _either(own: Value, other: Value) -> Value:
    theirs = read_entry(other)
    return own if theirs is None else merge_entries(own, theirs, EMPTY_CONTEXT)


ENTRY_KEYS: Final = ExactKeys(_either, texts=True)
"""How a store's Index represents its keys."""
