"""Usage: how much room the data of each owner takes here, section by section.

A *slot* is what one owner has in one section. Its usage is the bytes and the number of distinct
cells below it. "Each slot is counted by itself", so what two owners share is charged to both: the
sum is an upper bound of the disk, and equal on every node that has the same values.

A count is exact for one value of the slot, whose hash it names. When a later value is taken, the
cells that it adds are counted; cells that it no longer has stay in the count until the slot is
counted anew: when a value would not fit any more, and after each collection of garbage.

The unsigned part of a section has no owner; there only the bytes that strangers added count.

Source: docs/design/foreign-data.md "Room".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from datalattice.cells import Value, Vector, Work, decode, encode, value_hash
from datalattice.crypto import PUBLIC_KEY_BYTES, sha3_256
from datalattice.errors import BadFormat, MissingData
from datalattice.store import Store
from datalattice.sync.lattice.delta import LoadAll, growth

RECOUNT_MS: Final = 60_000
"""A slot without room for a value is counted anew at most once in this time."""

_REMEMBERED_MAX: Final = 65_536
"""Most slots whose time of the last full count is remembered."""

_UNBOUNDED: Final = 1 << 62


class OwnerSlot:
    """What one owner has in one section; owner None: the unsigned part.

    `key` identifies it: slots with equal keys are equal.
    """

    __slots__ = ("key", "owner", "section")

    def __init__(self, section: str, owner: Value) -> None:
        self.section: Final = section
        self.owner: Final = owner
        # A message asks for the key of a slot about ten times, and for few slots.
        is_public_key = isinstance(owner, bytes) and len(owner) == PUBLIC_KEY_BYTES
        self.key: Final = (_cached_key if is_public_key else _key_of)(section, owner)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnerSlot) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _key_of(section: str, owner: Value) -> bytes:
    return sha3_256(encode(Vector.of((section, owner))))


_cached_key = lru_cache(1_024)(_key_of)


@dataclass(frozen=True, slots=True)
class Count:
    """The bytes and cells of a slot.

    root:  hash of the value that was counted.
    since: bytes added since the last full count.
    """

    slot: OwnerSlot
    size_bytes: int
    cells: int
    root: bytes
    since: int = 0

    def plus(self, root: bytes, grown: tuple[int, int]) -> Count:
        """Return the count of a later value that adds `grown`: (bytes, cells)."""
        size, cells = grown
        return Count(self.slot, self.size_bytes + size, self.cells + cells, root, self.since + size)


class Usage:
    """The counts of one store's slots. One thread changes them."""

    def __init__(self, store: Store, fetch: LoadAll, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._fetch = fetch
        self._now_ms = now_ms
        self._counts: dict[bytes, Count] = {}
        self._owner_bytes: dict[bytes, int] = {}  # hash of an owner -> bytes of all its slots
        self._changed: set[bytes] = set()
        self._counted_ms: dict[bytes, int] = {}
        for key, row in store.notes.rows().items():
            count = _read(row)
            # A row under the key of another slot is damaged: its slot is counted again.
            if count is not None and count.slot.key == key:
                self._put(key, count)

    def __iter__(self) -> Iterator[Count]:
        return iter(list(self._counts.values()))

    def used_bytes(self, slot: OwnerSlot) -> int:
        """Return the counted bytes of a slot, 0 if it was never counted."""
        found = self._counts.get(slot.key)
        return 0 if found is None else found.size_bytes

    def bytes_of(self, owner: Value) -> int:
        """Return the counted bytes of all slots of an owner."""
        return self._owner_bytes.get(value_hash(owner), 0)

    def known(self, slot: OwnerSlot, present: Value) -> Count:
        """Return the count of a slot whose value is `present`."""
        root = value_hash(present)
        found = self._counts.get(slot.key)
        if found is not None and found.root == root:
            return found
        if present is None:
            return Count(slot, 0, 0, root)
        # "After a crash only slots that changed since are counted again": no sender pays for it.
        count = self.exactly(slot, present)
        self.take(count)
        return count

    def after(
        self,
        slot: OwnerSlot,
        present: Value,
        value: Value,
        bytes_max: int,
        work: Work | None = None,
    ) -> Count | None:
        """Return the count of a slot in which `value` replaces `present`.

        None: it would have more than `bytes_max` bytes, also when counted exactly, which is tried
        once a minute.
        Cost: the difference of the two values, paid from `work`, when given.
        Raises: WorkExceeded: `work` is used up.
        """
        # The difference is counted, which is cheap; a full count is the last resort.
        before = self.known(slot, present)
        room = bytes_max - before.size_bytes
        grown = growth(present, value, self._fetch, room, work) if room >= 0 else None
        if grown is not None:
            return before.plus(value_hash(value), grown)
        if not self._may_count(slot):
            return None
        whole = growth(None, value, self._fetch, bytes_max)  # once a minute: no sender pays for it
        return None if whole is None else Count(slot, *whole, value_hash(value))

    def _may_count(self, slot: OwnerSlot) -> bool:
        """Return whether a slot may be counted anew, and note that it is."""
        now_ms = self._now_ms()
        last_ms = self._counted_ms.get(slot.key)
        # A clock that was set back must not prevent counting until it has caught up.
        if last_ms is not None and 0 <= now_ms - last_ms < RECOUNT_MS:
            return False
        # All are dropped: to find the oldest of many would cost more than to count some again.
        if len(self._counted_ms) >= _REMEMBERED_MAX:
            self._counted_ms.clear()
        self._counted_ms[slot.key] = now_ms
        return True

    def refresh(self, slot: OwnerSlot, present: Value) -> None:
        """Count a slot whose value is `present` exactly, once a minute."""
        found = self._counts.get(slot.key)
        is_exact = found is None or (not found.since and found.root == value_hash(present))
        if not is_exact and present is not None and self._may_count(slot):
            self.take(self.exactly(slot, present))

    def growth(
        self, present: Value, value: Value, bytes_max: int, work: Work | None = None
    ) -> tuple[int, int] | None:
        """Return (bytes, cells) that `value` adds to `present`, None beyond `bytes_max` bytes.

        Raises: WorkExceeded: `work` is used up.
        """
        return growth(present, value, self._fetch, bytes_max, work) if bytes_max >= 0 else None

    def take(self, count: Count) -> None:
        """Replace the count of a slot."""
        key = count.slot.key
        self._put(key, count)
        self._changed.add(key)

    def _put(self, key: bytes, count: Count | None) -> None:
        before = self._counts.pop(key, None)
        for one, sign in ((before, -1), (count, 1)):
            if one is not None:
                name = value_hash(one.slot.owner)
                total = self._owner_bytes.pop(name, 0) + sign * one.size_bytes
                # Owners without bytes leave, so that keys which sent something once take no memory.
                if total:
                    self._owner_bytes[name] = total
        if count is not None:
            self._counts[key] = count

    def add(self, slot: OwnerSlot, size: int, cells: int) -> Count:
        """Add to the count of an unsigned part; return the new one."""
        before = self._counts.get(slot.key, Count(slot, 0, 0, b""))
        # An unsigned part is counted by what comes, not by its value, so its count has no root.
        now = Count(slot, before.size_bytes + size, before.cells + cells, b"")
        self.take(now)
        return now

    def exactly(self, slot: OwnerSlot, value: Value) -> Count:
        """Return the exact count of a slot that has this value. On any thread.

        Cost: reads every cell of it.
        """
        whole = growth(None, value, self._fetch, _UNBOUNDED)
        assert whole is not None
        return Count(slot, *whole, value_hash(value))

    def drop(self, slot: OwnerSlot) -> None:
        """Forget the count of a slot that is gone."""
        if slot.key in self._counts:
            self._put(slot.key, None)
            self._changed.add(slot.key)

    def save(self) -> None:
        """Write changed counts durably; after a failure the next call writes them."""
        changed = list(self._changed)
        rows: dict[bytes, bytes | None] = {}
        for key in changed:
            count = self._counts.get(key)
            rows[key] = None if count is None else _write(count)
        # Only once they are durable: after a failure the next call writes them.
        if rows:
            self._store.notes.keep(rows)
            self._changed.difference_update(changed)


def _write(count: Count) -> bytes:
    slot = count.slot
    row = (slot.section, slot.owner, count.size_bytes, count.cells, count.root, count.since)
    return encode(Vector.of(row))


def _read(row: bytes) -> Count | None:
    """Return the count in a row, None if it is malformed: the slot is counted again."""
    try:
        value = decode(row)
    except (BadFormat, MissingData):
        return None
    if not isinstance(value, Vector) or len(value) != 6:
        return None
    section, owner, size, cells, root, since = value
    if not isinstance(section, str) or not isinstance(root, bytes):
        return None
    # A note may be damaged: any other type means the slot is counted again.
    if type(size) is not int or type(cells) is not int or type(since) is not int:
        return None
    return Count(OwnerSlot(section, owner), size, cells, root, since)
