"""Gate: whether a venue takes calls that change something, and why not.

Source: docs/design/venue.md "Recovery".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from datalattice.errors import DataLatticeError, Draining
from datalattice.service.venue.committer import RETRY_FIRST_S, RETRY_MAX_S

_log = logging.getLogger(__name__)


class CallGate:
    """Calls wait here until the venue has begun. It belongs to one event loop."""

    def __init__(self) -> None:
        self._decided: Final = asyncio.Event()
        self._refusal: Exception | None = None
        self.is_open = False

    def open(self) -> None:
        """Let calls pass."""
        self.is_open, self._refusal = True, None
        self._decided.set()

    def close(self) -> None:
        """Let no call pass any more."""
        self.is_open, self._refusal = False, None
        self._decided.set()

    async def passed(self) -> None:
        """Return when a call may pass.

        Raises: Draining: the venue ends. Else why it has not begun, as Unfenced.
        """
        # As every write: it waits until the fence has decided, and then gets its error.
        await self._decided.wait()
        if self._refusal is not None:
            raise type(self._refusal)(str(self._refusal))
        if not self.is_open:
            raise Draining("the venue takes no calls: it ends")

    async def open_with(self, start: Callable[[], Awaitable[None]]) -> None:
        """Begin, and try again while that is refused; calls get the reason meanwhile."""
        pause_s = RETRY_FIRST_S
        while True:
            try:
                await start()
            except (DataLatticeError, OSError) as error:
                # Once for each reason: the start is tried again every few seconds.
                if str(error) != str(self._refusal):
                    _log.warning("the venue does not begin: %s: %s", type(error).__name__, error)
                self._refusal = error
                self._decided.set()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
            else:
                return
