"""Actions on drives: files and directories that merge."""

from __future__ import annotations

from typing import Annotated

from datalattice.actions.action import DELETE, GET, POST, PUT, ActionKind, ActionRequest, action
from datalattice.actions.common import OWN, PIECE_BYTES_MAX, Empty
from datalattice.actions.formats import HASH
from datalattice.protobuf import Field, Message

_DRIVE = "lattice/fs/{owner}/{drive}"


class DriveList(Message, name="datalattice.v1.DriveList"):
    """Names of drives, in order."""

    drives: Annotated[tuple[str, ...], Field(1)] = ()


@action("drive.drives", ActionKind.QUERY, "r", "lattice/fs/{owner}", GET("/drives"), is_tool=True)
class ListDrives(ActionRequest[DriveList], name="datalattice.v1.ListDrivesRequest"):
    """List the drives of an owner."""

    owner: Annotated[str, Field(1)] = OWN


class FileInfo(Message, name="datalattice.v1.FileInfo"):
    """A file or directory. size: 0 of a directory. hash: of its content and times."""

    path: Annotated[str, Field(1)] = ""
    is_directory: Annotated[bool, Field(2)] = False
    size: Annotated[int, Field(3, "uint64")] = 0
    modified_ms: Annotated[int, Field(4, "int64")] = 0
    hash: Annotated[bytes, Field(5, codec=HASH)] = b""


@action("drive.stat", ActionKind.QUERY, "r", _DRIVE, GET("/drives/{drive}/stat/{path...}"))
class StatFile(ActionRequest[FileInfo], name="datalattice.v1.StatFileRequest"):
    """Return what is at a path. Raises: NoSuchPath."""

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    owner: Annotated[str, Field(3)] = OWN


class FileList(Message, name="datalattice.v1.FileList"):
    """The entries of a directory, in order."""

    entries: Annotated[tuple[FileInfo, ...], Field(1)] = ()


@action(
    "drive.list", ActionKind.QUERY, "r", _DRIVE, GET("/drives/{drive}/list/{path...}"), is_tool=True
)
class ListDirectory(ActionRequest[FileList], name="datalattice.v1.ListDirectoryRequest"):
    """Return the entries of a directory. Raises: NoSuchPath, NotADirectory."""

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    owner: Annotated[str, Field(3)] = OWN


class FilePiece(Message, name="datalattice.v1.FilePiece"):
    """Bytes of a file from `start` on, and the size and hash of the whole file."""

    data: Annotated[bytes, Field(1)] = b""
    start: Annotated[int, Field(2, "uint64")] = 0
    size: Annotated[int, Field(3, "uint64")] = 0
    hash: Annotated[bytes, Field(4, codec=HASH)] = b""


@action(
    "drive.read",
    ActionKind.QUERY,
    "r",
    _DRIVE,
    GET("/drives/{drive}/pieces/{path...}"),
    is_tool=True,
)
class ReadFile(ActionRequest[FilePiece], name="datalattice.v1.ReadFileRequest"):
    """Return a piece of a file, 1 MiB at most. Raises: NoSuchPath, IsADirectory.

    hash: a piece of another version of the file is refused (Conflict), so that the pieces that a
    caller joins are of one version.
    """

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    start: Annotated[int, Field(3, "uint64")] = 0
    count: Annotated[int, Field(4, "uint32")] = PIECE_BYTES_MAX
    hash: Annotated[bytes | None, Field(5, codec=HASH)] = None
    owner: Annotated[str, Field(6)] = OWN


@action(
    "drive.write",
    ActionKind.EFFECT,
    "w",
    _DRIVE,
    PUT("/drives/{drive}/pieces/{path...}", body="data"),
)
class WriteFile(ActionRequest[FileInfo], name="datalattice.v1.WriteFileRequest"):
    """Write a file whose content is 1 MiB at most, as a whole. On disk when it returns.

    if_match: the hash that the file must have; is_new: it must not be there. Else: Conflict.
    Raises: NoSuchPath: the directory is missing. IsADirectory.
    """

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    data: Annotated[bytes, Field(3)] = b""
    if_match: Annotated[bytes | None, Field(4, codec=HASH)] = None
    is_new: Annotated[bool, Field(5)] = False
    owner: Annotated[str, Field(6)] = OWN


@action(
    "drive.mkdir", ActionKind.EFFECT, "w", _DRIVE, PUT("/drives/{drive}/directories/{path...}", 201)
)
class MakeDirectory(ActionRequest[Empty], name="datalattice.v1.MakeDirectoryRequest"):
    """Make a directory; without a path, the drive. Raises: AlreadyExists, NoSuchPath."""

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    owner: Annotated[str, Field(3)] = OWN


@action("drive.remove", ActionKind.EFFECT, "w", _DRIVE, DELETE("/drives/{drive}/pieces/{path...}"))
class RemoveFile(ActionRequest[Empty], name="datalattice.v1.RemoveFileRequest"):
    """Remove a file or an empty directory; with all below it if `is_recursive`.

    Raises: NoSuchPath, DirectoryNotEmpty.
    """

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    is_recursive: Annotated[bool, Field(3)] = False
    owner: Annotated[str, Field(4)] = OWN


@action("drive.move", ActionKind.EFFECT, "w", _DRIVE, POST("/drives/{drive}/moves"))
class MoveFile(ActionRequest[Empty], name="datalattice.v1.MoveFileRequest"):
    """Move a file or directory. Raises: NoSuchPath; AlreadyExists without `overwrite`."""

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    target: Annotated[str, Field(3)] = ""
    overwrite: Annotated[bool, Field(4)] = False
    owner: Annotated[str, Field(5)] = OWN


@action("drive.copy", ActionKind.EFFECT, "w", _DRIVE, POST("/drives/{drive}/copies"))
class CopyFile(ActionRequest[Empty], name="datalattice.v1.CopyFileRequest"):
    """Copy a file or directory; content is shared. Raises: as `drive.move`."""

    drive: Annotated[str, Field(1)] = ""
    path: Annotated[str, Field(2)] = ""
    target: Annotated[str, Field(3)] = ""
    overwrite: Annotated[bool, Field(4)] = False
    owner: Annotated[str, Field(5)] = OWN
