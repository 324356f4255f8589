"""Locking: waiting for a store's lock, and how readers notice a commit without reading the log.

A store has two lock files. The writer holds `lock`. The first process that waits for `lock` holds
`turn.lock`; the others wait for `turn.lock`. So after each write the writer tries to take
`turn.lock`, and learns whether another process waits (`turn`).

Bytes 64 to 71 of `lock` are the *generation*. The writer increments it after each commit, before
the commit returns. A process that takes the lock writes its own text and starts at 0. So if the
first 72 bytes of the file are unchanged, no commit has returned in between.

Source: docs/store.md "Sharing the lock", "Readers".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from datalattice.errors import StoreLocked
from datalattice.store.disk import Disk, FileView, LockFile
from datalattice.store.lockfile import MARK_BYTES, is_lock_mark
from datalattice.store.log.folder import TURN_FILE

T = TypeVar("T")

_POLL_S: Final = 0.001
"""Pause between two attempts to take a lock."""

SLOW_POLL_S: Final = 0.01
"""The pause after `SLOW_AFTER_S`: a holder that keeps the lock that long does not hand over."""

SLOW_AFTER_S: Final = 2.0

RECHECK_S: Final = 0.1
"""After this time a reader reads the log even if the generation is unchanged: the folder may have
been renamed, or a writer may have been killed between its write and the increment."""


def wait_for_lock(disk: Disk, folder: str, attempt: Callable[[], T], wait_s: float) -> T:
    """Call `attempt`, which takes the lock of a store, until it succeeds, and return its result.

    With `wait_s` 0 it is called once, without regard to other waiting processes.
    Raises: StoreLocked: another process held the lock for `wait_s`; the text names the process.
    """
    if wait_s <= 0:
        return attempt()
    begun_s = time.monotonic()
    front: LockFile | None = None
    try:
        while True:
            if front is None:
                try:
                    front = disk.lock(f"{folder}/{TURN_FILE}")
                except StoreLocked:
                    front = None
            waited_s = time.monotonic() - begun_s
            # The last attempt is made without `turn.lock`: the holder may have released just now.
            if front is not None or waited_s >= wait_s:
                try:
                    return attempt()
                except StoreLocked as error:
                    if waited_s >= wait_s:
                        raise StoreLocked(f"waited {wait_s:g} s in vain: {error}") from error
            time.sleep(_POLL_S if waited_s < SLOW_AFTER_S else SLOW_POLL_S)
    finally:
        if front is not None:
            front.release()


class GenerationReader:
    """Whether a store may have been written to since its log was last read."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._view: FileView | None = None
        self._seen = b""  # b"": not known, so the log must be read
        self._until_s = 0.0

    def is_unchanged(self) -> bool:
        """Return whether nothing was written since the bytes given to `remember` were read."""
        view = self._view
        # Unknown, or too old to rely on.
        if view is None or not self._seen or time.monotonic() >= self._until_s:
            return False
        try:
            # A folder that was removed and made anew has another lock file.
            return view.read(MARK_BYTES, 0) == self._seen and not view.is_removed()
        except OSError:
            return False

    def read(self) -> bytes:
        """Return what to `remember` once the log has been read; b"": there is no generation."""
        try:
            self._view = view = self._disk.view(self._path)
            found = view.read(MARK_BYTES, 0)
        except OSError:
            # Without a lock file the log is read each time.
            self._view = None
            return b""
        # A holder on a full disk writes no text; then nothing can be remembered.
        return found if is_lock_mark(found) else b""

    def remember(self, found: bytes) -> None:
        """Remember that the log was read after `found` was."""
        self._seen = found
        self._until_s = time.monotonic() + RECHECK_S

    def forget(self) -> None:
        """Let the next reader read the log."""
        self._seen = b""
