"""Mux: several streams on one connection, each with its own order and its own back-pressure.

muxframes.py defines the bytes. The side that dialled opens streams with odd numbers, the other side
with even ones, each in order and without gaps. So a number alone distinguishes a late frame of a
closed stream from a frame of a stream that was never opened.

Credit. Each side may have `WINDOW_BYTES` in flight on each stream. The receiver gives credit for
the bytes of a frame back after the frame was handled, so a slow handler stops its own stream only.
A frame longer than the window could then never be complete. So a *large* frame is admitted first,
in the order of arrival: if it fits into `large_bytes_max` together with the admitted frames that
are not handled yet, or if there are none. For an admitted frame credit is given back as its bytes
arrive. So one large frame of any length always makes progress, and a peer can make this side hold
at most `large_bytes_max`, and a window for each stream.

A broken rule raises `ProtocolViolation`; the object is unusable afterwards.

Source: docs/protocol.md "Several streams".

Length: one state machine. Receiving, credit, sending and ends change the same streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from datalattice.errors import Backpressure, ProtocolViolation, UsageError
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.wire.framing import LENGTH_OCTETS_MAX, Framing
from datalattice.wire.muxframes import (
    CREDIT,
    CREDIT_OCTETS,
    DATA,
    DATA_BYTES_MAX,
    END,
    HEADER_BYTES,
    HELLO,
    OPEN,
    RESET,
    Hello,
    MuxReader,
    decode_open,
    encode_header,
    encode_mux_frame,
    encode_open,
)
from datalattice.wire.streams import (
    FRAME_BYTES,
    JOIN_BYTES,
    LATTICE,
    MAIN_STREAM,
    UNSENT_BYTES_MAX,
    Channel,
    FrameArrived,
    MuxEvent,
    SingleStream,
    StreamEnded,
    StreamOpened,
)

WINDOW_BYTES: Final = 1 << 18
"""Most bytes of a stream that are in flight, or received and not handled."""

CREDIT_BYTES_MIN: Final = 1 << 16
"""Least credit in one frame. Credit is only given for bytes that were sent, so a side that sends
little receives few CREDIT frames."""

LARGE_FRAME_BYTES: Final = 1 << 17
"""A longer payload is *large*: it may not fit into the window while credit is kept back."""

STREAMS_MAX: Final = 512
"""Most open streams of each side. Each side has its own limit: with a common one, both sides could
open the last stream at the same moment."""

STREAM_NUMBER_MAX: Final = (1 << 32) - 1

STREAM_BYTES: Final = 1_000
"""Counted for each open stream, beside its frames."""

CONTROL_BYTES_MAX: Final = 1_000_000
"""With more unsent bytes of mux frames other than DATA nothing is read: the peer makes this side
answer and does not read the answers."""

# A frame that is not large must fit into the window, even if less than the least credit is kept
# back.
assert LARGE_FRAME_BYTES + LENGTH_OCTETS_MAX + CREDIT_BYTES_MIN <= WINDOW_BYTES
assert 2 * (DATA_BYTES_MAX + HEADER_BYTES) <= JOIN_BYTES


class _MuxStream(Channel):
    """A stream of a `Mux`."""

    def __init__(self, number: int, framing: Framing) -> None:
        super().__init__(framing)
        self.number = number
        self.credit = WINDOW_BYTES  # bytes that may still be sent
        self.uncredited = 0  # received bytes for which no credit was given back
        self.large = 0  # payload bytes of the admitted large frame until it is handled
        self.is_large_complete = False
        self.waits_for_admission = False
        self.opening: StreamOpened | None = None  # not returned by `next` yet
        self.is_ready = False  # in the queue of streams that may have an event
        self.is_sending = False  # in the queue of streams that may send
        self.is_ending = False  # `end` was called
        self.has_ended = False  # END was sent
        self.peer_ended = False
        self.is_reset = False  # by the peer
        self.is_over = False  # `next` has returned its end, or returns no more events of it


class Mux:
    """One end of a connection with several streams.

    framings:        framing of the streams of each protocol, by its name; `LATTICE` is the main
                     stream's. A stream for another protocol is reset.
    large_bytes_max: most bytes of large frames that are held, unless it is a single frame.
    """

    is_multiplexed: Final = True

    def __init__(
        self,
        framings: Mapping[str, Framing],
        hello: Hello,
        *,
        dialled: bool,
        large_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self.frames_max = 1
        self.peer_hello: Hello | None = None
        self._framings = framings
        self._large_bytes_max = large_bytes_max
        main = _MuxStream(MAIN_STREAM, framings[LATTICE])
        self._streams = {MAIN_STREAM: main}  # open in at least one direction
        self._closed: dict[int, _MuxStream] = {}  # closed, with events or frames left
        # "Further streams of the side that dialled have odd numbers from 1, those of the other side
        # even ones from 2."
        self._own_next = 1 if dialled else 2
        self._peer_next = 2 if dialled else 1
        self._own_count = self._peer_count = 0
        self._ready: deque[_MuxStream] = deque()
        self._sending: deque[_MuxStream] = deque()
        self._admitting: deque[_MuxStream] = deque()
        self._large_bytes = 0
        self._begun: dict[int, int] = {}
        self._blocked: set[int] = set()
        self._buffered_bytes = self._unhandled_bytes = self._unsent_bytes = 0
        self._unhandled_count = 0
        self._reader = MuxReader()
        self._control = bytearray()
        self._write_control(HELLO, MAIN_STREAM, hello.encode())

    # --- what comes ---------------------------------------------------------------------------

    @property
    def listens(self) -> bool:
        """Whether more bytes of the link should be read now: the peer reads our answers."""
        return len(self._control) <= CONTROL_BYTES_MAX

    def receive(self, data: bytes) -> int:
        """Take bytes of the link.

        Returns: their cost beside the payloads: FRAME_BYTES for each mux frame, and late bytes.
        Raises: ProtocolViolation: they break a rule; the caller must end the connection.
        """
        cost = 0
        for kind, number, length, payload in self._reader.read(data):
            # "Each mux frame counts as 64 bytes of its sender's share", however many pieces it has.
            if length or kind != DATA:
                cost += FRAME_BYTES
            if kind == DATA:
                cost += self._take_data(number, length, payload)
            else:
                self._control_frame(kind, number, bytes(payload))
        return cost

    def _take_data(self, number: int, length: int, data: bytes | memoryview) -> int:
        """Take data of a stream; return its bytes if the stream is closed."""
        stream = self._open_stream(number)
        if stream is None:
            return len(data)  # "Frames that arrive late, for a stream that is over, are dropped."
        if length:
            if stream.peer_ended:  # "data after END"
                raise ProtocolViolation(f"data comes on stream {number} after its end")
            # Counted by the length in the header, so too much is refused before it has come.
            stream.uncredited += length
            if stream.uncredited > WINDOW_BYTES:
                raise ProtocolViolation(f"more comes on stream {number} than there is credit for")
        stream.buffer.feed(data)
        self._buffered_bytes += len(data)
        self._make_ready(stream)
        return 0

    def _open_stream(self, number: int) -> _MuxStream | None:
        """Return an open stream; None for a closed one.

        Raises: ProtocolViolation: it was never opened, or HELLO has not come.
        """
        if self.peer_hello is None:
            raise ProtocolViolation("a connection begins with HELLO")
        stream = self._streams.get(number)
        if stream is None:
            # Numbers are never reused, so a smaller one was open once and is closed now.
            is_own = number % 2 == self._own_next % 2
            if number >= (self._own_next if is_own else self._peer_next):
                raise ProtocolViolation(f"stream {number} was never opened")
        return stream

    def _control_frame(self, kind: int, number: int, payload: bytes) -> None:
        # "HELLO first": without it no other frame is accepted, and it comes once.
        if kind == HELLO:
            if self.peer_hello is not None or number != MAIN_STREAM:
                raise ProtocolViolation("HELLO is said once, on the main stream")
            self.peer_hello = Hello.decode(payload)
            return
        if number == MAIN_STREAM and kind != CREDIT:  # "Stream 0 is always open."
            raise ProtocolViolation("the main stream is open as long as the connection")
        if kind == OPEN:
            self._opened(number, payload)
            return
        stream = self._open_stream(number)
        if stream is None:
            return
        if kind == CREDIT:
            self._credited(stream, int.from_bytes(payload, "big"))
        elif kind == END:
            self._peer_ended(stream)
        else:
            self._peer_reset(stream)

    def _opened(self, number: int, payload: bytes) -> None:
        if self.peer_hello is None:
            raise ProtocolViolation("a connection begins with HELLO")
        if number != self._peer_next:
            raise ProtocolViolation(f"stream {number} is opened, the next is {self._peer_next}")
        protocol, store_id = decode_open(payload)
        # "More than 512 open streams of one side" end the connection.
        if self._peer_count >= STREAMS_MAX:
            raise ProtocolViolation(f"the peer has {STREAMS_MAX} streams open, and opens another")
        self._peer_next += 2  # "each in order, without gaps and never twice"
        framing = self._framings.get(protocol)
        if framing is None:  # "The three look alike to the peer": what is refused stays unknown
            self._write_control(RESET, number)
            return
        self._peer_count += 1
        stream = self._streams[number] = _MuxStream(number, framing)
        stream.opening = StreamOpened(number, protocol, store_id)
        self._make_ready(stream)

    def _credited(self, stream: _MuxStream, count: int) -> None:
        if count < CREDIT_BYTES_MIN:
            raise ProtocolViolation(f"credit is {CREDIT_BYTES_MIN} bytes or more, not {count}")
        if stream.credit + count > WINDOW_BYTES:  # "credit for what was not sent"
            raise ProtocolViolation(f"stream {stream.number} is given credit for what was not sent")
        stream.credit += count
        self._may_send(stream)

    def _peer_ended(self, stream: _MuxStream) -> None:
        # END closes one direction: what is queued here may still be sent.
        if stream.peer_ended:
            raise ProtocolViolation(f"stream {stream.number} ends twice")
        stream.peer_ended = True
        self._make_ready(stream)
        self._close_if_over(stream)

    def _peer_reset(self, stream: _MuxStream) -> None:
        stream.is_reset = True
        # If `next` never returned its opening, its end is no event either.
        self._drop(stream, is_over=stream.opening is not None)

    # --- events -------------------------------------------------------------------------------

    def next(self) -> MuxEvent | None:
        """Return the next event, or None: streams take turns, each in its own order.

        Raises: ProtocolViolation, LimitExceeded: an illegal frame, or an end inside of one.
        """
        while self._ready:
            stream = self._ready.popleft()
            stream.is_ready = False
            event = self._event_of(stream)
            if event is not None:
                self._make_ready(stream)
                return event
        return None

    def _event_of(self, stream: _MuxStream) -> MuxEvent | None:
        if stream.is_over:
            return None
        # A stream is reported before its first frame, even if both came in one read.
        if stream.opening is not None:
            opening, stream.opening = stream.opening, None
            return opening
        if stream.is_reset:
            return self._report_end(stream)
        buffer = stream.buffer
        has_room = stream.has_room(self.frames_max)
        if has_room:
            before = buffer.buffered_bytes
            payload = buffer.next_payload()
            self._buffered_bytes -= before - buffer.buffered_bytes
            if payload is not None:
                return self._give(stream, payload)
            if stream.peer_ended:
                if buffer.is_partial:  # "an END inside a frame"
                    raise ProtocolViolation(f"stream {stream.number} ends inside a frame")
                return self._report_end(stream)
            self._admit(stream)
            self._give_credit(stream)
        self._note_wait(stream, has_room=has_room)
        return None

    def _give(self, stream: _MuxStream, payload: bytes) -> FrameArrived:
        stream.gave(len(payload))
        self._unhandled_bytes += len(payload) + FRAME_BYTES
        self._unhandled_count += 1
        self._clear_wait(stream.number)
        stream.is_large_complete = stream.large > 0
        if stream.waits_for_admission:  # it fitted into the window
            stream.waits_for_admission = False
            self._admitting.remove(stream)
        return FrameArrived(stream.number, payload)

    def _report_end(self, stream: _MuxStream) -> StreamEnded:
        stream.is_over = True
        self._clear_wait(stream.number)
        self._forget_if_done(stream)
        return StreamEnded(stream.number, stream.is_reset)

    def _note_wait(self, stream: _MuxStream, *, has_room: bool) -> None:
        """Note whether the peer or this side delays an incomplete frame."""
        number, buffer = stream.number, stream.buffer
        self._clear_wait(number)
        if buffer.is_partial or stream.peer_ended:
            is_first = has_room and not stream.unhandled_count
            if is_first and not stream.waits_for_admission:
                self._begun[number] = buffer.buffered_bytes
            else:
                self._blocked.add(number)

    def _clear_wait(self, number: int) -> None:
        self._begun.pop(number, None)
        self._blocked.discard(number)

    def _make_ready(self, stream: _MuxStream) -> None:
        """Have `next` look at a stream: it may have an event."""
        if not stream.is_ready:
            stream.is_ready = True
            self._ready.append(stream)

    @property
    def is_blocked(self) -> bool:
        """Whether received frames wait for a call of `handled` or `take`."""
        return bool(self._blocked)

    @property
    def begun(self) -> Mapping[int, int]:
        """Received bytes of each incomplete frame that only the peer delays, by stream."""
        return self._begun

    def handled(self, stream: int, payload_bytes: int) -> None:
        """Note that a frame with `payload_bytes` was handled, and give its credit back."""
        found = self._streams.get(stream) or self._closed[stream]
        found.handled(payload_bytes)
        self._unhandled_bytes -= payload_bytes + FRAME_BYTES
        self._unhandled_count -= 1
        # A large frame holds its share of `large_bytes_max` until the handler is done with it.
        if found.is_large_complete:  # admitted when none was unhandled, so it is this frame
            self._release(found)
        self._give_credit(found)
        if found.is_over:
            self._forget_if_done(found)
        else:
            self._make_ready(found)

    @property
    def is_idle(self) -> bool:
        """Whether every returned frame was handled."""
        return not self._unhandled_count

    # --- credit -------------------------------------------------------------------------------

    def _give_credit(self, stream: _MuxStream) -> None:
        """Give credit for handled bytes, and for all bytes of an admitted incomplete frame."""
        if stream.peer_ended or stream.number not in self._streams:
            return  # nothing more comes that could need it
        is_under_way = stream.large and not stream.is_large_complete
        waiting = stream.unhandled_bytes - FRAME_BYTES * stream.unhandled_count
        kept = 0 if is_under_way else stream.buffer.buffered_bytes + waiting
        given = stream.uncredited - kept
        if given >= CREDIT_BYTES_MIN:
            stream.uncredited -= given
            self._write_control(CREDIT, stream.number, given.to_bytes(CREDIT_OCTETS, "big"))

    def _admit(self, stream: _MuxStream) -> None:
        """Admit the next frame of a stream if it is large, or queue it for admission."""
        length = stream.buffer.expected_bytes
        if length is None or length <= LARGE_FRAME_BYTES:
            return  # the window is enough for it
        if stream.unhandled_count or stream.large or stream.waits_for_admission:
            return
        stream.waits_for_admission = True
        self._admitting.append(stream)
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._admitting:
            stream = self._admitting[0]
            length = stream.buffer.expected_bytes or 0
            # The first is admitted whatever its length, so that the connection never stalls.
            if self._large_bytes and self._large_bytes + length > self._large_bytes_max:
                return
            self._admitting.popleft()
            stream.waits_for_admission = False
            stream.large = length
            self._large_bytes += length
            self._give_credit(stream)
            self._make_ready(stream)

    def _release(self, stream: _MuxStream) -> None:
        self._large_bytes -= stream.large
        stream.large = 0
        stream.is_large_complete = False
        self._admit_waiting()

    # --- ends ---------------------------------------------------------------------------------

    def _close_if_over(self, stream: _MuxStream) -> None:
        """Close a stream that has ended both ways; its received frames are still returned."""
        if stream.peer_ended and stream.has_ended:
            self._close(stream)

    def _close(self, stream: _MuxStream) -> None:
        number = stream.number
        del self._streams[number]
        self._closed[number] = stream
        if number % 2 == self._own_next % 2:
            self._own_count -= 1
        else:
            self._peer_count -= 1
        self._forget_if_done(stream)

    def _forget_if_done(self, stream: _MuxStream) -> None:
        if stream.is_over and not stream.unhandled_count:
            self._closed.pop(stream.number, None)

    def _drop(self, stream: _MuxStream, *, is_over: bool) -> None:
        """Close a stream that was reset, and drop all its frames except those being handled."""
        self._buffered_bytes -= stream.buffer.buffered_bytes
        stream.buffer.clear()
        self._unsent_bytes -= stream.drop_unsent()
        stream.opening = None
        # The peer has dropped the stream, or will: neither side sends or returns the rest.
        stream.is_over = is_over
        self._clear_wait(stream.number)
        if stream.waits_for_admission:
            stream.waits_for_admission = False
            self._admitting.remove(stream)
        self._close(stream)
        if stream.large and not stream.is_large_complete:
            self._release(stream)
        self._make_ready(stream)

    # --- what goes ----------------------------------------------------------------------------

    def open(self, protocol: str, store_id: bytes) -> int:
        """Open a stream; return its number.

        Raises: UsageError: the protocol is unknown, or the store id too long.
                Backpressure: `STREAMS_MAX` of ours are open, or no numbers are left.
        """
        framing = self._framings.get(protocol)
        if framing is None:
            known = ", ".join(sorted(self._framings))
            raise UsageError(f"{protocol!r} is not a protocol of streams; known are {known}")
        payload = encode_open(protocol, store_id)
        number = self._own_next
        # The peer would end the connection for one stream too many.
        if self._own_count >= STREAMS_MAX or number > STREAM_NUMBER_MAX:
            raise Backpressure(f"{self._own_count} streams are open, and no other can be")
        self._own_next += 2
        self._own_count += 1
        self._streams[number] = _MuxStream(number, framing)
        self._write_control(OPEN, number, payload)
        return number

    def send(self, stream: int, payload: bytes) -> None:
        """Queue a frame; it is dropped if the stream is closed or was ended."""
        found = self._streams.get(stream)
        if found is not None and not found.is_ending:
            self._unsent_bytes += found.put(payload)
            self._may_send(found)

    def end(self, stream: int) -> None:
        """Send nothing more on a stream after what is queued.

        Raises: UsageError: it is the main stream.
        """
        self._check_is_not_main(stream)
        found = self._streams.get(stream)
        if found is not None and not found.is_ending:
            found.is_ending = True
            self._may_send(found)

    def reset(self, stream: int) -> None:
        """End a stream at once in both directions, with no further event of it.

        Raises: UsageError: it is the main stream.
        """
        self._check_is_not_main(stream)
        found = self._streams.get(stream)
        # A stream that is closed already needs no RESET: the peer knows, or will.
        if found is not None:
            self._write_control(RESET, stream)
            self._drop(found, is_over=True)

    def _check_is_not_main(self, stream: int) -> None:
        if stream == MAIN_STREAM:
            raise UsageError("the main stream ends with its connection")

    def _write_control(self, kind: int, stream: int, payload: bytes = b"") -> None:
        self._control += encode_mux_frame(kind, stream, payload)

    def _may_send(self, stream: _MuxStream) -> None:
        # With data left it waits for credit; END itself needs none.
        can = stream.credit if stream.unsent_bytes else stream.is_ending
        if can and not stream.is_sending and not stream.has_ended:
            stream.is_sending = True
            self._sending.append(stream)

    def take(self) -> tuple[dict[int, int], bytes]:
        """Return (how many frames of each stream end in the next bytes, these bytes).

        Streams take turns with a piece each. Without bytes, nothing may be sent now.
        """
        done: dict[int, int] = {}
        pieces: list[bytes | memoryview] = []
        size = 0
        if self._control:
            pieces.append(bytes(self._control[:JOIN_BYTES]))
            size = len(pieces[0])
            del self._control[:size]
            if self._control:  # an OPEN in it must come before the stream's data
                return done, b"".join(pieces)
        while self._sending and size + HEADER_BYTES < JOIN_BYTES:
            stream = self._sending.popleft()
            stream.is_sending = False
            if stream.number not in self._streams:
                continue
            room = JOIN_BYTES - HEADER_BYTES - size
            # One short piece of each stream, so that a small frame never waits behind a large one.
            count = min(stream.unsent_bytes, stream.credit, DATA_BYTES_MAX, room)
            if count:
                pieces.append(encode_header(DATA, stream.number, count))
                size += HEADER_BYTES + count
                self._send_piece(stream, count, pieces, done)
            if stream.is_ending and not stream.unsent_bytes and size + HEADER_BYTES <= JOIN_BYTES:
                pieces.append(encode_header(END, stream.number, 0))
                size += HEADER_BYTES
                stream.has_ended = True
                self._close_if_over(stream)
            self._may_send(stream)
        return done, b"".join(pieces)

    def _send_piece(
        self,
        stream: _MuxStream,
        count: int,
        pieces: list[bytes | memoryview],
        done: dict[int, int],
    ) -> None:
        was_full = stream.unsent_bytes >= UNSENT_BYTES_MAX
        frames = stream.cut(count, pieces)
        stream.credit -= count
        self._unsent_bytes -= count
        if frames:
            done[stream.number] = done.get(stream.number, 0) + frames
        if was_full and stream.unsent_bytes < UNSENT_BYTES_MAX:
            self._make_ready(stream)

    def unsent_bytes(self, stream: int) -> int:
        """Return the unsent bytes of a stream's frames."""
        found = self._streams.get(stream)
        return 0 if found is None else found.unsent_bytes

    @property
    def has_output(self) -> bool:
        """Whether `take` has bytes now."""
        return bool(self._control or self._sending)

    @property
    def is_sent(self) -> bool:
        """Whether nothing waits to be taken or for credit."""
        return not (self._unsent_bytes or self._control or self._sending)

    @property
    def open_count(self) -> int:
        """Number of open streams, the main one included."""
        return len(self._streams)

    @property
    def held_bytes(self) -> int:
        """Bytes of incomplete, unhandled and unsent frames, and the cost of the streams."""
        streams = len(self._streams) - 1 + len(self._closed)
        return (
            self._buffered_bytes
            + self._unhandled_bytes
            + self._unsent_bytes
            + len(self._control)
            + STREAM_BYTES * streams
        )


Streams = SingleStream | Mux
"""One end of the streams of a connection."""
