"""Mesh kit: nodes with a copy of one Weaver store and connections between them, in virtual time.

It has no sockets, threads or disks: a frame is handed over as soon as `carry` runs, unless `lose`
says otherwise. The messages are counted, so that tests can say what an intention costs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Final

from datalattice.clock import Clock
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.engine import Engine, GroupCommit, MemoryEngine
from datalattice.protobuf import read_varint
from datalattice.sync import Pace, Pull, Replicator, Standing
from datalattice.sync.weaver import (
    SEND_LIMITS,
    NewsMessage,
    PeerMessage,
    SendLimits,
    WeaverProtocol,
    WeaverReplica,
)
from datalattice.weaver import STORE_TABLES, Machine, NullMachine, SignedIntention, WeaverStore

MESH_STORE: Final = b"store of a mesh."
"""Id of the store of every mesh."""

LosesFrame = Callable[[int, int, bytes], bool]
"""Whether a frame from one node to another is lost."""


class MeshClock(Clock):
    """The time of a mesh, as milliseconds since its beginning."""

    def __init__(self, mesh: WeaverMesh) -> None:
        self._mesh = mesh

    def now_ms(self) -> int:
        """Return the time of the mesh, from 1,000,000,000 ms on."""
        return 1_000_000_000 + self._mesh.now_ms  # not at zero: a time of 0 is left out of messages


class MeshNode:
    """A node of a mesh: a store, its replica and its replicator.

    admits: the keys that its store admits; at first those of all nodes.
    """

    def __init__(self, mesh: WeaverMesh, number: int, limits: SendLimits, engine: Engine) -> None:
        self.number: Final = number
        self.key: Final = KeyPair(bytes([number + 1]) * 32)
        self.store: Final = WeaverStore(
            GroupCommit(engine), 1, MESH_STORE, mesh.machine(), self.key, MeshClock(mesh)
        )
        self.store.open()
        self.admits: set[bytes] = set(mesh.keys)
        self.replica: Final = WeaverReplica(
            # Seeded by the number: runs repeat.
            self.store,
            lambda: self.admits,
            SeededEntropy(number),
            limits=limits,
        )
        protocol = WeaverProtocol(MESH_STORE, self.replica.gaps)
        self.replicator: Final = Replicator(self.replica, protocol, Pace())
        self.inbox: deque[tuple[str, int, bytes]] = deque()
        self.notes: Counter[str] = Counter()
        self.finished: list[tuple[object, str | None]] = []

    def get(self, hash: bytes) -> SignedIntention | None:
        """Return an intention that is here, witnessed or floating."""
        with self.store.read() as log:
            return log.get(hash)

    def log(self) -> list[bytes]:
        """Return the hashes of the witness log."""
        with self.store.read() as log:
            return [entry.signed.hash for entry in log.entries()]

    @property
    def standings(self) -> dict[bytes, Standing]:
        """The status of its connections, by the key of the peer."""
        return {one.public_key or b"": one for one in self.replicator.standings}


class WeaverMesh:
    """Nodes and connections. Frames are counted by the names of their messages."""

    def __init__(
        self,
        size: int,
        *,
        machine: type[Machine] = NullMachine,
        limits: SendLimits = SEND_LIMITS,
        engine: Callable[[], Engine] = lambda: MemoryEngine(STORE_TABLES),
    ) -> None:
        self.now_ms = 0
        self.machine: Final = machine
        self.keys: Final = [KeyPair(bytes([one + 1]) * 32).public_key for one in range(size)]
        self.nodes: Final = [MeshNode(self, one, limits, engine()) for one in range(size)]
        # By default no frame is lost.
        self.lose: LosesFrame = lambda _sender, _receiver, _payload: False
        self.sent: Counter[str] = Counter()
        self.bytes_sent = 0
        self._links: dict[tuple[int, int], str] = {}
        self._ends: dict[str, tuple[int, int]] = {}
        self._connections = 0

    # --- connections --------------------------------------------------------------------------

    def connect(self, dialler: int, other: int) -> None:
        self.cut(dialler, other)  # one connection for each pair
        self._connections += 1
        connection = f"link {self._connections}"
        self._links[min(dialler, other), max(dialler, other)] = connection
        self._ends[connection] = (dialler, other)
        # The other side first: the dialler's first frame must find it.
        for node, peer in ((other, dialler), (dialler, other)):
            self.nodes[node].replicator.open(
                connection, self.now_ms, outbound=node == dialler, public_key=self.keys[peer]
            )

    def cut(self, one: int, other: int) -> None:
        """End the connection of two nodes, with the frames that are on the way."""
        connection = self._links.pop((min(one, other), max(one, other)), None)
        if connection is not None:
            del self._ends[connection]
            for node in (one, other):
                self.nodes[node].replicator.closed(connection, self.now_ms)

    def isolate(self, node: int) -> None:
        for other in range(len(self.nodes)):
            self.cut(node, other)

    def connect_all(self, nodes: Iterable[int] | None = None) -> None:
        """Connect every two of the nodes, and let them compare."""
        for one, other in combinations(range(len(self.nodes)) if nodes is None else nodes, 2):
            self.connect(one, other)
        self.pass_time(1_000)  # a second: comparisons after meeting have ended

    # --- work and time ------------------------------------------------------------------------

    def write(self, node: int, payload: bytes) -> bytes:
        """Have a node submit a payload, and push it; return its hash."""
        hash = self.nodes[node].store.submit(payload)
        self.publish(node)
        return hash

    def publish(self, node: int) -> None:
        """Push what a node has written, and carry frames."""
        self.nodes[node].replicator.publish(self.now_ms)
        self.carry()

    def reconcile(self, node: int, peer: int) -> None:
        """Begin a comparison with a peer, as a user may."""
        connection = self._links[min(node, peer), max(node, peer)]
        self.nodes[node].replicator.pull(connection, Pull(peer), self.now_ms)
        self.carry()

    def carry(self) -> None:
        """Deliver frames until no node sends any."""
        while sum(map(self._post, self.nodes)):  # every node posts before any frame is read
            for node in self.nodes:
                while node.inbox:
                    connection, _, payload = node.inbox.popleft()
                    if connection in self._ends:
                        node.replicator.receive(connection, payload, self.now_ms)

    def _post(self, node: MeshNode) -> bool:
        """Put what a node sends into the inboxes; return whether there was anything."""
        effects = node.replicator.take_effects()
        node.notes.update({one.kind: one.count for one in effects.notes})
        node.finished += effects.finished
        for connection, payload in effects.sends:
            # Sent at once: there is no buffer to wait for.
            node.replicator.written(connection, 1, self.now_ms)
            if connection not in self._ends:
                continue
            dialler, other = self._ends[connection]
            receiver = other if node.number == dialler else dialler
            self.sent[message_name(payload)] += 1
            self.bytes_sent += len(payload)
            if not self.lose(node.number, receiver, payload):
                self.nodes[receiver].inbox.append((connection, node.number, payload))
        for connection, _ in effects.closes:
            if connection in self._ends:
                self.cut(*self._ends[connection])
        return bool(effects.sends or effects.closes)

    def pass_time(self, ms: int) -> None:
        """Let time pass, and do what is due."""
        end_ms = self.now_ms + ms
        self.carry()
        while self.now_ms < end_ms:
            times = (node.replicator.deadline_ms for node in self.nodes)
            due_ms = min((one for one in times if one is not None), default=end_ms)
            # At least a millisecond: a deadline in the past must not stop time.
            self.now_ms = min(end_ms, max(self.now_ms + 1, due_ms))
            for node in self.nodes:
                node.replicator.tick(self.now_ms)
            self.carry()

    # --- results ------------------------------------------------------------------------------

    def is_equal(self, nodes: Iterable[int] | None = None) -> bool:
        """Return whether the logs of the nodes have the same set of intentions."""
        chosen = range(len(self.nodes)) if nodes is None else nodes
        return len({self.nodes[one].replica.probe.key for one in chosen}) == 1


def message_name(payload: bytes) -> str:
    """Return what a frame is: `news`, the field of its `PeerMessage`, or `refusal`.

    News are `news` with intentions, `announcement` with hashes alone, else `statement`.
    """
    exchange, at = read_varint(payload, 0)
    if exchange == 0:
        news = NewsMessage.decode(payload[at:])
        if news.intentions:
            return "news"
        return "announcement" if news.announced else "statement"
    message = PeerMessage.decode(payload[at:])
    # An empty message refuses the exchange.
    return next((name for name, body in vars(message).items() if body is not None), "refusal")
