"""Timetable: which of many things is due first, cheap to ask however many there are."""

from __future__ import annotations

import heapq
from typing import Final

STALE_MAX: Final = 64
"""Entries of the heap beyond twice the names in it: with more of them it is made anew."""


class Timetable:
    """A time for each name. To put one takes logarithmic time, to ask for the first one constant.

    A time that is set anew leaves its old entry in the heap, which drops it at the top.
    """

    def __init__(self) -> None:
        self._times: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def put(self, name: str, time_ms: int | None) -> None:
        """Have a name be due at a time; None: never."""
        if time_ms is None:
            self._times.pop(name, None)
        elif self._times.get(name) != time_ms:
            self._times[name] = time_ms
            heapq.heappush(self._heap, (time_ms, name))
            if len(self._heap) > 2 * len(self._times) + STALE_MAX:
                self._heap = [(ms, one) for one, ms in self._times.items()]
                heapq.heapify(self._heap)

    @property
    def first_ms(self) -> int | None:
        """When the first of them is due, None when none is."""
        heap = self._heap
        while heap and self._times.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now_ms: int) -> set[str]:
        """Return the names that are due; they are not any more, until they are put anew."""
        taken: set[str] = set()
        while (first_ms := self.first_ms) is not None and first_ms <= now_ms:
            _, name = heapq.heappop(self._heap)
            del self._times[name]
            taken.add(name)
        return taken
