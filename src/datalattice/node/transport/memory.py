"""Memory: streams inside one process, for tests and for nodes embedded side by side."""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

from datalattice.errors import UsageError
from datalattice.node.transport.base import Accept, Link, Listener, parse_address

PENDING_PIECES_MAX: Final = 256
"""Pieces that one end may have written and the other not read."""


class MemoryLink:
    """One end of a pair of queues."""

    def __init__(self, remote: str, incoming: asyncio.Queue[bytes]) -> None:
        self.remote = remote
        self._incoming = incoming
        self._other: MemoryLink | None = None
        self._ended = False

    def join(self, other: MemoryLink) -> None:
        """Make `other` the far end."""
        self._other = other

    async def read(self) -> bytes:
        """Return some bytes, none at the end of the stream."""
        if self._ended and self._incoming.empty():
            return b""
        return await self._incoming.get()

    async def write(self, data: bytes) -> None:
        """Give bytes to the other end; wait while it has too many unread."""
        other = self._other
        if self._ended or other is None or other._ended:
            raise ConnectionResetError("the link is closed")
        await other._incoming.put(data)

    async def close(self) -> None:
        """End the stream in both directions."""
        self.abort()

    def abort(self) -> None:
        """End the stream at once; a waiting reader wakes."""
        for end in (self, self._other):
            if end is not None and not end._ended:
                end._ended = True
                if not end._incoming.full():
                    end._incoming.put_nowait(b"")


class MemoryListener:
    """A place in a memory transport."""

    def __init__(self, places: dict[int, Accept], port: int) -> None:
        self._places = places
        self.port = port

    async def close(self) -> None:
        """Accept no more links."""
        self._places.pop(self.port, None)


class MemoryTransport:
    """A network of its own; nodes that share the object reach each other at `memory:port`."""

    def __init__(self) -> None:
        self._places: dict[int, Accept] = {}
        self._free = itertools.count(1)
        self._running: set[asyncio.Task[None]] = set()

    async def dial(self, address: str) -> Link:
        """Return a link to a node that listens here."""
        _, port = parse_address(address)
        accept = self._places.get(port)
        if accept is None:
            raise ConnectionRefusedError(f"nobody listens at {address}")
        near = MemoryLink(address, asyncio.Queue(PENDING_PIECES_MAX))
        far = MemoryLink(f"memory:{next(self._free)}", asyncio.Queue(PENDING_PIECES_MAX))
        near.join(far)
        far.join(near)
        task = asyncio.ensure_future(_run(accept, far))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return near

    async def listen(self, bind: str, port: int, accept: Accept) -> Listener:
        """Accept links at a port of this network."""
        if port in self._places:
            raise UsageError(f"port {port} on {bind} is in use; choose another")
        if port == 0:
            port = next(free for free in itertools.count(20_000) if free not in self._places)
        self._places[port] = accept
        return MemoryListener(self._places, port)


async def _run(accept: Accept, link: Link) -> None:
    await accept(link)
