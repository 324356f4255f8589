"""Schemes: the transports of a node, each for the schemes of its addresses.

TLS and plain TCP are always available. Iroh needs the extra `iroh`: then a node dials iroh
addresses, and, if configured, listens at the UDP port with the number of its TCP port.

Source: docs/node.md "Addresses", "Iroh".
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from datalattice.client import IROH, PeerAddress, parse_address
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError
from datalattice.node.transport.base import Accept, Link, Listener, OnRefused, Transport
from datalattice.node.transport.tcp import TcpTransport

if TYPE_CHECKING:
    from datalattice.node.transport.iroh import IrohTransport

PORTS_TRIED_MAX: Final = 16
"""Ports that the system may choose until one is free for TCP and for UDP."""


class NodeTransport:
    """TCP, TLS and iroh.

    key_pair: the key that this side proves, over TLS and over iroh.
    plain:    whether inbound TCP streams may be plain.
    iroh:     `off`, `direct` or `relay`, as in `NodeConfig`.
    Raises: UsageError: iroh is configured but not installed.
    """

    def __init__(self, key_pair: KeyPair, *, plain: bool = False, iroh: str = "off") -> None:
        self._tcp = TcpTransport(key_pair, plain=plain)
        self._key_pair = key_pair
        self._mode = iroh
        self._iroh: IrohTransport | None = None
        if iroh != "off":
            self._use_iroh()

    def _use_iroh(self) -> IrohTransport:
        if self._iroh is None:
            try:
                from datalattice.node.transport.iroh import IrohTransport  # noqa: PLC0415 - an extra
            except (ImportError, OSError) as error:  # OSError: its library does not load here
                raise UsageError(
                    "iroh addresses need the package iroh; install it with the extra: "
                    f"datalattice[iroh] ({error})"
                ) from error
            self._iroh = IrohTransport(self._key_pair, is_relayed=self._mode == "relay")
        return self._iroh

    def _of(self, address: str) -> Transport:
        return self._use_iroh() if parse_address(address).scheme == IROH else self._tcp

    def endpoint(self, address: str) -> PeerAddress:
        """Return the endpoint of an address of any of the transports."""
        self._of(address).endpoint(address)
        return parse_address(address)

    async def dial(self, address: str) -> Link:
        """Return a link to the node at `address`, by its scheme."""
        return await self._of(address).dial(address)

    async def listen(
        self, bind: str, port: int, accept: Accept, refused: OnRefused | None = None
    ) -> Listener:
        """Accept links over TCP at `bind`:`port`, and over iroh at the UDP port of that number."""
        if self._mode == "off":
            return await self._tcp.listen(bind, port, accept, refused)
        tries_left = 1 if port else PORTS_TRIED_MAX
        async with contextlib.AsyncExitStack() as taken:
            while True:
                first = await self._tcp.listen(bind, port, accept, refused)
                try:
                    second = await self._use_iroh().listen(bind, first.port, accept, refused)
                except BaseException as error:
                    # The UDP port of this number may be taken. The TCP port stays open until
                    # another is found, so that the system does not choose it again.
                    taken.push_async_callback(first.close)
                    tries_left -= 1
                    if not tries_left or not isinstance(error, UsageError):
                        raise
                else:
                    return BothListeners(first, second)

    async def close(self) -> None:
        """Close the sockets of iroh."""
        if self._iroh is not None:
            await self._iroh.close()


class BothListeners:
    """Two listeners as one, with the port of the first."""

    def __init__(self, first: Listener, second: Listener) -> None:
        self._both = (first, second)
        self.port = first.port
        self.addresses = first.addresses + second.addresses

    async def close(self) -> None:
        """Accept no more links; accepted links stay open."""
        async with contextlib.AsyncExitStack() as stack:
            for one in self._both:
                stack.push_async_callback(one.close)
