"""Http: a small listener for monitoring: GET and HEAD, one answer for each connection.

It is for a monitor on the same machine or a trusted network, so it does little and bounds all of
it: the size and time of a request, and the number of connections.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from datalattice.errors import UsageError
from datalattice.node.transport import system_reason

REQUEST_BYTES_MAX: Final = 8_192
"""Request line and headers together."""

REQUEST_TIMEOUT_S: Final = 5.0
"""For the request to arrive; and again for the answer to be made, and to be taken."""

HTTP_CONNECTIONS_MAX: Final = 16

VERSIONS: Final = ("HTTP/1.0", "HTTP/1.1")
METHODS: Final = ("GET", "HEAD")

TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Response:
    """An answer."""

    status: HTTPStatus
    body: str
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()

    def encode(self, with_body: bool) -> bytes:
        """Return the bytes of the answer; without its body they still tell the body's length."""
        body = self.body.encode("utf-8")
        lines = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        head = "\r\n".join(lines).encode("ascii") + b"\r\n\r\n"
        return head + body if with_body else head


Page = Callable[[], Awaitable[Response]]


class HttpListener:
    """Serves pages by path until it is closed. Make it with `start`."""

    def __init__(self, pages: Mapping[str, Page], count: Callable[[str], None]) -> None:
        self._pages = pages
        self._count = count
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(
        cls, bind: str, port: int, pages: Mapping[str, Page], count: Callable[[str], None]
    ) -> HttpListener:
        """Listen; port 0 is any free one. Refused requests are counted by name.

        Raises: UsageError: the address cannot be used here, or another process uses it.
        """
        listener = cls(pages, count)
        try:
            listener._server = await asyncio.start_server(
                listener._accept, bind, port, limit=REQUEST_BYTES_MAX
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
        """Accept no more, and leave the clients there are."""
        if self._server is not None:
            self._server.close()
        for client in list(self._clients):
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= HTTP_CONNECTIONS_MAX:
            self._count("http-refused")
            writer.transport.abort()
            return
        client = asyncio.ensure_future(self._serve(reader, writer))
        self._clients.add(client)

        def ended(client: asyncio.Task[None]) -> None:
            self._clients.discard(client)
            writer.transport.abort()  # it may have been cancelled before it began

        client.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await _request_head(reader)
            if head is None:
                return  # it went away
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                answer = await self._answer(head)
            writer.write(answer)
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
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
        if not head or len(words) != 3 or not words[1].startswith("/"):
            text = f"a request has at most {REQUEST_BYTES_MAX} bytes and is: GET /path HTTP/1.1"
            return self._refuse(HTTPStatus.BAD_REQUEST, text)
        method, target, version = words
        if version not in VERSIONS:
            return self._refuse(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "spoken: HTTP/1.0, HTTP/1.1")
        if method not in METHODS:
            allowed = ", ".join(METHODS)
            return self._refuse(
                HTTPStatus.METHOD_NOT_ALLOWED, f"allowed: {allowed}", (("Allow", allowed),)
            )
        page = self._pages.get(target.partition("?")[0])
        if page is None:
            return self._refuse(HTTPStatus.NOT_FOUND, f"pages: {', '.join(self._pages)}")
        return (await page()).encode(with_body=method == "GET")

    def _refuse(
        self, status: HTTPStatus, text: str, headers: tuple[tuple[str, str], ...] = ()
    ) -> bytes:
        self._count("http-refused")
        return Response(status, text + "\n", headers=headers).encode(with_body=True)


async def _request_head(reader: asyncio.StreamReader) -> bytes | None:
    """Return request line and headers; nothing when they are too long, None without any."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.0):
                await reader.read(REQUEST_BYTES_MAX)
        return b""
    except asyncio.IncompleteReadError as error:
        return b"" if error.partial else None
