"""Drives: the file systems of an owner in a folder, read and edited also while a node runs.

A read sees the durable state of that moment. A file's content is stored before the edit that names
it, so an edit of a large file is short too, and repeating it costs little.
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
"""Longest wait for another thread of this process, which may be writing a large file."""

KEPT_BYTES_MAX: Final = 4 << 20
"""Bytes of small contents that wait in memory to be staged together."""

_turns: Final[dict[str, threading.Lock]] = {}  # by real path of the folder


class DriveOf(Protocol):
    """A function that returns drives by name: of the folder's own key, or of a named owner."""

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
        """Store a content part by part, for a file that a later edit names; return it."""
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
                owners can be read only.
        """
        result: T = self._edit(change)
        return result


def edit_drives(editor: Editor, change: Callable[[DriveOf], T]) -> T:
    """Make one change of drives with an editor of their folder; return its result."""

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

        Raises: NoSigningKey: no owner has drives. UsageError: several have.
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
        raise UsageError(f"{len(owners)} owners have drives here ({names}); name one as the owner")

    def owners(self) -> list[bytes]:
        """Return the public keys that have a section of drives, in order."""
        return section_owners(self._cursor().get(), FS_SECTION)

    def names(self) -> list[str]:
        """Return the names of the drives, in order."""
        return drive_names(self._cursor(), self.owner())

    def drive(self, name: str) -> Drive:
        """Return a snapshot of a drive. Raises: NoSuchPath: the owner has no such drive."""
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

        Raises: ReadOnly: they were opened with `read_only`, or belong to another owner.
                NoSigningKey: the folder has no key.
        """
        if self._read_only:
            raise ReadOnly("these drives were opened with read_only")
        own = read_key(self.folder.key_path).public_key
        # Only an owner's own key can sign for its drives; refused before a content is uploaded.
        if self._owner is not None and self._owner != own:
            raise ReadOnly(
                f"only the key {self._owner.hex()} can write to these drives; yours is {own.hex()}"
            )

    @contextmanager
    def writing(self) -> Iterator[DriveWriter]:
        """Yield a writer to these drives; other writers wait meanwhile.

        Raises: as `check_writable` and `editing`. StoreLocked: another thread wrote for
                `THREAD_WAIT_S`.
        """
        self.check_writable()
        # Threads wait longer than the 10 s for a lock file, because one may write a large file.
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
    """A drive of the caller, with the methods of `Drives` that a file system needs."""

    def __init__(self, drive: Drive, *, read_only: bool) -> None:
        self._drive = drive
        self._read_only = read_only

    def drive(self, _name: str) -> Drive:
        """Return a snapshot of the drive."""
        # A snapshot, as of a folder: later writes do not change what a reader has.
        return self._drive.clone()

    def names(self) -> list[str]:
        """Return no names: paths begin inside the drive."""
        return []

    def check_writable(self) -> None:
        """Check that writing is allowed. Raises: ReadOnly: the drive was opened read-only."""
        if self._read_only:
            raise ReadOnly("this drive was opened with read_only")

    @contextmanager
    def writing(self) -> Iterator[DriveWriter]:
        """Yield a writer to the drive."""
        self.check_writable()
        yield DriveWriter(self._edit)

    def _edit(self, change: Callable[[DriveOf], Any]) -> Any:
        # On a fork of the drive, so that an edit that raises changes nothing.
        fork = self._drive.fork()
        result = change(lambda _name, _owner=None: fork)
        fork.sync()
        self._drive.sync()
        return result

    def close(self) -> None:
        """Do nothing: the caller closes the drive."""


def content_of(chunks: bytes | Iterable[bytes], stage: StageValue | None) -> FileContent:
    """Return the content of a file with these bytes; its large parts go to `stage`, if given."""
    pieces = [chunks] if isinstance(chunks, bytes) else chunks
    if stage is None:
        made = blob_from(pieces)
    else:
        with WriteBuffer(stage) as staging:
            made = blob_from(pieces, staging)
    assert isinstance(made, (bytes, Blob))
    return made
