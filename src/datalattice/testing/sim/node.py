"""Node: an honest node of a simulation - a disk, a store, a replica, a replicator and two clocks.

It lives through what happens to it: it may end at any write, pause, find its disk full, and come
back over what the disk kept.

Length: one node, and what makes its replica.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from datalattice.cells import Value, Work, value_hash
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import Corruption, LimitExceeded, ProtocolViolation, StoreError
from datalattice.lattice import EMPTY_CONTEXT, KeyedLattice, Lattice, MergeContext
from datalattice.limits import CHARGE_LIMITS, WORK_LIMITS
from datalattice.node import Observer
from datalattice.store import CellStore, MemoryStore, Store
from datalattice.sync import (
    UNSOUND,
    Charges,
    Dialect,
    Effects,
    EvidenceLimits,
    HostingPolicy,
    LatticeProtocol,
    LatticeReplica,
    Note,
    Pace,
    Replica,
    Replicator,
    UnsignedPolicy,
    WireProtocol,
)
from datalattice.testing.disk import SimDisk, SimulatedCrash
from datalattice.testing.sim.checkers import Checker, Violation, honest_part
from datalattice.testing.sim.dice import Dice
from datalattice.testing.sim.network import SimNetwork
from datalattice.testing.sim.timeline import Timeline
from datalattice.wire import FrameBuffer, encode_frame

FOLDER: Final = "store"
SEGMENT_BYTES: Final = 65_536
RECENT_ENTRIES: Final = 400
"""Small, so that every part of the store's work comes up in a short run."""

MESSAGE_BYTES_MAX: Final = 1_000_000
"""Longest message: enough for honest data here, and a bound that hostile data meets."""

EVIDENCE_LIMITS: Final = EvidenceLimits(
    records_per_slot=4, bytes_per_owner=60_000, records=24, bytes=240_000
)
"""Small, so that who equivocates meets them."""

OWNER_BYTES: Final = 24_000
STRANGERS_BYTES: Final = 60_000
"""What each stranger may have, and all of them, where hosting is limited: any bomb has less."""

WORK: Final = WORK_LIMITS._replace(start=2_000)
CHARGES: Final = CHARGE_LIMITS._replace(per_s=62_500, credit=10_000, wanted_credit=60_000)
"""A quarter of what a merge may cost in the product: whoever wants to exceed it, does so sooner."""

EPOCH_MS: Final = 1_800_000_000_000


class SimClock:
    """A wall clock that may be wrong, and may be set anew."""

    def __init__(self, timeline: Timeline, skew_ms: int) -> None:
        self._timeline = timeline
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        """Return Unix time in milliseconds, as this node believes."""
        return EPOCH_MS + self._timeline.now_ms + self.skew_ms


class RecordingKeyPair(KeyPair):
    """A key pair that remembers what it signed."""

    __slots__ = ("signatures",)

    def __init__(self, seed: bytes) -> None:
        super().__init__(seed)
        self.signatures: dict[bytes, None] = {}

    def sign(self, message: bytes) -> bytes:
        """Return the signature of `message`."""
        signature = super().sign(message)
        self.signatures[signature] = None
        return signature


class World:
    """What all nodes of one simulation share, and who is told what they do."""

    def __init__(
        self,
        timeline: Timeline,
        network: SimNetwork,
        open_replica: OpenReplica,
        *,
        lattice: Lattice,
        pace: Pace,
        checkers: list[Checker],
        disks: bool,
        hosting: bool = False,
    ) -> None:
        self.timeline = timeline
        self.network = network
        self.open_replica = open_replica
        self.lattice = lattice
        self.pace = pace
        self.checkers = checkers
        self.disks = disks
        self.hosting = hosting
        self.owners: set[bytes] = set()
        """Keys of the nodes: those of honest owners."""
        self.names: set[str] = set()
        """What the nodes are called: those whom each of them knows."""
        self.counts: Counter[str] = Counter()
        self.on_end: Callable[[SimNode], None] = lambda _node: None
        self.on_failing: Callable[[SimNode], None] = lambda _node: None
        # Most checkers leave most hooks as they are.
        self.commit_hooks = [c.on_commit for c in checkers if _listens(c, "on_commit")]
        self.send_hooks = [c.on_send for c in checkers if _listens(c, "on_send")]
        self.note_hooks = [c.on_note for c in checkers if _listens(c, "on_note")]
        self.close_hooks = [c.on_close for c in checkers if _listens(c, "on_close")]
        self.turn_hooks = [c.on_turn for c in checkers if _listens(c, "on_turn")]


OpenReplica = Callable[["SimNode"], tuple[Replica, WireProtocol]]
"""Makes what a node replicates, over what its store has: when it starts, and after each end."""


class Metered(KeyedLattice):
    """A root whose merges are counted: `ticks` is what all of them together have paid."""

    def __init__(self, lattice: KeyedLattice) -> None:
        super().__init__(lattice.children())
        self.ticks = 0

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the join, and count what it cost."""
        work = context.work or Work()
        before = work.spent
        try:
            return super().merge(own, other, context)
        finally:
            self.ticks += work.spent - before


def open_lattice(node: SimNode) -> tuple[Replica, WireProtocol]:
    """Return a replica of the lattice of the simulation, and what speaks for it."""
    context = MergeContext(key_pair=node.keys)
    lattice = node.lattice
    if isinstance(lattice, KeyedLattice):
        lattice = node.meter = Metered(lattice)
    replica = LatticeReplica(
        node.store,
        lattice,
        context,
        node.sync,
        hosting=node.policy,
        clock=node.clock,
        evidence_limits=EVIDENCE_LIMITS,
        frame_max=MESSAGE_BYTES_MAX,
    )
    replica.charges = Charges(node.clock, CHARGES, WORK)
    dialect, pace = Dialect(message_bytes_max=MESSAGE_BYTES_MAX), node._world.pace
    return replica, LatticeProtocol(node.clock, dialect, pace, node.keys, node._dice)


def _listens(checker: Checker, hook: str) -> bool:
    return getattr(type(checker), hook) is not getattr(Checker, hook)


class SimNode:
    """One honest node. It is an `End` of the network and an `Observed` of the checkers."""

    def __init__(
        self,
        name: str,
        world: World,
        dice: Dice,
        skew_ms: int,
        keys: RecordingKeyPair | None = None,
    ) -> None:
        self.name: Final = name
        self.keys: Final = keys or RecordingKeyPair(dice.bytes(32))
        world.owners.add(self.keys.public_key)
        world.names.add(name)
        self.meter: Metered | None = None
        self.clock: Final = SimClock(world.timeline, skew_ms)
        self.disk = SimDisk(dice.bits())
        self.idle_until_ms = 0
        self.is_up = False
        self.store: Store = MemoryStore()
        self._world = world
        self._dice = dice
        self._origin_ms = 0
        self._observer = Observer()
        self._buffers: dict[str, FrameBuffer] = {}
        self._peers: dict[str, str] = {}  # connection -> who is at its other end
        self._alarm_ms: int | None = None

    replica: Replica
    replicator: Replicator

    # --- what others see ----------------------------------------------------------------------

    @property
    def signatures(self) -> dict[bytes, None]:
        """All signatures that it ever made, in order."""
        return self.keys.signatures

    @property
    def lattice(self) -> Lattice:
        """The lattice that is replicated."""
        return self._world.lattice

    @property
    def cursor(self) -> RootLattice:
        """The live value: what the node's user reads and writes."""
        return self.data.cursor

    @property
    def data(self) -> LatticeReplica:
        """The replica of a node that replicates a lattice."""
        assert isinstance(self.replica, LatticeReplica), "a replica of another kind"
        return self.replica

    @property
    def state(self) -> bytes:
        """What two nodes have in common when they have converged."""
        if isinstance(self.replica, LatticeReplica):
            if self._takes_all:
                return self.replica.announced_hash
            return value_hash(self.promised(self.replica.announced))
        return self.replica.probe.key

    def promised(self, root: Value) -> Value:
        """Return what every honest node has of a root in the end."""
        return root if self._takes_all else honest_part(self.lattice, root, self._world.owners)

    @property
    def _takes_all(self) -> bool:
        """Whether strangers' slots become equal, too.

        Where they have quotas each node hosts what it met first, and what costs too much to merge
        with the one state of a slot may be cheap to merge with another.
        """
        return self.policy is None and not self._world.counts["too-costly"]

    @property
    def noticed(self) -> dict[str, dict[str, object]]:
        """What its health says of peers, by their names."""
        return self._observer.noticed

    @property
    def policy(self) -> HostingPolicy | None:
        """Whose data it takes; None: all."""
        world = self._world
        if not world.hosting:
            return None
        return HostingPolicy(
            allow=tuple(sorted(owner.hex() for owner in world.owners)),
            owner_bytes=OWNER_BYTES,
            strangers_bytes=STRANGERS_BYTES,
            reserve_bytes=0,
            unsigned={"data": UnsignedPolicy(strangers_bytes=STRANGERS_BYTES)},
        )

    @property
    def ticks(self) -> int:
        """What merges of foreign data have paid since the node was opened."""
        return 0 if self.meter is None else self.meter.ticks

    @property
    def buffered_bytes(self) -> int:
        """Most bytes that it holds of a frame that is not whole."""
        return max((buffer.buffered_bytes for buffer in self._buffers.values()), default=0)

    @property
    def is_calm(self) -> bool:
        """Whether it is at work, has greeted every node that is linked, and asks nothing of any."""
        if not self.is_up or self.idle_until_ms > self._world.timeline.now_ms:
            return False
        partners, names = self.replicator._partners, self._world.names
        linked = (partners.get(id) for id in self._buffers if self._peers[id] in names)
        return all(not one or (one.met and not one.conversation.pending_count) for one in linked)

    @property
    def peers_count(self) -> int:
        """Connections that it has."""
        return len(self._buffers)

    # --- its life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Open the store and begin to serve, or end again in the attempt."""
        try:
            self._open()
        except SimulatedCrash:
            self._world.timeline.record(self.name, "ends while it opens")
            self._world.on_end(self)
        except Corruption as error:
            raise Violation("durability", f"{self.name} cannot open its store: {error}") from error
        except StoreError as error:
            self._world.timeline.record(self.name, f"cannot open its store: {error.code}")
            self._world.on_end(self)

    def _open(self) -> None:
        world = self._world
        if world.disks:
            self.store = CellStore.open(
                FOLDER,
                disk=self.disk,
                entropy=self._dice,
                segment_bytes=SEGMENT_BYTES,
                recent_entries=RECENT_ENTRIES,
            )
        self.replica, protocol = world.open_replica(self)
        self.replicator = Replicator(self.replica, protocol, world.pace)
        # A steady clock begins anywhere, and anew with each process.
        self._origin_ms = self._dice.below(1_000_000) - world.timeline.now_ms
        self._alarm_ms = None
        self._observer = Observer(lambda: self.steady_ms() / 1_000)
        self._observer.name_of = lambda id: self._peers.get(id, id)
        self.is_up = True
        world.timeline.record(self.name, "opens", self.state)
        for checker in world.checkers:
            checker.on_open(self)

    def end(self, *, power_failure: bool) -> None:
        """End the process; what its disk keeps is left."""
        if self.is_up:
            self._world.timeline.record(self.name, "ends")
        self.is_up = False
        self.idle_until_ms = 0
        self._buffers.clear()
        self._peers.clear()
        self._world.network.die(self.name)
        self.disk.restart(power_failure=power_failure)

    def write(self, workload: Callable[[SimNode, Dice], None], dice: Dice) -> None:
        """Have its user change something."""
        workload(self, dice)

    def publish(self) -> bool:
        """Make durable what was written; return whether it was acknowledged."""
        value = self.cursor.get() if isinstance(self.replica, LatticeReplica) else None
        if not self._do("publishes", partial(self.replicator.publish, self.steady_ms())):
            return False
        for checker in self._world.checkers:
            checker.on_ack(self, value)
        return True

    def sync(self, value: Value) -> Value:
        """Do what a cursor's `sync` asks for."""
        self.publish()
        return value

    def steady_ms(self) -> int:
        """Return the time of the clock that nobody sets."""
        return self._world.timeline.now_ms + self._origin_ms

    # --- an end of the network ----------------------------------------------------------------

    def opened(self, connection: str, peer: str, *, outbound: bool) -> None:
        """Take up a connection."""
        self._buffers[connection] = FrameBuffer(MESSAGE_BYTES_MAX)
        self._peers[connection] = peer
        known = peer in self._world.names  # operators name one another's nodes
        if isinstance(self.replica, LatticeReplica):
            self.replica.introduce(connection, peer, is_wanted=known, is_known=known)
        now_ms = self.steady_ms()
        self._do(
            f"opens {connection}",
            partial(self.replicator.open, connection, now_ms, outbound=outbound),
        )

    def arrived(self, connection: str, data: bytes) -> None:
        """Take in bytes of the stream."""
        buffer = self._buffers.get(connection)
        if buffer is None:
            return
        buffer.feed(data)
        try:
            while connection in self._buffers and (payload := buffer.next_payload()) is not None:
                self._do(
                    f"hears {connection}",
                    partial(self.replicator.receive, connection, payload, self.steady_ms()),
                    payload,
                )
        except (ProtocolViolation, LimitExceeded) as error:
            self._world.counts["illegal frames"] += 1
            self._observer.note(Note("closed-framing", connection, str(error)))
            for close_hook in self._world.close_hooks:
                close_hook(self, self._peers[connection], str(error))
            self._world.network.close(connection, self.name)

    def written(self, connection: str) -> None:
        """Note that a frame has left."""
        if connection in self._buffers:
            self.replicator.written(connection, 1, self.steady_ms())
            self._settle()

    def ended(self, connection: str) -> None:
        """Forget a connection."""
        if self._buffers.pop(connection, None) is not None:
            if isinstance(self.replica, LatticeReplica):
                self.replica.leave(connection)
            self._do(
                f"forgets {connection}",
                partial(self.replicator.closed, connection, self.steady_ms()),
            )

    # --- inside -------------------------------------------------------------------------------

    def _do(self, what: str, action: Callable[[], object], data: bytes = b"") -> bool:
        """Have the replicator do something, and carry out what follows from it."""
        world = self._world
        world.timeline.record(self.name, what, data)
        done = False
        try:
            action()
            done = True
        except SimulatedCrash:
            world.timeline.record(self.name, "ends at a write")
            world.on_end(self)
            return False
        except StoreError as error:
            # As a real node does, it goes on and serves what it has, until somebody looks at it.
            world.counts["disk errors"] += 1
            world.timeline.record(self.name, f"cannot write: {error.code}")
            world.on_failing(self)
        self._settle()
        return done

    def _settle(self) -> None:
        if not self.is_up:
            return
        world = self._world
        effects = self.replicator.take_effects()
        if effects.changed:
            for commit_hook in world.commit_hooks:
                commit_hook(self)
        if effects.sends or effects.closes or effects.notes:
            self._carry_out(effects)
        for turn_hook in world.turn_hooks:
            turn_hook(self)
        deadline_ms = self.replicator.deadline_ms
        if deadline_ms is not None:
            self._set_alarm(deadline_ms - self._origin_ms)

    def _carry_out(self, effects: Effects) -> None:
        world = self._world
        for note in effects.notes:
            world.counts[note.kind] += 1
            self._observer.note(note)
            for note_hook in world.note_hooks:
                note_hook(self, note.kind, self._peers.get(note.peer, ""))
        for connection, payload in effects.sends:
            for send_hook in world.send_hooks:
                send_hook(self, payload)
            world.network.send(connection, self.name, encode_frame(payload))
        for connection, _reason in effects.suspects:
            for note_hook in world.note_hooks:
                note_hook(self, UNSOUND, self._peers.get(connection, ""))
        for connection, reason in effects.closes:
            for close_hook in world.close_hooks:
                close_hook(self, self._peers.get(connection, ""), reason)
            world.network.close(connection, self.name)

    def _set_alarm(self, due_ms: int) -> None:
        due_ms = max(due_ms, self._world.timeline.now_ms)
        if self._alarm_ms is None or due_ms < self._alarm_ms:
            self._alarm_ms = due_ms
            self._world.timeline.at(due_ms, partial(self._ring, due_ms, self.replicator))

    def _ring(self, due_ms: int, whose: Replicator) -> None:
        """Do what is due, unless another alarm was set since or the process is another one."""
        if not self.is_up or whose is not self.replicator or due_ms != self._alarm_ms:
            return
        self._alarm_ms = None
        if self.idle_until_ms > self._world.timeline.now_ms:
            self._set_alarm(self.idle_until_ms)
            return
        deadline_ms = self.replicator.deadline_ms
        if deadline_ms is None:
            return
        if deadline_ms <= self.steady_ms():
            self._do("ticks", partial(self.replicator.tick, self.steady_ms()))
            return
        self._set_alarm(deadline_ms - self._origin_ms)
