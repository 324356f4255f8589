"""Long keys: how LMDB, whose keys have 1 to 511 bytes, holds the empty key and longer ones.

Keys of 1 to 510 bytes are stored in their table as they are. All longer keys that share their first
510 bytes P form a group. Its entry in the table is P and a zero byte: 511 bytes, so no short key
looks like it, and it sorts where the keys of the group belong, since every other key that begins
with P is P itself. Its value is the number of the group, 8 bytes big-endian, from 1.

The rest of each key is stored after that number in one more table, `long.keys`, which serves all
tables and holds longer rests in the same way. There, after the number 0, `e` and the name of a
table lead to the value of its empty key, and `n` and the name to a signed number: how many keys
the table has more than its entries on disk.
"""

from __future__ import annotations

from typing import Any, Final

from datalattice.engine.base import KeyValue, successor

SHORT_KEY_BYTES: Final = 510
"""Longest key that is on disk as it is; one byte less than LMDB allows."""

LONG_TABLE: Final = "long.keys"
"""A name that no table of an engine can have."""

_NUMBER_BYTES: Final = 8
_EMPTY_KEY: Final = bytes(_NUMBER_BYTES) + b"e"
_SURPLUS: Final = bytes(_NUMBER_BYTES) + b"n"


class LongKeys:
    """The keys of one table in one transaction, seen without the limits of LMDB.

    Its methods take and return keys of any length. They cost a step per 500 bytes of the key.
    """

    __slots__ = ("_name", "_raw", "_rests", "_table")

    def __init__(self, raw: Any, name: str, table: Any, rests: Any) -> None:
        """See the keys of `table` in the transaction `raw`; both tables are LMDB's handles."""
        self._raw = raw
        self._name = name.encode()
        self._table = table
        self._rests = rests

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""
        found_at = self._locate(key)
        if found_at is None:
            return None
        _, table, stored = found_at
        found: bytes | None = self._raw.get(stored, None, table)
        return found

    def _locate(self, key: bytes) -> tuple[list[tuple[Any, bytes, bytes]], Any, bytes] | None:
        """Return (groups on the way to a key, its table, its key there); None: a group is missing.

        A group is (table of its entry, key there, number of the group).
        """
        groups: list[tuple[Any, bytes, bytes]] = []
        if not key:
            return groups, self._rests, _EMPTY_KEY + self._name
        table, number, at = self._table, b"", 0
        while len(number) + len(key) - at > SHORT_KEY_BYTES:
            end = at + SHORT_KEY_BYTES - len(number)
            # A group's entry, one byte longer than a short key.
            stored = number + key[at:end] + b"\0"
            number = self._raw.get(stored, b"", table)
            if not number:
                return None
            groups.append((table, stored, number))
            table, at = self._rests, end
        return groups, table, number + key[at:]

    def surplus(self) -> int:
        """Return how many keys the table has more than its entries on disk."""
        return int.from_bytes(
            self._raw.get(_SURPLUS + self._name, b"", self._rests), "big", signed=True
        )

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of `key`."""
        raw = self._raw
        table, stored, surplus = self._rests, _EMPTY_KEY + self._name, 1
        if key:
            table, number, at, new = self._table, b"", 0, 0
            while len(number) + len(key) - at > SHORT_KEY_BYTES:
                end = at + SHORT_KEY_BYTES - len(number)
                stored = number + key[at:end] + b"\0"
                number = raw.get(stored, b"", table)
                if not number:
                    # Members follow at the end of the loop, so the table has no new number yet.
                    new = new + 1 if new else self._unused_number()
                    number = new.to_bytes(_NUMBER_BYTES, "big")
                    raw.put(stored, number, db=table)
                    # The group's entry counts as one key; its members count beyond that.
                    surplus -= at == 0
                table, at = self._rests, end
            stored = number + key[at:]
        # Looked up before the write: a new value of an old key changes no count.
        is_new = not raw.cursor(table).set_key(stored)
        raw.put(stored, value, db=table)
        if is_new:
            self._count(surplus)

    def delete(self, key: bytes) -> bool:
        """Remove `key`, and the groups that are empty then; return whether it was there."""
        raw, found_at, surplus = self._raw, self._locate(key), -1
        if found_at is None:
            return False
        groups, table, stored = found_at
        if not raw.delete(stored, db=table):
            return False
        # From the innermost group: an empty one would be found by scans.
        while groups:
            table, stored, number = groups.pop()
            cursor = raw.cursor(self._rests)
            if cursor.set_range(number) and cursor.key().startswith(number):
                break  # others use it
            raw.delete(stored, db=table)
            surplus += not groups
        self._count(surplus)
        return True

    def first(self, bound: bytes) -> KeyValue | None:
        """Return the entry of the least key >= `bound`, or None."""
        if not bound:
            empty = self.get(b"")
            if empty is not None:
                return b"", empty
        return self._first(self._table, b"", bound)

    def last(self, bound: bytes | None) -> KeyValue | None:
        """Return the entry of the greatest key < `bound` (None: of all), or None."""
        if bound == b"":
            return None
        found = self._last(self._table, b"", bound)
        if found is None:
            empty = self.get(b"")  # the empty key is the least of all
            return None if empty is None else (b"", empty)
        return found

    def _first(self, table: Any, number: bytes, bound: bytes) -> KeyValue | None:
        """Return the first entry at or after `bound` of a group, or of the table (b"")."""
        low = number + bound
        cursor = self._raw.cursor(table)
        found = cursor.set_range(stored_bound(low)) if low else cursor.first()
        while found:
            stored, value = cursor.item()
            if not stored.startswith(number):
                return None
            if len(stored) <= SHORT_KEY_BYTES:
                return stored[len(number) :], value
            group = stored[:SHORT_KEY_BYTES]
            # Only the group of the bound itself begins inside.
            rest = low[SHORT_KEY_BYTES:] if low.startswith(group) else b""
            inner = self._first(self._rests, value, rest)
            if inner is not None:
                return group[len(number) :] + inner[0], inner[1]
            found = cursor.next()  # every key of that group is below the bound
        return None

    def _last(self, table: Any, number: bytes, bound: bytes | None) -> KeyValue | None:
        """Return the last entry before `bound` of a group, or of the table (b"")."""
        high = successor(number) if bound is None else number + bound
        cursor = self._raw.cursor(table)
        found = seek_before(cursor, high)
        while found:
            stored, value = cursor.item()
            if not stored.startswith(number):
                return None
            if len(stored) <= SHORT_KEY_BYTES:
                return stored[len(number) :], value
            group = stored[:SHORT_KEY_BYTES]
            is_cut = high is not None and high.startswith(group)
            rest = high[SHORT_KEY_BYTES:] if is_cut and high is not None else None
            inner = self._last(self._rests, value, rest)
            if inner is not None:
                return group[len(number) :] + inner[0], inner[1]
            found = cursor.prev()
        return None

    def _unused_number(self) -> int:
        cursor = self._raw.cursor(self._rests)
        # The greatest number in use, plus one: numbers of deleted groups may come again.
        return int.from_bytes(cursor.key()[:_NUMBER_BYTES], "big") + 1 if cursor.last() else 1

    def _count(self, change: int) -> None:
        if change:
            surplus = (self.surplus() + change).to_bytes(_NUMBER_BYTES, "big", signed=True)
            self._raw.put(_SURPLUS + self._name, surplus, db=self._rests)


def stored_bound(key: bytes) -> bytes:
    """Return where a walk from `key` on begins on disk: at the entry of its group if it is long."""
    return key if len(key) <= SHORT_KEY_BYTES else key[:SHORT_KEY_BYTES] + b"\0"


def seek_before(cursor: Any, bound: bytes | None) -> bool:
    """Move to the last entry that may hold a key < `bound` (None: to the last); False: none."""
    if bound is None:
        return bool(cursor.last())
    if not bound:
        return False
    stored = stored_bound(bound)
    if not cursor.set_range(stored):
        return bool(cursor.last())
    # The group of a long bound has keys on both sides of it.
    if len(bound) > SHORT_KEY_BYTES and cursor.key() == stored:
        return True
    return bool(cursor.prev())
