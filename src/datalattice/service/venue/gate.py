"""Gate: holds back calls that change something until a venue has started.

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
    """Calls wait in `passed` until the venue has started. It belongs to one event loop."""

    def __init__(self) -> None:
        self._decided: Final = asyncio.Event()
        self._refusal: Exception | None = None
        self.is_open = False

    def open(self) -> None:
        """Let all calls pass."""
        self.is_open, self._refusal = True, None
        self._decided.set()

    def close(self) -> None:
        """Refuse all calls from now on."""
        self.is_open, self._refusal = False, None
        self._decided.set()

    async def passed(self) -> None:
        """Return when a call may pass.

        Raises: Draining: the venue ends. Unfenced and others: the last error of its start.
        """
        # As every write, a call waits until the fence has decided, and then gets its error.
        await self._decided.wait()
        if self._refusal is not None:
            # A new error for each caller: each raise adds its traceback to the exception.
            raise type(self._refusal)(str(self._refusal))
        if not self.is_open:
            raise Draining("the venue is ending and takes no calls")

    async def open_with(self, start: Callable[[], Awaitable[None]]) -> None:
        """Call `start` until it succeeds; calls get its error meanwhile."""
        pause_s = RETRY_FIRST_S
        while True:
            try:
                await start()
            except (DataLatticeError, OSError) as error:
                # Logged once for each reason: the start is tried again every few seconds.
                if str(error) != str(self._refusal):
                    _log.warning("the venue cannot start: %s: %s", type(error).__name__, error)
                self._refusal = error
                self._decided.set()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
            else:
                return
