"""Reference peers of a simulation: honest peers that behave like the reference node.

Nodes that are linked to one dial it, and it may dial some of them; it broadcasts on the connections
that it dialled. Its user writes from time to time, also metadata without stamps.
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
from datalattice.testing.sim.network import HostName, ScriptedPeer, SimNetwork
from datalattice.testing.sim.timeline import SimClock, Timeline

ROOT_SYNC_MS: Final = 30_000  # as the reference's own interval
_FRAME_BYTES_MAX: Final = 50_000_000
_DATA: Final = Keyword("data")


class SimReference(ScriptedPeer):
    """A `ReferencePeer` in a simulation."""

    def __init__(self, name: str, timeline: Timeline, network: SimNetwork, dice: Dice) -> None:
        super().__init__(name, timeline, network, _FRAME_BYTES_MAX)
        self.clock: Final = SimClock(timeline)
        self.peer: Final = ReferencePeer(KeyPair(dice.bytes(32)), self.clock.now_ms)
        self._made: dict[str, None] = {}  # connections that it dialled, in order

    @property
    def state(self) -> bytes:
        return self.peer.announced_hash

    def begin(self) -> None:
        """Begin to send the root's cell periodically on dialled connections."""
        self._timeline.after(ROOT_SYNC_MS, self._root_sync)

    def _root_sync(self) -> None:
        self._broadcast(self.peer.root_sync())
        self._timeline.after(ROOT_SYNC_MS, self._root_sync)

    # --- its user -----------------------------------------------------------------------------

    def write(self, dice: Dice) -> None:
        """Have its user append records, put content, or set metadata."""
        kind = dice.below(6)
        if kind < 3:
            self._change(lambda topics: topics.partition("r", 0).offer(f"{dice.bits()}"))
        elif kind < 5:
            blob = dice.bytes(20) * dice.pick((1, 15, 450))
            content = Index.of([(_DATA, Index.of([(value_hash(blob), blob)]))])
            self._commit(lambda root: self.peer.lattice.merge(root, content))
        else:
            key = f"key {dice.below(3)}"
            self._change(lambda topics: self._set_meta(topics.partition("r", 0), key, dice.bits()))

    def _set_meta(self, queue: Queue, key: str, value: int) -> None:
        """Set metadata as the reference does: with the time of the queue and without a stamp."""

        def changed(state: Value) -> Value:
            before = read_state(state)
            meta = before.meta.values.put(key, value)
            # Without a stamp: what a plain peer writes.
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
        super().opened(connection, peer, outbound=outbound)
        if outbound:
            self._made[connection] = None  # it broadcasts on dialled connections
            self.send(connection, self.peer.challenge())

    def arrived(self, connection: str, name: HostName, data: bytes) -> None:
        try:
            super().arrived(connection, name, data)
        except (ProtocolViolation, LimitExceeded):
            self._network.close(connection, self.name)  # as the reference does

    def heard(self, connection: str, payload: bytes) -> None:
        is_accepted = connection not in self._made
        answers, broadcast = self.peer.heard(payload, accepted=is_accepted)
        for answer in answers:
            self.send(connection, answer)
        self._broadcast(broadcast)

    def ended(self, connection: str) -> None:
        super().ended(connection)
        self._made.pop(connection, None)

    def _broadcast(self, payloads: list[bytes]) -> None:
        for connection in self._made:
            for payload in payloads:
                self.send(connection, payload)


def judge(references: Sequence[SimReference], owners: Collection[Value]) -> None:
    """Check what reference peers received.

    Raises: Violation: a value lacked cells; or a peer signed for one of `owners`, whose states it
            should have taken unchanged.
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
    """Return whether reference peers announce a node's data of `owners`, and its unsigned data.

    is_attacked: unsigned data does not count, since peers and nodes may merge the data of hostile
                 peers differently.
    """

    def comparable(root: Value) -> bytes:
        part = honest_part(node.lattice, root, owners)
        if is_attacked and isinstance(part, Index):
            part = part.remove(_DATA)  # unsigned data of hostile peers is merged differently
        return value_hash(part)

    expected = comparable(node.announced)
    return all(comparable(one.peer.announced) == expected for one in references)
