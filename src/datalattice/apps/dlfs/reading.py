"""Reading: the read operations of a drive.

Source: CAD028 "Operations", "Drives"; docs/dlfs.md "Operations", "Names and paths", "Large files",
    "Drives".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from datalattice.apps.dlfs import tree
from datalattice.apps.dlfs.facts import DriveUsage, Stat, stat_of, usage_of, walked
from datalattice.apps.dlfs.node import Content, read_node
from datalattice.apps.dlfs.paths import PathLike, join_path, split_path
from datalattice.cells import Value, value_hash
from datalattice.cursors import LatticeCursor
from datalattice.errors import IsADirectory, NoSuchPath, NotADirectory, UsageError

Listing = list[str]
Stats = list[Stat]
Walk = Iterator[tuple[str, list[str], list[str]]]

READ_BYTES_MAX: Final = 1 << 32
"""Most bytes that one read returns. A few cells can encode a file of any size."""


class DriveReader:
    """The read operations of a drive."""

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
        node = read_node(self._find(path))
        return node is not None and node.is_directory

    def is_file(self, path: PathLike) -> bool:
        """Return whether a file is at `path`."""
        node = read_node(self._find(path))
        return node is not None and node.is_file

    def stat(self, path: PathLike) -> Stat:
        """Return the status of a file or directory.

        Raises: NoSuchPath: nothing is at `path`.
        """
        names = split_path(path)
        return stat_of(names, tree.find(self._cursor.get(), names))

    def list(self, path: PathLike = "/") -> Listing:
        """Return the names in a directory, in the order of their UTF-8 bytes.

        Raises: NoSuchPath: nothing is at `path`. NotADirectory: it is a file.
        """
        return [name for name, _, _ in tree.listed(self._directory(path))]

    def entries(self, path: PathLike = "/") -> Stats:
        """Return the status of every entry of a directory, in the order of names.

        Raises: NoSuchPath: nothing is at `path`. NotADirectory: it is a file.
        """
        names = split_path(path)
        return [
            stat_of((*names, name), value) for name, value, _ in tree.listed(self._directory(path))
        ]

    def unreachable(self, path: PathLike = "/") -> Listing:
        """Return names that no path can express; other implementations may have written them.

        Raises: NoSuchPath: nothing is at `path`. NotADirectory: it is a file.
        """
        return tree.unreachable(self._directory(path))

    def walk(self, path: PathLike = "/") -> Walk:
        """Yield (path, names of directories, names of files) of a directory and all below it.

        Walks a snapshot taken at the call; a directory comes before its entries.

        Raises: NoSuchPath: nothing is at `path`. NotADirectory: it is a file.
        """
        return walked(split_path(path), self._directory(path))

    def read(self, path: PathLike, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes of a file from `start` to before `stop` or the end.

        Cost:   loads only the chunks of that range.
        Raises: NoSuchPath: nothing is at `path`. IsADirectory: `path` is a directory. UsageError:
                more than 4 GiB at once, or a negative position.
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

    def content(self, path: PathLike) -> Content:
        """Return the data of a file as an immutable value: bytes, or a blob tree.

        Raises: NoSuchPath: nothing is at `path`. IsADirectory: it is a directory.
        """
        names = split_path(path)
        node = read_node(tree.find(self._cursor.get(), names))
        if node is None or node.data is None:
            raise IsADirectory(f"{join_path(names)} is a directory")
        return node.data

    def du(self, path: PathLike = "/") -> DriveUsage:
        """Return how many bytes, files and directories are at and below `path`.

        Raises: NoSuchPath: nothing is at `path`.
        """
        return usage_of(tree.find(self._cursor.get(), split_path(path)))

    def root_hash(self) -> bytes:
        """Return the value hash of the root node; it is equal for drives with equal content."""
        return self.node_hash("/")

    def node_hash(self, path: PathLike) -> bytes:
        """Return the value hash of the node at `path`.

        Raises: NoSuchPath: nothing is at `path`.
        """
        return value_hash(tree.find(self._cursor.get(), split_path(path)))

    def _find(self, path: PathLike) -> Value:
        """Return the live node at `path`, None if absent."""
        try:
            return tree.find(self._cursor.get(), split_path(path))
        except NoSuchPath:
            return None

    def _directory(self, path: PathLike) -> Value:
        names = split_path(path)
        value = tree.find(self._cursor.get(), names)
        node = read_node(value)
        if node is None or not node.is_directory:
            raise NotADirectory(f"{join_path(names)} is a file")
        return value
