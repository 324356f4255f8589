"""HTTP: a small listener for monitoring: GET and HEAD, one answer for each connection.

It bounds the size and time of a request and the number of connections; some are reserved for this
machine. If all connections that a client may use are taken, the client ends that has taken longest
to send its request or to read its answer. So slow clients cannot keep a quick one out.

Source: docs/node.md "Operations"; RFC 9112.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from datalattice.client import system_reason
from datalattice.errors import UsageError
from datalattice.node.bounds import source_of

HTTP_REQUEST_BYTES_MAX: Final = 8_192  # request line and headers together

REQUEST_TIMEOUT_S: Final = 2.0  # for request line and headers to arrive
EXCHANGE_TIMEOUT_S: Final = 10.0  # for the request, the page, and its way to the client

HTTP_CONNECTIONS_MAX: Final = 16
LOOPBACK_CONNECTIONS: Final = 4  # of these, reserved for clients on this machine
HTTP_ADDRESS_CONNECTIONS_MAX: Final = 4  # from one address; this machine counts as one

LOCALHOST: Final = "localhost"
_LOOPBACK: Final = "loopback"

VERSIONS: Final = ("HTTP/1.0", "HTTP/1.1")
_METHODS: Final = ("GET", "HEAD")

TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Response:
    """An answer."""

    status: HTTPStatus
    body: str
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()

    def encode(self, with_body: bool) -> bytes:
        """Return the bytes of the answer. A HEAD answer has the headers of the GET answer."""
        body = self.body.encode("utf-8")
        lines = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",  # every answer is the state at its moment
            "X-Content-Type-Options: nosniff",
            "Connection: close",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        head = "\r\n".join(lines).encode("ascii") + b"\r\n\r\n"
        return head + body if with_body else head


Page = Callable[[], Awaitable[Response]]


@dataclass(eq=False, slots=True)
class _HttpClient:
    """A connection. waits_since_s: since when the client is slow; None while it waits for us."""

    source: str
    writer: asyncio.StreamWriter
    waits_since_s: float | None
    task: asyncio.Task[None] | None = None


class HttpListener:
    """Serves pages by path until it is closed. Make it with `start`."""

    def __init__(
        self,
        pages: Mapping[str, Page],
        count: Callable[[str], None],
        hosts: Iterable[str] = (),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pages = pages
        self._count = count
        self._hosts = frozenset(host.lower() for host in (LOCALHOST, *hosts))
        self._now_s = now_s
        self._server: asyncio.Server | None = None
        self._clients: dict[_HttpClient, None] = {}

    @classmethod
    async def start(
        cls,
        bind: str,
        port: int,
        pages: Mapping[str, Page],
        count: Callable[[str], None],
        hosts: Iterable[str] = (),
    ) -> HttpListener:
        """Listen; port 0 is any free one. Refused requests are counted by name.

        hosts: names accepted in the Host header, beside addresses and `localhost`.
        Raises: UsageError: the address cannot be used here, or another process uses it.
        """
        listener = cls(pages, count, hosts)
        try:
            listener._server = await asyncio.start_server(
                listener._accept, bind, port, limit=HTTP_REQUEST_BYTES_MAX
            )
        except OSError as error:
            reason = system_reason(error)
            raise UsageError(f"http_port {port} on {bind} cannot be used: {reason}") from error
        return listener

    @property
    def port(self) -> int:
        """The port it listens at."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Accept no more, and cut the connections."""
        if self._server is not None:
            self._server.close()
        tasks = [client.task for client in self._clients if client.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        source = (source_of(peer[0]) if peer else None) or _LOOPBACK
        if not self._make_room(source):
            self._count("http-refused")
            writer.transport.abort()  # without an answer: writing one could block, too
            return
        client = _HttpClient(source, writer, self._now_s())
        self._clients[client] = None
        client.task = asyncio.ensure_future(self._serve(client, reader))

        def ended(_task: asyncio.Task[None]) -> None:
            self._clients.pop(client, None)
            writer.transport.abort()  # it may have been cancelled before it began

        client.task.add_done_callback(ended)

    def _make_room(self, source: str) -> bool:
        """Make room for a new client by ending the slowest one; False if all are being served."""
        rivals = [one for one in self._clients if one.source == source]
        limit = LOOPBACK_CONNECTIONS if source == _LOOPBACK else HTTP_ADDRESS_CONNECTIONS_MAX
        if len(rivals) < limit:
            if source == _LOOPBACK:  # its own share is never taken by others
                return True
            rivals = [one for one in self._clients if one.source != _LOOPBACK]
            if len(rivals) < HTTP_CONNECTIONS_MAX - LOOPBACK_CONNECTIONS:
                return True
        # "The client that has waited longest to send its request or to read its answer makes room."
        # A client that waits for this node is not slow.
        slow = [(one.waits_since_s, one) for one in rivals if one.waits_since_s is not None]
        if not slow:
            return False
        slowest = min(slow, key=lambda one: one[0])[1]
        del self._clients[slowest]
        slowest.writer.transport.abort()
        if slowest.task is not None:
            slowest.task.cancel()
        self._count("http-evicted")
        return True

    async def _serve(self, client: _HttpClient, reader: asyncio.StreamReader) -> None:
        writer = client.writer
        try:
            async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    head = await _request_head(reader)
                if head is None:
                    return  # the client disconnected
                client.waits_since_s = None
                answer = await self._answer(head)
                client.waits_since_s = self._now_s()
                writer.write(answer)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except TimeoutError:
            self._count("http-timeout")
        except OSError:
            self._count("http-broken")

    async def _answer(self, head: bytes) -> bytes:
        """Return the bytes that answer a request."""
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        # request-line = method SP request-target SP HTTP-version (RFC 9112, 3)
        if not head or len(words) != 3 or not words[1].startswith("/"):
            text = (
                f"a request has at most {HTTP_REQUEST_BYTES_MAX} bytes and is: GET /path HTTP/1.1"
            )
            return self._refuse(HTTPStatus.BAD_REQUEST, text)
        method, target, version = words
        if version not in VERSIONS:
            return self._refuse(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "spoken: HTTP/1.0, HTTP/1.1")
        if method not in _METHODS:
            allowed = ", ".join(_METHODS)
            return self._refuse(
                HTTPStatus.METHOD_NOT_ALLOWED, f"allowed: {allowed}", (("Allow", allowed),)
            )
        hosts = _hosts(head)
        # RFC 9112, 3.2: exactly one Host field; only HTTP/1.0 may omit it.
        if len(hosts) != 1 and (hosts or version != VERSIONS[0]):
            return self._refuse(HTTPStatus.BAD_REQUEST, "a request names one Host")
        # Security: a browser led here through a foreign name (DNS rebinding) gets nothing.
        if hosts and not self._is_ours(hosts[0]):
            text = "Host has to be an address, localhost or one of http_hosts in node.toml"
            return self._refuse(HTTPStatus.MISDIRECTED_REQUEST, text)
        page = self._pages.get(target.partition("?")[0])  # a query is ignored
        if page is None:
            return self._refuse(HTTPStatus.NOT_FOUND, f"pages: {', '.join(self._pages)}")
        return (await page()).encode(with_body=method == "GET")

    def _is_ours(self, host: str) -> bool:
        """Return whether `host`, with or without a port, is accepted in a Host header."""
        name, colon, port = host.rpartition(":")
        if not colon or host.endswith("]"):
            name = host
        elif port and not (port.isascii() and port.isdigit()):
            return False
        if name.startswith("[") and name.endswith("]"):
            return _is_address(name[1:-1], 6)
        return name.lower() in self._hosts or _is_address(name, 4)

    def _refuse(
        self, status: HTTPStatus, text: str, headers: tuple[tuple[str, str], ...] = ()
    ) -> bytes:
        self._count("http-refused")
        return Response(status, text + "\n", headers=headers).encode(with_body=True)


async def _request_head(reader: asyncio.StreamReader) -> bytes | None:
    """Return request line and headers; b"" if they are too long, None without any."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:  # read some of the rest, so that the client sees the answer
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.0):
                await reader.read(HTTP_REQUEST_BYTES_MAX)
        return b""
    except asyncio.IncompleteReadError as error:
        return b"" if error.partial else None


def _hosts(head: bytes) -> list[str]:
    """Return the values of the Host headers of a request."""
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return [value.strip().decode("latin-1") for name, _, value in lines if name.lower() == b"host"]


def _is_address(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False
