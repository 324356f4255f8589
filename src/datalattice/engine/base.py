"""Base: the engine's protocols. Named, ordered byte tables with one writer and snapshot readers.

An engine holds a fixed set of tables, named when it is opened. A table maps byte keys to byte
values and is ordered by key: unsigned bytes, a prefix before its extensions. All access happens in
transactions:

    with engine.write() as txn:     # commits at the end, rolls back on an exception
        txn.put("names", b"k", b"v")
    with engine.read() as txn:      # one unchanging view, however long it stays open
        txn.get("names", b"k")

There is one write transaction at a time; other threads wait for it. Readers neither wait for the
writer nor block it. A read transaction belongs to one thread at a time.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Final, Protocol, Self, runtime_checkable

from datalattice.errors import UsageError

TABLE_KEY_BYTES_MAX: Final = 65_536 + 1_024
"""Longest key of a table: 64 KiB for an application, after the prefixes of its sections. The
shortest key is empty. Keys of 1 to 510 bytes are the fast ones."""

VALUE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Longest value of a table; LMDB's own limit is 4 GiB. Larger data belongs in files."""

KeyValue = tuple[bytes, bytes]

TABLES_MAX: Final = 64
"""Most tables of one engine: the size of every LMDB transaction grows with it."""

TABLE_NAME_BYTES_MAX: Final = 64
"""Longest name of a table."""

FULL_CODES: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Codes of the operating system that need room: no space, no quota, file too large."""


class ReadTxn(Protocol):
    """One unchanging view of all tables."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""

    def get_many(self, table: str, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the values of `keys` in their order, None for absent keys.

        Cost: one call; fastest when the keys are sorted.
        """

    def scan(
        self, table: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield `(key, value)` for start <= key < end in key order, or in reverse.

        In a write transaction, a scan sees changes made ahead of its position.
        """

    def count(self, table: str) -> int:
        """Return the number of keys."""


class WriteTxn(ReadTxn, Protocol):
    """The one write transaction: reads see its own writes."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set the value of `key`."""

    def put_many(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Set many values; a later pair wins over an earlier one. Fastest when sorted by key."""

    def delete(self, table: str, key: bytes) -> bool:
        """Remove `key`; return whether it was there."""

    def delete_range(self, table: str, start: bytes = b"", end: bytes | None = None) -> int:
        """Remove every key with start <= key < end; return how many there were."""


@runtime_checkable
class Snapshot(ReadTxn, Protocol):
    """A read transaction that can be kept: close it, or move it to the newest state."""

    def getter(self, table: str) -> Callable[[bytes], bytes | None]:
        """Return a fast `get` that skips key checks; valid until renew or close."""

    def renew(self) -> None:
        """Move the view to the newest committed state."""

    def close(self) -> None:
        """Release the view. Closing twice is allowed; any other later use is an error."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class Engine(Protocol):
    """Named ordered byte tables with transactions."""

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables, sorted."""

    @property
    def read_only(self) -> bool:
        """Whether `write` is refused."""

    @property
    def is_damaged(self) -> bool:
        """Whether a transaction has read bytes that differ from what was written."""

    @property
    def last_commit(self) -> int:
        """A number that grows with every commit that changed something, by any process.

        Cost: far less than a read transaction.
        """

    def read(self) -> Snapshot:
        """Begin a read transaction on the newest committed state."""

    def write(self) -> AbstractContextManager[WriteTxn]:
        """Begin the write transaction; waits for another thread's.

        Raises: ReadOnly: the engine is read-only. UsageError: this thread is already in one.
                StoreFull: there is no room; nothing of the transaction was kept.
        """

    def sync(self) -> None:
        """Return when everything committed is durable; a `durable` engine always is."""

    def close(self) -> None:
        """Release all resources. Closing twice is allowed; later use raises StoreClosed."""


def check_tables(tables: Iterable[str]) -> tuple[str, ...]:
    """Return the table names, sorted.

    Raises: UsageError: no table, more than 64, or a name that is not 1 to 64 bytes of ASCII
            letters, digits, `-` and `_`.
    """
    names = tuple(sorted(set(tables)))
    if not 1 <= len(names) <= TABLES_MAX:
        raise UsageError(f"an engine has 1 to {TABLES_MAX} tables, got {len(names)}")
    for name in names:
        # Names become LMDB databases and file names of exports: plain ASCII is safe in both.
        plain = name.replace("-", "").replace("_", "")
        if not (plain.isascii() and plain.isalnum() and len(name) <= TABLE_NAME_BYTES_MAX):
            raise UsageError(
                f"a table name has 1 to {TABLE_NAME_BYTES_MAX} ASCII letters, digits, "
                f"'-' or '_', got {name!r}"
            )
    return names


def check_key(key: bytes) -> bytes:
    """Return `key`.

    Raises: UsageError: it is not bytes, or longer than TABLE_KEY_BYTES_MAX.
    """
    if not isinstance(key, bytes):
        raise UsageError(f"a key is not bytes: {type(key).__name__}")
    if len(key) > TABLE_KEY_BYTES_MAX:  # refused here, alike by all engines
        raise UsageError(f"a key has at most {TABLE_KEY_BYTES_MAX} bytes, got {len(key)}")
    return key


def check_value(value: bytes) -> bytes:
    """Return `value`.

    Raises: UsageError: it is not bytes, or longer than 256 MiB.
    """
    if not isinstance(value, bytes):
        raise UsageError(f"a value is not bytes: {type(value).__name__}")
    if len(value) > VALUE_BYTES_MAX:  # refused before it is copied
        raise UsageError(f"a value has at most {VALUE_BYTES_MAX} bytes, got {len(value)}")
    return value


def successor(prefix: bytes) -> bytes | None:
    """Return the least key above every key that begins with `prefix`; None if every byte is ff."""
    kept = prefix.rstrip(b"\xff")
    # A byte ff has no successor: the next greater key ends one byte earlier.
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def unknown_table(table: str, tables: Iterable[str]) -> UsageError:
    """Return the error for a table that the engine was not opened with."""
    return UsageError(f"no table {table!r}; this engine has {', '.join(tables)}")


def read_only_error(where: str) -> str:
    """Return the error text for a write to an engine opened read-only."""
    return f"{where} is open for reading only; open it without read_only to write"
