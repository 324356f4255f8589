"""Rings: the newest of some events, which several readers share.

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

from datalattice.crypto import Entropy, SystemEntropy
from datalattice.cursors.base import Wake
from datalattice.cursors.stream import Listeners, Stream

T = TypeVar("T")

_ID_BYTES: Final = 8

RING_EVENTS: Final = 128
"""Newest events that are kept for readers."""


@dataclass(frozen=True, slots=True)
class EventsMissed:
    """So many events were gone before a reader took them."""

    count: int


class EventRing(Generic[T]):
    """The newest events. Any thread may add and read."""

    def __init__(self, size: int = RING_EVENTS, entropy: Entropy | None = None) -> None:
        self.id: Final = (entropy or SystemEntropy()).bytes(_ID_BYTES)
        """Identifies this ring: numbers of another one, as of before a restart, mean nothing."""
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
    """The events of a ring from now on; it ends with `EventsMissed` when it was too slow.

    ring: of the events. next: the number of the event that comes next; None at first: the newest.
    """

    def __init__(
        self,
        ring: EventRing[T],
        next: int | None = None,
        *,
        wait: bool = True,
        timeout: float | None = None,
    ) -> None:
        super().__init__(ring, wait=wait, timeout=timeout)
        self.ring: Final = ring
        self.next = ring.after(0)[0] if next is None else next

    def _fetch(self) -> list[T | EventsMissed]:
        begun, (self.next, events) = self.next, self.ring.after(self.next)
        missed = self.next - begun - len(events)
        if missed:
            self.close()
            return [EventsMissed(missed)]
        return list(events)
