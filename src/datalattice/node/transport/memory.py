"""Memory: streams inside one process, for tests and for nodes embedded side by side."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections import deque
from typing import Final

from datalattice.client import PeerAddress, parse_address
from datalattice.errors import UsageError
from datalattice.node.transport.base import Accept, Link, Listener, OnRefused
from datalattice.wire import MUX_PROTOCOL, PLAIN_PROTOCOL

PENDING_PIECES_MAX: Final = 256  # written by one end and not read by the other


class Pipe:
    """One direction of a link."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._ended = False
        self._changed = asyncio.Event()

    async def get(self) -> bytes:
        """Return the next piece, b"" once the pipe has ended and is empty."""
        while not self._pieces:
            if self._ended:
                return b""
            await self._changed.wait()
        piece = self._pieces.popleft()
        self._wake()
        return piece

    async def put(self, piece: bytes) -> None:
        """Add a piece; wait while too many are unread."""
        while not self._ended and len(self._pieces) >= PENDING_PIECES_MAX:
            await self._changed.wait()
        if self._ended:
            raise ConnectionResetError("the link is closed")
        if piece:
            self._pieces.append(piece)
            self._wake()

    def end(self, *, forget: bool) -> None:
        """Accept no more pieces; wake both ends. `forget`: drop the unread ones."""
        self._ended = True
        if forget:
            self._pieces.clear()
        self._wake()

    def _wake(self) -> None:
        # A new event each time: both ends may wait, and each looks at the pipe again.
        self._changed.set()
        self._changed = asyncio.Event()


class MemoryLink:
    """One end of a pair of pipes. public_key: of the other end, None if it has no key."""

    def __init__(
        self, remote: str, incoming: Pipe, outgoing: Pipe, protocol: str, public_key: bytes | None
    ) -> None:
        self.public_key = public_key
        self.remote = remote
        self.protocol = protocol
        self._incoming = incoming
        self._outgoing = outgoing

    async def read(self) -> bytes:
        """Return some bytes, none at the end of the stream."""
        return await self._incoming.get()

    async def write(self, data: bytes) -> None:
        """Pass bytes to the other end; wait while it has too many unread."""
        await self._outgoing.put(data)

    async def close(self) -> None:
        """End the stream in both directions; the other end still reads what was written."""
        self.abort()

    def abort(self) -> None:
        """End the stream at once; a waiting reader returns."""
        self._incoming.end(forget=True)
        self._outgoing.end(forget=False)


class MemoryListener:
    """A port of a memory transport."""

    def __init__(self, ports: dict[int, tuple[Accept, bytes | None]], port: int) -> None:
        self._ports = ports
        self.port = port
        self.addresses = (f"memory:{port}",)

    async def close(self) -> None:
        """Accept no more links."""
        self._ports.pop(self.port, None)


class MemoryTransport:
    """A network inside this process; nodes that share the object reach each other at `memory:port`.

    The scheme of an address is ignored. Links prove no key, except those of nodes that use `keyed`.
    mux: whether links carry several streams.
    """

    def __init__(self, *, mux: bool = False) -> None:
        self._protocol = MUX_PROTOCOL if mux else PLAIN_PROTOCOL
        self._key: bytes | None = None
        self._ports: dict[int, tuple[Accept, bytes | None]] = {}
        self._free = itertools.count(1)
        self._running: set[asyncio.Future[None]] = set()  # the loop alone keeps no task alive

    def keyed(self, public_key: bytes) -> MemoryTransport:
        """Return the same network for the node with this key, so that its links prove the key."""
        made = copy.copy(self)
        made._key = public_key
        return made

    def endpoint(self, address: str) -> PeerAddress:
        """Return the endpoint of an address in the usual form."""
        return parse_address(address)

    async def dial(self, address: str) -> Link:
        """Return a link to a node that listens here."""
        found = self._ports.get(parse_address(address).port)
        if found is None:
            raise ConnectionRefusedError(f"no node listens at {address}")
        accept, key = found
        there, back = Pipe(), Pipe()
        far = MemoryLink(f"memory:{next(self._free)}", there, back, self._protocol, self._key)
        task = asyncio.ensure_future(accept(far))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return MemoryLink(address, back, there, self._protocol, key)

    async def listen(
        self, bind: str, port: int, accept: Accept, refused: OnRefused | None = None
    ) -> Listener:
        """Accept links at a port of this network."""
        if port in self._ports:
            raise UsageError(f"port {port} on {bind} is in use; choose another")
        if port == 0:
            port = next(free for free in itertools.count(20_000) if free not in self._ports)
        self._ports[port] = accept, self._key
        return MemoryListener(self._ports, port)

    async def close(self) -> None:
        """Do nothing."""
