"""Journal: an engine whose commits are in one file of a disk, so that a crash keeps them.

It stands for LMDB where the disk is simulated: a commit that returned is there after any crash, one
that did not is there in full or not at all.

    record  = length u32, check 16, changes
    change  = table u8, key length u32, key, value length u32, value
              with a value length of ff ff ff ff the key is removed, and no value follows

The check covers the record's position and the check before it, so remains of a failed write are
never read as a record.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from datalattice.crypto import sha3_256
from datalattice.engine import MemoryEngine, MemoryWriteTxn
from datalattice.errors import StoreFailed
from datalattice.store import Disk, DiskFile

_HEAD: Final = struct.Struct(">I16s")
_KEY: Final = struct.Struct(">BI")
_VALUE: Final = struct.Struct(">I")
_REMOVED: Final = 2**32 - 1


class JournalEngine(MemoryEngine):
    """Tables in memory and in a file of `disk`, read from the file when it is opened."""

    def __init__(self, disk: Disk, folder: str, tables: Iterable[str]) -> None:
        super().__init__(tables)
        self.path: Final = f"{folder}/journal"
        self._check = b""
        self._end = 0
        self._is_replaying = True
        try:
            disk.create_folder(folder)
            self._file: DiskFile = disk.open(
                self.path, create=not disk.exists(self.path), write=True
            )
            disk.sync_folder(folder)
            for body in list(self._bodies()):
                self._replay(body)
            if self._end:
                # The last process may have ended before a sync, or after one that failed: what it
                # wrote is there to be read and may yet be lost, so it is written again.
                self._file.write(0, self._file.read(0, self._end))
                self._file.sync()
        except OSError as error:
            raise StoreFailed(f"{self.path}: {error.strerror}") from error
        self._is_replaying = False

    def _bodies(self) -> Iterator[bytes]:
        """Yield the changes of every whole record."""
        data = self._file.read(0, self._file.size())
        while self._end + _HEAD.size <= len(data):
            length, check = _HEAD.unpack_from(data, self._end)
            start = self._end + _HEAD.size
            body = data[start : start + length]
            if len(body) != length or check != self._check_of(body):
                return  # a commit that did not return
            self._check, self._end = check, start + length
            yield body

    def _check_of(self, body: bytes) -> bytes:
        return sha3_256(self._check + self._end.to_bytes(8, "big") + body)[:16]

    def _replay(self, body: bytes) -> None:
        at = 0
        with super().write() as txn:
            while at < len(body):
                table, size = _KEY.unpack_from(body, at)
                at += _KEY.size
                key = body[at : at + size]
                (length,) = _VALUE.unpack_from(body, at + size)
                at += size + _VALUE.size
                name = self.tables[table]
                if length == _REMOVED:
                    txn.delete(name, key)
                else:
                    txn.put(name, key, body[at : at + length])
                    at += length

    def _commit(self, txn: MemoryWriteTxn) -> None:
        body = b"".join(
            _KEY.pack(self.tables.index(name), len(key))
            + key
            + (_VALUE.pack(_REMOVED) if value is None else _VALUE.pack(len(value)) + value)
            for name, changes in txn.changes.items()
            for key, value in changes.values.items()
        )
        if body and not self._is_replaying:
            check = self._check_of(body)
            try:
                self._file.write(self._end, _HEAD.pack(len(body), check) + body)
                self._file.sync()
            except OSError as error:
                # "The record is made void, the caller gets the error" (docs/design/weaver.md), so
                # neither this process, the next one nor a copy of the folder goes on behind a write
                # that was not acknowledged.
                with contextlib.suppress(OSError):
                    self._file.write(self._end, bytes(_HEAD.size))
                    self._file.sync()
                raise StoreFailed(f"{self.path}: {error.strerror}") from error
            self._check, self._end = check, self._end + _HEAD.size + len(body)
        super()._commit(txn)
