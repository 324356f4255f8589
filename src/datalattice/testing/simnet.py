"""Simnet: replicators joined by links that lose, repeat, delay and reorder frames as a seed says.

Nothing runs by itself and nothing is real: the network owns the time, moves it from event to event,
and calls the replicators. The same seed and the same calls give the same trace.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable

from datalattice.crypto import SeededEntropy
from datalattice.sync import Replicator


class SimNetwork:
    """A network of replicators. Both ends of a link call it `dialler>acceptor`.

    loss, repeat: chances that a frame is lost or arrives twice. delay_ms: the greatest time a frame
                  takes; when it is more
    than 1, frames overtake each other.
    """

    def __init__(
        self, seed: int, *, loss: float = 0.0, repeat: float = 0.0, delay_ms: int = 1
    ) -> None:
        self._entropy = SeededEntropy(seed)
        self.loss = loss
        self.repeat = repeat
        self.delay_ms = delay_ms
        self.now_ms = 0
        self.nodes: dict[str, Replicator] = {}
        self.links: set[tuple[str, str]] = set()
        self.finished: list[tuple[object, str | None]] = []
        self.notes: list[tuple[str, str, str]] = []
        self.frames_count = 0
        self.sent_bytes = 0
        self.on_frame: Callable[[str, str, bytes], None] | None = None
        # (due, order, to, session, payload), a heap
        self._frames: list[tuple[int, int, str, str, bytes]] = []
        self._order = 0
        self._trace = hashlib.sha3_256()

    # --- what happens -------------------------------------------------------------------------

    def add(self, name: str, node: Replicator) -> None:
        """Add a node, or put another in the place of one that crashed."""
        self.nodes[name] = node

    def connect(self, dialler: str, acceptor: str) -> None:
        """Make a connection."""
        session = f"{dialler}>{acceptor}"
        self.links.add((dialler, acceptor))
        self.nodes[acceptor].open(session, self.now_ms, outbound=False)
        self.nodes[dialler].open(session, self.now_ms, outbound=True)
        self.collect(dialler)
        self.collect(acceptor)

    def cut(self, dialler: str, acceptor: str) -> None:
        """Break a connection; frames under way are lost."""
        session = f"{dialler}>{acceptor}"
        if (dialler, acceptor) not in self.links:
            return
        self.links.discard((dialler, acceptor))
        self._frames = [frame for frame in self._frames if frame[3] != session]
        heapq.heapify(self._frames)
        for name in (dialler, acceptor):
            self.nodes[name].closed(session, self.now_ms)
            self.collect(name)

    def publish(self, name: str) -> None:
        """Have a node publish what was written to its replica."""
        self.nodes[name].publish(self.now_ms)
        self.collect(name)

    def run(self, until_ms: int) -> None:
        """Handle everything that happens up to a time."""
        while (due_ms := self._next_ms()) is not None and due_ms <= until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self._step()
        self.now_ms = max(self.now_ms, until_ms)

    def trace(self) -> str:
        """Return a hash of every frame delivered so far, with its time and place."""
        return self._trace.hexdigest()

    # --- inside -------------------------------------------------------------------------------

    def _chance(self) -> float:
        return int.from_bytes(self._entropy.bytes(4), "big") / 2**32

    def _next_ms(self) -> int | None:
        times = [ms for node in self.nodes.values() if (ms := node.next_deadline()) is not None]
        if self._frames:
            times.append(self._frames[0][0])
        return min(times, default=None)

    def _step(self) -> None:
        while self._frames and self._frames[0][0] <= self.now_ms:
            _, _, name, session, payload = heapq.heappop(self._frames)
            self.frames_count += 1
            self._trace.update(f"{self.now_ms} {name} {session} ".encode() + payload)
            self.nodes[name].receive(session, payload, self.now_ms)
            self.collect(name)
        for name, node in self.nodes.items():
            deadline_ms = node.next_deadline()
            if deadline_ms is not None and deadline_ms <= self.now_ms:
                node.tick(self.now_ms)
                self.collect(name)

    def collect(self, name: str) -> None:
        """Carry out what a node wants done."""
        node = self.nodes[name]
        effects = node.take_effects()
        while effects.sends or effects.closes or effects.finished or effects.notes:
            self.finished.extend(effects.finished)
            self.notes.extend((name, note.kind, note.text) for note in effects.notes)
            for session, payload in effects.sends:
                self._carry(name, session, payload)
                node.written(session, 1, self.now_ms)
            for session, _ in effects.closes:
                dialler, _, acceptor = session.partition(">")
                self.cut(dialler, acceptor)
            effects = node.take_effects()

    def _carry(self, name: str, session: str, payload: bytes) -> None:
        dialler, _, acceptor = session.partition(">")
        if (dialler, acceptor) not in self.links:
            return
        to = acceptor if name == dialler else dialler
        self.sent_bytes += len(payload)
        if self.on_frame is not None:
            self.on_frame(name, to, payload)
        copies = 1
        if self.loss and self._chance() < self.loss:
            copies = 0
        elif self.repeat and self._chance() < self.repeat:
            copies = 2
        for _ in range(copies):
            self._order += 1
            due_ms = self.now_ms + 1 + int(self._chance() * self.delay_ms)
            heapq.heappush(self._frames, (due_ms, self._order, to, session, payload))
