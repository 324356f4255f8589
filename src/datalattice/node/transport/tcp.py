"""TCP: plain streams, compatible with the reference node."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from typing import Final

from datalattice.errors import UsageError
from datalattice.node.transport.base import READ_BYTES, Accept, Link, Listener, parse_address

BACKLOG: Final = 128
DIAL_TIMEOUT_S: Final = 10.0


class TcpLink:
    """A TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        peer = writer.get_extra_info("peername")
        self.remote = f"{peer[0]}:{peer[1]}" if peer else "unknown"
        raw = writer.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def read(self) -> bytes:
        """Return some bytes, none at the end of the stream; a reset is an end."""
        try:
            return await self._reader.read(READ_BYTES)
        except ConnectionError:
            return b""

    async def write(self, data: bytes) -> None:
        """Take bytes to be sent; return when there is room for more."""
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """Send what was taken, then end the stream."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """End the stream at once."""
        self._writer.transport.abort()


class TcpListener:
    """A listening socket."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.port: int = server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Accept no more links."""
        self._server.close()


class TcpTransport:
    """Plain TCP."""

    async def dial(self, address: str) -> Link:
        """Return a link to `host:port`."""
        host, port = parse_address(address)
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(host, port, limit=READ_BYTES)
        except TimeoutError as error:
            raise OSError(errno.ETIMEDOUT, f"no answer from {address}") from error
        return TcpLink(reader, writer)

    async def listen(self, bind: str, port: int, accept: Accept) -> Listener:
        """Accept links at `bind`:`port`."""

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await accept(TcpLink(reader, writer))

        try:
            server = await asyncio.start_server(
                accepted, bind, port, limit=READ_BYTES, backlog=BACKLOG
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UsageError(
                    f"port {port} on {bind} is in use by another process; choose another"
                ) from error
            text = error.strerror or str(error)
            raise UsageError(f"cannot listen on {bind} port {port}: {text}") from error
        return TcpListener(server)
