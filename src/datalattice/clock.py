"""Clock: the only access to wall-clock time, in Unix milliseconds."""

from __future__ import annotations

import time
from typing import Final, Protocol

from datalattice.errors import UsageError

LAST_MS: Final = 2**63 - 1
"""The greatest timestamp that can be stored."""


class Clock(Protocol):
    """A source of wall-clock time."""

    def now_ms(self) -> int:
        """Return Unix time in milliseconds.

        Time may step back; callers that need increasing stamps use `next_stamp`.
        """
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Return Unix time in milliseconds."""
        return time.time_ns() // 1_000_000


class BoundedClock:
    """Another clock, clamped to 0..LAST_MS.

    Use it for auxiliary timestamps, which must not fail because the clock is wrong.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        """Return Unix time in milliseconds, from 0 to LAST_MS."""
        return min(max(0, self._clock.now_ms()), LAST_MS)


def present_ms(clock: Clock) -> int:
    """Return the current time for a write.

    Raises: UsageError: the clock is before 1970, or past 64 bits.
    """
    return checked_stamp(clock.now_ms())


def checked_stamp(stamp: int) -> int:
    """Return `stamp` if it is within 0..LAST_MS.

    Raises: UsageError: the clock, or a stamp written by a peer, is outside the range.
    """
    # A peer may write the greatest stamp, after which no write could win: refuse, instead of
    # writing a tie.
    if stamp > LAST_MS:
        raise UsageError(
            f"the stamp {stamp} does not fit in 64 bits: the clock is wrong, or a stored value "
            "already has the greatest possible stamp"
        )
    if stamp < 0:
        raise UsageError(f"the clock shows {stamp} ms; set it to 1970 or later")
    return stamp


def next_stamp(now_ms: int, after_ms: int) -> int:
    """Return the stamp of a write that replaces one stamped `after_ms`: max(now, after + 1).

    Raises: UsageError: the result does not fit in 64 bits.
    """
    return checked_stamp(max(now_ms, after_ms + 1))
