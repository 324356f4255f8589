"""Transport: the interface of everything that makes byte streams between two nodes.

A link is a two-way byte stream to one peer. Frames, messages and time-outs belong to the connection
above it. So a transport only dials and listens, and a link only reads, writes and closes.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from datalattice.client import system_reason
from datalattice.errors import UsageError

_OUTSIDE: Final = {"0.0.0.0": "192.0.2.1", "::": "2001:db8::1"}  # noqa: S104 - documentation hosts


class Link(Protocol):
    """A byte stream to one peer."""

    @property
    def remote(self) -> str:
        """The address of the other end, as text."""

    @property
    def public_key(self) -> bytes | None:
        """The key that the other end has proved; None if the transport proves no keys."""

    @property
    def protocol(self) -> str:
        """The protocol that both ends agreed on: `PLAIN_PROTOCOL` or `MUX_PROTOCOL` of `wire`."""

    async def read(self) -> bytes:
        """Return some bytes, none at the end of the stream or when it broke.

        Raises: PeerError: the other end abuses the stream.
        """

    async def write(self, data: bytes) -> None:
        """Queue bytes to be sent; return when there is room for more.

        Raises: OSError: the stream is broken.
        """

    async def close(self) -> None:
        """Send what is queued, then end the stream."""

    def abort(self) -> None:
        """End the stream at once."""


class Listener(Protocol):
    """Accepts links until it is closed."""

    @property
    def port(self) -> int:
        """The port that peers dial."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that peers dial."""

    async def close(self) -> None:
        """Accept no more links; accepted links stay open."""


Accept = Callable[[Link], Awaitable[None]]  # called with each new link, which ends with the call
OnRefused = Callable[[str, str], None]  # called with (counter, text) for each refused stranger


class Endpoint(Protocol):
    """The address of a node, for one transport. Endpoints with equal fields are equal.

    `Transport.endpoint` reads the result of `str` back.
    """

    @property
    def public_key(self) -> bytes | None:
        """The key that the node has to prove, None for any."""

    def with_key(self, public_key: bytes | None) -> Endpoint:
        """Return the same endpoint with another key to prove, or none."""


class Transport(Protocol):
    """A way to reach nodes."""

    def endpoint(self, address: str) -> Endpoint:
        """Return the endpoint of an address.

        Raises: UsageError: not an address of this transport.
        """

    async def dial(self, address: str) -> Link:
        """Return a link to the node at `address`.

        Raises: UsageError: not an address of this transport. OSError: it cannot be reached, or does
                not prove the key that the address names.
        """

    async def listen(
        self, bind: str, port: int, accept: Accept, refused: OnRefused | None = None
    ) -> Listener:
        """Accept links at a local address; port 0 is any free one.

        Raises: UsageError: the address cannot be used here, or another process uses it.
        """

    async def close(self) -> None:
        """Free the resources of the transport itself; its listeners and links have ended."""


def host_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen_error(error: OSError, bind: str, port: int) -> UsageError:
    """Return the error that says why nothing can listen at `bind`:`port`."""
    if error.errno == errno.EADDRINUSE:
        return UsageError(f"port {port} on {bind} is in use by another process; choose another")
    where = f"{bind} port {port}" if port else bind
    return UsageError(f"cannot listen on {where}: {system_reason(error)}")


def reached_host(bind: str) -> str:
    """Return the local address that others dial: `bind`, or for a wildcard the main address."""
    outside = _OUTSIDE.get(bind)
    if outside is None:
        return bind
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((outside, 9))  # sends nothing: it chooses the interface
            return str(probe.getsockname()[0])
    except OSError:  # this machine has no network
        return bind
