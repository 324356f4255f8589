"""Peers: the nodes this one wants to be connected to, and the effort to stay so.

A wanted peer stays wanted when its connection dies: it is dialled again, after one second at first
and up to thirty when it stays away, each time a random part of that, so that many nodes do not
knock at a returning one together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from datalattice.crypto import Entropy, SystemEntropy
from datalattice.errors import UsageError
from datalattice.node.transport import Link, Transport, parse_address

BACKOFF_MS_MIN: Final = 1_000
BACKOFF_MS_MAX: Final = 30_000
STABLE_S: Final = 5.0
"""A connection that lived this long starts the back-off anew."""

Serve = Callable[[str, Link], Awaitable[str]]
"""Runs a connection to an address until it ends; returns why it ended."""


def backoff_ms(attempt: int, entropy: Entropy) -> int:
    """Return how long to wait after so many failures: doubling, random in [half, full]."""
    full_ms = min(BACKOFF_MS_MAX, BACKOFF_MS_MIN << min(attempt, 16))
    share = int.from_bytes(entropy.bytes(4), "big") / 2**32
    return round(full_ms / 2 + share * full_ms / 2)


@dataclass(slots=True)
class PeerInfo:
    """A wanted peer and how it stands with it."""

    address: str
    connected: bool = False
    failures: int = 0
    reason: str = "not dialled yet"


class Peers:
    """The wanted peers. Lives on the event loop."""

    def __init__(self, transport: Transport, serve: Serve, entropy: Entropy | None = None) -> None:
        self._transport = transport
        self._serve = serve
        self._entropy = entropy or SystemEntropy()
        self._infos: dict[str, PeerInfo] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def infos(self) -> list[PeerInfo]:
        """The wanted peers, in the order they were added."""
        return list(self._infos.values())

    def add(self, address: str) -> None:
        """Stay connected to `address` from now on; adding it again changes nothing.

        Raises: UsageError: not an address.
        """
        parse_address(address)
        address = address.removeprefix("tcp://")
        if address in self._infos:
            return
        info = self._infos[address] = PeerInfo(address)
        self._tasks[address] = asyncio.ensure_future(self._keep(info))

    async def remove(self, address: str) -> None:
        """Close the connection to `address` and want it no more.

        Raises: UsageError: it is not wanted.
        """
        address = address.removeprefix("tcp://")
        task = self._tasks.pop(address, None)
        if task is None:
            known = ", ".join(self._infos) or "none"
            raise UsageError(f"{address} is not a peer of this node; its peers: {known}")
        del self._infos[address]
        await _end(task)

    async def close(self) -> None:
        """Close all connections and dial no more."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            await _end(task)

    async def _keep(self, info: PeerInfo) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                link = await self._transport.dial(info.address)
            except OSError as error:
                info.reason = error.strerror or str(error) or type(error).__name__
            else:
                info.connected = True
                began_s = loop.time()
                info.reason = "connected"
                try:
                    info.reason = await self._serve(info.address, link)
                finally:
                    info.connected = False
                if loop.time() - began_s >= STABLE_S:
                    info.failures = 0
            if self._tasks.get(info.address) is not asyncio.current_task():
                return  # not wanted any more, and the cancellation got lost on its way
            await asyncio.sleep(backoff_ms(info.failures, self._entropy) / 1_000)
            info.failures += 1


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
