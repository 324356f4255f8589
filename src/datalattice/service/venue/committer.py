"""Committer: the transitions of many jobs share one commit.

While one commit runs, what comes next collects, the newest version of each job; then that is the
next commit. There is no timer: a job that is alone is written at once. What nobody waits for, such
as the start of a job without effects, may wait for the commit of something else.

Source: docs/design/venue.md "What is durable when".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from datalattice.errors import Draining, IdentityCloned, StoreError, Unavailable
from datalattice.service.venue.records import JobBatch

RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 5.0
"""A commit that failed is tried again after pauses that double, up to this one."""


ENDED_TEXT: Final = "the venue ended before this was durable"


class JobCommitter:
    """Writes batches one after the other. It belongs to one event loop."""

    def __init__(
        self,
        write: Callable[[JobBatch], Awaitable[None]],
        on_durable: Callable[[JobBatch], None],
    ) -> None:
        """write: makes a batch durable. on_durable: called before anybody who waits goes on."""
        self._write: Final = write
        self._on_durable: Final = on_durable
        self._waiting = JobBatch()
        self._durable: asyncio.Future[None] | None = None  # of what waits
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.failure = ""
        """Why the last try of a commit failed; "" when commits succeed."""
        self.is_retrying = False
        """Whether a commit waits for its next try."""
        self.commits = 0

    def put(self, batch: JobBatch, *, later_s: float = 0.0) -> asyncio.Future[None]:
        """Have a batch written; the future, shared by many, is done when it is durable.

        later_s: how long it may wait for a commit that something else makes necessary.
        """
        loop = asyncio.get_running_loop()
        self._waiting.update(batch)
        if self._durable is None:
            self._durable = loop.create_future()
        if later_s:
            self._timer = self._timer or loop.call_later(later_s, self._begin)
        else:
            self._begin()
        return self._durable

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None and self._durable is not None:
            self._task = asyncio.get_running_loop().create_task(self._commit_all())

    async def _commit_all(self) -> None:
        try:
            while self._durable is not None:
                batch, self._waiting = self._waiting, JobBatch()
                durable, self._durable = self._durable, None
                try:
                    await self._commit(batch)
                except BaseException as error:
                    if not isinstance(error, Exception):  # cancelled
                        _fail(durable, Draining(ENDED_TEXT))
                        raise
                    _fail(durable, error)  # time does not mend it
                    continue
                self.commits += 1
                self._on_durable(batch)
                durable.set_result(None)
        finally:
            self._task = None

    async def _commit(self, batch: JobBatch) -> None:
        """Write a batch, however often it takes."""
        pause_s = RETRY_FIRST_S
        while True:
            try:
                await self._write(batch)
            except IdentityCloned as error:  # until a restart
                self.failure, self.is_retrying = f"{type(error).__name__}: {error}", False
                raise
            # The disk may have room again, another writer end: what waits is not given up.
            except (StoreError, Unavailable, OSError) as error:
                self.failure = f"{type(error).__name__}: {error}"
                self.is_retrying = True
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
            except Exception as error:
                self.failure, self.is_retrying = f"{type(error).__name__}: {error}", False
                raise
            else:
                self.failure, self.is_retrying = "", False
                return

    async def flush(self) -> None:
        """Return when all that was put is durable."""
        self._begin()
        while self._task is not None:
            await asyncio.wait([self._task])

    def stop(self) -> None:
        """Give up what waits; whoever waits for it gets `Draining`."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._durable is not None:
            _fail(self._durable, Draining(ENDED_TEXT))
            self._durable = None


def _fail(durable: asyncio.Future[None], error: BaseException) -> None:
    durable.set_exception(error)
    durable.exception()  # those who wait have it; asyncio would report it if none did
