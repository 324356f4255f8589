"""Laws of streams: whatever the pieces and the turns, each stream keeps its frames in order."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from datalattice.errors import PeerError
from datalattice.wire import (
    FRAME_BYTES,
    LATTICE,
    MAIN_STREAM,
    NONCE_BYTES,
    STREAM_BYTES,
    STREAMS_MAX,
    WINDOW_BYTES,
    FrameArrived,
    Framing,
    Hello,
    Mux,
    SingleStream,
    StreamEnded,
    StreamOpened,
    encode_frame,
    encode_mux_frame,
)
from datalattice.wire.muxframes import CREDIT, DATA, END, HELLO, OPEN, RESET

LIMIT = 600_000
FRAMINGS = {LATTICE: Framing(LIMIT), "fixed/1": Framing(LIMIT, is_fixed=True)}


def end_of(*, dialled: bool) -> Mux:
    nonce = bytes([dialled]) * NONCE_BYTES
    return Mux(FRAMINGS, Hello(nonce), dialled=dialled, large_bytes_max=LIMIT)


class MuxSide:
    """One end, what comes to it over the link, and what it was given."""

    def __init__(self, *, dialled: bool) -> None:
        self.end = end_of(dialled=dialled)
        self.link = bytearray()
        self.frames: dict[int, list[bytes]] = {}
        self.ended: dict[int, bool] = {}
        self.unhandled: deque[tuple[int, int]] = deque()
        self.opened: list[int] = []

    def look(self) -> bool:
        """Take an event; return whether there was one."""
        event = self.end.next()
        if isinstance(event, StreamOpened):
            self.opened.append(event.stream)
        elif isinstance(event, FrameArrived):
            assert event.stream not in self.ended
            self.frames.setdefault(event.stream, []).append(event.payload)
            self.unhandled.append((event.stream, len(event.payload)))
        elif isinstance(event, StreamEnded):
            assert event.stream not in self.ended
            self.ended[event.stream] = event.is_reset
        return event is not None


sizes = st.one_of(
    st.integers(0, 300), st.sampled_from([32_759, 65_536, 131_073, 262_144, 300_000, LIMIT])
)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans(), sizes), max_size=30),
    st.integers(1, 16),
    st.randoms(use_true_random=False),
)
def test_all_frames_of_each_stream_come_in_order_and_nothing_is_stuck(
    writes: list[tuple[int, bool, int]], frames_max: int, chance: random.Random
) -> None:
    one, other = MuxSide(dialled=True), MuxSide(dialled=False)
    sides = (one, other)
    streams = [MAIN_STREAM]
    for side in sides:
        side.end.frames_max = frames_max
        streams += [side.end.open(name, b"") for name in FRAMINGS]
    expected: dict[tuple[int, int], list[bytes]] = {}
    left = deque(writes)

    def write() -> bool:
        if not left:
            return False
        place, is_first, size = left.popleft()
        stream = streams[place]
        side = 0 if is_first else 1
        if stream not in (MAIN_STREAM, *sides[side].opened):
            side = 0 if stream % 2 else 1  # the other has not heard of it
        payload = bytes([chance.randrange(256)]) * size
        expected.setdefault((1 - side, stream), []).append(payload)
        sides[side].end.send(stream, payload)
        return True

    def take(side: int) -> bool:
        _, data = sides[side].end.take()
        sides[1 - side].link += data
        return bool(data)

    def receive(side: int) -> bool:
        link = sides[side].link
        count = chance.choice((1, 9, 1_000, 100_000))
        sides[side].end.receive(bytes(link[:count]))
        moved = bool(link)
        del link[:count]
        return moved

    def handle(side: int) -> bool:
        if not sides[side].unhandled:
            return False
        sides[side].end.handled(*sides[side].unhandled.popleft())
        return True

    steps: list[Callable[[], bool]] = [write]
    for number in range(2):
        steps += [functools.partial(act, number) for act in (take, receive, handle)]
        steps.append(sides[number].look)

    def turn() -> bool:
        chance.shuffle(steps)
        return sum(step() for step in steps) > 0

    while turn():
        pass
    assert {(n, at): found for n in (0, 1) for at, found in sides[n].frames.items()} == expected
    for side in sides:
        assert side.end.is_sent
        assert side.end.is_idle
        assert not side.end.is_blocked
        assert not side.end.begun
        assert side.end.held_bytes == STREAM_BYTES * 2 * len(FRAMINGS)
    for stream in streams[1:]:
        for side in sides:
            side.end.end(stream)
    while turn():
        pass
    assert [side.end.held_bytes for side in sides] == [0, 0]
    assert one.ended == other.ended == dict.fromkeys(streams[1:], False)


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 400))
def test_one_stream_has_the_bytes_of_its_frames_and_no_others(
    payloads: list[bytes], step: int
) -> None:
    sender, receiver = SingleStream(Framing(LIMIT)), SingleStream(Framing(LIMIT))
    for payload in payloads:
        sender.send(MAIN_STREAM, payload)
    done, data = sender.take()
    assert data == b"".join(map(encode_frame, payloads))
    assert sum(done.values()) == len(payloads)
    found = []
    for at in range(0, len(data), step):
        assert receiver.receive(data[at : at + step]) == 0
        while isinstance(event := receiver.next(), FrameArrived):
            found.append(event.payload)
            receiver.handled(MAIN_STREAM, len(event.payload))
    assert found == payloads
    assert (sender.held_bytes, receiver.held_bytes) == (0, 0)


mux_frames = st.builds(
    encode_mux_frame,
    st.sampled_from([OPEN, DATA, DATA, DATA, CREDIT, END, RESET, HELLO, 7]),
    st.sampled_from([0, 1, 1, 1, 3, 3, 5, 2, 4]),
    st.one_of(
        st.just(b""),
        st.just(b"\x07lattice"),
        st.just(b"\x07fixed/1store"),
        st.binary(max_size=40),
        st.sampled_from([b"\x00\x01\x00\x00", bytes(4), encode_frame(b"x" * 90), bytes(30_000)]),
    ),
)


@given(st.lists(st.one_of(mux_frames, mux_frames, mux_frames, st.binary(max_size=20)), max_size=60))
def test_whatever_comes_raises_peer_errors_only_and_holds_bounded_memory(
    pieces: list[bytes],
) -> None:
    end = end_of(dialled=False)
    end.open("fixed/1", b"")
    end.take()
    end.receive(encode_mux_frame(HELLO, MAIN_STREAM, bytes(NONCE_BYTES)))
    came = 0
    try:
        for piece in pieces:
            came += len(piece)
            assert end.receive(piece) >= 0
            while (event := end.next()) is not None:
                assert isinstance(event, StreamOpened | FrameArrived | StreamEnded)
            streams = end.open_count
            assert streams <= 2 * STREAMS_MAX + 1
            overhead = (streams + 6) * (STREAM_BYTES + FRAME_BYTES)
            assert 0 <= end.held_bytes <= came + overhead
            assert end.held_bytes <= LIMIT + streams * WINDOW_BYTES + overhead
    except PeerError:
        return


@given(st.binary(max_size=3_000), st.booleans())
def test_random_bytes_raise_peer_errors_only(data: bytes, is_greeted: bool) -> None:
    end = end_of(dialled=True)
    if is_greeted:
        data = encode_mux_frame(HELLO, MAIN_STREAM, bytes(NONCE_BYTES)) + data
    try:
        end.receive(data)
        while end.next() is not None:
            pass
    except PeerError:
        pass
    assert end.held_bytes <= len(data) + STREAM_BYTES * STREAMS_MAX


@pytest.mark.parametrize("count", [1, 2, 50])
def test_a_peer_with_many_large_frames_makes_us_hold_one_of_them(count: int) -> None:
    one, other = MuxSide(dialled=True), MuxSide(dialled=False)
    for _ in range(count):
        one.end.send(one.end.open(LATTICE, b""), bytes(LIMIT))
    most = 0
    moved = True
    while moved:
        moved = False
        for near, far in ((one, other), (other, one)):
            _, data = near.end.take()
            far.end.receive(data)
            moved |= bool(data)
            while far.look():
                moved = True
            most = max(most, other.end.held_bytes)
        if other.unhandled and not moved:
            other.end.handled(*other.unhandled.popleft())
            moved = True
    assert sum(map(len, other.frames.values())) == count
    assert most <= LIMIT + FRAME_BYTES + (count + 1) * (WINDOW_BYTES + STREAM_BYTES)
