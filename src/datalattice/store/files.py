"""Files: read files, and replace them durably.

Only this module knows the order that makes a replacement durable and atomic: write a new file, sync
it, rename it over the old one, sync the folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from datalattice.store.disk import Disk, DiskFile, write_error


def replace_file(disk: Disk, path: str, chunks: Iterable[bytes]) -> None:
    """Replace the content of a file by `chunks`, in one durable step.

    Raises: StoreFull, StoreFailed: the disk refuses; the old content is still there.
    """
    new = f"{path}.new"
    try:
        # Under another name: a crash while writing leaves the old file as it is.
        file = disk.open(new, create=True)
        try:
            offset = 0
            for chunk in chunks:
                file.write(offset, chunk)
                offset += len(chunk)
            # Before the rename: a name may reach the disk earlier than unsynced bytes do.
            file.sync()
        finally:
            file.close()
        disk.replace(new, path)
        # The new name is durable only after its folder is synced.
        disk.sync_folder(parent_folder(path))
    except OSError as error:
        raise write_error(error, path) from error


def file_content(disk: Disk, path: str, count: int | None = None) -> bytes | None:
    """Return a file, or up to `count` bytes of its beginning; None when it does not exist."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        # A read allocates `count` bytes, so the size of the file bounds it.
        size = file.size()
        return file.read(0, size if count is None else min(size, count))
    finally:
        file.close()


def checked(body: bytes) -> bytes:
    """Return content that `unchecked` verifies: its SHA3-256 in hex, a line end, `body`."""
    # [64 hex digits of SHA3-256][line end][body].
    return hashlib.sha3_256(body).hexdigest().encode() + b"\n" + body


def unchecked(data: bytes) -> bytes | None:
    """Return the body of a file that `checked` made, None when the bytes differ from it."""
    body = data.partition(b"\n")[2]
    # The checksum covers all bytes after it, so a cut file fails too.
    return body if checked(body) == data else None


def parent_folder(path: str) -> str:
    """Return the folder of a path."""
    head, slash, _ = path.rpartition("/")
    return (head or "/") if slash else "."


class StoreFolder:
    """The folder of one store, on one disk; `str` of it is its path."""

    __slots__ = ("disk", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self.disk = disk
        self.path = path

    def __str__(self) -> str:
        return self.path

    def exists(self, name: str) -> bool:
        """Return whether there is a file or folder with this name."""
        return self.disk.exists(f"{self.path}/{name}")

    def open(self, name: str, *, create: bool = False, write: bool = False) -> DiskFile:
        """Open a file; `create` makes a new, empty one. Raises: OSError."""
        return self.disk.open(f"{self.path}/{name}", create=create, write=write)

    def read(self, name: str, count: int | None = None) -> bytes | None:
        """Return a file, or up to `count` bytes; None when it does not exist. Raises: OSError."""
        return file_content(self.disk, f"{self.path}/{name}", count)

    def read_text(self, name: str) -> str | None:
        """Return the text of a small file, None when it does not exist. Raises: OSError."""
        # Bounded: such a file has some hundred bytes, and a damaged one may be huge.
        data = self.read(name, 4_096)
        return None if data is None else data.decode("utf-8", "replace")

    def replace(self, name: str, *chunks: bytes) -> None:
        """Replace a file in one durable step.

        Raises: StoreFull, StoreFailed: it cannot be written.
        """
        replace_file(self.disk, f"{self.path}/{name}", chunks)

    def remove(self, name: str) -> None:
        """Remove a file durably, if it exists. Raises: OSError."""
        if self.exists(name):
            self.disk.remove(f"{self.path}/{name}")
            # Durable: a removed record of a loss must not come back after a power failure.
            self.disk.sync_folder(self.path)

    def size(self, name: str) -> int:
        """Return the length of a file. Raises: OSError."""
        file = self.open(name)
        try:
            return file.size()
        finally:
            file.close()
