"""Scratch: the folder in which the JVM of a driver keeps its temporary files.

Spark puts sockets, shuffled data and native libraries below the temporary folder of Java, and
removes them when it ends in order. One that is killed leaves all of it. So each driver gives its
JVM a folder of its own, which goes when the session does. A driver that was killed leaves its
folder; the next one on this machine removes it, as nobody holds the lock of it any more.

The path is short: the name of a Unix socket in it has room for about a hundred bytes only.
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
from datalattice.pipeline.java import private_folder

FOLDER_CHARS_MAX: Final = 60
"""Longest path of a folder: `/.<uuid>.sock` fits behind it on every system."""

_PREFIX: Final = "spark-"
_LOCK: Final = "lock"
_MODE: Final = 0o600

# What stands among Java's options is split at blanks, and read as UTF-8 by some.
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/-]+")


@dataclass(frozen=True, slots=True)
class _Folder:
    path: Path
    lock: int
    """The descriptor that holds the lock; a process that ends closes it, however it ends."""


_own: dict[int, _Folder] = {}
"""That of this process, by its number: a fork has none. Its JVM may outlive a session."""


def scratch_folder() -> Path | None:
    """Return the folder for the JVM of this process, made at the first call.

    None: none is this user's own, or their paths are too long; Java's own is used then.
    Raises: UsageError: no temporary folder can be written to: Spark does not start without.
    """
    found = _own.get(os.getpid())
    if found is not None and found.path.is_dir():
        return found.path
    try:
        given = tempfile.gettempdir()
    except OSError as error:
        raise UsageError(
            f"Spark needs a folder for temporary files ({error.strerror}): set TMPDIR to one that "
            "can be written to, and has room"
        ) from None
    for base in dict.fromkeys((given, "/tmp")):  # noqa: S108 - checked for its owner
        try:
            root = private_folder(Path(base))
            room = len(str(root / _PREFIX)) + len("12345678") <= FOLDER_CHARS_MAX
            if room and _PLAIN.fullmatch(str(root)):
                _own[os.getpid()] = _made(root)
                return _own[os.getpid()].path
        except OSError:
            continue  # not to be written to: the other one, or none
    return None


def remove_scratch() -> None:
    """Remove the folder of this process, once its JVM has ended."""
    found = _own.pop(os.getpid(), None)
    if found is not None:
        shutil.rmtree(found.path, ignore_errors=True)
        os.close(found.lock)


def _made(root: Path) -> _Folder:
    # One at a time: a folder that is not locked yet looks like one that was left.
    turn = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT, _MODE)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        _remove_abandoned(root)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, _MODE)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _Folder(path, lock)
    finally:
        os.close(turn)


def _remove_abandoned(root: Path) -> None:
    for path in root.glob(f"{_PREFIX}*"):
        try:
            file = (path / _LOCK).open("rb")
        except FileNotFoundError:  # its owner was killed before it had one, or while it removed it
            shutil.rmtree(path, ignore_errors=True)
            continue
        except OSError:  # no folder of a session: it must not keep this one from its own
            continue
        with closing(file):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # its owner is there
            shutil.rmtree(path, ignore_errors=True)
