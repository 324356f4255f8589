"""Writing: pure functions that make the next entry of a key from the stored entry and the time.

A write gets a stamp greater than that of the entry it replaces, so it wins over everything its
writer saw. A structure created after a deletion or expiry gets a base, so that older members from
other replicas stay deleted. A write that changes nothing returns the stored entry itself.

Source: CAD037; docs/kv.md "Expiry", "Stamps", "Errors", "Values", "Lists", "Structures", "Hashes",
    "Sets", "Sorted sets", "Counters", "Clean-up"; docs/design/decisions.md "D1", "Base", "D-KV3".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from datalattice.apps.kv.entries import (
    LIST_TAG,
    VALUE_TAG,
    Entry,
    pack_register,
    read_entry,
    structure,
)
from datalattice.apps.kv.kinds import COUNTER, FIELDS, HASH, SET, ZSET, StructureKind
from datalattice.cells import EMPTY_INDEX, EMPTY_VECTOR, Index, Value, Vector, same, value_hash
from datalattice.clock import checked_stamp
from datalattice.errors import UsageError, WrongType
from datalattice.lattice import LONG_MAX, LONG_MIN, NO_TIME

T = TypeVar("T")


class KeyState:
    """The stored entry of a key and its visibility at one time.

    Shapes: entry: None if absent or malformed. expired: its expiry has passed. live: readers see
            it.
    """

    __slots__ = ("entry", "expired", "live")

    def __init__(self, entry: Entry | None, expired: bool, live: bool) -> None:
        self.entry: Final = entry
        self.expired: Final = expired
        self.live: Final = live


def read_slot(stored: Value, now_ms: int) -> KeyState:
    """Return the state of a stored entry at `now_ms`."""
    entry = read_entry(stored)
    if entry is None:
        return KeyState(None, False, False)
    expired = entry.expire is not None and now_ms >= entry.expire
    # "A structure without any member reads as absent" (docs/kv.md "Structures").
    # An emptied structure keeps its times, which a later write has to exceed.
    there = not entry.is_tombstone() if entry.kind is None else len(entry.members) > 0
    return KeyState(entry, expired, there and not expired)


def live_entry(stored: Value, now_ms: int) -> Entry | None:
    """Return the live entry at a time; None if absent, deleted or expired."""
    slot = read_slot(stored, now_ms)
    return slot.entry if slot.live else None


def after(slot: KeyState, now_ms: int) -> int:
    """Return the stamp of a write that replaces the stored entry. Units:  Unix milliseconds."""
    # "So a write wins over what its writer saw, even if the clock stands still or goes back"
    # (docs/kv.md "Stamps").
    return now_ms if slot.entry is None else max(now_ms, slot.entry.time() + 1)


def wrong_type(operation: str, entry: Entry) -> WrongType:
    """Return the error of an operation on a key of another type."""
    return WrongType(
        f"WRONGTYPE Operation {operation} against a key holding {entry.type_name}: "
        "delete the key first, or use the operations of that type"
    )


# --- registers ----------------------------------------------------------------------------------


def put_value_entry(stored: Value, value: Value, ttl_ms: int | None, now_ms: int) -> Vector:
    """Return the entry of a plain value; it replaces any entry and its expiry."""
    expire = None if ttl_ms is None else due(ttl_ms, now_ms)
    return pack_register(value, VALUE_TAG, after(read_slot(stored, now_ms), now_ms), expire)


def delete(stored: Value, now_ms: int) -> tuple[Value, bool]:
    """Return a tombstone and True if the key is live; otherwise the stored entry and False."""
    slot = read_slot(stored, now_ms)
    if not slot.live:
        return stored, False
    # "A tombstone has nil as value and as type" (docs/kv.md "Entries").
    return pack_register(None, None, after(slot, now_ms), None), True


def due(ttl_ms: int, now_ms: int) -> int:
    """Return the time at which a time to live ends. Raises: UsageError: it exceeds 64 bits."""
    if ttl_ms > LONG_MAX - now_ms:
        raise UsageError(
            f"`ttl` exceeds the last time of 64 bits: {ttl_ms} ms; at most {LONG_MAX - now_ms} ms"
        )
    return now_ms + ttl_ms


def expire_at(stored: Value, expire: int | None, now_ms: int) -> tuple[Value, bool]:
    """Return a live entry with a new expiry, or None, and True; else the stored one and False.

    The entry gets a new stamp, so that the expiry replicates.

    Units:  expire: Unix milliseconds.
    """
    slot = read_slot(stored, now_ms)
    entry = slot.entry
    if entry is None or not slot.live:  # an expired key is not brought back by a new expiry
        return stored, False
    stamp = after(slot, now_ms)
    if entry.kind is not None:
        return structure(entry.kind, entry.members, stamp, expire, entry.base), True
    parts = entry.cell.to_list(0, 2)
    return Vector.of((parts[0], parts[1], checked_stamp(stamp), expire)), True


# --- lists --------------------------------------------------------------------------------------


def read_list(stored: Value, operation: str, now_ms: int) -> Vector:
    """Return the elements of a list; empty without a live entry.

    Raises: WrongType: the key holds another type.
    """
    slot = read_slot(stored, now_ms)
    if slot.entry is None or not slot.live:
        return EMPTY_VECTOR
    if slot.entry.tag != LIST_TAG:
        raise wrong_type(operation, slot.entry)
    held = slot.entry.value
    return held if isinstance(held, Vector) else EMPTY_VECTOR


def put_list(stored: Value, items: Vector, now_ms: int) -> Vector:
    """Return the entry of a list with these elements; the expiry of a live list is kept."""
    slot = read_slot(stored, now_ms)
    # "Writes into a structure or list keep its expiry, `set` replaces it" (docs/kv.md "Expiry").
    expire = slot.entry.expire if slot.entry is not None and slot.live else None
    return pack_register(items, LIST_TAG, after(slot, now_ms), expire)


# --- structures ---------------------------------------------------------------------------------


def read_structure(stored: Value, kind: StructureKind, operation: str, now_ms: int) -> Index:
    """Return the members of a structure; empty without a live entry.

    Raises: WrongType: the key holds another type.
    """
    slot = read_slot(stored, now_ms)
    if slot.entry is None or not slot.live:
        return EMPTY_INDEX
    if slot.entry.kind is not kind:
        raise wrong_type(operation, slot.entry)
    return slot.entry.members


class StructureWrite:
    """A structure during one write call."""

    # Read once, so that one call has one stamp.
    def __init__(self, stored: Value, kind: StructureKind, operation: str, now_ms: int) -> None:
        slot = read_slot(stored, now_ms)
        entry = slot.entry
        self._stored: Final = stored
        self._kind: Final = kind
        self._changed = False
        self.index = EMPTY_INDEX
        self._utime = 0
        self._expire: int | None = None
        base = NO_TIME
        if entry is not None:
            if slot.live and entry.kind is not kind:
                raise wrong_type(operation, entry)
            if entry.kind is kind and not slot.expired:
                # The structure is live, or a merge emptied it: continue it.
                self.index, base = entry.members, entry.base
                self._utime, self._expire = entry.utime, entry.expire
            else:
                # "base = time of the replaced entry, or its expiry if that passed and is later"
                base = entry.time()
                if slot.expired and entry.expire is not None:
                    base = max(base, entry.expire)
        self._base: Final = base
        self.stamp: Final = max(now_ms, base + 1)  # later than everything that the base clears

    def member(self, key: Value) -> Vector | None:
        """Return a well-formed member, None if absent or malformed."""
        held = self.index.get(key)
        return held if isinstance(held, Vector) and self._kind.holds(key, held) else None

    def field(self, name: str) -> Vector | None:
        """Return a well-formed field of a hash, None if absent or malformed."""
        held = FIELDS.get(self.index, name)
        return held if isinstance(held, Vector) and HASH.holds(name, held) else None

    def put_field(self, name: str, member: Vector, stamp: int) -> None:
        """Write one field with the time `stamp`."""
        self._replace(FIELDS.put(self.index, name, member), stamp)

    def put(self, key: Value, member: Vector, stamp: int) -> None:
        """Write one member with the time `stamp`."""
        self._replace(self.index.put(key, member), stamp)

    def _replace(self, index: Index, stamp: int) -> None:
        self.index = index
        self._utime = max(self._utime, checked_stamp(stamp))
        self._changed = True

    def entry(self) -> Value:
        """Return the entry to store; the stored one if nothing was written."""
        if not self._changed:
            return self._stored  # "no write when nothing changed"
        return structure(self._kind, self.index, self._utime, self._expire, self._base)


def _number(member: Vector, position: int) -> int:
    value = member[position]
    assert type(value) is int
    return value


def put_fields(
    stored: Value, fields: Iterable[tuple[str, Value]], now_ms: int
) -> tuple[Value, int]:
    """Return the entry of a hash with these fields written, and how many are new."""
    draft = StructureWrite(stored, HASH, "HSET", now_ms)
    fresh = 0
    for field, value in fields:
        old = draft.field(field)
        stamp = draft.stamp if old is None else max(draft.stamp, _number(old, 1) + 1)
        # None removes a field, so it does not count as a new one.
        fresh += (old is None or old[0] is None) and value is not None
        draft.put_field(field, Vector.of((value, stamp)), stamp)
    return draft.entry(), fresh


def delete_fields(stored: Value, fields: Iterable[str], now_ms: int) -> tuple[Value, int]:
    """Return the entry of a hash without these fields, and how many were present."""
    # A removal from an absent structure makes none.
    if not read_structure(stored, HASH, "HDEL", now_ms):
        return stored, 0
    draft = StructureWrite(stored, HASH, "HDEL", now_ms)
    gone = 0
    for field in fields:
        old = draft.field(field)
        if old is not None and old[0] is not None:
            stamp = max(draft.stamp, _number(old, 1) + 1)
            # A removed field keeps its time, so that it wins over an older write of another
            # replica.
            draft.put_field(field, Vector.of((None, stamp)), stamp)
            gone += 1
    return draft.entry(), gone


def add_members(stored: Value, members: Iterable[Value], now_ms: int) -> tuple[Value, int]:
    """Return the entry of a set with these members, and how many are new."""
    draft = StructureWrite(stored, SET, "SADD", now_ms)
    fresh = 0
    for member in members:
        key = value_hash(member)
        old = draft.member(key)
        if old is None:
            fresh += 1
            draft.put(key, Vector.of((member, draft.stamp, 0)), draft.stamp)
            continue
        add, remove = _number(old, 1), _number(old, 2)
        # "Adding a member again makes it outlive an earlier removal elsewhere" (docs/kv.md "Sets").
        stamp = max(draft.stamp, add, remove + 1)
        fresh += add <= remove
        if stamp != add:  # an equal stamp would write the same member
            draft.put(key, Vector.of((old[0], stamp, remove)), stamp)
    return draft.entry(), fresh


def remove_members(
    stored: Value, kind: StructureKind, operation: str, members: Iterable[Value], now_ms: int
) -> tuple[Value, int]:
    """Return the entry of a set or sorted set without these members; and how many it had."""
    if not read_structure(stored, kind, operation, now_ms):
        return stored, 0
    draft = StructureWrite(stored, kind, operation, now_ms)
    gone = 0
    for member in members:
        key = value_hash(member)
        old = draft.member(key)
        if old is None or not kind.shows(old):  # "each known member"
            continue
        parts = old.to_list()
        add = parts[-2]
        assert type(add) is int
        # A stamp equal to the add suffices: "add and remove in the same ms = absent"
        stamp = max(draft.stamp, add)
        draft.put(key, Vector.of((*parts[:-1], stamp)), stamp)
        gone += 1
    return draft.entry(), gone


def add_scored(
    stored: Value, scored: Iterable[tuple[Value, float]], now_ms: int
) -> tuple[Value, int]:
    """Return the sorted set's entry with these scores added, and the number of new members."""
    draft = StructureWrite(stored, ZSET, "ZADD", now_ms)
    fresh = 0
    for member, score in scored:
        key = value_hash(member)
        old = draft.member(key)
        if old is None:
            fresh += 1
            draft.put(key, Vector.of((member, score, draft.stamp, 0)), draft.stamp)
            continue
        add, remove = _number(old, 2), _number(old, 3)
        stays = same(old[1], score)
        # "The score belongs to the later add" (docs/kv.md "Merge"): a new score needs a later one.
        stamp = max(draft.stamp, add if stays else add + 1, remove + 1)
        fresh += add <= remove
        if stamp != add or not stays:
            draft.put(key, Vector.of((old[0], score, stamp, remove)), stamp)
    return draft.entry(), fresh


def count_up(stored: Value, replica: str, amount: int, now_ms: int) -> tuple[Value, int]:
    """Return the entry of a counter with `amount` added to this replica's column, and the total.

    Raises: UsageError: the column or the total would exceed 64 bits.
    """
    operation = "INCRBY" if amount >= 0 else "DECRBY"
    draft = StructureWrite(stored, COUNTER, operation, now_ms)
    old = draft.member(replica)
    positive, negative = (0, 0) if old is None else (_number(old, 0), _number(old, 1))
    if amount >= 0:
        positive += amount
    else:  # a column only grows: a decrease counts in its own number
        negative -= amount
    if max(positive, negative) > LONG_MAX:
        raise UsageError(
            f"{operation} by {amount}: the count of replica {replica!r} would exceed 64 bits"
        )
    # An amount of 0 is written, too, as the reference does.
    draft.put(replica, Vector.of((positive, negative)), draft.stamp)
    total = total_of(draft.index)
    # Counts of separate replicas may sum beyond 64 bits; changes towards the range are allowed.
    if (amount > 0 and total > LONG_MAX) or (amount < 0 and total < LONG_MIN):
        raise UsageError(f"{operation} by {amount}: the total {total} would exceed 64 bits")
    return draft.entry(), total


def total_of(index: Index) -> int:
    """Return the sum of a counter's columns."""
    total = 0
    for key, member in index.entries():
        if COUNTER.holds(key, member):
            assert isinstance(member, Vector)
            total += _number(member, 0) - _number(member, 1)
    return total


# --- clean-up -----------------------------------------------------------------------------------


def is_garbage(stored: Value, min_age_ms: int, now_ms: int) -> bool:
    """Return whether a clean-up removes an entry: it is not visible and old enough.

    The age counts from the later of `utime` and a passed expiry; 0 removes every invisible entry.
    """
    slot = read_slot(stored, now_ms)
    entry = slot.entry
    # "Tombstones, expired entries and structures emptied by a merge" (docs/kv.md "Clean-up").
    if entry is None or slot.live:
        return False
    # "Counted from `utime` or from a later expiry that has passed" (docs/kv.md "Clean-up").
    since = entry.utime
    if slot.expired and entry.expire is not None:
        since = max(since, entry.expire)
    return max(now_ms - since, 0) >= min_age_ms
