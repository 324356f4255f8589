"""Relay: a stream of the running node, as a stream of its service.

A thread reads from the control socket. A slow reader finds the newest item alone, so it suits
streams whose items are states.
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
    """The states that a stream of the node gives. Closing it closes that one."""

    def __init__(self, items: ResultStream[M]) -> None:
        self._states: Final = _States(items)
        super().__init__(self._states)

    def _fetch(self) -> Iterable[M]:
        return self._states.take()

    @property
    def closed(self) -> bool:
        """Whether no more states come."""
        return super().closed or self._states.is_told


class _States(Generic[M]):
    """What a thread has read. It has no reference to the stream, which may be dropped."""

    def __init__(self, items: ResultStream[M]) -> None:
        self._items: Final = items
        # Of states only the newest counts, so a slow reader costs one item of memory.
        self._news: Final[deque[M]] = deque(maxlen=1)
        self._error: DataLatticeError | None = None
        self._is_over = False

    def subscribe(self, wake: Wake) -> Wake:
        threading.Thread(target=self._read, args=(wake,), name="relay", daemon=True).start()
        return self._items.close

    def _read(self, wake: Wake) -> None:
        try:
            for item in self._items:
                self._news.append(item)
                wake()
        except DataLatticeError as error:  # raised where the items are taken
            self._error = error
        self._is_over = True
        wake()

    @property
    def is_told(self) -> bool:
        """Whether it is over, and everything was taken."""
        return self._is_over and not self._news and self._error is None

    def take(self) -> list[M]:
        """Return the newest item, if it was not taken yet. Raises: with what the stream ended."""
        if self._news:
            return [self._news.popleft()]
        error, self._error = self._error, None
        if error is not None:
            raise error
        return []
