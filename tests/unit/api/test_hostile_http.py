"""Hostile bytes at the REST door, over sockets: each costs its own connection alone."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest

import datalattice
from datalattice.service import Service
from datalattice.service.access import Principal
from datalattice.testing.polling import until

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("httptools")

from datalattice.api.rest import BoundedHttp, HttpLimits, rest_app  # noqa: E402 - as above

LIMITS = HttpLimits(head_bytes=4_000, headers=20, connections=8)
SHORT = replace(LIMITS, head_s=0.3, stall_s=0.3)
OFFER = b"POST /api/v1/queues/log/records HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
STATUS = b"GET /api/v1/status HTTP/1.1\r\nhost: x\r\n"


class Door:
    """A REST door with small limits."""

    def __init__(self, service: Service) -> None:
        app, self.rest = rest_app(service, lambda _: Principal(None, "socket"))
        self.listening = socket.socket(proto=socket.IPPROTO_TCP)
        self.listening.bind(("127.0.0.1", 0))
        self.listening.listen(64)
        self.limits = LIMITS
        http: Any = lambda *args, **named: BoundedHttp(self.limits, *args, **named)  # noqa: E731
        config = uvicorn.Config(app, http=http, log_level="critical", lifespan="off")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listening]})
        self.thread.start()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.listening.getsockname(), 30)

    def connect_slow(self, limits: HttpLimits = SHORT) -> socket.socket:
        """Return a connection with limits of its own; all others have their usual time."""
        self.limits = limits
        made = self.connect()
        until(lambda: self.server.server_state.connections)
        self.limits = LIMITS
        return made

    def answer(self, *parts: bytes) -> bytes:
        """Send bytes, and return all that comes until the door ends the connection."""
        with self.connect() as connection:
            try:
                for part in parts:
                    connection.sendall(part)
                return b"".join(iter(partial(connection.recv, 65_536), b""))
            except (ConnectionResetError, BrokenPipeError):
                return b""

    def end(self) -> None:
        self.server.should_exit = True
        self.thread.join(60)
        self.listening.close()
        self.rest.close()
        assert not self.thread.is_alive()


@pytest.fixture
def node() -> Iterator[Any]:
    with datalattice.open(":memory:") as made:
        yield made


@pytest.fixture
def door(node: Any) -> Iterator[Door]:
    made = Door(Service(node))
    yield made
    made.end()


def still_serves(door: Door) -> None:
    assert door.answer(STATUS + b"connection: close\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_a_connection_that_is_reset_after_an_answer_is_let_go(door: Door) -> None:
    connections = door.server.server_state.connections
    with door.connect() as connection:
        connection.sendall(STATUS + b"\r\n")
        connection.recv(1, socket.MSG_PEEK)  # the answer stays unread
        (kept,) = connections
        until(lambda: kept.timeout_keep_alive_task)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: not connections)
    assert kept.timeout_keep_alive_task.cancelled()


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 3\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 3\r\n",
        b"content-length: 3\r\ncontent-length: 5\r\n",
        b"content-length: 3\r\ncontent-length: 3\r\n",
        b"content-length: 3, 5\r\n",
        b"content-length: +3\r\n",
        b"content-length: -3\r\n",
        b"content-length: 0x3\r\n",
        b"content-length: 99999999999999999999\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
        b"transfer-encoding : chunked\r\n",
        b"x: a\r\n\tb\r\ncontent-length: 3\r\n",
        b"x: a\r\n b\r\ncontent-length: 3\r\n",
        b" x: folded\r\ncontent-length: 3\r\n",
        b"x: a\nb: c\r\ncontent-length: 3\r\n\x00",
        b"host: y\r\ncontent-length: 3\r\n",
        b"x\x00y: 1\r\ncontent-length: 3\r\n",
        b"x: a\x00b\r\ncontent-length: 3\r\n",
    ],
)
def test_a_head_that_two_readers_may_read_differently_is_refused(
    head: bytes, door: Door, node: Any
) -> None:
    smuggled = STATUS + b"x-smuggled: 1\r\n\r\n"
    answer = door.answer(OFFER + head + b"\r\n" + b"[1]" + smuggled)
    assert answer.count(b"HTTP/1.1 ") <= 1, answer
    assert b" 200 " not in answer.split(b"\r\n")[0] + b" ", answer
    assert b" 201 " not in answer.split(b"\r\n")[0] + b" ", answer
    assert node.topics() == []
    still_serves(door)


@pytest.mark.parametrize(
    "chunks",
    [
        b"zz\r\n[1]\r\n0\r\n\r\n",
        b"-3\r\n[1]\r\n0\r\n\r\n",
        b"3\r\n[1]x0\r\n\r\n",
        b"fffffffffffffffff\r\n[1]",
    ],
)
def test_chunks_that_are_wrong_are_refused(chunks: bytes, door: Door, node: Any) -> None:
    answer = door.answer(OFFER + b"transfer-encoding: chunked\r\n\r\n" + chunks)
    assert not answer.startswith(b"HTTP/1.1 2"), answer
    assert node.topics() == []
    still_serves(door)


def test_a_head_is_as_large_as_the_limit_and_not_larger(door: Door) -> None:
    def head(size: int, headers: int = 1) -> bytes:
        fixed = STATUS + b"connection: close\r\n"
        each = (size - len(fixed)) // headers
        made = b"".join(b"x%d: " % n + b"a" * (each - 8) + b"\r\n" for n in range(headers))
        return fixed + made + b"\r\n"

    assert door.answer(head(3_900)).startswith(b"HTTP/1.1 200 ")
    assert not door.answer(head(4_200)).startswith(b"HTTP/1.1 200 ")
    assert door.answer(head(3_000, 17)).startswith(b"HTTP/1.1 200 ")
    assert not door.answer(head(3_000, 21)).startswith(b"HTTP/1.1 200 ")
    # A header that never ends is not kept.
    assert not door.answer(STATUS + b"x: ", b"a" * 200_000).startswith(b"HTTP/1.1 200 ")
    assert not door.answer(b"GET /" + b"a" * 200_000).startswith(b"HTTP/1.1 200 ")
    still_serves(door)


@pytest.mark.parametrize("parts", [(), (b"G",), (STATUS,), (STATUS + b"x: 1",)])
def test_a_head_comes_in_time(parts: tuple[bytes, ...], door: Door) -> None:
    with door.connect_slow() as slow:
        for part in parts:
            slow.sendall(part)
        still_serves(door)
        answer = b"".join(iter(partial(slow.recv, 65_536), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_second_head_of_a_connection_comes_in_time_too(door: Door) -> None:
    with door.connect_slow(replace(LIMITS, head_s=2.0)) as slow:
        slow.sendall(STATUS + b"\r\n")
        assert slow.recv(65_536).startswith(b"HTTP/1.1 200 ")
        slow.sendall(STATUS)
        answer = b"".join(iter(partial(slow.recv, 65_536), b""))
    assert b"HTTP/1.1 408 " in answer


@pytest.mark.parametrize(
    "target",
    [OFFER, OFFER.replace(b"POST /api/v1/queues/log/records", b"PUT /api/v1/drives/d/files/f")],
)
def test_a_body_that_brings_nothing_is_cut_off(target: bytes, door: Door, node: Any) -> None:
    node.drive("d").ensure()
    before = node.cursor().get()
    target = (
        target.replace(b"application/json", b"application/octet-stream")
        if b"/d/" in target
        else target
    )
    with door.connect_slow() as slow:
        slow.sendall(target + b"content-length: 100\r\n\r\n[1")
        still_serves(door)
        answer = b"".join(iter(partial(slow.recv, 65_536), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert node.cursor().get() == before


def test_a_body_that_goes_on_is_not_cut_off(door: Door, node: Any) -> None:
    with door.connect() as slow:
        slow.sendall(OFFER + b"content-length: 12\r\n\r\n")
        until(lambda: door.server.server_state.connections)
        (http,) = door.server.server_state.connections
        clock, ahead_s = http.loop.time, 0.0
        http.loop.time = lambda: clock() + ahead_s
        for piece in (b"[", b"1", b",", b"2", b",", b"3", b",", b"4", b",", b"5", b"5", b"]"):
            ahead_s += LIMITS.stall_s / 2  # longer in all than the time for progress
            sent_s = http.loop.time()
            slow.sendall(piece)
            until(lambda: http._heard_s >= sent_s)  # noqa: B023 - called at once
        assert slow.recv(65_536).startswith(b"HTTP/1.1 201 ")
    assert list(node.queue("log")) == [1, 2, 3, 4, 55]


def test_a_reader_that_takes_nothing_is_cut_off(door: Door, node: Any) -> None:
    node.drive("d").ensure()
    node.drive("d").write("/f", bytes(30_000_000))
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        slow.settimeout(30)
        door.limits = replace(LIMITS, stall_s=0.3)
        slow.connect(door.listening.getsockname())
        until(lambda: door.server.server_state.connections)
        door.limits = LIMITS
        slow.sendall(b"GET /api/v1/drives/d/files/f HTTP/1.1\r\nhost: x\r\n\r\n")
        slow.recv(1)
        for _ in count():  # until the door has let go of it
            still_serves(door)
            if len(door.server.server_state.connections) == 0:
                break
        size = 0
        try:
            while data := slow.recv(1 << 20):
                size += len(data)
        except ConnectionResetError:
            size += 0  # that is how it was cut off
    assert size < 30_000_000
    still_serves(door)


def test_more_connections_than_there_is_room_for_are_ended(door: Door) -> None:
    held = [door.connect() for _ in range(LIMITS.connections)]
    for one in held:
        one.sendall(STATUS + b"\r\n")
        assert one.recv(65_536).startswith(b"HTTP/1.1 200 ")
    assert door.answer(STATUS + b"connection: close\r\n\r\n") == b""
    for one in held:
        one.close()
    for _ in count():
        if door.answer(STATUS + b"connection: close\r\n\r\n"):
            break


@pytest.mark.parametrize(
    "path",
    [
        b"/api/v1/drives/d/files/../../../../etc/passwd",
        b"/api/v1/drives/d/files/..%2f..%2fetc%2fpasswd",
        b"/api/v1/drives/d/files/%2e%2e/%2e%2e/etc/passwd",
        b"/api/v1/drives/..%2f..%2fetc/files/passwd",
        b"/api/v1/../../etc/passwd",
        b"//etc/passwd",
        b"/api/v1/drives/d/files/\xff",
        b"*",
    ],
)
def test_a_path_leads_to_nothing_but_what_is_in_a_drive(path: bytes, door: Door, node: Any) -> None:
    node.drive("d").ensure()
    for verb in (b"GET", b"PUT"):
        answer = door.answer(
            verb + b" " + path + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"content-length: 0\r\n\r\n"
        )
        assert answer[9:12] in (b"400", b"404", b"405", b""), answer
        assert b"root:" not in answer
    assert node.drive("d").list("/") == []
    still_serves(door)
