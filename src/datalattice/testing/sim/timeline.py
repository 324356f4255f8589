"""Timeline: the simulated time and its queue of events. Only `run` moves the time."""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Callable
from typing import Final

from datalattice.testing.sim.checkers import Violation

SimAction = Callable[[], None]

EPOCH_MS: Final = 1_800_000_000_000
"""Unix time at which every simulation begins."""


class Timeline:
    """Runs actions in order of time, and of their making where the time is equal.

    events: how many were recorded. trace: their hash.
    lines:  the last `keep` of them as text.
    """

    def __init__(self, events_max: int, keep: int = 0) -> None:
        self.now_ms = 0
        self.events = 0
        self.lines: deque[str] = deque(maxlen=keep)
        self._keep = keep > 0
        self._events_max = events_max
        self._order = 0
        self._due: list[tuple[int, int, SimAction]] = []
        self._hash = hashlib.blake2b(digest_size=32)

    def at(self, due_ms: int, action: SimAction) -> None:
        """Run `action` at a time; a past time counts as now, behind what is due already."""
        self._order += 1
        # In the order of their making where times are equal.
        heapq.heappush(self._due, (max(due_ms, self.now_ms), self._order, action))

    def after(self, delay_ms: int, action: SimAction) -> None:
        self.at(self.now_ms + delay_ms, action)

    def run(self, until_ms: int) -> None:
        """Run everything that is due up to a time."""
        due = self._due
        while due and due[0][0] <= until_ms:
            self.now_ms, _, action = heapq.heappop(due)
            action()
        self.now_ms = max(self.now_ms, until_ms)  # also without an event

    def record(self, who: str, what: str, data: bytes = b"") -> None:
        """Note an event: it counts, and it goes into the trace.

        Raises: Violation: more than `events_max` were recorded, so something loops.
        """
        self.events += 1
        self._hash.update(f"{self.now_ms} {who} {what} {len(data)} ".encode())
        self._hash.update(data)
        if self._keep:
            size = f" {len(data)} bytes {data[:12].hex()}" if data else ""
            self.lines.append(f"{self.now_ms:>8} ms  {who:<4} {what}{size}")
        if self.events > self._events_max:
            raise Violation("busy", f"more than {self._events_max} events")

    @property
    def trace(self) -> str:
        """A hash of everything that happened."""
        return self._hash.hexdigest()


class SimClock:
    """A wall clock that differs from the true time by `skew_ms`."""

    def __init__(self, timeline: Timeline, skew_ms: int = 0) -> None:
        self._timeline = timeline
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return EPOCH_MS + self._timeline.now_ms + self.skew_ms
