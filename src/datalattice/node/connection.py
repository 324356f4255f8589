"""Connection: reads frames from one link and passes them to lanes, and writes the answers.

A lane gets one frame of a stream at a time (a few from a wanted peer), and the next one after the
peer has read the answer. A short question may have an answer of a whole frame, so this bounds the
memory that a peer takes by asking without reading. If all peers together take too much, the node
closes the connection that holds most. A frame that does not complete in time ends the connection.
Without an incomplete frame, a silent connection stays open without a time limit.

Waits use `asyncio.timeout`: before Python 3.12 `asyncio.wait_for` loses a cancellation that arrives
when its future is done, and a node would then never end.

Source: docs/protocol.md "Limits", "Several streams".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from datalattice.client.settings import ConnectionBounds
from datalattice.crypto import Entropy
from datalattice.errors import PeerError
from datalattice.node.bounds import Bucket, FrameProgress
from datalattice.node.transport import Link
from datalattice.wire import (
    FRAME_BYTES,
    LATTICE,
    MAIN_STREAM,
    MUX_PROTOCOL,
    NONCE_BYTES,
    WINDOW_BYTES,
    FrameArrived,
    Framing,
    Hello,
    Mux,
    MuxEvent,
    SingleStream,
    StreamOpened,
    Streams,
)

# Frames of one stream of a wanted peer that may wait for the lane. They are handled in one turn;
# one at a time, each would wait for another turn of strangers.
WANTED_FRAMES_MAX: Final = 16

_CLOSE_TIMEOUT_S: Final = 2.0
REST_S_MIN: Final = 0.01  # shorter rests are added to the next one: timers are not finer


@dataclass(slots=True)
class Traffic:
    """Bytes and frames of a connection, or of several."""

    bytes_in: int = 0
    bytes_out: int = 0
    frames_in: int = 0
    frames_out: int = 0

    def add(self, other: Traffic) -> None:
        """Add the counts of another connection."""
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.frames_in += other.frames_in
        self.frames_out += other.frames_out


class Handler(Protocol):
    """Receives the frames and events of a connection."""

    def frame(self, connection: Connection, stream: int, payload: bytes) -> None:
        """Handle a frame, and call `Connection.handled` when that is done."""

    def opened(self, connection: Connection, stream: int, protocol: str, store_id: bytes) -> None:
        """Accept a stream that the peer opened, or `end_stream` it at once."""

    def ended(self, connection: Connection, stream: int, *, is_reset: bool) -> None:
        """Note that the peer ended a stream; after a reset this side sends nothing more either."""

    def written(self, connection: Connection, stream: int, count: int) -> None:
        """Note that frames of a stream were written."""


def streams_over(
    link: Link, framings: Mapping[str, Framing], entropy: Entropy, *, dialled: bool
) -> Streams:
    """Return the streams of a new link, in the protocol both ends agreed on.

    framings: how frames are cut on the streams of each replication protocol.
    """
    lattice = framings[LATTICE]  # a plain link carries the lattice alone, like a reference node
    if link.protocol != MUX_PROTOCOL:
        return SingleStream(lattice)
    return Mux(
        framings,
        Hello(entropy.bytes(NONCE_BYTES)),
        dialled=dialled,
        large_bytes_max=lattice.payload_bytes_max,
    )


class Connection:
    """One peer on one link. Lives on the event loop.

    on_held:   called with the change of the bytes that it holds.
    on_slowed: called when the peer sends more than its share and is read later.
    """

    def __init__(
        self,
        id: str,
        name: str,
        link: Link,
        handler: Handler,
        bounds: ConnectionBounds,
        streams: Streams,
        on_held: Callable[[int], None],
        on_slowed: Callable[[], None],
    ) -> None:
        self.id = id
        self.name = name
        self.reason = ""
        self.cause: str | None = None  # metric label of the reason where the peer is to blame
        self._link = link
        self._handler = handler
        self._on_held = on_held
        self._on_slowed = on_slowed
        self._bounds = bounds
        self._streams = streams
        # The credit window is granted in advance, so the peer may fill it on top of its bound.
        window = WINDOW_BYTES if streams.is_multiplexed else 0
        self._held_bytes_max = bounds.peer_bytes_max + window
        self._progress: dict[int, FrameProgress] = {}  # by stream, of frames that have begun
        now_s = asyncio.get_running_loop().time()
        self._messages = Bucket(bounds.messages_per_s_max, now_s)
        self._bytes = Bucket(bounds.bytes_per_s_max, now_s)
        self.traffic = Traffic()
        self._leaving_bytes = 0  # taken from the streams, not written yet
        self.held_bytes = 0
        self._wake_writer = asyncio.Event()
        self._stirred = asyncio.Event()  # a blocked reader may go on
        self._reading: asyncio.Task[bytes] | None = None  # a read still in progress
        self._rests_until_s = now_s
        self._idle = asyncio.Event()  # no frame of this peer waits for the lane
        self._idle.set()
        self._drained = asyncio.Event()
        self._drained.set()
        self._cut = asyncio.Event()
        self._closing = False
        self._ended = False
        self._write_error: OSError | None = None
        if streams.has_output:  # the mux greets first
            self._stir_writer()

    async def run(self) -> None:
        """Read and write until either side ends it; then `reason` says why."""
        try:
            await self._run()
        except BaseException:
            self._link.abort()  # it may have been cancelled before the link was closed
            raise

    async def _run(self) -> None:
        writer = asyncio.ensure_future(self._write())
        reader = asyncio.ensure_future(self._read())
        cut = asyncio.ensure_future(self._cut.wait())
        try:
            await asyncio.wait((reader, writer, cut), return_when=asyncio.FIRST_COMPLETED)
            # An orderly end gives both sides a moment to deliver what is under way.
            if not cut.done() and (not writer.done() or self._write_error is not None):
                finish = asyncio.ensure_future(self._finish(reader, writer))
                await asyncio.wait(
                    (finish, cut),
                    timeout=_CLOSE_TIMEOUT_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                finish.cancel()
        finally:
            tasks: list[asyncio.Task[Any]] = [reader, writer, cut]
            if self._reading is not None:
                tasks.append(self._reading)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._release()
            if self._cut.is_set():
                self._link.abort()
            if not self.reason:  # the last frames of the peer gave none
                error = self._write_error
                self.reason = "closed by the peer" if error is None else f"broken: {error}"
            await self._end()

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._link.close()
        except TimeoutError:
            self._link.abort()

    async def _finish(self, reader: asyncio.Task[None], writer: asyncio.Task[None]) -> None:
        if writer.done():
            # The peer may have sent a reason before it stopped reading: read to the end.
            await asyncio.shield(reader)
            await self._idle.wait()
            return
        # The peer may have closed its sending side only: its last requests are still answered.
        await self._idle.wait()
        self._closing = True
        self._wake_writer.set()
        await asyncio.shield(writer)

    # --- streams ------------------------------------------------------------------------------

    @property
    def is_multiplexed(self) -> bool:
        """Whether streams can be opened beside the main one."""
        return self._streams.is_multiplexed

    @property
    def frames_max(self) -> int:
        """Frames of a stream that may wait for the lane."""
        return self._streams.frames_max

    @frames_max.setter
    def frames_max(self, count: int) -> None:
        self._streams.frames_max = count

    def send(self, payload: bytes, stream: int = MAIN_STREAM) -> None:
        """Queue a frame; it is dropped if the stream or the connection is about to end."""
        # A closing connection takes no more frames: they would delay its end.
        if self._closing:
            return
        self._streams.send(stream, payload)
        self._stir_writer()
        self._account()

    def open_stream(self, protocol: str, store_id: bytes) -> int:
        """Open a stream; return its number.

        Raises: UsageError: the link carries one stream, or the protocol is unknown.
                Backpressure: the greatest number of streams is open.
        """
        number = self._streams.open(protocol, store_id)
        self._stir_writer()
        self._account()
        return number

    def end_stream(self, stream: int, *, at_once: bool = False) -> None:
        """End our side of a stream after its queued frames.

        at_once: end both sides now, and drop the frames.
        """
        if at_once:
            self._streams.reset(stream)
            self._progress.pop(stream, None)
        else:
            self._streams.end(stream)
        self._stir_writer()
        self._account()

    def handled(self, payload_bytes: int, stream: int = MAIN_STREAM) -> None:
        """Note that the lane is done with a frame of `payload_bytes`."""
        self._streams.handled(stream, payload_bytes)
        if self._streams.is_idle:
            self._idle.set()
        self._stirred.set()
        if self._streams.has_output:  # credit to return
            self._stir_writer()
        self._account()

    def _stir_writer(self) -> None:
        self._drained.clear()
        self._wake_writer.set()

    # --- ends ---------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """Write what is queued, then end; at the latest after `_CLOSE_TIMEOUT_S`."""
        if not self._closing:  # a peer that reads nothing must not hold a closing connection
            asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT_S, self.cut, reason)
        self.reason = self.reason or reason
        self._closing = True
        self._wake_writer.set()

    def cut(self, reason: str, cause: str | None = None) -> bool:
        """End at once, without reading or writing; return False if that is happening already."""
        if self._cut.is_set():
            return False
        self.cause = self.cause or cause  # the first reason counts; what follows is its effect
        self.reason = self.reason or reason
        self._closing = True
        self._release()
        self._cut.set()
        return True

    def _release(self) -> None:
        """Stop counting held bytes; the lane may still have one frame."""
        self._ended = True
        self._on_held(-self.held_bytes)
        self.held_bytes = 0

    def rest(self, seconds: float) -> None:
        """Read nothing for a while, once the frame in progress is handled."""
        until_s = asyncio.get_running_loop().time() + seconds
        self._rests_until_s = max(self._rests_until_s, until_s)

    async def drained(self) -> None:
        """Return when everything queued has been written."""
        await self._drained.wait()

    def _account(self) -> None:
        """Report the bytes held for the peer, and cut the connection if they are too many."""
        if self._ended:
            return
        held = self._streams.held_bytes + self._leaving_bytes
        if held != self.held_bytes:
            change, self.held_bytes = held - self.held_bytes, held
            self._on_held(change)
        # "128 MB (`peer_bytes_max`), then it is cut" (docs/protocol.md "Limits").
        if held > self._held_bytes_max:
            text = f"{held} bytes of its frames wait here, at most {self._held_bytes_max} are kept"
            self.cut(text, "memory")

    # --- reading ------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            await self._read_on()
        except TimeoutError:
            self.cause, self.reason = "slow", "a frame did not complete in time"
        except PeerError as error:
            error.peer = self.id
            self.cause, self.reason = "framing", str(error)

    async def _read_on(self) -> None:
        """Hand over frames and events until the link ends.

        Raises: TimeoutError: a frame does not progress. PeerError: illegal bytes arrived.
        """
        streams = self._streams
        is_over = False
        cost = 0  # of what came beside frames, not paid for yet
        while True:
            # A resting peer is not read at all: TCP then holds it back without loss.
            pause_s = self._rests_until_s - asyncio.get_running_loop().time()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
                self._progress.clear()  # the peer could not know that nothing was read
                continue
            event = streams.next()
            if streams.has_output:  # credit arrived, or is due for the parts of a long frame
                self._stir_writer()
            if event is not None:
                # "10,000 in a second", "100 MB in a second": an empty message counts as a message
                # too, and for its frame.
                cost += self._pass_on(event) + FRAME_BYTES
                await self._rest(1, cost)
                cost = 0
                continue
            if cost:
                await self._rest(0, cost)
                cost = 0
                continue  # a frame may have been handled meanwhile, which makes room for the next
            self._stirred.clear()
            if is_over:
                if not streams.is_blocked:
                    return
                async with asyncio.timeout(self._bounds.read_timeout_s):
                    await self._stirred.wait()
                continue
            # Enough frames wait here: read again after one was handled.
            if not streams.listens:
                await self._stirred.wait()
                self._progress.clear()
                continue
            data = await self._more()
            if data is None:
                continue
            is_over = not data
            self.traffic.bytes_in += len(data)
            # "Each mux frame counts as 64 bytes of its sender's share, one that is dropped too":
            # charged with the next frame.
            cost += streams.receive(data)
            self._account()

    async def _more(self) -> bytes | None:
        """Return bytes of the link, b"" at its end; None: handle a frame that waits here first.

        Raises: TimeoutError: a frame does not progress. PeerError: the peer abuses the link.
        """
        left_s = self._left_s()
        if not self._streams.is_blocked:
            if self._reading is None and left_s is None:  # as between most frames
                return await self._link.read()
            async with asyncio.timeout(left_s):
                if self._reading is None:
                    return await self._link.read()
                await asyncio.wait((self._reading,))
        else:  # a frame waits here: its turn or more bytes may come first
            if self._reading is None:
                self._reading = asyncio.ensure_future(self._link.read())
            stirred = asyncio.ensure_future(self._stirred.wait())
            try:
                await asyncio.wait(
                    (self._reading, stirred), timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                if stirred.done():
                    return None
            finally:
                stirred.cancel()
            if not self._reading.done():
                raise TimeoutError
        reading, self._reading = self._reading, None
        return reading.result()

    def _left_s(self) -> float | None:
        """Return how long to wait for more of the begun frames, None for ever."""
        begun = self._streams.begun
        if not begun:
            self._progress.clear()
            return None
        now_s = asyncio.get_running_loop().time()
        for stream in [one for one in self._progress if one not in begun]:
            del self._progress[stream]
        # "30 s to complete (`read_timeout_ms`), and 1,000 bytes in every 10 s", for each begun
        # frame by itself.
        timeout_s = left_s = self._bounds.read_timeout_s
        for stream, count in begun.items():
            progress = self._progress.get(stream)
            if progress is None:
                progress = self._progress[stream] = FrameProgress(timeout_s, count, now_s)
            left_s = min(left_s, progress.left_s(count, now_s))
        return left_s

    async def _rest(self, messages: int, size: int) -> None:
        """Read nothing for a while if this peer has sent more than its share."""
        now_s = asyncio.get_running_loop().time()
        wait_s = max(self._messages.take(messages, now_s), self._bytes.take(size, now_s))
        # "Then it is read later, and nothing is lost": TCP or the credit holds the peer back.
        if wait_s > REST_S_MIN:
            self._on_slowed()
            await asyncio.sleep(wait_s)
            self._progress.clear()

    def _pass_on(self, event: MuxEvent) -> int:
        """Hand over an event; return the size of its payload, 0 without one."""
        size = 0
        if isinstance(event, FrameArrived):
            size = len(event.payload)
            self.traffic.frames_in += 1
            self._progress.pop(event.stream, None)
            self._idle.clear()
            self._handler.frame(self, event.stream, event.payload)
        elif isinstance(event, StreamOpened):
            self._handler.opened(self, event.stream, event.protocol, event.store_id)
        else:
            self._handler.ended(self, event.stream, is_reset=event.is_reset)
        self._account()
        return size

    # --- writing ------------------------------------------------------------------------------

    async def _write(self) -> None:
        streams = self._streams
        while not self._cut.is_set():
            done, data = streams.take()  # (frames that are complete with it, by stream; bytes)
            if not data:
                if streams.is_sent:
                    self._drained.set()
                    if self._closing:
                        return
                self._wake_writer.clear()
                await self._wake_writer.wait()
                continue
            self._leaving_bytes = len(data)
            try:
                await self._link.write(data)
            except OSError as error:
                self._write_error = error
                return
            self._leaving_bytes = 0
            self.traffic.bytes_out += len(data)
            self._stirred.set()
            self._account()
            for stream, count in done.items():
                self.traffic.frames_out += count
                self._handler.written(self, stream, count)
