"""Handlers of the actions on drives."""

from __future__ import annotations

from datalattice.actions import (
    PIECE_BYTES_MAX,
    CopyFile,
    DriveList,
    Empty,
    FileInfo,
    FileList,
    FilePiece,
    ListDirectory,
    ListDrives,
    MakeDirectory,
    MoveFile,
    ReadFile,
    RemoveFile,
    StatFile,
    WriteFile,
)
from datalattice.apps.dlfs import Drive, Stat
from datalattice.errors import Conflict, LimitExceeded, NoSuchPath
from datalattice.service.registry import ServiceCall, handles, page


@handles(ListDrives)
def list_drives(call: ServiceCall, request: ListDrives) -> DriveList:
    """List the drives of an owner."""
    return DriveList(drives=tuple(call.node.drives(owner=call.owner(request.owner))))


def _drive(call: ServiceCall, name: str, owner: str) -> Drive:
    return call.node.drive(name, owner=call.owner(owner))


def _info(stat: Stat) -> FileInfo:
    return FileInfo(
        path=stat.path,
        is_directory=stat.is_dir,
        size=stat.size,
        modified_ms=stat.modified_ms,
        hash=stat.hash,
    )


@handles(StatFile)
def stat_file(call: ServiceCall, request: StatFile) -> FileInfo:
    """Return what is at a path."""
    return _info(_drive(call, request.drive, request.owner).stat(request.path or "/"))


@handles(ListDirectory)
def list_directory(call: ServiceCall, request: ListDirectory) -> FileList:
    """Return the entries of a directory."""
    entries = _drive(call, request.drive, request.owner).entries(request.path or "/")
    return FileList(entries=tuple(_info(one) for one in entries))


@handles(ReadFile)
def read_file(call: ServiceCall, request: ReadFile) -> FilePiece:
    """Return a piece of a file."""
    count = page(request.count, PIECE_BYTES_MAX)
    drive = _drive(call, request.drive, request.owner)
    stat = drive.stat(request.path)
    if request.hash is not None and request.hash != stat.hash:
        raise Conflict(f"{request.path}: the file has changed since the first piece was read")
    data = drive.read(request.path, request.start, request.start + count)
    return FilePiece(data=data, start=request.start, size=stat.size, hash=stat.hash)


@handles(WriteFile)
def write_file(call: ServiceCall, request: WriteFile) -> FileInfo:
    """Write a file as a whole."""
    if len(request.data) > PIECE_BYTES_MAX:
        raise LimitExceeded(f"data: at most {PIECE_BYTES_MAX} bytes, got {len(request.data)}")
    drive = _drive(call, request.drive, request.owner)
    # One edit: nobody writes between the look and the write.
    with call.node.batch():
        _check_expected(drive, request)
        drive.write(request.path, request.data)
    return _info(drive.stat(request.path))


def _check_expected(drive: Drive, request: WriteFile) -> None:
    if request.if_match is None and not request.is_new:
        return
    try:
        held: bytes | None = drive.stat(request.path).hash
    except NoSuchPath:
        held = None
    if request.is_new and held is not None:
        raise Conflict(f"{request.path}: there is a file already")
    if request.if_match is not None and held != request.if_match:
        there = "there is no file" if held is None else f"it has the hash {held.hex()}"
        raise Conflict(f"{request.path}: {there}")


@handles(MakeDirectory)
def make_directory(call: ServiceCall, request: MakeDirectory) -> Empty:
    """Make a directory, or the drive."""
    drive = _drive(call, request.drive, request.owner)
    if request.path.strip("/"):
        drive.mkdir(request.path)
    else:
        drive.ensure()
    return Empty()


@handles(RemoveFile)
def remove_file(call: ServiceCall, request: RemoveFile) -> Empty:
    """Remove a file or directory."""
    drive = _drive(call, request.drive, request.owner)
    (drive.remove_tree if request.is_recursive else drive.delete)(request.path)
    return Empty()


@handles(MoveFile)
def move_file(call: ServiceCall, request: MoveFile) -> Empty:
    """Move a file or directory."""
    drive = _drive(call, request.drive, request.owner)
    drive.move(request.path, request.target, overwrite=request.overwrite)
    return Empty()


@handles(CopyFile)
def copy_file(call: ServiceCall, request: CopyFile) -> Empty:
    """Copy a file or directory."""
    drive = _drive(call, request.drive, request.owner)
    drive.copy(request.path, request.target, overwrite=request.overwrite)
    return Empty()
