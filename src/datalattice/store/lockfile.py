"""Lock file: one writer at a time, and an error that names it.

The lock is the kernel's (`flock`). The kernel releases it when its holder ends, so a stale lock
never has to be removed. The text of the file is the process id, its start time, and how many locks
that process had taken before. The error message uses it. Every process that takes the lock writes
its own text. So a holder that takes the lock again learns whether another process had it meanwhile.

Source: man 2 flock; docs/store.md "Sharing the lock".
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Callable
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Final

from datalattice.errors import StoreError, StoreLocked, UsageError

LOCK_MODE: Final = 0o600

TEXT_BYTES: Final = 60
"""Length of the text of the file: three numbers of at most 19 digits, and blanks."""

GENERATION_OFFSET: Final = 64
MARK_BYTES: Final = 72
"""Length of the text and the generation (`log.locking`)."""

_TEXT_WORDS: Final = 3

_taken: Final = count(1)
_held: Final[set[int]] = set()


def _drop_inherited() -> None:
    # A forked child inherits the open file, and with it the lock: it would keep the store locked
    # after the parent's death.
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_drop_inherited)


def lock_mark(text: bytes, generation: int) -> bytes:
    """Return the first bytes of a lock file."""
    # [text of the holder, padded to 64 bytes][generation 8].
    return text.ljust(GENERATION_OFFSET) + generation.to_bytes(8, "big")


def is_lock_mark(data: bytes) -> bool:
    """Return whether the holder of a lock could write its text and a generation."""
    words = data[:GENERATION_OFFSET].split()
    return len(data) == MARK_BYTES and len(words) == _TEXT_WORDS


class FileLock:
    """The held lock of one file; taken when the object is made."""

    __slots__ = ("_fd", "_generation", "_path", "_pid", "_text")

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._pid = os.getpid()
        self._text = b""
        self._generation = 0
        self._open()
        try:
            self._take()
        except BaseException:
            self.release()
            raise
        self._sign()

    def _open(self) -> None:
        self._fd = _opened(self._path)
        _held.add(self._fd)

    def _take(self) -> None:
        try:
            # Without waiting: `log.locking` waits.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _describe(os.pread(self._fd, 200, 0))
            raise StoreLocked(
                f"{Path(self._path).parent}: another process writes to this store ({holder}); "
                "stop it or wait until it ends; reading beside it works (read_only=True)"
            ) from None

    def _sign(self) -> None:
        # Padded, to overwrite a longer text: truncating the file takes milliseconds.
        text = f"{os.getpid()} {_start_time(os.getpid())} {next(_taken)}".ljust(TEXT_BYTES) + "\n"
        self._text = text.encode()
        self._generation = 0
        self._write(lock_mark(self._text, 0), 0)

    def _write(self, data: bytes, offset: int) -> None:
        try:
            # Not synced: it concerns running processes only.
            os.pwrite(self._fd, data, offset)
        except OSError:  # a full disk: others cannot name the holder, and readers read the log
            self._text = b""
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)

    def raise_generation(self) -> None:
        # A forked child must not write into the lock of its parent.
        if self._text and self._pid == os.getpid():
            self._generation += 1
            self._write(self._generation.to_bytes(8, "big"), GENERATION_OFFSET)

    def lend(self) -> None:
        if self._fd >= 0 and self._pid == os.getpid():
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def retake(self) -> bool:
        if self._pid != os.getpid():
            raise UsageError(f"{self._path}: the lock of another process, from before a fork")
        if self._fd < 0:
            self._open()
        self._take()
        try:
            # If the file was deleted, its lock does not exclude a process that opens the new file.
            if not self._is_named():  # the folder was replaced
                self.release()
                self._open()
                self._text = b""
                self._take()
            # Still our text: no other process took the lock since.
            if self._text and os.pread(self._fd, TEXT_BYTES + 1, 0) == self._text:
                return True
            self._sign()
        except BaseException:
            self.lend()
            raise
        return False

    def is_free(self) -> bool:
        # Of a child process it is the parent's, which it must not release.
        if self._pid != os.getpid():
            raise UsageError(f"{self._path}: the lock of another process, from before a fork")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    def _is_named(self) -> bool:
        """Return whether the file that is locked is the one at the path."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.lstat(self._path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0 and self._pid == os.getpid():
            _close(self._fd, lambda: fcntl.flock(self._fd, fcntl.LOCK_UN))
        self._fd = -1


def _close(fd: int, unlock: Callable[[], object]) -> None:
    """Release a lock with its descriptor."""
    _held.discard(fd)
    # A child that another thread forks just now has the descriptor too: closing it here alone
    # would leave the lock with the child.
    with contextlib.suppress(OSError):
        unlock()
    os.close(fd)


def _opened(path: str) -> int:
    """Open a lock file, but no link: writing would damage the file that it points to."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, LOCK_MODE)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise StoreError(
            f"{path} is a link, and a lock is a file of its own; remove the link"
        ) from error


class ContentLock:
    """The held lock on all bytes of a file that other programs lock too; nothing is written.

    Java and other programs take POSIX record locks. A lock of an open file description (OFD)
    excludes those, and also other uses of the file in this process; not every system has it.
    """

    __slots__ = ("_fd", "_pid")

    def __init__(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if hasattr(fcntl, "F_OFD_SETLK"):
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole(fcntl.F_WRLCK))
            else:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(fd)
            raise StoreLocked(
                f"{path}: another program has this file open for writing; "
                "stop it, or open with read_only=True"
            ) from None
        except BaseException:
            os.close(fd)
            raise
        _held.add(fd)
        self._fd = fd
        self._pid = os.getpid()

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0 and self._pid == os.getpid():
            _close(self._fd, self._unlock)
        self._fd = -1

    def _unlock(self) -> None:
        if hasattr(fcntl, "F_OFD_SETLK"):
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _whole(fcntl.F_UNLCK))


def _whole(kind: int) -> bytes:
    """Return the system's description of a lock of this kind on all bytes of a file."""
    # struct flock: type, whence, start, length (0: to the end), pid.
    return struct.pack("hhqqi", kind, os.SEEK_SET, 0, 0, 0)


@lru_cache(maxsize=1)  # of a forked child anew
def _start_time(pid: int) -> str:
    """Return a process's start, in clock ticks since the boot; "-" where it is unknown."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text("ascii")
    except OSError:
        return "-"
    return status.rpartition(")")[2].split()[19]


def _describe(text: bytes) -> str:
    words = text.decode("ascii", "replace").split()
    if not words or not words[0].isdigit():
        return "process not known"
    if len(words) > 1 and words[1].isdigit():
        return f"process {words[0]}, started {words[1]} ticks after boot"
    return f"process {words[0]}"
