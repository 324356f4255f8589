"""Transfer: streams files between a local folder and a drive.

A drive holds directories and files only. Symbolic links inside a local tree, sockets, pipes,
devices and names that are not UTF-8 are skipped and named. A downloaded file gets the permissions
of the user's new files, and the time that it has in the drive.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from datalattice.apps.dlfs import Drive, FileContent
from datalattice.cells import Blob, Value, blob_ranges, close_cells, novelty, value_hash
from datalattice.client.drives.drives import content_of
from datalattice.errors import MissingData

_PIECE_BYTES: Final = 1 << 20
"""Bytes read or written at once."""

_UNFINISHED: Final = (".lattice-", ".part")
"""Prefix and suffix of the name of an unfinished download."""

CountBytes = Callable[[int], object]
"""A function that is called with the number of bytes of each step."""


@dataclass(frozen=True, slots=True)
class LocalItem:
    """A local file or directory; `names` is its path below the root of the walk."""

    names: tuple[str, ...]
    path: Path
    is_dir: bool
    size: int
    mtime_ns: int
    ctime_ns: int


def walk_local(root: Path, on_skipped: Callable[[str], object]) -> Iterator[LocalItem]:
    """Yield the items below a local directory by name, each directory before its contents.

    on_skipped: called with each skipped path and the reason.
    """
    waiting: list[tuple[tuple[str, ...], Path]] = [((), root)]
    while waiting:
        names, folder = waiting.pop()
        with os.scandir(folder) as entries:
            # Sorted, so that two machines report the same order.
            found = sorted(entries, key=lambda one: one.name)
        below = []
        for one in found:
            why = _reason_to_skip(one)
            if why is not None:
                on_skipped(f"{one.path}: {why}")
                continue
            facts = one.stat(follow_symlinks=False)  # of the link itself
            path_names = (*names, one.name)
            is_dir = one.is_dir()
            size = 0 if is_dir else facts.st_size
            times = facts.st_mtime_ns, facts.st_ctime_ns
            item = LocalItem(path_names, Path(one.path), is_dir, size, *times)
            yield item
            if item.is_dir:
                below.append((path_names, item.path))
        waiting.extend(reversed(below))  # a stack: the first directory is popped first


def _reason_to_skip(entry: os.DirEntry[str]) -> str | None:
    """Return why a drive cannot hold an entry; None if it can."""
    try:
        entry.name.encode("utf-8")
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    # "Symbolic links inside a tree, sockets, pipes, devices and names that are no UTF-8 are passed
    # over and named" (docs/dlfs.md "Command line").
    if entry.is_symlink():
        return "a symbolic link"
    if entry.name.startswith(_UNFINISHED[0]) and entry.name.endswith(_UNFINISHED[1]):
        return "an unfinished download"
    mode = entry.stat(follow_symlinks=False).st_mode
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else "neither a file nor a directory"


def pieces(file: IO[bytes], on_bytes: CountBytes | None = None) -> Iterator[bytes]:
    """Yield the rest of an open file."""
    while piece := file.read(_PIECE_BYTES):
        yield piece
        if on_bytes is not None:  # resumed after the consumer took the piece
            on_bytes(len(piece))


def pieces_of(content: FileContent, on_bytes: CountBytes | None = None) -> Iterator[bytes]:
    """Yield the content of a drive's file."""
    for start in range(0, len(content), _PIECE_BYTES):
        stop = min(start + _PIECE_BYTES, len(content))
        piece = content.read(start, stop) if isinstance(content, Blob) else content[start:stop]
        yield piece
        if on_bytes is not None:
            on_bytes(len(piece))


def hash_file(path: Path, on_bytes: CountBytes | None = None) -> bytes:
    """Return the hash that a file's content has in a drive."""
    with path.open("rb") as file:
        return value_hash(content_of(pieces(file, on_bytes), _forget))


class _NoCells:
    def load(self, hash: bytes) -> Value:
        raise MissingData([hash])


_NO_CELLS: Final = _NoCells()


def _forget(value: Value) -> None:
    """Free the memory of a part of a file that was only hashed."""
    close_cells(novelty(value, _NO_CELLS), _NO_CELLS)


def write_local(
    content: FileContent,
    target: Path,
    modified_ms: int,
    on_bytes: CountBytes | None = None,
    may_replace: Callable[[], bool] = lambda: True,
) -> bool:
    """Write a drive's file to `target`, completely or not at all; return whether it was written.

    modified_ms: the time it gets, in Unix milliseconds.
    may_replace: called right before `target` is replaced; False leaves `target` unchanged.
    Raises: OSError: the file cannot be written. MissingData: a part of the content is not here.
    """
    try:
        first, last = _UNFINISHED
        # Beside the target: a rename works within one file system.
        handle, name = tempfile.mkstemp(prefix=first, suffix=last, dir=target.parent)
    except OSError as error:
        # The error names the user's file, not the temporary one.
        raise OSError(error.errno, error.strerror, str(target)) from error
    written = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            # Full length first: too long a file fails early, and holes in the content stay holes.
            try:
                file.truncate(len(content))
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(target)) from error
            counted = 0
            for start, stop in blob_ranges(content):
                file.seek(start)
                part = content.read(start, stop) if isinstance(content, Blob) else content
                file.write(part)
                if on_bytes is not None:
                    on_bytes(stop - counted)
                counted = stop
            file.flush()
            os.fsync(file.fileno())  # before the rename, so that a crash leaves the old or the new
        # "With the drive's time, and the permissions of the file it replaces or of a new one"
        # (docs/dlfs.md "Command line").
        written.chmod(_mode_of(target))
        # The drive's time, so that a later sync sees no change.
        os.utime(written, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))
        # Asked last: only the rename follows.
        if not may_replace():
            return False
        written.replace(target)
        return True
    finally:
        written.unlink(missing_ok=True)


def _mode_of(target: Path) -> int:
    """Return the permissions of the existing file, else those of a new one."""
    try:
        return stat.S_IMODE(target.stat().st_mode)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)  # reading the mask takes setting it
        return 0o666 & ~mask


def inside(path: str, *names: str) -> str:
    """Return the path with these names below a directory of a drive."""
    return "/".join([path.rstrip("/"), *names]) or "/"


def copy_tree(source: Drive, path: str, target: Drive, target_path: str) -> None:
    """Copy a file or a tree to another drive; contents are shared, files are replaced."""
    if source.is_file(path):
        target.write(target_path, source.content(path))
        return
    target.makedirs(target_path)
    for name in source.list(path):
        copy_tree(source, inside(path, name), target, inside(target_path, name))
