"""Checkers: what must hold in every simulation, each a small object that is told what happens.

A checker overrides the hooks it needs and calls `fail`. Those given to a `Simulation` replace the
standard ones; `standard_checkers()` makes those anew for each run, as they remember things.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NoReturn, Protocol

from datalattice.cells import (
    Index,
    Map,
    Signed,
    Value,
    Vector,
    encode,
    references,
    same,
    value_hash,
)
from datalattice.crypto import KeyPair, verify
from datalattice.lattice import (
    LOCAL_KEY,
    KeyedLattice,
    Lattice,
    MergeContext,
    OwnerForked,
    OwnerLattice,
    Report,
    assoc_in,
    get_in,
    local_slot,
    replicable,
)
from datalattice.sync import (
    CLAIMS_MAX,
    MADE_MAX,
    STAGED_BYTES_MAX,
    UNSENT_MAX,
    HostingPolicy,
    LatticeReplica,
    Replica,
    Replicator,
)

LOCAL_MARK = b"datalattice-sim-private"
"""In every text that a simulation keeps in `:local`."""


TURNS_PER_LOOK = 7
"""Memory is measured after one turn of a node in so many."""


class Violation(Exception):
    """Something that must hold does not. `rule` names it."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule
        self.text = text


class Observed(Protocol):
    """What a checker sees of an honest node that is up."""

    @property
    def name(self) -> str:
        """What the node is called."""
        ...

    @property
    def keys(self) -> KeyPair:
        """The key that it signs with."""
        ...

    @property
    def signatures(self) -> Mapping[bytes, None]:
        """All signatures that it ever made, in order."""
        ...

    @property
    def lattice(self) -> Lattice:
        """The lattice that is replicated."""
        ...

    def promised(self, root: Value) -> Value:
        """Return what every honest node has of a root in the end."""
        ...

    @property
    def replica(self) -> Replica:
        """What it replicates."""
        ...

    @property
    def data(self) -> LatticeReplica:
        """The replica of a node that replicates a lattice."""
        ...

    @property
    def state(self) -> bytes:
        """What two nodes have in common when they have converged."""
        ...

    @property
    def replicator(self) -> Replicator:
        """What moves its messages."""
        ...

    @property
    def is_up(self) -> bool:
        """Whether it runs."""
        ...

    @property
    def ticks(self) -> int:
        """What merges of foreign data have paid since the node was opened."""
        ...

    @property
    def noticed(self) -> Mapping[str, Mapping[str, object]]:
        """What its health says of peers, by their names."""
        ...

    @property
    def policy(self) -> HostingPolicy | None:
        """Whose data it takes; None: all."""
        ...

    @property
    def buffered_bytes(self) -> int:
        """Most bytes that it holds of a frame that is not whole."""
        ...

    @property
    def peers_count(self) -> int:
        """Connections that it has."""
        ...


class Checker:
    """Told what happens; every hook does nothing by itself."""

    def fail(self, text: str) -> NoReturn:
        """End the run.

        Raises: Violation: always.
        """
        raise Violation(type(self).__name__.lower(), text)

    def on_begin(self, nodes: Sequence[Observed]) -> None:
        """Note which nodes there will be; none is open yet."""

    def on_open(self, node: Observed) -> None:
        """Look at a node that has opened its store, at the beginning or after it ended."""

    def on_restore(self, node: Observed, nodes: Sequence[Observed]) -> None:
        """Note that a node has ended and will open an old copy of its disk; `nodes` are all."""

    def on_clone(self, node: Observed) -> None:
        """Note that a node is about to open a copy of the disk of another one with its key."""

    def on_ack(self, node: Observed, value: Value) -> None:
        """Note that a node told its user that `value` is durable."""

    def on_commit(self, node: Observed) -> None:
        """Look at a node that announces another value than before."""

    def on_send(self, node: Observed, payload: bytes) -> None:
        """Look at a message that a node sends."""

    def on_note(self, node: Observed, kind: str, peer: str) -> None:
        """Note what a node has counted and logged, and whom it names."""

    def on_close(self, node: Observed, peer: str, reason: str) -> None:
        """Note that a node parts with a peer."""

    def on_turn(self, node: Observed) -> None:
        """Look at a node that has done something."""

    def at_rest(self, nodes: Sequence[Observed]) -> None:
        """Look at the nodes that run when all is done, before their last restart."""

    def at_end(self, nodes: Sequence[Observed], *, settled: bool) -> None:
        """Look at the end. `settled`: faults had stopped, so that all must be equal."""


class Convergence(Checker):
    """When faults have stopped, all nodes announce the same."""

    def at_end(self, nodes: Sequence[Observed], *, settled: bool) -> None:
        """Compare what is announced."""
        if settled and len({node.state for node in nodes}) > 1:
            told = ", ".join(f"{node.name} {node.state.hex()[:8]}" for node in nodes)
            self.fail(f"different states at the end: {told}")


class Durability(Checker):
    """What was acknowledged is in the store after every crash, and at the end on every node.

    A value is contained in another one when merging it in changes nothing: that holds in every
    lattice, so nothing need be known of the data.
    """

    def __init__(self) -> None:
        self._acknowledged: dict[str, Value] = {}
        self._nodes: Sequence[Observed] = ()
        self._doubled: set[bytes] = set()  # owners with two histories
        self._witnessed: list[Value] = []  # slots of restored nodes that others had, as roots

    def on_begin(self, nodes: Sequence[Observed]) -> None:
        """Know where evidence may be."""
        self._nodes = nodes

    def on_restore(self, node: Observed, nodes: Sequence[Observed]) -> None:
        """Expect of what it acknowledged what others have seen; the rest was on its disk alone."""
        self._acknowledged.pop(node.name, None)
        owner = node.keys.public_key
        self._doubled.add(owner)
        for other in nodes:
            if other.name != node.name and other.is_up:
                seen = honest_part(node.lattice, other.data.announced, {owner})
                self._witnessed.append(seen)

    def on_clone(self, node: Observed) -> None:
        """Expect two histories."""
        self._doubled.add(node.keys.public_key)

    def on_ack(self, node: Observed, value: Value) -> None:
        """Remember the last value: it contains those before it."""
        self._check(node, node.name, value)
        self._acknowledged[node.name] = value

    def on_open(self, node: Observed) -> None:
        """Look for what this node acknowledged in what it has read from its disk."""
        self._check(node, node.name, node.data.cursor.get())

    def at_end(self, nodes: Sequence[Observed], *, settled: bool) -> None:
        """Look for what every node acknowledged on every node."""
        for node in nodes:
            own = node.data.cursor.get()
            for name in self._acknowledged if settled else (node.name,):
                self._check(node, name, own)
            for seen in self._witnessed if settled else ():
                if not self._holds(node, own, seen):
                    self.fail(f"{node.name} does not have what others had of a restored node")

    def _check(self, node: Observed, writer: str, value: Value) -> None:
        known = self._acknowledged.get(writer)
        if known is None:
            return
        if node.name != writer:
            known = node.promised(_public(known, node.lattice))
        if not self._holds(node, value, known):
            self.fail(f"{node.name} does not have what {writer} acknowledged")

    def _holds(self, node: Observed, value: Value, known: Value) -> bool:
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


class Authority(Checker):
    """Nothing in an honest root stands under an owner who did not sign it.

    For the owners that the simulation runs it is known what they signed, so a signature check that
    is wrong itself does not pass either.
    """

    def __init__(self) -> None:
        self._signed: dict[bytes, Mapping[bytes, None]] = {}
        self._good: set[bytes] = set()

    def on_begin(self, nodes: Sequence[Observed]) -> None:
        """Know whom to expect."""
        self._signed = {node.keys.public_key: node.signatures for node in nodes}

    def on_commit(self, node: Observed) -> None:
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


Path = tuple[Value, ...]


def owned_entries(lattice: Lattice, value: Value) -> Iterator[tuple[Value, Value]]:
    """Yield (owner, entry) of every owner map that sections of `value` lead to."""
    for path, entry in owned_slots(lattice, value):
        yield path[-1], entry


def owned_slots(lattice: Lattice, value: Value, path: Path = ()) -> Iterator[tuple[Path, Value]]:
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
    """Return a root with the slots of these owners alone, and with all that nobody signs."""
    if isinstance(lattice, OwnerLattice) and isinstance(value, Map):
        kept = Map.of([(owner, entry) for owner, entry in value.items() if owner in owners])
        return kept if len(kept) else None
    if isinstance(lattice, KeyedLattice) and isinstance(value, Index):
        parts = []
        for key, below in value.items():
            child = lattice.child(key)
            part = below if child is None else honest_part(child, below, owners)
            if part is not None:
                parts.append((key, part))
        return Index.of(parts) if parts else None
    return value


def contains(lattice: Lattice, path: Path, slot: Value, entry: Value) -> bool:
    """Return whether an owner's slot has all that another state of it has, log records included."""
    below = lattice.path(*path)
    if below is None or slot is None:
        return False
    reports: list[Report] = []
    context = MergeContext(path=path, owner=path[-1], report=reports.append)
    is_kept = same(below.merge(slot, entry, context), slot)
    return is_kept and not any(isinstance(one, OwnerForked) for one in reports)


class Completeness(Checker):
    """A node can serve every cell below what it announces."""

    def __init__(self) -> None:
        self._served: dict[str, set[bytes]] = {}

    def on_open(self, node: Observed) -> None:
        """Believe nothing of what was served before a crash."""
        self._served[node.name] = set()
        self.on_commit(node)

    def on_commit(self, node: Observed) -> None:
        """Ask for every cell that was not asked for before."""
        served = self._served[node.name]
        top = node.data.begin("checker").parts
        # The announced value may be asked for by its hash even where it has no cell of its own.
        names = [part.hash for part in top] or [node.data.announced_hash]
        while names:
            names = [name for name in dict.fromkeys(names) if name not in served]
            parts = node.data.supply(names)
            below: list[bytes] = []
            for name, part in zip(names, parts, strict=True):
                if part is None:
                    self.fail(f"{node.name} announces {name.hex()[:8]} and cannot serve it")
                served.add(name)
                below.extend(references(part.data))
            names = below


class LocalStays(Checker):
    """No message carries anything of `:local`, and nobody is given its cells by their hashes.

    That holds for all that `:local` ever had, in any process of a node.
    """

    def __init__(self) -> None:
        self._asked: dict[str, Value] = {}
        self._held: dict[str, dict[bytes, bytes]] = {}  # by node: all that it ever had, by hash

    def on_open(self, node: Observed) -> None:
        """Ask a new process for what the earlier ones had."""
        self._asked.pop(node.name, None)
        self._expect_none(node, list(self._held.setdefault(node.name, {})))
        self.on_commit(node)

    def on_commit(self, node: Observed) -> None:
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
                front += [(ref, node.data.load_encoding(ref) or b"\0") for ref in references(data)]
        self._expect_none(node, fresh)

    def at_end(self, nodes: Sequence[Observed], *, settled: bool) -> None:
        """Ask once more for all that `:local` ever had."""
        for node in nodes:
            self._expect_none(node, list(self._held[node.name]))

    def _expect_none(self, node: Observed, names: list[bytes]) -> None:
        for part in node.data.supply(names):
            if part is not None and LOCAL_MARK in part.data:
                self.fail(f"{node.name} gives a cell of :local to whoever has its hash")

    def on_send(self, node: Observed, payload: bytes) -> None:
        """Look for the mark."""
        if LOCAL_MARK in payload:
            self.fail(f"{node.name} sends what it keeps in :local")


class BoundedMemory(Checker):
    """What peers make a node hold stays under named bounds.

    Per peer: values that wait for cells, parts wanted for them, requests, frames not yet written,
    bytes of unfinished frames. Together: bytes of cells above gaps, cells made by cutting.
    """

    def __init__(
        self, *, wants: int = 20_000, requests: int = 64, frame_bytes: int = 1_300_000
    ) -> None:
        self._wants = wants
        self._requests = requests
        self._frame_bytes = frame_bytes
        self._turns = 0

    def on_turn(self, node: Observed) -> None:
        """Measure, now and then."""
        self._turns += 1
        if self._turns % TURNS_PER_LOOK:
            return
        replica, replicator, peers = node.replica, node.replicator, max(1, node.peers_count)
        if isinstance(replica, LatticeReplica):
            self._bound(node, "incomplete values", replica.missing_count, CLAIMS_MAX * peers)
            self._bound(node, "staged bytes", replica._incomplete.size_bytes, STAGED_BYTES_MAX)
            self._bound(node, "made cells", len(replica._made), 2 * MADE_MAX)
        self._bound(node, "wanted parts", replicator.missing_count, self._wants * peers)
        self._bound(node, "bytes of a frame", node.buffered_bytes, self._frame_bytes)
        self._bound(node, "partners", len(replicator._partners), peers)
        for partner in replicator._partners.values():
            self._bound(node, "open requests", partner.conversation.pending_count, self._requests)
            self._bound(node, "unwritten frames", partner.unsent_count, 4 * UNSENT_MAX)

    def _bound(self, node: Observed, what: str, amount: int, most: int) -> None:
        if amount > most:
            self.fail(f"{node.name} holds {amount} {what}, at most {most} are expected")
