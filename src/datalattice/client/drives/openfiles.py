"""Open files: what fsspec reads and writes of a drive, and the errors and paths it expects."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, Final, NamedTuple

from fsspec.spec import AbstractBufferedFile
from fsspec.transaction import Transaction

from datalattice.apps.dlfs import Drive, Stat
from datalattice.client.drives.drives import DriveWriter
from datalattice.client.drives.transfer import pieces
from datalattice.errors import (
    AlreadyExists,
    DataLatticeError,
    DirectoryNotEmpty,
    IsADirectory,
    NoSigningKey,
    NoSuchPath,
    NotADirectory,
    ReadOnly,
    StoreFull,
)


class ResolvedPath(NamedTuple):
    """A path inside a drive."""

    drive_name: str
    drive: Drive
    path: str


ResolvePath = Callable[[str], ResolvedPath | None]
"""From a path of the file system to one in a drive; None for the directory of all drives."""

DriveOperation = Callable[[ResolvePath], None]
"""A part of an edit."""

SPOOL_BYTES: Final = 8 << 20  # most files fit
"""A file being written is kept in memory up to this size, then in a temporary file."""

# A subclass stands before its base class: the first match decides.
_CODES: Final[tuple[tuple[type[DataLatticeError], int], ...]] = (
    (NotADirectory, errno.ENOTDIR),
    (NoSuchPath, errno.ENOENT),
    (AlreadyExists, errno.EEXIST),
    (IsADirectory, errno.EISDIR),
    (DirectoryNotEmpty, errno.ENOTEMPTY),
    (ReadOnly, errno.EROFS),
    (NoSigningKey, errno.EACCES),
    (StoreFull, errno.ENOSPC),
)


@contextmanager
def os_errors(path: str) -> Iterator[None]:
    """Raise errors that have an errno as OSError of the matching class, others unchanged."""
    try:
        yield
    except DataLatticeError as error:
        for kind, code in _CODES:
            if isinstance(error, kind):
                raise OSError(code, str(error), path) from error
        raise  # a fault without errno keeps its own class


class OneCommit(Transaction):
    """A transaction whose files are written by one commit."""

    def complete(self, commit: bool = True) -> None:
        """Write all files, or discard them."""
        fs, files = self.fs, list(self.files)
        self.files.clear()
        try:
            if commit:
                fs.place(files)
        finally:
            # Written or not, what was spooled on disk goes.
            for file in files:
                file.discard()
            super().complete(commit)


class DLFSFile(AbstractBufferedFile):
    """A file of a drive, open for reading as it was then, or for writing until it is closed."""

    def __init__(self, fs: Any, path: str, mode: str, block_size: int, **kwargs: Any) -> None:
        self._spool: IO[bytes] | None = None
        # `__del__` closes, and finds no spool yet.
        self._closed = True  # until __init__ has succeeded
        # "A file that is open for reading keeps the content that it had" (docs/dlfs.md "fsspec").
        if mode == "rb":
            found = fs._path_in_drive(path)
            self._stat = file_info(path, found.drive.stat(found.path))
            self._content = found.drive.content(found.path)
            kwargs["size"] = len(self._content)
        else:
            fs._drives.check_writable()  # refused at opening, not at the end
            if fs.isdir(path):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if mode == "xb" and fs.exists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            if not fs._auto_mkdir and not fs.isdir(fs._parent(path)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._spool = tempfile.SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115 - until closed
        super().__init__(fs, path, mode, block_size, **kwargs)
        if mode == "rb":
            self._details = self._stat
        elif mode == "ab" and fs.exists(path):
            self.loc = fs.info(path)["size"]

    def _fetch_range(self, start: int, end: int) -> bytes:
        content = self._content
        end = min(end, len(content))  # readers ask beyond the end
        return content[start:end] if isinstance(content, bytes) else content.read(start, end)

    def _upload_chunk(self, final: bool = False) -> bool:
        assert self._spool is not None
        self._spool.write(self.buffer.getvalue())
        # "A written file appears, complete, when it is closed" (docs/dlfs.md "fsspec").
        if final and self.autocommit:  # in a transaction it waits for all of its files
            self.commit()
        return True

    def operation(self, writer: DriveWriter) -> DriveOperation:
        """Return the part of an edit that writes the file; its content is stored already."""
        made: DriveOperation
        if self.mode == "ab":
            made = self.fs.append_pieces(self.path, self._written)
        else:
            made = self.fs._write(self.path, writer.content(self._written()), self.mode)
        return made

    def _written(self) -> Iterator[bytes]:
        assert self._spool is not None
        self._spool.seek(0)
        return pieces(self._spool)

    def commit(self) -> None:
        """Give the drive the file."""
        try:
            self.fs.place([self])
        finally:
            self.discard()  # also after an error: the spool may be on disk

    def discard(self) -> None:
        """Drop what was written."""
        if self._spool is not None:
            self._spool.close()


def directory_info(path: str) -> dict[str, Any]:
    """Return what fsspec expects of the directory of all drives, or of a drive in it."""
    return {"name": path, "size": 0, "type": "directory"}


def file_info(path: str, stat: Stat) -> dict[str, Any]:
    """Return what fsspec expects of a file or directory of a drive."""
    return {
        "name": path,
        "size": stat.size,
        "type": "directory" if stat.is_dir else "file",
        "mtime": stat.modified_ms / 1_000,
        "hash": stat.hash.hex(),
    }
