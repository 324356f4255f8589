"""mDNS: nodes on the same local network find each other without configuration.

A node registers the service `_lattice._tcp` with its port and public key, and browses for the
services of others. A registration is only a claim: the dialled node has to prove the key. The
module needs the package `zeroconf`, which the extra `mdns` installs.

Source: docs/node.md "Finding peers"; RFC 6762, RFC 6763.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from datalattice.client import TLS, PeerAddress, parse_key
from datalattice.clock import Clock
from datalattice.errors import UsageError
from datalattice.node.directory import FoundNode, is_near, is_usable
from datalattice.version import VERSION

MDNS_SOURCE: Final = "mdns"
SERVICE: Final = "_lattice._tcp.local."

RESOLVE_MS: Final = 3_000
RESOLVING_MAX: Final = 64  # services resolved at a time; others are announced again

LABEL_DIGITS: Final = 32  # hex digits of the key in the name: a DNS label has 63 octets at most

_WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to


class Mdns:
    """One node's registration and browsing. Lives on the event loop.

    learn:      called with each claim. failed: called with each fault.
    interfaces: local addresses to use; empty: all but loopback.
    """

    def __init__(
        self,
        public_key: bytes,
        learn: Callable[[FoundNode], object],
        clock: Clock,
        failed: Callable[[Exception], None],
        interfaces: Sequence[str] = (),
    ) -> None:
        self._public_key = public_key
        self._learn = learn
        self._clock = clock
        self._failed = failed
        self._interfaces = list(interfaces)
        # Loopback addresses are dialled only if the operator chose a loopback interface.
        self._near = any(is_near(one) for one in interfaces)
        self._tasks: set[asyncio.Task[None]] = set()
        self._zeroconf: Any = None
        self._browser: Any = None

    async def start(self, bind: str, port: int | None) -> None:
        """Register the listening port, if others can reach it, and browse.

        Raises: UsageError: the package is missing, or there is no such interface.
        """
        try:
            from zeroconf import InterfaceChoice  # noqa: PLC0415 - an extra
            from zeroconf.asyncio import (  # noqa: PLC0415
                AsyncServiceBrowser,
                AsyncServiceInfo,
                AsyncZeroconf,
            )
        except ImportError as error:
            raise UsageError(
                "mDNS needs the package zeroconf; install it with the extra: datalattice[mdns]"
            ) from error
        for one in self._interfaces:
            _need_interface(one)
        try:
            self._zeroconf = AsyncZeroconf(interfaces=self._interfaces or InterfaceChoice.All)
        except (OSError, RuntimeError) as error:
            raise UsageError(f"cannot speak mDNS here: {error}") from error
        addresses = self._reachable(bind)
        if port is not None and addresses:
            label = self._public_key.hex()[:LABEL_DIGITS]
            own = AsyncServiceInfo(
                SERVICE,
                f"{label}.{SERVICE}",
                port=port,
                properties={"key": self._public_key.hex(), "version": VERSION},
                server=f"{label}.local.",
                parsed_addresses=addresses,
            )
            # Not awaited: probing for the name takes about a second (RFC 6762, 8.1).
            self._run(self._zeroconf.async_register_service(own, allow_name_change=True))
        self._browser = AsyncServiceBrowser(
            self._zeroconf.zeroconf, SERVICE, handlers=[self._heard]
        )

    async def close(self) -> None:
        """Remove the registration and stop browsing."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._browser is not None:
            await self._browser.async_cancel()
        if self._zeroconf is not None:
            await self._zeroconf.async_unregister_all_services()
            await self._zeroconf.async_close()

    def _reachable(self, bind: str) -> list[str]:
        """Return the addresses to register for a listener."""
        if bind not in _WILDCARDS:  # one address; loopback only where the operator chose it
            return [bind] if self._near or not is_near(bind) else []
        if self._interfaces:
            return self._interfaces
        import ifaddr  # noqa: PLC0415 - comes with zeroconf

        found = (ip.ip for adapter in ifaddr.get_adapters() for ip in adapter.ips if ip.is_IPv4)
        return [one for one in found if isinstance(one, str) and not is_near(one)]

    def _heard(self, zeroconf: Any, service_type: str, name: str, state_change: Any) -> None:
        # A removal is ignored: it can be forged, and dialling shows whether the node is there.
        if state_change.name != "Removed" and len(self._tasks) < RESOLVING_MAX:
            self._run(self._resolve(zeroconf, service_type, name))

    async def _resolve(self, zeroconf: Any, service_type: str, name: str) -> None:
        from zeroconf.asyncio import AsyncServiceInfo  # noqa: PLC0415 - an extra

        info = AsyncServiceInfo(service_type, name)
        if await info.async_request(zeroconf, RESOLVE_MS):
            found = self.read(info.properties, info.parsed_addresses(), info.port)
            if found is not None:
                self._learn(found)

    def read(
        self, properties: dict[bytes, bytes | None], addresses: Sequence[str], port: int | None
    ) -> FoundNode | None:
        """Return the claim of a service, None if it makes no usable one."""
        try:
            public_key = parse_key((properties.get(b"key") or b"").decode("ascii"))
        except (UsageError, UnicodeDecodeError):
            return None
        if public_key == self._public_key or not port:  # its own announcement comes back, too
            return None
        # The first address that may be dialled; a service often lists link-local ones as well.
        usable = next((one for one in addresses if is_usable(one, near=self._near)), None)
        if usable is None:
            return None
        address = PeerAddress(TLS, usable, port, public_key)
        return FoundNode(public_key, address, self._clock.now_ms(), MDNS_SOURCE)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - the node goes on without it, degraded
            self._failed(error)


def _need_interface(address: str) -> None:
    """Check that an address is local; on any other address zeroconf would leak a socket."""
    try:
        family, kind, protocol, _, address_info = socket.getaddrinfo(
            address, 0, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address_info)
    except OSError as error:
        raise UsageError(f"no local address to speak mDNS on: {address} ({error})") from error
