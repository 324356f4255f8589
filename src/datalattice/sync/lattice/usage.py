"""Usage: how much room the data of each owner takes here, section by section.

The usage of a *slot*, which is what one owner has in one section, is the bytes and the number of
distinct cells below it. Each slot is counted by itself, so what two owners share is charged to
both: the sum is an upper bound of the disk, and the figures are the same on every node that has
the same values.

A count is exact for one value of the slot, whose hash it names. When another value is taken, the
cells that it adds are added to the count, and what it leaves out stays in it until the slot is
counted anew: when a value would not fit any more, and after each collection of garbage.

What is unsigned in a section has no owner; there only the bytes that strangers added count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from datalattice.cells import Value, Vector, Work, decode, encode, value_hash
from datalattice.crypto import PUBLIC_KEY_BYTES, sha3_256
from datalattice.errors import BadFormat, MissingData
from datalattice.store import Store
from datalattice.sync.lattice.delta import Fetch, growth

RECOUNT_MS: Final = 60_000
"""A slot whose values would not fit is counted anew once in this time."""

_REMEMBERED_MAX: Final = 65_536

UNBOUNDED: Final = 1 << 62


class OwnerSlot(NamedTuple):
    """What one owner has in one section; owner None: what is unsigned there."""

    section: str
    owner: Value

    @property
    def key(self) -> bytes:
        """Bytes that name the slot in a table."""
        owner = self.owner
        if isinstance(owner, bytes) and len(owner) == PUBLIC_KEY_BYTES:
            return _key_of(self.section, owner)  # asked for ten times a message
        return sha3_256(encode(Vector.of((self.section, owner))))


@lru_cache(1_024)
def _key_of(section: str, owner: bytes) -> bytes:
    return sha3_256(encode(Vector.of((section, owner))))


@dataclass(frozen=True, slots=True)
class Count:
    """What a slot takes: bytes and cells in all; `since` of the bytes came after a full count."""

    slot: OwnerSlot
    size_bytes: int
    cells: int
    root: bytes
    """Hash of the value that was counted."""
    since: int = 0

    def plus(self, root: bytes, grown: tuple[int, int]) -> Count:
        """Return the count of a later value that adds so many bytes and cells."""
        size, cells = grown
        return Count(self.slot, self.size_bytes + size, self.cells + cells, root, self.since + size)


class Usage:
    """The counts of one store's slots. One thread changes them."""

    def __init__(self, store: Store, fetch: Fetch, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._fetch = fetch
        self._now_ms = now_ms
        self._counts: dict[bytes, Count] = {}
        self._changed: set[bytes] = set()
        self._counted_ms: dict[bytes, int] = {}
        for key, row in store.notes.rows().items():
            count = _read(row)
            if count is not None and count.slot.key == key:
                self._counts[key] = count

    def __iter__(self) -> Iterator[Count]:
        return iter(list(self._counts.values()))

    def used_bytes(self, slot: OwnerSlot) -> int:
        """Return the bytes of a slot as far as they were counted."""
        found = self._counts.get(slot.key)
        return 0 if found is None else found.size_bytes

    def known(self, slot: OwnerSlot, present: Value) -> Count:
        """Return the count of a slot whose value is `present`, counted now if it is another's.

        That happens after a crash, once for a slot, so no sender pays for it.
        """
        root = value_hash(present)
        found = self._counts.get(slot.key)
        if found is not None and found.root == root:
            return found
        if present is None:
            return Count(slot, 0, 0, root)
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
        """Return the count of a slot in which `value` comes after `present`.

        None: it would have more than `bytes_max` bytes. Before that is said the value is counted
        exactly, once a minute.
        Cost: the difference of the two values, paid from `work`, when given.
        Raises: WorkExceeded: `work` is used up.
        """
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
        """Return whether a slot may be counted anew, and take note that it is."""
        now_ms = self._now_ms()
        last_ms = self._counted_ms.get(slot.key)
        if last_ms is not None and 0 <= now_ms - last_ms < RECOUNT_MS:
            return False
        if len(self._counted_ms) >= _REMEMBERED_MAX:
            self._counted_ms.clear()
        self._counted_ms[slot.key] = now_ms
        return True

    def refreshed(self, slot: OwnerSlot, present: Value) -> bool:
        """Count a slot whose value is `present` exactly, once a minute; return whether it was."""
        found = self._counts.get(slot.key)
        if found is None or (not found.since and found.root == value_hash(present)):
            return False
        if present is None or not self._may_count(slot):
            return False
        self.take(self.exactly(slot, present))
        return True

    def growth(
        self, present: Value, value: Value, bytes_max: int, work: Work | None = None
    ) -> tuple[int, int] | None:
        """Return (bytes, cells) that `value` adds to `present`, None when it is more than that.

        Raises: WorkExceeded: `work` is used up.
        """
        return growth(present, value, self._fetch, bytes_max, work) if bytes_max >= 0 else None

    def take(self, count: Count) -> None:
        """Take note of what a slot has now."""
        key = count.slot.key
        self._counts[key] = count
        self._changed.add(key)

    def add(self, slot: OwnerSlot, size: int, cells: int) -> Count:
        """Add to what strangers added to an unsigned part; return what that is now."""
        before = self._counts.get(slot.key, Count(slot, 0, 0, b""))
        now = Count(slot, before.size_bytes + size, before.cells + cells, b"")
        self.take(now)
        return now

    def exactly(self, slot: OwnerSlot, value: Value) -> Count:
        """Return the exact count of a slot that has this value. On any thread.

        Cost: reads every cell of it.
        """
        whole = growth(None, value, self._fetch, UNBOUNDED)
        assert whole is not None
        return Count(slot, *whole, value_hash(value))

    def drop(self, slot: OwnerSlot) -> None:
        """Forget the count of a slot that is not here any more."""
        if self._counts.pop(slot.key, None) is not None:
            self._changed.add(slot.key)

    def save(self) -> None:
        """Write down what changed; what cannot be written now is tried again with the next."""
        changed = list(self._changed)
        rows: dict[bytes, bytes | None] = {}
        for key in changed:
            count = self._counts.get(key)
            rows[key] = None if count is None else _write(count)
        if rows:
            self._store.notes.keep(rows)
            self._changed.difference_update(changed)


def _write(count: Count) -> bytes:
    slot = count.slot
    row = (slot.section, slot.owner, count.size_bytes, count.cells, count.root, count.since)
    return encode(Vector.of(row))


def _read(row: bytes) -> Count | None:
    """Return the count in a row, None when there is none to be read: it is counted again."""
    try:
        value = decode(row)
    except (BadFormat, MissingData):
        return None
    if not isinstance(value, Vector) or len(value) != 6:
        return None
    section, owner, size, cells, root, since = value
    if not isinstance(section, str) or not isinstance(root, bytes):
        return None
    if type(size) is not int or type(cells) is not int or type(since) is not int:
        return None
    return Count(OwnerSlot(section, owner), size, cells, root, since)
