"""Clock: the only door to wall-clock time, in Unix milliseconds."""

from __future__ import annotations

import time
from typing import Final, Protocol

from datalattice.errors import UsageError

LAST_MS: Final = 2**63 - 1
"""The last time that can be written down."""


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


class BoundedClock:
    """Another clock, whose readings are brought into the times that can be written down.

    For what is dated beside the data and must not fail because of a clock that is wrong.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        """Return Unix time in milliseconds, from 0 to LAST_MS."""
        return min(max(0, self._clock.now_ms()), LAST_MS)


def present_ms(clock: Clock) -> int:
    """Return the time of a write.

    Raises: UsageError: the clock stands before 1970, or past the times of 64 bits.
    """
    return checked_stamp(clock.now_ms())


def checked_stamp(stamp: int) -> int:
    """Return a time that fits 64 bits.

    Raises: UsageError: the clock, or what a peer wrote, stands at the end of the range, and nothing
            can be later; or the clock stands before 1970.
    """
    if stamp > LAST_MS:
        raise UsageError(
            f"the stamp {stamp} does not fit 64 bits: the clock is wrong, or what is stored bears "
            "the last time there is"
        )
    if stamp < 0:
        raise UsageError(f"the clock shows {stamp} ms, and times are 0 or more: set it right")
    return stamp


def next_stamp(now_ms: int, after_ms: int) -> int:
    """Return the stamp of a write over one of `after_ms`: the present, or 1 more than that.

    Raises: UsageError: it does not fit 64 bits.
    """
    return checked_stamp(max(now_ms, after_ms + 1))
