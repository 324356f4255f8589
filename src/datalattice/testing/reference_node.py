"""Reference node: the script of `testing.reference` on plain TCP, as the reference speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from datalattice.cells import Value
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.testing.reference import ReferencePeer
from datalattice.wire import FrameBuffer, encode_frame

_READ_BYTES: Final = 65_536
_FRAME_BYTES_MAX: Final = 50_000_000


class ReferenceNode:
    """A reference peer that listens on loopback; `async with` runs it on the event loop."""

    def __init__(self, keys: KeyPair) -> None:
        self.peer: Final = ReferencePeer(keys, SystemClock().now_ms)
        self._made: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.heard = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        """Where others dial it."""
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def dial(self, port: int) -> None:
        """Connect to a node, and broadcast there from now on."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        self._made.append(writer)
        writer.write(encode_frame(self.peer.challenge()))
        task = asyncio.ensure_future(self._serve(reader, writer, accepted=False))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def write(self, change: Callable[[Value], Value]) -> None:
        """Have its user change the root, and broadcast."""
        self._broadcast(self.peer.write(change))

    def root_sync(self) -> None:
        """Send the root's cell on dialled connections."""
        self._broadcast(self.peer.root_sync())

    async def wait_until(
        self, condition: Callable[[ReferencePeer], bool], timeout_s: float
    ) -> None:
        """Return when `condition` holds. Raises: TimeoutError: it does not in time."""
        async with asyncio.timeout(timeout_s):
            while not condition(self.peer):
                self.heard.clear()
                await self.heard.wait()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer, accepted=True)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, accepted: bool
    ) -> None:
        self._writers.add(writer)
        buffer = FrameBuffer(_FRAME_BYTES_MAX)
        with suppress(ConnectionError):
            while data := await reader.read(_READ_BYTES):
                buffer.feed(data)
                while (payload := buffer.next_payload()) is not None:
                    answers, broadcast = self.peer.heard(payload, accepted=accepted)
                    for answer in answers:
                        writer.write(encode_frame(answer))
                    self._broadcast(broadcast)
                    self.heard.set()
                await writer.drain()
        self._writers.discard(writer)
        if writer in self._made:
            self._made.remove(writer)
        writer.close()

    def _broadcast(self, payloads: list[bytes]) -> None:
        for writer in self._made:
            for payload in payloads:
                writer.write(encode_frame(payload))
