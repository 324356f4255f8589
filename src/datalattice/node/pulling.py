"""Pulling: waiting until all that a peer has is here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Final

from datalattice.cells import Value
from datalattice.errors import PeerUnavailable, Timeout
from datalattice.node.connection import Connection
from datalattice.node.lanes import Lane
from datalattice.sync import Pull

CONFIRM_S: Final = 0.25
"""How long peers have to state their root when somebody wants to know how they are."""

CONFIRMED_MAX: Final = 64
"""Peers that are asked for that at a time."""


class PullWaiters:
    """Those who wait for a pull to end. Lives on the event loop."""

    def __init__(self) -> None:
        self._waiting: dict[object, asyncio.Future[str | None]] = {}

    async def pull(self, lane: Lane, connections: Iterable[Connection], timeout_s: float) -> None:
        """Return when the live value contains all that these peers state, durably.

        Raises: PeerUnavailable: one did not deliver. Timeout: it took too long.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(self._pull_one(lane, one) for one in connections))
        except TimeoutError as error:
            raise Timeout(f"the pull did not end in {timeout_s} s") from error

    async def confirm(self, lane: Lane, connections: Sequence[Connection]) -> None:
        """Have some of these peers state what they have; return soon, whether they did or not."""
        asked = (self.ask(lane, one) for one in connections[:CONFIRMED_MAX])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONFIRM_S):
                await asyncio.gather(*asked)

    async def _pull_one(self, lane: Lane, connection: Connection) -> None:
        error = await self.ask(lane, connection)
        if error is not None:
            raise PeerUnavailable(f"pull from {connection.name}: {error}")

    async def ask(
        self,
        lane: Lane,
        connection: Connection,
        path: tuple[Value, ...] = (),
        *,
        is_strict: bool = False,
    ) -> str | None:
        """Ask one peer for its state; return why it was not taken, None when all of it is here.

        path, is_strict: see `datalattice.sync.Pull`.
        """
        token = object()
        done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiting[token] = done
        pull = Pull(token, path, is_strict)
        lane.submit(lambda replicator, now: replicator.pull(connection.id, pull, now))
        try:
            return await done
        finally:
            del self._waiting[token]

    def finished(self, token: object, error: str | None) -> None:
        """Note how a pull ended."""
        pull = self._waiting.get(token)
        if pull is not None and not pull.done():
            pull.set_result(error)
