"""Timeline: the time of a simulation, and what happens when. Nothing else moves it."""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Callable

from datalattice.testing.sim.checkers import Violation

Action = Callable[[], None]


class Timeline:
    """Events in order of time, and of their making where the time is the same.

    `events` counts what happened, `trace` is a hash of all of it. With `keep` the last so many
    events can be read in `lines`.
    """

    def __init__(self, events_max: int, keep: int = 0) -> None:
        self.now_ms = 0
        self.events = 0
        self.lines: deque[str] = deque(maxlen=keep)
        self._keep = keep > 0
        self._events_max = events_max
        self._order = 0
        self._due: list[tuple[int, int, Action]] = []
        self._hash = hashlib.blake2b(digest_size=32)

    def at(self, due_ms: int, action: Action) -> None:
        """Have `action` done at a time; at once, after what is due already, when it is past."""
        self._order += 1
        heapq.heappush(self._due, (max(due_ms, self.now_ms), self._order, action))

    def after(self, delay_ms: int, action: Action) -> None:
        """Have `action` done so much later."""
        self.at(self.now_ms + delay_ms, action)

    def run(self, until_ms: int) -> None:
        """Do everything that is due up to a time."""
        due = self._due
        while due and due[0][0] <= until_ms:
            self.now_ms, _, action = heapq.heappop(due)
            action()
        self.now_ms = max(self.now_ms, until_ms)

    def record(self, who: str, what: str, data: bytes = b"") -> None:
        """Note an event: it counts, and it goes into the trace.

        Raises: Violation: there were so many that something must be running idle.
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
