"""Mux: several streams on one connection, each with its own order and its own back-pressure.

The bytes are in muxframes.py. Streams of the dialler have odd numbers, those of the acceptor even
ones, each side's in order and without gaps. So a number says whether a stream was ever open, and
what comes late for one that is over is told from what was never allowed.

Credit. Each side may have `WINDOW_BYTES` under way on each stream. The bytes of a frame are given
back when it was handled, so a slow handler stops its own stream and no other. A *large* frame gets
the bytes that came back at once, since a frame longer than the window could never be complete. Its
length is known from its first bytes. It is admitted when it fits into `large_bytes_max` together
with those admitted before that are not handled yet, or when there are none, in the order in which
they came. Whatever its length, one is always under way, so no connection is stuck while its
handlers go on; and a peer makes us hold at most `large_bytes_max`, and a window for each stream.

Whatever breaks the rules raises `ProtocolViolation`, and the object is of no more use.
Length: one state machine. What comes, credit, what goes and ends change the same streams.

Source: docs/node.md "Several streams".
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
    Event,
    FrameArrived,
    StreamEnded,
    StreamOpened,
)

WINDOW_BYTES: Final = 1 << 18
"""Bytes of a stream that may be under way, or here and not handled."""

CREDIT_BYTES_MIN: Final = 1 << 16
"""Least that is given back at once. More than was sent cannot be given back, so a side that sends
little has little credit to read."""

LARGE_BYTES: Final = 1 << 17
"""A payload up to this size fits into the window, whatever credit is kept back; one above it is
large."""

STREAMS_MAX: Final = 512
"""Streams of each side that may be open at once: 1,024 a connection. Each side's count by
themselves, so two that open some at the same moment cannot exceed the number together."""

STREAM_NUMBER_MAX: Final = (1 << 32) - 1

STREAM_BYTES: Final = 1_000
"""What an open stream costs us, beside the frames that are held of it."""

CONTROL_BYTES_MAX: Final = 1_000_000
"""Mux frames without data that may wait to be taken. With more nothing is read: the peer has us
answer, and does not read."""

assert LARGE_BYTES + LENGTH_OCTETS_MAX + CREDIT_BYTES_MIN <= WINDOW_BYTES
assert 2 * (DATA_BYTES_MAX + HEADER_BYTES) <= JOIN_BYTES


class _MuxStream(Channel):
    """A stream of a `Mux`."""

    def __init__(self, number: int, framing: Framing) -> None:
        super().__init__(framing)
        self.number = number
        self.credit = WINDOW_BYTES  # bytes that may still be sent
        self.uncredited = 0  # bytes that came and were not given back
        self.large = 0  # payload bytes of the admitted frame that is under way or unhandled
        self.is_large_complete = False
        self.waits_for_admission = False
        self.news: StreamOpened | None = None  # not given out yet
        self.is_ready = False  # in the line of those that may have an event
        self.is_sending = False  # in the line of those that may send
        self.is_ending = False  # `end` was called
        self.has_ended = False  # END was sent
        self.peer_ended = False
        self.is_reset = False  # by the peer
        self.is_told = False  # its end was given out, or nobody wants to know


class Mux:
    """One end of a connection with several streams.

    framings:        how the payloads of each protocol stand on its streams, by name; the main
                     stream is of the protocol `LATTICE`. A stream for any other name is reset.
    large_bytes_max: bytes of large frames that may be held, of one alone whatever its length.
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
        self._over: dict[int, _MuxStream] = {}  # over, with something left to give out or handle
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
        """Whether the peer reads what we answer to streams it opens."""
        return len(self._control) <= CONTROL_BYTES_MAX

    def receive(self, data: bytes) -> int:
        """Take bytes of the link.

        Returns: FRAME_BYTES for each mux frame, and the bytes that came too late.
        Raises: ProtocolViolation: they break a rule.
        """
        cost = 0
        for kind, number, length, payload in self._reader.read(data):
            if length or kind != DATA:
                cost += FRAME_BYTES
            if kind == DATA:
                cost += self._take_data(number, length, payload)
            else:
                self._act(kind, number, bytes(payload))
        return cost

    def _take_data(self, number: int, length: int, data: bytes | memoryview) -> int:
        """Take data that has come; return how many bytes of it came too late."""
        stream = self._known(number)
        if stream is None:
            return len(data)
        if length:
            if stream.peer_ended:
                raise ProtocolViolation(f"data comes on stream {number} after its end")
            stream.uncredited += length
            if stream.uncredited > WINDOW_BYTES:
                raise ProtocolViolation(f"more comes on stream {number} than there is credit for")
        stream.buffer.feed(data)
        self._buffered_bytes += len(data)
        self._stir(stream)
        return 0

    def _known(self, number: int) -> _MuxStream | None:
        """Return an open stream, None for one that is over.

        Raises: ProtocolViolation: it was never opened, or nothing may be said yet.
        """
        if self.peer_hello is None:
            raise ProtocolViolation("a connection begins with HELLO")
        stream = self._streams.get(number)
        if stream is None:
            is_own = number % 2 == self._own_next % 2
            if number >= (self._own_next if is_own else self._peer_next):
                raise ProtocolViolation(f"stream {number} was never opened")
        return stream

    def _act(self, kind: int, number: int, payload: bytes) -> None:
        if kind == HELLO:
            if self.peer_hello is not None or number != MAIN_STREAM:
                raise ProtocolViolation("HELLO is said once, on the main stream")
            self.peer_hello = Hello.decode(payload)
            return
        if number == MAIN_STREAM and kind != CREDIT:
            raise ProtocolViolation("the main stream is open as long as the connection")
        if kind == OPEN:
            self._opened(number, payload)
            return
        stream = self._known(number)
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
        if self._peer_count >= STREAMS_MAX:
            raise ProtocolViolation(f"the peer has {STREAMS_MAX} streams open, and opens another")
        self._peer_next += 2
        framing = self._framings.get(protocol)
        if framing is None:  # as for a store that is refused
            self._write_control(RESET, number)
            return
        self._peer_count += 1
        stream = self._streams[number] = _MuxStream(number, framing)
        stream.news = StreamOpened(number, protocol, store_id)
        self._stir(stream)

    def _credited(self, stream: _MuxStream, count: int) -> None:
        if count < CREDIT_BYTES_MIN:
            raise ProtocolViolation(f"credit is {CREDIT_BYTES_MIN} bytes or more, not {count}")
        if stream.credit + count > WINDOW_BYTES:
            raise ProtocolViolation(f"stream {stream.number} is given credit for what was not sent")
        stream.credit += count
        self._may_send(stream)

    def _peer_ended(self, stream: _MuxStream) -> None:
        if stream.peer_ended:
            raise ProtocolViolation(f"stream {stream.number} ends twice")
        stream.peer_ended = True
        self._stir(stream)
        self._close_if_over(stream)

    def _peer_reset(self, stream: _MuxStream) -> None:
        stream.is_reset = True
        # Somebody who never heard of the stream does not want to know of its end.
        self._drop(stream, is_told=stream.news is not None)

    # --- events -------------------------------------------------------------------------------

    def next(self) -> Event | None:
        """Return the next event: of streams in turn, of each in its order.

        Raises: ProtocolViolation, LimitExceeded: an illegal frame, or an end inside of one.
        """
        while self._ready:
            stream = self._ready.popleft()
            stream.is_ready = False
            event = self._event_of(stream)
            if event is not None:
                self._stir(stream)
                return event
        return None

    def _event_of(self, stream: _MuxStream) -> Event | None:
        if stream.is_told:
            return None
        if stream.news is not None:
            news, stream.news = stream.news, None
            return news
        if stream.is_reset:
            return self._tell_end(stream)
        buffer = stream.buffer
        has_room = stream.has_room(self.frames_max)
        if has_room:
            before = buffer.buffered_bytes
            payload = buffer.next_payload()
            self._buffered_bytes -= before - buffer.buffered_bytes
            if payload is not None:
                return self._give(stream, payload)
            if stream.peer_ended:
                if buffer.is_partial:
                    raise ProtocolViolation(f"stream {stream.number} ends inside a frame")
                return self._tell_end(stream)
            self._admit(stream)
            self._give_credit(stream)
        self._note_wait(stream, has_room=has_room)
        return None

    def _give(self, stream: _MuxStream, payload: bytes) -> FrameArrived:
        stream.gave(len(payload))
        self._unhandled_bytes += len(payload) + FRAME_BYTES
        self._unhandled_count += 1
        self._begun.pop(stream.number, None)
        self._blocked.discard(stream.number)
        stream.is_large_complete = stream.large > 0
        if stream.waits_for_admission:  # it fitted into the window
            stream.waits_for_admission = False
            self._admitting.remove(stream)
        return FrameArrived(stream.number, payload)

    def _tell_end(self, stream: _MuxStream) -> StreamEnded:
        stream.is_told = True
        self._begun.pop(stream.number, None)
        self._blocked.discard(stream.number)
        self._forget_if_done(stream)
        return StreamEnded(stream.number, stream.is_reset)

    def _note_wait(self, stream: _MuxStream, *, has_room: bool) -> None:
        """Note whether the peer or this side has to go on with what is here of a stream."""
        number, buffer = stream.number, stream.buffer
        self._begun.pop(number, None)
        self._blocked.discard(number)
        if buffer.is_partial or stream.peer_ended:
            is_first = has_room and not stream.unhandled_count
            if is_first and not stream.waits_for_admission:
                self._begun[number] = buffer.buffered_bytes
            else:
                self._blocked.add(number)

    def _stir(self, stream: _MuxStream) -> None:
        """Have a stream looked at: it may have an event."""
        if not stream.is_ready:
            stream.is_ready = True
            self._ready.append(stream)

    @property
    def is_blocked(self) -> bool:
        """Whether something that came waits here until `handled` or `take` was called."""
        return bool(self._blocked)

    @property
    def begun(self) -> Mapping[int, int]:
        """Streams with a frame that the peer has begun and could go on with: its bytes so far."""
        return self._begun

    def handled(self, stream: int, payload_bytes: int) -> None:
        """Note that a frame of so many bytes was handled, and give its bytes back."""
        found = self._streams.get(stream) or self._over[stream]
        found.handled(payload_bytes)
        self._unhandled_bytes -= payload_bytes + FRAME_BYTES
        self._unhandled_count -= 1
        if found.is_large_complete:  # it was admitted with nothing before it, so it is this one
            self._release(found)
        self._give_credit(found)
        if found.is_told:
            self._forget_if_done(found)
        else:
            self._stir(found)

    @property
    def is_idle(self) -> bool:
        """Whether every frame that was given out was handled."""
        return not self._unhandled_count

    # --- credit -------------------------------------------------------------------------------

    def _give_credit(self, stream: _MuxStream) -> None:
        """Give back what is handled, or all that came of an admitted frame that is under way."""
        if stream.peer_ended or stream.number not in self._streams:
            return
        is_under_way = stream.large and not stream.is_large_complete
        waiting = stream.unhandled_bytes - FRAME_BYTES * stream.unhandled_count
        kept = 0 if is_under_way else stream.buffer.buffered_bytes + waiting
        given = stream.uncredited - kept
        if given >= CREDIT_BYTES_MIN:
            stream.uncredited -= given
            self._write_control(CREDIT, stream.number, given.to_bytes(CREDIT_OCTETS, "big"))

    def _admit(self, stream: _MuxStream) -> None:
        """Admit a large frame that is the next of its stream, or have it wait in line."""
        length = stream.buffer.expected_bytes
        if length is None or length <= LARGE_BYTES:
            return
        if stream.unhandled_count or stream.large or stream.waits_for_admission:
            return
        stream.waits_for_admission = True
        self._admitting.append(stream)
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._admitting:
            stream = self._admitting[0]
            length = stream.buffer.expected_bytes or 0
            if self._large_bytes and self._large_bytes + length > self._large_bytes_max:
                return
            self._admitting.popleft()
            stream.waits_for_admission = False
            stream.large = length
            self._large_bytes += length
            self._give_credit(stream)
            self._stir(stream)

    def _release(self, stream: _MuxStream) -> None:
        self._large_bytes -= stream.large
        stream.large = 0
        stream.is_large_complete = False
        self._admit_waiting()

    # --- ends ---------------------------------------------------------------------------------

    def _close_if_over(self, stream: _MuxStream) -> None:
        """Close a stream that has ended in both directions; what came of it is still given out."""
        if stream.peer_ended and stream.has_ended:
            self._close(stream)

    def _close(self, stream: _MuxStream) -> None:
        number = stream.number
        del self._streams[number]
        self._over[number] = stream
        if number % 2 == self._own_next % 2:
            self._own_count -= 1
        else:
            self._peer_count -= 1
        self._forget_if_done(stream)

    def _forget_if_done(self, stream: _MuxStream) -> None:
        if stream.is_told and not stream.unhandled_count:
            self._over.pop(stream.number, None)

    def _drop(self, stream: _MuxStream, *, is_told: bool) -> None:
        """Close a stream that was reset, with all that is held of it but what is being handled."""
        self._buffered_bytes -= stream.buffer.buffered_bytes
        stream.buffer.clear()
        self._unsent_bytes -= stream.drop_unsent()
        stream.news = None
        stream.is_told = is_told
        self._begun.pop(stream.number, None)
        self._blocked.discard(stream.number)
        if stream.waits_for_admission:
            stream.waits_for_admission = False
            self._admitting.remove(stream)
        self._close(stream)
        if stream.large and not stream.is_large_complete:
            self._release(stream)
        self._stir(stream)

    # --- what goes ----------------------------------------------------------------------------

    def open(self, protocol: str, store_id: bytes) -> int:
        """Open a stream; return its number.

        Raises: UsageError: the protocol is unknown, or the store id too long.
                Backpressure: `STREAMS_MAX` of ours are open, or no numbers are left.
        """
        framing = self._framings.get(protocol)
        if framing is None:
            known = ", ".join(sorted(self._framings))
            raise UsageError(f"{protocol!r} is no protocol of streams; known are {known}")
        payload = encode_open(protocol, store_id)
        number = self._own_next
        if self._own_count >= STREAMS_MAX or number > STREAM_NUMBER_MAX:
            raise Backpressure(f"{self._own_count} streams are open, and no other can be")
        self._own_next += 2
        self._own_count += 1
        self._streams[number] = _MuxStream(number, framing)
        self._write_control(OPEN, number, payload)
        return number

    def send(self, stream: int, payload: bytes) -> None:
        """Queue a frame; it is dropped when the stream is over, or was ended."""
        found = self._streams.get(stream)
        if found is not None and not found.is_ending:
            self._unsent_bytes += found.put(payload)
            self._may_send(found)

    def end(self, stream: int) -> None:
        """Send nothing more on a stream, after what is queued.

        Raises: UsageError: it is the main stream.
        """
        self._check_is_not_main(stream)
        found = self._streams.get(stream)
        if found is not None and not found.is_ending:
            found.is_ending = True
            self._may_send(found)

    def reset(self, stream: int) -> None:
        """End a stream at once in both directions; its events are over.

        Raises: UsageError: it is the main stream.
        """
        self._check_is_not_main(stream)
        found = self._streams.get(stream)
        if found is not None:
            self._write_control(RESET, stream)
            self._drop(found, is_told=True)

    def _check_is_not_main(self, stream: int) -> None:
        if stream == MAIN_STREAM:
            raise UsageError("the main stream ends with its connection")

    def _write_control(self, kind: int, stream: int, payload: bytes = b"") -> None:
        self._control += encode_mux_frame(kind, stream, payload)

    def _may_send(self, stream: _MuxStream) -> None:
        can = stream.credit if stream.unsent_bytes else stream.is_ending
        if can and not stream.is_sending and not stream.has_ended:
            stream.is_sending = True
            self._sending.append(stream)

    def take(self) -> tuple[dict[int, int], bytes]:
        """Return the next bytes for the link: streams in turn, a piece of each."""
        done: dict[int, int] = {}
        pieces: list[bytes | memoryview] = []
        size = 0
        if self._control:
            pieces.append(bytes(self._control[:JOIN_BYTES]))
            size = len(pieces[0])
            del self._control[:size]
            if self._control:  # an OPEN may be among it, and stands before the data
                return done, b"".join(pieces)
        while self._sending and size + HEADER_BYTES < JOIN_BYTES:
            stream = self._sending.popleft()
            stream.is_sending = False
            if stream.number not in self._streams:
                continue
            room = JOIN_BYTES - HEADER_BYTES - size
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
            self._stir(stream)

    def unsent_bytes(self, stream: int) -> int:
        """Return the bytes of frames of a stream that wait to be taken."""
        found = self._streams.get(stream)
        return 0 if found is None else found.unsent_bytes

    @property
    def has_output(self) -> bool:
        """Whether `take` has bytes now."""
        return bool(self._control or self._sending)

    @property
    def is_sent(self) -> bool:
        """Whether nothing waits to be taken, or for credit."""
        return not self._unsent_bytes and not self.has_output

    @property
    def open_count(self) -> int:
        """Streams that are open, the main one among them."""
        return len(self._streams)

    @property
    def held_bytes(self) -> int:
        """Bytes of frames under way, unhandled and unsent, and what open streams cost."""
        streams = len(self._streams) - 1 + len(self._over)
        return (
            self._buffered_bytes
            + self._unhandled_bytes
            + self._unsent_bytes
            + len(self._control)
            + STREAM_BYTES * streams
        )
