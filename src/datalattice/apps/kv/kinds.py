"""Kinds: the structures of a database; each defines the shape, times and merge of its members.

A member carries the times of its writes, so that two replicas merge member by member. A cut at a
time removes writes up to that time; so a delete removes older members from a structure that also
has later ones. Counters carry no times: a cut removes all their columns.

Source: CAD037 "Types", "Merge", "Hash", "Set", "Sorted set", "Counter"; docs/design/decisions.md
    "Base", "D1"; docs/kv.md "Structures", "What foreigners may send", "Merge", "What a merge
    drops".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from datalattice.cells import Index, Value, Vector, Work, same, value_hash
from datalattice.lattice import LONG_MAX, ExactKeys, as_integer, is_long, is_sound_key
from datalattice.limits import WORK_LIMITS

HASH_TAG: Final = 1
SET_TAG: Final = 2
ZSET_TAG: Final = 3
COUNTER_TAG: Final = 5


NEVER: Final = LONG_MAX + 1
"""First time of a structure from which no cut removes anything."""

TIMES_WALK_MAX: Final = 64
"""Most members of a structure whose times are not cached."""

TIMES_CACHE_MAX: Final = 8_192
"""Most structures in the cache of times."""


class MemberTimes(NamedTuple):
    """The times in a structure.

    Shapes: first: a cut below this time removes nothing. last: the greatest time, -1 for none.
    """

    first: int
    last: int


NO_TIMES: Final = MemberTimes(NEVER, -1)
_times: dict[tuple[int, bytes], MemberTimes] = {}


def _is_time(value: Value) -> bool:
    number = as_integer(value)
    return number is not None and number >= 0 and is_long(value)


def _slot(member: Value, position: int) -> int:
    """Return the time or count at a position of a well-formed member."""
    assert isinstance(member, Vector)
    number = as_integer(member[position])
    assert number is not None
    return number


class StructureKind:
    """One kind of structure. All methods except `holds` expect well-formed members.

    Shapes: untimed: members carry no times. hashed: a member's key is the hash of the member.
    """

    tag: int = 0
    name: str = ""
    untimed: bool = False
    hashed: bool = False

    @property
    def ticks(self) -> int:
        """Work of reading a member; a hashed member must be hashed."""
        return WORK_LIMITS.compared + (WORK_LIMITS.hashed if self.hashed else 0)

    def holds(self, key: Value, member: Value) -> bool:
        """Return whether a member has the right shape for its key."""
        return False

    def last(self, member: Value) -> int:
        """Return the greatest time in a member, -1 for none."""
        return -1

    def first(self, member: Value) -> int:
        """Return the least time at which a cut changes the member."""
        return NEVER

    def cut(self, member: Value, at: int) -> Value:
        """Return the member with only its writes later than `at`; None if there are none."""
        return member

    def join(self, own: Value, other: Value) -> Value:
        """Return the merge of two different members with one key."""
        return own

    def shows(self, member: Value) -> bool:
        """Return whether readers see the member."""
        return True

    def loses(self, member: Value, joined: Value) -> bool:
        """Return whether readers see something in `member` that `joined`, or None, lacks."""
        return self.shows(member) and (joined is None or not self.shows(joined))

    def times(self, index: Index, work: Work | None = None) -> MemberTimes:
        """Return the times in a structure; those of large structures are cached.

        Cost:   reads all members, once for a large structure.
        """
        # "The times inside structures of more than 64 members are remembered" (docs/kv.md "Merge").
        if len(index) <= TIMES_WALK_MAX:
            return self._walk(index, work)
        known = _times.get((self.tag, value_hash(index)))
        if known is None:
            known = self._walk(index, work)
            self.remember(index, known)
        return known

    def remember(self, index: Index, times: MemberTimes) -> None:
        """Cache the times of a structure."""
        if len(index) > TIMES_WALK_MAX:
            if len(_times) >= TIMES_CACHE_MAX:
                _times.clear()  # all at once: a cache of times needs no order of use
            _times[self.tag, value_hash(index)] = times

    def _walk(self, index: Index, work: Work | None) -> MemberTimes:
        first, last = NEVER, -1
        for key, member in index.entries(work):
            if work is not None:
                work.spend(self.ticks)
            if self.holds(key, member):
                first = min(first, self.first(member))
                last = max(last, self.last(member))
        return MemberTimes(first, last)


class HashKind(StructureKind):
    """Fields `[value time]`; the later write wins. A deleted field is `[nil time]`."""

    tag = HASH_TAG
    name = "hash"

    def holds(self, key: Value, member: Value) -> bool:
        """Return whether a field is `[value time]` and its key is valid."""
        is_field = isinstance(member, Vector) and len(member) == 2 and _is_time(member[1])
        return is_field and is_sound_key(key)

    def last(self, member: Value) -> int:
        """Return the time of a field."""
        return _slot(member, 1)

    def first(self, member: Value) -> int:
        """Return the time of a field."""
        return _slot(member, 1)

    def cut(self, member: Value, at: int) -> Value:
        """Return the field, None if it is not later than `at`."""
        return None if _slot(member, 1) <= at else member  # "nothing inside is that old"

    def join(self, own: Value, other: Value) -> Value:
        """Return the later field; for equal times, the one with the greater hash."""
        mine, theirs = _slot(own, 1), _slot(other, 1)
        # "Of a hash field the later" (docs/kv.md "Merge"); at equal times the greater hash, so that
        # all replicas agree.
        if mine != theirs:
            return own if mine > theirs else other
        return other if value_hash(other) > value_hash(own) else own

    def shows(self, member: Value) -> bool:
        """Return whether the field has a value."""
        return isinstance(member, Vector) and member[0] is not None

    def loses(self, member: Value, joined: Value) -> bool:
        """Return whether the field had a value that `joined` does not have."""
        assert isinstance(member, Vector)
        now = joined[0] if isinstance(joined, Vector) else None
        return member[0] is not None and not same(member[0], now)


def _is_named(key: Value, member: Vector) -> bool:
    # A bad member is one "under a key that is not the hash of the member" (docs/kv.md "What
    # foreigners may send").
    return isinstance(key, bytes) and key == value_hash(member[0])


class SetKind(StructureKind):
    """Members `[member add remove]` under the member's hash; present if add > remove."""

    tag = SET_TAG
    name = "set"
    hashed = True

    def holds(self, key: Value, member: Value) -> bool:
        """Return whether a member is `[member add remove]` under its own hash."""
        return (
            isinstance(member, Vector)
            and len(member) == 3
            and _is_time(member[1])
            and _is_time(member[2])
            and _is_named(key, member)
        )

    def last(self, member: Value) -> int:
        """Return the later of the two times."""
        return max(_slot(member, 1), _slot(member, 2))

    def first(self, member: Value) -> int:
        """Return the earlier nonzero time; 0 if both are 0."""
        add, remove = _slot(member, 1), _slot(member, 2)
        return min(add, remove) or max(add, remove)

    def cut(self, member: Value, at: int) -> Value:
        """Return the member with its times up to `at` set to 0; None if both are."""
        assert isinstance(member, Vector)
        add, remove = _slot(member, 1), _slot(member, 2)
        left = add if add > at else 0, remove if remove > at else 0
        if left == (0, 0):
            return None
        # The same object if nothing was cut: its hash is known.
        return member if left == (add, remove) else Vector.of((member[0], *left))

    def join(self, own: Value, other: Value) -> Value:
        """Return the member with the later of each time."""
        assert isinstance(own, Vector)
        # "A set keeps the later add and the later remove" (docs/kv.md "Merge").
        add = max(_slot(own, 1), _slot(other, 1))
        remove = max(_slot(own, 2), _slot(other, 2))
        for side in (own, other):
            if _slot(side, 1) == add and _slot(side, 2) == remove:
                return side
        return Vector.of((own[0], add, remove))

    def shows(self, member: Value) -> bool:
        """Return whether the member was added after it was last removed."""
        # "A set member removed in the millisecond in which it was added elsewhere is gone"
        # (docs/kv.md "Structures").
        return _slot(member, 1) > _slot(member, 2)


class ZSetKind(StructureKind):
    """Members `[member score add remove]` under the member's hash; add is the score's time."""

    tag = ZSET_TAG
    name = "zset"
    hashed = True

    def holds(self, key: Value, member: Value) -> bool:
        """Return whether a member is `[member score add remove]` under its own hash."""
        return (
            isinstance(member, Vector)
            and len(member) == 4
            # Scores are Doubles: an integer would compare equal and hash differently.
            and type(member[1]) is float
            and _is_time(member[2])
            and _is_time(member[3])
            and _is_named(key, member)
        )

    def last(self, member: Value) -> int:
        """Return the later of the two times."""
        return max(_slot(member, 2), _slot(member, 3))

    def first(self, member: Value) -> int:
        """Return the least time at which a cut changes the member."""
        assert isinstance(member, Vector)
        add, remove = _slot(member, 2), _slot(member, 3)
        if add == 0 and value_hash(member[1]) != _ZERO_SCORE:
            return 0
        return min(add, remove) or max(add, remove)

    def cut(self, member: Value, at: int) -> Value:
        """Return the member with its times up to `at` set to 0; None if both are."""
        assert isinstance(member, Vector)
        add, remove = _slot(member, 2), _slot(member, 3)
        if add > at and remove > at:
            return member
        if add <= at and remove <= at:
            return None
        if add > at:
            return Vector.of((member[0], member[1], add, 0)) if remove else member
        return Vector.of((member[0], 0.0, 0, remove))  # the score belongs to the add that was cut

    def join(self, own: Value, other: Value) -> Value:
        """Return the member with the later of each time, and the score of the later add."""
        assert isinstance(own, Vector)
        assert isinstance(other, Vector)
        mine, theirs = _slot(own, 2), _slot(other, 2)
        # "The score belongs to the later add" (docs/kv.md "Merge").
        scored = own if mine > theirs else other
        # "tie greater value hash of [member score]"
        if mine == theirs and _score_hash(own) > _score_hash(other):
            scored = own
        remove = max(_slot(own, 3), _slot(other, 3))
        if _slot(scored, 3) == remove:
            return scored
        return Vector.of((scored[0], scored[1], scored[2], remove))

    def shows(self, member: Value) -> bool:
        """Return whether the member was added after it was last removed."""
        return _slot(member, 2) > _slot(member, 3)

    def loses(self, member: Value, joined: Value) -> bool:
        """Return whether the member was present and is now absent or has another score."""
        if not self.shows(member):
            return False
        assert isinstance(member, Vector)
        if not isinstance(joined, Vector) or not self.shows(joined):
            return True
        return not same(member[1], joined[1])


_ZERO_SCORE: Final = value_hash(0.0)


def _score_hash(member: Vector) -> bytes:
    return value_hash(Vector.of((member[0], member[1])))


class CounterKind(StructureKind):
    """Columns `[positive negative]` by replica; both numbers only grow."""

    tag = COUNTER_TAG
    name = "counter"
    untimed = True

    def holds(self, key: Value, member: Value) -> bool:
        """Return whether a replica's column is `[positive negative]`."""
        return (
            isinstance(member, Vector)
            and len(member) == 2
            and _is_time(member[0])
            and _is_time(member[1])
        )

    def times(self, index: Index, work: Work | None = None) -> MemberTimes:
        """Return no times: counters carry none."""
        return NO_TIMES

    def shows(self, member: Value) -> bool:
        """Return whether the replica counted anything."""
        return _slot(member, 0) != 0 or _slot(member, 1) != 0

    def loses(self, member: Value, joined: Value) -> bool:
        """Return whether a cut removed the column; merges keep every count."""
        return joined is None and self.shows(member)

    def join(self, own: Value, other: Value) -> Value:
        """Return the greater of each of the two numbers."""
        # "A counter keeps the greater number of each column" (docs/kv.md "Merge"): each column has
        # one writer and only grows.
        positive = max(_slot(own, 0), _slot(other, 0))
        negative = max(_slot(own, 1), _slot(other, 1))
        for side in (own, other):
            if _slot(side, 0) == positive and _slot(side, 1) == negative:
                return side
        return Vector.of((positive, negative))


HASH: Final = HashKind()
SET: Final = SetKind()
ZSET: Final = ZSetKind()
COUNTER: Final = CounterKind()


def _either(own: Value, other: Value) -> Value:
    """Return the merge of two fields of one name; a malformed field loses."""
    if not HASH.holds("", own):
        return other  # "malformed inner values … dropped one by one"
    return HASH.join(own, other) if HASH.holds("", other) else own


FIELDS: Final = ExactKeys(_either, texts=True)
"""How the Index of a hash represents its fields."""

STRUCTURE_KINDS: Final[dict[int, StructureKind]] = {
    kind.tag: kind for kind in (HASH, SET, ZSET, COUNTER)
}
