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
    HTTP_ADDRESS_CONNECTIONS_MAX,
    HTTP_CONNECTIONS_MAX,
    HTTP_REQUEST_BYTES_MAX,
    LOOPBACK_CONNECTIONS,
    HttpListener,
    Response,
)
from datalattice.testing.polling import LIMIT_S

COUNTS: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time no client out on a machine that stands still, but where a test sets the time."""
    for name in ("REQUEST_TIMEOUT_S", "EXCHANGE_TIMEOUT_S"):
        monkeypatch.setattr(node_http, name, 2 * LIMIT_S)


async def hello() -> Response:
    return Response(HTTPStatus.OK, "hell\u00f6\n")


async def never() -> Response:
    await asyncio.Event().wait()
    raise AssertionError


async def large() -> Response:
    return Response(HTTPStatus.OK, "x" * 20_000_000)


def serving(work: Callable[[HttpListener], Awaitable[None]]) -> None:
    async def run() -> None:
        COUNTS.clear()
        pages = {"/hello": hello, "/never": never, "/large": large}
        async with asyncio.timeout(LIMIT_S):
            listener = await HttpListener.start(
                "127.0.0.1", 0, pages, lambda name: COUNTS.update([name]), ["watch.example"]
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
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
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
        answer = await exchange(listener, request_line + b"\r\nHost: localhost\r\n\r\n")
        assert status_of(answer) == status
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            assert b"\r\nAllow: GET, HEAD\r\n" in answer
        assert COUNTS["http-refused"] == (status != HTTPStatus.OK)

    serving(work)


@pytest.mark.parametrize(("more", "status"), [(-1, 200), (0, 200), (1, 400)])
def test_a_request_has_a_largest_size(more: int, status: int) -> None:
    start, end = b"GET /hello HTTP/1.1\r\nHost: localhost\r\nX: ", b"\r\n\r\n"
    # The end of the headers is not counted by the stream that looks for it.
    padding = b"x" * (HTTP_REQUEST_BYTES_MAX - len(start) + more)

    async def work(listener: HttpListener) -> None:
        assert status_of(await exchange(listener, start + padding + end)) == status

    serving(work)


def test_slow_requests_and_pages_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_http, "REQUEST_TIMEOUT_S", 0.1)
    monkeypatch.setattr(node_http, "EXCHANGE_TIMEOUT_S", 0.2)

    async def work(listener: HttpListener) -> None:
        for request in (b"", b"GET /hello HT", b"GET /never HTTP/1.0\r\n\r\n"):
            assert await cut(listener, request)
        assert COUNTS["http-timeout"] == 3

    serving(work)


async def silent(listener: HttpListener, count: int, source: str) -> list[asyncio.StreamWriter]:
    """Open connections that say nothing, and wait until they are known."""
    opened = []
    before = len(listener._clients)
    for _ in range(count):
        _, writer = await asyncio.open_connection(
            "127.0.0.1", listener.port, local_addr=(source, 0)
        )
        opened.append(writer)
    while len(listener._clients) < before + count:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0)
    return opened


QUICK = b"GET /hello HTTP/1.0\r\n\r\n"


def test_slow_clients_of_this_machine_do_not_keep_a_quick_one_out() -> None:
    async def work(listener: HttpListener) -> None:
        slow = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(32)]
        assert status_of(await exchange(listener, QUICK)) == HTTPStatus.OK
        # The quick one came last, so all before it had their turn to be ended.
        assert COUNTS["http-evicted"] == 32 - LOOPBACK_CONNECTIONS + 1
        for _, writer in slow:
            writer.close()

    serving(work)


def test_a_client_that_does_not_take_its_answer_makes_room_for_a_quick_one() -> None:
    async def work(listener: HttpListener) -> None:
        slow = await silent(listener, LOOPBACK_CONNECTIONS, "127.0.0.1")
        for writer in slow:
            writer.write(b"GET /large HTTP/1.0\r\n\r\n")
        while sum(one.writer.transport.get_write_buffer_size() > 0 for one in listener._clients) < (  # noqa: ASYNC110 - no event
            LOOPBACK_CONNECTIONS
        ):
            await asyncio.sleep(0)
        assert status_of(await exchange(listener, QUICK)) == HTTPStatus.OK
        assert COUNTS == {"http-evicted": 1}
        for writer in slow:
            writer.close()

    serving(work)


@pytest.mark.parametrize("address", ["127.0.0.9", "127.0.1.1"])
def test_of_too_many_the_one_that_waits_longest_ends(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """All but 127.0.0.1 stand for other machines here."""
    monkeypatch.setattr(node_http, "source_of", lambda host: host if host != "127.0.0.1" else None)

    async def work(listener: HttpListener) -> None:
        others = HTTP_CONNECTIONS_MAX - LOOPBACK_CONNECTIONS
        opened = [await silent(listener, LOOPBACK_CONNECTIONS, "127.0.0.1")]
        for number in range(others // HTTP_ADDRESS_CONNECTIONS_MAX):
            source = f"127.0.1.{number + 1}"
            opened.append(await silent(listener, HTTP_ADDRESS_CONNECTIONS_MAX, source))
        assert len(listener._clients) == HTTP_CONNECTIONS_MAX
        assert not COUNTS
        before = list(listener._clients)
        # A further address competes with all other machines, one that has all it may with itself;
        # in both cases the first of 127.0.1.1 has waited longest.
        (late,) = (
            await asyncio.open_connection("127.0.0.1", listener.port, local_addr=(address, 0))
        )[1:]
        while not COUNTS:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        ended = [client for client in before if client not in listener._clients]
        assert ended == [before[LOOPBACK_CONNECTIONS]]
        assert COUNTS == {"http-evicted": 1}
        for writer in [late, *(one for many in opened for one in many)]:
            writer.close()

    serving(work)


def test_clients_that_are_being_served_are_not_ended_for_others() -> None:
    async def work(listener: HttpListener) -> None:
        asking = [
            asyncio.ensure_future(exchange(listener, b"GET /never HTTP/1.0\r\n\r\n"))
            for _ in range(LOOPBACK_CONNECTIONS)
        ]
        while sum(one.waits_since_s is None for one in listener._clients) < len(asking):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        assert await cut(listener, QUICK)
        assert COUNTS == {"http-refused": 1}
        for one in asking:
            one.cancel()
        while listener._clients:
            await asyncio.sleep(0)
            for client in list(listener._clients):
                assert client.task is not None
                client.task.cancel()
        assert status_of(await exchange(listener, QUICK)) == HTTPStatus.OK

    serving(work)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Host: 127.0.0.1:9100", 200),
        (b"Host: [::1]", 200),
        (b"host:[::1]:9100", 200),
        (b"Host: LOCALHOST:80", 200),
        (b"Host: Watch.Example:9100", 200),
        (b"Host: evil.example", 421),
        (b"Host: localhost.evil.example:9100", 421),
        (b"Host: 127.0.0.1.evil.example", 421),
        (b"Host: 127.0.0.1:80a", 421),
        (b"Host: ::1", 421),
        (b"Host: [127.0.0.1]", 421),
        (b"Host:", 421),
        (b"X: y", 400),
        (b"Host: localhost\r\nHost: evil.example", 400),
    ],
)
def test_a_request_through_a_foreign_name_is_misdirected(headers: bytes, status: int) -> None:
    async def work(listener: HttpListener) -> None:
        answer = await exchange(listener, b"GET /hello HTTP/1.1\r\n" + headers + b"\r\n\r\n")
        assert status_of(answer) == status

    serving(work)


def test_a_port_in_use_is_said() -> None:
    async def work(listener: HttpListener) -> None:
        with pytest.raises(UsageError, match=f"http_port {listener.port} on 127.0.0.1 cannot"):
            await HttpListener.start("127.0.0.1", listener.port, {}, COUNTS.update)

    serving(work)
