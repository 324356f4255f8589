"""Iroh: QUIC between nodes, with one stream for each link. Needs the package `iroh`.

The key of an iroh endpoint is made from the seed of the node's own key, so the endpoint id is the
node's public key. The handshake of QUIC (TLS 1.3, both sides) proves it. So one key identifies the
node over TLS, over iroh and in its signatures. All links use the mux protocol, which carries the
lattice and any number of stores. A peer that opens a second QUIC stream is cut.

Source: docs/node.md "Iroh".
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import iroh
from iroh import iroh_ffi

from datalattice.client import IROH, PeerAddress, parse_address, system_reason
from datalattice.client.settings import split_listen
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError
from datalattice.node.transport.base import (
    Accept,
    Link,
    Listener,
    OnRefused,
    host_port,
    listen_error,
)
from datalattice.node.transport.strangers import HANDSHAKE_TIMEOUT_S, Strangers
from datalattice.wire import FRAME_READ_BYTES, MUX_PROTOCOL

_DIAL_TIMEOUT_S: Final = 10.0
"""For a connection and its handshake: iroh itself tries for 30 s and more."""

_CLOSE_TIMEOUT_S: Final = 1.0
"""For the last packets of an endpoint to leave."""

_LOOK_S: Final = 2.5
SILENT_LOOKS: Final = 4
"""If nothing came from a peer between this many looks, it is gone: iroh sends something every 5 s.
So a node that was killed and started again is dialled after 10 s; QUIC itself would wait 30 s."""

_WRITE_BYTES: Final = 262_144
"""Bytes that are handed to the library at a time; it copies them."""

REASON_CHARACTERS_MAX: Final = 200
"""Characters of the reason of an error."""

_ALPN: Final = MUX_PROTOCOL.encode()
_ENDED: Final = 0  # code of a connection that ended in order
_ABUSED: Final = 1  # code of one that the peer abused

_LOCATION: Final = re.compile(r" \([^()]*\.rs:\d+:\d+\)")
_WRONG_KEY: Final = "invalid peer certificate"


def _write(builder: Any, value: bytes) -> None:
    with builder._reserve(len(value)):
        end = ctypes.addressof(builder.rbuf.data.contents) + builder.rbuf.len
        ctypes.memmove(end, value, len(value))


# The generated binding copies byte by byte in Python, 3 MB a second; `memmove` copies 80. The
# replacement holds for the whole process and changes only the speed.
iroh_ffi._UniffiRustBufferBuilder.write = _write


class IrohLink:
    """The stream of a QUIC connection. Made by `IrohTransport`."""

    protocol: Final = MUX_PROTOCOL

    def __init__(self, connection: iroh.Connection, stream: iroh.BiStream, remote: str) -> None:
        self.public_key: bytes = connection.remote_id().to_bytes()
        self.remote = remote
        self._connection = connection
        self._sending = stream.send()
        self._receiving = stream.recv()

    async def read(self) -> bytes:
        """Return some bytes, none at the end of the stream or when it broke."""
        try:
            data: bytes = await self._receiving.read(FRAME_READ_BYTES)
        except iroh.IrohError:
            return b""
        return data

    async def write(self, data: bytes) -> None:
        """Queue bytes to be sent; return when there is room for more."""
        try:
            for start in range(0, len(data), _WRITE_BYTES):
                await self._sending.write_all(data[start : start + _WRITE_BYTES])
        except iroh.IrohError as error:
            raise ConnectionResetError(_reason(error)) from error

    async def close(self) -> None:
        """Send what is queued, then end the stream."""
        with contextlib.suppress(iroh.IrohError):
            await self._sending.finish()
            # Wait until the other end has everything: ending a connection drops bytes in flight.
            await self._sending.stopped()
        self._connection.close(_ENDED, b"")

    def abort(self) -> None:
        """End the stream at once."""
        self._connection.close(_ENDED, b"")


class IrohListener:
    """The inbound connections of an endpoint."""

    def __init__(
        self, endpoint: iroh.Endpoint, bind: str, public_key: bytes, refused: OnRefused | None
    ) -> None:
        bound = [split_listen(one) for one in endpoint.bound_sockets()]
        self.port = next(port for host, port in bound if host == bind)
        # For a wildcard, iroh names the addresses of the network interfaces.
        reached = [split_listen(one) for one in endpoint.addr().direct_addresses()]
        self.addresses = tuple(
            str(PeerAddress(IROH, host, port, public_key))
            for host, port in reached
            if port == self.port
        )
        self.strangers = Strangers(refused)
        self.is_closed = False

    async def close(self) -> None:
        """Accept no more links; accepted links stay open."""
        self.is_closed = True
        await self.strangers.close()


class IrohTransport:
    """Links over QUIC.

    key_pair: the key of the node; a key made for this run by default.
    is_relayed: whether nodes can be found by their key alone, and reached through relays if there
                is no direct way. Without it, packets go only to the dialled addresses.
    """

    def __init__(
        self,
        key_pair: KeyPair | None = None,
        *,
        is_relayed: bool = False,
        dial_timeout_s: float = _DIAL_TIMEOUT_S,
    ) -> None:
        self._key_pair = key_pair or KeyPair.generate()
        self._is_relayed = is_relayed
        self._dial_timeout_s = dial_timeout_s
        self._bound: list[tuple[str, iroh.Endpoint]] = []  # with the local address of each
        self._binding = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def endpoint(self, address: str) -> PeerAddress:
        """Return the endpoint of an iroh address."""
        target = parse_address(address)
        if target.scheme != IROH:
            raise UsageError(f"an iroh address is iroh://KEY@host:port, got {address!r}")
        if not target.host and not self._is_relayed:
            raise UsageError(
                f'{address} names no host; a node is looked up by its key with iroh = "relay"'
            )
        return target

    async def dial(self, address: str) -> Link:
        """Return a link to the node whose key the address names."""
        target = self.endpoint(address)
        assert target.public_key is not None
        if target.public_key == self._key_pair.public_key:
            raise OSError(errno.ECONNREFUSED, f"{address} names the key of this node itself")
        try:
            async with asyncio.timeout(self._dial_timeout_s):
                found = await _resolve(target)
                endpoint = await self._endpoint_to(found[0][0] if found else None)
                where = iroh.EndpointAddr(
                    iroh.EndpointId.from_bytes(target.public_key),
                    None,
                    [host_port(*one) for one in found],
                )
                return await self._open(endpoint, where, target)
        except TimeoutError as error:
            raise OSError(errno.ETIMEDOUT, f"no answer from {address}") from error
        except iroh.IrohError as error:
            text = _reason(error)
            if _WRONG_KEY in text:
                text = f"{address} does not prove the key {target.public_key.hex()}"
            raise OSError(errno.ECONNREFUSED, text) from error

    async def _open(
        self, endpoint: iroh.Endpoint, where: iroh.EndpointAddr, target: PeerAddress
    ) -> IrohLink:
        connection = await endpoint.connect(where, _ALPN)
        try:
            stream = await connection.open_bi()
        except BaseException:
            connection.close(_ENDED, b"")
            raise
        return self._link(connection, stream, host_port(target.host, target.port))

    async def listen(
        self, bind: str, port: int, accept: Accept, refused: OnRefused | None = None
    ) -> Listener:
        """Accept links at the UDP port `bind`:`port`."""
        try:
            host = _local_host(bind, port)
        except OSError as error:
            raise listen_error(error, bind, port) from error
        endpoint = await self._bind(host, port, [_ALPN])
        listener = IrohListener(endpoint, host, self._key_pair.public_key, refused)
        if self._is_relayed:
            by_key = PeerAddress(IROH, "", 0, self._key_pair.public_key)
            listener.addresses += (str(by_key),)
        self._run(self._serve(endpoint, listener, accept))
        return listener

    async def close(self) -> None:
        """Close the sockets, and with them the remaining links."""
        bound, self._bound = self._bound, []
        for _, endpoint in bound:
            # Bounded: `close` waits for peers, and some do not answer any more.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await endpoint.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_TIMEOUT_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- endpoints ----------------------------------------------------------------------------

    async def _endpoint_to(self, host: str | None) -> iroh.Endpoint:
        """Return the endpoint from which a host is reached, None for any host."""
        async with self._binding:
            for local, endpoint in self._bound:
                if host is None or _reaches(local, host):
                    return endpoint
            # A node that listens only on loopback dials others from another socket.
            near = host is not None and ipaddress.ip_address(host).is_loopback
            if host is not None and ":" in host:
                return await self._bind("::1" if near else "::", 0, [])
            return await self._bind("127.0.0.1" if near else "0.0.0.0", 0, [])  # noqa: S104

    async def _bind(self, host: str, port: int, protocols: list[bytes]) -> iroh.Endpoint:
        builder = iroh.EndpointBuilder()
        if self._is_relayed:
            builder.apply_n0()
        else:
            builder.apply_minimal()
            builder.relay_mode(iroh.RelayMode.disabled())
        builder.secret_key(self._key_pair.seed)
        builder.alpns(protocols)
        # Security: without an address for both families, iroh would bind all interfaces.
        is_wildcard: bool = ipaddress.ip_address(host).is_unspecified
        other = "127.0.0.1" if ":" in host else "::1"
        try:
            builder.bind_addr(host_port(host, port))
            if not is_wildcard and _is_local(other):
                builder.bind_addr(host_port(other, 0))
            endpoint = await builder.bind()
        except iroh.IrohError as error:
            raise UsageError(
                f"cannot speak iroh at {host_port(host, port)}: {_reason(error)}"
            ) from error
        self._bound.append((host, endpoint))
        return endpoint

    # --- links --------------------------------------------------------------------------------

    async def _serve(self, endpoint: iroh.Endpoint, listener: IrohListener, accept: Accept) -> None:
        while (incoming := await endpoint.accept_next()) is not None:
            with contextlib.suppress(iroh.IrohError):  # it has gone meanwhile
                if listener.is_closed:
                    await incoming.refuse()
                # "Over iroh the 33rd and later ones first prove that they have their address"
                # (docs/protocol.md "Limits").
                elif listener.strangers.are_many and not await incoming.remote_addr_validated():
                    await incoming.retry()
                else:
                    self._run(self._welcome(incoming, listener.strangers, accept))

    async def _welcome(self, incoming: iroh.Incoming, strangers: Strangers, accept: Accept) -> None:
        remote = _remote(await incoming.remote_addr())
        link = await strangers.admit(
            remote, HANDSHAKE_TIMEOUT_S, lambda: self._greet(incoming, remote)
        )
        if link is not None:
            try:
                await accept(link)
            finally:
                link.abort()

    async def _greet(self, incoming: iroh.Incoming, remote: str) -> IrohLink:
        try:
            connection = await (await incoming.accept()).connect()
            try:
                return self._link(connection, await connection.accept_bi(), remote)
            except BaseException:
                connection.close(_ABUSED, b"no stream was opened")
                raise
        except iroh.IrohError as error:
            raise ConnectionResetError(f"{remote}: {_reason(error)}") from error

    def _link(self, connection: iroh.Connection, stream: iroh.BiStream, remote: str) -> IrohLink:
        # Security: "a peer that opens a second one is cut". Each further stream could make this
        # node hold a window of 1.25 MB.
        for opened in (connection.accept_bi, connection.accept_uni):
            self._run(_cut_when(opened, connection))
        self._run(_end_when_silent(connection))
        return IrohLink(connection, stream, remote)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _cut_when(opened: Callable[[], Awaitable[object]], connection: iroh.Connection) -> None:
    with contextlib.suppress(iroh.IrohError):  # the connection has ended
        await opened()
        connection.close(_ABUSED, b"a link has one stream")


async def _end_when_silent(connection: iroh.Connection) -> None:
    """End a connection when its other end has vanished; return when it has ended."""
    seen, silent = -1, 0
    while silent < SILENT_LOOKS:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await connection.closed()
                return
        received = connection.stats().udp_rx_datagrams
        silent = silent + 1 if received == seen else 0
        seen = received
    connection.close(_ENDED, b"nothing came for a while")


async def _resolve(target: PeerAddress) -> list[tuple[str, int]]:
    """Return the IP addresses of a target; none if it is looked up by its key."""
    if not target.host:
        return []
    look_up = asyncio.get_running_loop().getaddrinfo
    try:
        found = await look_up(target.host, target.port, type=socket.SOCK_DGRAM)
    except UnicodeError as error:
        raise OSError(errno.EINVAL, f"no such host: {target.host}") from error
    except OSError as error:
        raise OSError(error.errno or errno.EHOSTUNREACH, system_reason(error)) from error
    return list(dict.fromkeys((str(one[4][0]), int(one[4][1])) for one in found))


def _reaches(local: str, host: str) -> bool:
    """Return whether a socket at a local address reaches a host."""
    own, there = ipaddress.ip_address(local), ipaddress.ip_address(host)
    return own.version == there.version and (
        own.is_unspecified or own.is_loopback == there.is_loopback
    )


def _local_host(bind: str, port: int) -> str:
    """Return the IP address of a local name.

    Raises: OSError: it is not local, or the port is in use; iroh itself does not say which.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(bind, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.bind(address)
    return str(address[0])


def _is_local(host: str) -> bool:
    try:
        _local_host(host, 0)
    except OSError:
        return False
    return True


def _remote(address: iroh.IncomingAddr) -> str:
    return str(address.addr) if address.is_IP() else "relay"


def _reason(error: iroh.IrohError) -> str:
    """Return the innermost cause of an error, in one line without source locations."""
    *_, cause = _LOCATION.sub("", error.message()).strip().splitlines() or [""]
    # The other end may choose a part of the text.
    return "".join(one for one in cause.strip() if one.isprintable())[:REASON_CHARACTERS_MAX]
