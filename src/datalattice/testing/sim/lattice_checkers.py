"""Lattice checkers: rules for lattices beyond those for any replica.

They check signatures, completeness of roots, the privacy of `:local`, and evidence of forks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from datalattice.cells import Signed, Value, Vector, encode, references, same, value_hash
from datalattice.crypto import verify
from datalattice.lattice import (
    LOCAL_KEY,
    KeyedLattice,
    assoc_in,
    get_in,
    local_slot,
    replicable,
)
from datalattice.testing.sim.checkers import SimChecker
from datalattice.testing.sim.lattice import (
    LatticeHost,
    contains,
    honest_part,
    owned_entries,
    owned_slots,
)
from datalattice.testing.sim.neutral_checkers import Durability

LOCAL_MARK = b"datalattice-sim-private"
"""In every text that a simulation keeps in `:local`."""


class ForkedDurability(Durability):
    """Acknowledged data is never lost, though an owner may have two histories.

    A value contains another one if merging that in changes nothing, in every lattice. Data that a
    restored or copied node acknowledged may be kept as evidence instead.
    """

    rule = "durability"

    def __init__(self) -> None:
        super().__init__()
        self._nodes: Sequence[LatticeHost] = ()
        self._doubled: set[bytes] = set()  # owners with two histories
        self._witnessed: list[Value] = []  # slots of restored nodes that others had, as roots

    def on_begin(self, nodes: Sequence[LatticeHost]) -> None:
        self._nodes = nodes

    def on_restore(self, node: LatticeHost, nodes: Sequence[LatticeHost]) -> None:
        super().on_restore(node, nodes)
        owner = node.keys.public_key
        self._doubled.add(owner)
        for other in nodes:
            if other.name != node.name and other.is_up:
                # What others had of it must not be lost by the restore.
                seen = honest_part(node.lattice, other.data.announced, {owner})
                self._witnessed.append(seen)

    def on_clone(self, node: LatticeHost) -> None:
        self._doubled.add(node.keys.public_key)

    def at_end(self, nodes: Sequence[LatticeHost], *, settled: bool) -> None:
        super().at_end(nodes, settled=settled)
        for node in nodes if settled else ():
            own = node.data.cursor.get()
            for seen in self._witnessed:
                if not self._holds(node, own, seen):
                    self.fail(f"{node.name} does not have what others had of a restored node")

    def lacking(
        self, node: LatticeHost, names: Collection[bytes], writer: str
    ) -> Collection[bytes]:
        """Return what a writer acknowledged and a node has neither itself nor evidence of."""
        return [name for name in names if not self._has(node, name, writer)]

    def _has(self, node: LatticeHost, name: bytes, writer: str) -> bool:
        known = node.acknowledged(name)
        if node.name != writer:  # its own `:local` is asked of the writer alone
            is_root = isinstance(node.lattice, KeyedLattice)
            known = node.promised(replicable(known) if is_root else known)
        return self._holds(node, node.data.cursor.get(), known)

    def _holds(self, node: LatticeHost, value: Value, known: Value) -> bool:
        """Return whether a root contains another, or evidence of slots with two histories."""
        lattice = node.lattice
        # A join of two logs seems to contain both, so slots with two histories are compared first.
        for path, entry in list(owned_slots(lattice, known)) if self._doubled else ():
            # `:local` is never forked: it has one writer.
            if path[-1] not in self._doubled or path[0] == LOCAL_KEY:
                continue
            slot = get_in(value, path)
            if not (contains(lattice, path, slot, entry) or self._is_evident(path, entry)):
                return False
            # Compared already: the slot counts as contained.
            known = assoc_in(known, path, slot, lattice)
        return same(lattice.merge(value, known), value)

    def _is_evident(self, path: tuple[Value, ...], entry: Value) -> bool:
        """Return whether a node keeps evidence of a branch that contains a slot's state."""
        return any(
            same(Vector.of(record.path), Vector.of(path))
            and contains(node.lattice, path, record.loser, entry)
            for node in self._nodes
            if node.is_up
            for record in node.data.evidence.open
        )


class Authority(SimChecker):
    """Every owner's entry in an honest root is signed by that owner.

    The simulation knows all signatures of its own owners, so a wrong signature check is noticed.
    """

    def __init__(self) -> None:
        self._signed: dict[bytes, Mapping[bytes, None]] = {}
        self._good: set[bytes] = set()

    def on_begin(self, nodes: Sequence[LatticeHost]) -> None:
        self._signed = {node.keys.public_key: node.keys.signatures for node in nodes}

    def on_commit(self, node: LatticeHost) -> None:
        for owner, entry in owned_entries(node.lattice, node.data.announced):
            hash = value_hash(entry)
            if hash in self._good and isinstance(entry, Signed) and entry.public_key == owner:
                continue
            if not isinstance(entry, Signed):
                self.fail(f"{node.name} has an unsigned entry of {owner!r}")
            if isinstance(owner, bytes) and len(owner) == 32 and entry.public_key != owner:
                self.fail(f"{node.name} has an entry of {owner.hex()[:8]} signed by another")
            made = self._signed.get(entry.public_key)
            # The simulation knows every signature of its owners.
            if made is not None and entry.signature not in made:
                self.fail(f"{node.name} has what {entry.public_key.hex()[:8]} never signed")
            if not verify(entry.public_key, entry.signature, entry.message()):
                self.fail(f"{node.name} has a signature that does not verify")
            self._good.add(hash)  # an entry's signature depends on its hash only


class Completeness(SimChecker):
    """A node can serve every cell below what it announces."""

    def __init__(self) -> None:
        self._served: dict[str, set[bytes]] = {}

    def on_open(self, node: LatticeHost) -> None:
        self._served[node.name] = set()
        self.on_commit(node)

    def on_commit(self, node: LatticeHost) -> None:
        served = self._served[node.name]
        top = node.data.views.top("checker").parts
        # Peers may request the announced value by its hash, also if it is embedded.
        names = [part.hash for part in top] or [node.data.announced_hash]
        while names:
            # A cell below served cells was checked with them.
            names = [name for name in dict.fromkeys(names) if name not in served]
            parts = node.data.views.supply(names)
            below: list[bytes] = []
            for name, part in zip(names, parts, strict=True):
                if part is None:
                    self.fail(f"{node.name} announces {name.hex()[:8]} and cannot serve it")
                served.add(name)
                below.extend(references(part.data))
            names = below


class LocalStays(SimChecker):
    """No message contains anything of `:local`, and no cell of it is served by its hash.

    This holds for every cell that `:local` ever had, in any process of a node.
    """

    def __init__(self) -> None:
        self._asked: dict[str, Value] = {}
        self._held: dict[str, dict[bytes, bytes]] = {}  # by node: all that it ever had, by hash

    def on_open(self, node: LatticeHost) -> None:
        self._asked.pop(node.name, None)
        self._expect_none(node, list(self._held.setdefault(node.name, {})))
        self.on_commit(node)

    def on_commit(self, node: LatticeHost) -> None:
        slot = local_slot(node.data.root, node.keys.public_key)
        if slot is self._asked.get(node.name):  # the same slot: nothing new in it
            return
        self._asked[node.name] = slot
        held = self._held[node.name]
        fresh: list[bytes] = []
        front = [] if slot is None else [(value_hash(slot), encode(slot))]
        while front:
            name, data = front.pop()
            if name not in held:
                held[name] = data
                fresh.append(name)
                front += [(ref, node.data.views.load(ref) or b"\0") for ref in references(data)]
        self._expect_none(node, fresh)

    def at_end(self, nodes: Sequence[LatticeHost], *, settled: bool) -> None:
        for node in nodes:
            self._expect_none(node, list(self._held[node.name]))

    def _expect_none(self, node: LatticeHost, names: list[bytes]) -> None:
        for part in node.data.views.supply(names):
            # A cell without the mark may be shared with public data.
            if part is not None and LOCAL_MARK in part.data:
                self.fail(f"{node.name} serves a cell of :local by its hash")

    def on_send(self, node: LatticeHost, peer: str, payload: bytes) -> None:
        if LOCAL_MARK in payload:
            self.fail(f"{node.name} sends what it keeps in :local")
