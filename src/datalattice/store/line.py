"""Line: waiting for the lock of a store.

Whoever is first in line holds `turn.lock` until it has the store's lock. That is how the one that
has that learns, by one try after each write, that it is to hand over (`turn`). The others wait for
`turn.lock`; the next one in front is the one that tries first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from datalattice.errors import StoreLocked
from datalattice.store.disk import Disk, LockFile
from datalattice.store.folder import TURN_FILE

T = TypeVar("T")

POLL_S: Final = 0.001
"""Pause before a lock is tried again."""

SLOW_POLL_S: Final = 0.01
"""The same, after `SLOW_AFTER_S`: whoever has it for so long does not hand over."""

SLOW_AFTER_S: Final = 2.0


def wait_in_line(disk: Disk, folder: str, attempt: Callable[[], T], wait_s: float) -> T:
    """Return what `attempt`, which takes the lock of a store, returns; wait in line for it.

    Without a time to wait it is tried once, whoever is in line.
    Raises: StoreLocked: somebody had the lock all the time; the text names the process.
    """
    if wait_s <= 0:
        return attempt()
    begun_s = time.monotonic()
    front: LockFile | None = None
    try:
        while True:
            if front is None:
                front = _try(lambda: disk.lock(f"{folder}/{TURN_FILE}"))
            waited_s = time.monotonic() - begun_s
            if front is not None or waited_s >= wait_s:
                try:
                    return attempt()
                except StoreLocked as error:
                    if waited_s >= wait_s:
                        raise StoreLocked(f"waited {wait_s:g} s in vain: {error}") from error
            time.sleep(POLL_S if waited_s < SLOW_AFTER_S else SLOW_POLL_S)
    finally:
        if front is not None:
            front.release()


def _try(take: Callable[[], T]) -> T | None:
    try:
        return take()
    except StoreLocked:
        return None
