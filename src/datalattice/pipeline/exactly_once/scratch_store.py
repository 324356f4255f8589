"""Stores for the time of one job.

They are never synced: after a crash of the machine the job runs again, and most of their data is
removed before it would reach the disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from datalattice.store import CellStore, DiskFile, RealDisk

READ_CACHE_BYTES: Final = 8 * 1024 * 1024
"""Cells that a scratch store caches; a job reads each cell once or twice."""


def unsynced_store(folder: Path) -> CellStore:
    """Return a new, unsynced store in a folder."""
    return CellStore.open(folder, cache_bytes=READ_CACHE_BYTES, disk=UnsyncedDisk(), spare_bytes=0)


class UnsyncedDisk(RealDisk):
    """The operating system's files, without any sync."""

    def open(self, path: str, *, create: bool = False, write: bool = False) -> DiskFile:
        """Open a file; `create` makes a new, empty one."""
        return _UnsyncedFile(super().open(path, create=create, write=write))

    def sync_folder(self, path: str) -> None:
        """Do nothing: file names need not survive a crash."""


class _UnsyncedFile:
    """A file whose `sync` does nothing."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file

    def read(self, offset: int, count: int) -> bytes:
        return self._file.read(offset, count)

    def write(self, offset: int, data: bytes) -> None:
        self._file.write(offset, data)

    def begin_write(self, offset: int, parts: list[bytes]) -> None:
        self._file.begin_write(offset, parts)

    def sync(self) -> None:
        pass  # bytes lost in a crash do not fit the checksum in the task's message, or their hash

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def close(self) -> None:
        self._file.close()
