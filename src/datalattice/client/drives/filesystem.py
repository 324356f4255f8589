"""File system: drives for programs that use fsspec, as `dlfs://drive/path`.

    import fsspec
    with fsspec.open("dlfs://papers/2026/plan.txt", "w") as file:
        file.write("...")                    # durable when it is closed

Paths begin with the name of a drive. A write makes missing directories and drives, as in object
stores. A file that is open for reading keeps the content it had when it was opened. A written file
appears when it is closed, or with all other files of its transaction in one commit.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from glob import has_magic
from pathlib import Path
from typing import Any, Final

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from datalattice.apps.dlfs import Drive
from datalattice.client.addresses import parse_key
from datalattice.client.drives.drives import DriveOf, Drives, DriveWriter, OneDrive
from datalattice.client.drives.openfiles import (
    DLFSFile,
    DriveOperation,
    OneCommit,
    ResolvedPath,
    ResolvePath,
    directory_info,
    file_info,
    os_errors,
)
from datalattice.client.drives.transfer import copy_tree, pieces
from datalattice.client.folder import folder_of
from datalattice.errors import UsageError

PROTOCOL: Final = "dlfs"

_READ_BYTES: Final = 1 << 18  # 64 chunks of 4 KiB at once
"""Read-ahead for readers that ask for fewer bytes."""


class _Cached(type(AbstractFileSystem)):  # type: ignore[misc]
    """Shares instances by the real path of their folder."""

    def __call__(cls, **options: Any) -> Any:
        if options.get("drive") is not None:
            # Each Drive object syncs by itself, so equal ones share no instance.
            options["skip_instance_cache"] = True
        else:
            folder = options.get("folder")
            # "Instances with the same options are one object" (docs/dlfs.md "fsspec").
            options["folder"] = os.path.realpath(folder_of(folder).path)
        return super().__call__(**options)


class DLFSFileSystem(AbstractFileSystem, metaclass=_Cached):
    """The drives of a folder as one file system, or one drive alone.

    folder:     of the node; default: the variable DATALATTICE_HOME, else `~/.datalattice`.
    owner:      whose drives, a public key in hex; default: the folder's own key.
    read_only:  refuse to write.
    auto_mkdir: make missing directories and drives on writing.
    drive:      a `Drive` in place of a folder: paths begin at its root, and each commit syncs it.
    """

    protocol = PROTOCOL
    root_marker = ""
    transaction_type = OneCommit

    def __init__(
        self,
        *,
        folder: str | os.PathLike[str] | None = None,
        owner: str | bytes | None = None,
        read_only: bool = False,
        auto_mkdir: bool = True,
        drive: Drive | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._auto_mkdir = auto_mkdir
        self._batch = threading.local()
        self._is_one_drive = drive is not None
        self._drives: Drives | OneDrive
        if drive is not None:
            self._drives = OneDrive(drive, read_only=read_only)
            self._id = f"{id(drive):x}"
        else:
            found = folder_of(folder)
            # An owner may be given in hex or as bytes.
            whose = parse_key(owner.hex() if isinstance(owner, bytes) else owner) if owner else None
            self._drives = Drives(found, whose, read_only=read_only)
            self._id = str(found.path)

    @property
    def fsid(self) -> str:
        """Name of the file system: the folder, or the identity of the one drive."""
        return f"{PROTOCOL}_{self._id}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = stringify_path(path)
        for start in (f"{PROTOCOL}://", f"{PROTOCOL}::"):
            text = text.removeprefix(start)
        # Empty names in between are dropped, as fsspec does.
        return "/".join(name for name in text.split("/") if name)

    def close(self) -> None:
        """Close the store; later reads and writes raise StoreClosed."""
        self._drives.close()

    def _locate(self, drive_of: Callable[[str], Drive], path: str) -> ResolvedPath | None:
        """Return where a path leads; None for the directory of all drives."""
        if self._is_one_drive:
            return ResolvedPath("", drive_of(""), f"/{path}")
        name, _, inside = path.partition("/")
        # Paths resolve these names, so no drive can have them.
        if name in (".", ".."):
            raise UsageError(f"a path begins with the name of a drive, got {path!r}")
        # The empty path is the list of drives.
        return ResolvedPath(name, drive_of(name), f"/{inside}") if name else None

    def _path_in_drive(self, path: str) -> ResolvedPath:
        """Return where a path leads now.

        Raises: IsADirectoryError: the path is that of the directory of all drives.
        """
        found = self._locate(self._drives.drive, path)
        if found is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return found

    # --- reading ------------------------------------------------------------------------------

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Return name, size, type, mtime (Unix seconds) and hash of a file or directory."""
        path = self._strip_protocol(path)
        with os_errors(path):
            found = self._locate(self._drives.drive, path)
            if found is None:
                return directory_info(path)
            return file_info(path, found.drive.stat(found.path))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """Return the entries of a directory, or the one of a file, as infos or names."""
        path = self._strip_protocol(path)
        with os_errors(path):
            found = self._locate(self._drives.drive, path)
            if found is None:
                listed = [directory_info(name) for name in self._drives.names()]
            else:
                stat = found.drive.stat(found.path)
                if stat.is_dir:
                    start = f"{path}/" if path else ""
                    entries = found.drive.entries(found.path)
                    listed = [file_info(start + one.name, one) for one in entries]
                else:
                    listed = [file_info(path, stat)]
        return listed if detail else [one["name"] for one in listed]

    def modified(self, path: str) -> datetime:
        """Return when a file or directory was last changed."""
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    def checksum(self, path: str) -> int:
        """Return a number that changes with the content or time of a file."""
        return int(self.info(path)["hash"], 16)  # fsspec expects a number

    def ukey(self, path: str) -> str:
        """Return the hash of a file or directory."""
        return str(self.info(path)["hash"])

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        """Return the bytes of a file, or of a part of it; negative positions count from the end."""
        path = self._strip_protocol(path)
        with os_errors(path):
            found = self._path_in_drive(path)
            size = len(found.drive.content(found.path))
            # Negative and missing bounds mean what they mean in slices.
            first, last, _ = slice(start, end).indices(size)
            return found.drive.read(found.path, first, max(first, last))

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Any = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> DLFSFile:
        # "Modes are `rb`, `wb`, `ab` and `xb`, and their text forms"; fsspec wraps the text forms.
        if mode not in ("rb", "wb", "ab", "xb"):
            raise ValueError(f"the mode of a file is rb, wb, ab or xb, got {mode!r}")
        with os_errors(path):
            return DLFSFile(
                self,
                path,
                mode,
                block_size or _READ_BYTES,
                autocommit=autocommit,
                cache_options=cache_options,
                **kwargs,
            )

    # --- writing ------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[DriveWriter]:
        """Yield the writer of this thread's batch, or a new one."""
        # `self._batch` is thread-local: two threads have two batches.
        writer: DriveWriter | None = getattr(self._batch, "writer", None)
        if writer is not None:
            yield writer
            return
        with self._drives.writing() as writer:
            self._batch.writer = writer
            try:
                yield writer
            finally:
                self._batch.writer = None  # also after an error

    def _commit(self, writer: DriveWriter, operations: Iterable[DriveOperation]) -> None:
        def change(drive_of: DriveOf) -> None:
            resolve = partial(self._locate, drive_of)
            for operation in operations:
                operation(resolve)

        writer.edit(change)

    def _apply(self, path: str, *operations: DriveOperation) -> None:
        """Do operations in one commit, now or at the end of this thread's batch."""
        waiting: list[DriveOperation] | None = getattr(self._batch, "waiting", None)
        with os_errors(path):
            if waiting is not None:
                waiting.extend(operations)
                return
            with self._writing() as writer:
                self._commit(writer, operations)

    @contextmanager
    def _batched(self, path: str) -> Iterator[None]:
        """Gather the operations of a `with` block into one commit."""
        batch = self._batch
        if getattr(batch, "waiting", None) is not None:
            yield  # inside a batch: the outer one commits
            return
        with os_errors(path), self._writing() as writer:
            batch.waiting = []
            try:
                yield
                operations = batch.waiting
            finally:
                batch.waiting = None
            if operations:  # an exception leaves the block before this line: nothing is written
                self._commit(writer, operations)

    def _make_parents(self, resolve: ResolvePath, path: str) -> None:
        """Make the missing directories above a path, and the drive."""
        if self._auto_mkdir and "/" in path:
            above = resolve(self._parent(path))
            if above is not None:
                above.drive.ensure()
                above.drive.makedirs(above.path)

    def _write(self, path: str, value: Any, mode: str) -> DriveOperation:
        """Return the operation that gives a file an already stored content."""

        def write(resolve: ResolvePath) -> None:
            self._make_parents(resolve, path)
            found = _in_a_drive(resolve, path)
            # Checked inside the edit, where no other writer can make the file meanwhile.
            if mode in ("xb", "create") and found.drive.exists(found.path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            found.drive.write(found.path, value)

        return write

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write a file; with `mode="create"` an existing one is refused."""
        path = self._strip_protocol(path)
        # Checked here for an early error; the check in the edit decides.
        if mode == "create" and self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if self._intrans:  # the transaction writes all of its files at its end
            super().pipe_file(path, value, mode=mode, **kwargs)
            return
        with os_errors(path), self._writing() as writer:
            # The content is stored before the edit, so that the edit is short.
            self._apply(path, self._write(path, writer.content(bytes(value)), mode))

    def pipe(self, path: Any, value: Any = None, **kwargs: Any) -> None:
        """Write a file, or many in one commit."""
        if self._intrans or isinstance(path, str):
            super().pipe(path, value, **kwargs)
            return
        # "`put`, `copy`, `mv`, `rm` and `pipe` of many files are one commit each" (docs/dlfs.md
        # "fsspec").
        with self._batched("a pipe"):
            super().pipe(path, value, **kwargs)

    def put_file(
        self,
        lpath: Any,
        rpath: str,
        callback: Any = DEFAULT_CALLBACK,
        mode: str = "overwrite",
        **kwargs: Any,
    ) -> None:
        """Copy a local file to a drive; for a local directory, make one."""
        path = self._strip_protocol(rpath)
        if Path(lpath).is_dir():
            self.makedirs(path, exist_ok=True)
            return
        if mode == "create" and self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        # In a transaction fsspec keeps the content until the end.
        if self._intrans:
            super().put_file(lpath, path, callback=callback, mode=mode, **kwargs)
            return
        with Path(lpath).open("rb") as file, os_errors(path), self._writing() as writer:
            callback.set_size(os.fstat(file.fileno()).st_size)
            content = writer.content(pieces(file, callback.relative_update))
            self._apply(path, self._write(path, content, mode))

    def put(self, lpath: Any, rpath: Any, recursive: bool = False, **kwargs: Any) -> None:
        """Copy local files or a tree to a drive, in one commit."""
        if self._intrans:
            super().put(lpath, rpath, recursive=recursive, **kwargs)
            return
        with self._batched(str(rpath)):
            super().put(lpath, rpath, recursive=recursive, **kwargs)

    def write_files(self, files: Sequence[DLFSFile]) -> None:
        """Write the new contents of open files, in one commit."""
        if not files:  # an empty transaction makes no commit
            return
        with os_errors(files[0].path), self._writing() as writer:
            self._apply(files[0].path, *[one.operation(writer) for one in files])

    def append_pieces(self, path: str, chunks: Callable[[], Iterable[bytes]]) -> DriveOperation:
        """Return the operation that adds bytes to the end of a file."""

        def append(resolve: ResolvePath) -> None:
            self._make_parents(resolve, path)
            found = _in_a_drive(resolve, path)
            if not found.drive.exists(found.path):
                found.drive.write(found.path, b"")  # an appended file begins empty
            for chunk in chunks():
                found.drive.append(found.path, chunk)

        return append

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Make a directory, or a drive."""
        path = self._strip_protocol(path)

        def make(resolve: ResolvePath) -> None:
            found = resolve(path)
            # The root of a drive is a directory to make unless the drive exists.
            if found is None or (found.path == "/" and _drive_exists(found)):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            if found.path == "/":
                found.drive.ensure()
            elif create_parents:
                found.drive.ensure()
                found.drive.makedirs(found.path, exist_ok=False)
            else:
                found.drive.mkdir(found.path)

        self._apply(path, make)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory and the missing ones above it."""
        path = self._strip_protocol(path)

        def make(resolve: ResolvePath) -> None:
            found = resolve(path)
            there = found is None or (found.path == "/" and _drive_exists(found))
            if there and not exist_ok:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            if found is not None:
                found.drive.ensure()
                if found.path != "/":
                    found.drive.makedirs(found.path, exist_ok=exist_ok)

        self._apply(path, make)

    def rmdir(self, path: str) -> None:
        """Delete an empty directory."""
        path = self._strip_protocol(path)
        if not self.isdir(path):
            code = errno.ENOTDIR if self.exists(path) else errno.ENOENT
            raise OSError(code, os.strerror(code), path)
        self._apply(path, lambda resolve: _delete(resolve, path))

    def rm_file(self, path: str) -> None:
        """Delete a file."""
        path = self._strip_protocol(path)
        if self.isdir(path):  # as `os.remove`
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._apply(path, lambda resolve: _delete(resolve, path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete files, and with `recursive` directories and their contents, in one commit."""
        if maxdepth is not None:  # fsspec walks the depth itself
            with self._batched("a removal"):
                super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        operations: list[DriveOperation] = []
        for one in self.expand_path(path):
            if self.isdir(one) and not recursive:  # refused before the first is deleted
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), one)
            operations.append(partial(_remove, one))
        self._apply(str(path), *operations)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy a file, sharing its content; for a directory, make one."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.info(source)["type"] == "directory":
            self.makedirs(target, exist_ok=True)
            return

        def copy(resolve: ResolvePath) -> None:
            found = _in_a_drive(resolve, source)
            self._write(target, found.drive.content(found.path), "wb")(resolve)

        self._apply(source, copy)

    def copy(self, path1: Any, path2: Any, recursive: bool = False, **kwargs: Any) -> None:
        """Copy files or a tree, in one commit."""
        with self._batched(str(path1)):
            super().copy(path1, path2, recursive=recursive, **kwargs)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, **kwargs: Any) -> None:
        """Move a file, or a directory with its contents, in one commit; files are replaced."""
        one = isinstance(path1, str) and isinstance(path2, str) and not kwargs.get("maxdepth")
        # fsspec itself moves patterns and lists of paths.
        if not one or (has_magic(path1) and not self.exists(path1)):
            with self._batched("a move"):
                super().mv(path1, path2, recursive=recursive, **kwargs)
            return
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        self.info(source)  # a missing source is an error before anything moves
        # Into a directory that exists, as `mv` does.
        if path2.endswith("/") or self.isdir(target):
            target = f"{target}/{source.rsplit('/', 1)[-1]}"

        def move(resolve: ResolvePath) -> None:
            self._make_parents(resolve, target)
            old, new = _in_a_drive(resolve, source), _in_a_drive(resolve, target)
            # Within a drive a move keeps the entry; between drives it is a copy and a deletion.
            if old.drive_name == new.drive_name:
                old.drive.move(old.path, new.path)
            else:
                copy_tree(old.drive, old.path, new.drive, new.path)
                old.drive.remove_tree(old.path)

        self._apply(source, move)


def _in_a_drive(resolve: ResolvePath, path: str) -> ResolvedPath:
    found = resolve(path)
    if found is None:
        raise UsageError(f"a path begins with the name of a drive: dlfs://drive/path, got {path!r}")
    return found


def _drive_exists(found: ResolvedPath) -> bool:
    return found.drive.cursor.get() is not None


def _delete(resolve: ResolvePath, path: str) -> None:
    found = _in_a_drive(resolve, path)
    found.drive.delete(found.path)


def _remove(path: str, resolve: ResolvePath) -> None:
    found = _in_a_drive(resolve, path)
    if found.path != "/":  # a drive is never deleted, so its root only loses its entries
        found.drive.remove_tree(found.path)
        return
    for name in found.drive.list("/"):
        found.drive.remove_tree(f"/{name}")
