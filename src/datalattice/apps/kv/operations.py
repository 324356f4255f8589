"""Operations: the mapping interface of a store, with expiry and clean-up.

`typed` adds lists, counters, hashes, sets and sorted sets. A subclass defines how the store is read
and replaced. Every write is one pure step on the store with a fixed time, so that it can run again
on another store.

Source: CAD037 "Operations", "Store", "get", "set", "del", "type", "expire", "ttl", "gc"; docs/kv.md
    "Operations", "Layout", "Values", "Batches", "Read, change, write", "Expiry", "Clean-up";
    docs/design/decisions.md "Base", "D-KV3".
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar, cast

from datalattice.apps.kv.entries import VALUE_TAG, Entry, pack_register
from datalattice.apps.kv.joining import ENTRY_KEYS
from datalattice.apps.kv.keys import checked_key, checked_text, checked_values
from datalattice.apps.kv.showing import read_value, typed_value
from datalattice.apps.kv.writing import (
    after,
    delete,
    due,
    expire_at,
    is_garbage,
    live_entry,
    put_value_entry,
    read_slot,
    wrong_type,
)
from datalattice.apps.valuetypes import T, ValueType
from datalattice.cells import Index, Value
from datalattice.clock import Clock
from datalattice.errors import UsageError
from datalattice.lattice import LONG_MAX, is_short

R = TypeVar("R")

TableEdit = Callable[[Index], tuple[Index, R]]
"""Returns the next store and a result; pure, because it may run again."""

Write = Callable[[Value, int], tuple[Value, R]]
"""Returns the next entry and a result from the stored entry, or None, and the time."""

NOTHING: Final = object()
GONE: Final = object()

GC_AGE: Final = timedelta(days=1)  # "gc(min_age_ms), default one day"
"""Default age from which a clean-up removes tombstones and expired entries."""

Duration = float | timedelta
"""A time span: seconds, or a timedelta."""


class Operations(MutableMapping[str, T], Generic[T]):
    """A mapping of the live keys of one store to their values.

    Plain values are converted by the value type; without one they are cells. A structure reads as
    one value (docs/kv.md "As one value"), whose members are cells.
    """

    __slots__ = ("_clock", "_replica", "_type")

    _clock: Clock
    _replica: str
    _type: ValueType[T]

    @abstractmethod
    def store(self) -> Index:
        """Return an immutable snapshot of the store."""

    @abstractmethod
    def _apply(self, step: TableEdit[R]) -> R:
        """Replace the store by the result of `step`; return the step's other result."""

    @property
    def replica(self) -> str:
        """The name of this database's counter column."""
        return self._replica

    # --- reading and writing one key ---

    def _stored(self, key: str) -> tuple[Value, int]:
        """Return the stored entry of a key, and the time."""
        return ENTRY_KEYS.get(self.store(), checked_text(key, "a key")), self._clock.now_ms()

    def _live(self, key: str) -> Entry | None:
        stored = ENTRY_KEYS.get(self.store(), checked_text(key, "a key"))
        return live_entry(stored, self._clock.now_ms())

    def entry(self, key: str) -> Entry | None:
        """Return the entry of a live key, of any type; otherwise None."""
        return self._live(key)

    def _write(self, key: str, write: Write[R]) -> R:
        """Replace one entry by the result of `write`, in one update of the store."""
        name = checked_key(key, "a key")
        # "now is taken per call", before the update that may run again.
        now_ms = self._clock.now_ms()

        def step(store: Index) -> tuple[Index, R]:
            stored = ENTRY_KEYS.get(store, name)
            entry, result = write(stored, now_ms)
            # A write that changes nothing keeps the store's identity, so nothing is signed or sent.
            return store if entry is stored else ENTRY_KEYS.put(store, name, entry), result

        return self._apply(step)

    # --- values ---

    def __getitem__(self, key: str) -> T:
        """Return the value of a live key; raise KeyError if the key is not live."""
        found = self.get(key, NOTHING)
        if found is NOTHING:
            raise KeyError(key)
        return cast("T", found)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a live key, otherwise `default`."""
        # "A key that is deleted or expired reads as None" (docs/kv.md "Operations").
        return read_value(self.store(), key, self._clock.now_ms(), self._type, default)

    def __setitem__(self, key: str, value: T) -> None:
        """Set a plain value; see `set`."""
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        """Delete a live key; raise KeyError if the key is not live."""
        if not self.delete(key):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        """Return whether the key is live."""
        return isinstance(key, str) and self._live(key) is not None

    def __iter__(self) -> Iterator[str]:
        """Yield the live keys in the order of `scan`."""
        for key, _entry in self.scan():
            yield key

    def __len__(self) -> int:
        """Return the number of live keys; walks over all keys."""
        return sum(1 for _key in self)

    def items(self) -> ItemsView[str, T]:
        """Return a view of the live keys and values; an iteration reads one snapshot."""
        return _Items(self)

    def values(self) -> ValuesView[T]:
        """Return a view of the values of live keys; an iteration reads one snapshot."""
        return _Values(self)

    def set(self, key: str, value: T, ttl: Duration | None = None) -> None:
        """Set a plain value; it replaces an entry of any type and its expiry.

        Units:  ttl: seconds, or a timedelta, until the key expires; None for never.
        Raises: UsageError: the key is too long, or `ttl` is not a positive time span.
        """
        cell = self._type.to_cell(value)
        ttl_ms = None if ttl is None else milliseconds("ttl", ttl)
        self._write(key, lambda stored, now: (put_value_entry(stored, cell, ttl_ms, now), None))

    def set_many(self, values: Mapping[str, T], ttl: Duration | None = None) -> None:
        """Set many plain values in one update of the store; on an error, none is set.

        Units:  ttl: as for `set`, for all values.
        Cost:   one signature, and fewer tree nodes than single writes.
        Raises: as `set`.
        """
        cells = checked_values(values, "a key", self._type.to_cell)
        ttl_ms = None if ttl is None else milliseconds("ttl", ttl)
        now_ms = self._clock.now_ms()

        def step(store: Index) -> tuple[Index, None]:
            before = ENTRY_KEYS.get_many(store, list(cells))
            entries = [
                (name, put_value_entry(stored, cell, ttl_ms, now_ms))
                for (name, cell), stored in zip(cells.items(), before, strict=True)
            ]
            return ENTRY_KEYS.put_many(store, entries), None

        # An empty mapping is no write, so nothing is signed or sent for it.
        if cells:
            self._apply(step)

    def update(self, *args: Any, **values: Any) -> None:
        """Set the values of a mapping or of (key, value) pairs in one update, as `set_many`."""
        self.set_many(dict(*args, **values))

    def setdefault(self, key: str, default: T | None = None) -> T:
        """Return the value of a live key; if the key is not live, set and return `default`."""
        cell = self._type.to_cell(cast("T", default))

        def write(stored: Value, now_ms: int) -> tuple[Value, T]:
            slot = read_slot(stored, now_ms)
            # The stored entry itself: a key that is live stays as it is, with its time and expiry.
            if slot.entry is not None and slot.live:
                return stored, typed_value(slot.entry, self._type)
            return put_value_entry(stored, cell, None, now_ms), self._type.from_cell(cell)

        return self._write(key, write)

    def modify(self, key: str, function: Callable[[Any], T], default: T | None = None) -> T:
        """Replace a plain value by `function(value)` in one update; return the new value.

        The function gets `default` if the key is not live. It must be pure, because it runs again
        if another writer was faster. An expiry is kept.

        Raises: WrongType: the key holds a structure or a list.
        """
        kind = self._type
        # Converted and back: the function gets the same Python type whether or not the key is live.
        missing = None if default is None else kind.from_cell(kind.to_cell(default))

        def write(stored: Value, now_ms: int) -> tuple[Value, Value]:
            slot = read_slot(stored, now_ms)
            entry = slot.entry if slot.live else None
            if entry is not None and entry.tag != VALUE_TAG:
                raise wrong_type("MODIFY", entry)
            held = missing if entry is None else typed_value(entry, kind)
            fresh = kind.to_cell(function(held))
            expire = None if entry is None else entry.expire
            # "Replaces a plain value ... and keeps its expiry" (docs/kv.md "Read, change, write").
            return pack_register(fresh, VALUE_TAG, after(slot, now_ms), expire), fresh

        return kind.from_cell(self._write(key, write))

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
            # The value that this update removes, even if another writer came first.
            return delete(stored, now_ms)[0], typed_value(slot.entry, self._type)

        found = self._write(key, write)
        if found is NOTHING:
            raise KeyError(key)
        return found

    def popitem(self) -> tuple[str, T]:
        """Delete the first live key and return it with its value, in one update.

        Raises: KeyError: the database has no live key.
        """
        # "Of threads that pop one key one gets it" (docs/kv.md "Values"): the others go on to the
        # next key.
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
                # A tombstone keeps its time: a later one would win over newer writes elsewhere.
                if live:
                    gone.append((key, entry))
            return store.put_many(gone), None

        self._apply(step)

    def type(self, key: str) -> str | None:
        """Return the type of a live key: value, hash, set, zset, list, counter; otherwise None."""
        entry = self._live(key)
        return None if entry is None else entry.type_name

    def scan(
        self, prefix: str = "", *, start: str | None = None, stop: str | None = None
    ) -> Iterator[tuple[str, Entry]]:
        """Yield the live keys that begin with `prefix`, with their entries.

        `start` and `stop` are keys: only keys from `start` on and before `stop` come. Keys of up
        to 32 bytes come in the order of their bytes; longer keys come after those with the same
        first eight bytes.

        Cost:   proportional to the keys that come, and the longer keys that share the first eight
                bytes of `prefix`, `start` or `stop`.
        Raises: TypeMismatch: an argument is not a str. UsageError: it is not Unicode text.
        """
        checked_text(prefix, "a prefix")
        for name, limit in (("start", start), ("stop", stop)):
            if limit is not None:
                checked_text(limit, f"`{name}`, a key,")
        return live_keys(self.store(), prefix, self._clock.now_ms(), start, stop)

    # --- expiry ---

    def expire(self, key: str, ttl: Duration) -> bool:
        """Let a live key expire after a time; return whether the key was live.

        The expiry is a write and is replicated.

        Units:  ttl: seconds, or a timedelta.
        Raises: UsageError: `ttl` is not a positive time span.
        """
        ttl_ms = milliseconds("ttl", ttl)
        return self._write(key, lambda stored, now: expire_at(stored, due(ttl_ms, now), now))

    def persist(self, key: str) -> bool:
        """Remove the expiry of a live key; return whether it had one."""

        def write(stored: Value, now_ms: int) -> tuple[Value, bool]:
            entry = read_slot(stored, now_ms).entry
            if entry is None or entry.expire is None:
                return stored, False
            return expire_at(stored, None, now_ms)

        return self._write(key, write)

    def ttl(self, key: str) -> timedelta | None:
        """Return the time until a key expires; None if it never does, or is not live."""
        stored, now_ms = self._stored(key)
        slot = read_slot(stored, now_ms)
        if slot.entry is None or not slot.live or slot.entry.expire is None:
            return None
        try:
            return timedelta(milliseconds=slot.entry.expire - now_ms)
        except OverflowError:  # a peer may write any time of 64 bits
            return timedelta.max

    def gc(self, min_age: Duration = GC_AGE) -> int:
        """Remove tombstones, expired and empty entries of at least that age; return how many.

        A replica that has not seen a deletion brings the value back, so clean up after all replicas
        have synced. An age of 0 removes all such entries.

        Units:  min_age: seconds, or a timedelta.
        Raises: UsageError: `min_age` is not a time span of 0 or more.
        """
        min_age_ms = milliseconds("min_age", min_age, least=0)
        now_ms = self._clock.now_ms()

        def step(store: Index) -> tuple[Index, int]:
            swept = store
            for key, stored in store.entries():
                name = ENTRY_KEYS.name(key)
                # A short name is its own key in the Index; longer ones share keys.
                if name is None or is_short(name):
                    if is_garbage(stored, min_age_ms, now_ms):
                        swept = swept.remove(key)
                elif is_garbage(ENTRY_KEYS.get(store, name), min_age_ms, now_ms):
                    swept = ENTRY_KEYS.remove(swept, name)
            return swept, len(store) - len(swept)

        return self._apply(step)


class _Items(ItemsView[str, T]):
    """Live keys and values of one snapshot."""

    _mapping: Operations[T]

    def __iter__(self) -> Iterator[tuple[str, T]]:
        for key, entry in self._mapping.scan():
            yield key, typed_value(entry, self._mapping._type)


class _Values(ValuesView[T]):
    """Values of live keys of one snapshot."""

    _mapping: Operations[T]

    def __iter__(self) -> Iterator[T]:
        for _key, entry in self._mapping.scan():
            yield typed_value(entry, self._mapping._type)


def live_keys(
    store: Index, prefix: str, now_ms: int, start: str | None = None, stop: str | None = None
) -> Iterator[tuple[str, Entry]]:
    """Yield the live keys of a store that `Operations.scan` asks for, with their entries."""
    for key, stored in ENTRY_KEYS.entries(store, prefix, start=start, stop=stop):
        slot = read_slot(stored, now_ms)
        if slot.entry is not None and slot.live:
            yield key, slot.entry


def milliseconds(name: str, span: Duration, *, least: int = 1) -> int:
    """Return a time span in milliseconds, rounded.

    Raises: UsageError: it is not a number of seconds or a timedelta, or is less than `least`.
    """
    given: object = span
    if isinstance(given, timedelta):
        found: float = given / timedelta(milliseconds=1)
    elif isinstance(given, (int, float)) and not isinstance(given, bool):
        found = given * 1_000
    else:
        found = math.nan
    if not least <= found <= LONG_MAX:  # also not for NaN
        wanted = "a positive time span" if least else "a time span of 0 or more"
        raise UsageError(f"`{name}` is not {wanted}, in seconds or as a timedelta: {given!r}")
    return round(found)
