"""Clocks: time as a test wants it, in Unix milliseconds."""

from __future__ import annotations

from datalattice.clock import SystemClock


class StoppedClock:
    """A clock that a test sets."""

    def __init__(self, now: int = 1_000) -> None:
        self.now = now

    def now_ms(self) -> int:
        return self.now


class TickingClock(StoppedClock):
    """A clock that advances by a millisecond at each reading."""

    def now_ms(self) -> int:
        self.now += 1
        return self.now


class LateClock:
    """The machine's clock plus an offset."""

    def __init__(self) -> None:
        self.late_ms = 0

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.late_ms
