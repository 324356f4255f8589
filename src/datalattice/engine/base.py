"""Base: the engine's protocols. Named, ordered byte tables with one writer and snapshot readers.

An engine holds a fixed set of tables, named when it is opened. A table maps keys to values, both
bytes, and is ordered by key (unsigned bytes, a prefix before what it begins). Everything happens in
transactions:

    with engine.write() as txn:                 # commits at the end, takes everything back on an
    exception
        txn.put("names", b"k", b"v")
    with engine.read() as txn:                  # one unchanging view, however long it stays open
        txn.get("names", b"k")

There is one write transaction at a time; other threads wait for it. Readers never wait and never
make anybody wait. A read transaction belongs to one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Final, Protocol, Self, runtime_checkable

from datalattice.errors import UsageError

KEY_BYTES_MAX: Final = 511
"""Longest key of a table: the longest that LMDB takes as it is built everywhere."""

VALUE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Longest value of a table. Larger things belong in files; LMDB itself would take 4 GiB."""

TABLES_MAX: Final = 64
"""Most tables of one engine: LMDB sizes each transaction by it."""

TABLE_NAME_BYTES_MAX: Final = 64
"""Longest name of a table."""


class ReadTxn(Protocol):
    """One unchanging view of all tables."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""
        ...

    def get_many(self, table: str, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the values of `keys` in their order, None where there is none.

        Cost: one call for all; fastest when the keys are sorted.
        """
        ...

    def scan(
        self, table: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield `(key, value)` for start <= key < end in key order, or from the far end.

        Inside a write transaction a scan sees what is changed ahead of it.
        """
        ...

    def count(self, table: str) -> int:
        """Return the number of keys."""
        ...


class WriteTxn(ReadTxn, Protocol):
    """The one write transaction: reads see its own writes."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set the value of `key`."""
        ...

    def put_many(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Set many values; a later pair wins over an earlier one. Fastest when sorted by key."""
        ...

    def delete(self, table: str, key: bytes) -> bool:
        """Remove `key`; return whether it was there."""
        ...

    def delete_range(self, table: str, start: bytes = b"", end: bytes | None = None) -> int:
        """Remove every key with start <= key < end; return how many there were."""
        ...


@runtime_checkable
class Snapshot(ReadTxn, Protocol):
    """A read transaction that can be kept: close it, or move it to the newest state."""

    def getter(self, table: str) -> Callable[[bytes], bytes | None]:
        """Return the quickest `get` of a table, keys not checked; good until renew or close."""
        ...

    def renew(self) -> None:
        """Show the newest committed state from now on."""
        ...

    def close(self) -> None:
        """Give the view up. Closing twice is fine; any other use after it is an error."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class Engine(Protocol):
    """Named ordered byte tables with transactions."""

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables, sorted."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether `write` is refused."""
        ...

    @property
    def is_damaged(self) -> bool:
        """Whether a transaction met bytes that are not what was written."""
        ...

    def read(self) -> Snapshot:
        """Begin a read transaction on the newest committed state."""
        ...

    def write(self) -> AbstractContextManager[WriteTxn]:
        """Begin the write transaction; waits for the one of another thread.

        Raises: ReadOnly: the engine was opened so. UsageError: this thread is in one already.
                StoreFull: there is no room; nothing of the transaction was kept.
        """
        ...

    def sync(self) -> None:
        """Return when everything committed is durable; a `durable` engine always is."""
        ...

    def close(self) -> None:
        """Give everything back.

        Closing twice is fine; any other use after it raises StoreClosed.
        """
        ...


def check_tables(tables: Iterable[str]) -> tuple[str, ...]:
    """Return the table names, sorted.

    Raises: UsageError: none, too many, or a name that is not 1 to 64 bytes of ASCII letters,
            digits, `-` and `_`.
    """
    names = tuple(sorted(set(tables)))
    if not 1 <= len(names) <= TABLES_MAX:
        raise UsageError(f"an engine has 1 to {TABLES_MAX} tables, got {len(names)}")
    for name in names:
        plain = name.replace("-", "").replace("_", "")
        if not (plain.isascii() and plain.isalnum() and len(name) <= TABLE_NAME_BYTES_MAX):
            raise UsageError(
                f"a table name has 1 to {TABLE_NAME_BYTES_MAX} ASCII letters, digits, "
                f"'-' or '_', got {name!r}"
            )
    return names


def check_key(key: bytes) -> bytes:
    """Return `key`.

    Raises: UsageError: it is not 1 to 511 bytes.
    """
    if not isinstance(key, bytes):
        raise UsageError(f"a key is bytes, got {type(key).__name__}")
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise UsageError(f"a key has 1 to {KEY_BYTES_MAX} bytes, got {len(key)}")
    return key


def check_value(value: bytes) -> bytes:
    """Return `value`.

    Raises: UsageError: it is not bytes, or longer than 256 MiB.
    """
    if not isinstance(value, bytes):
        raise UsageError(f"a value is bytes, got {type(value).__name__}")
    if len(value) > VALUE_BYTES_MAX:
        raise UsageError(f"a value has at most {VALUE_BYTES_MAX} bytes, got {len(value)}")
    return value


def unknown_table(table: str, tables: Iterable[str]) -> UsageError:
    """Return the error for a table that the engine was not opened with."""
    return UsageError(f"no table {table!r}; this engine has {', '.join(tables)}")


def read_only_error(where: str) -> str:
    """Return the text of the refusal to write."""
    return f"{where} was opened for reading only; open it without read_only to write"
