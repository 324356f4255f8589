"""Section: the keys of a transaction that begin with one prefix, as a transaction of their own.

Many stores share one engine; each has a prefix and sees its own keys alone, without the prefix. A
section lives as long as its transaction. `count` walks the keys, since an engine counts a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import overload

from datalattice.engine.base import ReadTxn, WriteTxn, successor
from datalattice.engine.group import GroupTxn


@overload
def section(txn: WriteTxn, prefix: bytes) -> WriteTxn: ...
@overload
def section(txn: ReadTxn, prefix: bytes) -> ReadTxn: ...
def section(txn: ReadTxn, prefix: bytes) -> ReadTxn:
    """Return the view of the keys of `txn` that begin with `prefix`, named without it.

    It writes where `txn` writes. A key has at most TABLE_KEY_BYTES_MAX bytes with its prefix.
    Sections of one engine are separate if no prefix begins with another one.
    """
    if hasattr(txn, "put"):
        return _WriteSection(txn, prefix)  # type: ignore[arg-type]  # it has `put`
    return _ReadSection(txn, prefix)


class _ReadSection:
    """The keys with a prefix, in a read transaction."""

    __slots__ = ("_end", "_prefix", "_reader")

    def __init__(self, txn: ReadTxn, prefix: bytes) -> None:
        # Reads need no undo, so they go past a group's bookkeeping.
        self._reader = txn.reader if isinstance(txn, GroupTxn) else txn
        self._prefix = prefix
        self._end = successor(prefix)

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._reader.get(table, self._prefix + key)

    def get_many(self, table: str, keys: Iterable[bytes]) -> list[bytes | None]:
        prefix = self._prefix
        return self._reader.get_many(table, [prefix + key for key in keys])

    def scan(
        self, table: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        last = self._end if end is None else self._prefix + end  # never into the next store's keys
        entries = self._reader.scan(table, self._prefix + start, last, reverse=reverse)
        return _shortened(entries, len(self._prefix))

    def count(self, table: str) -> int:
        """Return the number of keys. Cost: a scan."""
        return sum(1 for _ in self._reader.scan(table, self._prefix, self._end))


class _WriteSection(_ReadSection):
    """The keys with a prefix, in a write transaction."""

    __slots__ = ("_writer",)

    def __init__(self, txn: WriteTxn, prefix: bytes) -> None:
        super().__init__(txn, prefix)
        self._writer = txn.writer if isinstance(txn, GroupTxn) else txn

    def put(self, table: str, key: bytes, value: bytes) -> None:
        self._writer.put(table, self._prefix + key, value)

    def put_many(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        prefix = self._prefix
        self._writer.put_many(table, [(prefix + key, value) for key, value in items])

    def delete(self, table: str, key: bytes) -> bool:
        return self._writer.delete(table, self._prefix + key)

    def delete_range(self, table: str, start: bytes = b"", end: bytes | None = None) -> int:
        last = self._end if end is None else self._prefix + end
        return self._writer.delete_range(table, self._prefix + start, last)


def _shortened(
    entries: Iterator[tuple[bytes, bytes]], length: int
) -> Iterator[tuple[bytes, bytes]]:
    for key, value in entries:
        yield key[length:], value
