"""Network: the simulated connections between nodes and peers, as streams of bytes.

A connection carries a stream in each direction for each replica that its ends have in common, and
every piece names its replica. A piece is one frame. Pieces arrive in order within their stream, as
with TCP, possibly cut in two at any byte or joined with the next. Beyond TCP, pieces may be lost,
repeated or overtaken: a protocol that survives that survives relays and lost buffers, too.

The two ends of a connection learn of its end at different times.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from datalattice.testing.dice import Dice
from datalattice.testing.sim.faults import NO_FAULTS, Faults
from datalattice.testing.sim.timeline import Timeline
from datalattice.wire import FrameBuffer, encode_frame

NOTICE_MS_MAX: Final = 300  # as long as a keep-alive may take
"""Longest time until an end notices a torn connection."""

HostName = tuple[str, bytes]
"""Protocol and store id of a replica, under which peers find it on a node."""

LATTICE_HOST: Final[HostName] = ("lattice", b"")
"""The lattice of a node, which plain connections speak to."""

_FIRST: Final = -1
"""Due time of the rest of a cut piece: before all others."""


class End(Protocol):
    """A node or peer with connections."""

    @property
    def name(self) -> str:
        """Its name in the simulation."""
        ...

    @property
    def idle_until_ms(self) -> int:
        """Time until which it receives nothing."""
        ...

    def opened(self, connection: str, peer: str, *, outbound: bool) -> None:
        """Begin to speak on a connection."""
        ...

    def arrived(self, connection: str, name: HostName, data: bytes) -> None:
        """Receive bytes of a stream."""
        ...

    def written(self, connection: str, name: HostName) -> None:
        """Note that one sent piece of a stream has left."""
        ...

    def ended(self, connection: str) -> None:
        """Forget a connection."""
        ...


@dataclass(slots=True)
class _Stream:
    """One direction of a connection, for one replica.

    pieces: a heap of (due, order, bytes, whether its arrival counts as written).
    """

    connection: _Connection
    source: str
    target: str
    name: HostName
    pieces: list[tuple[int, int, bytes, bool]] = field(default_factory=list)
    last_due_ms: int = 0
    closed_until_ms: int = 0


@dataclass(slots=True)
class _Connection:
    """A connection. `knowing`: ends that know it as open. `streams`: by source and replica."""

    id: str
    dialler: str
    acceptor: str
    opened_ms: int
    knowing: set[str]
    streams: dict[str, dict[HostName, _Stream]]
    flows: bool = True

    def other(self, name: str) -> str:
        return self.acceptor if name == self.dialler else self.dialler

    def stream(self, source: str, name: HostName) -> _Stream:
        made = self.streams[source].get(name)
        if made is None:
            made = _Stream(self, source, self.other(source), name, last_due_ms=self.opened_ms)
            self.streams[source][name] = made
        return made

    def each(self) -> Iterator[_Stream]:
        """Yield all streams, those of the dialler first."""
        for streams in self.streams.values():
            yield from streams.values()


class SimNetwork:
    """All connections of a simulation."""

    def __init__(self, timeline: Timeline, dice: Dice) -> None:
        self._timeline = timeline
        self._dice = dice
        self._ends: dict[str, End] = {}
        self._connections: dict[str, _Connection] = {}
        self._blocked: dict[tuple[str, str], tuple[int, bool]] = {}  # until when; lossy
        self._order = 0
        self.faults: Faults = NO_FAULTS
        self.frames = 0
        self.sent_bytes = 0
        self.on_gone: Callable[[str, str], None] = lambda _dialler, _acceptor: None
        """Called once both ends know that a connection is gone."""

    def add(self, end: End) -> None:
        self._ends[end.name] = end

    def dial(self, dialler: str, acceptor: str) -> bool:
        """Make a connection; return whether it could be made."""
        now_ms = self._timeline.now_ms
        for pair in ((dialler, acceptor), (acceptor, dialler)):
            # In either direction: a handshake needs both.
            blocked_ms = self._blocked.get(pair, (0, False))[0]
            if max(blocked_ms, self._ends[pair[0]].idle_until_ms) > now_ms:
                return False
        self._order += 1
        id = f"{dialler}>{acceptor}#{self._order}"
        made = _Connection(
            id, dialler, acceptor, now_ms, {dialler, acceptor}, {dialler: {}, acceptor: {}}
        )
        self._connections[id] = made
        self._timeline.record(dialler, f"connects to {acceptor} as {id}")
        self._ends[acceptor].opened(id, dialler, outbound=False)
        # The acceptor may have closed it already, as it does to its own copy.
        if dialler in made.knowing:
            self._ends[dialler].opened(id, acceptor, outbound=True)
        return True

    def open_ids(self) -> list[str]:
        return [id for id, connection in self._connections.items() if connection.flows]

    def block(self, pairs: list[tuple[str, str]], until_ms: int, *, lossy: bool) -> None:
        """Stall or lose everything in these directions for a while."""
        for pair in pairs:
            self._blocked[pair] = (until_ms, lossy)

    def calm(self) -> None:
        """End all faults."""
        self.faults = Faults(delay_ms=min(self.faults.delay_ms, NO_FAULTS.delay_ms))
        self._blocked.clear()

    # --- bytes --------------------------------------------------------------------------------

    def send(self, id: str, source: str, data: bytes, name: HostName = LATTICE_HOST) -> None:
        """Send a piece to the replica of this name at the other end."""
        connection = self._connections.get(id)
        if connection is None or not connection.flows or source not in connection.knowing:
            return  # a closed connection takes nothing
        stream = connection.stream(source, name)
        self.frames += 1
        self.sent_bytes += len(data)
        faults, dice, now_ms = self.faults, self._dice, self._timeline.now_ms
        until_ms, lossy = self._blocked.get((source, stream.target), (0, False))
        # A lost frame has left its sender all the same.
        if (lossy and until_ms > now_ms) or dice.chance(faults.loss):
            self._timeline.record(source, f"loses a frame on {id}")
            self._timeline.after(1, partial(self._written, stream))
            return
        for copy in range(2 if dice.chance(faults.repeat) else 1):
            # Each copy has its own delay.
            due_ms = now_ms + dice.between(faults.delay_min_ms, faults.delay_ms)
            if not dice.chance(faults.reorder):  # else it may overtake earlier pieces
                due_ms = stream.last_due_ms = max(due_ms, stream.last_due_ms)
            self._put(stream, due_ms, due_ms, data, counts=copy == 0)  # one copy counts as written

    def _put(self, stream: _Stream, due_ms: int, at_ms: int, data: bytes, *, counts: bool) -> None:
        self._order += 1
        heapq.heappush(stream.pieces, (due_ms, self._order, data, counts))
        self._timeline.at(at_ms, partial(self._arrive, stream))

    def _arrive(self, stream: _Stream) -> None:
        if not stream.pieces:
            return
        now_ms = self._timeline.now_ms
        target = self._ends[stream.target]
        ready_ms = max(stream.closed_until_ms, target.idle_until_ms)
        blocked = self._blocked.get((stream.source, stream.target))
        if blocked is not None:
            ready_ms = max(ready_ms, blocked[0])
        if ready_ms > now_ms:  # not yet: paused, cut off, or behind its own rest
            self._timeline.at(ready_ms, partial(self._arrive, stream))
            return
        _, _, data, counts = heapq.heappop(stream.pieces)
        if len(data) > 1 and self._dice.chance(self.faults.split):
            cut = self._dice.between(1, len(data) - 1)
            # The stream waits for the rest.
            stream.closed_until_ms = now_ms + 1 + self._dice.below(self.faults.delay_ms)
            self._put(stream, _FIRST, stream.closed_until_ms, data[cut:], counts=counts)
            data, counts = data[:cut], False  # written once its rest has arrived
        # Joined with the next, as TCP may.
        elif stream.pieces and stream.pieces[0][0] <= now_ms and self._dice.chance(0.5):
            _, _, more, also = heapq.heappop(stream.pieces)
            data += more
            if also:
                self._written(stream)
        connection = stream.connection
        if stream.target in connection.knowing:  # else it knows that the connection has ended
            target.arrived(connection.id, stream.name, data)
        if counts:
            self._written(stream)

    def _written(self, stream: _Stream) -> None:
        connection, source = stream.connection, stream.source
        idle_ms = self._ends[source].idle_until_ms
        if idle_ms > self._timeline.now_ms:
            # A paused process learns of it later.
            self._timeline.at(idle_ms, partial(self._written, stream))
        elif source in connection.knowing:
            self._ends[source].written(connection.id, stream.name)

    # --- the end of connections ---------------------------------------------------------------

    def tear(self, id: str) -> None:
        """Break a connection, often inside a frame; both ends notice later."""
        connection = self._connections.get(id)
        if connection is None or not connection.flows:
            return
        self._timeline.record(connection.dialler, f"loses {id}")
        for stream in connection.each():
            target = self._ends[stream.target]
            if stream.pieces and self._dice.chance(0.7):  # often inside a frame
                data = heapq.heappop(stream.pieces)[2]
                cut = self._dice.below(len(data))
                if target.idle_until_ms <= self._timeline.now_ms and cut:
                    target.arrived(id, stream.name, data[:cut])
        self._stop(connection)
        for name in (connection.dialler, connection.acceptor):
            self._timeline.after(  # each end at its own time
                self._dice.below(NOTICE_MS_MAX), partial(self._inform, connection, name)
            )

    def cut(self, dialler: str, acceptor: str) -> None:
        """End the connections of a link; both ends know at once."""
        for connection in list(self._connections.values()):
            if (connection.dialler, connection.acceptor) == (dialler, acceptor):
                self._timeline.record(dialler, f"is cut off {connection.id}")
                self._stop(connection)
                self._inform(connection, dialler)
                self._inform(connection, acceptor)

    def close(self, id: str, source: str) -> None:
        """Close a connection from one end; what it sent before still arrives."""
        connection = self._connections.get(id)
        if connection is None or source not in connection.knowing:
            return
        self._timeline.record(source, f"closes {id}")
        sent = connection.streams[source].values()
        last_due_ms = max((stream.last_due_ms for stream in sent), default=connection.opened_ms)
        self._inform(connection, source)
        target = connection.other(source)
        # As with TCP, what was sent before the end arrives before it.
        self._timeline.at(last_due_ms + 1, partial(self._end, connection, target))

    def die(self, name: str) -> None:
        """End all connections of an end that is gone; the others notice later."""
        for connection in list(self._connections.values()):
            if name not in connection.streams:
                continue
            self._stop(connection)
            other = connection.other(name)
            connection.knowing.discard(name)  # the dead end knows nothing any more
            self._timeline.after(
                self._dice.below(NOTICE_MS_MAX), partial(self._inform, connection, other)
            )

    def _end(self, connection: _Connection, target: str) -> None:
        self._stop(connection)
        self._inform(connection, target)

    def _stop(self, connection: _Connection) -> None:
        connection.flows = False
        for stream in connection.each():
            stream.pieces.clear()  # what was on the way is lost

    def _inform(self, connection: _Connection, name: str) -> None:
        idle_ms = self._ends[name].idle_until_ms
        if idle_ms > self._timeline.now_ms:
            self._timeline.at(idle_ms, partial(self._inform, connection, name))
            return
        if name in connection.knowing:
            connection.knowing.discard(name)
            self._ends[name].ended(connection.id)
        # Both know: it may be dialled again.
        if not connection.knowing and self._connections.pop(connection.id, None) is not None:
            self.on_gone(connection.dialler, connection.acceptor)


class ScriptedPeer(ABC):
    """Base of scripted ends: they answer frames by a script, and are no nodes.

    frame_bytes_max: longest frame that the peer reads.
    """

    idle_until_ms: Final = 0

    def __init__(
        self, name: str, timeline: Timeline, network: SimNetwork, frame_bytes_max: int
    ) -> None:
        self.name: Final = name
        self._timeline = timeline
        self._network = network
        self._frame_bytes_max = frame_bytes_max
        self._buffers: dict[str, FrameBuffer] = {}

    def opened(self, connection: str, peer: str, *, outbound: bool) -> None:
        self._buffers[connection] = FrameBuffer(self._frame_bytes_max)

    def arrived(self, connection: str, name: HostName, data: bytes) -> None:
        """Receive bytes of a stream, and handle each frame."""
        buffer = self._buffers.get(connection)
        if buffer is None:
            return
        buffer.feed(data)
        # Framing errors are the peer's own matter.
        while (payload := buffer.next_payload()) is not None:
            self._timeline.record(self.name, f"hears {connection}", payload)
            self.heard(connection, payload)

    @abstractmethod
    def heard(self, connection: str, payload: bytes) -> None:
        """Handle a frame; each peer has its own way."""

    def written(self, connection: str, name: HostName) -> None:
        """Ignore it: a scripted peer never waits until its frames have left."""
        del connection, name

    def ended(self, connection: str) -> None:
        self._buffers.pop(connection, None)

    def send(self, connection: str, payload: bytes) -> None:
        self._network.send(connection, self.name, encode_frame(payload))
