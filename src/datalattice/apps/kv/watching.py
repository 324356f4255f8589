"""Watching: a stream of the changes of a database's live keys.

A watch compares the store with the one it saw last. The cost depends on the number of changed
keys, not on the size of the database. Several writes to a key between two reads are one change. An
expiry is not a write and produces no change.

Source: docs/kv.md "Watching".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Generic, NamedTuple

from datalattice.apps.kv.entries import Entry
from datalattice.apps.kv.joining import ENTRY_KEYS
from datalattice.apps.kv.showing import typed_value
from datalattice.apps.kv.writing import live_entry
from datalattice.apps.valuetypes import T, ValueType
from datalattice.cells import EMPTY_INDEX, Index, IndexPart, Value, same
from datalattice.clock import Clock
from datalattice.cursors import Cursor, Stream
from datalattice.lattice import is_short, parts


class KeyChange(NamedTuple, Generic[T]):
    """The change of one key.

    Shapes: type: the name of the new type, None if the key was deleted. value, previous: the new
            and old value, None without a live entry.
    """

    key: str
    type: str | None
    value: T | None
    previous: T | None

    @property
    def deleted(self) -> bool:
        """Whether the key was deleted."""
        return self.type is None


class Watch(Stream[KeyChange[T]]):
    """The changes of the live keys with one prefix, from now on, in key order."""

    def __init__(
        self,
        cursor: Cursor,
        prefix: str,
        clock: Clock,
        kind: ValueType[T],
        *,
        wait: bool = True,
        timeout: float | None = None,
    ) -> None:
        super().__init__(cursor, wait=wait, timeout=timeout)
        self._cursor: Final = cursor
        self._prefix: Final = prefix
        self._clock: Final = clock
        self._kind: Final = kind
        self._seen = as_store(cursor.get())  # present keys are no changes

    def _fetch(self) -> Iterable[KeyChange[T]]:
        before, after = self._seen, as_store(self._cursor.get())
        self._seen = after
        # "An expiry is not a write and is not reported" (docs/kv.md "Watching"): both are read
        # with one time, so that a key which expired in between is live in neither.
        return key_changes(before, after, self._prefix, self._clock.now_ms(), self._kind)


def key_changes(
    before: Index, after: Index, prefix: str, now_ms: int, kind: ValueType[T]
) -> Iterator[KeyChange[T]]:
    """Yield the changes that readers see between two stores, in the order of the Index.

    Cost:   proportional to the keys that differ.
    """
    if after is before or same(before, after):
        return
    longer: set[str] = set()
    for old, new in zip(parts(before, prefix), parts(after, prefix), strict=True):
        for cell, _had, stored, _has, written in IndexPart(old, new).differences(apart=True):
            key = ENTRY_KEYS.name(cell)
            if key is None or not key.startswith(prefix) or key in longer:
                continue
            if not is_short(key):  # a key may appear twice: see `ExactKeys`
                longer.add(key)
                was, now = ENTRY_KEYS.get(before, key), ENTRY_KEYS.get(after, key)
            else:
                was, now = stored, written
            change = _change(key, live_entry(was, now_ms), live_entry(now, now_ms), kind)
            if change is not None:
                yield change


def _change(
    key: str, was: Entry | None, now: Entry | None, kind: ValueType[T]
) -> KeyChange[T] | None:
    """Return the change of a key; None if readers see no difference."""
    # "Type (None: deleted)"; a key created and deleted between two reads is no change.
    if now is None:
        return None if was is None else KeyChange(key, None, None, typed_value(was, kind))
    # A write that readers cannot see, such as a new expiry, is not reported.
    if was is not None and was.tag == now.tag and same(was.value, now.value):
        return None
    previous = None if was is None else typed_value(was, kind)
    return KeyChange(key, now.type_name, typed_value(now, kind), previous)


def as_store(value: Value) -> Index:
    """Return `value` if it is a store, otherwise an empty store."""
    return value if isinstance(value, Index) else EMPTY_INDEX
