"""Actions on drives: files and directories that merge."""

from __future__ import annotations

from typing import Annotated, Final

from datalattice.actions.action import DELETE, GET, POST, PUT, ActionKind, ActionRequest, action
from datalattice.actions.common import OWN_NAME, PIECE_BYTES_MAX, RESUME_NUMBER, Empty
from datalattice.actions.formats import HASH_FORMAT, HEX_FORMAT
from datalattice.protobuf import Field, Message

_DRIVE = "lattice/fs/{owner}/{drive}"

LOCK_S: Final = 600
"""Seconds until a lock ends unless the request has a `timeout_s`."""

LOCK_S_MAX: Final = 3_600
"""Greatest number of seconds until a lock ends; its holder may refresh it."""


class DriveList(Message, name="datalattice.v1.DriveList"):
    """Names of drives, in order."""

    drives: Annotated[tuple[str, ...], Field(1)] = ()


@action("drive.drives", ActionKind.QUERY, "r", "lattice/fs/{owner}", GET("/drives"), is_tool=True)
class ListDrives(ActionRequest[DriveList], name="datalattice.v1.ListDrivesRequest"):
    """List the drives of an owner: each is a tree of files and directories."""

    owner: Annotated[str, Field(1)] = OWN_NAME


class FileProperty(Message, name="datalattice.v1.FileProperty"):
    """A named text that users attached to a file."""

    name: Annotated[str, Field(1)] = ""
    value: Annotated[str, Field(2)] = ""


class FileInfo(Message, name="datalattice.v1.FileInfo"):
    """A file or directory.

    size: bytes; 0 for a directory. hash: of content, properties and times. content_hash: of the
    content alone; a directory has none.
    """

    path: Annotated[str, Field(1)] = ""
    is_directory: Annotated[bool, Field(2)] = False
    size: Annotated[int, Field(3, "uint64")] = 0
    modified_ms: Annotated[int, Field(4, "int64")] = 0
    hash: Annotated[bytes, Field(5, codec=HASH_FORMAT)] = b""
    content_hash: Annotated[bytes | None, Field(6, codec=HASH_FORMAT)] = None
    properties: Annotated[tuple[FileProperty, ...], Field(7)] = ()


@action(
    "drive.stat", ActionKind.QUERY, "r", _DRIVE, GET("/drives/{drive}/stat/{path...}"), is_tool=True
)
class StatFile(ActionRequest[FileInfo], name="datalattice.v1.StatFileRequest"):
    """Return whether a path is a file or a directory, its size, time, hash and properties.

    Raises: NoSuchPath: nothing is there, or there is no such drive.
    """

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    owner: Annotated[str, Field(3)] = OWN_NAME


class FileList(Message, name="datalattice.v1.FileList"):
    """Entries of a directory, in order. next: `start` of the next page; empty on the last page."""

    entries: Annotated[tuple[FileInfo, ...], Field(1)] = ()
    next: Annotated[bytes, Field(2, codec=HEX_FORMAT)] = b""


@action(
    "drive.list", ActionKind.QUERY, "r", _DRIVE, GET("/drives/{drive}/list/{path...}"), is_tool=True
)
class ListDirectory(ActionRequest[FileList], name="datalattice.v1.ListDirectoryRequest"):
    """Return the entries of a directory; without a path, those of the drive's root directory.

    count: entries of a page, up to 10,000; 0: all. start: `next` of the previous page.
    Raises: NoSuchPath, NotADirectory.
    """

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    owner: Annotated[str, Field(3)] = OWN_NAME
    count: Annotated[int, Field(4, "uint32")] = 0
    start: Annotated[bytes, Field(5, codec=HEX_FORMAT)] = b""


class FilePiece(Message, name="datalattice.v1.FilePiece"):
    """Bytes of a file from offset `start` on, and the size and hash of the whole file."""

    data: Annotated[bytes, Field(1)] = b""
    start: Annotated[int, Field(2, "uint64")] = 0
    size: Annotated[int, Field(3, "uint64")] = 0
    hash: Annotated[bytes, Field(4, codec=HASH_FORMAT)] = b""
    resume: Annotated[str, Field(RESUME_NUMBER)] = ""


# A stream, so that neither end holds a whole file in memory.
@action("drive.get", ActionKind.STREAM, "r", _DRIVE, GET("/drives/{drive}/files/{path...}"))
class GetFile(ActionRequest[FilePiece], name="datalattice.v1.GetFileRequest"):
    """Return a file of any length in pieces, `count` bytes from `start` on; count 0: to its end.

    hash: the hash that the file must have, else: Conflict. resume: of the last piece received.
    Raises: NoSuchPath, IsADirectory. StaleToken: the file has changed since that piece.
    """

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    start: Annotated[int, Field(3, "uint64")] = 0
    count: Annotated[int, Field(4, "uint64")] = 0
    hash: Annotated[bytes | None, Field(5, codec=HASH_FORMAT)] = None
    owner: Annotated[str, Field(6)] = OWN_NAME
    resume: Annotated[str, Field(RESUME_NUMBER)] = ""

    def about(self) -> StatFile:
        """Return the request for its size, hash and type."""
        return StatFile(drive=self.drive, path=self.path, owner=self.owner)


# UPLOAD, so that neither end holds a whole file in memory.
@action(
    "drive.put",
    ActionKind.UPLOAD,
    "w",
    _DRIVE,
    PUT("/drives/{drive}/files/{path...}", body="data"),
)
class PutFile(ActionRequest[FileInfo], name="datalattice.v1.PutFileRequest"):
    """Write a whole file of any length. On disk when it returns.

    if_match: the hash that the file must have; is_new: it must not be there. Else: Conflict.
    Raises: NoSuchPath: the directory is missing. IsADirectory.
    """

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    data: Annotated[bytes, Field(3)] = b""
    if_match: Annotated[bytes | None, Field(4, codec=HASH_FORMAT)] = None
    is_new: Annotated[bool, Field(5)] = False
    owner: Annotated[str, Field(6)] = OWN_NAME
    lock_tokens: Annotated[tuple[str, ...], Field(7)] = ()


# For callers without streams, such as language models: one piece a call.
@action(
    "drive.read",
    ActionKind.QUERY,
    "r",
    _DRIVE,
    GET("/drives/{drive}/pieces/{path...}"),
    is_tool=True,
)
class ReadFile(ActionRequest[FilePiece], name="datalattice.v1.ReadFileRequest"):
    """Return `count` bytes of a file from `start` on, 1 MiB at most, and the size of the file.

    hash: the hash that the file must have, else: Conflict; with it, all pieces that a caller joins
    are of one version. Raises: NoSuchPath, IsADirectory.
    """

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    start: Annotated[int, Field(3, "uint64")] = 0
    count: Annotated[int, Field(4, "uint32")] = PIECE_BYTES_MAX
    hash: Annotated[bytes | None, Field(5, codec=HASH_FORMAT)] = None
    owner: Annotated[str, Field(6)] = OWN_NAME


# EFFECT: a file is written whole, so the same request gives the same file.
@action(
    "drive.write",
    ActionKind.EFFECT,
    "w",
    _DRIVE,
    PUT("/drives/{drive}/pieces/{path...}", body="data"),
    is_tool=True,
)
class WriteFile(ActionRequest[FileInfo], name="datalattice.v1.WriteFileRequest"):
    """Write a whole file of at most 1 MiB. On disk when it returns.

    if_match: the hash that the file must have; is_new: it must not be there. Else: Conflict.
    Raises: NoSuchPath: the directory is missing. IsADirectory.
    """

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    data: Annotated[bytes, Field(3)] = b""
    if_match: Annotated[bytes | None, Field(4, codec=HASH_FORMAT)] = None
    is_new: Annotated[bool, Field(5)] = False
    owner: Annotated[str, Field(6)] = OWN_NAME
    lock_tokens: Annotated[tuple[str, ...], Field(7)] = ()


# EFFECT: repeated after it was done, it answers AlreadyExists; nothing else changes.
@action(
    "drive.mkdir",
    ActionKind.EFFECT,
    "w",
    _DRIVE,
    PUT("/drives/{drive}/directories/{path...}", 201),
    is_tool=True,
)
class MakeDirectory(ActionRequest[Empty], name="datalattice.v1.MakeDirectoryRequest"):
    """Make a directory; without a path, the drive. Raises: AlreadyExists, NoSuchPath."""

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    owner: Annotated[str, Field(3)] = OWN_NAME
    lock_tokens: Annotated[tuple[str, ...], Field(4)] = ()


# EFFECT: repeated after it was done, it answers NoSuchPath; nothing else changes.
@action(
    "drive.remove",
    ActionKind.EFFECT,
    "w",
    _DRIVE,
    DELETE("/drives/{drive}/pieces/{path...}"),
    is_tool=True,
)
class RemoveFile(ActionRequest[Empty], name="datalattice.v1.RemoveFileRequest"):
    """Remove a file or an empty directory; with `is_recursive`, a directory and all below it.

    if_match: the hash that it must have, else: Conflict. Raises: NoSuchPath, DirectoryNotEmpty.
    """

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    is_recursive: Annotated[bool, Field(3)] = False
    owner: Annotated[str, Field(4)] = OWN_NAME
    if_match: Annotated[bytes | None, Field(5, codec=HASH_FORMAT)] = None
    lock_tokens: Annotated[tuple[str, ...], Field(6)] = ()


# EFFECT: repeated after it was done, it finds no file under the old name and answers NoSuchPath.
@action("drive.move", ActionKind.EFFECT, "w", _DRIVE, POST("/drives/{drive}/moves"), is_tool=True)
class MoveFile(ActionRequest[Empty], name="datalattice.v1.MoveFileRequest"):
    """Move a file or directory. Raises: NoSuchPath; AlreadyExists without `overwrite`.

    overwrite: a file may replace a file. is_recursive: with `overwrite`, the target is removed
    first with all below it, so that a directory may be replaced, too. if_match, target_if_match:
    the hashes that source and target must have, else: Conflict.
    """

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    target: Annotated[str, Field(3)] = ""
    overwrite: Annotated[bool, Field(4)] = False
    owner: Annotated[str, Field(5)] = OWN_NAME
    is_recursive: Annotated[bool, Field(6)] = False
    lock_tokens: Annotated[tuple[str, ...], Field(7)] = ()
    if_match: Annotated[bytes | None, Field(8, codec=HASH_FORMAT)] = None
    target_if_match: Annotated[bytes | None, Field(9, codec=HASH_FORMAT)] = None


# EFFECT: repeated, it makes the same copy again, or answers AlreadyExists.
@action("drive.copy", ActionKind.EFFECT, "w", _DRIVE, POST("/drives/{drive}/copies"))
class CopyFile(ActionRequest[Empty], name="datalattice.v1.CopyFileRequest"):
    """Copy a file or directory; content is shared. Raises: as `drive.move`.

    overwrite, is_recursive, if_match, target_if_match: as in `drive.move`. is_shallow: copy a
    directory without its entries.
    """

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    target: Annotated[str, Field(3)] = ""
    overwrite: Annotated[bool, Field(4)] = False
    owner: Annotated[str, Field(5)] = OWN_NAME
    is_recursive: Annotated[bool, Field(6)] = False
    lock_tokens: Annotated[tuple[str, ...], Field(7)] = ()
    is_shallow: Annotated[bool, Field(8)] = False
    if_match: Annotated[bytes | None, Field(9, codec=HASH_FORMAT)] = None
    target_if_match: Annotated[bytes | None, Field(10, codec=HASH_FORMAT)] = None


@action(
    "drive.set_properties",
    ActionKind.EFFECT,
    "w",
    _DRIVE,
    PUT("/drives/{drive}/properties/{path...}"),
)
class SetProperties(ActionRequest[FileInfo], name="datalattice.v1.SetPropertiesRequest"):
    """Set and remove properties of a file, a directory or, without a path, the drive.

    A copy has the properties of its source. Raises: NoSuchPath. LimitExceeded: too many.
    """

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    set: Annotated[tuple[FileProperty, ...], Field(3)] = ()
    remove: Annotated[tuple[str, ...], Field(4)] = ()
    owner: Annotated[str, Field(5)] = OWN_NAME
    lock_tokens: Annotated[tuple[str, ...], Field(6)] = ()


class LockInfo(Message, name="datalattice.v1.LockInfo"):
    """A lock on a file or directory; see `drive.lock`.

    expires_ms: its end, Unix milliseconds. is_new: the lock made an empty file.
    """

    token: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    is_shared: Annotated[bool, Field(3)] = False
    is_deep: Annotated[bool, Field(4)] = False
    owner_note: Annotated[str, Field(5)] = ""
    expires_ms: Annotated[int, Field(6, "int64")] = 0
    is_new: Annotated[bool, Field(7)] = False


# `w`: a lock keeps others from writing. EFFECT: a repeated call finds the first lock and answers
# FileLocked, or takes a further shared one, which ends by itself.
@action("drive.lock", ActionKind.EFFECT, "w", _DRIVE, POST("/drives/{drive}/locks", 201))
class TakeLock(ActionRequest[LockInfo], name="datalattice.v1.TakeLockRequest"):
    """Lock a file or directory: until the lock ends, writes at this node need its token.

    A missing file is made empty. is_shared: others may take shared locks, too. is_deep: the lock
    covers all below. owner_note: shown to others. timeout_s: 3,600 at most. token: refresh the lock
    with this token instead. Locks are in the memory of this node alone. Raises: FileLocked.
    NoSuchPath: the directory or the lock to refresh does not exist. Backpressure: the caller has
    1,000 locks.
    """

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    is_shared: Annotated[bool, Field(3)] = False
    is_deep: Annotated[bool, Field(4)] = False
    owner_note: Annotated[str, Field(5)] = ""
    timeout_s: Annotated[int, Field(6, "uint32")] = LOCK_S
    token: Annotated[str, Field(7)] = ""
    owner: Annotated[str, Field(8)] = OWN_NAME
    lock_tokens: Annotated[tuple[str, ...], Field(9)] = ()


@action("drive.unlock", ActionKind.EFFECT, "w", _DRIVE, DELETE("/drives/{drive}/locks/{token}"))
class UnlockFile(ActionRequest[Empty], name="datalattice.v1.UnlockFileRequest"):
    """End a lock of the caller. path: a path that it covers. Raises: NoSuchPath: no such lock."""

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    token: Annotated[str, Field(3)] = ""
    owner: Annotated[str, Field(4)] = OWN_NAME


class LockList(Message, name="datalattice.v1.LockList"):
    """Locks."""

    locks: Annotated[tuple[LockInfo, ...], Field(1)] = ()


@action("drive.locks", ActionKind.QUERY, "r", _DRIVE, GET("/drives/{drive}/locks"))
class ListLocks(ActionRequest[LockList], name="datalattice.v1.ListLocksRequest"):
    """Return the locks on a path, on directories above it that cover it, and on all below it."""

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    owner: Annotated[str, Field(3)] = OWN_NAME
