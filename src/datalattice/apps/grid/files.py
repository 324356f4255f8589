"""Files: contents in a folder, one file each, named by the hex of its SHA-256.

A file is written under another name, made durable, and only then renamed: under its own name a
content is whole or not there. Names that are no hash are others' business and left alone.

Source: COG-4 "File storage"; docs/grid.md "Content".
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from datalattice.apps.grid.assets import READ_BYTES, parse_hash
from datalattice.crypto import Entropy, SystemEntropy
from datalattice.errors import Corruption, StoreError, StoreFailed, StoreFull, UsageError
from datalattice.store import Disk, RealDisk

UNFINISHED: Final = ".part"
"""End of the name of a file that is being written, or was when the machine stopped."""

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FilePlace:
    """Contents in a folder, which has to be there."""

    def __init__(
        self, folder: str, disk: Disk | None = None, entropy: Entropy | None = None
    ) -> None:
        self.folder: Final = folder
        self._disk: Final = disk or RealDisk()
        self._entropy: Final = entropy or SystemEntropy()

    def open(self) -> None:
        """Look whether the folder is there, and clear away what was never finished.

        Raises: UsageError: it is not there, or no folder.
        """
        try:
            names = self._disk.names(self.folder)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(f"{self.folder}: not a folder for content ({reason})") from None
        for name in names:
            if name.endswith(UNFINISHED):
                with suppress(OSError):
                    self._disk.remove(self._path(name))

    def close(self) -> None:
        """Nothing is held open."""

    def write(self, digest: bytes, pieces: Iterator[bytes]) -> None:
        """Keep what the pieces make up.

        Raises: StoreFull, StoreFailed: the disk did not take it.
        """
        target = self._path(digest.hex())
        part = self._path(f"{digest.hex()}.{self._entropy.bytes(4).hex()}{UNFINISHED}")
        try:
            self._fill(part, pieces)
            with _written(target):
                self._disk.replace(part, target)
                self._disk.sync_folder(self.folder)
        except BaseException:
            with suppress(OSError):  # it has no name that counts, and goes with the next opening
                self._disk.remove(part)
            raise

    def size(self, digest: bytes) -> int | None:
        """Return the number of bytes, nil when it is not here."""
        path = self._path(digest.hex())
        if not self._disk.exists(path):
            return None
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror or error})") from error
        try:
            return file.size()
        finally:
            file.close()

    def read(self, digest: bytes) -> Iterator[bytes]:
        """Yield the content in pieces.

        Raises: Corruption: the disk does not give it back.
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
        """Forget a content; return whether it was here."""
        try:
            self._disk.remove(self._path(digest.hex()))
        except FileNotFoundError:
            return False
        self._disk.sync_folder(self.folder)
        return True

    def digests(self) -> Iterator[bytes]:
        """Yield the names of all contents, in order."""
        for name in self._disk.names(self.folder):
            digest = parse_hash(name)
            if digest is not None and digest.hex() == name:
                yield digest

    def _fill(self, path: str, pieces: Iterator[bytes]) -> None:
        with _written(path):
            file = self._disk.open(path, create=True)
        at = 0
        try:
            for piece in pieces:  # what these raise is their own
                with _written(path):
                    file.write(at, piece)
                at += len(piece)
            with _written(path):
                file.sync()
        finally:
            file.close()

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"


@contextmanager
def _written(path: str) -> Iterator[None]:
    """Say what a failed write means."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise StoreFull(f"{path}: no room left on the disk ({reason})") from error
        raise StoreFailed(f"{path}: cannot be written ({reason})") from error
