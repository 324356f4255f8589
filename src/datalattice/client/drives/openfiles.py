"""Open files: the files of a drive that fsspec opens, with the paths and errors it expects."""

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
"""A function from a path of the file system to one in a drive; None: the directory of drives."""

DriveOperation = Callable[[ResolvePath], None]
"""One operation of an edit."""

SPOOL_BYTES: Final = 8 << 20  # most files fit
"""Size up to which a file being written stays in memory; a larger one is in a temporary file."""

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
        raise  # an error without errno keeps its own class


class OneCommit(Transaction):
    """A transaction whose files are written by one commit."""

    def complete(self, commit: bool = True) -> None:
        """Write all files, or discard them."""
        fs, files = self.fs, list(self.files)
        self.files.clear()
        try:
            if commit:
                fs.write_files(files)
        finally:
            # Frees the temporary files, whether or not they were written.
            for file in files:
                file.discard()
            super().complete(commit)


class DLFSFile(AbstractBufferedFile):
    """A file of a drive, open for reading its content of that time, or for writing until closed."""

    def __init__(self, fs: Any, path: str, mode: str, block_size: int, **kwargs: Any) -> None:
        self._spool: IO[bytes] | None = None
        # A failed `__init__` leaves nothing for `__del__` to close.
        self._closed = True  # the base class sets False
        # "A file that is open for reading keeps the content that it had" (docs/dlfs.md "fsspec").
        if mode == "rb":
            found = fs._path_in_drive(path)
            self._stat = file_info(path, found.drive.stat(found.path))
            self._content = found.drive.content(found.path)
            kwargs["size"] = len(self._content)
        else:
            fs._drives.check_writable()  # refused when it is opened, not when it is closed
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
        """Store the content; return the operation that gives it to the file."""
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
        """Write the file to its drive."""
        try:
            self.fs.write_files([self])
        finally:
            self.discard()  # also after an error: the spool may be on disk

    def discard(self) -> None:
        """Forget the new content."""
        if self._spool is not None:
            self._spool.close()


def directory_info(path: str) -> dict[str, Any]:
    """Return fsspec's info of the directory of all drives, or of a drive in it."""
    return {"name": path, "size": 0, "type": "directory"}


def file_info(path: str, stat: Stat) -> dict[str, Any]:
    """Return fsspec's info of a file or directory of a drive."""
    return {
        "name": path,
        "size": stat.size,
        "type": "directory" if stat.is_dir else "file",
        "mtime": stat.modified_ms / 1_000,
        "hash": stat.hash.hex(),
    }
