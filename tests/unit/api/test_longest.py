"""The longest values over REST and gRPC: at the limit, below and above, with each client."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from tests.unit.api.serving import serving

import datalattice
from datalattice.actions import GetValue, OfferRecords, PutValue
from datalattice.cells import encode_message
from datalattice.client import Node
from datalattice.client.asyncrest import AsyncRestClient
from datalattice.client.grpc import AsyncGrpcClient, GrpcClient
from datalattice.client.rest import RestClient, written_request
from datalattice.errors import LimitExceeded, Unauthenticated
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.service import Service
from datalattice.service.access import Credentials, Principal

uvicorn = pytest.importorskip("uvicorn")

from datalattice.api.grpc import GrpcLimits  # noqa: E402
from datalattice.api.rest import HTTP_LIMITS, BoundedHttp, rest_app  # noqa: E402

REQUEST_MAX, ANSWER_MAX, BODY_MAX = 20_000, 30_000, 40_000


@pytest.fixture
def node() -> Iterator[Node]:
    with datalattice.open(":memory:") as made:
        yield made


def called(kind: Any, place: Any, request: Any, **options: Any) -> Any:
    """Have an action done by a client, with an event loop or without one."""

    async def run() -> Any:
        async with kind(place, **options) as client:
            return await client.call(request)

    if kind in (AsyncRestClient, AsyncGrpcClient):
        return asyncio.run(run())
    with kind(place, **options) as client:
        return client.call(request)


@contextmanager
def over_http(node: Node) -> Iterator[str]:
    def enter(credentials: Credentials) -> Principal:
        if "authorization" in credentials.headers:
            raise Unauthenticated("the credential is not valid")
        return Principal(None, "socket")

    app, door = rest_app(Service(node), enter, body_bytes_max=BODY_MAX)
    http: Any = partial(BoundedHttp, HTTP_LIMITS)
    server = uvicorn.Server(uvicorn.Config(app, http=http, log_level="critical", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield "http://{}:{}".format(*listening.getsockname())
        finally:
            server.should_exit = True
            thread.join(60)
            door.close()


def value_of(encoded: int) -> bytes:
    """Return bytes whose message has this length."""
    made = bytes(number * number % 251 for number in range(encoded))
    while len(encode_message(made)) > encoded:
        made = made[: len(made) - (len(encode_message(made)) - encoded)]
    assert len(encode_message(made)) == encoded
    return made


@pytest.mark.parametrize("kind", [RestClient, AsyncRestClient])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_body_over_rest(kind: Any, more: int, node: Node) -> None:
    request = PutValue(value=value_of(BODY_MAX + more))
    with over_http(node) as url:
        if more <= 0:
            assert called(kind, url, request).is_new
        else:
            with pytest.raises(LimitExceeded, match=rf"at most {BODY_MAX} bytes.*as a file of up"):
                called(kind, url, request)


@pytest.mark.parametrize("kind", [RestClient, AsyncRestClient])
def test_a_long_body_that_is_refused_has_its_reason(kind: Any, node: Node) -> None:
    # Far more than fits into the buffers of a connection.
    request = OfferRecords(topic="log", values=(bytes(10_000_000),))
    with over_http(node) as url:
        with pytest.raises(LimitExceeded, match=f"at most {BODY_MAX} bytes"):
            called(kind, url, request)
        with pytest.raises(Unauthenticated):
            called(kind, url, request, token=lambda: "x")
    assert node.topics() == []


@pytest.mark.parametrize("more", [0, 1])
def test_no_client_sends_more_json_than_any_door_takes(more: int) -> None:
    fixed = len(written_request(OfferRecords(topic="log", values=("",)), None)[2] or b"")
    request = OfferRecords(topic="log", values=("x" * (MESSAGE_BYTES_MAX - fixed + more),))
    if more:
        with pytest.raises(LimitExceeded, match=rf"{MESSAGE_BYTES_MAX} at most.*PutFile"):
            written_request(request, None)
    else:
        body = written_request(request, None)[2]
        assert body is not None
        assert len(body) == MESSAGE_BYTES_MAX


@pytest.mark.parametrize("kind", [GrpcClient, AsyncGrpcClient])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_request_over_grpc(kind: Any, more: int, node: Node) -> None:
    fixed = len(PutValue(value=value_of(REQUEST_MAX - 100)).encode()) - (REQUEST_MAX - 100)
    request = PutValue(value=value_of(REQUEST_MAX - fixed + more))
    assert len(request.encode()) == REQUEST_MAX + more
    limits = GrpcLimits(request_bytes=REQUEST_MAX)
    with serving(Service(node), limits=limits) as served:
        if more <= 0:
            assert called(kind, served.path, request).is_new
        else:
            text = rf"at most {REQUEST_MAX} bytes, this one has {REQUEST_MAX + 1}; REST.*PutFile"
            with pytest.raises(LimitExceeded, match=text):
                called(kind, served.path, request)


@pytest.mark.parametrize("kind", [GrpcClient, AsyncGrpcClient])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_an_answer_over_grpc(kind: Any, more: int, node: Node) -> None:
    def answer(value: bytes) -> int:
        hash = node.keep(f"of-{len(value)}", value)
        return len(Service(node).call(GetValue(hash=hash), Principal(None, "process")).encode())

    fixed = answer(value_of(ANSWER_MAX - 200)) - (ANSWER_MAX - 200)
    value = value_of(ANSWER_MAX - fixed + more)
    assert answer(value) == ANSWER_MAX + more
    request = GetValue(hash=node.keep(f"of-{len(value)}", value))
    with serving(Service(node), limits=GrpcLimits(answer_bytes=ANSWER_MAX)) as served:
        if more <= 0:
            assert called(kind, served.path, request).value == value
        else:
            with pytest.raises(LimitExceeded, match=f"{ANSWER_MAX} at most over gRPC.*over REST"):
                called(kind, served.path, request)
    with over_http(node) as url:
        assert called(RestClient, url, request).value == value
