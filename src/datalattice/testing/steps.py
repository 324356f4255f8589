"""Steps: how much Python code a call runs, counted in lines, whatever the machine is doing.

Compiled modules are not seen, so this judges code that is never compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def steps_of(call: Callable[[], object]) -> int:
    """Return how many lines of Python a call runs; a loop counts each time around."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        call()
    finally:
        sys.settrace(before)
    return count
