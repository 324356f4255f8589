"""Watching: an iterator over the changes of a database's live keys.

A watch compares the store with the last one it read. The cost depends on the number of changed
keys, not on the size of the database. Several writes to a key between two reads are one change. An
expiry is not a write and produces no change.

Source: docs/kv.md "Watching".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple, Self

from datalattice.apps.kv.entries import VALUE, Entry
from datalattice.apps.kv.joining import ENTRIES
from datalattice.apps.kv.writing import read_slot
from datalattice.cells import EMPTY_INDEX, Index, IndexPart, Value, same
from datalattice.clock import Clock
from datalattice.cursors import Change, Changes, Cursor, Wake
from datalattice.lattice import is_short, parts


class KeyChange(NamedTuple):
    """The change of one key.

    Shapes: type: the name of the new type, None if the key was deleted. value, previous: the new
            and old value, None without a live entry.
    """

    key: str
    type: str | None
    value: Value
    previous: Value

    @property
    def deleted(self) -> bool:
        """Whether the key was deleted."""
        return self.type is None


class Watch:
    """An iterator that waits for changes of live keys with one prefix.

    Use it in `with`, or `close` it. Any thread may close; only one thread may read the changes.
    """

    __slots__ = ("_changes", "_clock", "_prefix", "_waiting")

    def __init__(self, cursor: Cursor, prefix: str, clock: Clock) -> None:
        self._prefix: Final = prefix
        self._clock: Final = clock
        self._waiting: deque[KeyChange] = deque()
        self._changes: Final = Changes(cursor)

    @property
    def closed(self) -> bool:
        """Whether the watch is closed."""
        return self._changes.closed

    def poll(self) -> list[KeyChange]:
        """Return the changes since the last call, in key order; never waits."""
        change = self._changes.poll()
        if change is not None:
            self._take(change)
        told = list(self._waiting)
        self._waiting.clear()
        return told

    def wait(self, timeout_s: float | None = None) -> KeyChange | None:
        """Return the next change; None after the timeout or on `close`.

        Units:  timeout_s: seconds; None waits without limit.
        """
        if not self._waiting and self._changes.wait(timeout_s, self._take) is None:
            return None
        return self._waiting.popleft()

    def on_wake(self, wake: Wake) -> None:
        """Call `wake`, in the writing thread, when `poll` may return changes; and on `close`."""
        self._changes.on_wake(wake)

    def close(self) -> None:
        """Stop watching and wake the waiting thread."""
        self._changes.close()

    def _take(self, change: Change) -> bool:
        self._waiting.extend(self._of(change))
        return bool(self._waiting)

    def _of(self, change: Change) -> Iterator[KeyChange]:
        before, after = _store(change.before), _store(change.after)
        now_ms = self._clock.now_ms()
        longer: set[str] = set()
        pairs = zip(parts(before, self._prefix), parts(after, self._prefix), strict=True)
        for old, new in pairs:
            for cell, _had, was, _has, now in IndexPart(old, new).differences(apart=True):
                key = ENTRIES.name(cell)
                if key is None or not key.startswith(self._prefix) or key in longer:
                    continue
                if not is_short(key):  # a key may appear twice: see `ExactKeys`
                    longer.add(key)
                    told = _told(
                        key,
                        _live(ENTRIES.get(before, key), now_ms),
                        _live(ENTRIES.get(after, key), now_ms),
                    )
                else:
                    told = _told(key, _live(was, now_ms), _live(now, now_ms))
                if told is not None:
                    yield told

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> KeyChange:
        change = self.wait()
        if change is None:
            raise StopIteration
        return change

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _store(value: Value) -> Index:
    return value if isinstance(value, Index) else EMPTY_INDEX


def _live(stored: Value, now_ms: int) -> Entry | None:
    slot = read_slot(stored, now_ms)
    return slot.entry if slot.live else None


def _told(key: str, was: Entry | None, now: Entry | None) -> KeyChange | None:
    """Return the change of a key; None if readers see no difference."""
    before = None if was is None else was.cell[VALUE]
    if now is None:
        return None if was is None else KeyChange(key, None, None, before)
    after = now.cell[VALUE]
    if was is not None and was.tag == now.tag and same(before, after):
        return None
    return KeyChange(key, now.type_name, after, before)
