"""Tables: the state of a machine as a transaction sees it, and changes collected in front of it.

Source: docs/design/weaver.md "Who calls whom".
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Final

from datalattice.engine import ReadTxn, WriteTxn
from datalattice.errors import UsageError
from datalattice.weaver.machine import StateReader

STATE_DATA: Final = "state_data"
STATE_META: Final = "state_meta"
STATE_SYSTEM: Final = "state_system"
STATE_TABLES: Final = (STATE_DATA, STATE_META, STATE_SYSTEM)
"""The tables that an engine needs for the states of its stores."""

STATE_KEY_BYTES_MAX: Final = 32_768
"""Longest key of a state: an engine takes twice as much, with the store's prefix in front."""

STATE_VALUE_BYTES_MAX: Final = 64 << 20  # "refuse a record whose declared length exceeds … 64 MiB"
"""Longest value of a state, as in a snapshot."""


class TableReader:
    """One table of a transaction, as a `StateReader`."""

    __slots__ = ("_table", "_txn")

    def __init__(self, txn: ReadTxn, table: str) -> None:
        self._txn = txn
        self._table = table

    def get(self, key: bytes) -> bytes | None:
        return self._txn.get(self._table, key)

    def scan(
        self, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._txn.scan(self._table, start, end, reverse=reverse)


class StateView:
    """The reading half of a `StateReader` that can also write."""

    __slots__ = ("_below",)

    def __init__(self, below: StateReader) -> None:
        self._below = below

    def get(self, key: bytes) -> bytes | None:
        return self._below.get(key)

    def scan(
        self, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._below.scan(start, end, reverse=reverse)


class Overlay:
    """Changes in front of a table that does not change meanwhile; without one, a table in memory.

    `changes` maps keys to values, None for a removed key.
    """

    __slots__ = ("_base", "changes", "size")

    def __init__(self, base: StateReader | None = None) -> None:
        self._base = base
        self.changes: dict[bytes, bytes | None] = {}
        self.size = 0  # bytes that were put

    def get(self, key: bytes) -> bytes | None:
        if key in self.changes:  # a removed key is in `changes` as None, and hides the row below
            return self.changes[key]
        return None if self._base is None else self._base.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of `key`.

        Raises: UsageError: the key is longer than 32,768 bytes, or the value than 64 MiB.
        """
        # Refused here, within `apply`: refused later by the engine it would fail the transaction.
        if type(key) is not bytes or type(value) is not bytes:
            raise UsageError("keys and values of a state are bytes")
        if len(key) > STATE_KEY_BYTES_MAX or len(value) > STATE_VALUE_BYTES_MAX:
            raise UsageError(
                f"a state has keys of up to {STATE_KEY_BYTES_MAX} bytes and values of up to "
                f"{STATE_VALUE_BYTES_MAX}, got {len(key)} and {len(value)}"
            )
        self.changes[key] = value
        self.size += len(key) + len(value)

    def delete(self, key: bytes) -> None:
        self.changes[key] = None
        self.size += len(key)  # counted, too: a removal is held until it is written

    def scan(
        self, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield `(key, value)` for start <= key < end in key order, or in reverse.

        Changes made while the scan runs are not seen.
        """
        changed = sorted(
            [
                (key, value)
                for key, value in self.changes.items()
                if key >= start and (end is None or key < end)
            ],
            key=itemgetter(0),
            reverse=reverse,
        )
        if self._base is None:
            return ((key, value) for key, value in changed if value is not None)
        below = self._base.scan(start, end, reverse=reverse)
        # Without changes the table's own scan, which is faster.
        return _merged(changed, below, reverse) if changed else below

    def absorb(self, other: Overlay) -> None:
        """Take over the changes of `other`, and leave it empty."""
        self.changes.update(other.changes)
        self.size += other.size
        other.clear()

    def clear(self) -> None:
        """Drop all changes."""
        self.changes.clear()
        self.size = 0

    def write_to(self, txn: WriteTxn, table: str) -> None:
        """Write all changes to the table, in key order, and leave the overlay empty."""
        put = []
        for key, value in sorted(self.changes.items(), key=itemgetter(0)):
            if value is None:
                txn.delete(table, key)
            else:
                put.append((key, value))
        txn.put_many(table, put)  # in key order: one pass over the pages
        self.clear()


def _merged(
    changed: list[tuple[bytes, bytes | None]], below: Iterator[tuple[bytes, bytes]], reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    # The merge is stable: of equal keys the change comes first, and it hides the row below.
    rows = merge(changed, below, key=itemgetter(0), reverse=reverse)
    for key, same in groupby(rows, key=itemgetter(0)):
        value = next(same)[1]
        if value is not None:
            yield key, value
