"""Snapshot: all tables as one checksummed stream of bytes, and their atomic restore.

Layout, integers big-endian: the magic `DLTS` and a version (1 byte). Per table: `T`, the length of
its name (2 bytes), the name. Per entry: `E`, the lengths of key (4; version 1: 2) and value (4),
key, value. At the end: `Z` and the SHA3-256 of everything before it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from typing import Final

from datalattice.engine.base import KEY_BYTES_MAX, VALUE_BYTES_MAX, Engine
from datalattice.errors import BadFormat, StoreVersion, UsageError

MAGIC: Final = b"DLTS"
VERSION: Final = 2
RESTORE_BATCH: Final = 10_000  # bounds memory, and is large enough that calls do not count
_ENTRY: Final = struct.Struct(">II")
_ENTRY_1: Final = struct.Struct(">HI")
_DIGEST_BYTES: Final = 32


def export_tables(engine: Engine, write: Callable[[bytes], object]) -> int:
    """Write all tables of `engine` at one moment through `write`; return the number of entries."""
    digest = hashlib.sha3_256()
    entries = 0

    def put(data: bytes) -> None:
        digest.update(data)
        write(data)

    put(MAGIC + bytes([VERSION]))
    with engine.read() as txn:
        for table in engine.tables:
            name = table.encode()
            put(b"T" + len(name).to_bytes(2, "big") + name)
            for key, value in txn.scan(table):
                put(b"E" + _ENTRY.pack(len(key), len(value)) + key + value)
                entries += 1
    put(b"Z")
    write(digest.digest())
    return entries


def restore_tables(engine: Engine, read: Callable[[int], bytes]) -> int:
    """Replace all tables of `engine` by a stream from `export_tables`; return the entry count.

    The restore is one transaction, so a damaged stream changes nothing. `read(n)` returns up to n
    bytes, and b"" at the end, as files do.
    Raises: BadFormat: the stream is damaged or cut short. StoreVersion: a newer version wrote it.
            UsageError: it has a table that this engine does not have.
    """
    entries = 0
    with engine.write() as txn:
        for table in engine.tables:  # tables that the stream leaves out are empty afterwards
            txn.delete_range(table)
        batch: list[tuple[bytes, bytes]] = []
        current = ""
        for table, key, value in _entries(read, engine.tables):
            if table != current or len(batch) >= RESTORE_BATCH:
                if batch:
                    txn.put_many(current, batch)
                batch, current = [], table
            batch.append((key, value))
            entries += 1
        if batch:
            txn.put_many(current, batch)
    return entries


class _Source:
    """Reads exact lengths and updates the digest of the bytes read."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self.digest = hashlib.sha3_256()

    def take(self, count: int, *, counted: bool = True) -> bytes:
        parts = []  # a stream may give fewer bytes than asked
        left = count
        while left:
            part = self._read(left)
            if not part:
                raise BadFormat("the table stream is cut short")
            parts.append(part)
            left -= len(part)
        data = b"".join(parts)
        if counted:
            self.digest.update(data)
        return data


def _entries(
    read: Callable[[int], bytes], tables: tuple[str, ...]
) -> Iterator[tuple[str, bytes, bytes]]:
    source = _Source(read)
    head = source.take(len(MAGIC) + 1)
    if not head.startswith(MAGIC):
        raise BadFormat("not a table stream: it does not start with DLTS")
    if head[-1] > VERSION:  # before anything else is read: a newer layout may differ from here on
        raise StoreVersion(
            f"a table stream of version {head[-1]}; this package reads up to {VERSION}"
        )
    entry = _ENTRY_1 if head[-1] == 1 else _ENTRY
    table: str | None = None
    while (mark := source.take(1)) != b"Z":
        if mark == b"T":
            name = source.take(int.from_bytes(source.take(2), "big"))
            table = name.decode("ascii", "replace")
            if table not in tables:  # refused, not skipped: its data would be lost in silence
                raise UsageError(
                    f"the stream has a table {table!r}; this engine has {', '.join(tables)}"
                )
        elif mark == b"E" and table is not None:
            key_length, value_length = entry.unpack(source.take(entry.size))
            # Checked before reading: a damaged length must not allocate memory.
            if key_length > KEY_BYTES_MAX or value_length > VALUE_BYTES_MAX:
                raise BadFormat("a table entry exceeds the limits of keys and values")
            yield table, source.take(key_length), source.take(value_length)
        else:
            raise BadFormat("damaged table stream: expected a table, an entry or the end")
    if source.take(_DIGEST_BYTES, counted=False) != source.digest.digest():
        raise BadFormat("damaged table stream: the checksum differs")
