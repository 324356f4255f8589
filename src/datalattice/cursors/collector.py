"""Collector: pauses Python's cycle collector during large writes and merges.

Cells refer only downwards, so they never form cycles. But each new cell counts towards the next
collection, and each collection visits all cells in memory: six sevenths of the time of a merge of
100,000 entries. The collector runs again between two actions.
"""

from __future__ import annotations

import gc
import os
import threading
from typing import Final

OVERLAPS_MAX: Final = 64
"""If one action always begins before another ends, the collector runs after this many actions."""


class _Pause:
    """A context without cycle collection; several threads may be inside at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._overlaps = 0
        self._is_paused = False
        self._was_enabled = False

    def begin_in_child(self) -> None:
        """Have the collector run in a forked child, whose other threads never leave the context."""
        self._lock = threading.Lock()
        self._depth = 0
        if self._is_paused and self._was_enabled:
            gc.enable()
        self._is_paused = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._is_paused:
                self._was_enabled = gc.isenabled()
                gc.disable()
                self._is_paused = True
            self._depth += 1

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._depth = max(self._depth - 1, 0)
            self._overlaps += 1
            # Threads that are never all outside at once would otherwise keep the collector from
            # ever running.
            if not self._depth or self._overlaps >= OVERLAPS_MAX:
                self._overlaps = 0
                if self._is_paused and self._was_enabled:
                    gc.enable()
                self._is_paused = False


collector_paused: Final = _Pause()
"""`with collector_paused: ...`"""

os.register_at_fork(after_in_child=collector_paused.begin_in_child)
