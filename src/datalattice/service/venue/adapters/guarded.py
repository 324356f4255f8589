"""Guarded: connections to checked addresses only, and a request over one of them.

A request resolves its host once and checks each address; the connection goes to a checked address,
while TLS and the `Host` field have the name. If the name were resolved again to connect, DNS could
return an address of the local network the second time ("rebinding").
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpcore

from datalattice.errors import LimitExceeded, PeerUnavailable
from datalattice.service.venue import OperationFailed
from datalattice.service.venue.adapters.hosts import HostRules, HostUnreached

CONNECT_S: Final = 10.0  # "Connect 10 s, whole 30 s."
WHOLE_S: Final = 30.0

ADDRESSES_MAX: Final = 4
"""Most addresses of one name that are tried."""

ANSWER_FIELDS_MAX: Final = 100
"""Most header fields of an answer; httpcore bounds their bytes to 100 KiB."""

ResolveHost = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the IP addresses of a host. Raises: OSError: it has none."""


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Return the IP addresses of a host from the operating system's resolver."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=1)  # SOCK_STREAM: one entry for an address
    return [str(address[0]) for *_, address in found]


class AddressRefused(OperationFailed):
    """The rules refuse a host, or all of its addresses."""

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
        """Connect to the first allowed address that answers.

        Raises: AddressRefused: none is allowed. httpcore.ConnectError: none answers.
        """
        why = self._rules.refused_name(host)
        if why is not None:
            raise AddressRefused(why)
        try:
            addresses = list(dict.fromkeys(await self._resolve(host, port)))
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"{host} has no address: {error}") from error
        # The connection goes to an address that was checked: a second look-up could return another.
        refused = [self._rules.refused_address(address) for address in addresses]
        allowed = [one for one, why in zip(addresses, refused, strict=True) if why is None]
        if addresses and not allowed:
            raise AddressRefused(f"the host {host} is refused: {refused[0]}")
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in allowed[:ADDRESSES_MAX]:
            try:
                return await self._connections.connect_tcp(address, port, timeout)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """The target of a request: the host as in TLS and `Host`, and the path with its query."""

    scheme: str
    host: str
    port: int
    target: bytes

    @property
    def origin(self) -> tuple[str, str, int]:
        """The origin: requests to the same one may carry the same secrets."""
        return self.scheme, self.host, self.port

    def __str__(self) -> str:
        """Return the URL without path and query, which may hold secrets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer of a host; the names of header fields are in lower case."""

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
    """Send one request on a connection of its own; redirects are returned, not followed.

    body_max: longest body of the answer, in bytes.
    Raises: AddressRefused: the rules refuse the host. HostUnreached: no connection was made.
            PeerUnavailable: it does not answer. LimitExceeded: the answer is too long.
    """
    url = httpcore.URL(scheme=to.scheme, host=to.host, port=to.port, target=to.target)
    limits: dict[str, Any] = {"timeout": dict.fromkeys(("connect", "read", "write", "pool"), None)}
    # Only connecting has a limit here: the caller limits the whole request.
    limits["timeout"]["connect"] = CONNECT_S
    # A connection of its own: bytes left on a shared one could reach another caller.
    pool = httpcore.AsyncConnectionPool(tls, max_connections=1, network_backend=network)
    sent = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
    try:
        async with (
            contextlib.aclosing(pool),
            pool.stream(method, url, headers=sent, content=body, extensions=limits) as answer,
        ):
            return await _read(to, answer, body_max)
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
    # A short body could unpack to gigabytes; the request accepts only `identity`.
    if dict(fields).get("content-encoding", "identity").strip().lower() != "identity":
        raise OperationFailed(f"{to} answered with a compressed body; only plain ones are accepted")
    body = bytearray()
    async for piece in answer.aiter_stream():
        body += piece
        if len(body) > body_max:
            raise LimitExceeded(f"{to} answered with more than {body_max} bytes")
    return HttpAnswer(answer.status, fields, bytes(body))
