"""Reading: the read operations of a drive, and the stream of its changes.

Source: CAD028 "Operations", "Drives"; docs/dlfs.md "Operations", "Names and paths", "Large files",
    "Drives".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from datalattice.apps.dlfs import tree
from datalattice.apps.dlfs.node import (
    DRIVE_DEPTH_MAX,
    FileContent,
    PathLike,
    join_path,
    read_node,
    split_path,
)
from datalattice.apps.dlfs.properties import properties_of
from datalattice.apps.dlfs.tree import PathNames, live_entries, sorted_entries
from datalattice.cells import Value, blob_length, same, value_hash
from datalattice.cursors import LatticeCursor, Stream
from datalattice.errors import IsADirectory, NoSuchPath, NotADirectory, UsageError

READ_BYTES_MAX: Final = 1 << 32  # 4 GiB, as one read of most file systems
"""Most bytes that one read returns. A few cells can encode a file of any size."""


class Stat(NamedTuple):
    """The status of a file or directory. size: 0 for directories, which have no content hash."""

    path: str
    name: str
    is_dir: bool
    size: int
    modified_ms: int
    metadata: Value
    hash: bytes
    content_hash: bytes | None

    @property
    def is_file(self) -> bool:
        """Whether it is a file."""
        return not self.is_dir

    @property
    def properties(self) -> dict[str, str]:
        """The texts that users set under names, see `Drive.set_properties`."""
        return properties_of(self.metadata)


class DriveUsage(NamedTuple):
    """Totals of a subtree; a directory counts itself."""

    bytes: int
    files: int
    directories: int


def stat_of(names: PathNames, value: Value) -> Stat:
    """Return the status of the live node `value` at `names`; the root has the name ""."""
    node = read_node(value)
    assert node is not None
    return Stat(
        path=join_path(names),
        name=names[-1] if names else "",
        is_dir=node.is_directory,
        size=0 if node.data is None else blob_length(node.data),
        modified_ms=node.utime,
        metadata=node.metadata,
        hash=value_hash(value),
        content_hash=None if node.data is None else value_hash(node.data),
    )


def usage_of(value: Value) -> DriveUsage:
    """Return the totals of the subtree of a live node, down to the greatest depth of a path.

    Cost:   reads each distinct directory once.
    """
    return _usage(value, 0, {})


def _usage(value: Value, depth: int, known: dict[tuple[bytes, int], DriveUsage]) -> DriveUsage:
    node = read_node(value)
    if node is not None and node.data is not None:
        return DriveUsage(blob_length(node.data), 1, 0)
    # With the depth: where a shared subtree lies deeper, fewer of its entries have a path.
    key = value_hash(value), depth
    found = known.get(key)
    if found is None:
        total, files, directories = 0, 0, 1
        if depth < DRIVE_DEPTH_MAX:  # deeper entries have no path
            for _, child, _ in live_entries(value):
                below = _usage(child, depth + 1, known)
                total += below.bytes
                files += below.files
                directories += below.directories
        # A shared subtree counts wherever it appears, and is read once.
        found = known[key] = DriveUsage(total, files, directories)
    return found


def walked(names: PathNames, value: Value) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield (path, directories, files) of the directory `value` at `names` and of all below it."""
    waiting = [(names, value)]
    while waiting:
        place, directory = waiting.pop()  # an explicit stack: Python's recursion is limited
        found = sorted_entries(directory)
        below = [(name, child) for name, child, node in found if node.is_directory]
        yield (
            join_path(place),
            [name for name, _ in below],
            [name for name, _, node in found if node.is_file],
        )
        # Reversed, because the stack returns the last one first.
        waiting.extend(((*place, name), child) for name, child in reversed(below))


class FileChange(NamedTuple):
    """The change of one file or directory; `stat` is its new status, None if it was deleted."""

    path: str
    stat: Stat | None


class DriveWatch(Stream[FileChange]):
    """The changes of a drive's files and directories, from now on, in the order of their paths.

    The cost depends on the entries of the directories that differ, not on the size of the drive.
    """

    def __init__(self, cursor: LatticeCursor, *, wait: bool, timeout: float | None) -> None:
        super().__init__(cursor, wait=wait, timeout=timeout)
        self._cursor: Final = cursor
        # Read after the subscription, so that every write after this state wakes the stream.
        self._seen = cursor.get()

    def _fetch(self) -> list[FileChange]:
        before, self._seen = self._seen, self._cursor.get()
        return list(_differing((), before, self._seen))


def _differing(names: PathNames, before: Value, after: Value) -> Iterator[FileChange]:
    """Yield the changes between two versions of a directory, None if absent, and all below it."""
    # Equal subtrees have equal hashes and are skipped.
    if same(before, after) or len(names) > DRIVE_DEPTH_MAX:
        return
    old, new = ({name: child for name, child, _ in sorted_entries(one)} for one in (before, after))
    for name in sorted({*old, *new}):
        was, now, path = old.get(name), new.get(name), (*names, name)
        if was is not None and now is not None and same(was, now):
            continue
        was_directory, is_directory = _is_directory(was), _is_directory(now)
        # "Every directory above gets the stamp as its utime": so a directory on both sides always
        # differs, and only the changes below it are reported.
        if not (was_directory and is_directory):
            yield FileChange(join_path(path), None if now is None else stat_of(path, now))
        if was_directory or is_directory:
            yield from _differing(
                path, was if was_directory else None, now if is_directory else None
            )


def _is_directory(value: Value) -> bool:
    node = read_node(value)
    return node is not None and node.is_directory


FileNames = list[str]
Stats = list[Stat]
WalkSteps = Iterator[tuple[str, list[str], list[str]]]


class DriveReader:
    """The read operations of a drive.

    Each raises `NoSuchPath` if nothing is at its path, `NotADirectory` if a file is where it needs
    a directory, and `IsADirectory` the other way round.
    """

    __slots__ = ("_cursor",)

    def __init__(self, cursor: LatticeCursor) -> None:
        self._cursor: Final = cursor

    @property
    def cursor(self) -> LatticeCursor:
        """The cursor below this drive."""
        return self._cursor

    def exists(self, path: PathLike) -> bool:
        """Return whether a file or a directory is at `path`."""
        return self._find(path) is not None

    def is_dir(self, path: PathLike) -> bool:
        """Return whether a directory is at `path`."""
        return _is_directory(self._find(path))

    def is_file(self, path: PathLike) -> bool:
        """Return whether a file is at `path`."""
        node = read_node(self._find(path))
        return node is not None and node.is_file

    def stat(self, path: PathLike) -> Stat:
        """Return the status of a file or directory."""
        names = split_path(path)
        return stat_of(names, tree.find(self._cursor.get(), names))

    def list(self, path: PathLike = "/") -> FileNames:
        """Return the names in a directory, in the order of their UTF-8 bytes."""
        return [name for name, _, _ in tree.sorted_entries(self._directory(path))]

    def entries(self, path: PathLike = "/") -> Stats:
        """Return the status of every entry of a directory, in the order of names."""
        names = split_path(path)
        return [
            stat_of((*names, name), value)
            for name, value, _ in tree.sorted_entries(self._directory(path))
        ]

    def page(self, path: PathLike, start: bytes, count: int) -> tuple[Stats, bytes]:
        """Return the status of up to `count` entries of a directory, and the next page's start.

        start: b"" for the first page; the second result is b"" with the last one. The order is that
        of the first 32 bytes of the names. Cost: the page, and the path to it.
        """
        names = split_path(path)
        found, following = tree.live_page(self._directory(path), start, count)
        return [stat_of((*names, name), value) for name, value in found], following

    def unreachable(self, path: PathLike = "/") -> FileNames:
        """Return names that no path can express; other implementations may have written them."""
        return tree.unreachable(self._directory(path))

    def walk(self, path: PathLike = "/") -> WalkSteps:
        """Yield (path, names of directories, names of files) of a directory and all below it.

        Walks a snapshot taken at the call; a directory comes before its entries.
        """
        return walked(split_path(path), self._directory(path))

    def watch(self, *, wait: bool = True, timeout: float | None = None) -> DriveWatch:
        """Return the stream of changes of files and directories, from now on.

        Use it in `with` or `async with`, or close it. `wait` and `timeout` are those of `Stream`.
        """
        return DriveWatch(self._cursor, wait=wait, timeout=timeout)

    def read(self, path: PathLike, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes of a file from `start` to before `stop` or the end.

        Cost:   loads only the chunks of that range.
        Raises: UsageError: more than 4 GiB at once, or a negative position.
        """
        data = self.content(path)
        stop = len(data) if stop is None else stop
        if start < 0 or stop < 0:
            raise UsageError(f"the position is negative: {min(start, stop)}")
        stop = min(stop, len(data))
        # "One returns at most 4 GiB" (docs/dlfs.md "Large files"): a few cells can encode a file of
        # any size.
        if stop - start > READ_BYTES_MAX:
            raise UsageError(
                f"one read returns at most {READ_BYTES_MAX} bytes, got {stop - start}; "
                "read in parts, or open the file"
            )
        return data[start:stop] if isinstance(data, bytes) else data.read(start, stop)

    def content(self, path: PathLike) -> FileContent:
        """Return the data of a file as an immutable value: bytes, or a blob tree."""
        names = split_path(path)
        node = read_node(tree.find(self._cursor.get(), names))
        if node is None or node.data is None:
            raise IsADirectory(f"{join_path(names)} is a directory")
        return node.data

    def du(self, path: PathLike = "/") -> DriveUsage:
        """Return how many bytes, files and directories are at and below `path`."""
        return usage_of(tree.find(self._cursor.get(), split_path(path)))

    def root_hash(self) -> bytes:
        """Return the value hash of the root node; it is equal for drives with equal content."""
        return self.node_hash("/")

    def node_hash(self, path: PathLike) -> bytes:
        """Return the value hash of the node at `path`."""
        return value_hash(tree.find(self._cursor.get(), split_path(path)))

    def _find(self, path: PathLike) -> Value:
        """Return the live node at `path`, None if absent."""
        try:
            return tree.find(self._cursor.get(), split_path(path))
        except NoSuchPath:
            return None  # also if a file stands in the way: NotADirectory is a NoSuchPath

    def _directory(self, path: PathLike) -> Value:
        names = split_path(path)
        value = tree.find(self._cursor.get(), names)
        if not _is_directory(value):
            raise NotADirectory(f"{join_path(names)} is a file")
        return value
