"""Handlers of the actions on drives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from datalattice import actions
from datalattice.apps.dlfs import Drive, FileContent, Stat, join_path, split_path
from datalattice.cells import Blob
from datalattice.errors import (
    Conflict,
    IsADirectory,
    LimitExceeded,
    NoSuchPath,
    UsageError,
)
from datalattice.service.bodies import FilePieces, piece_stream
from datalattice.service.filelocks import HeldLock, LockPlace, Touched
from datalattice.service.registry import ServiceCall, Streamed, Upload, handles, page
from datalattice.service.resuming import stream_name


@handles(actions.ListDrives)
def list_drives(call: ServiceCall, request: actions.ListDrives) -> actions.DriveList:
    """List the drives of an owner."""
    return actions.DriveList(drives=tuple(call.node.drives(owner=call.owner(request.owner))))


def _drive(call: ServiceCall, name: str, owner: str) -> Drive:
    return call.node.drive(name, owner=call.owner(owner))


def _existing(call: ServiceCall, name: str, owner: str) -> Drive:
    """Return a drive, which must exist: a handle of an absent one would read as empty."""
    drive = _drive(call, name, owner)
    if drive.cursor.get() is None:
        raise NoSuchPath(f"there is no drive {name!r:.80}")
    return drive


def _present(call: ServiceCall, name: str, owner: str) -> Drive:
    """Return a drive as it is now, whatever is written while it is read. Raises: NoSuchPath."""
    return _existing(call, name, owner).clone()


def _info(stat: Stat) -> actions.FileInfo:
    return actions.FileInfo(
        path=stat.path,
        is_directory=stat.is_dir,
        size=stat.size,
        modified_ms=stat.modified_ms,
        hash=stat.hash,
        content_hash=stat.content_hash,
        properties=tuple(actions.FileProperty(name=n, value=v) for n, v in stat.properties.items()),
    )


@handles(actions.StatFile)
def stat_file(call: ServiceCall, request: actions.StatFile) -> actions.FileInfo:
    """Return the information on a path."""
    return _info(_present(call, request.drive, request.owner).stat(request.path or "/"))


ENTRIES_MAX: Final = 10_000
"""Most entries of a directory in one page."""


@handles(actions.ListDirectory)
def list_directory(call: ServiceCall, request: actions.ListDirectory) -> actions.FileList:
    """Return the entries of a directory, or a page of them."""
    drive, path, following = _present(call, request.drive, request.owner), request.path or "/", b""
    if request.count or request.start:
        count = page(request.count, ENTRIES_MAX)
        entries, following = drive.page(path, request.start, count)
    else:
        entries = drive.entries(path)
    return actions.FileList(entries=tuple(_info(one) for one in entries), next=following)


@handles(actions.ReadFile)
def read_file(call: ServiceCall, request: actions.ReadFile) -> actions.FilePiece:
    """Return a piece of a file."""
    count = page(request.count, actions.PIECE_BYTES_MAX)
    drive = _present(call, request.drive, request.owner)
    stat = drive.stat(request.path)
    _check_version(stat, request.hash)
    data = drive.read(request.path, request.start, request.start + count)
    return actions.FilePiece(data=data, start=request.start, size=stat.size, hash=stat.hash)


_Writes = (
    actions.WriteFile
    | actions.PutFile
    | actions.MakeDirectory
    | actions.RemoveFile
    | actions.MoveFile
    | actions.CopyFile
    | actions.SetProperties
)


@contextmanager
def _writing(call: ServiceCall, request: _Writes, *touched: Touched) -> Iterator[Drive]:
    """Give the drive for writing: no lock of others covers it, and the block is one edit."""
    # The edit is the inner one: it ends before a waiting lock is given.
    with (
        call.locks.writing(
            call.holder, call.owner(request.owner), request.drive, touched, request.lock_tokens
        ),
        call.node.batch(),
    ):
        yield _drive(call, request.drive, request.owner)


@handles(actions.WriteFile)
def write_file(call: ServiceCall, request: actions.WriteFile) -> actions.FileInfo:
    """Write a whole file."""
    if len(request.data) > actions.PIECE_BYTES_MAX:
        raise LimitExceeded(
            f"data: at most {actions.PIECE_BYTES_MAX} bytes, got {len(request.data)}"
        )
    return _write(call, request, request.data)


def _write(
    call: ServiceCall, request: actions.WriteFile | actions.PutFile, content: FileContent
) -> actions.FileInfo:
    names = split_path(request.path)
    # Outside of the edit: it decides only whether locks on the directory guard the write.
    is_there = _held(_drive(call, request.drive, request.owner), request.path) is not None
    with _writing(call, request, Touched(names, is_member=not is_there)) as drive:
        _check_expected(drive, request.path, request.if_match, is_new=request.is_new)
        drive.write(request.path, content)
    return _info(drive.stat(request.path))


@handles(actions.PutFile)
def put_file(call: ServiceCall, request: actions.PutFile) -> Upload[actions.FileInfo]:
    """Begin to write a file."""
    # Refused early, before the body comes; `finish` checks again, and that check counts.
    drive = _drive(call, request.drive, request.owner)
    _check_expected(drive, request.path, request.if_match, is_new=request.is_new)
    names = split_path(request.path)
    # A file at the top of an absent drive makes the drive.
    if names[:-1] and not drive.is_dir(join_path(names[:-1])):
        raise NoSuchPath(f"{request.path}: its directory does not exist")
    if drive.is_dir(request.path):
        raise IsADirectory(f"{request.path} is a directory")
    return _FileUpload(call, request)


class _FileUpload(Upload[actions.FileInfo]):
    def __init__(self, call: ServiceCall, request: actions.PutFile) -> None:
        self._call, self._request, self._size = call, request, 0
        self._upload = call.node.upload()

    def write(self, piece: bytes) -> None:
        self._size += len(piece)
        # "The bytes of a file of up to 4 GiB" (docs/rest.md "Files"): no length need come before
        # them.
        if self._size > actions.UPLOAD_BYTES_MAX:
            raise LimitExceeded(f"a file has at most {actions.UPLOAD_BYTES_MAX} bytes")
        self._upload.write(piece)

    def finish(self) -> actions.FileInfo:
        content, request = self._upload.finish(), self._request
        return _write(self._call, request, content)

    def close(self) -> None:
        self._upload.close()


@handles(actions.GetFile)
def get_file(call: ServiceCall, request: actions.GetFile) -> Streamed[actions.FilePiece]:
    """Return a file in pieces."""
    owner = call.owner(request.owner)
    drive = _present(call, request.drive, request.owner)
    stat, content = drive.stat(request.path), drive.content(request.path)
    _check_version(stat, request.hash)
    name = stream_name(
        request.action.name, owner, request.drive, request.path, request.start, request.count
    )

    def read(start: int, stop: int) -> bytes:
        return content.read(start, stop) if isinstance(content, Blob) else content[start:stop]

    return piece_stream(FilePieces(stat.path, stat.size, stat.hash, read, request), name, request)


def _check_version(stat: Stat, expected: bytes | None) -> None:
    """Raise Conflict unless a file has the expected hash; None: any."""
    if expected is not None and expected != stat.hash:
        raise Conflict(
            f"{stat.path}: the file has the hash {stat.hash.hex()}, the call expects "
            f"{expected.hex()}"
        )


def _held(drive: Drive, path: str) -> Stat | None:
    try:
        return drive.stat(path)
    except NoSuchPath:
        return None


def _check_expected(
    drive: Drive, path: str, if_match: bytes | None, *, is_new: bool = False
) -> None:
    """Raise Conflict unless the path has the hash `if_match`, and is absent if `is_new`."""
    if if_match is None and not is_new:
        return
    held = _held(drive, path)
    if is_new and held is not None:
        raise Conflict(f"{path} exists already")
    if if_match is not None and (held is None or held.hash != if_match):
        there = "does not exist" if held is None else f"has the hash {held.hash.hex()}"
        raise Conflict(f"{path} {there}, the call expects the hash {if_match.hex()}")


@handles(actions.MakeDirectory)
def make_directory(call: ServiceCall, request: actions.MakeDirectory) -> actions.Empty:
    """Make a directory, or the drive."""
    names = split_path(request.path or "/")
    with _writing(call, request, Touched(names, is_member=True)) as drive:
        if names:
            drive.mkdir(request.path)
        else:
            drive.ensure()
    return actions.Empty()


@handles(actions.RemoveFile)
def remove_file(call: ServiceCall, request: actions.RemoveFile) -> actions.Empty:
    """Remove a file or directory."""
    names = split_path(request.path)
    with _writing(call, request, Touched(names, is_tree=True, is_member=True)) as drive:
        _check_expected(drive, request.path, request.if_match)
        (drive.remove_tree if request.is_recursive else drive.delete)(request.path)
    # After the edit: a file that could not be removed keeps its locks.
    _unlock_removed(call, request, names)
    return actions.Empty()


def _unlock_removed(call: ServiceCall, request: _Writes, names: tuple[str, ...]) -> None:
    call.locks.removed(LockPlace(call.owner(request.owner), request.drive, names))


@handles(actions.MoveFile)
def move_file(call: ServiceCall, request: actions.MoveFile) -> actions.Empty:
    """Move a file or directory."""
    source, target = split_path(request.path), split_path(request.target)
    left = Touched(source, is_tree=True, is_member=True)
    with _writing(call, request, left, _placing(target)) as drive:
        _check_ends(drive, request)
        _clear(drive, request)
        drive.move(request.path, request.target, overwrite=request.overwrite)
    # Locks do not move with a file (RFC 4918, 7.7).
    if source != target:
        _unlock_removed(call, request, source)
    return actions.Empty()


@handles(actions.CopyFile)
def copy_file(call: ServiceCall, request: actions.CopyFile) -> actions.Empty:
    """Copy a file or directory."""
    with _writing(call, request, _placing(split_path(request.target))) as drive:
        # First: an absent source is the error, whatever is at the target.
        found = drive.stat(request.path)
        _check_ends(drive, request)
        _clear(drive, request)
        # "Depth: 0" (RFC 4918, 9.8.3): the directory and its properties without its members.
        if found.is_dir and request.is_shallow:
            drive.mkdir(request.target)
            drive.set_properties(request.target, dict(found.properties))
        else:
            drive.copy(request.path, request.target, overwrite=request.overwrite)
    return actions.Empty()


def _placing(target: tuple[str, ...]) -> Touched:
    return Touched(target, is_tree=True, is_member=True)


def _check_ends(drive: Drive, request: actions.MoveFile | actions.CopyFile) -> None:
    """Raise Conflict unless both paths have the expected hashes."""
    _check_expected(drive, request.path, request.if_match)
    _check_expected(drive, request.target, request.target_if_match)


def _clear(drive: Drive, request: actions.MoveFile | actions.CopyFile) -> None:
    """Remove the target of a copy or move that it replaces, unless a file replaces a file."""
    source, target = split_path(request.path), split_path(request.target)
    if not (request.overwrite and request.is_recursive) or source == target:
        return
    held, found = _held(drive, request.target), drive.stat(request.path)
    if held is None or not (held.is_dir or found.is_dir):
        return  # `Drive.move` and `Drive.copy` replace a file by a file
    # Removing the target would remove the source too, or the place to put it.
    if source[: len(target)] == target or target[: len(source)] == source:
        raise UsageError(f"one of {request.path} and {request.target} is inside the other")
    drive.remove_tree(request.target)


@handles(actions.SetProperties)
def set_properties(call: ServiceCall, request: actions.SetProperties) -> actions.FileInfo:
    """Set and remove properties."""
    path = request.path or "/"
    changes: dict[str, str | None] = dict.fromkeys(request.remove)
    changes |= {one.name: one.value for one in request.set}
    with _writing(call, request, Touched(split_path(path))):
        drive = _existing(call, request.drive, request.owner)
        drive.set_properties(path, changes)
    return _info(drive.stat(path))


# --- locks ----------------------------------------------------------------------------------------


@handles(actions.TakeLock)
def lock_file(call: ServiceCall, request: actions.TakeLock) -> actions.LockInfo:
    """Lock a file or directory, or refresh a lock."""
    path = request.path or "/"
    place = LockPlace(call.owner(request.owner), request.drive, split_path(path))
    if request.token:
        found = call.locks.refresh(call.holder, place, request.token, request.timeout_s)
        return _lock_info(found)
    # Locked before the file is made, so that no other caller writes to the new file.
    made = call.locks.lock(
        call.holder,
        place,
        is_shared=request.is_shared,
        is_deep=request.is_deep,
        note=request.owner_note,
        timeout_s=request.timeout_s,
    )
    try:
        is_new = _create_missing(call, request, place, made)
    except BaseException:
        call.locks.unlock(call.holder, place, made.token)
        raise
    return replace(_lock_info(made), is_new=is_new)


def _create_missing(
    call: ServiceCall, request: actions.TakeLock, place: LockPlace, made: HeldLock
) -> bool:
    path = request.path or "/"
    drive = _existing(call, request.drive, request.owner)
    # A lock on an absent path makes an empty file (RFC 4918, 7.3).
    if drive.exists(path):
        return False
    tokens = (*request.lock_tokens, made.token)
    touched = [Touched(place.names, is_member=True)]
    with (
        call.locks.writing(call.holder, place.owner, place.drive, touched, tokens),
        call.node.batch(),
    ):
        # Again, within the edit: another writer may have made it.
        if drive.exists(path):
            return False
        drive.create_file(path)
    return True


def _lock_info(lock: HeldLock) -> actions.LockInfo:
    return actions.LockInfo(
        token=lock.token,
        path=join_path(lock.place.names),
        is_shared=lock.is_shared,
        is_deep=lock.is_deep,
        owner_note=lock.note,
        expires_ms=lock.expires_ms,
    )


@handles(actions.UnlockFile)
def unlock_file(call: ServiceCall, request: actions.UnlockFile) -> actions.Empty:
    """End a lock."""
    place = LockPlace(call.owner(request.owner), request.drive, split_path(request.path or "/"))
    call.locks.unlock(call.holder, place, request.token)
    return actions.Empty()


@handles(actions.ListLocks)
def list_locks(call: ServiceCall, request: actions.ListLocks) -> actions.LockList:
    """Return the locks on a path and below it."""
    place = LockPlace(call.owner(request.owner), request.drive, split_path(request.path or "/"))
    return actions.LockList(locks=tuple(_lock_info(one) for one in call.locks.around(place)))
