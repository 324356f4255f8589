"""Lattice: the lattice as a kind of replica of a simulation, in a store on the node's disk."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, Final

from datalattice.cells import Index, Map, Value, Work, same, value_hash
from datalattice.lattice import (
    EMPTY_CONTEXT,
    KeyedLattice,
    Lattice,
    MergeContext,
    MergeNotice,
    OwnerForked,
    OwnerLattice,
    ValuePath,
)
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
from datalattice.testing.sim.network import LATTICE_HOST
from datalattice.testing.sim.node import (
    SIM_MESSAGE_BYTES_MAX,
    KindWatch,
    ReplicaKind,
    SimHost,
    SimNode,
    Workload,
)

_FOLDER: Final = "store"
_SEGMENT_BYTES: Final = 65_536
RECENT_ENTRIES: Final = 400
"""Small, so that a short run uses every part of the store."""

EVIDENCE_LIMITS: Final = EvidenceLimits(
    records_per_slot=4, bytes_per_owner=60_000, records=24, bytes=240_000
)
"""Small, so that equivocating peers reach them."""

_OWNER_BYTES: Final = 24_000
_STRANGERS_BYTES: Final = 60_000
"""Where hosting is limited: quotas of one stranger, and of all together. Bombs are smaller."""

WORK: Final = WORK_LIMITS._replace(start=2_000)
CHARGES: Final = CHARGE_LIMITS._replace(per_s=62_500, credit=10_000, wanted_credit=60_000)
"""A quarter of the product's limits on the cost of merges, so that bombs exceed them sooner."""


class MeteredLattice(KeyedLattice):
    """A root that sums the cost of its merges in `ticks`."""

    def __init__(self, lattice: KeyedLattice) -> None:
        super().__init__(lattice.children())
        self.ticks = 0

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        work = context.work or Work()
        before = work.spent
        try:
            return super().merge(own, other, context)
        finally:
            self.ticks += work.spent - before  # also of a merge that raises


class SharedLattice:
    """Shared by the hosts of one lattice in a simulation.

    hosting: whether nodes limit what strangers may store on them.
    values:  the values that were held anywhere, by their names.
    """

    def __init__(self, lattice: Lattice, *, hosting: bool) -> None:
        self.lattice = lattice
        self.hosting = hosting
        self.values: dict[bytes, Value] = {}
        self.memory: dict[str, Store] = {}  # without disks the store outlives the process


class LatticeHost(SimHost):
    """A lattice on a node. Its only part is the live value, named by its hash."""

    def __init__(self, node: SimNode, watch: KindWatch, shared: SharedLattice) -> None:
        super().__init__(node, watch)
        self._shared = shared
        self.lattice: Final = shared.lattice
        self.keys: Final = node.keys

    def make(self) -> tuple[Replica, WireProtocol]:
        node = self.node

        def sync(value: Value) -> Value:
            self.publish()
            return value

        lattice = self.lattice
        if isinstance(lattice, KeyedLattice):
            lattice = MeteredLattice(lattice)  # only a root can count
        replica = LatticeReplica(
            self._store(),
            lattice,
            MergeContext(key_pair=node.keys),
            sync,  # a sync of the user's cursor is a publish
            hosting=self.policy,
            clock=node.clock,
            evidence_limits=EVIDENCE_LIMITS,
            frame_max=SIM_MESSAGE_BYTES_MAX,
            charges=Charges(node.clock, CHARGES, WORK),
        )
        dialect, pace = Dialect(message_bytes_max=SIM_MESSAGE_BYTES_MAX), node.world.pace
        return replica, LatticeProtocol(node.clock, dialect, pace, node.keys, node.dice)

    def _store(self) -> Store:
        node = self.node
        if not node.world.disks:
            return self._shared.memory.setdefault(node.name, MemoryStore())
        return CellStore.open(
            _FOLDER,
            disk=node.disk,
            entropy=node.dice,
            segment_bytes=_SEGMENT_BYTES,
            recent_entries=RECENT_ENTRIES,
        )

    @property
    def policy(self) -> HostingPolicy | None:
        """Whose data the node stores; None: everyone's."""
        if not self._shared.hosting:
            return None  # without hosting everything is taken
        return HostingPolicy(
            # Honest owners have no quota.
            allow=tuple(sorted(owner.hex() for owner in self.node.world.owners)),
            owner_bytes=_OWNER_BYTES,
            strangers_bytes=_STRANGERS_BYTES,
            reserve_bytes=0,
            unsigned={"data": UnsignedPolicy(strangers_bytes=_STRANGERS_BYTES)},
        )

    def introduce(self, connection: str, peer: str) -> None:
        known = peer in self.node.world.keys  # honest nodes are wanted, strangers are not
        self.data.charges.introduce(connection, peer, is_wanted=known, is_known=known)

    def leave(self, connection: str) -> None:
        self.data.charges.leave(connection)

    # --- what checkers see --------------------------------------------------------------------

    @property
    def data(self) -> LatticeReplica:
        assert isinstance(self.replica, LatticeReplica)
        return self.replica

    @property
    def state(self) -> bytes:
        if self._takes_all:  # the whole root must be equal
            return self.data.announced_hash
        return value_hash(self.promised(self.data.announced))

    def promised(self, root: Value) -> Value:
        """Return the part of a root that every honest node has in the end."""
        owners = self.node.world.owners
        return root if self._takes_all else honest_part(self.lattice, root, owners)

    @property
    def _takes_all(self) -> bool:
        # With quotas each node stores what came first; and a state that costs too much to merge
        # into one slot may be cheap to merge into another node's.
        return not (self._shared.hosting or self.node.world.counts["too-costly"])

    @property
    def ticks(self) -> int:
        """Cost of merges of foreign data since the node was opened."""
        lattice = self.data.lattice
        return lattice.ticks if isinstance(lattice, MeteredLattice) else 0

    @property
    def amounts(self) -> Iterable[tuple[str, int, int]]:
        replica = self.data
        yield "incomplete values", replica.intake.count, CLAIMS_MAX * max(1, self.peers_count)
        yield "staged bytes", replica.intake.gaps_bytes, STAGED_BYTES_MAX
        yield "made cells", replica.views.made_count, 2 * MADE_MAX

    @property
    def held(self) -> Collection[bytes]:
        value = self.data.cursor.get()
        name = value_hash(value)
        self._shared.values[name] = value  # kept, so that checkers can compare it later
        return (name,)

    def acknowledged(self, name: bytes) -> Value:
        """Return the value that a name among `held` stood for, on any node."""
        return self._shared.values[name]

    def lacking(self, names: Collection[bytes]) -> Collection[bytes]:
        """Return the names of values that would change something if they were merged in."""
        own = self.data.cursor.get()
        merged = {name: self.lattice.merge(own, self.acknowledged(name)) for name in names}
        return [name for name, value in merged.items() if value_hash(value) != value_hash(own)]

    def is_durable(self, name: bytes) -> bool:
        data = self.data
        # Announced and committed: the root on the disk is the live one.
        return name == data.announced_hash and data.store.root_hash() == value_hash(data.root)

    def told(self, payload: bytes) -> Collection[bytes] | None:
        """Return the name of the announced value, on which all messages rest."""
        return (self.data.announced_hash,)


def lattice_kind(
    lattice: Lattice,
    write: Workload,
    checkers: Callable[[], list[Any]],
    *,
    hosting: bool = False,
) -> ReplicaKind:
    """Return a lattice as a kind of replica.

    hosting: whether nodes limit what strangers may store on them.
    """
    host = partial(LatticeHost, shared=SharedLattice(lattice, hosting=hosting))
    return ReplicaKind(LATTICE_HOST, host, write, checkers, is_plain=True)


def owned_entries(lattice: Lattice, value: Value) -> Iterator[tuple[Value, Value]]:
    """Yield (owner, entry) of every owner map that sections of `value` lead to."""
    for path, entry in owned_slots(lattice, value):
        yield path[-1], entry


def owned_slots(
    lattice: Lattice, value: Value, path: ValuePath = ()
) -> Iterator[tuple[ValuePath, Value]]:
    """Yield (path, entry) of every owner's slot that sections of `value` lead to."""
    if isinstance(lattice, OwnerLattice):
        if isinstance(value, Map):
            for owner, entry in value.items():
                yield (*path, owner), entry
    elif isinstance(lattice, KeyedLattice) and isinstance(value, Index):
        for key, below in value.items():
            child = lattice.child(key)
            if child is not None:
                yield from owned_slots(child, below, (*path, key))


def honest_part(lattice: Lattice, value: Value, owners: Collection[Value]) -> Value:
    """Return a root with the slots of these owners only, and all unsigned data."""
    if isinstance(lattice, OwnerLattice) and isinstance(value, Map):
        kept = Map.of([(owner, entry) for owner, entry in value.items() if owner in owners])
        return kept if len(kept) else None  # an empty part is left out, as the root itself does
    if isinstance(lattice, KeyedLattice) and isinstance(value, Index):
        parts = []
        for key, below in value.items():
            child = lattice.child(key)
            part = below if child is None else honest_part(child, below, owners)
            if part is not None:
                parts.append((key, part))
        return Index.of(parts) if parts else None
    return value


def contains(lattice: Lattice, path: ValuePath, slot: Value, entry: Value) -> bool:
    """Return whether a slot's state contains another state of it, log records included."""
    below = lattice.path(*path)
    if below is None or slot is None:
        return False
    reports: list[MergeNotice] = []
    context = MergeContext(path=path, owner=path[-1], report=reports.append)
    # Kept, and no branch of it was given up.
    is_kept = same(below.merge(slot, entry, context), slot)
    return is_kept and not any(isinstance(one, OwnerForked) for one in reports)
