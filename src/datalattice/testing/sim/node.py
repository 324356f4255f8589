"""Node: an honest node of a simulation - a disk, a key, two clocks, and the replicas that it hosts.

It lives through what happens to it: it may end at any write, pause, find its disk full, and come
back over what the disk kept. For each kind of replica of the simulation it has a host: the replica,
and the replicator and the timer that drive it. What a kind is, `Kind` says.

Length: nodes and their hosts know each other.
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
    UNSOUND,
    Effects,
    LatticeReplica,
    Note,
    Pace,
    Replica,
    Replicator,
    WireProtocol,
)
from datalattice.testing.disk import SimDisk, SimulatedCrash
from datalattice.testing.sim.checkers import Checker, Observed, Violation
from datalattice.testing.sim.dice import Dice
from datalattice.testing.sim.network import LATTICE, HostName, SimNetwork
from datalattice.testing.sim.timeline import Timeline
from datalattice.wire import FrameBuffer, encode_frame

MESSAGE_BYTES_MAX: Final = 1_000_000
"""Longest message: enough for honest data here, and a bound that hostile data meets."""

MakeReplica = Callable[["SimNode"], tuple[Replica, WireProtocol]]
"""Makes a replica over what the node's disk has, and what speaks for it."""

Workload = Callable[["SimNode", Dice], None]
"""What a user of a node writes, now and then."""


class Ledger:
    """What the replicas of a kind note of connections. By itself: nothing."""

    def introduce(self, node: SimNode, connection: str, peer: str) -> None:
        """Take note of who is at the other end, before anything else of the connection."""

    def leave(self, node: SimNode, connection: str) -> None:
        """Take note that a connection has ended."""


_NOTHING_NOTED: Final = Ledger()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of replica, of which each node of a simulation has one.

    make:     opens it when a node starts, and after each end. It may raise StoreError.
    write:    what a user writes; the simulation publishes it.
    view:     makes what checkers see of one.
    checkers: makes the checkers of a run.
    ledger:   what it notes of connections.
    is_plain: it speaks to whoever connects, and nothing proves who that is. Any other speaks to
              nodes alone, whose keys the transport has proved.
    """

    name: HostName
    make: MakeReplica
    write: Workload
    view: Callable[[SimHost], View]
    checkers: Callable[[], list[Any]]
    ledger: Ledger = _NOTHING_NOTED
    is_plain: bool = False


class Watch:
    """The replicas of one kind in a simulation, and the checkers that look at them."""

    def __init__(self, kind: Kind) -> None:
        self.kind: Final = kind
        self.views: Final[list[Any]] = []
        self.checkers: Final[list[Checker[Any]]] = kind.checkers()
        # Most checkers leave most hooks as they are.
        self.on_ack = [c.on_ack for c in self.checkers if _listens(c, "on_ack")]
        self.on_commit = [c.on_commit for c in self.checkers if _listens(c, "on_commit")]
        self.on_send = [c.on_send for c in self.checkers if _listens(c, "on_send")]
        self.on_note = [c.on_note for c in self.checkers if _listens(c, "on_note")]
        self.on_close = [c.on_close for c in self.checkers if _listens(c, "on_close")]
        self.on_turn = [c.on_turn for c in self.checkers if _listens(c, "on_turn")]


def _listens(checker: Checker[Any], hook: str) -> bool:
    return getattr(type(checker), hook) is not getattr(Checker, hook)


class SimHost:
    """One replica on one node, while the node is up and while it is not."""

    replica: Replica
    replicator: Replicator

    def __init__(self, node: SimNode, watch: Watch) -> None:
        self.node: Final = node
        self.kind: Final = watch.kind
        self.view: Final = watch.kind.view(self)
        self._watch = watch
        self._world = node.world
        self._buffers: dict[str, FrameBuffer] = {}
        self._alarm_ms: int | None = None
        self._suffix = "" if watch.kind.is_plain else f" for {watch.kind.name[0]}"

    # --- what others see ----------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """Most bytes that it holds of a frame that is not whole."""
        return max((buffer.buffered_bytes for buffer in self._buffers.values()), default=0)

    @property
    def connections_count(self) -> int:
        """Connections that it has."""
        return len(self._buffers)

    @property
    def is_calm(self) -> bool:
        """Whether it has greeted every node that is linked, and asks nothing of any."""
        partners = self.replicator._partners
        linked = (partners.get(id) for id in self._buffers if self.node.knows(id))
        return all(not one or (one.met and not one.conversation.pending_count) for one in linked)

    # --- its life -----------------------------------------------------------------------------

    def open(self) -> None:
        """Open the replica over what the disk has.

        Raises: StoreError: it cannot be opened. SimulatedCrash: the process ended in the attempt.
        """
        self.replica, protocol = self.kind.make(self.node)
        self.replicator = Replicator(self.replica, protocol, self._world.pace)
        self._alarm_ms = None

    def end(self) -> None:
        """Forget all that a process knew."""
        self._buffers.clear()

    def opened(self) -> None:
        """Have checkers look at what was opened."""
        for checker in self._watch.checkers:
            checker.on_open(self.view)

    def publish(self) -> bool:
        """Make durable what was written; return whether it was acknowledged."""
        names = self.view.held if self._watch.on_ack else ()
        publish = partial(self.replicator.publish, self.node.steady_ms())
        if not self.do("publishes", publish):
            return False
        for ack_hook in self._watch.on_ack:
            ack_hook(self.view, names)
        return True

    def look_anew(self) -> None:
        """Have it look at whom it admits, since that has changed."""
        now_ms = self.node.steady_ms()
        self.do("looks at its members", partial(self.replicator.readmit, now_ms))

    # --- an end of the network ----------------------------------------------------------------

    def connected(self, connection: str, peer: str, *, outbound: bool) -> None:
        """Take up a connection, if its peer can be spoken to."""
        key = self._world.keys.get(peer)
        if not self.kind.is_plain and key is None:
            return
        self._buffers[connection] = FrameBuffer(MESSAGE_BYTES_MAX)
        self.kind.ledger.introduce(self.node, connection, peer)
        opens = partial(
            self.replicator.open,
            connection,
            self.node.steady_ms(),
            outbound=outbound,
            public_key=None if self.kind.is_plain else key,
        )
        self.do(f"opens {connection}", opens)

    def arrived(self, connection: str, data: bytes) -> None:
        """Take in bytes of the stream."""
        buffer = self._buffers.get(connection)
        if buffer is None:
            return
        buffer.feed(data)
        try:
            while connection in self._buffers and (payload := buffer.next_payload()) is not None:
                self.do(
                    f"hears {connection}",
                    partial(self.replicator.receive, connection, payload, self.node.steady_ms()),
                    payload,
                )
        except (ProtocolViolation, LimitExceeded) as error:
            self._world.counts["illegal frames"] += 1
            self.node.observer.note(Note("closed-framing", connection, str(error)))
            for close_hook in self._watch.on_close:
                close_hook(self.view, self.node.peer_of(connection), str(error))
            self._world.network.close(connection, self.node.name)

    def written(self, connection: str) -> None:
        """Note that a frame has left."""
        if connection in self._buffers:
            self.replicator.written(connection, 1, self.node.steady_ms())
            self._settle()

    def disconnected(self, connection: str) -> None:
        """Forget a connection."""
        if self._buffers.pop(connection, None) is not None:
            self.kind.ledger.leave(self.node, connection)
            self.do(
                f"forgets {connection}",
                partial(self.replicator.closed, connection, self.node.steady_ms()),
            )

    # --- inside -------------------------------------------------------------------------------

    def do(self, what: str, action: Callable[[], object], data: bytes = b"") -> bool:
        """Have the replicator do something, and carry out what follows from it."""
        world, node = self._world, self.node
        world.timeline.record(node.name, what + self._suffix, data)
        done = False
        try:
            action()
            done = True
        except SimulatedCrash:
            world.timeline.record(node.name, "ends at a write")
            world.on_end(node)
            return False
        except StoreError as error:
            # As a real node does, it goes on and serves what it has, until somebody looks at it.
            world.counts["disk errors"] += 1
            world.timeline.record(node.name, f"cannot write: {error.code}")
            world.on_failing(node)
        self._settle()
        return done

    def _settle(self) -> None:
        if not self.node.is_up:
            return
        effects = self.replicator.take_effects()
        if effects.changed:
            for commit_hook in self._watch.on_commit:
                commit_hook(self.view)
        if effects.sends or effects.closes or effects.notes:
            self._carry_out(effects)
        for turn_hook in self._watch.on_turn:
            turn_hook(self.view)
        deadline_ms = self.replicator.deadline_ms
        if deadline_ms is not None:
            self._set_alarm(self.node.due_ms(deadline_ms))

    def _carry_out(self, effects: Effects) -> None:
        world, node, watch = self._world, self.node, self._watch
        for note in effects.notes:
            world.counts[note.kind] += 1
            node.observer.note(note)
            for note_hook in watch.on_note:
                note_hook(self.view, note.kind, node.peer_of(note.peer))
        for connection, payload in effects.sends:
            for send_hook in watch.on_send:
                send_hook(self.view, node.peer_of(connection), payload)
            world.network.send(connection, node.name, encode_frame(payload), self.kind.name)
        for connection, _reason in effects.suspects:
            for note_hook in watch.on_note:
                note_hook(self.view, UNSOUND, node.peer_of(connection))
        for connection, reason in effects.closes:
            for close_hook in watch.on_close:
                close_hook(self.view, node.peer_of(connection), reason)
            world.network.close(connection, node.name)

    def _set_alarm(self, due_ms: int) -> None:
        due_ms = max(due_ms, self._world.timeline.now_ms)
        if self._alarm_ms is None or due_ms < self._alarm_ms:
            self._alarm_ms = due_ms
            self._world.timeline.at(due_ms, partial(self._ring, due_ms, self.replicator))

    def _ring(self, due_ms: int, whose: Replicator) -> None:
        """Do what is due, unless another alarm was set since or the process is another one."""
        node = self.node
        if not node.is_up or whose is not self.replicator or due_ms != self._alarm_ms:
            return
        self._alarm_ms = None
        if node.idle_until_ms > self._world.timeline.now_ms:
            self._set_alarm(node.idle_until_ms)
            return
        deadline_ms = self.replicator.deadline_ms
        if deadline_ms is None:
            return
        if deadline_ms <= node.steady_ms():
            self.do("ticks", partial(self.replicator.tick, node.steady_ms()))
            return
        self._set_alarm(node.due_ms(deadline_ms))


class View(ABC):
    """What checkers see of a host, but for what its kind alone knows. It is an `Observed`."""

    def __init__(self, host: SimHost) -> None:
        self.host: Final = host
        self.name: Final = host.node.name

    @property
    def node(self) -> SimNode:
        """The node that it is on."""
        return self.host.node

    @property
    def replica(self) -> Replica:
        """What replicates."""
        return self.host.replica

    @property
    def replicator(self) -> Replicator:
        """What moves its messages."""
        return self.host.replicator

    @property
    def is_up(self) -> bool:
        """Whether the node runs."""
        return self.node.is_up

    @property
    def noticed(self) -> Mapping[str, Mapping[str, object]]:
        """What the node's health says of peers, by their names."""
        return self.node.noticed

    @property
    def buffered_bytes(self) -> int:
        """Most bytes that it holds of a frame that is not whole."""
        return self.host.buffered_bytes

    @property
    def peers_count(self) -> int:
        """Connections that it has."""
        return self.host.connections_count

    @property
    def state(self) -> bytes:
        """What two nodes have in common when they have converged."""
        return self.replica.probe.key

    def admits(self, peer: str) -> bool:
        """Return whether its operator lets it speak to a peer: to anybody by itself."""
        return True

    @property
    def amounts(self) -> Iterable[tuple[str, int, int]]:
        """What the replica itself holds on behalf of peers: nothing by itself."""
        return ()

    @property
    @abstractmethod
    def held(self) -> Collection[bytes]:
        """Names of the parts that its user sees, published or not."""

    @abstractmethod
    def covers(self, name: bytes) -> bool:
        """Return whether its user sees a part that some node held, or what has replaced it."""

    @abstractmethod
    def is_durable(self, name: bytes) -> bool:
        """Return whether a part, or what has replaced it, were there if the power failed now."""

    @abstractmethod
    def told(self, payload: bytes) -> Collection[bytes] | None:
        """Return the names of the parts that rest here by what a message of it says."""


def _is_observed(view: View) -> Observed:
    """Have the type checker see that a view is what checkers look at."""
    return view


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
        kinds: Iterable[Kind],
        *,
        pace: Pace,
        disks: bool,
    ) -> None:
        self.timeline = timeline
        self.network = network
        self.pace = pace
        self.disks = disks
        self.watches: Final = [Watch(kind) for kind in kinds]
        self.keys: dict[str, bytes] = {}
        """Public keys of the nodes, by what they are called: those whom each of them knows."""
        self.owners: set[bytes] = set()
        """All of these keys: those of honest owners."""
        self.counts: Counter[str] = Counter()
        self.on_end: Callable[[SimNode], None] = lambda _node: None
        self.on_failing: Callable[[SimNode], None] = lambda _node: None

    def add(self, node: SimNode) -> None:
        """Take a node in: it admits all others, and checkers look at its replicas."""
        node.admitted.update(self.owners)
        for watch, host in zip(self.watches, node.hosts.values(), strict=True):
            watch.views.append(host.view)


class SimNode:
    """One honest node. It is an `End` of the network."""

    def __init__(
        self,
        name: str,
        world: World,
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
        self.idle_until_ms = 0
        self.is_up = False
        self.observer = Observer()
        self.admitted: Final[set[bytes]] = set()
        """Keys of the members, where only members are spoken to: its operator's to change."""
        self._origin_ms = 0
        self._peers: dict[str, str] = {}  # connection -> who is at its other end
        self.hosts: Final[dict[HostName, SimHost]] = {
            watch.kind.name: SimHost(self, watch) for watch in world.watches
        }
        """Its replicas, by protocol and store id."""

    # --- what others see ----------------------------------------------------------------------

    @property
    def signatures(self) -> dict[bytes, None]:
        """All signatures that it ever made, in order."""
        return self.keys.signatures

    @property
    def replica(self) -> Replica:
        """Its first replica."""
        return self._first.replica

    @property
    def replicator(self) -> Replicator:
        """What moves the messages of its first replica."""
        return self._first.replicator

    @property
    def _first(self) -> SimHost:
        return next(iter(self.hosts.values()))

    @property
    def data(self) -> LatticeReplica:
        """Its lattice."""
        replica = self.hosts[LATTICE].replica
        assert isinstance(replica, LatticeReplica)
        return replica

    @property
    def cursor(self) -> RootLattice:
        """The live value of its lattice: what the node's user reads and writes."""
        return self.data.cursor

    @property
    def store(self) -> Store:
        """Where its lattice is kept."""
        return self.data.store

    @property
    def state(self) -> bytes:
        """What two nodes have in common when they have converged."""
        return b"".join(host.view.state for host in self.hosts.values())

    @property
    def noticed(self) -> dict[str, dict[str, object]]:
        """What its health says of peers, by their names."""
        return self.observer.noticed

    @property
    def is_calm(self) -> bool:
        """Whether it is at work, has greeted every node that is linked, and asks nothing of any."""
        if not self.is_up or self.idle_until_ms > self.world.timeline.now_ms:
            return False
        return all(host.is_calm for host in self.hosts.values())

    def peer_of(self, connection: str) -> str:
        """Return who is at the other end of a connection; nothing if it is over."""
        return self._peers.get(connection, "")

    def knows(self, connection: str) -> bool:
        """Return whether a node is at the other end of a connection."""
        return self.peer_of(connection) in self.world.keys

    # --- its life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Open the replicas and begin to serve, or end again in the attempt."""
        try:
            self._open()
        except SimulatedCrash:
            self.world.timeline.record(self.name, "ends while it opens")
            self.world.on_end(self)
        except Corruption as error:
            raise Violation("durability", f"{self.name} cannot open its store: {error}") from error
        except StoreError as error:
            self.world.timeline.record(self.name, f"cannot open its store: {error.code}")
            self.world.on_end(self)

    def _open(self) -> None:
        world = self.world
        for host in self.hosts.values():
            host.open()
        # A steady clock begins anywhere, and anew with each process.
        self._origin_ms = self.dice.below(1_000_000) - world.timeline.now_ms
        self.observer = Observer(lambda: self.steady_ms() / 1_000)
        self.observer.name_of = lambda id: self._peers.get(id, id)
        self.is_up = True
        world.timeline.record(self.name, "opens", self.state)
        for host in self.hosts.values():
            host.opened()

    def end(self, *, power_failure: bool) -> None:
        """End the process; what its disk keeps is left."""
        if self.is_up:
            self.world.timeline.record(self.name, "ends")
        self.is_up = False
        self.idle_until_ms = 0
        for host in self.hosts.values():
            host.end()
        self._peers.clear()
        self.world.network.die(self.name)
        self.disk.restart(power_failure=power_failure)

    def write(self, dice: Dice) -> None:
        """Have its user change something in each of its replicas."""
        for host in self.hosts.values():
            host.kind.write(self, dice)

    def publish(self) -> bool:
        """Make durable what was written; return whether all of it was acknowledged."""
        published = [host.publish() for host in self.hosts.values() if self.is_up]
        return all(published)

    def admit(self, public_key: bytes, *, is_admitted: bool) -> None:
        """Have its operator admit a peer where only members are spoken to, or no longer."""
        if (public_key in self.admitted) == is_admitted:
            return
        self.admitted.symmetric_difference_update((public_key,))
        for host in self.hosts.values():
            if self.is_up:
                host.look_anew()

    def steady_ms(self) -> int:
        """Return the time of the clock that nobody sets."""
        return self.world.timeline.now_ms + self._origin_ms

    def due_ms(self, steady_ms: int) -> int:
        """Return when the steady clock shows a time, in the time of the simulation."""
        return steady_ms - self._origin_ms

    # --- an end of the network ----------------------------------------------------------------

    def opened(self, connection: str, peer: str, *, outbound: bool) -> None:
        """Take up a connection."""
        self._peers[connection] = peer
        for host in self.hosts.values():
            if self.is_up:
                host.connected(connection, peer, outbound=outbound)

    def arrived(self, connection: str, name: HostName, data: bytes) -> None:
        """Take in bytes of a stream."""
        host = self.hosts.get(name)
        if host is not None:
            host.arrived(connection, data)

    def written(self, connection: str, name: HostName) -> None:
        """Note that a frame has left."""
        self.hosts[name].written(connection)

    def ended(self, connection: str) -> None:
        """Forget a connection."""
        for host in self.hosts.values():
            host.disconnected(connection)
