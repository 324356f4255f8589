"""Streams: the frames of one or several conversations on one connection.

Each end of a connection holds a `SingleStream` (the original protocol: frames and nothing else) or
a `Mux` (mux.py). Neither does input or output. `receive` takes bytes of the link, `next` returns
one event at a time, `take` returns bytes for the link. The caller calls `next` until it returns
None, and again after `receive`, `handled` and `take`.

    frames_max: most unhandled frames of a stream; together they have at most
                `STREAM_AHEAD_BYTES_MAX`. Further frames wait here or at the peer.

Source: docs/protocol.md "Frames", "Several streams".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from datalattice.errors import UsageError
from datalattice.wire.framing import Framing

PLAIN_PROTOCOL: Final = "lattice/1"
"""ALPN name of a connection with one stream."""

MUX_PROTOCOL: Final = "lattice/2"
"""ALPN name of a connection with several streams."""

MAIN_STREAM: Final = 0
"""The stream that is open as long as the connection. It carries the lattice protocol."""

LATTICE: Final = "lattice"
"""Name of the protocol of the main stream."""

JOIN_BYTES: Final = 1 << 16
"""Most bytes that `take` returns: small frames are joined up to it, large ones cut."""

FRAME_BYTES: Final = 64
"""Counted for each frame beside its payload, so that empty frames have a cost too."""

UNSENT_BYTES_MAX: Final = 16_000_000
"""With more unsent bytes the next frame of a stream waits: a short request can cause an answer as
long as a frame may be."""

STREAM_AHEAD_BYTES_MAX: Final = 1_000_000
"""With more unhandled bytes the next frame of a stream waits."""


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The peer opened a stream for a protocol and a store."""

    stream: int
    protocol: str
    store_id: bytes


@dataclass(frozen=True, slots=True)
class FrameArrived:
    """A frame came on a stream; call `handled` when it is done."""

    stream: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """The peer sends nothing more on a stream; after a reset, neither does this side."""

    stream: int
    is_reset: bool


MuxEvent = StreamOpened | FrameArrived | StreamEnded


class Channel:
    """One end of one stream: its received bytes and frames, and its frames to be sent."""

    def __init__(self, framing: Framing) -> None:
        self.framing = framing
        self.buffer = framing.buffer()
        self.unhandled_bytes = 0  # with FRAME_BYTES for each frame
        self.unhandled_count = 0
        self.unsent_bytes = 0
        self._queue: deque[tuple[bytes, int]] = deque()  # (bytes, how many frames end with them)
        self._sent = 0  # bytes taken of the first in the queue

    def has_room(self, frames_max: int) -> bool:
        """Return whether the next frame may be given out."""
        # One frame is always allowed, however long, or the stream could never go on.
        count = self.unhandled_count
        is_few = count < frames_max and self.unhandled_bytes < STREAM_AHEAD_BYTES_MAX
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
        head = self.framing.head(len(payload))
        if len(payload) < JOIN_BYTES:
            self._queue.append((head + payload, 1))
        else:  # a long one is not copied
            self._queue += [(head, 0), (payload, 1)]
        size = len(head) + len(payload)
        self.unsent_bytes += size
        return size

    def cut(self, count: int, into: list[bytes | memoryview]) -> int:
        """Append at most `count` bytes to be sent to `into`; return how many frames end in them."""
        done = 0
        while count and self._queue:
            data, ends = self._queue[0]
            start = self._sent
            size = min(count, len(data) - start)
            end = start + size
            into.append(data if size == len(data) else memoryview(data)[start:end])  # no copy
            count -= size
            self.unsent_bytes -= size
            self._sent = end
            if end == len(data):
                self._queue.popleft()
                self._sent = 0
                done += ends
        return done

    def drop_unsent(self) -> int:
        """Drop the unsent frames; return their bytes."""
        dropped = self.unsent_bytes
        self._queue.clear()
        self._sent = self.unsent_bytes = 0
        return dropped


class SingleStream:
    """One stream: the link carries its frames and nothing else.

    Back-pressure: `listens` is False, and the link is not read, while frames wait for the handler
    or answers for the peer.
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

    def next(self) -> MuxEvent | None:
        """Return the next frame; None if there is none or no room for it.

        Raises: ProtocolViolation, LimitExceeded: an illegal length.
        """
        # "Requests of one connection are handled in order": `frames_max` frames at a time.
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
        """Always False: while a frame waits, the link is not read."""
        return False

    @property
    def begun(self) -> Mapping[int, int]:
        """The main stream with the bytes of its incomplete frame, if any."""
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
        """Refuse: the connection has one stream.

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
        """Whether all was taken."""
        return not self._channel.unsent_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of incomplete, unhandled and unsent frames."""
        channel = self._channel
        return channel.buffer.buffered_bytes + channel.unhandled_bytes + channel.unsent_bytes
