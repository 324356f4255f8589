"""Host: a venue on an event loop of its own, for callers that block.

Source: docs/design/venue.md "Hosts".
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self, TypeVar

from datalattice.errors import Draining
from datalattice.service.venue.runner import VenueRunner

T = TypeVar("T")

CLOSE_S: Final = 10.0
"""Seconds that running jobs have when the venue closes."""


class VenueHost:
    """Runs a venue in a thread. Any thread may call it; close it."""

    def __init__(self, make: Callable[[], VenueRunner]) -> None:
        """Start the venue. make: returns its runner; its errors are raised."""
        self.runner: Final = make()
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(
            target=self._loop.run_forever, name="venue", daemon=True
        )
        self._is_closed = False
        self._thread.start()
        # Not awaited: the fence may take long, and the doors serve meanwhile.
        self._starting: Final = asyncio.run_coroutine_threadsafe(
            self.runner.start_when_allowed(), self._loop
        )

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the runner; return its result. Raises: Draining: it is closed."""
        if self._is_closed:
            work.close()
            raise Draining("the venue is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self, drain_s: float = CLOSE_S) -> None:
        """Wait for running jobs and end; jobs that still run are recovered at the next start."""
        if not self._is_closed:
            # First: a start that waits for the fence must not open the venue later.
            self._starting.cancel()
            self.call(self.runner.close(drain_s))
            self._end()

    def _end(self) -> None:
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        # The thread ends before its loop is closed: a running loop cannot be closed.
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
