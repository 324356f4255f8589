"""Polling: waits for what no event announces, such as the state of another process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

LIMIT_S: Final = 50.0  # a test has 60 s, and its own failure says more than its timeout

_PAUSE_S: Final = 0.01


def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Return once a condition holds. Raises: AssertionError: it does not within the limit."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, f"not within {limit_s:g} s"
        time.sleep(_PAUSE_S)


async def until_async(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """As `until`, on the event loop."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - there is no event for what is looked at
            await asyncio.sleep(_PAUSE_S)
