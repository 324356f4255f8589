"""Strangers: inbound streams that have not shown yet who they are.

A stranger is a new stream until its kind is known and, where needed, its key is proved. Strangers
cost little memory for a short time: their number is bounded, and the longest waiting one is closed
to admit the next.

Source: docs/protocol.md "Limits".
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final

from datalattice.node.transport.base import Link, OnRefused

STRANGERS_MAX: Final = 64  # inbound streams that have not proved a key yet
HANDSHAKE_TIMEOUT_S: Final = 5.0  # from the first byte to the proof of a key


class Strangers:
    """The strangers of one listener."""

    def __init__(self, refused: OnRefused | None) -> None:
        self._refused = refused
        self._waiting: dict[asyncio.Timeout, asyncio.Task[object] | None] = {}

    @property
    def are_many(self) -> bool:
        """Whether half of the room for strangers is taken."""
        return len(self._waiting) >= STRANGERS_MAX // 2

    async def admit(
        self, remote: str, timeout_s: float, greet: Callable[[], Awaitable[Link | None]]
    ) -> Link | None:
        """Return the link that `greet` makes of a stranger; None: the stranger must be ended."""
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                # "The oldest makes room": a stranger that sends nothing cannot keep others out.
                if len(self._waiting) >= STRANGERS_MAX:
                    self._turn_away(next(iter(self._waiting)))
                self._waiting[limit] = asyncio.current_task()
                return await greet()
        except TimeoutError:
            is_evicted = limit not in self._waiting
            self.count("strangers-evicted" if is_evicted else "strangers-silent", remote)
        except OSError as error:
            self.count("handshakes-failed", str(error))
        finally:
            self._waiting.pop(limit, None)
        return None

    def count(self, name: str, text: str) -> None:
        """Count a stranger that was turned away."""
        if self._refused is not None:
            self._refused(name, text)

    def _turn_away(self, limit: asyncio.Timeout) -> None:
        del self._waiting[limit]
        limit.reschedule(-math.inf)

    async def close(self) -> None:
        """Turn away every waiting stranger."""
        tasks = [task for task in self._waiting.values() if task is not None]
        for limit in list(self._waiting):
            self._turn_away(limit)
        await asyncio.gather(*tasks, return_exceptions=True)
