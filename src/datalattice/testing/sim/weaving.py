"""Weaving: Weaver stores as a kind of replica of a simulation, in a journal on each disk.

Every node has a copy of two key-value stores, one below the other. A node writes as an author of
its own; one whose disk was replaced by an old copy goes on as another author, as a node does that
was restored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from functools import partial
from typing import Final

from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.engine import GroupCommit, MemoryEngine
from datalattice.protobuf import read_varint
from datalattice.sync import Replica, WireProtocol
from datalattice.sync.reconcile import HASH_END, HASH_START, SKETCH_LIMITS
from datalattice.sync.weaver import (
    GRAFT_MS,
    WEAVER_PROTOCOL,
    NewsMessage,
    PeerMessage,
    WeaverProtocol,
    WeaverReplica,
)
from datalattice.testing.dice import Dice
from datalattice.testing.disk import SimDisk
from datalattice.testing.journal import JournalEngine
from datalattice.testing.sim.network import HostName
from datalattice.testing.sim.neutral_checkers import neutral_checkers
from datalattice.testing.sim.node import KindWatch, ReplicaKind, SimHost, SimNode
from datalattice.testing.sim.weaverattacks import WeaverAttacker
from datalattice.weaver import (
    STORE_TABLES,
    DeleteRequest,
    KvMachine,
    PutRequest,
    SignedIntention,
    WeaverStore,
)

TEAM: Final[HostName] = (WEAVER_PROTOCOL, b"simulated store.")
CHILD: Final[HostName] = (WEAVER_PROTOCOL, b"a store below it")
"""A store below the other one, whose peers it shares."""

_KEYS: Final = 12  # few, so that writes conflict
"""Keys that all users write to, so that many writes are concurrent."""

DELETES: Final = 0.15


SIM_SKETCHES: Final = SKETCH_LIMITS._replace(items_min=8)
"""The sets of a simulation are small; some are compared by sketches all the same."""


class SimWeaverReplica(WeaverReplica):
    """A replica whose user's writes are made when they are published.

    A simulation counts the steps of a disk while a replica works, not while a user thinks.
    """

    def __init__(self, host: WeaverHost, store: WeaverStore) -> None:
        entropy = SeededEntropy(host.node.dice.bits())
        super().__init__(store, host.peers, entropy, sketches=SIM_SKETCHES)
        self.store: Final = store
        self.planned: Final[list[tuple[bytes, bytes | None]]] = []

    def publish(self) -> bool:
        while self.planned:
            # Removed only once it is durable: a crash leaves it planned.
            key, value = self.planned[0]
            if value is None:
                self.store.execute("Delete", DeleteRequest(key=key))
            else:
                self.store.execute("Put", PutRequest(key=key, value=value))
            del self.planned[0]
        return super().publish()


def weave(name: HostName, node: SimNode, dice: Dice) -> None:
    """Plan to put or delete one of the keys of a store."""
    replica = node.hosts[name].replica
    assert isinstance(replica, SimWeaverReplica)
    key = b"key %d" % dice.below(_KEYS)
    value = None if dice.chance(DELETES) else b"%s %d" % (node.name.encode(), dice.bits())
    replica.planned.append((key, value))


class WeaverHost(SimHost):
    """A copy of a store on a node. The name of a part is the hash of its intention.

    authors: the keys that nodes of the simulation have written under.
    parent:  the store whose peers it has.
    """

    def __init__(
        self,
        node: SimNode,
        watch: KindWatch,
        authors: set[bytes],
        parent: HostName | None = None,
    ) -> None:
        super().__init__(node, watch)
        self._authors = authors
        self._parent = parent
        self._store_id = watch.kind.name[1]
        self._folder = f"weaver {self._store_id.decode()}"
        self._disk: SimDisk | None = None
        self._lives = 0

    def make(self) -> tuple[Replica, WireProtocol]:
        if self._disk is not self.node.disk:  # another disk, or an old copy of it
            self._disk = self.node.disk
            self._lives += 1
        seed = hashlib.sha256(f"{self.node.name} {self._lives}".encode()).digest()
        key = KeyPair(seed)
        self._authors.add(key.public_key)
        engine = (
            JournalEngine(self.node.disk, self._folder, STORE_TABLES)
            if self.node.world.disks
            else MemoryEngine(STORE_TABLES)
        )
        commits = GroupCommit(engine)
        store = WeaverStore(commits, 1, self._store_id, KvMachine(), key, self.node.clock)
        store.open()
        replica = SimWeaverReplica(self, store)
        return replica, WeaverProtocol(self._store_id, replica.gaps)

    def peers(self) -> set[bytes]:
        """Return the nodes that the operator admits, every author, and hostile members."""
        if self._parent is not None:
            parent = self.node.hosts[self._parent]
            assert isinstance(parent, WeaverHost)
            return parent.peers()
        # Histories of former authors must spread.
        return self.node.admitted | self._authors | set(self.node.world.attackers.values())

    def readmit(self) -> None:
        """Apply a changed list of admitted peers, as a node does after an event of its stores."""
        if self.is_up:
            assert isinstance(self.replica, SimWeaverReplica)
            self.replica.peers_changed()
        super().readmit()

    @property
    def _store(self) -> WeaverStore:
        assert isinstance(self.replica, SimWeaverReplica)
        return self.replica.store

    @property
    def state(self) -> bytes:
        """The log as a set, and every row that the machine made of it."""
        digest = hashlib.sha256(self.replica.probe.key)
        with self._store.read() as view:
            for key, value in view.data.scan():
                digest.update(b"%d %d " % (len(key), len(value)) + key + value)
        return digest.digest()

    @property
    def held(self) -> Collection[bytes]:
        with self._store.read() as view:
            return frozenset(view.iter_hashes(HASH_START, HASH_END))

    def lacking(self, names: Collection[bytes]) -> Collection[bytes]:
        # One pass over the log: this is called at every acknowledgement, with all names.
        return frozenset(names).difference(self.held)

    def is_durable(self, name: bytes) -> bool:
        if not self.node.world.disks:
            return True
        # The journal names each intention by its bytes.
        return name in (self.node.disk.durable(f"{self._folder}/journal") or b"")

    def told(self, payload: bytes) -> Collection[bytes] | None:
        """Return the hashes of the intentions that a message has or lists; None: it has none."""
        exchange, at = read_varint(payload, 0)
        if exchange == 0:
            news = NewsMessage.decode(payload[at:])
            return [
                *[SignedIntention.decode(one).hash for one in news.intentions],
                *news.announced,
            ]
        message = PeerMessage.decode(payload[at:])
        if message.intention_response is not None:
            envelopes = message.intention_response.intentions
            return [SignedIntention.decode(one).hash for one in envelopes] or None
        if message.reconcile_payload is not None:
            return list(_listed(message))
        return None

    def admits(self, peer: str) -> bool:
        world = self.node.world
        return peer in world.attackers or world.keys.get(peer) in self.node.admitted


def _listed(message: PeerMessage) -> Iterator[bytes]:
    assert message.reconcile_payload is not None
    for one in message.reconcile_payload.messages:
        items = one.items_request or one.items_reply
        if items is not None:
            yield from items.hashes


def weaver_kinds() -> list[ReplicaKind]:
    """Return two Weaver stores, one below the other, as kinds of replica."""
    authors: set[bytes] = set()
    return [
        ReplicaKind(
            name,
            partial(WeaverHost, authors=authors, parent=parent),
            partial(weave, name),
            neutral_checkers,
            attacker=WeaverAttacker,
            # Where the tree of gossip was broken, the next hop is the announcement and a fetch.
            hop_ms=2 * GRAFT_MS,
        )
        for name, parent in ((TEAM, None), (CHILD, TEAM))
    ]
