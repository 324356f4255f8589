"""Several streams on one connection: what each mux frame does, what is refused, and each limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from datalattice.errors import Backpressure, LimitExceeded, ProtocolViolation, UsageError
from datalattice.wire import (
    CREDIT_BYTES_MIN,
    DATA_BYTES_MAX,
    FRAME_BYTES,
    JOIN_BYTES,
    LARGE_FRAME_BYTES,
    LATTICE,
    MAIN_STREAM,
    NONCE_BYTES,
    STORE_ID_BYTES_MAX,
    STREAM_BYTES,
    STREAMS_MAX,
    UNSENT_BYTES_MAX,
    WINDOW_BYTES,
    FrameArrived,
    Framing,
    Hello,
    Mux,
    MuxEvent,
    StreamEnded,
    StreamOpened,
    encode_frame,
    encode_length,
    encode_mux_frame,
    mux,
)
from datalattice.wire.muxframes import (
    CREDIT,
    DATA,
    END,
    HELLO,
    HELLO_BYTES_MAX,
    OPEN,
    PROTOCOL_BYTES_MAX,
    RESET,
    encode_header,
)

LIMIT = 1_000_000
FRAMINGS = {LATTICE: Framing(LIMIT), "fixed/1": Framing(100, is_fixed=True)}
NONCE = bytes(range(NONCE_BYTES))
GREETING = encode_mux_frame(HELLO, MAIN_STREAM, NONCE)


def end_of(*, dialled: bool, large: int = 2 * LIMIT) -> Mux:
    return Mux(FRAMINGS, Hello(NONCE), dialled=dialled, large_bytes_max=large)


def greeted(large: int = 2 * LIMIT) -> Mux:
    """Return an acceptor whose peer has greeted, and that has nothing to say."""
    made = end_of(dialled=False, large=large)
    made.take()
    made.receive(GREETING)
    return made


def pair() -> tuple[Mux, Mux]:
    return end_of(dialled=True), end_of(dialled=False)


def carry(one: Mux, other: Mux) -> None:
    """Carry bytes both ways until both are silent."""
    moved = True
    while moved:
        moved = False
        for near, far in ((one, other), (other, one)):
            _, data = near.take()
            if data:
                far.receive(data)
                moved = True


def events(end: Mux) -> Iterator[MuxEvent]:
    while (event := end.next()) is not None:
        yield event


def opening(name: bytes = b"fixed/1", store_id: bytes = b"") -> bytes:
    return bytes((len(name),)) + name + store_id


def sent(end: Mux) -> bytes:
    """Return all that an end has to say now."""
    out = bytearray()
    while data := end.take()[1]:
        out += data
    return bytes(out)


def feed(end: Mux, data: bytes, step: int) -> None:
    """Have an end receive bytes in pieces."""
    for at in range(0, len(data), step):
        end.receive(data[at : at + step])


# --- bytes ----------------------------------------------------------------------------------------


def test_the_bytes_are_those_of_the_document() -> None:
    end = Mux(FRAMINGS, Hello(NONCE, frozenset({"b", "a/1"})), dialled=True)
    assert end.open("fixed/1", b"\xab\xcd") == 1
    end.send(1, b"hello")
    end.send(MAIN_STREAM, b"hi")
    end.end(1)
    assert sent(end).hex() == (
        "01 00000000 00000025".replace(" ", "") + NONCE.hex() + b"a/1 b".hex() + "020000000100"
        "00000a" + "07" + b"fixed/1".hex() + "abcd" + "03" + "00000001" + "00000009"
        "00000005" + b"hello".hex() + "05" + "00000001" + "00000000" + "03" + "00000000"
        "00000003" + "02" + b"hi".hex()
    )


def test_both_sides_learn_what_the_other_says_first() -> None:
    one = Mux(FRAMINGS, Hello(bytes(32), frozenset({"sketch/1"})), dialled=True)
    other = end_of(dialled=False)
    carry(one, other)
    assert one.peer_hello == Hello(NONCE)
    assert other.peer_hello == Hello(bytes(32), frozenset({"sketch/1"}))
    assert one.is_sent


@pytest.mark.parametrize(
    ("hello", "text"),
    [
        (Hello(bytes(31)), "32 bytes"),
        (Hello(NONCE, frozenset({"two words"})), "words"),
        (Hello(NONCE, frozenset({"ä"})), "ASCII"),
        (Hello(NONCE, frozenset({""})), "words"),
        (Hello(NONCE, frozenset({"x" * (HELLO_BYTES_MAX - NONCE_BYTES + 1)})), "at most 992"),
    ],
)
def test_a_hello_that_cannot_be_said_is_refused_here(hello: Hello, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        hello.encode()


def test_the_longest_hello_is_read() -> None:
    for size in (HELLO_BYTES_MAX - NONCE_BYTES - 1, HELLO_BYTES_MAX - NONCE_BYTES):
        hello = Hello(NONCE, frozenset({"x" * size}))
        assert Hello.decode(hello.encode()) == hello


# --- streams --------------------------------------------------------------------------------------


def test_streams_are_opened_from_both_sides_with_numbers_of_their_own() -> None:
    one, other = pair()
    assert [one.open("fixed/1", b"x"), one.open(LATTICE, b"")] == [1, 3]
    assert other.open("fixed/1", b"y") == 2
    carry(one, other)
    assert list(events(other)) == [StreamOpened(1, "fixed/1", b"x"), StreamOpened(3, LATTICE, b"")]
    assert list(events(one)) == [StreamOpened(2, "fixed/1", b"y")]


def test_each_stream_has_the_framing_of_its_protocol() -> None:
    one, other = pair()
    fixed, counted = one.open("fixed/1", b""), one.open(LATTICE, b"")
    for stream in (fixed, counted, MAIN_STREAM):
        one.send(stream, b"x" * 100)
    carry(one, other)
    found = [event for event in events(other) if isinstance(event, FrameArrived)]
    assert [event.payload for event in found] == [b"x" * 100] * 3
    assert {event.stream for event in found} == {MAIN_STREAM, fixed, counted}
    one.send(fixed, b"x" * 101)
    carry(one, other)
    other.handled(fixed, 100)
    with pytest.raises(LimitExceeded, match="announces 101 bytes, at most 100"):
        list(events(other))


def test_a_stream_for_an_unknown_protocol_is_reset_and_never_heard_of() -> None:
    one, other = pair()
    stream = one.open("fixed/1", b"")
    one.send(stream, b"asked at once")
    other._framings = {LATTICE: Framing()}  # an older node
    carry(one, other)
    assert list(events(other)) == []
    assert list(events(one)) == [StreamEnded(stream, is_reset=True)]
    assert (one.open_count, other.open_count) == (1, 1)
    assert (one.held_bytes, other.held_bytes) == (0, 0)


def test_a_reset_has_the_same_bytes_for_an_unknown_protocol_and_a_refused_store() -> None:
    unknown, refused = greeted(), greeted()
    unknown.receive(encode_mux_frame(OPEN, 1, opening(b"what/1", b"s")))
    refused.receive(encode_mux_frame(OPEN, 1, opening(b"fixed/1", b"s")))
    assert list(events(refused)) == [StreamOpened(1, "fixed/1", b"s")]
    refused.reset(1)
    assert unknown.take() == refused.take() == ({}, encode_mux_frame(RESET, 1))


def test_an_end_comes_after_the_frames_and_leaves_the_other_direction_open() -> None:
    one, other = pair()
    stream = one.open("fixed/1", b"")
    one.send(stream, b"question")
    one.end(stream)
    one.send(stream, b"too late")
    carry(one, other)
    assert list(events(other)) == [StreamOpened(1, "fixed/1", b""), FrameArrived(1, b"question")]
    other.handled(1, 8)
    assert list(events(other)) == [StreamEnded(1, is_reset=False)]
    other.send(1, b"answer")
    other.end(1)
    carry(one, other)
    assert list(events(one)) == [FrameArrived(1, b"answer")]
    one.handled(1, 6)
    assert list(events(one)) == [StreamEnded(1, is_reset=False)]
    assert (one.open_count, other.open_count) == (1, 1)
    assert (one.held_bytes, other.held_bytes) == (0, 0)
    assert one.open("fixed/1", b"") == 3, "numbers are not used again"


def test_a_reset_drops_what_waits_on_both_sides() -> None:
    one, other = pair()
    stream = one.open(LATTICE, b"")
    for _ in range(3):
        one.send(stream, bytes(90_000))
    carry(one, other)
    assert [type(event) for event in events(other)] == [StreamOpened, FrameArrived]
    one.send(stream, bytes(500_000))
    one.reset(stream)
    assert one.unsent_bytes(stream) == 0
    carry(one, other)
    assert list(events(other)) == [StreamEnded(1, is_reset=True)]
    assert one.held_bytes == 0
    assert other.held_bytes == 90_000 + FRAME_BYTES + STREAM_BYTES, "one is being handled"
    other.handled(stream, 90_000)
    assert other.held_bytes == 0
    other.send(stream, b"dropped")
    assert other.is_sent
    assert list(events(one)) == [], "who reset it wants to hear nothing"


def test_what_comes_late_for_a_stream_that_is_over_is_dropped_and_charged() -> None:
    end = greeted()
    end.receive(encode_mux_frame(OPEN, 1, opening()))
    list(events(end))
    end.reset(1)
    late = [
        encode_mux_frame(DATA, 1, b"x" * 50),
        encode_mux_frame(CREDIT, 1, CREDIT_BYTES_MIN.to_bytes(4, "big")),
        encode_mux_frame(END, 1),
        encode_mux_frame(RESET, 1),
    ]
    assert [end.receive(data) for data in late] == [FRAME_BYTES + 50] + [FRAME_BYTES] * 3
    assert list(events(end)) == []


def test_a_reset_in_the_middle_of_data_drops_the_rest_of_it() -> None:
    end = greeted()
    end.receive(encode_mux_frame(OPEN, 1, opening()))
    data = encode_mux_frame(DATA, 1, bytes(1_000))
    end.receive(data[:300])
    end.reset(1)
    assert end.receive(data[300:] + encode_mux_frame(DATA, 0, b"\x01x")) == 709 + FRAME_BYTES
    assert list(events(end)) == [FrameArrived(0, b"x")]
    end.handled(0, 1)
    assert end.held_bytes == len(encode_mux_frame(RESET, 1))


def test_the_main_stream_has_no_end() -> None:
    end = end_of(dialled=True)
    for act in (end.end, end.reset):
        with pytest.raises(UsageError, match="ends with its connection"):
            act(MAIN_STREAM)


def test_a_stream_of_an_unknown_protocol_or_a_long_store_id_is_not_opened() -> None:
    end = end_of(dialled=True)
    with pytest.raises(UsageError, match="known are fixed/1, lattice"):
        end.open("what/1", b"")
    with pytest.raises(UsageError, match="at most 64 bytes, not 65"):
        end.open("fixed/1", bytes(STORE_ID_BYTES_MAX + 1))
    assert end.open("fixed/1", bytes(STORE_ID_BYTES_MAX)) == 1


# --- violations -----------------------------------------------------------------------------------

OPENED = encode_mux_frame(OPEN, 1, opening())
ENDED = OPENED + encode_mux_frame(END, 1)
CREDIT_OF_ONE = CREDIT_BYTES_MIN.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (encode_header(0, 0, 0), "0 is not a kind"),
        (encode_header(7, 0, 0), "7 is not a kind"),
        (encode_header(255, 2**32 - 1, 2**32 - 1), "255 is not a kind"),
        (encode_header(DATA, 0, 0), "DATA has 1 to 32759 bytes of payload, not 0"),
        (encode_header(DATA, 0, DATA_BYTES_MAX + 1), "not 32760"),
        (encode_header(CREDIT, 0, 3), "CREDIT has 4 bytes of payload, not 3"),
        (encode_header(CREDIT, 0, 5), "CREDIT has 4 bytes of payload, not 5"),
        (OPENED + encode_header(END, 1, 1), "END has 0 bytes of payload, not 1"),
        (OPENED + encode_header(RESET, 1, 1), "RESET has 0 bytes of payload, not 1"),
        (encode_header(OPEN, 1, 1), "OPEN has 2 to 129 bytes of payload, not 1"),
        (encode_header(OPEN, 1, 130), "OPEN has 2 to 129 bytes of payload, not 130"),
        (GREETING, "HELLO is said once"),
        (encode_mux_frame(OPEN, 0, opening()), "main stream is open as long as"),
        (encode_mux_frame(END, 0), "main stream is open as long as"),
        (encode_mux_frame(RESET, 0), "main stream is open as long as"),
        (encode_mux_frame(OPEN, 2, opening()), "stream 2 is opened, the next is 1"),
        (encode_mux_frame(OPEN, 3, opening()), "stream 3 is opened, the next is 1"),
        (OPENED + OPENED, "stream 1 is opened, the next is 3"),
        (OPENED + encode_mux_frame(RESET, 1) + OPENED, "stream 1 is opened, the next is 3"),
        (encode_mux_frame(OPEN, 1, b"\x00x"), "1 to 64 bytes of ASCII"),
        (encode_mux_frame(OPEN, 1, b"\x03ab"), "1 to 64 bytes of ASCII"),
        (encode_mux_frame(OPEN, 1, opening(b"x" * 65)), "1 to 64 bytes of ASCII"),
        (encode_mux_frame(OPEN, 1, opening("ä".encode())), "1 to 64 bytes of ASCII"),
        (encode_mux_frame(OPEN, 1, opening(b"x", bytes(65))), "store id has at most 64"),
        (encode_mux_frame(DATA, 1, b"x"), "stream 1 was never opened"),
        (encode_mux_frame(DATA, 2, b"x"), "stream 2 was never opened"),
        (encode_mux_frame(CREDIT, 2, CREDIT_OF_ONE), "stream 2 was never opened"),
        (encode_mux_frame(END, 4_294_967_295), "stream 4294967295 was never opened"),
        (encode_mux_frame(RESET, 4_294_967_294), "stream 4294967294 was never opened"),
        (ENDED + encode_mux_frame(DATA, 1, b"x"), "on stream 1 after its end"),
        (ENDED + encode_mux_frame(END, 1), "stream 1 ends twice"),
        (encode_mux_frame(CREDIT, 0, CREDIT_OF_ONE), "stream 0 is given credit for what was not"),
        (encode_mux_frame(CREDIT, 0, bytes(4)), "credit is 65536 bytes or more, not 0"),
        (
            encode_mux_frame(CREDIT, 0, (CREDIT_BYTES_MIN - 1).to_bytes(4, "big")),
            "credit is 65536 bytes or more, not 65535",
        ),
        (encode_mux_frame(CREDIT, 0, b"\xff" * 4), "given credit for what was not sent"),
    ],
)
def test_what_breaks_the_rules_ends_the_connection_with_a_reason(data: bytes, text: str) -> None:
    with pytest.raises(ProtocolViolation, match=text):
        greeted().receive(data)
    end = greeted()
    with pytest.raises(ProtocolViolation, match=text):
        feed(end, data, 1)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (encode_mux_frame(DATA, 0, b"\x01x"), "begins with HELLO"),
        (OPENED, "begins with HELLO"),
        (encode_mux_frame(CREDIT, 0, CREDIT_OF_ONE), "begins with HELLO"),
        (encode_mux_frame(END, 1), "begins with HELLO"),
        (encode_mux_frame(HELLO, 1, NONCE), "once, on the main stream"),
        (encode_mux_frame(HELLO, 0, NONCE + b"\xc3\xa4"), "HELLO are not ASCII"),
        (encode_header(HELLO, 0, NONCE_BYTES - 1), "HELLO has 32 to 1024 bytes"),
        (encode_header(HELLO, 0, HELLO_BYTES_MAX + 1), "HELLO has 32 to 1024 bytes"),
        (encode_frame(b"a frame of a plain peer"), "not a kind of mux frame"),
    ],
)
def test_a_connection_begins_with_hello(data: bytes, text: str) -> None:
    with pytest.raises(ProtocolViolation, match=text):
        end_of(dialled=False).receive(data)


def test_names_and_store_ids_are_read_up_to_their_limits() -> None:
    for size in (PROTOCOL_BYTES_MAX - 1, PROTOCOL_BYTES_MAX):
        name = "x" * size
        end = Mux({**FRAMINGS, name: Framing()}, Hello(NONCE), dialled=False)
        end.receive(GREETING)
        end.receive(encode_mux_frame(OPEN, 1, opening(name.encode(), bytes(STORE_ID_BYTES_MAX))))
        assert end.next() == StreamOpened(1, name, bytes(STORE_ID_BYTES_MAX))


def test_an_illegal_frame_inside_a_stream_ends_the_connection() -> None:
    end = greeted()
    end.receive(encode_mux_frame(DATA, 0, b"\x80"))
    with pytest.raises(ProtocolViolation, match="superfluous"):
        end.next()
    end = greeted()
    end.receive(encode_mux_frame(DATA, 0, encode_length(LIMIT + 1)))
    with pytest.raises(LimitExceeded, match="at most 1000000"):
        end.next()
    end = greeted()
    end.receive(OPENED + encode_mux_frame(DATA, 1, b"\x00\x00") + encode_mux_frame(END, 1))
    assert isinstance(end.next(), StreamOpened)
    with pytest.raises(ProtocolViolation, match="stream 1 ends inside a frame"):
        end.next()


def test_so_many_streams_of_each_side_are_open_at_once() -> None:
    one, other = pair()
    for end in (one, other):
        for _ in range(STREAMS_MAX):
            end.open("fixed/1", b"")
        with pytest.raises(Backpressure, match="512 streams are open"):
            end.open("fixed/1", b"")
    carry(one, other)
    assert (one.open_count, other.open_count) == (2 * STREAMS_MAX + 1,) * 2
    assert sum(isinstance(event, StreamOpened) for event in events(other)) == STREAMS_MAX
    one.reset(1)
    assert one.open("fixed/1", b"") == 2 * STREAMS_MAX + 1
    carry(one, other)
    with pytest.raises(ProtocolViolation, match="512 streams open, and opens another"):
        other.receive(encode_mux_frame(OPEN, 2 * STREAMS_MAX + 3, opening()))


def test_numbers_end_and_begin_not_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mux, "STREAM_NUMBER_MAX", 5)
    end = end_of(dialled=True)
    for expected in (1, 3, 5):
        assert end.open("fixed/1", b"") == expected
        end.reset(expected)
    with pytest.raises(Backpressure, match="no other can be"):
        end.open("fixed/1", b"")


# --- credit ---------------------------------------------------------------------------------------


def data_frames(stream: int, count: int) -> bytes:
    """Return DATA with so many zeros: of the lattice, frames without payload."""
    out = b""
    while count:
        size = min(count, DATA_BYTES_MAX)
        out += encode_mux_frame(DATA, stream, bytes(size))
        count -= size
    return out


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_side_sends_no_more_than_a_window_ahead(more: int) -> None:
    end = greeted()
    data = data_frames(0, WINDOW_BYTES + more)
    if more > 0:
        with pytest.raises(ProtocolViolation, match="more comes on stream 0 than there is credit"):
            end.receive(data)
    else:
        end.receive(data)
        assert end.held_bytes == WINDOW_BYTES + more
    sender = end_of(dialled=True)
    sender.send(MAIN_STREAM, bytes(LIMIT))
    count = 0
    while data := sender.take()[1]:
        count += sum(len(piece) for piece in cut_data(data))
    assert count == WINDOW_BYTES
    assert sender.unsent_bytes(MAIN_STREAM) == LIMIT + 3 - WINDOW_BYTES
    assert not sender.is_sent


def cut_data(data: bytes) -> Iterator[bytes]:
    """Yield the payloads of DATA frames."""
    while data:
        length = int.from_bytes(data[5:9], "big")
        if data[0] == DATA:
            yield data[9 : 9 + length]
        data = data[9 + length :]


def test_credit_is_given_back_when_a_frame_was_handled() -> None:
    end = greeted()
    size = CREDIT_BYTES_MIN
    frame = encode_frame(bytes(size))
    end.receive(b"".join(encode_mux_frame(DATA, 0, frame[at : at + 30_000])
                         for at in range(0, len(frame), 30_000)))  # fmt: skip
    assert isinstance(end.next(), FrameArrived)
    assert end.next() is None
    assert end.take() == ({}, b"")
    end.handled(0, size)
    assert end.take()[1] == encode_mux_frame(CREDIT, 0, len(frame).to_bytes(4, "big"))


def test_bytes_that_wait_behind_a_handled_frame_are_not_given_back_with_it() -> None:
    end = greeted()
    frame = encode_frame(bytes(70_000))
    data = frame * 2
    for at in range(0, len(data), 30_000):
        end.receive(encode_mux_frame(DATA, 0, data[at : at + 30_000]))
    for _ in range(2):
        assert isinstance(end.next(), FrameArrived)
        end.handled(0, 70_000)
        assert end.take()[1] == encode_mux_frame(CREDIT, 0, len(frame).to_bytes(4, "big"))


def test_little_credit_is_kept_until_there_is_more() -> None:
    end = greeted()
    given = 0
    frame = encode_frame(bytes(1_000))
    for count in range(1, 200):
        end.receive(encode_mux_frame(DATA, 0, frame))
        assert isinstance(end.next(), FrameArrived)
        end.handled(0, 1_000)
        said = end.take()[1]
        if said:
            given += int.from_bytes(said[9:], "big")
        kept = count * len(frame) - given
        assert 0 <= kept < CREDIT_BYTES_MIN
        assert len(said) in {0, 13}


@pytest.mark.parametrize("size", [LARGE_FRAME_BYTES - 1, LARGE_FRAME_BYTES, LARGE_FRAME_BYTES + 1])
def test_only_a_large_frame_gets_its_credit_back_while_it_is_under_way(size: int) -> None:
    end = greeted()
    part = (encode_length(size) + bytes(size))[: CREDIT_BYTES_MIN + 10]
    for at in range(0, len(part), DATA_BYTES_MAX):
        end.receive(encode_mux_frame(DATA, 0, part[at : at + DATA_BYTES_MAX]))
    assert end.next() is None
    assert bool(end.take()[1]) == (size > LARGE_FRAME_BYTES)
    assert list(end.begun) == [MAIN_STREAM]


def test_large_frames_are_admitted_one_after_another_within_their_bytes() -> None:
    """A peer with many streams makes us hold no more than that, and a window for each."""
    one, other = end_of(dialled=True), end_of(dialled=False, large=LIMIT)
    streams = [one.open(LATTICE, b"") for _ in range(10)]
    for stream in streams:
        one.send(stream, bytes(400_000))
    arrived: list[int] = []
    handled = 0
    most = LIMIT + 10 * (WINDOW_BYTES + STREAM_BYTES + FRAME_BYTES)
    while handled < len(streams):
        count = -1
        while count < len(arrived):
            count = len(arrived)
            for _ in range(20):
                carry(one, other)
                arrived += [
                    event.stream for event in events(other) if isinstance(event, FrameArrived)
                ]
                assert other.held_bytes <= most
        assert len(arrived) == min(handled + 2, 10), "two of them fit"
        other.handled(arrived[handled], 400_000)
        handled += 1
    assert sorted(arrived) == streams
    carry(one, other)
    assert one.is_sent


def test_one_large_frame_is_admitted_whatever_the_limit() -> None:
    one, other = end_of(dialled=True), end_of(dialled=False, large=1)
    for stream in (MAIN_STREAM, one.open(LATTICE, b"")):
        one.send(stream, bytes(LIMIT))
    found: list[int] = []
    while len(found) < 2:
        carry(one, other)
        for event in events(other):
            if isinstance(event, FrameArrived):
                found.append(event.stream)
                other.handled(event.stream, LIMIT)
    assert sorted(found) == [MAIN_STREAM, 1]


def test_a_reset_makes_room_for_the_large_frames_of_others() -> None:
    one, other = end_of(dialled=True), end_of(dialled=False, large=LIMIT)
    first, second = one.open(LATTICE, b""), one.open(LATTICE, b"")
    one.send(first, bytes(LIMIT))
    one.send(second, bytes(LIMIT))
    for _ in range(8):  # not all of the first
        other.receive(one.take()[1])
        assert not any(isinstance(event, FrameArrived) for event in events(other))
    assert (list(other.begun), other.is_blocked) == ([first], True)
    one.reset(first)
    found: list[MuxEvent] = []
    for _ in range(20):
        carry(one, other)
        found += events(other)
    assert found == [StreamEnded(first, is_reset=True), FrameArrived(second, bytes(LIMIT))]


def test_a_slow_handler_stops_its_own_stream_only() -> None:
    one, other = pair()
    slow, quick = one.open(LATTICE, b""), one.open(LATTICE, b"")
    for _ in range(60):
        one.send(slow, bytes(10_000))
        one.send(quick, bytes(10_000))
    counts = {slow: 0, quick: 0}
    for _ in range(200):
        carry(one, other)
        for event in events(other):
            if isinstance(event, FrameArrived):
                counts[event.stream] += 1
                if event.stream == quick:
                    other.handled(quick, 10_000)
    assert counts == {slow: 1, quick: 60}
    assert (other.is_blocked, other.is_idle) == (True, False)
    assert one.unsent_bytes(slow) > 0
    while counts[slow] < 60:
        other.handled(slow, 10_000)
        carry(one, other)
        counts[slow] += sum(isinstance(event, FrameArrived) for event in events(other))
    other.handled(slow, 10_000)
    assert (other.is_blocked, other.is_idle) == (False, True)


def test_a_stream_whose_answers_are_not_read_is_not_listened_to() -> None:
    end = greeted()
    end.frames_max = 10
    end.receive(OPENED + encode_mux_frame(DATA, 0, b"\x01x") + encode_mux_frame(DATA, 1, bytes(4)))
    end.send(MAIN_STREAM, bytes(UNSENT_BYTES_MAX - 4))  # with four octets of length
    assert [type(one) for one in events(end)] == [StreamOpened, FrameArrived]
    assert end.is_blocked
    end.take()
    assert end.next() == FrameArrived(0, b"x")


def test_answers_to_who_does_not_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mux, "CONTROL_BYTES_MAX", 18)
    end = greeted()
    for number, listens in ((1, True), (3, True), (5, False)):
        end.receive(encode_mux_frame(OPEN, number, opening(b"what")))
        assert end.listens is listens
    end.take()
    assert end.listens


# --- order ----------------------------------------------------------------------------------------


def test_small_frames_are_joined_and_large_ones_cut() -> None:
    one, other = pair()
    carry(one, other)
    for _ in range(100):
        one.send(MAIN_STREAM, bytes(600))
    done, data = one.take()
    assert done == {MAIN_STREAM: 100}
    assert len(data) == 100 * 602 + 2 * 9
    one.send(MAIN_STREAM, bytes(LIMIT))
    done, data = one.take()
    assert done == {}
    assert len(data) == JOIN_BYTES


def test_a_small_frame_passes_a_large_one() -> None:
    """Counted in bytes: two pieces of the large frame may leave before, those under way apart."""
    one = Mux({LATTICE: Framing()}, Hello(NONCE), dialled=True)
    other = Mux({LATTICE: Framing()}, Hello(NONCE), dialled=False)
    large, small = one.open(LATTICE, b""), one.open(LATTICE, b"")
    one.send(large, bytes(50_000_000))
    before = total = 0
    is_asked = False
    while True:
        done, data = one.take()
        total += len(data)
        if is_asked and small in done:
            assert total - before <= JOIN_BYTES + 400
            break
        assert not is_asked or total - before < JOIN_BYTES
        other.receive(data)
        list(events(other))
        one.receive(other.take()[1])
        if total > 5_000_000 and not is_asked:
            is_asked = True
            before = total
            one.send(small, bytes(300))


def test_streams_take_turns() -> None:
    one, other = pair()
    streams = [one.open(LATTICE, b"") for _ in range(3)]
    carry(one, other)
    for stream in streams:
        one.send(stream, bytes(200_000))
    order = []
    while data := one.take()[1]:
        while data:
            order.append(int.from_bytes(data[1:5], "big"))
            data = data[9 + int.from_bytes(data[5:9], "big") :]
    assert order[:6] == streams * 2
