"""Transport: how two nodes get a byte stream between them. What runs on it is not its business.

A link is a two-way byte stream to one peer. Frames, messages and time-outs belong to the
connection above it, so a transport is three verbs: dial, listen, and on a link read, write, close.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from datalattice.errors import UsageError

READ_BYTES: Final = 1 << 18
"""Most bytes taken from a link at once."""

PORT_MAX: Final = 65_535


class Link(Protocol):
    """A byte stream to one peer."""

    @property
    def remote(self) -> str:
        """Where the other end is, as text."""
        ...

    async def read(self) -> bytes:
        """Return some bytes, none at the end of the stream."""
        ...

    async def write(self, data: bytes) -> None:
        """Take bytes to be sent; return when there is room for more.

        Raises: OSError: the stream is broken.
        """
        ...

    async def close(self) -> None:
        """Send what was taken, then end the stream."""
        ...

    def abort(self) -> None:
        """End the stream at once."""
        ...


class Listener(Protocol):
    """Something that accepts links until it is closed."""

    @property
    def port(self) -> int:
        """The port that peers dial."""
        ...

    async def close(self) -> None:
        """Accept no more links; those accepted live on."""
        ...


Accept = Callable[[Link], Awaitable[None]]
"""Called with each new link; the link lives as long as the call."""


class Transport(Protocol):
    """A way to reach nodes."""

    async def dial(self, address: str) -> Link:
        """Return a link to the node at `address`.

        Raises: UsageError: not an address of this transport. OSError: it cannot be reached.
        """
        ...

    async def listen(self, bind: str, port: int, accept: Accept) -> Listener:
        """Accept links at a local address; port 0 is any free one.

        Raises: UsageError: the address cannot be used here, or another process uses it.
        """
        ...


def parse_address(address: str) -> tuple[str, int]:
    """Return (host, port) of `tcp://host:port` or `host:port`; IPv6 hosts stand in brackets.

    Raises: UsageError: anything else.
    """
    text = address.removeprefix("tcp://")
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or "/" in host:
        host = ""
    if not colon or not host or not (port.isascii() and port.isdigit()) or len(port) > 5:
        raise UsageError(f"an address is host:port or tcp://host:port, got {address!r}")
    if not 0 < int(port) <= PORT_MAX:
        raise UsageError(f"a port to dial is 1 to {PORT_MAX}, got {port} in {address!r}")
    return host, int(port)
