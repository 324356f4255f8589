"""The HTTP listener: two methods, one answer a connection, everything bounded."""

from __future__ import annotations

import asyncio
import http.client
from collections import Counter
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import pytest

from datalattice.errors import UsageError
from datalattice.node import http as node_http
from datalattice.node.http import (
    HTTP_CONNECTIONS_MAX,
    REQUEST_BYTES_MAX,
    HttpListener,
    Response,
)

COUNTS: Counter[str] = Counter()


async def hello() -> Response:
    return Response(HTTPStatus.OK, "hell\u00f6\n")


async def never() -> Response:
    await asyncio.Event().wait()
    raise AssertionError


def serving(work: Callable[[HttpListener], Awaitable[None]]) -> None:
    async def run() -> None:
        COUNTS.clear()
        pages = {"/hello": hello, "/never": never}
        async with asyncio.timeout(20):
            listener = await HttpListener.start(
                "127.0.0.1", 0, pages, lambda name: COUNTS.update([name])
            )
            try:
                await work(listener)
            finally:
                await listener.close()

    asyncio.run(run())


async def exchange(listener: HttpListener, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


async def cut(listener: HttpListener, request: bytes) -> bool:
    """Return whether a connection ends without an answer."""
    try:
        return not await exchange(listener, request)
    except ConnectionError:
        return True


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_get_and_head_answer_as_a_client_expects() -> None:
    def ask(port: int, method: str) -> tuple[int, dict[str, str], bytes]:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        client.request(method, "/hello?x=1")
        response = client.getresponse()
        found = response.status, dict(response.getheaders()), response.read()
        client.close()
        return found

    async def work(listener: HttpListener) -> None:
        for method in ("GET", "HEAD"):
            status, headers, body = await asyncio.to_thread(ask, listener.port, method)
            assert status == HTTPStatus.OK
            assert headers["Content-Length"] == "7"
            assert headers["Content-Type"] == "text/plain; charset=utf-8"
            assert headers["Connection"] == "close"
            assert body.decode() == ("hell\u00f6\n" if method == "GET" else "")

    serving(work)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /hello HTTP/1.0", 200),
        (b"GET /other HTTP/1.1", 404),
        (b"POST /hello HTTP/1.1", 405),
        (b"DELETE /hello HTTP/1.1", 405),
        (b"GET /hello HTTP/2.0", 505),
        (b"GET /hello", 400),
        (b"GET hello HTTP/1.1", 400),
        (b"GET  /hello HTTP/1.1", 400),
        (b"\xff\x00\x16\x03", 400),
        (b"", 400),
    ],
)
def test_other_requests_get_their_status(request_line: bytes, status: int) -> None:
    async def work(listener: HttpListener) -> None:
        answer = await exchange(listener, request_line + b"\r\nHost: x\r\n\r\n")
        assert status_of(answer) == status
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            assert b"\r\nAllow: GET, HEAD\r\n" in answer
        assert COUNTS["http-refused"] == (status != HTTPStatus.OK)

    serving(work)


@pytest.mark.parametrize(("more", "status"), [(-1, 200), (0, 200), (1, 400)])
def test_a_request_has_a_largest_size(more: int, status: int) -> None:
    start, end = b"GET /hello HTTP/1.1\r\nX: ", b"\r\n\r\n"
    # The end of the headers is not counted by the stream that looks for it.
    padding = b"x" * (REQUEST_BYTES_MAX - len(start) + more)

    async def work(listener: HttpListener) -> None:
        assert status_of(await exchange(listener, start + padding + end)) == status

    serving(work)


def test_slow_requests_and_pages_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_http, "REQUEST_TIMEOUT_S", 0.1)

    async def work(listener: HttpListener) -> None:
        for request in (b"", b"GET /hello HT", b"GET /never HTTP/1.1\r\n\r\n"):
            assert await cut(listener, request)
        assert COUNTS["http-timeout"] == 3

    serving(work)


def test_more_connections_than_there_may_be_are_refused_and_others_served_later() -> None:
    async def work(listener: HttpListener) -> None:
        held = []
        for _ in range(HTTP_CONNECTIONS_MAX):
            held.append(await asyncio.open_connection("127.0.0.1", listener.port))
        while len(listener._clients) < HTTP_CONNECTIONS_MAX:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        assert await cut(listener, b"GET /hello HTTP/1.1\r\n\r\n")
        assert COUNTS["http-refused"] == 1
        for _, writer in held:
            writer.close()
        while listener._clients:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        assert status_of(await exchange(listener, b"GET /hello HTTP/1.1\r\n\r\n")) == HTTPStatus.OK

    serving(work)


def test_a_port_in_use_is_said() -> None:
    async def work(listener: HttpListener) -> None:
        with pytest.raises(UsageError, match=f"http_port {listener.port} on 127.0.0.1 cannot"):
            await HttpListener.start("127.0.0.1", listener.port, {}, COUNTS.update)

    serving(work)
