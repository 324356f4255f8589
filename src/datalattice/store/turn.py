"""Turn: who writes next, where several processes write to one store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from datalattice.errors import StoreLocked

T = TypeVar("T")

POLL_S: Final = 0.0005
"""Pause before a lock is tried again; it doubles up to `POLL_MAX_S`."""

POLL_MAX_S: Final = 0.01


def wait_for(attempt: Callable[[], T], wait_s: float) -> T:
    """Return what `attempt` returns once it meets no lock of another process.

    Raises: StoreLocked: it did all the time.
    """
    give_up_s = time.monotonic() + wait_s
    pause_s = POLL_S
    while True:
        try:
            return attempt()
        except StoreLocked as error:
            if time.monotonic() >= give_up_s:
                if not wait_s:
                    raise
                raise StoreLocked(f"waited {wait_s:g} s in vain: {error}") from error
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, POLL_MAX_S)
