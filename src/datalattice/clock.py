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


def next_stamp(now_ms: int, after_ms: int) -> int:
    """Return the stamp of a write over one of `after_ms`: the present, or 1 more than that."""
    return max(now_ms, after_ms + 1)
