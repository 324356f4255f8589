"""Connection: one link, cut into frames, between the network and the lane.

The lane gets one frame of a peer at a time, a few of a wanted one, and the next when the peer has
read what we answer: a short question may have an answer as long as a frame can be, so a peer that
asks and does not read makes us hold only so much. What all peers together make us hold is bounded
by the node, which cuts the largest. A frame that does not complete in time ends the connection; a
silent connection without a started frame may live for ever.

Waits are bounded by `asyncio.timeout`: before Python 3.12 `asyncio.wait_for` loses a cancellation
that comes at the moment when what it waits for is done, and a node would never end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from datalattice.client.settings import Bounds
from datalattice.errors import PeerError
from datalattice.node.bounds import Bucket, Progress
from datalattice.node.transport import Link
from datalattice.wire import FrameBuffer, encode_frame

UNSENT_BYTES_MAX: Final = 16_000_000
"""Bytes that wait for the peer to read before its next frame is looked at."""

WANTED_FRAMES_MAX: Final = 16
"""Frames of a wanted peer that may wait for the lane: all that came are done in one turn.

With one at a time, each would stand in line behind another turn of strangers.
"""

AHEAD_BYTES_MAX: Final = 1_000_000
"""Bytes of frames that wait for the lane before the next one is handed over behind them."""

JOIN_BYTES: Final = 1 << 16
"""Frames are joined up to this size to be written at once."""

FRAME_BYTES: Final = 64
"""What a frame costs us beside its payload, so that empty ones count too."""

CLOSE_TIMEOUT_S: Final = 2.0

REST_S_MIN: Final = 0.01
"""Shorter rests are added to the next one: a timer is not finer."""


@dataclass(slots=True)
class Traffic:
    """What went over a connection, or several."""

    bytes_in: int = 0
    bytes_out: int = 0
    frames_in: int = 0
    frames_out: int = 0

    def add(self, other: Traffic) -> None:
        """Count what went over another one, too."""
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.frames_in += other.frames_in
        self.frames_out += other.frames_out


class Handler(Protocol):
    """Who takes a connection's frames."""

    def frame(self, connection: Connection, payload: bytes) -> None:
        """Handle a frame; `Connection.handled` is called when that is done."""
        ...

    def written(self, connection: Connection, count: int) -> None:
        """Note that frames have left."""
        ...

    def held(self, change: int) -> None:
        """Note that a connection holds so many bytes more, or less."""
        ...

    def slowed(self, connection: Connection) -> None:
        """Note that a peer sends more than its share and is read later."""
        ...


class Connection:
    """One peer on one link. Lives on the event loop."""

    def __init__(
        self,
        id: str,
        name: str,
        link: Link,
        handler: Handler,
        bounds: Bounds,
    ) -> None:
        self.id = id
        self.name = name
        self.reason = ""
        self.frames_max = 1  # that may wait for the lane
        self.cause: str | None = None  # a word for it where the peer is to blame
        self._link = link
        self._handler = handler
        self._bounds = bounds
        self._buffer = FrameBuffer(bounds.message_bytes_max)
        self._progress = Progress(bounds.read_timeout_s)
        now_s = asyncio.get_running_loop().time()
        self._messages = Bucket(bounds.messages_per_s_max, now_s)
        self._bytes = Bucket(bounds.bytes_per_s_max, now_s)
        self._outbox: deque[bytes] = deque()
        self.traffic = Traffic()
        self._unsent_bytes = 0
        self._unhandled_bytes = 0
        self._unhandled_count = 0
        self.held_bytes = 0
        self._wake_writer = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._rests_until_s = now_s
        self._idle = asyncio.Event()  # nothing of this peer waits for the lane
        self._idle.set()
        self._drained = asyncio.Event()
        self._drained.set()
        self._cut = asyncio.Event()
        self._closing = False
        self._ended = False
        self._write_error: OSError | None = None

    async def run(self) -> None:
        """Read and write until either side ends it; `reason` says why."""
        writer = asyncio.ensure_future(self._write())
        reader = asyncio.ensure_future(self._read())
        cut = asyncio.ensure_future(self._cut.wait())
        try:
            await asyncio.wait((reader, writer, cut), return_when=asyncio.FIRST_COMPLETED)
            if not cut.done() and (not writer.done() or self._write_error is not None):
                finish = asyncio.ensure_future(self._finish(reader, writer))
                await asyncio.wait(
                    (finish, cut),
                    timeout=CLOSE_TIMEOUT_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                finish.cancel()
        finally:
            tasks = (reader, writer, cut)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._release()
            if self._cut.is_set():
                self._link.abort()
            if not self.reason:  # the peer gave none in what it sent before the end
                error = self._write_error
                self.reason = "closed by the peer" if error is None else f"broken: {error}"
            await self._end()

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._link.close()
        except TimeoutError:
            self._link.abort()

    async def _finish(self, reader: asyncio.Task[None], writer: asyncio.Task[None]) -> None:
        if writer.done():
            # A peer that takes nothing more may have said why before it closed.
            await asyncio.shield(reader)
            await self._idle.wait()
            return
        # A peer may have closed its sending side only: what it asked is still answered.
        await self._idle.wait()
        self._closing = True
        self._wake_writer.set()
        await asyncio.shield(writer)

    def send(self, payload: bytes) -> None:
        """Queue a frame."""
        if self._closing:
            return
        frame = encode_frame(payload)
        self._outbox.append(frame)
        self._unsent_bytes += len(frame)
        self._drained.clear()
        self._wake_writer.set()
        self._account()

    def close(self, reason: str) -> None:
        """Write what is queued, then end; soon, even if the peer does not read."""
        if not self._closing:
            asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self.cut, reason)
        self.reason = self.reason or reason
        self._closing = True
        self._wake_writer.set()

    def cut(self, reason: str, cause: str | None = None) -> bool:
        """End at once, with nothing more read or written; False when that is happening already."""
        if self._cut.is_set():
            return False
        self.cause = self.cause or cause
        self.reason = self.reason or reason
        self._closing = True
        self._outbox.clear()
        self._release()
        self._cut.set()
        return True

    def _release(self) -> None:
        """Hold nothing from now on; what the lane still has of it is no more than a frame."""
        self._ended = True
        self._handler.held(-self.held_bytes)
        self.held_bytes = 0

    def rest(self, seconds: float) -> None:
        """Read nothing more for a while, once what is being handled is done."""
        until_s = asyncio.get_running_loop().time() + seconds
        self._rests_until_s = max(self._rests_until_s, until_s)

    async def drained(self) -> None:
        """Return when everything queued has been written."""
        await self._drained.wait()

    def handled(self, payload_bytes: int) -> None:
        """Note that the lane is done with a frame of so many bytes."""
        self._unhandled_bytes -= payload_bytes + FRAME_BYTES
        self._unhandled_count -= 1
        if not self._unhandled_count:
            self._idle.set()
        self._account()

    def _account(self) -> None:
        """See whether there is room for more of this peer, and report what it makes us hold."""
        waiting = self._unhandled_count
        is_few = waiting < self.frames_max and self._unhandled_bytes < AHEAD_BYTES_MAX
        if (is_few or not waiting) and self._unsent_bytes < UNSENT_BYTES_MAX:
            self._room.set()
        else:
            self._room.clear()
        if self._ended:
            return
        held = self._buffer.buffered_bytes + self._unhandled_bytes + self._unsent_bytes
        change, self.held_bytes = held - self.held_bytes, held
        self._handler.held(change)
        if held > self._bounds.peer_bytes_max:
            self.cut(f"{held} bytes of it wait here, {self._bounds.peer_bytes_max} may", "memory")

    async def _read(self) -> None:
        now_s = asyncio.get_running_loop().time
        progress = self._progress
        while True:
            while not self._room.is_set():
                await self._room.wait()
                progress.reset()  # nobody listened meanwhile
            pause_s = self._rests_until_s - now_s()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
                progress.reset()
                continue
            try:
                size = self._pass_on()
            except PeerError as error:
                error.peer = self.id
                self.cause, self.reason = "framing", str(error)
                return
            if size is not None:
                progress.reset()
                await self._rest(size)
                continue
            left_s = progress.left_s(now_s()) if self._buffer.is_partial else None
            try:
                async with asyncio.timeout(left_s):
                    data = await self._link.read()
            except TimeoutError:
                self.cause, self.reason = "slow", "a frame did not complete in time"
                return
            except PeerError as error:
                error.peer = self.id
                self.cause, self.reason = "framing", str(error)
                return
            if not data:
                return
            progress.came(len(data), now_s())
            self.traffic.bytes_in += len(data)
            self._buffer.feed(data)
            self._account()

    async def _rest(self, payload_bytes: int) -> None:
        """Listen no more for a while when this peer has sent more than its share."""
        now_s = asyncio.get_running_loop().time()
        wait_s = max(
            self._messages.take(1, now_s), self._bytes.take(payload_bytes + FRAME_BYTES, now_s)
        )
        if wait_s > REST_S_MIN:
            self._handler.slowed(self)
            await asyncio.sleep(wait_s)

    def _pass_on(self) -> int | None:
        """Hand over the next frame; return its size, None when there is none."""
        payload = self._buffer.next_payload()
        if payload is None:
            return None
        self._unhandled_bytes += len(payload) + FRAME_BYTES
        self._unhandled_count += 1
        self.traffic.frames_in += 1
        self._idle.clear()
        self._handler.frame(self, payload)
        self._account()
        return len(payload)

    async def _write(self) -> None:
        while True:
            while self._outbox:
                count, data = self._next_piece()
                try:
                    # In pieces, since a transport keeps a copy of what it cannot send at once.
                    for start in range(0, len(data), JOIN_BYTES):
                        piece = data[start : start + JOIN_BYTES]
                        await self._link.write(piece)
                        self._unsent_bytes -= len(piece)
                        self.traffic.bytes_out += len(piece)
                except OSError as error:
                    self._write_error = error
                    return
                self.traffic.frames_out += count
                self._account()
                self._handler.written(self, count)
            self._drained.set()
            if self._closing:
                return
            self._wake_writer.clear()
            await self._wake_writer.wait()

    def _next_piece(self) -> tuple[int, bytes]:
        """Return (frames, their bytes): one frame, or several small ones."""
        frames = [self._outbox.popleft()]
        size = len(frames[0])
        while self._outbox and size + len(self._outbox[0]) <= JOIN_BYTES:
            frames.append(self._outbox.popleft())
            size += len(frames[-1])
        return len(frames), frames[0] if len(frames) == 1 else b"".join(frames)
