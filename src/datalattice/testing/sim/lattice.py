"""Lattice: the lattice as a kind of replica of a simulation, over a store on the node's disk."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from datalattice.cells import Value, Work, value_hash
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import EMPTY_CONTEXT, KeyedLattice, Lattice, MergeContext
from datalattice.limits import CHARGE_LIMITS, WORK_LIMITS
from datalattice.store import CellStore, MemoryStore, Store
from datalattice.sync import (
    CLAIMS_MAX,
    MADE_MAX,
    STAGED_BYTES_MAX,
    Charges,
    Dialect,
    EvidenceLimits,
    HostingPolicy,
    LatticeProtocol,
    LatticeReplica,
    Replica,
    UnsignedPolicy,
    WireProtocol,
)
from datalattice.testing.sim.lattice_checkers import ObservedLattice, honest_part
from datalattice.testing.sim.network import LATTICE
from datalattice.testing.sim.node import (
    MESSAGE_BYTES_MAX,
    Kind,
    Ledger,
    SimHost,
    SimNode,
    View,
    Workload,
)

FOLDER: Final = "store"
SEGMENT_BYTES: Final = 65_536
RECENT_ENTRIES: Final = 400
"""Small, so that every part of the store's work comes up in a short run."""

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


class _Lattices(Ledger):
    """What the lattices of all nodes of a simulation share.

    hosting: whether nodes limit what strangers may have on them.
    values:  what the names stand for that were held somewhere.
    """

    def __init__(self, lattice: Lattice, *, hosting: bool) -> None:
        self.lattice = lattice
        self.hosting = hosting
        self.values: dict[bytes, Value] = {}
        self._memory: dict[str, Store] = {}

    def open(self, node: SimNode) -> tuple[Replica, WireProtocol]:
        """Return a lattice over what a node has, and what speaks for it."""
        host = node.hosts[LATTICE]

        def sync(value: Value) -> Value:
            host.publish()
            return value

        lattice = self.lattice
        if isinstance(lattice, KeyedLattice):
            lattice = Metered(lattice)
        replica = LatticeReplica(
            self._store(node),
            lattice,
            MergeContext(key_pair=node.keys),
            sync,
            hosting=self.policy(node),
            clock=node.clock,
            evidence_limits=EVIDENCE_LIMITS,
            frame_max=MESSAGE_BYTES_MAX,
            charges=Charges(node.clock, CHARGES, WORK),
        )
        dialect, pace = Dialect(message_bytes_max=MESSAGE_BYTES_MAX), node.world.pace
        return replica, LatticeProtocol(node.clock, dialect, pace, node.keys, node.dice)

    def _store(self, node: SimNode) -> Store:
        if not node.world.disks:
            return self._memory.setdefault(node.name, MemoryStore())
        return CellStore.open(
            FOLDER,
            disk=node.disk,
            entropy=node.dice,
            segment_bytes=SEGMENT_BYTES,
            recent_entries=RECENT_ENTRIES,
        )

    def policy(self, node: SimNode) -> HostingPolicy | None:
        """Return whose data a node takes; None: all."""
        if not self.hosting:
            return None
        return HostingPolicy(
            allow=tuple(sorted(owner.hex() for owner in node.world.owners)),
            owner_bytes=OWNER_BYTES,
            strangers_bytes=STRANGERS_BYTES,
            reserve_bytes=0,
            unsigned={"data": UnsignedPolicy(strangers_bytes=STRANGERS_BYTES)},
        )

    def introduce(self, node: SimNode, connection: str, peer: str) -> None:
        """Name nodes as wanted peers: operators name one another's nodes."""
        known = peer in node.world.keys
        node.data.intake.introduce(connection, peer, is_wanted=known, is_known=known)

    def leave(self, node: SimNode, connection: str) -> None:
        """Take note that a connection has ended."""
        node.data.intake.leave(connection)


class LatticeView(View):
    """What checkers see of a lattice. A part is a whole value, named by its hash."""

    def __init__(self, host: SimHost, shared: _Lattices) -> None:
        super().__init__(host)
        self._shared = shared

    @property
    def keys(self) -> KeyPair:
        """The key that the node signs with."""
        return self.node.keys

    @property
    def signatures(self) -> Mapping[bytes, None]:
        """All signatures that the node ever made, in order."""
        return self.node.keys.signatures

    @property
    def lattice(self) -> Lattice:
        """The lattice that is replicated."""
        return self._shared.lattice

    @property
    def data(self) -> LatticeReplica:
        """What holds its value."""
        assert isinstance(self.replica, LatticeReplica)
        return self.replica

    @property
    def cursor(self) -> RootLattice:
        """The live value: what the node's user reads and writes."""
        return self.data.cursor

    @property
    def state(self) -> bytes:
        """What two nodes have in common when they have converged."""
        if self._takes_all:
            return self.data.announced_hash
        return value_hash(self.promised(self.data.announced))

    def promised(self, root: Value) -> Value:
        """Return what every honest node has of a root in the end."""
        owners = self.node.world.owners
        return root if self._takes_all else honest_part(self.lattice, root, owners)

    @property
    def _takes_all(self) -> bool:
        """Whether strangers' slots become equal, too.

        Where they have quotas each node hosts what it met first, and what costs too much to merge
        with the one state of a slot may be cheap to merge with another.
        """
        return not (self._shared.hosting or self.node.world.counts["too-costly"])

    @property
    def policy(self) -> HostingPolicy | None:
        """Whose data it takes; None: all."""
        return self._shared.policy(self.node)

    @property
    def ticks(self) -> int:
        """What merges of foreign data have paid since the node was opened."""
        lattice = self.data.lattice
        return lattice.ticks if isinstance(lattice, Metered) else 0

    @property
    def amounts(self) -> Iterable[tuple[str, int, int]]:
        """Bound values that wait for cells, bytes of cells above gaps, cells made by cutting."""
        replica = self.data
        yield "incomplete values", replica.intake.count, CLAIMS_MAX * max(1, self.peers_count)
        yield "staged bytes", replica.intake.gaps_bytes, STAGED_BYTES_MAX
        yield "made cells", replica.views.made_count, 2 * MADE_MAX

    @property
    def held(self) -> Collection[bytes]:
        """The name of the live value."""
        value = self.cursor.get()
        name = value_hash(value)
        self._shared.values[name] = value
        return (name,)

    def acknowledged(self, name: bytes) -> Value:
        """Return the value that a name among `held` stood for, on any node."""
        return self._shared.values[name]

    def covers(self, name: bytes) -> bool:
        """Return whether merging a value in changes nothing."""
        own = self.cursor.get()
        return value_hash(self.lattice.merge(own, self.acknowledged(name))) == value_hash(own)

    def is_durable(self, name: bytes) -> bool:
        """Return whether the value that is announced is that of the store."""
        data = self.data
        return name == data.announced_hash and data.store.root_hash() == value_hash(data.root)

    def told(self, payload: bytes) -> Collection[bytes] | None:
        """Return the name of what is announced: all messages rest on it."""
        return (self.data.announced_hash,)


def lattice_kind(
    lattice: Lattice,
    write: Workload,
    checkers: Callable[[], list[Any]],
    *,
    hosting: bool = False,
) -> Kind:
    """Return lattices as a kind of replica.

    hosting: whether nodes limit what strangers may have on them.
    """
    shared = _Lattices(lattice, hosting=hosting)
    return Kind(
        LATTICE,
        shared.open,
        write,
        lambda host: LatticeView(host, shared),
        checkers,
        ledger=shared,
        is_plain=True,
    )


def _is_observed(view: LatticeView) -> ObservedLattice:
    """Have the type checker see that a view is what checkers look at."""
    return view
