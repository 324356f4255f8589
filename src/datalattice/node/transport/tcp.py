"""TCP: streams between machines, encrypted or plain, with one listening port for both.

The first bytes of an inbound stream tell the two apart: TLS begins with a record header that no
frame of the protocol can begin with. Until a stranger has sent enough to be told apart, and proved
a key where one is demanded, it costs little memory for a short time: the number of such strangers
is bounded, and the one that has waited longest makes room for the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import Final

from datalattice.client import PLAIN, PeerAddress, parse_address, system_reason
from datalattice.client.network import NODE_ALPN, PLAIN_ALPN, TlsIdentity, tune
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError
from datalattice.node.transport.base import Accept, Link, Listener, Refused
from datalattice.node.transport.tls import RECORD_START, TlsLink
from datalattice.wire import PLAIN_PROTOCOL, READ_BYTES

BACKLOG: Final = 128
DIAL_TIMEOUT_S: Final = 10.0  # for a connection and its handshake

STRANGERS_MAX: Final = 64  # inbound streams that have not proved a key yet
HANDSHAKE_TIMEOUT_S: Final = 5.0  # from the first byte to the proof of a key

# How long an inbound stream may be silent where plain ones are taken: a reference node may have
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
        peer = writer.get_extra_info("peername")
        self.remote = _address(peer) if peer else "unknown"
        raw = writer.get_extra_info("socket")
        if raw is not None:
            tune(raw)

    def unread(self, data: bytes) -> None:
        """Take back bytes; the next read returns them."""
        self._unread = data

    async def read(self) -> bytes:
        """Return some bytes, none at the end of the stream or when it broke."""
        if self._unread:
            data, self._unread = self._unread, b""
            return data
        try:
            return await self._reader.read(READ_BYTES)
        except OSError:
            return b""

    async def write(self, data: bytes) -> None:
        """Queue bytes to be sent; return when there is room for more."""
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """Send what is queued, then end the stream."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """End the stream at once."""
        self._writer.transport.abort()


def _address(peer: tuple[str, int]) -> str:
    host = f"[{peer[0]}]" if ":" in peer[0] else peer[0]
    return f"{host}:{peer[1]}"


class Handshakes:
    """The inbound streams that have not shown yet who they are."""

    def __init__(self, identity: TlsIdentity, *, plain: bool, refused: Refused | None) -> None:
        self._identity = identity
        self._plain = plain
        self._refused = refused
        self._waiting: dict[TcpLink, asyncio.Task[object] | None] = {}

    async def admit(self, link: TcpLink) -> Link | None:
        """Return the link to use, None if the stranger was turned away."""
        # The oldest goes, not the newest: one that sends nothing cannot keep others out.
        if len(self._waiting) >= STRANGERS_MAX:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.abort()
            self._count("strangers-evicted", oldest.remote)
        self._waiting[link] = asyncio.current_task()
        admitted: Link | None = None
        try:
            admitted = await self._greet(link)
        except TimeoutError:
            self._count("strangers-silent", link.remote)
        except OSError as error:
            self._count("handshakes-failed", str(error))
        finally:
            self._waiting.pop(link, None)
            if admitted is None:
                link.abort()  # nothing else holds it
        return admitted

    async def _greet(self, link: TcpLink) -> Link | None:
        begun = b""
        now_s = asyncio.get_running_loop().time
        end_s = now_s() + (SILENCE_PLAIN_S if self._plain else HANDSHAKE_TIMEOUT_S)
        async with asyncio.timeout_at(end_s):
            # Two bytes decide; a plain frame may differ in the first already.
            while len(begun) < len(RECORD_START) and RECORD_START.startswith(begun):
                data = await link.read()
                if not data:
                    return None  # a port scan, or a monitor that looks whether we listen
                begun += data
        if not begun.startswith(RECORD_START):
            if not self._plain:
                self._count("plain-refused", link.remote)
                return None
            link.unread(begun)
            return link
        secured = TlsLink(link, self._identity, dialled=False, begun=begun)
        async with asyncio.timeout_at(min(end_s, now_s() + HANDSHAKE_TIMEOUT_S)):
            await secured.shake_hands()
        return secured

    async def close(self) -> None:
        """Turn away every waiting stranger."""
        tasks = [task for task in self._waiting.values() if task is not None]
        for link in self._waiting:
            link.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _count(self, name: str, text: str) -> None:
        if self._refused is not None:
            self._refused(name, text)


class TcpListener:
    """A listening socket, with the handshakes of its strangers."""

    def __init__(self, server: asyncio.Server, handshakes: Handshakes) -> None:
        self._server = server
        self._handshakes = handshakes
        self.port: int = server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Accept no more links."""
        self._server.close()
        await self._handshakes.close()


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
        """Return the endpoint of an address in the usual form."""
        return parse_address(address)

    async def dial(self, address: str) -> Link:
        """Return a link to a node; over TLS, it proves the key that the address names, if any."""
        target = parse_address(address)
        link: TcpLink | None = None
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                link = TcpLink(*await _connected(target))
                if target.scheme == PLAIN:
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
        self, bind: str, port: int, accept: Accept, refused: Refused | None = None
    ) -> Listener:
        """Accept links at `bind`:`port`."""
        handshakes = Handshakes(self._identity, plain=self._plain, refused=refused)

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            link = await handshakes.admit(TcpLink(reader, writer))
            if link is not None:
                await accept(link)

        try:
            server = await asyncio.start_server(
                accepted, bind, port, limit=READ_BYTES, backlog=BACKLOG
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UsageError(
                    f"port {port} on {bind} is in use by another process; choose another"
                ) from error
            where = f"{bind} port {port}" if port else bind
            raise UsageError(f"cannot listen on {where}: {system_reason(error)}") from error
        return TcpListener(server, handshakes)


async def _connected(target: PeerAddress) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_connection(target.host, target.port, limit=READ_BYTES)
    except OSError as error:
        raise OSError(error.errno or errno.EHOSTUNREACH, system_reason(error)) from error
