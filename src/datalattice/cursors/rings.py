"""Rings: the newest events of one source, which several readers share.

    ring = EventRing(128)
    stream = EventStream(ring)      # what is added from now on
    ring.add(event)

A reader has a position and nothing else. If it is so slow that its next event is gone, it gets
`EventsMissed` and its stream ends: it opens another one, and knows how many events it missed.

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
    """`count` events were gone before the reader took them."""

    count: int


class EventRing(Generic[T]):
    """The newest events. Any thread may add and read."""

    def __init__(self, size: int = RING_EVENTS, entropy: Entropy | None = None) -> None:
        self.id: Final = (entropy or SystemEntropy()).bytes(_ID_BYTES)
        """Identifies this ring: numbers of another one, such as from before a restart, differ."""
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
        """Return (the number of the next event, the events from `number` on).

        Numbers begin with 0. If events are gone, there are fewer than the two numbers say.
        """
        with self._lock:
            wanted = max(0, self._count - max(0, number))
            kept = list(self._events)
            return self._count, kept[len(kept) - min(wanted, len(kept)) :]

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after each event from now on; return a function that ends this."""
        return self._listeners.add(wake)


class EventStream(Stream[T | EventsMissed]):
    """The events of a ring from now on; it ends with `EventsMissed` when it was too slow.

    next: the number of the first event; None: the next one that is added.
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
