"""Collector: Python's cycle collector stands still while much is written or merged.

Cells refer downwards only, so none of them is ever part of a cycle; but each one made counts
towards the next collection, and each collection visits all that are in memory. Of the merge of a
hundred thousand entries it took six sevenths of the time. It catches up between two actions.
"""

from __future__ import annotations

import gc
import threading
from typing import Final

OVERLAPS_MAX: Final = 64
"""So many actions may end in a row while others are under way; then the collector has its turn."""


class _Pause:
    """A context in which no cycles are collected; may be entered by several threads at once.

    Threads that are never all outside at once would keep the collector from ever running.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._overlaps = 0
        self._is_paused = False
        self._was_enabled = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._is_paused:
                self._was_enabled = gc.isenabled()
                gc.disable()
                self._is_paused = True
            self._depth += 1

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._depth -= 1
            self._overlaps += 1
            if not self._depth or self._overlaps >= OVERLAPS_MAX:
                self._overlaps = 0
                if self._is_paused and self._was_enabled:
                    gc.enable()
                self._is_paused = False


collector_paused: Final = _Pause()
"""`with collector_paused: ...`"""
