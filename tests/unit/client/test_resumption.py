"""Resumption: when a client asks again for the rest of a stream, and when it gives up."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from datalattice.actions import FollowTopic, WatchKeys
from datalattice.client.grpc.blocking import GrpcStream
from datalattice.client.resumption import PAUSE_MAX_S, PAUSE_S, Resumption
from datalattice.errors import (
    DataLatticeError,
    Draining,
    PeerUnavailable,
    StaleToken,
    Timeout,
    Unauthenticated,
)


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def going(resume_s: float = 20.0, *, renews: bool = False) -> tuple[Resumption[FollowTopic], Clock]:
    clock = Clock()
    return Resumption(FollowTopic(topic="t"), resume_s, renews=renews, now_s=clock), clock


@pytest.mark.parametrize("error", [PeerUnavailable("x"), Draining("x"), Timeout("x")])
def test_it_tries_for_its_time_and_pauses_longer_and_longer(error: DataLatticeError) -> None:
    tries, clock = going()
    tries.reached("token")
    assert tries.request.resume == "token"
    pauses = [tries.pause_s(error) for _ in range(7)]
    assert pauses[:3] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]
    assert pauses[-1] == PAUSE_MAX_S
    clock.s += 19.9
    tries.pause_s(error)
    clock.s += 0.1
    with pytest.raises(type(error)):
        tries.pause_s(error)


def test_an_item_begins_the_time_anew() -> None:
    tries, clock = going()
    tries.reached("one")
    tries.pause_s(PeerUnavailable("x"))
    clock.s += 19.0
    tries.reached("two")
    clock.s += 19.0
    assert tries.pause_s(PeerUnavailable("x")) == PAUSE_S
    assert tries.request.resume == "two"
    tries.reached("")  # an item without a token keeps the last one
    assert tries.request.resume == "two"


def test_what_is_of_no_use_is_raised() -> None:
    tries, _ = going()
    with pytest.raises(PeerUnavailable):  # never connected
        tries.pause_s(PeerUnavailable("x"))
    tries.reached("token")
    with pytest.raises(StaleToken):
        tries.pause_s(StaleToken("x"))
    with pytest.raises(Unauthenticated):  # the same credential would be shown again
        tries.pause_s(Unauthenticated("x"))
    off, _ = going(0.0)
    off.reached("token")
    with pytest.raises(PeerUnavailable):
        off.pause_s(PeerUnavailable("x"))


def test_a_new_credential_is_shown_once() -> None:
    tries, _ = going(renews=True)
    tries.reached("token")
    assert tries.pause_s(Unauthenticated("x")) == 0.0
    with pytest.raises(Unauthenticated):  # the new one is refused, too
        tries.pause_s(Unauthenticated("x"))
    tries.reached("token")
    assert tries.pause_s(Unauthenticated("x")) == 0.0


class _Call:
    """A gRPC stream that ends with an error once it is cancelled."""

    def __init__(self, *, is_lost: bool) -> None:
        self.has_ended = is_lost

    def initial_metadata(self) -> tuple[()]:
        return ()

    def cancel(self) -> None:
        self.has_ended = True

    def __next__(self) -> bytes:
        assert self.has_ended, "it waits for a result for ever"
        raise grpc.RpcError


def test_a_stream_that_is_closed_while_it_resumes_ends() -> None:
    begun: list[_Call] = []

    def begin(_request: object) -> _Call:
        if begun:
            stream.close()
        begun.append(_Call(is_lost=not begun))
        return begun[-1]

    tries = Resumption(WatchKeys(database="shop", resume="token"), 20.0, renews=False)
    stream: GrpcStream[Any] = GrpcStream(begin, lambda _error: PeerUnavailable("lost"), tries)
    assert list(stream) == []
    assert len(begun) == 2
