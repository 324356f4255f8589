"""Lattice checkers: what holds for lattices beyond what holds for any replica.

Who signed what, which cells go with a root, what stays at home, and where a second history of an
owner is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from datalattice.cells import Signed, Value, Vector, encode, references, same, value_hash
from datalattice.crypto import verify
from datalattice.lattice import (
    LOCAL_KEY,
    KeyedLattice,
    Lattice,
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
    """What was acknowledged is never lost, though an owner may have two histories.

    A value is contained in another one when merging it in changes nothing: that holds in every
    lattice, so nothing need be known of the data. What a restored or copied node acknowledged may
    be kept as evidence instead.
    """

    rule = "durability"

    def __init__(self) -> None:
        super().__init__()
        self._nodes: Sequence[LatticeHost] = ()
        self._doubled: set[bytes] = set()  # owners with two histories
        self._witnessed: list[Value] = []  # slots of restored nodes that others had, as roots

    def on_begin(self, nodes: Sequence[LatticeHost]) -> None:
        """Know where evidence may be."""
        self._nodes = nodes

    def on_restore(self, node: LatticeHost, nodes: Sequence[LatticeHost]) -> None:
        """Expect of what it acknowledged what others have seen; the rest was on its disk alone."""
        super().on_restore(node, nodes)
        owner = node.keys.public_key
        self._doubled.add(owner)
        for other in nodes:
            if other.name != node.name and other.is_up:
                seen = honest_part(node.lattice, other.data.announced, {owner})
                self._witnessed.append(seen)

    def on_clone(self, node: LatticeHost) -> None:
        """Expect two histories."""
        self._doubled.add(node.keys.public_key)

    def at_end(self, nodes: Sequence[LatticeHost], *, settled: bool) -> None:
        """Look for what was acknowledged, and for what others had of a restored node."""
        super().at_end(nodes, settled=settled)
        for node in nodes if settled else ():
            own = node.data.cursor.get()
            for seen in self._witnessed:
                if not self._holds(node, own, seen):
                    self.fail(f"{node.name} does not have what others had of a restored node")

    def covers(self, node: LatticeHost, name: bytes, writer: str) -> bool:
        """Return whether a node has what another one acknowledged, or evidence of it."""
        known = node.acknowledged(name)
        if node.name != writer:
            known = node.promised(_public(known, node.lattice))
        return self._holds(node, node.data.cursor.get(), known)

    def _holds(self, node: LatticeHost, value: Value, known: Value) -> bool:
        """Return whether a root has what another one has, slots with two histories in evidence."""
        lattice = node.lattice
        # A join of two logs looks as if it had both, so slots with two histories come first.
        for path, entry in list(owned_slots(lattice, known)) if self._doubled else ():
            if path[-1] not in self._doubled or path[0] == LOCAL_KEY:
                continue
            slot = get_in(value, path)
            if not (contains(lattice, path, slot, entry) or self._is_evident(path, entry)):
                return False
            known = assoc_in(known, path, slot, lattice)
        return same(lattice.merge(value, known), value)

    def _is_evident(self, path: tuple[Value, ...], entry: Value) -> bool:
        """Return whether a node keeps evidence of a branch that has what a slot had."""
        return any(
            same(Vector.of(record.path), Vector.of(path))
            and contains(node.lattice, path, record.loser, entry)
            for node in self._nodes
            if node.is_up
            for record in node.data.evidence.open
        )


def _public(value: Value, lattice: Lattice) -> Value:
    return replicable(value) if isinstance(lattice, KeyedLattice) else value


class Authority(SimChecker):
    """Nothing in an honest root stands under an owner who did not sign it.

    For the owners that the simulation runs it is known what they signed, so a signature check that
    is wrong itself does not pass either.
    """

    def __init__(self) -> None:
        self._signed: dict[bytes, Mapping[bytes, None]] = {}
        self._good: set[bytes] = set()

    def on_begin(self, nodes: Sequence[LatticeHost]) -> None:
        """Know whom to expect."""
        self._signed = {node.keys.public_key: node.keys.signatures for node in nodes}

    def on_commit(self, node: LatticeHost) -> None:
        """Check all owners' entries."""
        for owner, entry in owned_entries(node.lattice, node.data.announced):
            hash = value_hash(entry)
            if hash in self._good and isinstance(entry, Signed) and entry.public_key == owner:
                continue
            if not isinstance(entry, Signed):
                self.fail(f"{node.name} has an unsigned entry of {owner!r}")
            if isinstance(owner, bytes) and len(owner) == 32 and entry.public_key != owner:
                self.fail(f"{node.name} has an entry of {owner.hex()[:8]} signed by another")
            made = self._signed.get(entry.public_key)
            if made is not None and entry.signature not in made:
                self.fail(f"{node.name} has what {entry.public_key.hex()[:8]} never signed")
            if not verify(entry.public_key, entry.signature, entry.message()):
                self.fail(f"{node.name} has a signature that does not verify")
            self._good.add(hash)


class Completeness(SimChecker):
    """A node can serve every cell below what it announces."""

    def __init__(self) -> None:
        self._served: dict[str, set[bytes]] = {}

    def on_open(self, node: LatticeHost) -> None:
        """Believe nothing of what was served before a crash."""
        self._served[node.name] = set()
        self.on_commit(node)

    def on_commit(self, node: LatticeHost) -> None:
        """Ask for every cell that was not asked for before."""
        served = self._served[node.name]
        top = node.data.views.top("checker").parts
        # The announced value may be asked for by its hash even where it has no cell of its own.
        names = [part.hash for part in top] or [node.data.announced_hash]
        while names:
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
    """No message carries anything of `:local`, and nobody is given its cells by their hashes.

    That holds for all that `:local` ever had, in any process of a node.
    """

    def __init__(self) -> None:
        self._asked: dict[str, Value] = {}
        self._held: dict[str, dict[bytes, bytes]] = {}  # by node: all that it ever had, by hash

    def on_open(self, node: LatticeHost) -> None:
        """Ask a new process for what the earlier ones had."""
        self._asked.pop(node.name, None)
        self._expect_none(node, list(self._held.setdefault(node.name, {})))
        self.on_commit(node)

    def on_commit(self, node: LatticeHost) -> None:
        """Ask for the cells of a new `:local`, as who has learnt their hashes would."""
        slot = local_slot(node.data.root, node.keys.public_key)
        if slot is self._asked.get(node.name):
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
        """Ask once more for all that `:local` ever had."""
        for node in nodes:
            self._expect_none(node, list(self._held[node.name]))

    def _expect_none(self, node: LatticeHost, names: list[bytes]) -> None:
        for part in node.data.views.supply(names):
            if part is not None and LOCAL_MARK in part.data:
                self.fail(f"{node.name} gives a cell of :local to whoever has its hash")

    def on_send(self, node: LatticeHost, peer: str, payload: bytes) -> None:
        """Look for the mark."""
        if LOCAL_MARK in payload:
            self.fail(f"{node.name} sends what it keeps in :local")
