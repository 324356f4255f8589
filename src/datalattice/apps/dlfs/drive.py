"""Drive: a file system over one cursor; every write is one atomic update of its root node.

Source: CAD028 "Drives", "Operations", "Merge"; docs/dlfs.md "Drives", "Operations", "Writes",
    "Large files", "File objects", "Merge"; docs/design/decisions.md "D-FS1"; CAD024 "Root layout",
    "Fork and sync".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, BinaryIO, Final, Self, TextIO, overload

from datalattice.apps.binding import Binding, bound, handle_text, owner_cell
from datalattice.apps.dlfs import tree
from datalattice.apps.dlfs.files import BinaryMode, TextMode, open_file
from datalattice.apps.dlfs.lattice import FS_SECTION, DLFSLattice
from datalattice.apps.dlfs.merging import node_time
from datalattice.apps.dlfs.node import (
    ZERO_NODE,
    DriveNode,
    FileContent,
    PathLike,
    is_name,
    join_path,
    make_directory,
    read_node,
    split_path,
)
from datalattice.apps.dlfs.properties import with_properties
from datalattice.apps.dlfs.reading import DriveReader
from datalattice.cells import (
    EMPTY_INDEX,
    Blob,
    BlobBuilder,
    Map,
    StageValue,
    Value,
    blob_from,
    blob_overwrite,
    blob_truncate,
    counted,
    to_cell,
)
from datalattice.clock import Clock, SystemClock, present_ms
from datalattice.cursors import LatticeCursor, RootLattice
from datalattice.errors import (
    AlreadyExists,
    IsADirectory,
    NoSuchPath,
    UsageError,
)
from datalattice.lattice import VALUE_KEY


class Drive(DriveReader):
    """Directories and files below one root node.

        drive = Drive.create()
        drive.mkdir("/docs")
        drive.write("/docs/a.txt", b"first")
        drive.append("/docs/a.txt", b" and second")
        drive.read("/docs/a.txt")

    Threads may share a drive. `stage`, if given, receives finished parts of a large file while the
    rest is being written, so that a store can save them early.
    """

    __slots__ = ("_binding", "_clock", "_last_ms", "_name", "_owner", "_stage")

    def __init__(
        self,
        cursor: LatticeCursor,
        clock: Clock | None = None,
        *,
        name: str = "",
        owner: object = None,
        stage: StageValue | None = None,
        binding: Binding | None = None,
    ) -> None:
        super().__init__(cursor)
        self._name: Final = name
        self._owner: Final = owner_cell(owner)
        self._binding: Final = binding
        self._clock: Final = clock or SystemClock()
        self._stage: Final = stage
        # One per object: the stamps in the tree order the writes of two drives on one cursor.
        self._last_ms = 0

    @classmethod
    def create(cls, clock: Clock | None = None, *, stage: StageValue | None = None) -> Self:
        """Return an empty drive over its own cursor; its root has the current time."""
        clock = clock or SystemClock()
        root = make_directory(EMPTY_INDEX, present_ms(clock))
        return cls(RootLattice(DLFSLattice(), root), clock, stage=stage)

    @classmethod
    def at(
        cls,
        root: LatticeCursor,
        owner: object,
        name: str,
        clock: Clock | None = None,
        *,
        stage: StageValue | None = None,
        binding: Binding | None = None,
    ) -> Self:
        """Return the drive `name` of an `Owner`, public key or owner cell, below a root.

        A drive that was never written reads as empty. Writing needs a signing key of the owner in
        the cursor's context; reading verifies the owner's signature.
        """
        identity = owner_cell(owner)
        cursor = root.path(FS_SECTION, identity, VALUE_KEY, checked_drive(name))
        return cls(cursor, clock, name=name, owner=identity, stage=stage, binding=binding)

    def ensure(self) -> None:
        """Write an empty drive with the current time if none exists."""
        now_ms = self._now_ms()
        if self._cursor.get() is None:
            empty = make_directory(EMPTY_INDEX, now_ms)
            # Looked at again inside the update: another writer may have made it.
            self._cursor.update(lambda held: empty if held is None or held is ZERO_NODE else held)

    # --- directories ---

    def mkdir(self, path: PathLike) -> None:
        """Make a directory.

        Raises: AlreadyExists: `path` exists. NoSuchPath: its parent directory is missing.
        """
        names = split_path(path)
        if not names:
            raise _exists(())
        self._edit(names, tree.new_directory(names))

    def makedirs(self, path: PathLike, *, exist_ok: bool = True) -> None:
        """Make a directory and its missing parents, in one update.

        Raises: AlreadyExists: a file is at `path`, or a directory without `exist_ok`.
                NotADirectory: a parent is a file.
        """
        names = split_path(path)

        def change(root: Value, now_ms: int) -> Value:
            made = root
            for length in range(1, len(names)):
                part = names[:length]
                if not tree.is_live(made, part):
                    made = tree.edit_node(made, part, now_ms, tree.new_directory(part))
            if names:
                last = tree.new_directory(names, exist_ok=exist_ok)
                made = tree.edit_node(made, names, now_ms, last)
            return made

        if not names and not exist_ok:  # the root always exists
            raise _exists(())
        self._update(change)

    def delete(self, path: PathLike) -> None:
        """Delete a file or an empty directory.

        Raises: NoSuchPath: nothing is at `path`. DirectoryNotEmpty: the directory has entries.
                UsageError: `path` is the root.
        """
        names = split_path(path)
        self._edit(names, tree.deletion(names, tree=False))

    def remove_tree(self, path: PathLike) -> None:
        """Delete a file, or a directory with everything in it, in one update.

        Raises: NoSuchPath: nothing is at `path`. UsageError: `path` is the root.
        """
        names = split_path(path)
        self._edit(names, tree.deletion(names, tree=True))

    def copy(self, source: PathLike, target: PathLike, *, overwrite: bool = True) -> None:
        """Copy a file or a tree to `target`, in one update; the content is shared.

        With `overwrite`, a file may replace a file.
        Raises: NoSuchPath: nothing is at `source`, or the parent of `target` is missing.
                AlreadyExists, IsADirectory: `target` exists and may not be replaced. UsageError:
                `target` is inside `source`.
        """
        self._place(split_path(source), split_path(target), overwrite=overwrite, move=False)

    def move(self, source: PathLike, target: PathLike, *, overwrite: bool = True) -> None:
        """Copy like `copy` and delete `source`, in one update."""
        self._place(split_path(source), split_path(target), overwrite=overwrite, move=True)

    def _place(
        self, source: tree.PathNames, target: tree.PathNames, *, overwrite: bool, move: bool
    ) -> None:
        def change(root: Value, now_ms: int) -> Value:
            value = tree.find(root, source)
            if source == target:  # moving onto itself changes nothing, but the source must exist
                return root
            if target[: len(source)] == source:  # "inside": it would contain itself
                raise UsageError(f"{join_path(target)} is inside {join_path(source)}")
            # The tombstone of a moved tree has to be later than the tree.
            stamp = max(now_ms, node_time(value) + 1) if move else now_ms
            made = tree.edit_node(
                root, target, stamp, tree.placement(target, value, overwrite=overwrite)
            )
            if move:
                made = tree.edit_node(made, source, stamp, tree.deletion(source, tree=True))
            return made

        self._update(change)

    def set_properties(self, path: PathLike, changes: Mapping[str, str | None]) -> None:
        """Set texts under names at a file or directory, or remove them where the text is None.

        Raises: NoSuchPath: nothing is at `path`. LimitExceeded: more than `PROPERTIES_MAX`
                properties, or more than `PROPERTIES_BYTES_MAX` bytes of them. UsageError: a name is
                empty, or the metadata is not a Map.
        """
        names = split_path(path)

        def change(root: Value, now_ms: int) -> Value:
            return tree.edit_metadata(
                root, names, now_ms, lambda held: with_properties(held, changes)
            )

        self._update(change)

    # --- files ---

    def create_file(self, path: PathLike) -> None:
        """Make an empty file.

        Raises: AlreadyExists: `path` exists. NoSuchPath: its parent directory is missing.
        """
        names = split_path(path)
        if not names:
            raise _exists(())
        self._edit(names, tree.new_content(names, lambda _: b"", exclusive=True))

    def write(self, path: PathLike, data: FileContent | Iterable[bytes]) -> None:
        """Write the content of a file, which is made if missing; equal content changes nothing.

        An iterable is read piece by piece; the file changes after its end. A Blob, as returned by
        `content`, is shared.

        Raises: NoSuchPath: the parent directory is missing. IsADirectory: `path` is a directory.
        """
        names = split_path(path)
        # Checked before the content is read, which may be long.
        tree.check_file(self._cursor.get(), names)
        if isinstance(data, Blob):
            content: Value = data  # shared, not copied: its chunks are in the store already
        else:
            content = blob_from([data] if isinstance(data, bytes) else data, self._stage)
        self._edit(names, tree.new_content(names, lambda _: content, exclusive=False))

    def append(self, path: PathLike, data: bytes) -> None:
        """Append bytes to a file, which is made if missing.

        Cost:   rewrites the last chunk and its parent nodes, and writes the new chunks.
        Raises: as `write`.
        """
        # The end is taken inside the update: of two appends at the same time both stay.
        self._change_content(path, lambda held: blob_overwrite(held, len(held), data, self._stage))

    def write_at(self, path: PathLike, position: int, data: bytes) -> None:
        """Write bytes at a position of a file, which is made if missing; zeros fill a gap.

        Cost:   rewrites the chunks of that range and their parent nodes.
        Raises: as `write`. UsageError: `position` is negative.
        """
        self._change_content(path, lambda held: blob_overwrite(held, position, data, self._stage))

    def truncate(self, path: PathLike, size: int) -> None:
        """Cut a file to `size` bytes; a shorter file stays unchanged.

        Raises: NoSuchPath: nothing is at `path`. IsADirectory: `path` is a directory. UsageError:
                `size` is negative.
        """
        self.content(path)  # the error for a missing file, before the update
        self._change_content(path, lambda held: blob_truncate(held, size), must_exist=True)

    def resize(self, path: PathLike, size: int) -> None:
        """Make a file `size` bytes long: cut it, or append zeros. Raises: as `truncate`."""

        def change(held: FileContent) -> Value:
            if size <= len(held):
                return blob_truncate(held, size)
            builder = BlobBuilder(held, self._stage)
            # "a gap is filled with zero bytes": shared subtrees, whatever the length.
            builder.write_zeros(size - len(held))
            return builder.finish()

        self._change_content(path, change, must_exist=True)

    @overload
    def open(self, path: PathLike, mode: BinaryMode = "rb", buffering: int = -1) -> BinaryIO: ...

    @overload
    def open(
        self,
        path: PathLike,
        mode: TextMode,
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> TextIO: ...

    @overload
    def open(
        self,
        path: PathLike,
        mode: str,
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]: ...

    def open(
        self,
        path: PathLike,
        mode: str = "rb",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Return a file object: mode r, w, a or x, and + for both directions; text without b.

        Writes reach the drive with each flush and on close. A file opened only for reading keeps
        the content at the time it was opened. Text is UTF-8 by default, and its line ends are
        written as given.

        Raises: as `read`, `write`, `create_file`. UsageError: the mode is not supported.
        """
        return open_file(self, path, mode, buffering, encoding, errors, newline)

    @property
    def fs(self) -> Any:
        """This drive as an fsspec file system, whose paths begin at its root.

        Raises: UsageError: the drive was made without a node.
        """
        return bound(self._binding, "Drive.fs").file_system(self)

    # --- merging ---

    def fork(self) -> Drive:
        """Return a working copy; its `sync` merges its writes into this drive."""
        return Drive(
            self._cursor.fork(),
            self._clock,
            name=self._name,
            owner=self._owner,
            stage=self._stage,
        )

    def sync(self) -> None:
        """Merge a fork's writes into its parent; of a root cursor, write it to its store."""
        self._cursor.push()

    def merge(self, root: Value) -> None:
        """Merge the root node of another drive into this one."""
        self._cursor.merge(root)

    def replicate(self, other: Drive) -> None:
        """Merge another drive into this one."""
        self.merge(other.cursor.get())

    def clone(self) -> Drive:
        """Return an independent drive with the current content of this one."""
        held = self._cursor.get()
        # Detached: its writes stay in this object.
        root = RootLattice(DLFSLattice(), ZERO_NODE if held is None else held)
        return Drive(root, self._clock, stage=self._stage)

    # --- inside ---

    def _now_ms(self) -> int:
        """Return the time of a write, from the context or the clock; it never decreases."""
        # "Write time = context timestamp of the drive's cursor if set"
        given = self._cursor.context.timestamp
        if given is not None:
            return given
        # The clock "is never read as going back" (docs/dlfs.md "Drives").
        self._last_ms = max(self._last_ms, present_ms(self._clock))
        return self._last_ms

    def _update(self, change: Callable[[Value, int], Value]) -> None:
        now_ms = self._now_ms()
        self._cursor.update(lambda root: change(root, now_ms))

    def _edit(self, names: tree.PathNames, change: tree.NodeEdit) -> None:
        self._update(lambda root, now_ms: tree.edit_node(root, names, now_ms, change))

    def _change_content(
        self, path: PathLike, content: Callable[[FileContent], Value], *, must_exist: bool = False
    ) -> None:
        names = split_path(path)
        if not names:
            raise IsADirectory("/ is a directory")

        def change(held: DriveNode | None) -> Value:
            if held is None and must_exist:
                raise NoSuchPath(f"there is nothing at {join_path(names)}")
            # A missing file starts empty.
            return content(b"" if held is None or held.data is None else held.data)

        self._edit(names, tree.new_content(names, change, exclusive=False))

    def __repr__(self) -> str:
        """Return the name, the owner and the number of entries at the top; never raises."""
        name = repr(self._name) if self._name else ""
        return handle_text("Drive", name, self._owner, self._binding, self._counted)

    def _counted(self) -> str:
        node = read_node(self._cursor.get())
        count = 0 if node is None or node.entries is None else len(node.entries)
        return counted(count, "entry", "entries")


def _exists(names: tree.PathNames) -> AlreadyExists:
    return AlreadyExists(f"{join_path(names)} exists already")


def checked_drive(name: object) -> str:
    """Return `name` if it is valid for a drive: a str of at least one character without `/`.

    Raises: UsageError: it is not.
    """
    if not isinstance(name, str) or not is_name(name):
        raise UsageError(
            f"the drive's name is not a str of 1 character or more without /: {name!r}"
        )
    return name


def drive_names(root: LatticeCursor, owner: object) -> list[str]:
    """Return the names of the drives of `owner` below a root cursor, in order.

    A foreign owner may have written other values than directories; these are left out.
    """
    held = root.path(FS_SECTION, to_cell(owner), VALUE_KEY).get()
    if not isinstance(held, Map):
        return []
    return sorted(
        [
            name
            for name, value in held.entries()
            # Only a directory can be opened; a foreign owner may have written anything.
            if isinstance(name, str) and is_name(name) and tree.is_root(value)
        ]
    )
