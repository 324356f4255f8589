"""Steps: counts the lines of Python that a call runs: a measure that no load of the machine moves.

Compiled modules are not seen, so this judges code that is never compiled.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType


def steps_of(call: Callable[[], object]) -> int:
    """Return how many lines of Python a call runs; a loop counts each time around.

    Garbage is not collected meanwhile: callbacks of the collector would be counted, now and then.
    """
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before, collected = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        call()
    finally:
        sys.settrace(before)
        if collected:
            gc.enable()
    return count
