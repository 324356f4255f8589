"""Connections to checked addresses alone, and one request over one of them.

A name is resolved once for a request. Each address is checked, and the connection goes to a checked
address, while TLS and the `Host` field have the name. Were the name resolved again to connect, DNS
could answer with an address of the local network the second time ("rebinding").
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpcore

from datalattice.errors import DataLatticeError, LimitExceeded, PeerUnavailable
from datalattice.service.venue import OperationFailed
from datalattice.service.venue.adapters.hosts import HostRules, HostUnreached

CONNECT_S: Final = 10.0  # "Connect 10 s, whole 30 s."
WHOLE_S: Final = 30.0

ADDRESSES_MAX: Final = 4
"""Addresses of one name that are tried."""

ANSWER_FIELDS_MAX: Final = 100
"""Most header fields of an answer; httpcore bounds their bytes to 100 KiB."""

ResolveHost = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the IP addresses of a host. Raises: OSError: it has none."""


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Return the IP addresses of a host as the operating system knows them."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=1)  # SOCK_STREAM: one entry for an address
    return [str(address[0]) for *_, address in found]


class AddressRefused(OperationFailed):
    """A host, or every address that it has, may not be asked."""

    code = "address-refused"


class GuardedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to hosts by their checked addresses.

    connections: makes the connection to an address.
    """

    def __init__(
        self,
        rules: HostRules,
        resolve: ResolveHost = resolve_host,
        connections: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        self._rules: Final = rules
        self._resolve: Final = resolve
        self._connections: Final = connections or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  # the interface of httpcore
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that is allowed and answers.

        Raises: AddressRefused: none is allowed. httpcore.ConnectError: none answers.
        """
        why = self._rules.refused_name(host)
        if why is not None:
            raise AddressRefused(why)
        try:
            addresses = list(dict.fromkeys(await self._resolve(host, port)))
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"{host} has no address: {error}") from error
        # Checked after the name was resolved, and the connection goes to the checked address: a
        # second look-up might give another one.
        refused = [self._rules.refused_address(address) for address in addresses]
        allowed = [one for one, why in zip(addresses, refused, strict=True) if why is None]
        if addresses and not allowed:
            raise AddressRefused(f"the host {host} may not be asked: {refused[0]}")
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in allowed[:ADDRESSES_MAX]:
            try:
                return await self._connections.connect_tcp(address, port, timeout)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """Where a request goes: the host as in TLS and `Host`, and the path with its query."""

    scheme: str
    host: str
    port: int
    target: bytes

    @property
    def origin(self) -> tuple[str, str, int]:
        """What may share secrets."""
        return self.scheme, self.host, self.port

    def __str__(self) -> str:
        """Return it without path and query, which may hold secrets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What a host answered; the names of header fields are in lower case."""

    status: int
    fields: tuple[tuple[str, str], ...]
    body: bytes


async def fetch(
    network: httpcore.AsyncNetworkBackend,
    tls: ssl.SSLContext | None,
    method: str,
    to: HttpTarget,
    fields: Sequence[tuple[str, str]],
    body: bytes,
    body_max: int,
) -> HttpAnswer:
    """Ask once, on a connection of its own, without following redirects.

    body_max: bytes of the answer's body.
    Raises: AddressRefused: the host may not be asked. HostUnreached: it cannot be connected to.
            PeerUnavailable: it does not answer. LimitExceeded: the answer is too long.
    """
    url = httpcore.URL(scheme=to.scheme, host=to.host, port=to.port, target=to.target)
    limits: dict[str, Any] = {"timeout": dict.fromkeys(("connect", "read", "write", "pool"), None)}
    limits["timeout"]["connect"] = CONNECT_S
    # Not shared: what one caller left on a connection must not reach another.
    pool = httpcore.AsyncConnectionPool(tls, max_connections=1, network_backend=network)
    sent = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
    try:
        async with (
            contextlib.aclosing(pool),
            pool.stream(method, url, headers=sent, content=body, extensions=limits) as answer,
        ):
            return await _read(to, answer, body_max)
    except DataLatticeError:
        raise
    except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
        raise HostUnreached(f"{to}: {str(error) or type(error).__name__}") from error
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
        reason = str(error) or type(error).__name__
        raise PeerUnavailable(f"{to}: {reason}") from error


async def _read(to: HttpTarget, answer: httpcore.Response, body_max: int) -> HttpAnswer:
    if len(answer.headers) > ANSWER_FIELDS_MAX:
        raise LimitExceeded(
            f"{to} answered with {len(answer.headers)} header fields, at most {ANSWER_FIELDS_MAX}"
        )
    fields = tuple(
        (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in answer.headers
    )
    # A short body could unpack to gigabytes. None was asked for.
    if dict(fields).get("content-encoding", "identity").strip().lower() != "identity":
        raise OperationFailed(f"{to} answered with a compressed body, which is not read")
    body = bytearray()
    async for piece in answer.aiter_stream():
        body += piece
        if len(body) > body_max:
            raise LimitExceeded(f"{to} answered with more than {body_max} bytes")
    return HttpAnswer(answer.status, fields, bytes(body))
