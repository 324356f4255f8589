"""Reference peers of a simulation: honest, with the habits of the reference node.

Each is dialled by the nodes that are linked to it, and may dial some of them itself, which is where
it broadcasts. Its user writes now and then, metadata without stamps too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from datalattice.apps.queue import Queue, Topics, read_state
from datalattice.cells import Index, Keyword, Value, Vector, value_hash
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import LimitExceeded, ProtocolViolation
from datalattice.lattice import MergeContext, root_lattice
from datalattice.sync import LatticeReplica
from datalattice.testing.dice import Dice
from datalattice.testing.reference import ReferencePeer
from datalattice.testing.sim.checkers import Violation
from datalattice.testing.sim.lattice import honest_part
from datalattice.testing.sim.network import HostName, SimNetwork
from datalattice.testing.sim.timeline import SimClock, Timeline
from datalattice.wire import FrameBuffer, encode_frame

ROOT_SYNC_MS: Final = 30_000
FRAME_BYTES_MAX: Final = 50_000_000
DATA: Final = Keyword("data")


class SimReference:
    """One of them. It is an `End` of the network."""

    def __init__(self, name: str, timeline: Timeline, network: SimNetwork, dice: Dice) -> None:
        self.name: Final = name
        self.idle_until_ms: Final = 0
        self.clock: Final = SimClock(timeline)
        self.peer: Final = ReferencePeer(KeyPair(dice.bytes(32)), self.clock.now_ms)
        self._timeline = timeline
        self._network = network
        self._dice = dice
        self._accepted: dict[str, FrameBuffer] = {}
        self._made: dict[str, FrameBuffer] = {}

    @property
    def state(self) -> bytes:
        """The hash of what it announces."""
        return self.peer.announced_hash

    def begin(self) -> None:
        """Have it say its root's cell now and then, where it dialled."""
        self._timeline.after(ROOT_SYNC_MS, self._root_sync)

    def _root_sync(self) -> None:
        self._broadcast(self.peer.root_sync())
        self._timeline.after(ROOT_SYNC_MS, self._root_sync)

    # --- its user -----------------------------------------------------------------------------

    def write(self, dice: Dice) -> None:
        """Have its user append, put content, or name a key of metadata for the first time."""
        kind = dice.below(6)
        if kind < 3:
            self._change(lambda topics: topics.partition("r", 0).offer(f"{dice.bits()}"))
        elif kind < 5:
            blob = dice.bytes(20) * dice.pick((1, 15, 450))
            content = Index.of([(DATA, Index.of([(value_hash(blob), blob)]))])
            self._commit(lambda root: self.peer.lattice.merge(root, content))
        else:
            key = f"key {dice.below(3)}"
            self._change(lambda topics: self._set_meta(topics.partition("r", 0), key, dice.bits()))

    def _set_meta(self, queue: Queue, key: str, value: int) -> None:
        """Set metadata as the reference does: the value and the time of the queue, and no stamp."""

        def changed(state: Value) -> Value:
            before = read_state(state)
            meta = before.meta.values.put(key, value)
            return Vector.of((before.entries, meta, self.clock.now_ms(), before.start))

        queue.cursor.update(changed)

    def _change(self, write: Callable[[Topics], object]) -> None:
        keys = self.peer.keys

        def changed(root: Value) -> Value:
            cursor = RootLattice(root_lattice(), root, MergeContext(key_pair=keys))
            write(Topics.at(cursor, keys.public_key, self.clock))
            return cursor.get()

        self._commit(changed)

    def _commit(self, change: Callable[[Value], Value]) -> None:
        self._timeline.record(self.name, "writes")
        self._broadcast(self.peer.write(change))

    # --- an end of the network ----------------------------------------------------------------

    def opened(self, connection: str, peer: str, *, outbound: bool) -> None:
        """Challenge whom it dialled; wait for what others ask."""
        (self._made if outbound else self._accepted)[connection] = FrameBuffer(FRAME_BYTES_MAX)
        if outbound:
            self._send(connection, self.peer.challenge())

    def arrived(self, connection: str, name: HostName, data: bytes) -> None:
        """Answer what it hears on a connection that it accepted, and proofs on one that it made."""
        accepted = connection in self._accepted
        buffer = self._accepted.get(connection) or self._made.get(connection)
        if buffer is None:
            return
        buffer.feed(data)
        try:
            while (payload := buffer.next_payload()) is not None:
                self._timeline.record(self.name, f"hears {connection}", payload)
                answers, broadcast = self.peer.heard(payload, accepted=accepted)
                for answer in answers:
                    self._send(connection, answer)
                self._broadcast(broadcast)
        except (ProtocolViolation, LimitExceeded):
            self._network.close(connection, self.name)

    def written(self, connection: str, name: HostName) -> None:
        """Do nothing: it does not wait for anybody."""

    def ended(self, connection: str) -> None:
        """Forget a connection."""
        self._accepted.pop(connection, None)
        self._made.pop(connection, None)

    def _broadcast(self, payloads: list[bytes]) -> None:
        for connection in self._made:
            for payload in payloads:
                self._send(connection, payload)

    def _send(self, connection: str, payload: bytes) -> None:
        self._network.send(connection, self.name, encode_frame(payload))


def judge(references: Sequence[SimReference], owners: Collection[Value]) -> None:
    """Look at what reference peers met.

    Raises: Violation: a value lacked cells; or one of them had to sign for one of `owners`, whose
            states it should have taken as they were.
    """
    for one in references:
        if one.peer.incomplete:
            raise Violation("complete values", f"{one.name}: {one.peer.incomplete}")
        joined = [owner for owner in one.peer.queues.foreign if owner in owners]
        if joined:
            raise Violation("own slots", f"{one.name} signed for {joined}")


def are_like(
    references: Sequence[SimReference],
    node: LatticeReplica,
    owners: Collection[Value],
    *,
    is_attacked: bool,
) -> bool:
    """Return whether reference peers have what a node has of `owners`, and of what nobody signs.

    is_attacked: what nobody signs does not count: these and the nodes may join what hostile peers
                 send each in its way.
    """

    def comparable(root: Value) -> bytes:
        part = honest_part(node.lattice, root, owners)
        if is_attacked and isinstance(part, Index):
            part = part.remove(DATA)
        return value_hash(part)

    expected = comparable(node.announced)
    return all(comparable(one.peer.announced) == expected for one in references)
