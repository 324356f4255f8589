"""Snapshot: all rows of a state as one stream of bytes, with a checksum.

    "LATS" | version 1 (u32, little-endian) | store id (16)
    repeat: type (1 data, 2 meta, 3 system) | u64 key length | key | u64 value length | value
    0 | BLAKE3 of everything before (32)

Tables come in the order of their types and rows in the order of their keys, so equal states give
equal bytes. Source: docs/design/weaver.md "Snapshots".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from datalattice.crypto import Blake3
from datalattice.engine import ReadTxn, WriteTxn
from datalattice.errors import BadFormat
from datalattice.weaver.tables import (
    STATE_DATA,
    STATE_KEY_BYTES_MAX,
    STATE_META,
    STATE_SYSTEM,
    STATE_TABLES,
    STATE_VALUE_BYTES_MAX,
)

SNAPSHOT_VERSION: Final = 1

SNAPSHOT_PART_BYTES: Final = 64 << 10  # few system calls, little memory
"""Least length of every part of a snapshot but the last."""

RESTORE_ROWS: Final = 1_024
"""Rows that a restore writes at once."""

_MAGIC: Final = b"LATS"
_END: Final = 0
_ROW_TYPES: Final = (
    (1, STATE_DATA),
    (2, STATE_META),
    (3, STATE_SYSTEM),
)  # also the order of the tables
_HASH_BYTES: Final = 32


class SnapshotRefused(BadFormat):
    """A snapshot cannot be restored; nothing was changed.

    reason: "invalid_magic", "unsupported_version", "store_id_mismatch", "unknown_record_type",
    "checksum_mismatch", or "io" for a stream that is cut short or declares too long a row.
    """

    code = "snapshot-refused"

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def write_snapshot(txn: ReadTxn, store_id: bytes) -> Iterator[bytes]:
    """Yield a snapshot of the state's tables in parts."""
    digest = Blake3()
    part = bytearray(_MAGIC + SNAPSHOT_VERSION.to_bytes(4, "little") + store_id)
    for number, table in _ROW_TYPES:
        # "rows in ascending key order; so equal states give equal bytes"
        for key, value in txn.scan(table):
            part.append(number)
            part += len(key).to_bytes(8, "little") + key
            part += len(value).to_bytes(8, "little") + value
            if len(part) >= SNAPSHOT_PART_BYTES:
                digest.update(part)
                yield bytes(part)
                part = bytearray()
    part.append(_END)
    digest.update(part)
    yield bytes(part) + digest.digest()


def read_snapshot(txn: WriteTxn, parts: Iterable[bytes], store_id: bytes) -> int:
    """Replace the state's tables by a snapshot; return the number of rows.

    Raises: SnapshotRefused: roll the transaction back, which keeps the old state.
    """
    for table in STATE_TABLES:  # in the caller's transaction: "any error leaves the old state"
        txn.delete_range(table)
    rows = 0
    batch: list[tuple[bytes, bytes]] = []
    current = ""
    for table, key, value in _snapshot_rows(parts, store_id):
        if table != current or len(batch) >= RESTORE_ROWS:
            if batch:
                txn.put_many(current, batch)
            batch, current = [], table
        batch.append((key, value))
        rows += 1
    if batch:
        txn.put_many(current, batch)
    return rows


class _Source:
    """Takes exact lengths from a stream of parts and hashes what it takes."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = iter(parts)
        self._buffer = bytearray()
        self._at = 0
        self.digest = Blake3()

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes, and hash them.

        Raises: SnapshotRefused: the stream ends before.
        """
        data = self.take_unhashed(count)
        self.digest.update(data)
        return data

    def take_unhashed(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        while len(self._buffer) - self._at < count:
            part = next(self._parts, None)
            # "input that ends anywhere before the last checksum byte is an I/O error"
            if part is None:
                raise SnapshotRefused("io", "the snapshot is cut short")
            del self._buffer[: self._at]  # read bytes are dropped: a restore holds one part
            self._at = 0
            self._buffer += part
        start = self._at
        self._at += count
        return bytes(self._buffer[start : self._at])

    def take_counted(self, limit: int) -> bytes:
        """Return a length and that many bytes, without the length."""
        count = int.from_bytes(self.take(8), "little")
        # Checked before reading: a damaged length must not allocate memory.
        if count > limit:
            raise SnapshotRefused("io", f"a row declares {count} bytes; at most {limit} are taken")
        return self.take(count)


def _snapshot_rows(parts: Iterable[bytes], store_id: bytes) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield table, key and value of every row; the checksum is verified at the end.

    Raises: SnapshotRefused: in the order in which the bytes show what is wrong.
    """
    source = _Source(parts)
    if source.take(len(_MAGIC)) != _MAGIC:
        raise SnapshotRefused("invalid_magic", "not a snapshot: it does not begin with LATS")
    version = int.from_bytes(source.take(4), "little")
    # Before the store id: "in the order in which the bytes show them"
    if version != SNAPSHOT_VERSION:
        raise SnapshotRefused(
            "unsupported_version", f"a snapshot of version {version}; known: {SNAPSHOT_VERSION}"
        )
    found = source.take(len(store_id))
    if found != store_id:
        raise SnapshotRefused(
            "store_id_mismatch", f"a snapshot of store {found.hex()}, not of {store_id.hex()}"
        )
    tables = dict(_ROW_TYPES)
    while (number := source.take(1)[0]) != _END:
        table = tables.get(number)
        if table is None:  # its length is unknown, so nothing behind it can be read
            raise SnapshotRefused("unknown_record_type", f"a row of type {number}; known: 1, 2, 3")
        yield (
            table,
            source.take_counted(STATE_KEY_BYTES_MAX),
            source.take_counted(STATE_VALUE_BYTES_MAX),
        )
    # Bytes behind the checksum are not read.
    if source.take_unhashed(_HASH_BYTES) != source.digest.digest():
        raise SnapshotRefused("checksum_mismatch", "the checksum of the snapshot differs")
