"""Operations: the mapping interface of a store, with expiry and clean-up.

`typed` adds lists, counters, hashes, sets and sorted sets. A subclass defines how the store is read
and replaced. Every write is one pure step on the store with a fixed time, so that it can run again
on another store.

Source: CAD037 "Operations", "Store", "get", "set", "del", "type", "expire", "ttl", "gc"; docs/kv.md
    "Operations", "Layout", "Values", "Batches", "Read, change, write", "Expiry", "Clean-up";
    docs/design/decisions.md "Base", "D-KV3".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from typing import Any, Final, TypeVar

from datalattice.apps.kv.entries import VALUE, VALUE_TAG, Entry, register
from datalattice.apps.kv.joining import ENTRIES
from datalattice.apps.kv.keys import checked_key, checked_text, checked_values
from datalattice.apps.kv.kinds import LONG_MAX
from datalattice.apps.kv.writing import (
    KeyState,
    after,
    delete,
    due,
    expire_at,
    is_garbage,
    put_value,
    read_slot,
    wrong_type,
)
from datalattice.cells import Index, Value, to_cell
from datalattice.clock import Clock
from datalattice.errors import UsageError
from datalattice.lattice import is_short

T = TypeVar("T")

Step = Callable[[Index], tuple[Index, T]]
"""Returns the next store and a result; pure, because it may run again."""

Write = Callable[[Value, int], tuple[Value, T]]
"""Returns the next entry and a result from the stored entry, or None, and the time."""

NOTHING: Final = object()
GONE: Final = object()

NO_EXPIRY: Final = -1
NO_KEY: Final = -2

GC_AGE_MS: Final = 24 * 60 * 60 * 1000
"""Default age from which a clean-up removes tombstones and expired entries."""


class Operations(MutableMapping[str, Value]):
    """A mapping of the live keys of one store to their values.

    Values are cells; a dict, list or set is converted to one. The value of a structure is the Index
    of its members, for which there are typed operations.
    """

    __slots__ = ("_clock", "_replica")

    _clock: Clock
    _replica: str

    @abstractmethod
    def store(self) -> Index:
        """Return an immutable snapshot of the store."""

    @abstractmethod
    def _apply(self, step: Step[T]) -> T:
        """Replace the store by the result of `step`; return the step's other result."""

    @property
    def replica(self) -> str:
        """The name of this database's counter column."""
        return self._replica

    # --- reading and writing one key ---

    def _stored(self, key: str) -> tuple[Value, int]:
        """Return the stored entry of a key, and the time."""
        return ENTRIES.get(self.store(), checked_text(key, "a key")), self._clock.now_ms()

    def _slot(self, key: str) -> KeyState:
        stored, now_ms = self._stored(key)
        return read_slot(stored, now_ms)

    def _live(self, key: str) -> Entry | None:
        slot = self._slot(key)
        return slot.entry if slot.live else None

    def _write(self, key: str, write: Write[T]) -> T:
        """Replace one entry by the result of `write`, in one update of the store."""
        name = checked_key(key, "a key")
        now_ms = self._clock.now_ms()

        def step(store: Index) -> tuple[Index, T]:
            stored = ENTRIES.get(store, name)
            entry, result = write(stored, now_ms)
            return store if entry is stored else ENTRIES.put(store, name, entry), result

        return self._apply(step)

    # --- values ---

    def __getitem__(self, key: str) -> Value:
        """Return the value of a live key; raise KeyError if the key is not live."""
        entry = self._live(key)
        if entry is None:
            raise KeyError(key)
        return entry.cell[VALUE]

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a live key, otherwise `default`."""
        entry = self._live(key)
        return default if entry is None else entry.cell[VALUE]

    def __setitem__(self, key: str, value: object) -> None:
        """Set a plain value; see `set`."""
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        """Delete a live key; raise KeyError if the key is not live."""
        if not self.delete(key):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        """Return whether the key is live."""
        return isinstance(key, str) and self._slot(key).live

    def __iter__(self) -> Iterator[str]:
        """Yield the live keys in the order of `scan`."""
        for key, _entry in self.scan():
            yield key

    def __len__(self) -> int:
        """Return the number of live keys; walks over all keys."""
        return sum(1 for _key in self)

    def items(self) -> ItemsView[str, Value]:
        """Return a view of the live keys and values; an iteration reads one snapshot."""
        return _Items(self)

    def values(self) -> ValuesView[Value]:
        """Return a view of the values of live keys; an iteration reads one snapshot."""
        return _Values(self)

    def set(self, key: str, value: object, ttl_ms: int | None = None) -> None:
        """Set a plain value; it replaces an entry of any type and its expiry.

        Units:  ttl_ms: milliseconds from now until the key expires; None for never.
        Raises: UsageError: the key is too long, or `ttl_ms` is not a positive integer.
        """
        cell = to_cell(value)
        checked_ttl(ttl_ms)
        self._write(key, lambda stored, now: (put_value(stored, cell, ttl_ms, now), None))

    def set_many(self, values: Mapping[str, object], ttl_ms: int | None = None) -> None:
        """Set many plain values in one update of the store; on an error, none is set.

        Units:  ttl_ms: as for `set`, for all values.
        Cost:   one signature, and fewer tree nodes than single writes.
        Raises: as `set`.
        """
        cells = checked_values(values, "a key", to_cell)
        checked_ttl(ttl_ms)
        now_ms = self._clock.now_ms()

        def step(store: Index) -> tuple[Index, None]:
            entries = [
                (name, put_value(ENTRIES.get(store, name), cell, ttl_ms, now_ms))
                for name, cell in cells.items()
            ]
            return ENTRIES.put_many(store, entries), None

        if cells:
            self._apply(step)

    def update(self, *args: object, **values: object) -> None:
        """Set the values of a mapping or of (key, value) pairs in one update, as `set_many`."""
        self.set_many(dict(*args, **values))

    def setdefault(self, key: str, default: object = None) -> Value:
        """Return the value of a live key; if the key is not live, set and return `default`."""
        cell = to_cell(default)

        def write(stored: Value, now_ms: int) -> tuple[Value, Value]:
            slot = read_slot(stored, now_ms)
            if slot.entry is not None and slot.live:
                return stored, slot.entry.cell[VALUE]
            return put_value(stored, cell, None, now_ms), cell

        return self._write(key, write)

    def modify(
        self, key: str, function: Callable[[Value], object], default: object = None
    ) -> Value:
        """Replace a plain value by `function(value)` in one update; return the new value.

        The function gets `default` if the key is not live. It must be pure, because it runs again
        if another writer was faster. An expiry is kept.

        Raises: WrongType: the key holds a structure or a list.
        """
        missing = to_cell(default)

        def write(stored: Value, now_ms: int) -> tuple[Value, Value]:
            slot = read_slot(stored, now_ms)
            entry = slot.entry if slot.live else None
            if entry is not None and entry.tag != VALUE_TAG:
                raise wrong_type("MODIFY", entry)
            fresh = to_cell(function(missing if entry is None else entry.cell[VALUE]))
            expire = None if entry is None else entry.expire
            return register(fresh, VALUE_TAG, after(slot, now_ms), expire), fresh

        return self._write(key, write)

    def delete(self, key: str) -> bool:
        """Delete a key of any type; return whether it was live.

        A tombstone stays until `gc`, so that replicas learn of the deletion.
        """
        return self._write(key, delete)

    def pop(self, key: str, default: Any = NOTHING) -> Any:
        """Delete a live key and return its value, otherwise `default`, in one update.

        Raises: KeyError: the key is not live and `default` is not given.
        """

        def write(stored: Value, now_ms: int) -> tuple[Value, object]:
            slot = read_slot(stored, now_ms)
            if slot.entry is None or not slot.live:
                return stored, default
            return delete(stored, now_ms)[0], slot.entry.cell[VALUE]

        found = self._write(key, write)
        if found is NOTHING:
            raise KeyError(key)
        return found

    def popitem(self) -> tuple[str, Value]:
        """Delete the first live key and return it with its value, in one update.

        Raises: KeyError: the database has no live key.
        """
        for key in self:
            found = self.pop(key, GONE)
            if found is not GONE:
                return key, found
        raise KeyError("the database has no live key")

    def clear(self) -> None:
        """Delete every live key, in one update of the store."""
        now_ms = self._clock.now_ms()

        def step(store: Index) -> tuple[Index, None]:
            gone = []
            for key, stored in store.entries():
                entry, live = delete(stored, now_ms)
                if live:
                    gone.append((key, entry))
            return store.put_many(gone), None

        self._apply(step)

    def type(self, key: str) -> str | None:
        """Return the type of a live key: value, hash, set, zset, list, counter; otherwise None."""
        entry = self._live(key)
        return None if entry is None else entry.type_name

    def scan(self, prefix: str = "") -> Iterator[tuple[str, Entry]]:
        """Yield the live keys that begin with `prefix`, with their entries.

        Keys of up to 32 bytes come in the order of their bytes; longer keys come after those with
        the same first eight bytes.

        Cost:   proportional to the keys with the prefix, and the longer keys that share its first
                eight bytes.
        """
        now_ms = self._clock.now_ms()
        yield from live_entries(self.store(), prefix, now_ms)

    # --- expiry ---

    def expire(self, key: str, ttl_ms: int) -> bool:
        """Let a live key expire in `ttl_ms` milliseconds; return whether the key was live.

        The expiry is a write and is replicated.

        Raises: UsageError: `ttl_ms` is not a positive integer.
        """
        checked_ttl(ttl_ms)
        return self._write(key, lambda stored, now: expire_at(stored, due(ttl_ms, now), now))

    def persist(self, key: str) -> bool:
        """Remove the expiry of a live key; return whether it had one."""

        def write(stored: Value, now_ms: int) -> tuple[Value, bool]:
            entry = read_slot(stored, now_ms).entry
            if entry is None or entry.expire is None:
                return stored, False
            return expire_at(stored, None, now_ms)

        return self._write(key, write)

    def ttl(self, key: str) -> int:
        """Return the milliseconds until a key expires; -1 for never, -2 if it is not live."""
        stored, now_ms = self._stored(key)
        slot = read_slot(stored, now_ms)
        if slot.entry is None or not slot.live:
            return NO_KEY
        return NO_EXPIRY if slot.entry.expire is None else slot.entry.expire - now_ms

    def gc(self, min_age_ms: int = GC_AGE_MS) -> int:
        """Remove tombstones, expired and empty entries of at least that age; return how many.

        A replica that has not seen a deletion brings the value back, so clean up after all replicas
        have synced. An age of 0 removes all such entries.

        Raises: UsageError: `min_age_ms` is not an integer of 0 or more.
        """
        if type(min_age_ms) is not int or min_age_ms < 0:
            raise UsageError(f"`min_age_ms` is not 0 or more milliseconds: {min_age_ms!r}")
        now_ms = self._clock.now_ms()

        def step(store: Index) -> tuple[Index, int]:
            swept = store
            for key, stored in store.entries():
                name = ENTRIES.name(key)
                if name is None or is_short(name):
                    if is_garbage(stored, min_age_ms, now_ms):
                        swept = swept.remove(key)
                elif is_garbage(ENTRIES.get(store, name), min_age_ms, now_ms):
                    swept = ENTRIES.remove(swept, name)
            return swept, len(store) - len(swept)

        return self._apply(step)


class _Items(ItemsView[str, Value]):
    """Live keys and values of one snapshot."""

    _mapping: Operations

    def __iter__(self) -> Iterator[tuple[str, Value]]:
        for key, entry in self._mapping.scan():
            yield key, entry.cell[VALUE]


class _Values(ValuesView[Value]):
    """Values of live keys of one snapshot."""

    _mapping: Operations

    def __iter__(self) -> Iterator[Value]:
        for _key, entry in self._mapping.scan():
            yield entry.cell[VALUE]


def live_entries(store: Index, prefix: str, now_ms: int) -> Iterator[tuple[str, Entry]]:
    """Yield the live keys of a store that begin with `prefix`, with their entries."""
    for key, stored in ENTRIES.entries(store, prefix):
        slot = read_slot(stored, now_ms)
        if slot.entry is not None and slot.live:
            yield key, slot.entry


def checked_ttl(ttl_ms: int | None) -> None:
    """Check a time to live.

    Raises: UsageError: `ttl_ms` is neither a positive integer of 64 bits nor None.
    """
    given: object = ttl_ms
    if given is not None and (type(given) is not int or not 0 < given <= LONG_MAX):
        raise UsageError(f"`ttl_ms` is not a positive number of milliseconds or None: {given!r}")
