"""A caller is proved by the head of a request; a refusal does not wait for the body."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.client.credentials import sign_request
from datalattice.crypto import SeededEntropy
from datalattice.engine import MemoryEngine
from datalattice.service import Service
from datalattice.service.access import (
    SPENT_TABLE,
    AccessControl,
    Allowance,
    Audit,
    Authenticator,
    Policies,
    Policy,
    RateLimits,
    SpentIds,
)
from datalattice.testing.callers import ALICE, ALICE_DID, BOB, BOB_DID, NODE_DID, NOW_MS, token_of
from datalattice.testing.clocks import StoppedClock

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("httptools")
pytest.importorskip("mcp")

from datalattice.api.mcp import McpDoor, McpTools  # noqa: E402 - only where they are
from datalattice.api.rest import (  # noqa: E402
    HTTP_LIMITS,
    SMALL_BODY_BYTES,
    BoundedHttp,
    rest_app,
)
from datalattice.api.rest.room import DRAINED_BYTES_MAX  # noqa: E402
from datalattice.api.webdav import WebDavDoor  # noqa: E402

LONG = b"content-length: 50000000\r\n"
MANY = Allowance(10_000, 10_000)


class Door:
    """All that HTTP serves at one listener, with Bob as its administrator."""

    def __init__(self, node: Any, folder: Path) -> None:
        self.listening = socket.socket(proto=socket.IPPROTO_TCP)
        self.listening.bind(("127.0.0.1", 0))
        self.listening.listen(64)
        self.url = "http://{}:{}".format(*self.listening.getsockname())
        self.limits = RateLimits({"reads": MANY, "effects": MANY, "failures": MANY})
        self.audit = Audit()
        prover = Authenticator(
            NODE_DID, [self.url], SpentIds(MemoryEngine([SPENT_TABLE])), self.limits
        )
        policies = Policies(folder, Policy(frozenset([BOB_DID])))
        access = AccessControl(prover, policies, self.limits, self.audit, StoppedClock(NOW_MS))
        self.service = Service(node, access=access)
        webdav, mcp = (
            WebDavDoor(self.service, access.enter),
            McpDoor(McpTools(self.service, "all")),
        )
        mounts: dict[str, Any] = {"/dlfs": webdav, "/mcp": mcp.app(access.enter)}
        app, rest = rest_app(self.service, access.enter, mounts=mounts)
        http: Any = partial(BoundedHttp, HTTP_LIMITS)
        config = uvicorn.Config(app, http=http, log_level="critical", lifespan="off")
        self.server = uvicorn.Server(config)

        async def serve() -> None:
            async with mcp.serving():
                await self.server.serve([self.listening])

        self.closing = (self.listening, rest, webdav)
        self.thread = threading.Thread(target=lambda: asyncio.run(serve()))
        self.thread.start()

    def connect(self) -> socket.socket:
        # Far less than the door waits for a body.
        return socket.create_connection(self.listening.getsockname(), HTTP_LIMITS.stall_s / 2)

    def head(self, verb: str, path: str, *headers: bytes) -> bytes:
        host = self.url.partition("://")[2].encode()
        lines = b"".join([b"host: " + host + b"\r\n", *headers])
        return f"{verb} {path} HTTP/1.1\r\n".encode() + lines + b"\r\n"

    def end(self) -> None:
        self.server.should_exit = True
        self.thread.join(60)
        for one in self.closing:
            one.close()
        assert not self.thread.is_alive()


@pytest.fixture
def node() -> Iterator[Any]:
    with datalattice.open(":memory:") as made:
        made.drive("d").ensure()
        made.drive("d").write("/f", b"was")
        yield made


@pytest.fixture
def door(node: Any, tmp_path: Path) -> Iterator[Door]:
    made = Door(node, tmp_path)
    yield made
    made.end()


def answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Return one answer, whose body has a length: status, headers, body."""
    text = b""
    while b"\r\n\r\n" not in text:
        more = connection.recv(65_536)
        assert more, text
        text += more
    head, _, body = text.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    while len(body) < int(headers["content-length"]):
        body += connection.recv(65_536)
    return int(first.split()[1]), headers, body


def of_token(token: str) -> bytes:
    return f"authorization: Bearer {token}\r\n".encode()


JSON = b"content-type: application/json\r\n"
ALICES, BOBS = of_token(token_of(ALICE)), of_token(token_of(BOB))
RECORDS: tuple[Any, ...] = ("POST", "/api/v1/queues/log/records", JSON)
WRITES: tuple[Any, ...] = ("POST", "/api/v1/databases/shop/writes", JSON)
FILE: tuple[Any, ...] = ("PUT", "/api/v1/drives/d/files/f")
DAV_FILE: tuple[Any, ...] = ("PUT", "/dlfs/own/d/f")
DAV_PROPERTIES: tuple[Any, ...] = ("PROPPATCH", "/dlfs/own/d/f")
TOOL: tuple[Any, ...] = ("POST", "/mcp", JSON)

REFUSED: dict[str, tuple[Any, ...]] = {
    "records of nobody": (*RECORDS, 401),
    "records of nobody, chunked": (*RECORDS, 401),
    "records of a stranger": (*RECORDS, ALICES, 403),
    "records with a bad token": (*RECORDS, of_token("x"), 401),
    "writes of nobody, whose owner stands in the body": (*WRITES, 401),
    "a value of nobody": ("POST", "/api/v1/values", JSON, 401),
    "a token for a stranger": ("POST", "/api/v1/tokens", JSON, ALICES, 403),
    "a rule of a stranger": ("PUT", "/api/v1/access/lattice/kv", JSON, ALICES, 403),
    "a file of nobody": (*FILE, 401),
    "a file of a stranger": (*FILE, ALICES, 403),
    "a file with a bad token": (*FILE, of_token("x"), 401),
    "a file of nobody, over WebDAV": (*DAV_FILE, 401),
    "properties of nobody": (*DAV_PROPERTIES, 401),
    "properties of a stranger": (*DAV_PROPERTIES, ALICES, 403),
    "a lock of nobody": ("LOCK", "/dlfs/own/d/f", 401),
    "a search with a bad token": ("PROPFIND", "/dlfs/own/d/f", of_token("x"), 401),
    "a tool with a bad token": (*TOOL, of_token("x"), 401),
    "no route": ("POST", "/api/v1/nothing", JSON, 404),
    "no method": ("PUT", "/api/v1/status", JSON, 405),
    "a body beyond the limit": ("POST", "/api/v1/values", JSON, BOBS, 413),
}


@pytest.mark.parametrize("expect", [b"", b"expect: 100-continue\r\n"])
@pytest.mark.parametrize("name", list(REFUSED))
def test_a_refusal_does_not_wait_for_the_body(name: str, expect: bytes, door: Door) -> None:
    verb, path, *headers, status = REFUSED[name]
    length = b"transfer-encoding: chunked\r\n" if "chunked" in name else LONG
    length = length.replace(b"5", b"6") if status == 413 else length
    with door.connect() as stranger:
        stranger.sendall(door.head(verb, path, *headers, length, expect))
        # The first answer: there was no `100 Continue` before it.
        found, shown, body = answer(stranger)
        assert (found, shown["connection"]) == (status, "close"), body


def test_a_caller_without_calls_left_is_answered_before_its_body(door: Door) -> None:
    door.limits.change({"effects": Allowance(0.001, 1)})
    with door.connect() as caller:
        caller.sendall(door.head(*RECORDS, BOBS, b"content-length: 3\r\n") + b"[1]")
        assert answer(caller)[0] == 201
    for verb, path, *headers in (RECORDS, WRITES, FILE, DAV_FILE, DAV_PROPERTIES):
        with door.connect() as caller:
            caller.sendall(door.head(verb, path, *headers, BOBS, LONG))
            found, shown, _ = answer(caller)
            assert (found, shown["connection"]) == (429, "close"), path
            assert int(shown["retry-after"]) > 1
    # A look at the head counts nothing, and another caller has calls of its own.
    with door.connect() as caller:
        caller.sendall(door.head(*RECORDS, ALICES, LONG))
        assert answer(caller)[0] == 403


def test_who_may_write_is_asked_to_go_on(door: Door, node: Any) -> None:
    expect = b"expect: 100-continue\r\n"
    for target, status in ((RECORDS, 201), (FILE, 200), (DAV_FILE, 204)):
        with door.connect() as caller:
            caller.sendall(door.head(*target, BOBS, b"content-length: 3\r\n", expect))
            assert caller.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
            caller.sendall(b"[1]")
            assert caller.recv(65_536).startswith(b"HTTP/1.1 %d " % status)
    assert list(node.queue("log")) == [1]
    assert node.drive("d").read("/f") == b"[1]"


@pytest.mark.parametrize("more", [0, 1])
def test_a_connection_goes_on_behind_a_short_body_that_was_refused(more: int, door: Door) -> None:
    body = b"x" * (SMALL_BODY_BYTES + more)
    with door.connect() as caller:
        caller.sendall(door.head(*RECORDS, b"content-length: %d\r\n" % len(body)))
        found, shown, _ = answer(caller)
        assert (found, "connection" in shown) == (401, bool(more))
        caller.sendall(body)
        if more:
            assert caller.recv(1) == b""
        else:
            caller.sendall(door.head("GET", "/api/v1/status", BOBS))
            assert answer(caller)[0] == 200


@pytest.mark.parametrize("size", [SMALL_BODY_BYTES + 1, 1_000_000])
def test_a_caller_that_sends_on_reads_its_refusal(size: int, door: Door) -> None:
    with door.connect() as caller:
        caller.sendall(door.head(*FILE, b"content-length: %d\r\n" % size) + b"x" * size)
        assert answer(caller)[0] == 401
        assert caller.recv(1) == b""  # an end, and no reset


def test_a_caller_that_sends_without_end_is_cut_off(door: Door) -> None:
    sent, most = 0, 4 * DRAINED_BYTES_MAX
    with door.connect() as caller:
        caller.sendall(door.head(*FILE, b"content-length: %d\r\n" % most))
        assert answer(caller)[0] == 401
        try:
            while sent < most:
                sent += caller.send(b"x" * 65_536)
        except (BrokenPipeError, ConnectionResetError):
            most = sent
    assert sent < 2 * DRAINED_BYTES_MAX


# --- signed requests ------------------------------------------------------------------------------

OFFERED = b'["signed"]'
PATCHED = (
    b'<d:propertyupdate xmlns:d="DAV:"><d:set><d:prop><x xmlns="u">1</x></d:prop></d:set>'
    b"</d:propertyupdate>"
)
TOOLED = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "kv_write", "arguments": {"database": "t", "writes": [{"key": "a"}]}},
    }
).encode()
ACCEPT = b"accept: application/json, text/event-stream\r\n"
BODIES: dict[str, tuple[Any, ...]] = {
    "rest": (*RECORDS, OFFERED, 201),
    "upload": (*FILE, OFFERED, 200),
    "webdav": (*DAV_PROPERTIES, PATCHED, 207),
    "webdav upload": (*DAV_FILE, OFFERED, 204),
    "mcp": (*TOOL, ACCEPT, TOOLED, 200),
}


def signed_head(door: Door, verb: str, path: str, body: bytes | None, seed: int) -> bytes:
    digest = None if body is None else hashlib.sha256(body).digest()
    made = sign_request(
        BOB, verb, door.url + path, NOW_MS, body_sha256=digest, entropy=SeededEntropy(seed)
    )
    return "".join(f"{name}: {value}\r\n" for name, value in made.items()).encode()


@pytest.mark.parametrize("name", list(BODIES))
def test_a_signature_is_checked_over_the_head_and_then_the_body(
    name: str, door: Door, node: Any
) -> None:
    verb, path, *headers, body, status = BODIES[name]
    before = node.cursor().get()
    for seed, shown in (
        (1, signed_head(door, verb, path, None, 1)),  # it does not cover the body
        (2, signed_head(door, verb, f"{path}x", body, 2)),  # it is of another head
    ):
        with door.connect() as caller:
            caller.sendall(door.head(verb, path, *headers, shown, LONG))
            assert answer(caller)[0] == 401, seed
    length = b"content-length: %d\r\n" % len(body)
    with door.connect() as caller:
        caller.sendall(
            door.head(verb, path, *headers, signed_head(door, verb, path, body, 3), length)
            + body[:-1]
            + b"?"
        )
        assert answer(caller)[0] == 401
    assert node.cursor().get() == before
    reasons = [one.reason for one in door.audit.ring.after(0)[1] if one.action == "authenticate"]
    assert reasons == ["components", "signature", "digest"]
    with door.connect() as caller:
        caller.sendall(
            door.head(verb, path, *headers, signed_head(door, verb, path, body, 4), length) + body
        )
        assert caller.recv(65_536).startswith(b"HTTP/1.1 %d " % status)
    assert node.cursor().get() != before


def test_another_body_counts_as_a_failure(door: Door) -> None:
    door.limits.change({"effects": MANY, "failures": Allowance(0.001, 1)})
    verb, path, *headers, body, _ = BODIES["rest"]
    length = b"content-length: %d\r\n" % len(body)
    for seed, status in ((1, 401), (2, 429)):
        with door.connect() as caller:
            shown = signed_head(door, verb, path, b"another", seed)
            caller.sendall(door.head(verb, path, *headers, shown, length) + body)
            assert answer(caller)[0] == status


def test_a_refusal_is_recorded_once(door: Door) -> None:
    with door.connect() as caller:
        caller.sendall(door.head(*RECORDS, ALICES, LONG))
        assert answer(caller)[0] == 403
    (record,) = door.audit.ring.after(0)[1]
    assert (record.action, record.did, record.code) == ("queue.offer", ALICE_DID, "unauthorized")
