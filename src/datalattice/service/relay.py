"""Relay: a stream of the running node as a stream of the service.

A thread reads the control socket. A slow reader gets only the newest item, so use it for streams
whose items are states.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from datalattice.client import ResultStream
from datalattice.cursors import Stream, Wake
from datalattice.errors import DataLatticeError
from datalattice.protobuf import Message

M = TypeVar("M", bound=Message)


class Relay(Stream[M]):
    """The states of a stream of the running node. Closing it closes that stream."""

    def __init__(self, items: ResultStream[M]) -> None:
        self._states: Final = _States(items)
        super().__init__(self._states)

    def _fetch(self) -> Iterable[M]:
        return self._states.take()

    @property
    def closed(self) -> bool:
        """Whether no more states come."""
        return super().closed or self._states.is_taken


class _States(Generic[M]):
    """The state that a thread has read; without a reference to `Relay`, which may be dropped."""

    def __init__(self, items: ResultStream[M]) -> None:
        self._items: Final = items
        # Only the newest state counts, so a slow reader costs one item of memory.
        self._news: Final[deque[M]] = deque(maxlen=1)
        self._error: DataLatticeError | None = None
        self._is_over = False

    def subscribe(self, wake: Wake) -> Wake:
        # A daemon: a program may end while its thread waits for the node.
        threading.Thread(target=self._read, args=(wake,), name="relay", daemon=True).start()
        return self._items.close

    def _read(self, wake: Wake) -> None:
        try:
            for item in self._items:
                self._news.append(item)
                wake()
        except DataLatticeError as error:  # raised where the items are taken
            self._error = error
        # After the error, since `is_taken` reads the error once this is set.
        self._is_over = True
        wake()

    @property
    def is_taken(self) -> bool:
        """Whether the stream has ended, and its last state and its error were taken."""
        return self._is_over and not self._news and self._error is None

    def take(self) -> list[M]:
        """Return the newest item unless it was taken. Raises: the error that ended the stream."""
        if self._news:
            return [self._news.popleft()]
        error, self._error = self._error, None
        # Raised once, where the items are taken; then the stream is at its end.
        if error is not None:
            raise error
        return []
