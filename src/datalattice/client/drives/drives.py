"""Drives: the file systems in a folder, to be read beside whoever writes, and to be edited.

Reading sees what is durable at that moment. A file's content is made before the edit that places
it, so that an edit is quick however large the file is, and may be made again at no cost.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

from datalattice.apps.dlfs import FS_SECTION, Content, Drive, drive_names
from datalattice.cells import STAGED_BYTES, Blob, Index, Map, Stage, Vector, blob_from
from datalattice.client.edits import Editor, editing
from datalattice.client.folder import Folder, read_key
from datalattice.client.opening import open_reader
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import (
    NoSigningKey,
    NoSuchPath,
    ReadOnly,
    StoreClosed,
    StoreLocked,
    UsageError,
)
from datalattice.lattice import MergeContext, root_lattice, verify_did
from datalattice.store import CellStore, WriteBuffer

T = TypeVar("T")

THREAD_WAIT_S: Final = 600.0
"""How long a thread waits for another one of this process, which may be writing a large file."""

KEPT_BYTES_MAX: Final = 4 << 20
"""Contents of files too small to be staged one by one that are kept in memory until then."""

_turns: Final[dict[str, threading.Lock]] = {}  # by folder: threads of one process take turns


class DriveOf(Protocol):
    """Gives drives by name, the folder's own ones unless an owner is named."""

    def __call__(self, name: str, owner: bytes | None = None) -> Drive:
        """Return a drive."""
        ...


class Drives:
    """The drives of one owner in a folder.

    Threads may share one. It keeps the store open for reading until it is closed.
    """

    def __init__(
        self, folder: Folder, owner: bytes | None = None, *, read_only: bool = False
    ) -> None:
        self.folder: Final = folder
        self._owner: Final = owner
        self._read_only: Final = read_only
        self._lock: Final = threading.Lock()
        self._reader: CellStore | None = None
        self._pid = 0
        self._seen: tuple[bytes | None, RootLattice] | None = None
        self._closed = False

    # --- reading ---

    def owner(self) -> bytes:
        """Return whose drives these are: the named owner, else the folder's own, else the only one.

        Raises: UsageError: none is named, the folder has no key, and there is none or several.
        """
        if self._owner is not None:
            return self._owner
        if self.folder.key_path.exists():
            return read_key(self.folder.key_path).public_key
        owners = self.owners()
        if len(owners) == 1:
            return owners[0]
        if not owners:
            raise NoSigningKey(f"no key at {self.folder.key_path}; make one with `lattice key new`")
        names = ", ".join(one.hex()[:16] for one in owners)
        raise UsageError(f"{len(owners)} owners have drives here ({names}); name one")

    def owners(self) -> list[bytes]:
        """Return the public keys that have a section of drives, in order."""
        root = self._cursor().get()
        section = root.get(FS_SECTION) if isinstance(root, Index) else None
        owners = [key for key, _ in section.entries()] if isinstance(section, Map) else []
        return sorted(one for one in owners if isinstance(one, bytes))

    def names(self) -> list[str]:
        """Return the names of the drives, in order."""
        return drive_names(self._cursor(), self.owner())

    def drive(self, name: str) -> Drive:
        """Return a drive as it is now, to read from; it stays as it is.

        Raises: NoSuchPath: there is none of that name.
        """
        cursor = self._cursor()
        owner = self.owner()
        if name not in drive_names(cursor, owner):
            raise NoSuchPath(f"there is no drive {name!r} here")
        return Drive.at(cursor, owner, name)

    def readable(self, name: str) -> Drive:
        """Return a drive as `drive` does, or the only one of that name if we have none.

        An owner that was named is the only one asked.
        Raises: NoSuchPath: there is none of that name. UsageError: several others have one.
        """
        if self._owner is not None:
            return self.drive(name)
        cursor = self._cursor()
        holders = [one for one in self.owners() if name in drive_names(cursor, one)]
        if self.folder.key_path.exists() and self.owner() in holders:
            holders = [self.owner()]
        if not holders:
            raise NoSuchPath(f"there is no drive {name!r} here; `lattice fs drives` lists them")
        if len(holders) > 1:
            names = ", ".join(one.hex()[:16] for one in holders)
            raise UsageError(
                f"{len(holders)} owners have a drive {name!r} ({names}); name one with --owner"
            )
        return Drive.at(cursor, holders[0], name)

    def _cursor(self) -> RootLattice:
        """Return a cursor on the present root, the same one while that does not change."""
        with self._lock:
            reader = self._open()
            hash = None if reader is None else reader.root_hash()
            if self._seen is None or self._seen[0] != hash:
                root = None if reader is None else reader.root()
                context = MergeContext(verifier=verify_did)
                self._seen = hash, RootLattice(root_lattice(), root, context)
            return self._seen[1]

    def _open(self) -> CellStore | None:
        """Return the store, open for reading in this process; None when there is none yet."""
        if self._closed:
            raise StoreClosed(f"the drives of {self.folder.path} were closed")
        if self._pid != os.getpid():
            # A child must not use what its parent opened, nor close it.
            self._reader, self._seen, self._pid = None, None, os.getpid()
        if self._reader is None and self.folder.store_path.is_dir():
            self._reader = open_reader(self.folder)
        return self._reader

    def close(self) -> None:
        """Give the store back. What was read from it can no longer load what it has not yet."""
        with self._lock:
            self._closed = True
            if self._reader is not None and self._pid == os.getpid():
                self._reader.close()
            self._reader = None

    # --- writing ---

    def check_writable(self) -> None:
        """Raise what a write would raise whatever it writes.

        Raises: ReadOnly: opened so, or another owner's. NoSigningKey: the folder has no key.
        """
        if self._read_only:
            raise ReadOnly("these drives were opened to be read only")
        own = read_key(self.folder.key_path).public_key
        if self._owner not in (None, own):
            assert self._owner is not None
            raise ReadOnly(
                f"the drives of {self._owner.hex()} are theirs to write; your key is {own.hex()}"
            )

    @contextmanager
    def writing(self) -> Iterator[DriveWriter]:
        """Give what writes to these drives; other processes wait meanwhile.

        Raises: as `check_writable` and `editing`.
        """
        self.check_writable()
        turn = _turns.setdefault(os.path.realpath(self.folder.path), threading.Lock())
        if not turn.acquire(timeout=THREAD_WAIT_S):
            raise StoreLocked(
                f"waited {THREAD_WAIT_S:g} s in vain for another thread that writes to "
                f"{self.folder.path}"
            )
        try:
            with editing(self.folder) as editor:
                yield DriveWriter(editor)
        finally:
            turn.release()


class DriveWriter:
    """Writes to the drives of a folder's own key."""

    def __init__(self, editor: Editor) -> None:
        self._editor = editor
        self._kept: list[Blob] = []
        self._kept_bytes = 0

    def content(self, chunks: bytes | Iterable[bytes]) -> Content:
        """Return the content of a file, its parts stored as they come; no file has it yet."""
        made = content_of(chunks, self._editor.stage)
        if isinstance(made, Blob):
            # What was not large enough to be staged by itself is, together with others of its kind.
            self._kept.append(made)
            self._kept_bytes += min(len(made), STAGED_BYTES)
            if self._kept_bytes >= KEPT_BYTES_MAX:
                self._editor.stage(Vector.of(self._kept))
                self._kept, self._kept_bytes = [], 0
        return made

    def edit(self, change: Callable[[DriveOf], T]) -> T:
        """Make one change of any of the drives; return what it returned, when it is durable.

        It is given a function that gives drives by name, and may run several times. A drive that is
        not there is made by the first write to it. Drives of others are there to be read.
        """

        def run(cursor: RootLattice, keys: KeyPair) -> T:
            def drive_of(name: str, owner: bytes | None = None) -> Drive:
                whose = keys.public_key if owner is None else owner
                return Drive.at(cursor, whose, name, stage=self._editor.stage)

            return change(drive_of)

        return self._editor.edit(run)


def content_of(chunks: bytes | Iterable[bytes], stage: Stage | None) -> Content:
    """Return the content of a file."""
    pieces = [chunks] if isinstance(chunks, bytes) else chunks
    if stage is None:
        made = blob_from(pieces)
    else:
        with WriteBuffer(stage) as staging:
            made = blob_from(pieces, staging)
    assert isinstance(made, (bytes, Blob))
    return made
