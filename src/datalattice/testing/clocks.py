"""Clocks: time as a test wants it, in Unix milliseconds."""

from __future__ import annotations

from datalattice.clock import SystemClock


class StoppedClock:
    """A clock for which a test says when time goes on."""

    def __init__(self, now: int = 1_000) -> None:
        self.now = now

    def now_ms(self) -> int:
        """Return the time."""
        return self.now


class TickingClock(StoppedClock):
    """One millisecond later at every look."""

    def now_ms(self) -> int:
        """Return the time."""
        self.now += 1
        return self.now


class LateClock:
    """The time of the machine, and so much more."""

    def __init__(self) -> None:
        self.late_ms = 0

    def now_ms(self) -> int:
        """Return the time."""
        return SystemClock().now_ms() + self.late_ms
