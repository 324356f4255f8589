"""What the bodies of requests may take in memory."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

import datalattice
from datalattice.api.rest import SMALL_BODY_BYTES, BodyRoom, rest_app
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
