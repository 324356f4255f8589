"""Transfer: files between a local folder and a drive, streamed; what is local and can be there.

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
"""Begin and end of the name of an unfinished download."""

Told = Callable[[int], object]
"""Called with the number of bytes of each step."""


@dataclass(frozen=True, slots=True)
class LocalItem:
    """A local file or directory; `names` lead to it from where the walk began."""

    names: tuple[str, ...]
    path: Path
    is_dir: bool
    size: int
    mtime_ns: int
    ctime_ns: int


def walk_local(root: Path, passed_over: Callable[[str], object]) -> Iterator[LocalItem]:
    """Yield what is below a local directory in order of names, directories before their contents.

    passed_over: called with each skipped path and the reason.
    """
    waiting: list[tuple[tuple[str, ...], Path]] = [((), root)]
    while waiting:
        names, folder = waiting.pop()
        with os.scandir(folder) as entries:
            # Sorted: runs on two machines say the same.
            found = sorted(entries, key=lambda one: one.name)
        below = []
        for one in found:
            why = _unfit(one)
            if why is not None:
                passed_over(f"{one.path}: {why}")
                continue
            facts = one.stat(follow_symlinks=False)  # of the link itself
            place = (*names, one.name)
            is_dir = one.is_dir()
            size = 0 if is_dir else facts.st_size
            times = facts.st_mtime_ns, facts.st_ctime_ns
            item = LocalItem(place, Path(one.path), is_dir, size, *times)
            yield item
            if item.is_dir:
                below.append((place, item.path))
        waiting.extend(reversed(below))  # reversed: the stack gives them in order


def _unfit(entry: os.DirEntry[str]) -> str | None:
    """Return why a drive cannot hold something; None if it can."""
    try:
        entry.name.encode("utf-8")
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    # "Symbolic links inside a tree, sockets, pipes, devices and names that are no UTF-8 are passed
    # over and named" (docs/dlfs.md "Command line").
    if entry.is_symlink():
        return "a symbolic link"
    if entry.name.startswith(_UNFINISHED[0]) and entry.name.endswith(_UNFINISHED[1]):
        return "left by a download that was cut short, or is going on"
    mode = entry.stat(follow_symlinks=False).st_mode
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else "neither a file nor a directory"


def pieces(file: IO[bytes], told: Told | None = None) -> Iterator[bytes]:
    """Yield the rest of an open file."""
    while piece := file.read(_PIECE_BYTES):
        yield piece
        if told is not None:  # after it was taken
            told(len(piece))


def pieces_of(content: FileContent, told: Told | None = None) -> Iterator[bytes]:
    """Yield the content of a drive's file."""
    for start in range(0, len(content), _PIECE_BYTES):
        stop = min(start + _PIECE_BYTES, len(content))
        piece = content.read(start, stop) if isinstance(content, Blob) else content[start:stop]
        yield piece
        if told is not None:
            told(len(piece))


def hash_file(path: Path, told: Told | None = None) -> bytes:
    """Return the hash that a file's content has in a drive."""
    with path.open("rb") as file:
        return value_hash(content_of(pieces(file, told), _forget))


class _Nowhere:
    def load(self, hash: bytes) -> Value:
        raise MissingData([hash])


_NOWHERE: Final = _Nowhere()


def _forget(value: Value) -> None:
    """Free the memory of a part of a file: it is only hashed."""
    # The parts are dropped as soon as they are hashed.
    close_cells(novelty(value, _NOWHERE), _NOWHERE)


def fetch(
    content: FileContent,
    target: Path,
    modified_ms: int,
    told: Told | None = None,
    still: Callable[[], bool] = lambda: True,
) -> bool:
    """Write a local file completely or not at all; return whether it was written.

    still: called before the file at `target` is replaced; False leaves that file.
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
            # The full length at once: it fails early if no file can be so long, and gaps of the
            # drive's file stay gaps.
            try:
                file.truncate(len(content))
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(target)) from error
            told_of = 0
            for start, stop in blob_ranges(content):
                file.seek(start)
                part = content.read(start, stop) if isinstance(content, Blob) else content
                file.write(part)
                if told is not None:
                    told(stop - told_of)
                told_of = stop
            file.flush()
            os.fsync(file.fileno())  # before the rename, so that a crash leaves old or new
        # "With the drive's time, and the permissions of the file it replaces or of a new one"
        # (docs/dlfs.md "Command line").
        written.chmod(_mode_of(target))
        # The drive's time, so that a later sync sees no change.
        os.utime(written, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))
        # As late as can be: after this look only the rename follows.
        if not still():
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
        os.umask(mask)  # the mask can only be read by setting it
        return 0o666 & ~mask


def inside(path: str, *names: str) -> str:
    """Return the path of something below a directory of a drive."""
    return "/".join([path.rstrip("/"), *names]) or "/"


def copy_tree(source: Drive, path: str, target: Drive, place: str) -> None:
    """Copy a file or a tree to another drive; contents are shared, files are replaced."""
    if source.is_file(path):
        target.write(place, source.content(path))
        return
    target.makedirs(place)
    for name in source.list(path):
        copy_tree(source, inside(path, name), target, inside(place, name))
