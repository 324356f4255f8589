"""Places: from the paths of a file system to drives, those of a folder or one alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from datalattice.apps.dlfs import Content, Drive
from datalattice.client.drives.drives import DriveOf, Drives, DriveWriter, content_of
from datalattice.client.folder import Folder
from datalattice.crypto import PUBLIC_KEY_BYTES
from datalattice.errors import ReadOnly, UsageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """A path inside a drive."""

    drive_name: str
    drive: Drive
    path: str

    def delete(self) -> None:
        """Delete the file or empty directory that is there."""
        self.drive.delete(self.path)


Resolve = Callable[[str], Place | None]
"""From the path of a file system to a place; None: the directory of all drives."""


class Writer(Protocol):
    """Whoever makes changes durable."""

    def content(self, chunks: bytes | Iterable[bytes]) -> Content:
        """Return the content of a file, its parts stored as they come; no file has it yet."""
        ...

    def edit(self, change: Callable[[Resolve], T]) -> T:
        """Make one change; return what it returned, when it is durable."""
        ...


class Places(Protocol):
    """What a file system reads and writes."""

    @property
    def name(self) -> str:
        """A word for where it is."""
        ...

    def find(self, path: str) -> Place | None:
        """Return the place of a path, as it is now."""
        ...

    def drives(self) -> list[str]:
        """Return what is in the directory of all drives."""
        ...

    def check_writable(self) -> None:
        """Raise what a write would raise whatever it writes."""
        ...

    def writing(self) -> AbstractContextManager[Writer]:
        """Give a writer."""
        ...

    def close(self) -> None:
        """Give the store back."""
        ...


class FolderPlaces:
    """The drives of a folder: the first name of a path is that of a drive."""

    def __init__(self, folder: Folder, owner: str | bytes | None, *, read_only: bool) -> None:
        self._drives = Drives(folder, _public_key(owner), read_only=read_only)
        self.name = str(folder.path)

    def find(self, path: str) -> Place | None:
        """Return the place of a path, as it is now."""
        name, inside = _split(path)
        return Place(name, self._drives.drive(name), inside) if name else None

    def drives(self) -> list[str]:
        """Return the names of the drives."""
        return self._drives.names()

    def check_writable(self) -> None:
        """Raise what a write would raise whatever it writes."""
        self._drives.check_writable()

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """Give a writer."""
        with self._drives.writing() as writer:
            yield _FolderWriter(writer)

    def close(self) -> None:
        """Give the store back."""
        self._drives.close()


class _FolderWriter:
    def __init__(self, writer: DriveWriter) -> None:
        self._writer = writer

    def content(self, chunks: bytes | Iterable[bytes]) -> Content:
        return self._writer.content(chunks)

    def edit(self, change: Callable[[Resolve], T]) -> T:
        def run(drive_of: DriveOf) -> T:
            def resolve(path: str) -> Place | None:
                name, inside = _split(path)
                return Place(name, drive_of(name), inside) if name else None

            return change(resolve)

        return self._writer.edit(run)


class DrivePlaces:
    """One drive of the caller's: paths begin at its root."""

    def __init__(self, drive: Drive, *, read_only: bool) -> None:
        self._drive = drive
        self._read_only = read_only
        self.name = f"{id(drive):x}"

    def find(self, path: str) -> Place | None:
        """Return the place of a path, as it is now."""
        return Place("", self._drive.clone(), f"/{path}")

    def drives(self) -> list[str]:
        """Return nothing: there is one drive."""
        return []

    def check_writable(self) -> None:
        """Raise what a write would raise whatever it writes."""
        if self._read_only:
            raise ReadOnly("this drive was opened to be read only")

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """Give a writer."""
        self.check_writable()
        yield self

    def content(self, chunks: bytes | Iterable[bytes]) -> Content:
        """Return the content of a file."""
        return content_of(chunks, None)

    def edit(self, change: Callable[[Resolve], T]) -> T:
        """Make one change on a fork, so that it happens as a whole or not at all."""
        fork = self._drive.fork()
        result = change(lambda path: Place("", fork, f"/{path}"))
        fork.sync()
        self._drive.sync()
        return result

    def close(self) -> None:
        """Leave the drive to the caller."""


def _split(path: str) -> tuple[str, str]:
    name, _, inside = path.partition("/")
    if name in (".", ".."):
        raise UsageError(f"a path begins with the name of a drive, and {name} is none")
    return name, f"/{inside}"


def _public_key(owner: str | bytes | None) -> bytes | None:
    if owner is None or (isinstance(owner, bytes) and len(owner) == PUBLIC_KEY_BYTES):
        return owner
    try:
        found = bytes.fromhex(owner.removeprefix("0x")) if isinstance(owner, str) else b""
    except ValueError:
        found = b""
    if len(found) != PUBLIC_KEY_BYTES:
        raise UsageError(
            f"an owner is a public key, {PUBLIC_KEY_BYTES} bytes or hex; got {owner!r}"
        )
    return found
