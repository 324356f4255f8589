"""Typed operations: lists, counters, hashes, sets and sorted sets under the keys of a store.

Every write is one atomic update of the store, so threads may share a database.

Source: CAD037; docs/kv.md "Operations", "Lists", "Counters", "Hashes", "Sets", "Sorted sets",
    "Structures", "As one value".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from datalattice.apps.kv.keys import checked_text, checked_values
from datalattice.apps.kv.kinds import COUNTER, FIELDS, HASH, SET, ZSET, StructureKind
from datalattice.apps.kv.operations import Operations
from datalattice.apps.kv.showing import (
    by_field,
    by_score,
    checked_score,
    visible_fields,
    visible_members,
)
from datalattice.apps.kv.writing import (
    add_members,
    add_scored,
    count_up,
    delete_fields,
    put_fields,
    put_list,
    read_list,
    read_structure,
    remove_members,
    total_of,
)
from datalattice.apps.valuetypes import T
from datalattice.cells import Index, Map, Set, Value, Vector, to_cell, to_cells, value_hash
from datalattice.errors import UsageError
from datalattice.lattice import is_long

INFINITY: Final = float("inf")


class TypedOperations(Operations[T]):
    """The operations on lists, counters, hashes, sets and sorted sets.

    Each raises `WrongType` if the key is live with another type. A key that is not live reads as
    empty, and its first write creates the list or structure.
    """

    __slots__ = ()

    # --- lists ---

    def lpush(self, key: str, *values: object) -> int:
        """Prepend the values one by one, so the last comes first; return the new length."""
        cells = to_cells(values)[::-1]  # "lpush a b gives b a ..."
        return self._push(key, "LPUSH", cells, [])

    def rpush(self, key: str, *values: object) -> int:
        """Append values in order; return the new length."""
        return self._push(key, "RPUSH", [], to_cells(values))

    def _push(self, key: str, operation: str, front: list[Value], back: list[Value]) -> int:
        def write(stored: Value, now_ms: int) -> tuple[Value, int]:
            held = read_list(stored, operation, now_ms)
            if not front and not back:
                return stored, len(held)
            # "Work at the end of a list costs one path, at its front all of it" (docs/kv.md
            # "Lists").
            items = Vector.of(front).concat(held) if front else held.extend(back)
            return put_list(stored, items, now_ms), len(items)

        return self._write(key, write)

    def lpop(self, key: str) -> Any:
        """Remove and return the first element; None if the list is empty."""

        def write(stored: Value, now_ms: int) -> tuple[Value, Value]:
            held = read_list(stored, "LPOP", now_ms)
            # An empty list is not written again.
            return (put_list(stored, held.drop(1), now_ms), held[0]) if held else (stored, None)

        return self._write(key, write)

    def rpop(self, key: str) -> Any:
        """Remove and return the last element; None if the list is empty."""

        def write(stored: Value, now_ms: int) -> tuple[Value, Value]:
            held = read_list(stored, "RPOP", now_ms)
            if not held:
                return stored, None
            return put_list(stored, held.take(len(held) - 1), now_ms), held[-1]

        return self._write(key, write)

    def lrange(self, key: str, start: int = 0, stop: int = -1) -> Vector:
        """Return the elements `start` to `stop`, both included; below 0 they count from the end."""
        stored, now_ms = self._stored(key)
        held = read_list(stored, "LRANGE", now_ms)
        first, end = positions(start, stop, len(held))
        # The whole list is the stored Vector itself.
        return held if (first, end) == (0, len(held)) else Vector.of(held.to_list(first, end))

    def llen(self, key: str) -> int:
        """Return the length of a list; 0 if the key is not live."""
        stored, now_ms = self._stored(key)
        return len(read_list(stored, "LLEN", now_ms))

    # --- counters ---

    def incr(self, key: str, amount: int = 1) -> int:
        """Add `amount`, which may be negative; return the total of all replicas.

        Raises: UsageError: `amount` is not an integer of 64 bits, or the count would exceed them.
        """
        if not is_long(to_cell(amount)):
            raise UsageError(f"`amount` is not an integer of at most 64 bits: {amount!r}")
        # "Each replica counts in columns of its own, under its name" (docs/kv.md "Counters").
        replica = self._replica
        return self._write(key, lambda stored, now: count_up(stored, replica, amount, now))

    def decr(self, key: str, amount: int = 1) -> int:
        """Subtract `amount`; return the total of all replicas.

        Raises: UsageError: as `incr`, or `amount` is -2**63, whose opposite has more than 64 bits.
        """
        if not is_long(to_cell(amount)) or amount == -(2**63):
            raise UsageError(f"`amount` is not an integer from -2**63 + 1 to 2**63 - 1: {amount!r}")
        return self.incr(key, -amount)

    def count(self, key: str) -> int:
        """Return the total of a counter; 0 if the key is not live."""
        stored, now_ms = self._stored(key)
        return total_of(read_structure(stored, COUNTER, "COUNT", now_ms))

    # --- hashes ---

    def _members(self, key: str, kind: StructureKind, operation: str) -> Index:
        stored, now_ms = self._stored(key)
        return read_structure(stored, kind, operation, now_ms)

    def hset(self, key: str, field: str, value: object) -> bool:
        """Set one field of a hash; return whether it is new. A value of None removes the field.

        Raises: UsageError: the field is too long.
        """
        return self.hset_many(key, {field: value}) == 1

    def hset_many(self, key: str, fields: Mapping[str, object]) -> int:
        """Set fields of a hash in one update; return how many are new. Raises: as `hset`."""
        # Converted before the update: one bad value writes none of them.
        cells = list(checked_values(fields, "a field", to_cell).items())
        if not cells:
            return 0
        return self._write(key, lambda stored, now: put_fields(stored, cells, now))

    def hget(self, key: str, field: str) -> Any:
        """Return the value of one field, None if it is absent."""
        member = FIELDS.get(self._members(key, HASH, "HGET"), checked_text(field, "a field"))
        # A malformed field, which a peer may have sent, reads as absent.
        return member[0] if HASH.holds(field, member) and isinstance(member, Vector) else None

    def hdel(self, key: str, *fields: str) -> int:
        """Remove fields of a hash; return how many were present."""
        names = [checked_text(field, "a field") for field in fields]
        return self._write(key, lambda stored, now: delete_fields(stored, names, now))

    def hexists(self, key: str, field: str) -> bool:
        """Return whether a hash has a field."""
        return self.hget(key, field) is not None

    def hgetall(self, key: str) -> Index | Map:
        """Return the fields of a hash with their values: an Index, in the order of their bytes.

        If a field is longer than the 32 bytes that an Index compares, the result is a Map.
        """
        return by_field(self._members(key, HASH, "HGETALL"))

    def hlen(self, key: str) -> int:
        """Return the number of fields of a hash."""
        return sum(1 for _field in visible_fields(self._members(key, HASH, "HLEN")))

    # --- sets ---

    def sadd(self, key: str, *members: object) -> int:
        """Add members to a set; return how many are new."""
        cells = to_cells(members)
        return self._write(key, lambda stored, now: add_members(stored, cells, now))

    def srem(self, key: str, *members: object) -> int:
        """Remove members from a set; return how many were present."""
        cells = to_cells(members)
        return self._write(key, lambda stored, now: remove_members(stored, SET, "SREM", cells, now))

    def sismember(self, key: str, member: object) -> bool:
        """Return whether a set has a member."""
        name = value_hash(to_cell(member))
        held = self._members(key, SET, "SISMEMBER").get(name)
        return SET.holds(name, held) and SET.shows(held)  # malformed members read as absent

    def smembers(self, key: str) -> Set:
        """Return the members of a set."""
        members = visible_members(SET, self._members(key, SET, "SMEMBERS"))
        return Set.of([member[0] for _name, member in members])

    def scard(self, key: str) -> int:
        """Return the number of members of a set."""
        return sum(1 for _member in visible_members(SET, self._members(key, SET, "SCARD")))

    # --- sorted sets ---

    def zadd(self, key: str, score: float, member: object) -> int:
        """Add a member or change its score; return 1 if the member is new, otherwise 0.

        Raises: TypeMismatch: `score` is not an int or float.
                UsageError: `score` is NaN or does not fit a float.
        """
        return self.zadd_many(key, [(score, member)])

    def zadd_many(self, key: str, scored: Iterable[tuple[float, object]]) -> int:
        """Add members with scores, as (score, member), in one update; return how many are new.

        Raises: as `zadd`.
        """
        cells = [(to_cell(member), checked_score(score)) for score, member in scored]
        return self._write(key, lambda stored, now: add_scored(stored, cells, now))

    def zrem(self, key: str, *members: object) -> int:
        """Remove members from a sorted set; return how many were present."""
        cells = to_cells(members)
        return self._write(
            key, lambda stored, now: remove_members(stored, ZSET, "ZREM", cells, now)
        )

    def zscore(self, key: str, member: object) -> float | None:
        """Return the score of a member, None if it is absent."""
        name = value_hash(to_cell(member))
        held = self._members(key, ZSET, "ZSCORE").get(name)
        if not ZSET.holds(name, held) or not ZSET.shows(held) or not isinstance(held, Vector):
            return None
        score = held[1]
        return score if isinstance(score, float) else None

    def zrange(self, key: str, start: int = 0, stop: int = -1) -> Vector:
        """Return the members at positions start to stop by score, both included.

        Members with equal scores are ordered by hash; negative positions count from the end.
        """
        return Vector.of([member for member, _score in self.zitems(key, start, stop)])

    def zitems(self, key: str, start: int = 0, stop: int = -1) -> list[tuple[Value, float]]:
        """Return (member, score) at positions start to stop by score, as `zrange`."""
        ranked = by_score(self._members(key, ZSET, "ZRANGE"))
        first, end = positions(start, stop, len(ranked))
        return ranked[first:end]

    def zrange_by_score(self, key: str, low: float = -INFINITY, high: float = INFINITY) -> Vector:
        """Return the members with scores from low to high, both included, by score.

        Raises: TypeMismatch, UsageError: as `zadd`.
        """
        least, most = checked_score(low), checked_score(high)
        ranked = by_score(self._members(key, ZSET, "ZRANGEBYSCORE"))
        return Vector.of([member for member, score in ranked if least <= score <= most])

    def zcard(self, key: str) -> int:
        """Return the number of members of a sorted set."""
        return sum(1 for _member in visible_members(ZSET, self._members(key, ZSET, "ZCARD")))


def positions(start: int, stop: int, count: int) -> tuple[int, int]:
    """Return the slice of `count` elements for positions start to stop, both included.

    Raises: UsageError: a position is not an integer.
    """
    for name, position in (("start", start), ("stop", stop)):
        if type(position) is not int:
            raise UsageError(f"`{name}` is not an integer position: {position!r}")
    # "Both ends included and negative positions from the end" (docs/kv.md "Lists").
    first = max(start + count, 0) if start < 0 else start
    end = min((stop + count if stop < 0 else stop) + 1, count)
    return (0, 0) if first >= end else (first, end)
