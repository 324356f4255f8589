"""Connections with several streams: what is handed over, what waits, what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import pytest

from datalattice.client.settings import ConnectionBounds
from datalattice.errors import UsageError
from datalattice.node import MemoryTransport
from datalattice.node.connection import Connection
from datalattice.node.transport import Link
from datalattice.testing.polling import LIMIT_S
from datalattice.wire import (
    FRAME_BYTES,
    LATTICE,
    MAIN_STREAM,
    NONCE_BYTES,
    WINDOW_BYTES,
    Framing,
    Hello,
    Mux,
    SingleStream,
    Streams,
    encode_frame,
    encode_length,
    encode_mux_frame,
)
from datalattice.wire.muxframes import DATA, HELLO, OPEN

T = TypeVar("T")
BOUNDS = ConnectionBounds(1_000_000, 30.0, peer_bytes_max=4_000_000)
GREETING = encode_mux_frame(HELLO, MAIN_STREAM, bytes(NONCE_BYTES))
OPENING = b"\x07lattice"


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await work()

    return asyncio.run(bounded())


class Host:
    """Takes what a connection hands over; handles what it is told to."""

    def __init__(self) -> None:
        self.frames: dict[int, list[bytes]] = {}
        self.opened_streams: list[tuple[int, str, bytes]] = []
        self.ended_streams: dict[int, bool] = {}
        self.left: dict[int, int] = {}
        self.slow: set[int] = set()  # streams whose frames are not handled
        self.held_bytes = 0
        self.slowed_count = 0
        self._changed = asyncio.Event()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def frame(self, connection: Connection, stream: int, payload: bytes) -> None:
        self.frames.setdefault(stream, []).append(payload)
        if stream not in self.slow:
            asyncio.get_running_loop().call_soon(connection.handled, len(payload), stream)
        self._changed.set()

    def opened(self, connection: Connection, stream: int, protocol: str, store_id: bytes) -> None:
        self.opened_streams.append((stream, protocol, store_id))
        self._changed.set()

    def ended(self, connection: Connection, stream: int, *, is_reset: bool) -> None:
        self.ended_streams[stream] = is_reset
        self._changed.set()

    def written(self, connection: Connection, stream: int, count: int) -> None:
        self.left[stream] = self.left.get(stream, 0) + count
        self._changed.set()

    def held(self, change: int) -> None:
        self.held_bytes += change
        self._changed.set()

    def slowed(self) -> None:
        self.slowed_count += 1
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


def mux(*, dialled: bool) -> Mux:
    return Mux(
        {LATTICE: Framing(BOUNDS.message_bytes_max)},
        Hello(bytes(NONCE_BYTES)),
        dialled=dialled,
        large_bytes_max=BOUNDS.message_bytes_max,
    )


def connected(
    link: Link, streams: Streams, bounds: ConnectionBounds = BOUNDS
) -> tuple[Connection, Host]:
    host = Host()
    connection = Connection(
        "in memory #1", "memory", link, host, bounds, streams, host.held, host.slowed
    )
    return connection, host


@asynccontextmanager
async def link_pair() -> AsyncIterator[tuple[Link, Link]]:
    accepted: asyncio.Queue[Link] = asyncio.Queue()
    over = asyncio.Event()

    async def accept(link: Link) -> None:
        accepted.put_nowait(link)
        await over.wait()

    transport = MemoryTransport(mux=True)
    listener = await transport.listen("memory", 0, accept)
    near = await transport.dial(f"memory:{listener.port}")
    yield near, await accepted.get()
    over.set()
    await listener.close()


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Connection, Host, Connection, Host]]:
    """Yield two ends of one connection, running."""
    async with link_pair() as (near, far):
        one, here = connected(near, mux(dialled=True))
        other, there = connected(far, mux(dialled=False))
        tasks = [asyncio.ensure_future(end.run()) for end in (one, other)]
        yield one, here, other, there
        for end in (one, other):
            end.cut("the test is over")
        await asyncio.gather(*tasks)
        assert (here.held_bytes, there.held_bytes) == (0, 0)


@asynccontextmanager
async def raw(bounds: ConnectionBounds = BOUNDS) -> AsyncIterator[tuple[Link, Connection, Host]]:
    """Yield a link, and a running connection at its other end that has been greeted."""
    async with link_pair() as (near, far):
        connection, host = connected(far, mux(dialled=False), bounds)
        host.over = asyncio.ensure_future(connection.run())
        host.over.add_done_callback(lambda _: host.held(0))
        await near.write(GREETING)
        yield near, connection, host
        connection.cut("the test is over")
        await host.over


def test_streams_carry_frames_both_ways_and_end() -> None:
    async def work() -> None:
        async with pair() as (one, here, other, there):
            assert one.is_multiplexed
            stream = one.open_stream(LATTICE, b"store")
            one.send(b"question", stream)
            one.send(b"main")
            one.end_stream(stream)
            await there.until(lambda: stream in there.ended_streams and MAIN_STREAM in there.frames)
            assert there.opened_streams == [(stream, LATTICE, b"store")]
            assert there.frames == {stream: [b"question"], MAIN_STREAM: [b"main"]}
            assert there.ended_streams == {stream: False}
            other.send(bytes(900_000), stream)
            other.end_stream(stream)
            await here.until(lambda: here.ended_streams)
            assert [len(one) for one in here.frames[stream]] == [900_000]
            assert here.left == {stream: 1, MAIN_STREAM: 1}
            await there.until(lambda: there.left)
            assert there.left == {stream: 1}
            assert one.traffic.frames_out == other.traffic.frames_in == 2
            await one.drained()

    run(work)


def test_a_stream_that_is_reset_is_over_for_both() -> None:
    async def work() -> None:
        async with pair() as (one, here, other, there):
            stream = one.open_stream(LATTICE, b"")
            one.send(bytes(900_000), stream)
            await there.until(lambda: there.opened_streams)
            other.end_stream(stream, at_once=True)
            await here.until(lambda: here.ended_streams)
            assert here.ended_streams == {stream: True}
            one.send(b"dropped", stream)
            assert one._streams.unsent_bytes(stream) == 0
            one.send(b"on")
            await there.until(lambda: MAIN_STREAM in there.frames)
            assert (there.frames, there.ended_streams) == ({MAIN_STREAM: [b"on"]}, {})

    run(work)


def test_a_slow_handler_stops_its_own_stream_only_and_goes_on_when_it_can() -> None:
    async def work() -> None:
        async with pair() as (one, _, other, there):
            slow, quick = one.open_stream(LATTICE, b""), one.open_stream(LATTICE, b"")
            there.slow.add(slow)
            sizes = [200_000, 1, 300_000, 2, 400_000]
            for size in sizes:
                one.send(bytes(size), slow)
            for _ in range(40):
                one.send(bytes(50_000), quick)
            await there.until(lambda: len(there.frames.get(quick, ())) == 40)
            assert [len(frame) for frame in there.frames[slow]] == sizes[:1]
            assert other.held_bytes < 200_000 + WINDOW_BYTES + 60_000
            for count, size in enumerate(sizes, 1):
                # Nothing more may come over the link before: the reader has to be woken.
                await there.until(lambda: len(there.frames[slow]) == count)  # noqa: B023
                other.handled(size, slow)
            assert [len(frame) for frame in there.frames[slow]] == sizes

    run(work)


@pytest.mark.parametrize("stream", [MAIN_STREAM, 1])
def test_a_begun_frame_of_any_stream_has_to_come_along(
    stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datalattice.node.bounds.PROGRESS_S", 0.2)

    async def work() -> None:
        async with raw() as (link, connection, host):
            await link.write(encode_mux_frame(OPEN, 1, OPENING))
            await link.write(encode_mux_frame(DATA, stream, encode_length(500) + b"x"))
            other = 1 - stream
            count = 0
            with suppress(ConnectionError):
                while not host.over.done():  # other streams go on, which is no help
                    await link.write(encode_mux_frame(DATA, other, encode_frame(bytes(2_000))))
                    count += 1
                    await host.until(
                        lambda: host.over.done() or len(host.frames.get(other, ())) == count  # noqa: B023
                    )
            await host.over
            assert connection.cause == "slow"
            assert stream not in host.frames

    run(work)


def test_a_frame_that_waits_behind_another_is_not_expected_to_come_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("datalattice.node.bounds.PROGRESS_S", 0.0)

    async def work() -> None:
        async with raw() as (link, connection, host):
            host.slow.add(MAIN_STREAM)
            data = encode_frame(b"first") + encode_length(500) + b"x"
            await link.write(encode_mux_frame(DATA, MAIN_STREAM, data))
            await host.until(lambda: host.frames)
            await link.write(encode_mux_frame(OPEN, 1, OPENING))
            await link.write(encode_mux_frame(DATA, 1, encode_frame(b"still read")))
            await host.until(lambda: 1 in host.frames)
            assert not connection.reason
            connection.handled(5)
            await host.over
            assert connection.cause == "slow"

    run(work)


def test_all_that_came_before_the_end_of_the_link_is_handled() -> None:
    async def work() -> None:
        async with link_pair() as (near, far):
            connection, host = connected(far, mux(dialled=False))
            frames = encode_frame(b"one") + encode_frame(b"two") + encode_frame(b"three")
            await near.write(GREETING + encode_mux_frame(DATA, MAIN_STREAM, frames))
            await near.close()
            await connection.run()
            assert host.frames == {MAIN_STREAM: [b"one", b"two", b"three"]}
            assert connection.cause is None

    run(work)


def test_what_breaks_the_rules_of_streams_ends_the_connection_with_a_cause() -> None:
    async def work() -> None:
        async with raw() as (link, connection, host):
            await link.write(encode_mux_frame(DATA, 7, b"x"))
            await host.over
            assert connection.cause == "framing"
            assert connection.reason == "stream 7 was never opened (peer in memory #1)"

    run(work)


def test_mux_frames_have_a_share_too() -> None:
    """Late data and empty talk cost their sender as much as frames do."""

    async def work() -> None:
        bounds = ConnectionBounds(1_000_000, 30.0, bytes_per_s_max=10 * FRAME_BYTES)
        async with raw(bounds) as (link, connection, host):
            await link.write(encode_mux_frame(OPEN, 1, b"\x04what"))
            # At once: the share would grow back meanwhile on a machine that stands still.
            await link.write(encode_mux_frame(DATA, 1, b"x") * 60)
            await host.until(lambda: host.slowed_count)
            assert not connection.reason

    run(work)


def test_a_frame_whose_turn_comes_while_its_peer_is_not_read_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("datalattice.node.bounds.BURST_S", 0.1)

    async def work() -> None:
        bounds = ConnectionBounds(
            1_000_000, 30.0, bytes_per_s_max=10_000, peer_bytes_max=BOUNDS.peer_bytes_max
        )
        async with raw(bounds) as (link, connection, host):
            host.slow.add(MAIN_STREAM)
            payloads = [bytes(1_000), bytes(1_001)]
            whole, later = (encode_frame(payload) for payload in payloads)
            await link.write(encode_mux_frame(DATA, MAIN_STREAM, whole))
            await host.until(lambda: host.slowed_count)
            # Each mux frame counts as 64 bytes: these are more than a burst, however late.
            parts = [later[at : at + 40] for at in range(0, len(later), 40)]
            await link.write(b"".join(encode_mux_frame(DATA, MAIN_STREAM, part) for part in parts))
            await host.until(lambda: host.slowed_count > 1)
            assert host.frames[MAIN_STREAM] == payloads[:1]
            connection.handled(len(payloads[0]))
            await host.until(lambda: host.frames[MAIN_STREAM] == payloads)

    run(work)


def test_a_peer_that_makes_streams_hold_too_much_is_cut() -> None:
    async def work() -> None:
        bounds = ConnectionBounds(1_000_000, 30.0, peer_bytes_max=100_000)
        async with raw(bounds) as (link, connection, host):
            for number in range(1, 1_001, 2):
                await link.write(encode_mux_frame(OPEN, number, OPENING))
            await host.over
            assert connection.cause == "memory"

    run(work)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_full_window_is_not_held_against_a_peer(more: int) -> None:
    async def work() -> None:
        bounds = ConnectionBounds(1_000_000, 30.0, peer_bytes_max=1_000)
        async with raw(bounds) as (link, connection, host):
            host.slow.add(MAIN_STREAM)
            await connection.drained()  # its own HELLO is gone
            first = encode_frame(bytes(100))
            waiting = encode_frame(bytes(90_000)) * 2
            size = len(first) + len(waiting)
            rest = encode_frame(bytes(WINDOW_BYTES - size - 3))
            data = first + waiting + rest
            for at in range(0, len(data), 30_000):
                await link.write(encode_mux_frame(DATA, MAIN_STREAM, data[at : at + 30_000]))
            await host.until(lambda: host.held_bytes == len(data) - 1 + FRAME_BYTES)
            connection.send(bytes(1_000 - FRAME_BYTES + 1 - 2 + more))  # behind two octets
            assert (connection.cause == "memory") == (more > 0)

    run(work)


def test_a_connection_with_one_stream_opens_no_other() -> None:
    async def work() -> None:
        async with link_pair() as (_, far):
            connection, _ = connected(far, SingleStream(Framing()))
            assert not connection.is_multiplexed
            for act, text in (
                (lambda: connection.open_stream(LATTICE, b""), "one stream"),
                (lambda: connection.end_stream(MAIN_STREAM), "ends with its connection"),
                (
                    lambda: connection.end_stream(MAIN_STREAM, at_once=True),
                    "ends with its connection",
                ),
            ):
                with pytest.raises(UsageError, match=text):
                    act()

    run(work)


class StubbornLink:
    """A link that takes its time to give up a read."""

    remote = "memory"
    public_key = None
    protocol = "lattice/1"

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.given_up = asyncio.Event()
        self.is_aborted = False

    async def read(self) -> bytes:
        self.asked.set()
        try:
            await self.given_up.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            await self.given_up.wait()
        return b""

    async def write(self, data: bytes) -> None:
        """Take it."""

    async def close(self) -> None:
        """Leave it open: nobody waits for that here."""

    def abort(self) -> None:
        self.is_aborted = True


def test_a_connection_that_is_cancelled_while_it_ends_leaves_no_link_open() -> None:
    async def work() -> None:
        link = StubbornLink()
        connection, _ = connected(link, SingleStream(Framing(BOUNDS.message_bytes_max)))
        running = asyncio.ensure_future(connection.run())
        await link.asked.wait()
        running.cancel()
        await link.cancelled.wait()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert link.is_aborted
        link.given_up.set()

    run(work)
