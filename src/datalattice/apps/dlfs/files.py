"""Files: file objects on the files of a drive.

Source: CAD028 "Operations"; docs/dlfs.md "File objects".
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, Final, Literal, Protocol, cast, get_args

from datalattice.apps.dlfs.node import (
    FileContent,
    PathLike,
)
from datalattice.cells import Blob
from datalattice.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

FILE_BUFFER_BYTES: Final = 1 << 20  # each write is a signed update: few large ones
"""Bytes that a file object buffers; each write of a buffer is one update of the drive."""

BinaryMode = Literal["rb", "wb", "ab", "xb", "r+b", "w+b", "a+b", "x+b", "rb+", "wb+", "ab+", "xb+"]
TextMode = Literal[
    "r", "w", "a", "x", "r+", "w+", "a+", "x+", "rt", "wt", "at", "xt", "r+t", "w+t", "a+t", "x+t"
]

_MODES: Final[tuple[str, ...]] = (*get_args(BinaryMode)[:8], *get_args(TextMode)[:8])
"""The accepted modes, each in one spelling."""


class FileOperations(Protocol):
    """The operations of a drive that a file object uses."""

    def content(self, path: PathLike) -> FileContent:
        """Return the data of a file."""
        ...

    def create_file(self, path: PathLike) -> None:
        """Make an empty file."""
        ...

    def append(self, path: PathLike, data: bytes) -> None:
        """Append bytes to a file, which is made if missing."""
        ...

    def write(self, path: PathLike, data: bytes) -> None:
        """Write the content of a file."""
        ...

    def write_at(self, path: PathLike, position: int, data: bytes) -> None:
        """Write bytes at a position."""
        ...

    def resize(self, path: PathLike, size: int) -> None:
        """Cut or extend a file."""
        ...


class RawFile(io.RawIOBase):
    """A file of a drive: each write is one update of the drive; each read sees the latest content.

    A file opened only for reading keeps the content at the time it was opened.
    """

    def __init__(
        self, drive: FileOperations, path: PathLike, *, reads: bool, writes: bool, appends: bool
    ) -> None:
        super().__init__()
        self._drive = drive
        self._path = path
        self._reads = reads
        self._writes = writes
        self._appends = appends
        self._held: FileContent | None = None
        content = drive.content(path)
        if not writes:
            self._held = content  # a reader's view does not change under it
        self._position = len(content) if appends else 0

    @property
    def name(self) -> str:
        """The path given to `open`."""
        return str(self._path)

    def readable(self) -> bool:
        """Return whether it was opened for reading."""
        return self._reads

    def writable(self) -> bool:
        """Return whether it was opened for writing."""
        return self._writes

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read bytes at the position into `buffer`; return how many were read."""
        self._need(self._reads, "reading")
        view = memoryview(buffer).cast("B")
        data = self._content()
        start = self._position
        stop = min(start + len(view), len(data))
        if start >= stop:  # "at or past end: end-of-file"
            return 0
        part = data.read(start, stop) if isinstance(data, Blob) else data[start:stop]
        view[: len(part)] = part
        self._position = start + len(part)
        return len(part)

    def write(self, data: ReadableBuffer) -> int:
        """Write bytes at the position, or at the end of a file opened for appending."""
        self._need(self._writes, "writing")
        part = bytes(data)
        if self._appends:
            self._drive.append(self._path, part)
            # The end may have moved: another writer appends, too.
            self._position = len(self._content())
        else:
            self._drive.write_at(self._path, self._position, part)
            self._position += len(part)
        return len(part)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position, which may be past the end; return it."""
        self._check_open()
        origins: dict[int, Callable[[], int]] = {
            io.SEEK_SET: lambda: 0,
            io.SEEK_CUR: lambda: self._position,
            # Asked at the call, because other writers may have moved the end.
            io.SEEK_END: lambda: len(self._content()),
        }
        if whence not in origins:
            raise UsageError(f"`whence` is not 0, 1 or 2: {whence!r}")
        position = origins[whence]() + offset
        if position < 0:  # a seek beyond the end is allowed, before the start not
            raise UsageError(f"the position is negative: {position}")
        self._position = position
        return position

    def tell(self) -> int:
        """Return the position."""
        self._check_open()
        return self._position

    def truncate(self, size: int | None = None) -> int:
        """Make the file `size` bytes long, by default up to the position; append zeros if it grows.

        The position stays.
        """
        self._need(self._writes, "writing")
        wanted = self._position if size is None else size
        self._drive.resize(self._path, wanted)
        return wanted

    def _content(self) -> FileContent:
        held = self._held
        return self._drive.content(self._path) if held is None else held

    def _check_open(self) -> None:
        if self.closed:
            raise UsageError("the file is closed")

    def _need(self, allowed: bool, what: str) -> None:
        self._check_open()
        if not allowed:
            raise io.UnsupportedOperation(f"{self.name} was not opened for {what}")


def open_file(
    drive: FileOperations,
    path: PathLike,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> IO[Any]:
    """Return a file object on the file at `path`; `buffering` 0 gives an unbuffered binary one."""
    is_text = "b" not in mode
    spelled = sorted(mode.replace("t", "", 1) if is_text else mode)  # "rb+" and "r+b" are one mode
    known = {tuple(sorted(one)): one for one in _MODES}.get(tuple(spelled))
    if known is None:
        raise UsageError(f"`mode` is not one of {', '.join(_MODES)}: {mode!r}")
    # 1 is line buffering, which only text streams have.
    if buffering < -1 or buffering == 1 or (is_text and buffering == 0):
        raise UsageError(
            f"`buffering` is not 0 (binary files), -1 or a size of 2 or more: {buffering}"
        )
    if not is_text and (encoding or errors or newline):
        raise UsageError(f"`encoding`, `errors` and `newline` need a text mode, got {mode!r}")
    binary = _open_binary(drive, path, known[0], both="+" in known, buffering=buffering)
    if not is_text:
        return binary
    # Written line ends stay as given: content must not depend on the machine that wrote it.
    ends = "\n" if newline is None and known != "r" else newline
    return io.TextIOWrapper(cast("io.BufferedRandom", binary), encoding or "utf-8", errors, ends)


def _open_binary(
    drive: FileOperations, path: PathLike, kind: str, *, both: bool, buffering: int
) -> IO[bytes]:
    if kind == "x":
        drive.create_file(path)
    elif kind == "w":
        drive.write(path, b"")
    elif kind == "a":  # "TRUNCATE_EXISTING cuts to 0", at the opening, not at the first write
        drive.append(path, b"")
    raw = RawFile(
        drive,
        path,
        reads=kind == "r" or both,
        writes=kind != "r" or both,
        appends=kind == "a",
    )
    if buffering == 0:
        return cast("IO[bytes]", raw)
    size = FILE_BUFFER_BYTES if buffering == -1 else buffering
    if both:
        return io.BufferedRandom(raw, size)
    if raw.readable():
        return io.BufferedReader(raw, size)
    return io.BufferedWriter(raw, size)
