"""A TCP proxy with the faults of a network link: it holds, delays, refuses, cuts at any byte."""

from __future__ import annotations

import asyncio
from typing import Final, Self

READ_BYTES: Final = 1 << 16
HOST: Final = "127.0.0.1"

FORWARD: Final = 0
"""From the dialler to the target."""

BACKWARD: Final = 1


class FaultyProxy:
    """One link: without faults, whoever dials the proxy gets a stream to the target.

    target_port: port of the target; it may change, as a node that starts again gets another one.
    delay_s:     delay of each piece in either direction.
    is_refusing: new connections end at once.
    """

    def __init__(self) -> None:
        self.port = 0
        self.target_port = 0
        self.delay_s = 0.0
        self.is_refusing = False
        self.cuts_count = 0
        self.carried_bytes = 0
        self._open = (asyncio.Event(), asyncio.Event())
        for gate in self._open:
            gate.set()
        self._cut_after: int | None = None
        self._serving: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._server: asyncio.Server | None = None

    @classmethod
    async def start(cls) -> Self:
        """Return a proxy that listens at a free port."""
        proxy = cls()
        proxy._server = await asyncio.start_server(proxy._accept, HOST, 0)
        proxy.port = proxy._server.sockets[0].getsockname()[1]
        return proxy

    async def close(self) -> None:
        """End all streams, and listen no more."""
        assert self._server is not None
        self._server.close()
        self.cut()
        tasks = list(self._serving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- faults -------------------------------------------------------------------------------

    def hold(self, *directions: int) -> None:
        """Let nothing through: neither bytes nor the end of the stream."""
        for direction in directions:
            self._open[direction].clear()

    def heal(self) -> None:
        """End all faults: held bytes pass, and all that follow."""
        self.is_refusing = False
        self.delay_s = 0.0
        self._cut_after = None
        for gate in self._open:
            gate.set()

    def cut(self) -> None:
        """Break all streams now."""
        self.cuts_count += any(self._serving.values())
        for writers in self._serving.values():
            for writer in writers:
                writer.transport.abort()

    def cut_after(self, count: int) -> None:
        """Break all streams once `count` more bytes have passed, in the middle of a piece."""
        self._cut_after = count

    # --- streams ------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        writers = self._serving[task] = [writer]
        try:
            await self._carry(reader, writer, writers)
        except OSError:
            pass  # the target is down: the dialler sees its stream end
        finally:
            for one in writers:
                one.transport.abort()
            del self._serving[task]

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        writers: list[asyncio.StreamWriter],
    ) -> None:
        if self.is_refusing:
            return
        await self._open[FORWARD].wait()
        far_reader, far_writer = await asyncio.open_connection(HOST, self.target_port)
        writers.append(far_writer)
        pumps = (
            asyncio.ensure_future(self._pump(FORWARD, reader, far_writer)),
            asyncio.ensure_future(self._pump(BACKWARD, far_reader, writer)),
        )
        try:
            # A reset in one direction breaks both; an orderly end leaves the other one open.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, direction: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        gate = self._open[direction]
        while True:
            try:
                data = await reader.read(READ_BYTES)
            except OSError:
                await gate.wait()  # a held link hides a reset, too
                raise
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            await gate.wait()
            if not data:
                writer.write_eof()
                return
            self.carried_bytes += len(data)
            if self._cut_after is not None:
                self._cut_after -= len(data)
                if self._cut_after < 0:
                    writer.write(data[: self._cut_after])
                    self._cut_after = None
                    # The bytes leave before the stream breaks, so the peer has half of the piece.
                    await asyncio.sleep(0)
                    self.cut()
                    raise ConnectionResetError("cut")
            writer.write(data)
            await writer.drain()
