"""Streams: frames of several conversations on one connection; here the interface, and one stream.

A `Streams` object holds what one end of a connection knows of its streams: bytes that came and make
no frame yet, frames that wait for a slow handler, frames that wait to be sent. It does no input or
output. `receive` takes bytes of the link, `next` gives one event at a time, `take` gives bytes for
the link. Whoever drives it calls `next` until it gives None, and again after `receive`, `handled`
and `take`.

`SingleStream` is one stream without any bytes beside its frames, as nodes have always spoken. `Mux`
(mux.py) carries many.

Source: docs/node.md "Frames", "Several streams".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from datalattice.errors import UsageError
from datalattice.wire.framing import Framing

PLAIN_PROTOCOL: Final = "lattice/1"
"""Name of a connection with one stream, in TLS."""

MUX_PROTOCOL: Final = "lattice/2"
"""Name of a connection with several streams, in TLS."""

MAIN_STREAM: Final = 0
"""The stream that is always open. It carries the lattice protocol."""

LATTICE: Final = "lattice"
"""Name of the protocol of the main stream."""

JOIN_BYTES: Final = 1 << 16
"""Most bytes that `take` returns: small frames are joined up to it, large ones cut."""

FRAME_BYTES: Final = 64
"""What a frame costs us beside its payload, so that empty ones count too."""

UNSENT_BYTES_MAX: Final = 16_000_000
"""Bytes that wait for the peer to read a stream before the next frame of that stream is given out:
a short question may have an answer as long as a frame can be."""

AHEAD_BYTES_MAX: Final = 1_000_000
"""Bytes of frames of a stream that may be unhandled when the next one is given out behind them."""


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The peer opened a stream for a protocol, and the store it is about."""

    stream: int
    protocol: str
    store_id: bytes


@dataclass(frozen=True, slots=True)
class FrameArrived:
    """A frame came on a stream; `handled` says when that is done."""

    stream: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """Nothing more comes on a stream. After a reset nothing is sent on it either."""

    stream: int
    is_reset: bool


Event = StreamOpened | FrameArrived | StreamEnded


class Streams(Protocol):
    """One end of a connection's streams.

    frames_max: frames of a stream that may be unhandled, and at most `AHEAD_BYTES_MAX` of them;
                the others wait here, or at the peer.
    """

    frames_max: int

    @property
    def is_multiplexed(self) -> bool:
        """Whether streams can be opened beside the main one."""
        ...

    # --- what comes ---------------------------------------------------------------------------

    @property
    def listens(self) -> bool:
        """Whether more bytes of the link should be read now."""
        ...

    def receive(self, data: bytes) -> int:
        """Take bytes of the link.

        Returns: what they cost beside the payloads they carry, in bytes.
        Raises: ProtocolViolation: they break the rules of streams; the connection has to end.
        """
        ...

    def next(self) -> Event | None:
        """Return what happened next, None when nothing more has, or none may be given out now.

        Raises: ProtocolViolation, LimitExceeded: an illegal frame; the connection has to end.
        """
        ...

    @property
    def is_blocked(self) -> bool:
        """Whether something that came waits here until `handled` or `take` was called."""
        ...

    @property
    def begun(self) -> Mapping[int, int]:
        """Streams with a frame that the peer has begun and could go on with: its bytes so far."""
        ...

    def handled(self, stream: int, payload_bytes: int) -> None:
        """Note that a frame of so many bytes was handled."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether every frame that was given out was handled."""
        ...

    # --- what goes ----------------------------------------------------------------------------

    def open(self, protocol: str, store_id: bytes) -> int:
        """Open a stream; return its number.

        Raises: UsageError: there is one stream only, or the protocol is unknown.
                Backpressure: as many as may be are open.
        """
        ...

    def send(self, stream: int, payload: bytes) -> None:
        """Queue a frame; it is dropped when the stream is over."""
        ...

    def end(self, stream: int) -> None:
        """Send nothing more on a stream, after what is queued."""
        ...

    def reset(self, stream: int) -> None:
        """End a stream at once in both directions, with nothing more sent or given out."""
        ...

    def take(self) -> tuple[dict[int, int], bytes]:
        """Return how many frames of which stream end in them, and bytes for the link.

        No bytes: nothing is to be sent now.
        """
        ...

    def unsent_bytes(self, stream: int) -> int:
        """Return the bytes of frames of a stream that wait to be taken."""
        ...

    @property
    def has_output(self) -> bool:
        """Whether `take` has bytes now."""
        ...

    @property
    def is_sent(self) -> bool:
        """Whether nothing waits to be taken, or may be taken once the peer allows it."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes that are held here: of frames under way, unhandled and unsent."""
        ...


class Channel:
    """One stream at one end: what came of it and waits, and what waits to be sent."""

    def __init__(self, framing: Framing) -> None:
        self.framing = framing
        self.buffer = framing.buffer()
        self.unhandled_bytes = 0  # with FRAME_BYTES for each
        self.unhandled_count = 0
        self.unsent_bytes = 0
        self._queue: deque[bytes] = deque()
        self._sent = 0  # bytes of the first in the queue that were taken

    def has_room(self, frames_max: int) -> bool:
        """Return whether the next frame may be given out."""
        count = self.unhandled_count
        is_few = count < frames_max and self.unhandled_bytes < AHEAD_BYTES_MAX
        return (is_few or not count) and self.unsent_bytes < UNSENT_BYTES_MAX

    def gave(self, payload_bytes: int) -> None:
        """Note that a frame was given out."""
        self.unhandled_bytes += payload_bytes + FRAME_BYTES
        self.unhandled_count += 1

    def handled(self, payload_bytes: int) -> None:
        """Note that a frame was handled."""
        self.unhandled_bytes -= payload_bytes + FRAME_BYTES
        self.unhandled_count -= 1

    def put(self, payload: bytes) -> int:
        """Queue a frame; return its bytes with the length."""
        frame = self.framing.frame(payload)
        self._queue.append(frame)
        self.unsent_bytes += len(frame)
        return len(frame)

    def cut(self, count: int, into: list[bytes | memoryview]) -> int:
        """Append the next bytes to be sent, at most so many; return how many frames end in them."""
        done = 0
        while count and self._queue:
            frame, start = self._queue[0], self._sent
            size = min(count, len(frame) - start)
            end = start + size
            into.append(frame if size == len(frame) else memoryview(frame)[start:end])
            count -= size
            self.unsent_bytes -= size
            self._sent = end
            if end == len(frame):
                self._queue.popleft()
                self._sent = 0
                done += 1
        return done

    def drop_unsent(self) -> int:
        """Forget what waits to be sent; return how many bytes that were."""
        dropped = self.unsent_bytes
        self._queue.clear()
        self._sent = self.unsent_bytes = 0
        return dropped


class SingleStream:
    """One stream, and nothing but its frames on the link.

    Nothing tells the peer to wait but that the link is not read: `listens` is false while its
    frames wait for the handler, or for the peer to read what was answered.
    """

    is_multiplexed: Final = False

    def __init__(self, framing: Framing) -> None:
        self.frames_max = 1
        self._channel = Channel(framing)

    @property
    def listens(self) -> bool:
        """Whether there is room for a further frame."""
        return self._channel.has_room(self.frames_max)

    def receive(self, data: bytes) -> int:
        """Take bytes of the link; they cost nothing beside the frames."""
        self._channel.buffer.feed(data)
        return 0

    def next(self) -> Event | None:
        """Return the next frame, None while there is none or no room for it.

        Raises: ProtocolViolation, LimitExceeded: an illegal length.
        """
        channel = self._channel
        if not channel.has_room(self.frames_max):
            return None
        payload = channel.buffer.next_payload()
        if payload is None:
            return None
        channel.gave(len(payload))
        return FrameArrived(MAIN_STREAM, payload)

    @property
    def is_blocked(self) -> bool:
        """False: the link is not read while something waits."""
        return False

    @property
    def begun(self) -> Mapping[int, int]:
        """The main stream, if it stands inside a frame."""
        buffer = self._channel.buffer
        return {MAIN_STREAM: buffer.buffered_bytes} if buffer.is_partial else {}

    def handled(self, stream: int, payload_bytes: int) -> None:
        """Note that a frame was handled."""
        self._channel.handled(payload_bytes)

    @property
    def is_idle(self) -> bool:
        """Whether every frame was handled."""
        return not self._channel.unhandled_count

    def open(self, protocol: str, store_id: bytes) -> int:
        """Refuse: there is one stream.

        Raises: UsageError: always.
        """
        raise UsageError(f"this connection has one stream: none can be opened for {protocol!r}")

    def send(self, stream: int, payload: bytes) -> None:
        """Queue a frame."""
        self._channel.put(payload)

    def end(self, stream: int) -> None:
        """Refuse: the main stream lives as long as the connection.

        Raises: UsageError: always.
        """
        raise UsageError("the main stream ends with its connection")

    def reset(self, stream: int) -> None:
        """Refuse, as `end` does.

        Raises: UsageError: always.
        """
        self.end(stream)

    def take(self) -> tuple[dict[int, int], bytes]:
        """Return the next bytes for the link, at most `JOIN_BYTES`."""
        pieces: list[bytes | memoryview] = []
        done = self._channel.cut(JOIN_BYTES, pieces)
        return {MAIN_STREAM: done} if done else {}, b"".join(pieces)

    def unsent_bytes(self, stream: int) -> int:
        """Return the bytes that wait to be taken."""
        return self._channel.unsent_bytes

    @property
    def has_output(self) -> bool:
        """Whether `take` has bytes now."""
        return self._channel.unsent_bytes > 0

    @property
    def is_sent(self) -> bool:
        """Whether nothing waits to be taken."""
        return not self._channel.unsent_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of frames under way, unhandled and unsent."""
        channel = self._channel
        return channel.buffer.buffered_bytes + channel.unhandled_bytes + channel.unsent_bytes
