"""Clock: the only door to wall-clock time, in Unix milliseconds."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of wall-clock time."""

    def now_ms(self) -> int:
        """Return Unix time in milliseconds.

        May step back: callers that need order use `next_stamp`.
        """
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """Return Unix time in milliseconds."""
        return time.time_ns() // 1_000_000


def next_stamp(clock: Clock, after_ms: int) -> int:
    """Return a stamp in milliseconds: the present, or 1 more than `after_ms` if that is greater."""
    return max(clock.now_ms(), after_ms + 1)
