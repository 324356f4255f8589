"""Committer: the transitions of many jobs share one commit.

While one commit runs, further changes collect, the newest version of each job; they are the next
commit. A single change is written at once, without a timer. A change that no caller waits for, such
as the start of a job without effects, may wait a while for another commit.

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
"""A failed commit is tried again after pauses that double from the first to this one."""

ENDED_TEXT: Final = "the venue ended before this was durable"


class JobCommitter:
    """Writes batches one after the other. It belongs to one event loop."""

    def __init__(
        self,
        write: Callable[[JobBatch], Awaitable[None]],
        on_durable: Callable[[JobBatch], None],
    ) -> None:
        """write: makes a batch durable. on_durable: called before the futures of it are done."""
        self._write: Final = write
        self._on_durable: Final = on_durable
        self._waiting = JobBatch()
        self._durable: asyncio.Future[None] | None = None  # of `_waiting`
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.failure = ""
        """Why the last commit failed; "" after a success."""
        self.is_retrying = False
        """Whether a commit waits for its next try."""
        self.commits = 0

    def put(self, batch: JobBatch, *, later_s: float = 0.0) -> asyncio.Future[None]:
        """Write a batch; the returned future, shared with others, is done when it is durable.

        later_s: longest wait for a commit that another change starts.
        """
        loop = asyncio.get_running_loop()
        self._waiting.update(batch)
        if self._durable is None:
            # One for the batch that waits: all of its callers share it.
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
        # A commit that runs takes what waits when it ends.
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
                    _fail(durable, error)  # a further try would fail, too
                    continue
                self.commits += 1
                self._on_durable(batch)
                durable.set_result(None)
        finally:
            self._task = None

    async def _commit(self, batch: JobBatch) -> None:
        """Write a batch, and try again while a later try may succeed."""
        pause_s = RETRY_FIRST_S
        while True:
            try:
                await self._write(batch)
            except Exception as error:
                self.failure = f"{type(error).__name__}: {error}"
                # The disk may get room, another writer may end. A cloned identity lasts until the
                # next start.
                self.is_retrying = isinstance(
                    error, StoreError | Unavailable | OSError
                ) and not isinstance(error, IdentityCloned)
                if not self.is_retrying:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
            else:
                self.failure, self.is_retrying = "", False
                return

    async def flush(self) -> None:
        """Return when all batches are durable or have failed."""
        self._begin()
        while self._task is not None:
            await asyncio.wait([self._task])

    def stop(self) -> None:
        """Give up the batches that wait; their futures raise `Draining`."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._durable is not None:
            _fail(self._durable, Draining(ENDED_TEXT))
            self._durable = None


def _fail(durable: asyncio.Future[None], error: BaseException) -> None:
    durable.set_exception(error)
    durable.exception()  # marks it as read: asyncio would report one that no caller awaits
