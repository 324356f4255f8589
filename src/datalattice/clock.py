"""Clock: the only access to wall-clock time, in Unix milliseconds, and the hybrid logical clock.

A hybrid logical clock stamps events so that a stamp is greater than those of all events seen
before, while it stays near the wall clock.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple, Protocol

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
        now_ms = self._clock.now_ms()
        return now_ms if 0 <= now_ms <= LAST_MS else min(max(0, now_ms), LAST_MS)


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
    # Of two stamps the greater wins, so a clock that was set back must not make a smaller one.
    return checked_stamp(max(now_ms, after_ms + 1))


HLC_DRIFT_MS: Final = 3_600_000
"""A stamp later than the wall clock by more than this cannot move a hybrid clock."""

HLC_COUNTER_MAX: Final = 2**32 - 1
"""The greatest counter of a hybrid clock: it has 32 bits."""


class Hlc(NamedTuple):
    """A stamp of a hybrid logical clock, ordered by wall time, then counter.

    wall: Unix time in milliseconds, 64 bits. counter: 32 bits.
    """

    wall: int
    counter: int

    def __str__(self) -> str:
        return f"{self.wall}.{self.counter}"

    def after(self) -> Hlc:
        """Return the next stamp: the counter plus 1, or wall + 1 when the counter is at its end."""
        if self.counter >= HLC_COUNTER_MAX:
            return Hlc(self.wall + 1, 0)
        return Hlc(self.wall, self.counter + 1)


HLC_ZERO: Final = Hlc(0, 0)


def tick(last: Hlc, now_ms: int) -> Hlc:
    """Return the stamp of a local event, greater than `last`."""
    # A clock that was set back or stands still counts on from the last stamp.
    return Hlc(now_ms, 0) if now_ms > last.wall else last.after()


def update(last: Hlc, received: Hlc, now_ms: int) -> Hlc:
    """Return the next stamp of a clock that has seen `received`: greater than `last` and it."""
    # The wall clock is ahead of both: the counter begins again.
    if now_ms > last.wall and now_ms > received.wall:
        return Hlc(now_ms, 0)
    return max(last, received).after()


def is_future(stamp: Hlc, now_ms: int, drift_ms: int = HLC_DRIFT_MS) -> bool:
    """Return whether the stamp's wall time is more than `drift_ms` later than now."""
    # The counter is ignored: it orders the stamps of one millisecond.
    return stamp.wall > now_ms + drift_ms


def clamp_future(stamp: Hlc, parent: Hlc, now_ms: int, drift_ms: int = HLC_DRIFT_MS) -> Hlc:
    """Return `stamp`, or the one after `parent` if `stamp` is in the future by over `drift_ms`."""
    # Clamped for ordering only: "stored stamps are never rewritten".
    return parent.after() if is_future(stamp, now_ms, drift_ms) else stamp
