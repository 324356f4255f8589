"""Files: contents in a folder of the disk or of a drive, one file each, named by its SHA-256.

On a disk a file is written under another name, synced, and then renamed, so that a file with the
name of a hash is complete; a drive writes a file at once. Files with other names are left alone.

Source: COG-4 "File storage"; docs/grid.md "Content".
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from datalattice.apps.dlfs import Drive, join_path, split_path
from datalattice.apps.grid.assets import parse_hash
from datalattice.apps.grid.contents import (
    CellContent,
    CellContentSink,
    ContentReader,
    ContentSink,
    ContentStaging,
    MemoryStaging,
)
from datalattice.cells import Blob
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
from datalattice.store import Disk, FileView, RealDisk

PART_SUFFIX: Final = ".part"
"""Suffix of a file that is being written, or was when the machine stopped."""

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FileBackend:
    """Contents in an existing folder, one file each."""

    checks_reads = False

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
        for name in names:  # files whose writing was cut off by the end of the process
            if name.endswith(PART_SUFFIX):
                with suppress(OSError):  # a file that cannot be removed harms nothing
                    self._disk.remove(self._path(name))

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def begin(self, digest: bytes) -> ContentSink:
        """Return a sink for a content. Raises: StoreFull, StoreFailed: it cannot be written."""
        # A random part in the name, so that two writers of one content do not share a file.
        part = f"{digest.hex()}.{self._entropy.bytes(4).hex()}{PART_SUFFIX}"
        return _PartFile(self._disk, self.folder, part, digest.hex())

    def size(self, digest: bytes) -> int | None:
        """Return the number of bytes, None if the content is absent."""
        path = self._path(digest.hex())
        if not self._disk.exists(path):
            return None
        try:
            file = self._disk.open(path)
        except FileNotFoundError:  # removed after the check
            return None
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror or error})") from error
        try:
            return file.size()
        finally:
            file.close()

    def reader(self, digest: bytes) -> ContentReader | None:
        """Return a reader of a content, None if it is absent.

        Raises: Corruption: it cannot be read.
        """
        size, path = self.size(digest), self._path(digest.hex())
        if size is None:
            return None
        try:
            return _FileContent(self._disk.view(path), path, size)
        except FileNotFoundError:  # removed after the check
            return None
        except OSError as error:
            raise Corruption(f"{path}: cannot be read ({error.strerror or error})") from error

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

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"


class _PartFile:
    """A file that is filled and synced before it gets the name that readers look for."""

    def __init__(self, disk: Disk, folder: str, part: str, name: str) -> None:
        self._disk, self._folder = disk, folder
        self._part, self._target = f"{folder}/{part}", f"{folder}/{name}"
        with _written(self._part):
            self._file = disk.open(self._part, create=True)
        self._at = 0
        self._is_named = False

    def write(self, piece: bytes) -> None:
        with _written(self._part):
            self._file.write(self._at, piece)
        self._at += len(piece)

    def commit(self) -> None:
        with _written(self._part):
            self._file.sync()
        with _written(self._target):
            self._disk.replace(self._part, self._target)
            self._is_named = True
            self._disk.sync_folder(self._folder)  # the name, too, must survive a power failure

    def close(self) -> None:
        self._file.close()
        if not self._is_named:
            with suppress(OSError):  # the next `open` of the folder removes it
                self._disk.remove(self._part)


class _FileContent:
    """A stored content that is one file."""

    def __init__(self, view: FileView, path: str, size: int) -> None:
        self._view, self._path = view, path
        self.size = size

    def read(self, start: int, stop: int) -> bytes:
        parts, at = [], start
        try:
            while at < stop and (part := self._view.read(stop - at, at)):
                parts.append(part)
                at += len(part)
        except OSError as error:
            reason = error.strerror or str(error)
            raise Corruption(f"{self._path}: cannot be read at {at} ({reason})") from error
        return parts[0] if len(parts) == 1 else b"".join(parts)


class DriveBackend:
    """Contents in a directory of a drive, which replicates and keeps its history as all drives do.

    A write is one update of the drive, as durable as the drive's own writes.
    make: the first content makes the directory; otherwise it must exist. staging: builds the value
    of a content that arrives; by default in memory.
    """

    checks_reads = True

    def __init__(
        self,
        drive: Drive,
        folder: str = "/",
        *,
        make: bool = False,
        staging: Callable[[], ContentStaging] = MemoryStaging,
    ) -> None:
        self._staging: Final = staging
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

    def begin(self, digest: bytes) -> ContentSink:
        """Return a sink for a content."""

        def named(made: bytes | Blob) -> None:
            if self._make:
                self.drive.makedirs(self.folder)
            self.drive.write(self._path(digest), made)

        return CellContentSink(self._staging(), named)

    def size(self, digest: bytes) -> int | None:
        """Return the number of bytes, None if the content is absent."""
        found = self.reader(digest)
        return None if found is None else found.size

    def reader(self, digest: bytes) -> ContentReader | None:
        """Return a reader of a content, None if it is absent."""
        try:
            # All reads use this one value, even if a writer replaces the file meanwhile.
            return CellContent(self.drive.content(self._path(digest)))
        except (NoSuchPath, IsADirectory):  # a directory of that name is the user's
            return None

    def remove(self, digest: bytes) -> bool:
        """Remove a content; return whether it was present."""
        if self.size(digest) is None:
            return False
        with suppress(NoSuchPath):  # removed after the check
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
        # Only the spelling that this class writes: another file belongs to someone else.
        if digest is not None and digest.hex() == name:
            yield digest


@contextmanager
def _written(path: str) -> Iterator[None]:
    """Raise the system's errors of a write as StoreFull or StoreFailed."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise StoreFull(f"{path}: no room left on the disk ({reason})") from error
        raise StoreFailed(f"{path}: cannot be written ({reason})") from error
