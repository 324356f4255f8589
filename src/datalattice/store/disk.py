"""Disk: the only way from the store to files, folders, locks and the index's tables.

The store relies on two guarantees of a disk: a write is durable after the `sync` of its file, and a
name after `sync_folder` of its folder. Before that a power failure may keep any part of the writes,
in any order. `RealDisk` is the operating system. The testing package has a simulated disk that
guarantees this and nothing more.

Source: POSIX `fsync`, `rename`; docs/store.md "Commit order".
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Final, Protocol

from datalattice.crypto import sha3_256
from datalattice.engine import DATA_FILE, Engine, JournalFile, LmdbEngine, boot_id
from datalattice.errors import StoreError, StoreFailed, StoreFull
from datalattice.store.lockfile import ContentLock, FileLock

FOLDER_MODE = 0o700
FILE_MODE = 0o600
"""Folders and files of a store are for its user alone."""

_FULL_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ZEROS_BYTES = 1 << 20
_MACHINE_ID = Path("/etc/machine-id")

AHEAD_BYTES: Final = 1 << 20
"""A write of this length or more begins to go to the disk at once, so that its sync waits less."""

_BEGIN_TO_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE, which waits for nothing

_PARTS_MAX: Final = 1_024
"""Most parts of one write: IOV_MAX of Linux, macOS and the BSDs."""

_pwritev: Final = getattr(os, "pwritev", None)

_CURRENT_FOLDER: Final = -100  # AT_FDCWD
_BIRTH_TIME: Final = 0x800  # STATX_BTIME, in the request and in the mask of the answer
_FOUND: Final = struct.Struct("<I")  # stx_mask
_TIME: Final = struct.Struct("@qI")  # stx_btime: seconds, nanoseconds
_TIME_OFFSET: Final = 80
_ANSWER_BYTES: Final = 256  # of struct statx


class DiskFile(JournalFile, Protocol):
    """An open file that can also be truncated. Every method may raise OSError."""

    def begin_write(self, offset: int, parts: list[bytes]) -> None:
        """Write parts one after another from `offset` on; may return before they are written.

        Later calls wait until they are written. If that fails, each later call except `close` and
        `begin_write` raises the error.
        """

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""


class FileView(Protocol):
    """A file that is open for reading as long as the view is referenced."""

    def read(self, count: int, offset: int, /) -> bytes:
        """Return up to `count` bytes from `offset`, fewer only at the end of the file."""

    def is_removed(self) -> bool:
        """Return whether the file was deleted."""


class Lock(Protocol):
    """A held lock."""

    def release(self) -> None:
        """Release the lock. Releasing twice is allowed."""


class LockFile(Lock, Protocol):
    """The held lock of a lock file, which can be released for a time."""

    def lend(self) -> None:
        """Release the lock until `retake`. Doing so twice is allowed."""

    def retake(self) -> bool:
        """Take the lock again; return whether no other process had it meanwhile.

        Raises: StoreLocked: another process has it. UsageError: the parent process lent it.
        """

    def is_free(self) -> bool:
        """Return whether no other process has it. It was lent, and stays so."""

    def raise_generation(self) -> None:
        """Make readers notice a change of the store (`log.locking`); the lock is held."""


class Disk(Protocol):
    """Files and folders by path. Every method may raise OSError."""

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted."""

    def create_folder(self, path: str) -> None:
        """Make a folder, and those above it, durably; it may exist already."""

    def open(self, path: str, *, create: bool = False, write: bool = False) -> DiskFile:
        """Open a file; `create` makes a new, empty one."""

    def view(self, path: str) -> FileView:
        """Open a file for many small reads."""

    def replace(self, source: str, target: str) -> None:
        """Rename `source` to `target` in one step, replacing a file there."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder with its content; it may be missing."""

    def sync_folder(self, path: str) -> None:
        """Return when the names in a folder are durable."""

    def free_bytes(self, path: str) -> int:
        """Return how many bytes the disk with this folder can still take."""

    def allocate(self, path: str, size: int) -> None:
        """Make a file of `size` bytes that occupies the space; its content is undefined."""

    def boot_id(self) -> str:
        """Return a word that changes when unsynced writes may have been lost; "": not known."""

    def place(self, path: str) -> str:
        """Return a word that differs for a copy of the folder, and after a move to another disk."""

    def lock(self, path: str) -> LockFile:
        """Take the lock file.

        Raises: StoreLocked: it is held; the text names the process.
        """

    def lock_contents(self, path: str) -> Lock:
        """Take the lock on a file's own bytes, as other programs that write to it do.

        Raises: StoreLocked: it is held.
        """

    def engine(self, path: str, tables: Iterable[str], *, read_only: bool) -> Engine:
        """Open tables that are durable only after their `sync`."""

    def engine_identity(self, path: str) -> str:
        """Return a word that changes when the tables are replaced or copied; "" for none."""

    def engine_bytes(self, path: str) -> int:
        """Return the size of the tables' file, 0 for none; it never shrinks by itself."""


def write_error(error: OSError, where: object) -> StoreError:
    """Return the error of the store for a failed write or sync."""
    reason = error.strerror or str(error)
    # Full disk, quota, largest file: the operator has to make room.
    if error.errno in _FULL_CODES:
        return StoreFull(f"{where}: no room left on the disk ({reason})")
    return StoreFailed(f"{where}: cannot be written ({reason})")


class RealFile:
    """A file of the operating system."""

    __slots__ = ("_begun", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._begun: _BegunWrite | None = None  # the last one

    def read(self, offset: int, count: int) -> bytes:
        self._wait()
        data = os.pread(self._fd, count, offset)
        # A read may return fewer bytes than asked for before the end of the file.
        while len(data) < count:
            more = os.pread(self._fd, count - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, offset: int, data: bytes) -> None:
        if self._begun is not None:
            self._wait()
        self._write(offset, data)
        if len(data) >= AHEAD_BYTES:
            self._write_ahead(offset, len(data))

    def _write(self, offset: int, data: bytes) -> None:
        done = os.pwrite(self._fd, data, offset)
        # A write may take fewer bytes than given, on a nearly full disk for example.
        while done < len(data):
            done += os.pwrite(self._fd, memoryview(data)[done:], offset + done)

    def _write_ahead(self, offset: int, size: int) -> None:
        if size >= AHEAD_BYTES and _write_ahead is not None:
            # Only a hint: errors of this writing are reported by the sync (man 2 sync_file_range).
            _write_ahead(self._fd, offset, size, _BEGIN_TO_WRITE)

    def begin_write(self, offset: int, parts: list[bytes]) -> None:
        write = partial(self._write_parts, offset, parts)
        try:
            self._begun = _BegunWrite(write, self._begun)
        except RuntimeError:  # the system starts no more threads
            self._wait()
            write()

    def _write_parts(self, start: int, parts: list[bytes]) -> None:
        offset = start
        for first in range(0, len(parts), _PARTS_MAX):
            batch = parts[first : first + _PARTS_MAX]
            size = sum(map(len, batch))
            done = 0 if _pwritev is None else _pwritev(self._fd, batch, offset)
            if done < size:
                self._write(offset + done, b"".join(batch)[done:])
            offset += size
        self._write_ahead(start, offset - start)

    def _wait(self) -> None:
        """Wait for begun writes. Raises: their error, at each call."""
        # Not cleared: a thread that syncs and one that writes may both wait for it.
        begun = self._begun
        if begun is not None:
            begun.wait()

    def sync(self) -> None:
        self._wait()
        # fdatasync: the data and the length of the file, without its times.
        os.fdatasync(self._fd)

    def size(self) -> int:
        self._wait()
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        self._wait()
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        """Close the file once begun writes have ended; a failed one was never reported durable."""
        if self._begun is not None:
            # Otherwise the begun write could reach another file, opened under the same number.
            self._begun.end()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _BegunWrite:
    """A write in a thread of its own, after the one that was begun before it."""

    __slots__ = ("_failure", "_thread")

    def __init__(self, write: Callable[[], None], before: _BegunWrite | None) -> None:
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(write, before), name="disk")
        self._thread.start()

    def _run(self, write: Callable[[], None], before: _BegunWrite | None) -> None:
        try:
            if before is not None:
                before.wait()  # if it failed, nothing may follow it
            write()
        except BaseException as error:  # noqa: BLE001 - raised by every `wait`
            self._failure = error

    def wait(self) -> None:
        """Return once it is written. Raises: what the write, or one before it, raised."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Return once it was tried."""
        self._thread.join()


class RealView:
    """A file of the operating system that is open as long as the view is referenced."""

    __slots__ = ("_fd", "read")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.read = partial(os.pread, fd)

    def is_removed(self) -> bool:
        """Return whether the file has no name any more."""
        # A deleted file that is open has no link left.
        return os.fstat(self._fd).st_nlink == 0

    def __del__(self) -> None:
        # Closed only here: another thread may be reading, and the kernel reuses descriptor numbers.
        os.close(self._fd)


class RealDisk:
    """The operating system's files."""

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def names(self, folder: str) -> list[str]:
        return sorted(entry.name for entry in Path(folder).iterdir())

    def create_folder(self, path: str) -> None:
        """Make a folder, and those above it, durably; it may exist already.

        Only the user who makes it can enter it, and read its files.
        """
        folder = Path(path)
        if folder.is_dir():
            return
        self.create_folder(str(folder.parent))
        # Parents first, each durable: a name is durable only if the folder above it is.
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        self.sync_folder(str(folder.parent))

    def open(self, path: str, *, create: bool = False, write: bool = False) -> DiskFile:
        flags = os.O_RDWR if write or create else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | os.O_TRUNC
        # O_CLOEXEC: programs that this process starts must not keep files open.
        return RealFile(os.open(path, flags | os.O_CLOEXEC, FILE_MODE))

    def view(self, path: str) -> FileView:
        return RealView(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def replace(self, source: str, target: str) -> None:
        Path(source).replace(target)

    def remove(self, path: str) -> None:
        Path(path).unlink()

    def remove_folder(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_folder(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # POSIX: a new name is durable after fsync of its folder.
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> int:
        """Return how many bytes this user can still write to the file system of a folder."""
        status = os.statvfs(path)
        # f_bavail: without the blocks reserved for root.
        return status.f_bavail * status.f_frsize

    def allocate(self, path: str, size: int) -> None:
        """Make a file of `size` bytes whose space the file system reserves."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            if hasattr(os, "posix_fallocate"):
                # Reserves blocks; a sparse file would occupy nothing.
                os.posix_fallocate(fd, 0, size)
            else:
                file = RealFile(fd)
                for offset in range(0, size, _ZEROS_BYTES):
                    file.write(offset, bytes(min(_ZEROS_BYTES, size - offset)))
        finally:
            os.close(fd)

    def boot_id(self) -> str:
        """Return the kernel's id of this boot, "" where it has none."""
        return boot_id().decode("ascii")

    def place(self, path: str) -> str:
        """Return the machine, the file system, the inode and its time of birth.

        The id of a file system is stored on the disk, so a restart does not change it. Without an
        id the number of the device is used, which a restart may change. A folder that is removed
        and restored may get the number of its old inode, but not its time of birth.
        """
        found = Path(path).stat()
        system = os.statvfs(path).f_fsid or found.st_dev
        return f"{_machine()} {system} {found.st_ino} {birth_time(path)}"

    def lock(self, path: str) -> LockFile:
        return FileLock(path)

    def lock_contents(self, path: str) -> Lock:
        """Take the lock on a file's own bytes.

        Raises: StoreLocked: it is held.
        """
        return ContentLock(path)

    def engine(self, path: str, tables: Iterable[str], *, read_only: bool) -> Engine:
        return LmdbEngine(path, tables, read_only=read_only, durable=False)

    def engine_identity(self, path: str) -> str:
        """Return device and number of the tables' file."""
        try:
            status = Path(path, DATA_FILE).stat()
        except FileNotFoundError:
            return ""
        # A copy of the tables is another file, and may lag behind the log.
        return f"{status.st_dev}:{status.st_ino}"

    def engine_bytes(self, path: str) -> int:
        """Return the size of the tables' file, 0 for none."""
        try:
            return Path(path, DATA_FILE).stat().st_size
        except FileNotFoundError:
            return 0


@cache
def _machine() -> str:
    """Return a word for this machine, "-" if it has none."""
    try:
        # Hashed, because a folder may be copied and the id must not leave this machine
        # (machine-id(5)).
        return sha3_256(b"datalattice place " + _MACHINE_ID.read_bytes()).hex()[:32]
    except OSError:
        return "-"


def _c_function(name: str, *arguments: type) -> Callable[..., int] | None:
    """Return a function of the C library, None if the system has none of this name."""
    try:
        found = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    found.argtypes = list(arguments)
    made: Callable[..., int] = found
    return made


_write_ahead: Final = _c_function(
    "sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
)
_statx: Final = _c_function(
    "statx", ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p
)


def birth_time(path: str) -> str:
    """Return when a file or folder was created, as a word; "" if the system does not know.

    Copying and restoring cannot keep it. Source: man 2 statx.
    """
    made = getattr(Path(path).stat(), "st_birthtime", None)
    return str(made) if made is not None else _from_c_library(path)


def _from_c_library(path: str) -> str:
    if _statx is None:
        return ""
    answer = ctypes.create_string_buffer(_ANSWER_BYTES)
    failed = _statx(_CURRENT_FOLDER, os.fsencode(path), 0, _BIRTH_TIME, answer)
    (found,) = _FOUND.unpack_from(answer.raw)
    # The mask says which fields the file system filled in.
    if failed or not found & _BIRTH_TIME:
        return ""
    seconds, nanoseconds = _TIME.unpack_from(answer.raw, _TIME_OFFSET)
    return f"{seconds}.{nanoseconds:09}"


class LastUse:
    """Calls the functions in `held` when it is garbage collected, in the process that made it.

    Not in `reader`, which is compiled: compiled classes have no `__del__`.
    """

    def __init__(self, held: list[Callable[[], None]]) -> None:
        self._held: Final = held
        self._pid: Final = os.getpid()

    def __del__(self) -> None:
        if self._pid != os.getpid():
            return  # a forked child must not close its parent's tables
        for close in self._held:
            with contextlib.suppress(StoreError):  # the store was only read: nothing is lost
                close()
