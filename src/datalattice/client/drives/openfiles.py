"""Open files: what fsspec reads and writes of a drive, and what ends a transaction."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any, Final

from fsspec.spec import AbstractBufferedFile
from fsspec.transaction import Transaction

from datalattice.apps.dlfs import Stat
from datalattice.client.drives.places import Resolve, Writer
from datalattice.client.drives.transfer import pieces

Operation = Callable[[Resolve], None]
"""A part of an edit: it is given a function from paths to places."""

SPOOL_BYTES: Final = 8 << 20
"""A file being written is kept in memory up to this size, then in a temporary file."""


class OneCommit(Transaction):
    """Files that are placed by one commit."""

    def complete(self, commit: bool = True) -> None:
        """Place all files, or forget them."""
        fs, files = self.fs, list(self.files)
        self.files.clear()
        try:
            if commit:
                fs.place(files)
        finally:
            for file in files:
                file.discard()
            super().complete(commit)


class DLFSFile(AbstractBufferedFile):
    """A file of a drive, open for reading as it was then, or for writing until it is closed."""

    def __init__(self, fs: Any, path: str, mode: str, block_size: int, **kwargs: Any) -> None:
        self._spool: IO[bytes] | None = None
        self._closed = True  # until all is well
        if mode == "rb":
            place = fs._need_place(path)
            self._stat = file_info(path, place.drive.stat(place.path))
            self._content = place.drive.content(place.path)
            kwargs["size"] = len(self._content)
        else:
            fs._places.check_writable()
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
        end = min(end, len(content))
        return content[start:end] if isinstance(content, bytes) else content.read(start, end)

    def _upload_chunk(self, final: bool = False) -> bool:
        assert self._spool is not None
        self._spool.write(self.buffer.getvalue())
        if final and self.autocommit:
            self.commit()
        return True

    def operation(self, writer: Writer) -> Operation:
        """Return what places the file, its content stored already."""
        if self.mode == "ab":
            placed: Operation = self.fs.append_pieces(self.path, self._written)
        else:
            placed = self.fs._write(self.path, writer.content(self._written()), self.mode)
        return placed

    def _written(self) -> Iterator[bytes]:
        assert self._spool is not None
        self._spool.seek(0)
        return pieces(self._spool)

    def commit(self) -> None:
        """Place what was written."""
        try:
            self.fs.place([self])
        finally:
            self.discard()

    def discard(self) -> None:
        """Forget what was written."""
        if self._spool is not None:
            self._spool.close()


def directory_info(path: str) -> dict[str, Any]:
    """Return what is told about a directory that is in no drive."""
    return {"name": path, "size": 0, "type": "directory"}


def file_info(path: str, stat: Stat) -> dict[str, Any]:
    """Return what is told about a file or directory of a drive."""
    return {
        "name": path,
        "size": stat.size,
        "type": "directory" if stat.is_dir else "file",
        "mtime": stat.modified_ms / 1_000,
        "hash": stat.hash.hex(),
    }
