"""The folder for temporary files of a driver's JVM.

Spark puts sockets, shuffled data and native libraries into Java's temporary folder, and leaves them
there if it is killed. So each driver gives its JVM a folder of its own, locks it, and removes it
with the session. If a driver is killed, the system releases the lock. The next driver on this
machine removes all unlocked folders.

The path is short, because the path of a Unix socket in it is limited to about a hundred bytes.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from datalattice.errors import UsageError
from datalattice.pipeline.spark.java import private_folder

FOLDER_CHARS_MAX: Final = 60
"""Longest path of the folder; with `/.<uuid>.sock` appended it fits every system's limit."""

_PREFIX: Final = "spark-"
_LOCK: Final = "lock"
_MODE: Final = 0o600

# Spark splits Java's options at blanks, and parts of it read them as UTF-8.
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/-]+")


@dataclass(frozen=True, slots=True)
class _ScratchFolder:
    path: Path
    lock: int
    """Descriptor that holds the lock; the system releases it when the process ends."""


_own: dict[int, _ScratchFolder] = {}
"""The folder of this process, by process id, so that a fork makes its own."""


def scratch_folder() -> Path | None:
    """Return the folder for this process's JVM, made at the first call.

    None: no private folder with a short path is available; Java then uses its default.
    Raises: UsageError: no temporary folder is writable; Spark does not start without one.
    """
    found = _own.get(os.getpid())
    # If a cleaner of temporary files has removed it, a new one is made.
    if found is not None and found.path.is_dir():
        return found.path
    try:
        given = tempfile.gettempdir()
    except OSError as error:
        raise UsageError(
            f"Spark needs a folder for temporary files ({error.strerror}): set TMPDIR to a "
            "writable folder with free space"
        ) from None
    for base in dict.fromkeys((given, "/tmp")):  # noqa: S108 - checked for its owner
        try:
            root = private_folder(Path(base))
            # A Unix socket's path has about a hundred bytes at most.
            room = len(str(root / _PREFIX)) + len("12345678") <= FOLDER_CHARS_MAX
            if room and _PLAIN.fullmatch(str(root)):
                _own[os.getpid()] = _made(root)
                return _own[os.getpid()].path
        except OSError:
            continue  # not writable: try the other one
    return None


def remove_scratch() -> None:
    """Remove this process's folder; its JVM must have ended."""
    found = _own.pop(os.getpid(), None)
    if found is not None:
        shutil.rmtree(found.path, ignore_errors=True)
        os.close(found.lock)


def _made(root: Path) -> _ScratchFolder:
    # Only one process at a time does this: a new folder is not locked yet, and another process
    # would take it for abandoned.
    turn = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT, _MODE)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        _remove_abandoned(root)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, _MODE)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _ScratchFolder(path, lock)
    finally:
        os.close(turn)


def _remove_abandoned(root: Path) -> None:
    for path in root.glob(f"{_PREFIX}*"):
        try:
            file = (path / _LOCK).open("rb")
        except FileNotFoundError:  # the owner was killed before it made the lock, or at removal
            shutil.rmtree(path, ignore_errors=True)
            continue
        except OSError:  # not a session's folder
            continue
        with closing(file):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # the owner is alive
            shutil.rmtree(path, ignore_errors=True)
