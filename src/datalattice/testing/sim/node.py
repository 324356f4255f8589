"""Node: an honest node of a simulation, with a disk, a key, two clocks and the replicas it hosts.

A node may end at any write, pause, find its disk full, and start again on what the disk kept. For
each kind of replica it has a `SimHost`: the replica with its replicator and timer. Checkers see
hosts.

Length: a node and its hosts call each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import Corruption, LimitExceeded, ProtocolViolation, StoreError
from datalattice.node import Observer
from datalattice.store import Store
from datalattice.sync import (
    UNSOUND_CELLS,
    Absorbed,
    Effects,
    LatticeReplica,
    Note,
    Pace,
    Replica,
    Replicator,
    WireProtocol,
)
from datalattice.testing.dice import Dice
from datalattice.testing.disk import SimDisk, SimulatedCrash
from datalattice.testing.sim.checkers import SimChecker, Violation
from datalattice.testing.sim.network import LATTICE_HOST, HostName, SimNetwork
from datalattice.testing.sim.timeline import SimClock, Timeline
from datalattice.wire import FrameBuffer, encode_frame

SIM_MESSAGE_BYTES_MAX: Final = 1_000_000  # small, so that tests meet the limit
"""Longest message. Honest data fits; hostile data meets the limit."""

Workload = Callable[["SimNode", Dice], None]
"""What a node's user writes at one time."""


@dataclass(frozen=True, slots=True)
class ReplicaKind:
    """A kind of replica. Every node of a simulation has one replica of each kind.

    name:     protocol and store id under which peers find the replica.
    host:     makes the host of a node.
    write:    what a user writes; the simulation publishes it.
    checkers: makes the checkers of a run.
    is_plain: connections carry no proof of the peer's key. Other kinds speak to nodes only, whose
              keys the transport has proved.
    attacker: makes a hostile member from its name, the time, the network, its dice, its key and the
              kinds that it attacks; None: hostile peers attack the lattice alone.
    hop_ms:   how much longer than a pace window and some round trips a change may take to pass a
              link without faults.
    """

    name: HostName
    host: Callable[[SimNode, KindWatch], SimHost]
    write: Workload
    checkers: Callable[[], list[Any]]
    is_plain: bool = False
    attacker: Callable[[str, Timeline, SimNetwork, Dice, KeyPair, list[HostName]], Any] | None = (
        None
    )
    hop_ms: int = 0


class KindWatch:
    """The hosts of one kind in a simulation, and the checkers that watch them."""

    def __init__(self, kind: ReplicaKind) -> None:
        self.kind: Final = kind
        self.hosts: Final[list[Any]] = []
        self.checkers: Final[list[SimChecker]] = kind.checkers()
        # Frequent events go only to the checkers that override the hook: most leave most alone.
        self.on_ack = [c.on_ack for c in self.checkers if _overrides(c, "on_ack")]
        self.on_commit = [c.on_commit for c in self.checkers if _overrides(c, "on_commit")]
        self.on_send = [c.on_send for c in self.checkers if _overrides(c, "on_send")]
        self.on_note = [c.on_note for c in self.checkers if _overrides(c, "on_note")]
        self.on_close = [c.on_close for c in self.checkers if _overrides(c, "on_close")]
        self.on_turn = [c.on_turn for c in self.checkers if _overrides(c, "on_turn")]

    def up(self) -> list[Any]:
        return [host for host in self.hosts if host.is_up]


def _overrides(checker: SimChecker, hook: str) -> bool:
    # Compared on the classes: an override is enough.
    return getattr(type(checker), hook) is not getattr(SimChecker, hook)


class SimHost(ABC):
    """One replica on one node, whether the node runs or not.

    A subclass for each kind of replica makes it, and names its parts for the checkers: a name
    stands for the same part on every node.
    """

    replica: Replica
    replicator: Replicator

    def __init__(self, node: SimNode, watch: KindWatch) -> None:
        self.node: Final = node
        self.name: Final = node.name
        self.kind: Final = watch.kind
        self._watch = watch
        self._world = node.world
        self._buffers: dict[str, FrameBuffer] = {}
        self._alarm_ms: int | None = None
        self._suffix = "" if watch.kind.is_plain else f" for {watch.kind.name[0]}"

    # --- what each kind defines ---------------------------------------------------------------

    @abstractmethod
    def make(self) -> tuple[Replica, WireProtocol]:
        """Return a replica over what the node's disk has, and the protocol that speaks for it.

        Raises: StoreError: the replica cannot be opened.
        """

    @property
    @abstractmethod
    def held(self) -> Collection[bytes]:
        """Names of the parts that the node's user sees, published or not."""

    @abstractmethod
    def lacking(self, names: Collection[bytes]) -> Collection[bytes]:
        """Return those of the named parts that the user sees neither as such nor replaced."""

    @abstractmethod
    def is_durable(self, name: bytes) -> bool:
        """Return whether a part, or what replaced it, would survive a power failure now."""

    @abstractmethod
    def told(self, payload: bytes) -> Collection[bytes] | None:
        """Return the names of the parts that a message from here says this node has.

        None: the message says nothing about them.
        """

    def admits(self, peer: str) -> bool:
        """Return whether the operator lets the replica speak to a peer, by its name."""
        return True

    @property
    def amounts(self) -> Iterable[tuple[str, int, int]]:
        """What the replica holds on behalf of peers: (what, how much, the most expected)."""
        return ()

    def introduce(self, connection: str, peer: str) -> object:
        """Note who is at the other end, before anything else of the connection."""
        return None

    def leave(self, connection: str) -> object:
        return None

    # --- what checkers and others see ---------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self.node.is_up

    @property
    def state(self) -> bytes:
        """A hash that is equal on two nodes once they have converged."""
        return self.replica.probe.key

    @property
    def noticed(self) -> Mapping[str, Mapping[str, object]]:
        """What the node's health says of peers, by their names."""
        return self.node.observer.noticed

    @property
    def buffered_bytes(self) -> int:
        """Most bytes held of one incomplete frame."""
        # Of one frame: buffers are bounded each.
        return max((buffer.buffered_bytes for buffer in self._buffers.values()), default=0)

    @property
    def peers_count(self) -> int:
        return len(self._buffers)

    @property
    def is_calm(self) -> bool:
        """Whether it has greeted every linked node and waits for no answer."""
        partners = self.replicator._partners  # what checkers must see is private to the replicator
        nodes = self._world.keys
        linked = (partners.get(id) for id in self._buffers if self.node.peer_of(id) in nodes)
        # Hostile peers never become calm.
        return all(not one or (one.met and not one.conversation.pending_count) for one in linked)

    # --- its life -----------------------------------------------------------------------------

    def open(self) -> None:
        """Open the replica over what the disk has.

        Raises: StoreError: as `make`. SimulatedCrash: the process ended in the attempt.
        """
        self.replica, protocol = self.make()
        self.replicator = Replicator(self.replica, protocol, self._world.pace)
        self._alarm_ms = None  # alarms of the process before are void

    def end(self) -> None:
        self._buffers.clear()

    def opened(self) -> None:
        for checker in self._watch.checkers:
            checker.on_open(self)

    def publish(self) -> bool:
        """Make durable what was written; return whether it was acknowledged."""
        # Read before the publish: it may change what is held.
        names = self.held if self._watch.on_ack else ()
        publish = partial(self.replicator.publish, self.node.steady_ms())
        if not self.do("publishes", publish):
            return False
        for ack_hook in self._watch.on_ack:  # only what is durable is acknowledged
            ack_hook(self, names)
        return True

    def readmit(self) -> None:
        """Apply a changed list of admitted peers to the open connections."""
        now_ms = self.node.steady_ms()
        readmit = partial(self.replicator.settle, Absorbed(readmits=True), "", now_ms)
        self.do("looks at its members", readmit)

    # --- an end of the network ----------------------------------------------------------------

    def connected(self, connection: str, peer: str, *, outbound: bool) -> None:
        key = self._world.keys.get(peer) or self._world.attackers.get(peer)
        if not self.kind.is_plain and key is None:  # strangers have no stream of such a kind
            return  # "Any other kind speaks to nodes only, whose keys the transport has proved."
        self._buffers[connection] = FrameBuffer(SIM_MESSAGE_BYTES_MAX)
        self.introduce(connection, peer)
        opens = partial(
            self.replicator.open,
            connection,
            self.node.steady_ms(),
            outbound=outbound,
            public_key=None if self.kind.is_plain else key,
        )
        self.do(f"opens {connection}", opens)

    def arrived(self, connection: str, data: bytes) -> None:
        buffer = self._buffers.get(connection)
        if buffer is None:
            return  # closed meanwhile
        buffer.feed(data)
        try:
            # Handling a frame may close the connection.
            while connection in self._buffers and (payload := buffer.next_payload()) is not None:
                self.do(
                    f"hears {connection}",
                    partial(self.replicator.receive, connection, payload, self.node.steady_ms()),
                    payload,
                )
        except (ProtocolViolation, LimitExceeded) as error:
            self._world.counts["illegal frames"] += 1  # counted: a run without any tests less
            self.node.observer.note(Note("closed-framing", connection, str(error)))
            for close_hook in self._watch.on_close:
                close_hook(self, self.node.peer_of(connection), str(error))
            self._world.network.close(connection, self.node.name)

    def written(self, connection: str) -> None:
        if connection in self._buffers:  # else a late note of a closed connection
            self.replicator.written(connection, 1, self.node.steady_ms())
            self._settle()

    def disconnected(self, connection: str) -> None:
        if self._buffers.pop(connection, None) is not None:
            self.leave(connection)
            self.do(
                f"forgets {connection}",
                partial(self.replicator.closed, connection, self.node.steady_ms()),
            )

    # --- inside -------------------------------------------------------------------------------

    def do(self, what: str, action: Callable[[], object], data: bytes = b"") -> bool:
        """Run an action and carry out its effects; return whether it raised nothing."""
        world, node = self._world, self.node
        world.timeline.record(node.name, what + self._suffix, data)
        done = False
        try:
            action()
            done = True
        except SimulatedCrash:
            world.timeline.record(node.name, "ends at a write")
            world.on_end(node)  # the process is gone: nothing more of it runs
            return False
        except StoreError as error:
            # As a real node, it keeps serving what it has until an operator restarts it.
            world.counts["disk errors"] += 1
            world.timeline.record(node.name, f"cannot write: {error.code}")
            world.on_failing(node)
        self._settle()
        return done

    def _settle(self) -> None:
        if not self.node.is_up:  # an effect may have ended the process
            return
        # Effects are carried out in order: commits are checked before messages about them leave.
        effects = self.replicator.take_effects()
        if effects.changed:
            for commit_hook in self._watch.on_commit:
                commit_hook(self)
        if effects.sends or effects.closes or effects.notes:
            self._carry_out(effects)
        for turn_hook in self._watch.on_turn:
            turn_hook(self)
        deadline_ms = self.replicator.deadline_ms
        if deadline_ms is not None:
            self._set_alarm(self.node.due_ms(deadline_ms))

    def _carry_out(self, effects: Effects) -> None:
        world, node, watch = self._world, self.node, self._watch
        for note in effects.notes:
            world.counts[note.kind] += 1
            node.observer.note(note)
            for note_hook in watch.on_note:
                note_hook(self, note.kind, node.peer_of(note.peer))
        for connection, payload in effects.sends:
            for send_hook in watch.on_send:
                send_hook(self, node.peer_of(connection), payload)
            # Framed as on a socket.
            world.network.send(connection, node.name, encode_frame(payload), self.kind.name)
        for connection, _reason in effects.suspects:
            for note_hook in watch.on_note:
                note_hook(self, UNSOUND_CELLS, node.peer_of(connection))
        for connection, reason in effects.closes:
            for close_hook in watch.on_close:
                close_hook(self, node.peer_of(connection), reason)
            world.network.close(connection, node.name)

    def _set_alarm(self, due_ms: int) -> None:
        due_ms = max(due_ms, self._world.timeline.now_ms)
        if self._alarm_ms is None or due_ms < self._alarm_ms:  # one alarm, the earliest
            self._alarm_ms = due_ms
            self._world.timeline.at(due_ms, partial(self._ring, due_ms, self.replicator))

    def _ring(self, due_ms: int, whose: Replicator) -> None:
        node = self.node
        # An earlier alarm, or one of a process that has ended, does nothing.
        if not node.is_up or whose is not self.replicator or due_ms != self._alarm_ms:
            return
        self._alarm_ms = None
        # A paused process does nothing in time.
        if node.idle_until_ms > self._world.timeline.now_ms:
            self._set_alarm(node.idle_until_ms)
            return
        deadline_ms = self.replicator.deadline_ms
        if deadline_ms is None:
            return
        if deadline_ms <= node.steady_ms():
            self.do("ticks", partial(self.replicator.tick, node.steady_ms()))
            return
        self._set_alarm(node.due_ms(deadline_ms))  # the deadline has moved


class RecordingKeyPair(KeyPair):
    """A key pair that remembers its signatures, in order."""

    __slots__ = ("signatures",)

    def __init__(self, seed: bytes) -> None:
        super().__init__(seed)
        self.signatures: dict[bytes, None] = {}

    def sign(self, message: bytes) -> bytes:
        signature = super().sign(message)
        # Remembered, so that checkers know what was really signed.
        self.signatures[signature] = None
        return signature


class SimWorld:
    """Shared by all nodes of one simulation: time, network, kinds, keys, counts and callbacks."""

    def __init__(
        self,
        timeline: Timeline,
        network: SimNetwork,
        kinds: Iterable[ReplicaKind],
        *,
        pace: Pace,
        disks: bool,
    ) -> None:
        self.timeline = timeline
        self.network = network
        self.pace = pace
        self.disks = disks
        self.watches: Final = [KindWatch(kind) for kind in kinds]
        self.keys: dict[str, bytes] = {}
        """Public keys of the nodes by name: every node knows them."""
        self.owners: set[bytes] = set()
        """The same keys, as those of honest owners."""
        self.attackers: dict[str, bytes] = {}
        """Public keys of hostile members by name: every node admits them."""
        self.counts: Counter[str] = Counter()
        self.on_end: Callable[[SimNode], None] = lambda _node: None
        self.on_failing: Callable[[SimNode], None] = lambda _node: None

    def add(self, node: SimNode) -> None:
        """Add a node: it admits all others, and checkers watch its hosts."""
        node.admitted.update(self.owners)  # by default every node is a member
        for watch, host in zip(self.watches, node.hosts.values(), strict=True):
            watch.hosts.append(host)


class SimNode:
    """One honest node. It is an `End` of the network."""

    def __init__(
        self,
        name: str,
        world: SimWorld,
        dice: Dice,
        skew_ms: int,
        keys: RecordingKeyPair | None = None,
    ) -> None:
        self.name: Final = name
        self.world: Final = world
        self.dice: Final = dice
        self.keys: Final = keys or RecordingKeyPair(dice.bytes(32))
        world.keys[name] = self.keys.public_key
        world.owners.add(self.keys.public_key)
        self.clock: Final = SimClock(world.timeline, skew_ms)
        self.disk = SimDisk(dice.bits())
        self.idle_until_ms = 0  # until then it receives nothing
        self.is_up = False
        self.observer = Observer()
        self.admitted: Final[set[bytes]] = set()
        """Keys that the operator admits, for replicas that speak to members only."""
        self._origin_ms = 0
        self._peers: dict[str, str] = {}  # connection: name of the peer
        self.hosts: Final[dict[HostName, SimHost]] = {
            watch.kind.name: watch.kind.host(self, watch) for watch in world.watches
        }
        """Its replicas, by protocol and store id."""

    # --- what others see ----------------------------------------------------------------------

    @property
    def replicator(self) -> Replicator:
        return next(iter(self.hosts.values())).replicator

    @property
    def data(self) -> LatticeReplica:
        replica = self.hosts[LATTICE_HOST].replica
        assert isinstance(replica, LatticeReplica)
        return replica

    @property
    def cursor(self) -> RootLattice:
        """The live value of its lattice, which the user reads and writes."""
        return self.data.cursor

    @property
    def store(self) -> Store:
        return self.data.store

    @property
    def state(self) -> bytes:
        return b"".join(host.state for host in self.hosts.values())

    @property
    def is_calm(self) -> bool:
        if not self.is_up or self.idle_until_ms > self.world.timeline.now_ms:
            return False
        return all(host.is_calm for host in self.hosts.values())

    def peer_of(self, connection: str) -> str:
        return self._peers.get(connection, "")

    # --- its life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Open the replicas and begin to serve; a crash or a failing disk ends the process."""
        try:
            self._open()
        except SimulatedCrash:
            self.world.timeline.record(self.name, "ends while it opens")
            self.world.on_end(self)
        except Corruption as error:
            # A store that cannot be opened has lost what it acknowledged.
            raise Violation("durability", f"{self.name} cannot open its store: {error}") from error
        except StoreError as error:
            self.world.timeline.record(self.name, f"cannot open its store: {error.code}")
            self.world.on_end(self)  # the operator tries again

    def _open(self) -> None:
        world = self.world
        for host in self.hosts.values():
            host.open()  # all replicas, before the node counts as up
        # A monotonic clock has any origin, and another one in each process.
        self._origin_ms = self.dice.below(1_000_000) - world.timeline.now_ms
        self.observer = Observer(lambda: self.steady_ms() / 1_000)
        self.observer.name_of = lambda id: self._peers.get(id, id)
        self.is_up = True
        world.timeline.record(self.name, "opens", self.state)
        for host in self.hosts.values():
            host.opened()

    def end(self, *, power_failure: bool) -> None:
        """End the process; the disk keeps what it keeps."""
        if self.is_up:
            self.world.timeline.record(self.name, "ends")
        self.is_up = False
        self.idle_until_ms = 0
        for host in self.hosts.values():
            host.end()
        self._peers.clear()
        self.world.network.die(self.name)  # the others notice later
        self.disk.restart(power_failure=power_failure)  # what the disk keeps is decided here

    def write(self, dice: Dice) -> None:
        """Have its user change something in each of its replicas."""
        for host in self.hosts.values():
            host.kind.write(self, dice)

    def publish(self) -> bool:
        """Make durable what was written; return whether all of it was acknowledged."""
        # A crash in the first leaves the others unpublished.
        published = [host.publish() for host in self.hosts.values() if self.is_up]
        return all(published)

    def admit(self, public_key: bytes, *, is_admitted: bool) -> None:
        """Have the operator admit a peer, or exclude it."""
        if (public_key in self.admitted) == is_admitted:
            return
        self.admitted.symmetric_difference_update((public_key,))
        for host in self.hosts.values():
            if self.is_up:
                host.readmit()

    def steady_ms(self) -> int:
        return self.world.timeline.now_ms + self._origin_ms

    def due_ms(self, steady_ms: int) -> int:
        """Return the simulated time at which the monotonic clock shows a time."""
        return steady_ms - self._origin_ms

    # --- an end of the network ----------------------------------------------------------------

    def opened(self, connection: str, peer: str, *, outbound: bool) -> None:
        self._peers[connection] = peer
        for host in self.hosts.values():
            if self.is_up:
                host.connected(connection, peer, outbound=outbound)

    def arrived(self, connection: str, name: HostName, data: bytes) -> None:
        host = self.hosts.get(name)
        if host is not None:  # else this node has no replica of that kind
            host.arrived(connection, data)

    def written(self, connection: str, name: HostName) -> None:
        self.hosts[name].written(connection)

    def ended(self, connection: str) -> None:
        for host in self.hosts.values():
            host.disconnected(connection)
