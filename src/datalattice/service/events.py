"""Events: the newest of some things that happen, which several readers share.

    ring = EventRing(128)
    stream = EventStream(ring)      # what is added from now on
    ring.add(event)

A reader has a position and nothing else. One that is so slow that its next event is gone gets
`EventsMissed`, and its stream ends: it begins again, and knows that it has missed something.

Source: docs/design/service.md "Events".
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from datalattice.cursors import Listeners, Stream, Wake

T = TypeVar("T")

RING_EVENTS: Final = 128
"""Newest events that are kept for readers."""


@dataclass(frozen=True, slots=True)
class EventsMissed:
    """So many events were gone before a reader took them."""

    count: int


class EventRing(Generic[T]):
    """The newest events. Any thread may add and read."""

    def __init__(self, size: int = RING_EVENTS) -> None:
        self._events: deque[T] = deque(maxlen=size)
        self._count = 0
        self._lock: Final = threading.Lock()
        self._listeners: Listeners[[]] = Listeners()

    def add(self, event: T) -> None:
        """Keep an event, and wake the readers."""
        with self._lock:
            self._events.append(event)
            self._count += 1
        self._listeners.tell()

    def after(self, number: int) -> tuple[int, list[T]]:
        """Return the events from the one of this number on, and the number of the next one.

        Numbers begin with 0. Events that are gone are left out, which a reader sees by the count.
        """
        with self._lock:
            lacking = max(0, self._count - max(0, number))
            kept = list(self._events)
            return self._count, kept[len(kept) - min(lacking, len(kept)) :]

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after each event from now on; return a function that ends this."""
        return self._listeners.add(wake)


class EventStream(Stream[T | EventsMissed]):
    """The events of a ring from now on; it ends with `EventsMissed` when it was too slow."""

    def __init__(
        self, ring: EventRing[T], *, wait: bool = True, timeout: float | None = None
    ) -> None:
        super().__init__(ring, wait=wait, timeout=timeout)
        self._ring: Final = ring
        self._next = ring.after(0)[0]

    def _fetch(self) -> list[T | EventsMissed]:
        begun, (self._next, events) = self._next, self._ring.after(self._next)
        missed = self._next - begun - len(events)
        if missed:
            self.close()
            return [EventsMissed(missed)]
        return list(events)
