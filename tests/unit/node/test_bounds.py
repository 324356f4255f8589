"""What one peer may do: its share per second, a frame's progress, its memory, its address."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from datalattice.client.settings import (
    ADDRESS_CONNECTIONS_MAX,
    PEER_BYTES_MAX,
    ConnectionBounds,
    NodeConfig,
)
from datalattice.errors import UsageError
from datalattice.node.bounds import (
    BURST_S,
    PROGRESS_BYTES,
    PROGRESS_S,
    SITE_FACTOR,
    AddressQuota,
    Bucket,
    FrameProgress,
)
from datalattice.node.connection import REST_S_MIN, Connection
from datalattice.testing.polling import LIMIT_S
from datalattice.wire import (
    FRAME_BYTES,
    PLAIN_PROTOCOL,
    STREAM_AHEAD_BYTES_MAX,
    Framing,
    SingleStream,
    encode_frame,
    encode_length,
)

T = TypeVar("T")


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await work()

    return asyncio.run(bounded())


# --- shares ---------------------------------------------------------------------------------------


def test_a_burst_is_free_and_what_is_more_has_to_wait() -> None:
    bucket = Bucket(10, 0.0)
    for _ in range(10 * BURST_S):
        assert bucket.take(1, 0.0) == 0
    assert bucket.take(1, 0.0) == pytest.approx(0.1)
    assert bucket.take(10, 0.0) == pytest.approx(1.1)
    assert bucket.take(1, 1.2) == 0


def test_a_share_grows_back_no_further_than_a_burst() -> None:
    bucket = Bucket(10, 0.0)
    assert bucket.take(10 * BURST_S, 1_000.0) == 0
    assert bucket.take(1, 1_000.0) > 0


def test_one_message_that_is_larger_than_a_burst_is_taken_and_paid_for() -> None:
    bucket = Bucket(10, 0.0)
    assert bucket.take(100 * BURST_S, 0.0) == pytest.approx(9 * BURST_S)
    assert bucket.take(1, 9.0 * BURST_S) == pytest.approx(0.1)


# --- progress -------------------------------------------------------------------------------------


def test_a_frame_has_to_come_along() -> None:
    progress = FrameProgress(60.0, 0, 100.0)
    assert progress.left_s(0, 100.0) == PROGRESS_S
    assert progress.left_s(PROGRESS_BYTES - 1, 105.0) == PROGRESS_S - 5
    assert progress.left_s(PROGRESS_BYTES, 106.0) == PROGRESS_S
    assert progress.left_s(PROGRESS_BYTES, 106.0 + PROGRESS_S) == 0
    for count in (2 * PROGRESS_BYTES, 3 * PROGRESS_BYTES + 1):
        assert progress.left_s(count, 120.0) == PROGRESS_S


def test_a_frame_that_comes_along_still_has_to_end() -> None:
    progress = FrameProgress(60.0, 0, 0.0)
    for now in range(1, 60):
        left_s = progress.left_s(now * PROGRESS_BYTES, float(now))
        assert left_s == min(PROGRESS_S, 60.0 - now)
    assert progress.left_s(60 * PROGRESS_BYTES, 60.0) == 0
    assert FrameProgress(60.0, 0, 60.0).left_s(0, 60.0) == PROGRESS_S


# --- addresses ------------------------------------------------------------------------------------


def test_so_many_connections_come_from_one_address() -> None:
    addresses = AddressQuota(2)
    assert addresses.admit("10.0.0.1:5000")
    assert addresses.admit("10.0.0.1:5001")
    assert not addresses.admit("10.0.0.1:5002")
    assert addresses.admit("10.0.0.2:5002")
    addresses.release("10.0.0.1:5000")
    assert addresses.admit("10.0.0.1:5003")
    assert not addresses.admit("10.0.0.1:5004")
    for _ in range(2):
        addresses.release("10.0.0.1:5001")
    assert addresses.admit("10.0.0.1:5005")


def test_this_machine_and_what_is_no_address_are_not_bounded() -> None:
    addresses = AddressQuota(1)
    for remote in (
        "127.0.0.1:1",
        "127.8.9.1:1",
        "::1:1",
        "[::1]:1",
        "::ffff:127.0.0.1:1",
        "memory:1",
    ):
        for _ in range(3):
            assert addresses.admit(remote)
        addresses.release(remote)
    free = AddressQuota(0)
    assert all(free.admit("10.0.0.1:1") for _ in range(ADDRESS_CONNECTIONS_MAX + 1))
    free.release("10.0.0.1:1")


def test_addresses_of_one_network_count_together_in_ipv6() -> None:
    addresses = AddressQuota(1)
    assert addresses.admit("2001:db8:0:1::1:5000")
    assert not addresses.admit("2001:db8:0:1:ffff::2:5000")
    assert addresses.admit("2001:db8:0:2::1:5000")
    assert addresses.admit("::ffff:10.0.0.1:5000")
    assert not addresses.admit("10.0.0.1:5000")
    assert addresses.admit("fe80::1%eth0:5000")
    assert not addresses.admit("fe80::2%eth1:5000")


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_networks_of_one_site_count_together_four_times_as_high(more: int) -> None:
    addresses = AddressQuota(2)
    count = 2 * SITE_FACTOR + more
    remotes = [f"[2001:db8:7:{number:x}::1]:5000" for number in range(count)]
    assert [addresses.admit(one) for one in remotes] == [
        number < 2 * SITE_FACTOR for number in range(count)
    ]
    assert addresses.admit("[2001:db8:8::1]:5000")
    addresses.release(remotes[0])
    assert addresses.admit("[2001:db8:7:ffff::1]:5000")


# --- configuration --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["messages_per_s_max", "bytes_per_s_max"])
def test_a_share_is_at_least_one(name: str) -> None:
    assert getattr(NodeConfig(**{name: 1}).bounds, name) == 1  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"{name} is at least 1"):
        NodeConfig(**{name: 0})  # type: ignore[arg-type]


def test_a_peer_has_room_for_two_messages() -> None:
    config = NodeConfig(message_bytes_max=200_000, peer_bytes_max=400_000)
    assert config.bounds == ConnectionBounds(200_000, 30.0, peer_bytes_max=400_000)
    with pytest.raises(UsageError, match="peer_bytes_max is at least twice"):
        NodeConfig(message_bytes_max=200_000, peer_bytes_max=399_999)
    with pytest.raises(UsageError, match="connections_per_address_max is at least 0"):
        NodeConfig(connections_per_address_max=-1)
    assert NodeConfig().bounds.peer_bytes_max == PEER_BYTES_MAX


# --- connections ----------------------------------------------------------------------------------


class FakeLink:
    """A link that gives what it was given, then blocks."""

    public_key = None
    protocol = PLAIN_PROTOCOL
    remote = "fake:1"

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)
        self._open = asyncio.Event()
        self.written = 0
        self.can_write = asyncio.Event()

    async def read(self) -> bytes:
        if not self._pieces:
            await self._open.wait()
            return b""
        return self._pieces.pop(0)

    async def write(self, data: bytes) -> None:
        await self.can_write.wait()
        self.written += len(data)

    async def close(self) -> None:
        self._open.set()

    def abort(self) -> None:
        self._open.set()


class Taker:
    """Handles every frame at once."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.slowed_count = 0
        self.held_bytes = 0
        self.slow = asyncio.Event()

    def frame(self, connection: Connection, stream: int, payload: bytes) -> None:
        self.frames.append(payload)
        asyncio.get_running_loop().call_soon(connection.handled, len(payload))

    def opened(self, connection: Connection, stream: int, protocol: str, store_id: bytes) -> None:
        raise AssertionError("there is one stream")

    def ended(self, connection: Connection, stream: int, *, is_reset: bool) -> None:
        raise AssertionError("the main stream has no end")

    def written(self, connection: Connection, stream: int, count: int) -> None:
        pass

    def held(self, change: int) -> None:
        self.held_bytes += change

    def slowed(self) -> None:
        self.slowed_count += 1
        self.slow.set()


def served(bounds: ConnectionBounds, *pieces: bytes) -> tuple[Connection, Taker]:
    taker = Taker()
    streams = SingleStream(Framing(bounds.message_bytes_max))
    link, held, slowed = FakeLink(*pieces), taker.held, taker.slowed
    connection = Connection("in fake #1", "fake", link, taker, bounds, streams, held, slowed)
    return connection, taker


@pytest.mark.parametrize(
    ("piece", "cause", "text"),
    [
        (encode_length(1_001) + b"x", "framing", "at most 1000"),
        (b"\x80\x01", "framing", "superfluous octet"),
        (encode_length(500) + b"x", "slow", "did not complete in time"),
    ],
)
def test_what_a_peer_does_wrong_ends_it_with_a_cause(
    piece: bytes, cause: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datalattice.node.bounds.PROGRESS_S", 0.05)

    async def work() -> None:
        connection, taker = served(ConnectionBounds(1_000, 30.0), encode_frame(b"whole"), piece)
        await connection.run()
        assert taker.frames == [b"whole"]
        assert connection.cause == cause
        assert text in connection.reason
        if cause == "framing":
            assert "(peer in fake #1)" in connection.reason
        assert taker.held_bytes == 0

    run(work)


def test_an_end_of_the_stream_is_nobodys_fault() -> None:
    async def work() -> None:
        connection, _ = served(ConnectionBounds(1_000, 30.0), encode_frame(b"whole"), b"")
        await connection.run()
        assert (connection.cause, connection.reason) == (None, "closed by the peer")

    run(work)


def test_a_peer_that_sends_more_than_its_share_is_read_later_and_loses_nothing() -> None:
    async def work() -> None:
        count = 2 * BURST_S + 2
        bounds = ConnectionBounds(1_000, 30.0, messages_per_s_max=2)
        connection, taker = served(bounds, encode_frame(b"x") * count, b"")
        began_s = asyncio.get_running_loop().time()
        await connection.run()
        assert len(taker.frames) == count
        assert taker.slowed_count >= 1
        assert asyncio.get_running_loop().time() - began_s >= 2 / 2 - REST_S_MIN
        assert connection.cause is None

    run(work)


def test_a_connection_that_rests_is_read_on_afterwards_and_loses_nothing() -> None:
    async def work() -> None:
        connection, taker = served(ConnectionBounds(1_000, 30.0), encode_frame(b"x") * 3, b"")
        began_s = asyncio.get_running_loop().time()
        connection.rest(0.2)
        connection.rest(0.1)  # the longer rest holds
        await connection.run()
        assert asyncio.get_running_loop().time() - began_s >= 0.2
        assert (len(taker.frames), connection.cause) == (3, None)

    run(work)


@pytest.mark.parametrize(
    ("frames_max", "size", "count"),
    [
        (1, 1, 1),
        (3, 1, 3),
        (3, STREAM_AHEAD_BYTES_MAX // 2 - FRAME_BYTES, 2),
        (3, STREAM_AHEAD_BYTES_MAX, 1),
    ],
)
def test_so_many_frames_wait_for_the_lane_and_so_many_bytes(
    frames_max: int, size: int, count: int
) -> None:
    async def work() -> None:
        frames = [encode_frame(bytes(size))] * 5
        connection, taker = served(ConnectionBounds(STREAM_AHEAD_BYTES_MAX, 30.0), *frames)
        connection.frames_max = frames_max
        come, next_one = asyncio.Event(), asyncio.Event()

        def keep(_: Connection, _stream: int, payload: bytes) -> None:
            taker.frames.append(payload)
            if len(taker.frames) == count:  # whatever comes at once comes before this is looked at
                asyncio.get_running_loop().call_later(0.05, come.set)
            elif len(taker.frames) > count:
                next_one.set()

        taker.frame = keep  # type: ignore[method-assign, assignment]
        task = asyncio.ensure_future(connection.run())
        await come.wait()
        assert len(taker.frames) == count
        connection.handled(size)
        await next_one.wait()
        connection.cut("the test is over")
        await task

    run(work)


def test_bytes_have_a_share_too() -> None:
    async def work() -> None:
        size = 500
        bounds = ConnectionBounds(1_000, 30.0, bytes_per_s_max=size + FRAME_BYTES)
        for count in (BURST_S - 1, BURST_S):
            connection, taker = served(bounds, encode_frame(bytes(size)) * count, b"")
            await connection.run()
            assert (len(taker.frames), taker.slowed_count) == (count, 0)
        connection, taker = served(bounds, encode_frame(bytes(size)) * (BURST_S + 2))
        task = asyncio.ensure_future(connection.run())
        await taker.slow.wait()
        assert len(taker.frames) == BURST_S + 1
        connection.cut("the test is over")
        await task

    run(work)


def test_a_peer_for_whom_too_much_waits_is_cut() -> None:
    async def work() -> None:
        for size, cut in ((9_990, False), (9_997, False), (9_998, False), (9_999, True)):
            connection, taker = served(ConnectionBounds(1_000, 30.0, peer_bytes_max=10_000))
            task = asyncio.ensure_future(connection.run())
            connection.send(bytes(size))  # behind a length of two octets
            assert taker.held_bytes == (0 if cut else size + 2)
            assert connection.cause == ("memory" if cut else None)
            if not cut:
                connection.cut("the test is over")
            await task

    run(work)
