"""Memory: the engine's reference implementation, held in dictionaries.

For tests, simulation and temporary stores. A table is a dictionary and a sorted list of its keys. A
write transaction collects its changes in an overlay and applies them at commit: in place when no
reader holds the table, else to a copy, so every reader keeps its view.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Self

from datalattice.engine.base import (
    WriteTxn,
    check_key,
    check_tables,
    check_value,
    unknown_table,
)
from datalattice.errors import StoreClosed, UsageError
from datalattice.forking import freed_in_child


class _Table:
    """Sorted keys and their values; `pins` counts the readers that hold this version."""

    __slots__ = ("data", "keys", "pins")

    def __init__(self, data: dict[bytes, bytes], keys: list[bytes]) -> None:
        self.data = data
        self.keys = keys
        self.pins = 0

    def apply(self, changes: dict[bytes, bytes | None]) -> None:
        data = self.data
        # Above an eighth of the table one sort is cheaper than moving the key list per change.
        if len(changes) * 8 > len(data):
            for key, value in changes.items():
                if value is None:
                    data.pop(key, None)
                else:
                    data[key] = value
            self.keys = sorted(data)
            return
        for key, value in changes.items():
            if value is None:
                if data.pop(key, None) is not None:
                    del self.keys[bisect_left(self.keys, key)]
            else:
                if key not in data:
                    insort(self.keys, key)
                data[key] = value


class MemoryEngine:
    """Ordered tables in memory, lost with the object."""

    def __init__(self, tables: Iterable[str]) -> None:
        self._names = check_tables(tables)
        self._tables = {name: _Table({}, []) for name in self._names}
        self._write_lock = freed_in_child(threading.Lock())
        # Held while a commit replaces tables and while a reader pins them. Reentrant: garbage
        # collection may close a snapshot at any moment, also in a thread that holds this lock.
        self._swap_lock = freed_in_child(threading.RLock())
        self._writer_thread: int | None = None
        self._closed = False
        self._commits = 0

    @property
    def tables(self) -> tuple[str, ...]:
        return self._names

    @property
    def read_only(self) -> bool:
        """False: a memory engine is always writable."""
        return False

    @property
    def is_damaged(self) -> bool:
        """False: memory has no damage to detect."""
        return False

    @property
    def last_commit(self) -> int:
        return self._commits

    def read(self) -> MemorySnapshot:
        return MemorySnapshot(self)

    @contextmanager
    def write(self) -> Iterator[WriteTxn]:
        """Begin the write transaction; waits for another thread's.

        Raises: UsageError: this thread is already in one. StoreClosed: the engine is closed.
        """
        me = threading.get_ident()
        # The lock is not reentrant: a nested write would wait for itself.
        if self._writer_thread == me:
            raise UsageError("this thread is already in a write transaction of this engine")
        with self._write_lock:
            self._check_open()
            self._writer_thread = me
            txn = MemoryWriteTxn(self._tables)
            try:
                yield txn
                self._commit(txn)
            finally:
                txn.over = True
                self._writer_thread = None

    def sync(self) -> None:
        """Do nothing: a memory engine is never durable."""
        self._check_open()

    def close(self) -> None:
        """Close the engine; its data is lost."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the engine is closed")

    def _commit(self, txn: MemoryWriteTxn) -> None:
        with self._swap_lock:
            for name, changes in txn.changes.items():
                table = self._tables[name]
                if table.pins:  # readers keep the version they began with
                    table = _Table(dict(table.data), list(table.keys))
                table.apply(changes.values)
                self._tables[name] = table
            self._commits += 1

    def pin(self) -> dict[str, _Table]:
        """Return the current tables, which stay unchanged until `unpin`."""
        self._check_open()
        with self._swap_lock:
            for table in self._tables.values():
                table.pins += 1
            return dict(self._tables)  # the dictionary too: a commit swaps its entries

    def unpin(self, tables: dict[str, _Table]) -> None:
        """Release the tables of one `pin`."""
        with self._swap_lock:
            for table in tables.values():
                table.pins -= 1


class _Overlay:
    """The changes of a write transaction to one table, in key order."""

    __slots__ = ("keys", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}
        self.keys: list[bytes] = []

    def set(self, key: bytes, value: bytes | None) -> None:
        if key not in self.values:
            insort(self.keys, key)  # sorted at once: scans see writes ahead of them
        self.values[key] = value


class MemorySnapshot:
    """One unchanging view of a memory engine."""

    __slots__ = ("_engine", "_tables")

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self._tables: dict[str, _Table] | None = engine.pin()

    def _table(self, name: str) -> _Table:
        if self._tables is None:
            raise UsageError("the transaction is over")
        self._engine._check_open()
        table = self._tables.get(name)
        if table is None:
            raise unknown_table(name, self._tables)
        return table

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._table(table).data.get(check_key(key))

    def get_many(self, table: str, keys: Iterable[bytes]) -> list[bytes | None]:
        data = self._table(table).data
        return [data.get(check_key(key)) for key in keys]

    def scan(
        self, table: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        source = self._table(table)
        first = bisect_left(source.keys, start)
        last = len(source.keys) if end is None else bisect_left(source.keys, end)
        span = range(first, last)
        return self._walk(source, reversed(span) if reverse else iter(span), table)

    def _walk(
        self, source: _Table, span: Iterator[int], name: str
    ) -> Iterator[tuple[bytes, bytes]]:
        for i in span:
            self._table(name)  # raises once the transaction is over
            key = source.keys[i]
            yield key, source.data[key]

    def count(self, table: str) -> int:
        return len(self._table(table).data)

    def getter(self, table: str) -> Callable[[bytes], bytes | None]:
        return self._table(table).data.get

    def renew(self) -> None:
        self.close()
        self._tables = self._engine.pin()

    def close(self) -> None:
        """Release the view."""
        if self._tables is not None:
            self._engine.unpin(self._tables)
            self._tables = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class MemoryWriteTxn:
    """The write transaction of a memory engine: committed tables under an overlay of changes."""

    __slots__ = ("_base", "changes", "over")

    def __init__(self, base: dict[str, _Table]) -> None:
        self._base = base
        self.changes: dict[str, _Overlay] = {}
        self.over = False

    def _table(self, name: str) -> _Table:
        if self.over:
            raise UsageError("the transaction is over")
        table = self._base.get(name)
        if table is None:
            raise unknown_table(name, self._base)
        return table

    def _overlay(self, name: str) -> _Overlay:
        self._table(name)
        overlay = self.changes.get(name)
        if overlay is None:
            overlay = self.changes[name] = _Overlay()
        return overlay

    def get(self, table: str, key: bytes) -> bytes | None:
        base = self._table(table)
        overlay = self.changes.get(table)
        # A key in the overlay counts as written, also where it was deleted.
        if overlay is not None and check_key(key) in overlay.values:
            return overlay.values[key]
        return base.data.get(check_key(key))

    def get_many(self, table: str, keys: Iterable[bytes]) -> list[bytes | None]:
        return [self.get(table, key) for key in keys]

    def scan(
        self, table: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield `(key, value)` for start <= key < end; sees changes made ahead of its position."""
        self._table(table)
        return self._walk(table, start, end, reverse)

    def _walk(
        self, table: str, start: bytes, end: bytes | None, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        step = self._before if reverse else self._from
        bound = end if reverse else start
        while True:
            key = step(table, bound)
            if key is None or (key < start if reverse else end is not None and key >= end):
                return
            value = self.get(table, key)
            if value is not None:
                yield key, value
            # The next step seeks from here, so keys written meanwhile are seen.
            bound = key if reverse else key + b"\0"

    def _from(self, table: str, bound: bytes | None) -> bytes | None:
        """Return the least key >= bound in the table or its overlay, deleted ones included."""
        found: bytes | None = None
        for keys in self._key_lists(table):
            i = bisect_left(keys, bound or b"")
            if i < len(keys) and (found is None or keys[i] < found):
                found = keys[i]
        return found

    def _before(self, table: str, bound: bytes | None) -> bytes | None:
        """Return the greatest key < bound (None: of all), deleted ones included."""
        found: bytes | None = None
        for keys in self._key_lists(table):
            i = len(keys) if bound is None else bisect_left(keys, bound)
            if i > 0 and (found is None or keys[i - 1] > found):
                found = keys[i - 1]
        return found

    def _key_lists(self, table: str) -> list[list[bytes]]:
        lists = [self._table(table).keys]
        overlay = self.changes.get(table)
        if overlay is not None:
            lists.append(overlay.keys)
        return lists

    def count(self, table: str) -> int:
        base = self._table(table).data
        overlay = self.changes.get(table)
        if overlay is None:
            return len(base)
        return len(base) + sum(
            (value is not None) - (key in base) for key, value in overlay.values.items()
        )

    def put(self, table: str, key: bytes, value: bytes) -> None:
        self._overlay(table).set(check_key(key), check_value(value))

    def put_many(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Set many values; a later pair wins over an earlier one."""
        overlay = self._overlay(table)
        for key, value in items:
            overlay.set(check_key(key), check_value(value))

    def delete(self, table: str, key: bytes) -> bool:
        present = self.get(table, key) is not None
        if present:
            self._overlay(table).set(key, None)
        return present

    def delete_range(self, table: str, start: bytes = b"", end: bytes | None = None) -> int:
        # The list first: the scan sees its own deletions.
        keys = [key for key, _ in self.scan(table, start, end)]
        for key in keys:
            self._overlay(table).set(key, None)
        return len(keys)
