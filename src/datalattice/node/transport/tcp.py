"""TCP: streams between machines, encrypted or plain, with one listening port for both.

The first bytes of an inbound stream show its kind: TLS begins with a record header, and no frame of
the protocol can begin with the same bytes.

Source: docs/node.md "Peers"; docs/protocol.md "Limits".
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import Final

from datalattice.client import IROH, PLAIN_SCHEME, TLS, PeerAddress, parse_address, system_reason
from datalattice.client.network import NODE_ALPN, PLAIN_ALPN, TlsIdentity, tune
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError
from datalattice.node.transport.base import (
    Accept,
    Link,
    Listener,
    OnRefused,
    host_port,
    listen_error,
    reached_host,
)
from datalattice.node.transport.strangers import HANDSHAKE_TIMEOUT_S, Strangers
from datalattice.node.transport.tls import RECORD_START, TlsLink
from datalattice.wire import FRAME_READ_BYTES, PLAIN_PROTOCOL

_BACKLOG: Final = 128
_DIAL_TIMEOUT_S: Final = 10.0  # for a connection and its handshake

# How long an inbound stream may be silent if plain streams are accepted: a reference node may have
# nothing to send before its next announcement, which is due every 30 s.
SILENCE_PLAIN_S: Final = 60.0


class TcpLink:
    """A plain TCP connection. It proves no key."""

    public_key: None = None
    protocol: Final = PLAIN_PROTOCOL

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._unread = b""
        self._is_closed = False
        peer = writer.get_extra_info("peername")
        self.remote = host_port(*peer[:2]) if peer else "unknown"
        raw = writer.get_extra_info("socket")
        if raw is not None:
            tune(raw)

    def unread(self, data: bytes) -> None:
        """Put bytes back; the next read returns them."""
        self._unread = data

    async def read(self) -> bytes:
        """Return some bytes, none at the end of the stream or when it broke."""
        if self._unread:
            data, self._unread = self._unread, b""
            return data
        try:
            return await self._reader.read(FRAME_READ_BYTES)
        except OSError:
            return b""

    async def write(self, data: bytes) -> None:
        """Queue bytes to be sent; return when there is room for more."""
        # Once a closed stream has sent what was queued, asyncio has no socket to write to or abort.
        if self._writer.is_closing():
            raise ConnectionResetError("the link is closed")
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """Send what is queued, then end the stream."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        self._is_closed = True

    def abort(self) -> None:
        """End the stream at once."""
        if not self._is_closed:
            self._writer.transport.abort()


class Handshakes:
    """Finds out the kind of inbound streams, and has TLS streams prove a key."""

    def __init__(self, identity: TlsIdentity, *, plain: bool, refused: OnRefused | None) -> None:
        self._identity = identity
        self._plain = plain
        self.strangers = Strangers(refused)

    async def admit(self, link: TcpLink) -> Link | None:
        """Return the link to use, None if the stranger was turned away."""
        timeout_s = SILENCE_PLAIN_S if self._plain else HANDSHAKE_TIMEOUT_S
        admitted: Link | None = None
        try:
            admitted = await self.strangers.admit(link.remote, timeout_s, lambda: self._greet(link))
        finally:
            if admitted is None:
                link.abort()  # nothing else holds it
        return admitted

    async def _greet(self, link: TcpLink) -> Link | None:
        begun = b""
        # "The first two bytes tell TLS (`16 03`) from a frame"; a plain frame may differ in the
        # first one already.
        while len(begun) < len(RECORD_START) and RECORD_START.startswith(begun):
            data = await link.read()
            if not data:
                return None  # a port scan, or a monitor that looks whether we listen
            begun += data
        if not begun.startswith(RECORD_START):
            if not self._plain:
                self.strangers.count("plain-refused", link.remote)
                return None
            link.unread(begun)
            return link
        secured = TlsLink(link, self._identity, dialled=False, begun=begun)
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            await secured.shake_hands()
        return secured


class TcpListener:
    """A listening socket, with the handshakes of its strangers."""

    def __init__(self, server: asyncio.Server, bind: str, handshakes: Handshakes) -> None:
        self._server = server
        self._handshakes = handshakes
        self.port: int = server.sockets[0].getsockname()[1]
        self.addresses = (str(PeerAddress(TLS, reached_host(bind), self.port)),)

    async def close(self) -> None:
        """Accept no more links."""
        self._server.close()
        await self._handshakes.strangers.close()


class TcpTransport:
    """Streams over TCP.

    key_pair: what this side proves to hold; a key made for this run by default.
    plain:    whether inbound streams may be plain. A dialled address names its scheme.
    mux:      whether links over TLS carry several streams if the other side supports it.
    """

    def __init__(
        self, key_pair: KeyPair | None = None, *, plain: bool = False, mux: bool = True
    ) -> None:
        protocols = NODE_ALPN if mux else PLAIN_ALPN
        self._identity = TlsIdentity(key_pair or KeyPair.generate(), protocols)
        self._plain = plain

    def endpoint(self, address: str) -> PeerAddress:
        """Return the endpoint of an address of TCP or TLS."""
        target = parse_address(address)
        if target.scheme == IROH:
            raise UsageError(f"an address of TCP or TLS is host:port, got {address!r}")
        return target

    async def dial(self, address: str) -> Link:
        """Return a link to a node; over TLS, it proves the key that the address names, if any."""
        # Not `self.endpoint`: a transport derived from this one may have addresses of its own kind.
        target = TcpTransport.endpoint(self, address)
        link: TcpLink | None = None
        try:
            async with asyncio.timeout(_DIAL_TIMEOUT_S):
                link = TcpLink(*await _connected(target))
                if target.scheme == PLAIN_SCHEME:
                    return link
                secured = TlsLink(link, self._identity, dialled=True)
                await secured.shake_hands(target.public_key)
                return secured
        except BaseException as error:
            if link is not None:
                link.abort()
            if isinstance(error, TimeoutError):
                raise OSError(errno.ETIMEDOUT, f"no answer from {address}") from error
            if isinstance(error, UnicodeError):
                raise OSError(errno.EINVAL, f"no such host: {address}") from error
            raise

    async def listen(
        self, bind: str, port: int, accept: Accept, refused: OnRefused | None = None
    ) -> Listener:
        """Accept links at `bind`:`port`."""
        handshakes = Handshakes(self._identity, plain=self._plain, refused=refused)

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            link = await handshakes.admit(TcpLink(reader, writer))
            if link is not None:
                await accept(link)

        try:
            server = await asyncio.start_server(
                accepted, bind, port, limit=FRAME_READ_BYTES, backlog=_BACKLOG
            )
        except OSError as error:
            raise listen_error(error, bind, port) from error
        return TcpListener(server, bind, handshakes)

    async def close(self) -> None:
        """Do nothing: it holds nothing between calls."""


async def _connected(target: PeerAddress) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_connection(target.host, target.port, limit=FRAME_READ_BYTES)
    except OSError as error:
        raise OSError(error.errno or errno.EHOSTUNREACH, system_reason(error)) from error
