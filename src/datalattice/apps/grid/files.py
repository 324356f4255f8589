"""Files: contents in a folder of the disk or of a drive, one file each, named by its SHA-256.

On a disk a file is written under another name, synced, and then renamed, so that a file with the
name of a hash is complete; a drive writes a file at once. Files with other names are left alone.

Source: COG-4 "File storage"; docs/grid.md "Content".
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from datalattice.apps.dlfs import Drive, join_path, split_path
from datalattice.apps.grid.assets import READ_BYTES, parse_hash
from datalattice.crypto import Entropy, SystemEntropy
from datalattice.errors import (
    Corruption,
    IsADirectory,
    NoSuchPath,
    NotADirectory,
    StoreError,
    StoreFailed,
    StoreFull,
    UsageError,
)
from datalattice.store import Disk, RealDisk

UNFINISHED: Final = ".part"
"""Suffix of a file that is being written, or was when the machine stopped."""

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FileBackend:
    """Contents in a folder that exists."""

    def __init__(
        self, folder: str, disk: Disk | None = None, entropy: Entropy | None = None
    ) -> None:
        self.folder: Final = folder
        self._disk: Final = disk or RealDisk()
        self._entropy: Final = entropy or SystemEntropy()

    def open(self) -> None:
        """Check that the folder exists, and remove unfinished files.

        Raises: UsageError: it does not exist, or is not a folder.
        """
        try:
            names = self._disk.names(self.folder)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(f"{self.folder}: not a folder for content ({reason})") from None
        for name in names:  # what the machine was writing when it stopped
            if name.endswith(UNFINISHED):
                with suppress(OSError):  # a file that cannot be removed harms nothing
                    self._disk.remove(self._path(name))

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def write(self, digest: bytes, pieces: Iterator[bytes]) -> None:
        """Store the content in the pieces.

        Raises: StoreFull, StoreFailed: it could not be written.
        """
        target = self._path(digest.hex())
        # A name of its own: two writers of one content do not share a file.
        part = self._path(f"{digest.hex()}.{self._entropy.bytes(4).hex()}{UNFINISHED}")
        try:
            # Filled and synced before it gets the name that readers look for.
            self._fill(part, pieces)
            with _written(target):
                self._disk.replace(part, target)
                self._disk.sync_folder(self.folder)  # the name, too, must survive a power failure
        except BaseException:
            with suppress(OSError):  # the next `open` removes it
                self._disk.remove(part)
            raise

    def size(self, digest: bytes) -> int | None:
        """Return the number of bytes, None if the content is absent."""
        path = self._path(digest.hex())
        if not self._disk.exists(path):
            return None
        try:
            file = self._disk.open(path)
        except FileNotFoundError:  # removed since the look
            return None
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror or error})") from error
        try:
            return file.size()
        finally:
            file.close()

    def read(self, digest: bytes) -> Iterator[bytes]:
        """Yield the content in pieces.

        Raises: Corruption: it cannot be read.
        """
        path, at = self._path(digest.hex()), 0
        try:
            file = self._disk.open(path)
            try:
                while piece := file.read(at, READ_BYTES):
                    yield piece
                    at += len(piece)
            finally:
                file.close()
        except OSError as error:
            reason = error.strerror or str(error)
            raise Corruption(f"{path}: cannot be read at {at} ({reason})") from error

    def remove(self, digest: bytes) -> bool:
        """Remove a content; return whether it was present."""
        try:
            self._disk.remove(self._path(digest.hex()))
        except FileNotFoundError:
            return False
        self._disk.sync_folder(self.folder)  # durable: it must not come back with a power failure
        return True

    def digests(self) -> Iterator[bytes]:
        """Yield the names of all contents, in order."""
        return _digests(self._disk.names(self.folder))

    def _fill(self, path: str, pieces: Iterator[bytes]) -> None:
        with _written(path):
            file = self._disk.open(path, create=True)
        at = 0
        try:
            for piece in pieces:  # an error of the pieces passes through
                with _written(path):
                    file.write(at, piece)
                at += len(piece)
            with _written(path):
                file.sync()
        finally:
            file.close()

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"


class DriveBackend:
    """Contents in a directory of a drive, which replicates and keeps its history as all drives do.

    A write is one update of the drive, as durable as the drive's own writes.
    make: the directory is made with the first content; else it exists.
    """

    def __init__(self, drive: Drive, folder: str = "/", *, make: bool = False) -> None:
        self.drive: Final = drive
        self.folder: Final = join_path(split_path(folder))
        self._make: Final = make

    def open(self) -> None:
        """Check that the directory exists.

        Raises: UsageError: it does not exist, or is not a directory.
        """
        try:
            self.drive.list(self.folder)
        except NoSuchPath as error:
            if not self._make:
                raise UsageError(f"not a directory of a drive for content: {error}") from None
        except NotADirectory as error:
            raise UsageError(f"not a directory of a drive for content: {error}") from None

    def close(self) -> None:
        """Do nothing: the drive belongs to the caller."""

    def write(self, digest: bytes, pieces: Iterator[bytes]) -> None:
        """Store the content in the pieces."""
        if self._make:
            self.drive.makedirs(self.folder)
        # Pieces that raise leave nothing: "an iterable is read piece by piece; the file changes
        # after its end" (`Drive.write`).
        self.drive.write(self._path(digest), pieces)

    def size(self, digest: bytes) -> int | None:
        """Return the number of bytes, None if the content is absent."""
        try:
            return len(self.drive.content(self._path(digest)))
        except (NoSuchPath, IsADirectory):  # a directory of that name is the user's
            return None

    def read(self, digest: bytes) -> Iterator[bytes]:
        """Yield the content in pieces.

        Raises: Corruption: it cannot be read.
        """
        try:
            # One value for all pieces: a writer that replaces the file meanwhile changes none.
            content = self.drive.content(self._path(digest))
        except NoSuchPath as error:
            raise Corruption(f"content that was just there: {error}") from None
        for start in range(0, len(content), READ_BYTES):
            yield bytes(content[start : start + READ_BYTES])

    def remove(self, digest: bytes) -> bool:
        """Remove a content; return whether it was present."""
        if self.size(digest) is None:
            return False
        with suppress(NoSuchPath):  # removed since the look
            self.drive.delete(self._path(digest))
        return True

    def digests(self) -> Iterator[bytes]:
        """Yield the names of all contents, in order."""
        if self._make and not self.drive.exists(self.folder):
            return iter(())
        return _digests(entry.name for entry in self.drive.entries(self.folder) if entry.is_file)

    def _path(self, digest: bytes) -> str:
        return f"{self.folder.rstrip('/')}/{digest.hex()}"


def _digests(names: Iterable[str]) -> Iterator[bytes]:
    """Yield the hashes among the names of files."""
    for name in names:
        digest = parse_hash(name)
        # One spelling: a file named otherwise is not ours.
        if digest is not None and digest.hex() == name:
            yield digest


@contextmanager
def _written(path: str) -> Iterator[None]:
    """Turn the system's errors of a write into those of a store."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise StoreFull(f"{path}: no room left on the disk ({reason})") from error
        raise StoreFailed(f"{path}: cannot be written ({reason})") from error
