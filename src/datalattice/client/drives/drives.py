"""Drives: the file systems of an owner in a folder, read beside the running node and edited.

A read sees what is durable at that moment. A file's content is stored before the edit that names
it, so an edit is short however large the file is, and can be repeated at no cost.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from datalattice.apps.dlfs import FS_SECTION, Drive, FileContent, drive_names
from datalattice.cells import STAGED_BYTES, Blob, StageValue, Vector, blob_from
from datalattice.client.edits import Editor
from datalattice.client.folder import Folder, read_key
from datalattice.client.openfolder import OpenFolder, editing
from datalattice.client.owners import section_owners
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
from datalattice.store import WriteBuffer

T = TypeVar("T")

THREAD_WAIT_S: Final = 600.0
"""How long a thread waits for another one of this process, which may be writing a large file."""

KEPT_BYTES_MAX: Final = 4 << 20
"""Contents of files too small to be staged one by one that wait in memory to be staged together."""

_turns: Final[dict[str, threading.Lock]] = {}  # by folder: threads of one process take turns


class DriveOf(Protocol):
    """Gives drives by name: those of the folder's own key unless an owner is named."""

    def __call__(self, name: str, owner: bytes | None = None) -> Drive:
        """Return a drive."""
        ...


class DriveWriter:
    """Stores contents of files, and edits drives so that they name them.

    edit:  runs a change of drives and makes it durable.
    stage: stores large parts as they come; None keeps contents in memory.
    """

    def __init__(
        self, edit: Callable[[Callable[[DriveOf], Any]], Any], stage: StageValue | None = None
    ) -> None:
        self._edit = edit
        self._stage = stage
        self._kept: list[Blob] = []
        self._kept_bytes = 0

    def content(self, chunks: bytes | Iterable[bytes]) -> FileContent:
        """Return the content of a file, its parts stored as they come; no file has it yet."""
        made = content_of(chunks, self._stage)
        if self._stage is not None and isinstance(made, Blob):
            # Parts of STAGED_BYTES and more are staged; the rest of a blob is still in memory.
            self._kept.append(made)
            self._kept_bytes += min(len(made), STAGED_BYTES)
            if self._kept_bytes >= KEPT_BYTES_MAX:
                self._stage(Vector.of(self._kept))
                self._kept, self._kept_bytes = [], 0
        return made

    def edit(self, change: Callable[[DriveOf], T]) -> T:
        """Make one change of any of the drives; return its result once it is durable.

        change: may run several times. The first write to a missing drive makes it. Drives of other
                owners are for reading.
        """
        result: T = self._edit(change)
        return result


def edit_drives(editor: Editor, change: Callable[[DriveOf], T]) -> T:
    """Make one change of drives by an editor of their folder."""

    def run(cursor: RootLattice, keys: KeyPair) -> T:
        def drive_of(name: str, owner: bytes | None = None) -> Drive:
            whose = keys.public_key if owner is None else owner
            return Drive.at(cursor, whose, name, stage=editor.stage)

        return change(drive_of)

    return editor.edit(run)


class Drives:
    """The drives of one owner in a folder. Threads may share one object; `close` it at the end."""

    def __init__(
        self, folder: Folder, owner: bytes | None = None, *, read_only: bool = False
    ) -> None:
        self.folder: Final = folder
        self._owner: Final = owner
        self._read_only: Final = read_only
        self._data: OpenFolder | None = OpenFolder.at(folder)

    # --- reading ---

    def owner(self) -> bytes:
        """Return the named owner, else the folder's own key, else the only owner with drives.

        Raises: NoSigningKey: there is no such owner. UsageError: there are several.
        """
        # "Reading takes your own drive of the name, else the only one of that name" (docs/dlfs.md
        # "Command line").
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
        return section_owners(self._cursor().get(), FS_SECTION)

    def names(self) -> list[str]:
        """Return the names of the drives, in order."""
        return drive_names(self._cursor(), self.owner())

    def drive(self, name: str) -> Drive:
        """Return a snapshot of a drive. Raises: NoSuchPath: it does not exist."""
        cursor = self._cursor()
        owner = self.owner()
        if name not in drive_names(cursor, owner):
            raise NoSuchPath(f"there is no drive {name!r} here")
        return Drive.at(cursor, owner, name)

    def _cursor(self) -> RootLattice:
        if self._data is None:
            raise StoreClosed(f"the drives of {self.folder.path} were closed")
        return RootLattice(root_lattice(), self._data.root(), MergeContext(verifier=verify_did))

    def close(self) -> None:
        """Leave the folder. Snapshots stay readable. Closing twice is allowed."""
        data, self._data = self._data, None
        if data is not None:
            data.close()

    # --- writing ---

    def check_writable(self) -> None:
        """Check that writing is allowed.

        Raises: ReadOnly: they were opened read-only, or belong to another owner. NoSigningKey: the
                folder has no key.
        """
        if self._read_only:
            raise ReadOnly("these drives were opened to be read only")
        own = read_key(self.folder.key_path).public_key
        # Only an owner's own key can sign for its drives, so the refusal comes before the upload.
        if self._owner not in (None, own):
            assert self._owner is not None
            raise ReadOnly(
                f"the drives of {self._owner.hex()} are theirs to write; your key is {own.hex()}"
            )

    @contextmanager
    def writing(self) -> Iterator[DriveWriter]:
        """Give a writer to these drives; other processes wait meanwhile.

        Raises: as `check_writable` and `editing`.
        """
        self.check_writable()
        # A thread may write a large file for long: others wait for that, not for a lock file's 10
        # s.
        turn = _turns.setdefault(os.path.realpath(self.folder.path), threading.Lock())
        if not turn.acquire(timeout=THREAD_WAIT_S):
            raise StoreLocked(
                f"waited {THREAD_WAIT_S:g} s in vain for another thread that writes to "
                f"{self.folder.path}"
            )
        try:
            with editing(self.folder) as editor:
                yield DriveWriter(partial(edit_drives, editor), editor.stage)
        finally:
            turn.release()


class OneDrive:
    """One drive of the caller's, with the interface of `Drives` that a file system needs."""

    def __init__(self, drive: Drive, *, read_only: bool) -> None:
        self._drive = drive
        self._read_only = read_only

    def drive(self, _name: str) -> Drive:
        """Return a snapshot of the drive."""
        return self._drive.clone()

    def names(self) -> list[str]:
        """Return no names: paths begin inside the drive."""
        return []

    def check_writable(self) -> None:
        """Check that writing is allowed. Raises: ReadOnly: the drive was opened read-only."""
        if self._read_only:
            raise ReadOnly("this drive was opened to be read only")

    @contextmanager
    def writing(self) -> Iterator[DriveWriter]:
        """Give a writer to the drive."""
        self.check_writable()
        yield DriveWriter(self._edit)

    def _edit(self, change: Callable[[DriveOf], Any]) -> Any:
        # On a fork, so that an edit that raises changes nothing.
        fork = self._drive.fork()
        result = change(lambda _name, _owner=None: fork)
        fork.sync()
        self._drive.sync()
        return result

    def close(self) -> None:
        """Leave the drive to the caller."""


def content_of(chunks: bytes | Iterable[bytes], stage: StageValue | None) -> FileContent:
    """Return the content of a file made of these bytes, its large parts staged."""
    pieces = [chunks] if isinstance(chunks, bytes) else chunks
    if stage is None:
        made = blob_from(pieces)
    else:
        with WriteBuffer(stage) as staging:
            made = blob_from(pieces, staging)
    assert isinstance(made, (bytes, Blob))
    return made
