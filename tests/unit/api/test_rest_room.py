"""What the bodies of requests may take in memory."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient
from starlette.types import Message

import datalattice
from datalattice.api.rest import SMALL_BODY_BYTES, BodyRoom, read_body, rest_app
from datalattice.errors import Backpressure
from datalattice.service import OPERATOR, Service

LONG = SMALL_BODY_BYTES + 1


@pytest.mark.parametrize(("more", "fits"), [(-1, True), (0, True), (1, False)])
def test_long_bodies_share_their_room(more: int, fits: bool) -> None:
    room = BodyRoom(2 * LONG)
    with room.request() as first, room.request() as second:
        first(LONG)
        if fits:
            second(LONG + more)
        else:
            with pytest.raises(Backpressure, match=f"fill the {2 * LONG} bytes"):
                second(LONG + more)


def test_a_short_body_always_has_room() -> None:
    room = BodyRoom(LONG)
    with room.request() as first, room.request() as second:
        first(LONG)
        second(SMALL_BODY_BYTES)
        with pytest.raises(Backpressure):
            second(LONG)


def test_room_comes_back_with_the_end_of_a_request() -> None:
    room = BodyRoom(LONG)
    for _ in range(2):
        with room.request() as grow:
            grow(LONG // 2)
            grow(LONG)
    for _ in range(2):
        with pytest.raises(Backpressure), room.request() as grow:
            grow(LONG + 1)


def test_a_body_without_room_is_asked_for_again_later() -> None:
    with datalattice.open(":memory:") as node:
        app, _ = rest_app(Service(node), lambda _: OPERATOR, bodies_bytes_max=LONG)
        client = TestClient(app)
        for size, status in ((LONG, 201), (LONG + 1, 429), (4_000, 201)):
            answer = client.post(
                "/api/v1/values",
                content=b"x" * size,
                headers={"content-type": "application/octet-stream"},
            )
            assert answer.status_code == status, answer.text
            assert ("retry-after" in answer.headers) is (status == 429)


@pytest.mark.parametrize("length", ["²", "-1", "", "9" * 5_000])
def test_a_length_that_is_no_number_is_ignored(length: str) -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"hello", "more_body": False}

    headers = [(b"content-length", length.encode("latin-1"))]
    request = Request({"type": "http", "headers": headers}, receive)
    assert asyncio.run(read_body(request, 10)) == b"hello"


@pytest.mark.parametrize("path", ["/api/v1/values", "/api/v1/drives/papers/files/plan.txt"])
def test_an_overlong_length_is_no_fault_of_the_service(path: str) -> None:
    with datalattice.open(":memory:") as node:
        app, _ = rest_app(Service(node), lambda _: OPERATOR)
        client = TestClient(app)
        answer = client.request(
            "POST" if path.endswith("values") else "PUT",
            path,
            content=iter([b"hello"]),
            headers={"content-type": "application/octet-stream", "content-length": "9" * 5_000},
        )
        assert answer.status_code in (200, 201), answer.text
