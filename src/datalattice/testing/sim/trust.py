"""Trust: rules that attacks must not break, and the list of all checkers for lattices."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from datalattice.cells import (
    Fact,
    Facts,
    Signed,
    Value,
    check_cell,
    encode,
    novelty,
    references,
    value_hash,
)
from datalattice.errors import BadFormat, MissingData
from datalattice.lattice import (
    BAD_SIGNATURE,
    ENTRY_DROPPED,
    MALFORMED,
    MISMATCHED,
    NOT_OWNER,
    SECTION_DROPPED,
    TOO_COSTLY,
    SignedLattice,
    Walk,
    is_greater,
)
from datalattice.sync import (
    GOODBYE,
    QUOTA_EXCEEDED,
    UNSOUND_CELLS,
    VALUE_REFUSED,
    EvidenceLimits,
    ForkRecord,
)
from datalattice.testing.sim.checkers import SimChecker
from datalattice.testing.sim.lattice import LatticeHost, owned_slots
from datalattice.testing.sim.lattice_checkers import (
    Authority,
    Completeness,
    ForkedDurability,
    LocalStays,
)
from datalattice.testing.sim.neutral_checkers import (
    AdmittedOnly,
    BoundedMemory,
    Convergence,
    SentIsDurable,
)

_REFUSALS: Final = frozenset(
    {
        BAD_SIGNATURE,
        ENTRY_DROPPED,
        MALFORMED,
        MISMATCHED,
        NOT_OWNER,
        QUOTA_EXCEEDED,
        VALUE_REFUSED,
        SECTION_DROPPED,
        TOO_COSTLY,
        UNSOUND_CELLS,
    }
)
"""Notes of data that a node refused from a peer."""

LEAVES: Final = (GOODBYE, "the peer refused")
"""Beginnings of the reasons of connections that the peer ended."""

TICKS_TURN_MAX: Final = 200_000
"""Most cost of merges in one step: about 0.2 s. A wanted peer has a credit of 60,000 for each value
here, and one message may complete several values."""


class Soundness(SimChecker):
    """Every announced value is well formed across its cells."""

    def __init__(self) -> None:
        self._facts = _KnownSound()

    def on_commit(self, node: LatticeHost) -> None:
        known = self._facts
        load = node.data.views.load
        top = encode(node.data.announced)
        stack: list[tuple[bytes, bytes, bool]] = [(node.data.announced_hash, top, False)]
        while stack:
            name, encoding, is_below_done = stack.pop()
            if is_below_done:
                try:  # from the leaves up: a cell needs the facts below it
                    known.facts[name] = check_cell(encoding, known)
                except BadFormat as error:
                    self.fail(f"{node.name} announces {name.hex()[:8]}, and it is unsound: {error}")
            elif name not in known.facts:
                stack.append((name, encoding, True))
                for below in references(encoding):
                    found = None if below in known.facts else load(below)
                    if found is not None:
                        stack.append((below, found, False))


class _KnownSound(Facts):
    """Facts of all checked cells."""

    def __init__(self) -> None:
        self.facts: dict[bytes, Fact] = {}

    def of(self, hash: bytes) -> Fact:
        if hash not in self.facts:
            raise MissingData([hash])
        return self.facts[hash]


class Ranks(SimChecker):
    """The rank of an owner's slot never falls on a node, unless its disk was restored."""

    def __init__(self) -> None:
        self._slots: dict[str, dict[bytes, Signed]] = {}
        self._greater: dict[tuple[bytes, bytes], bool] = {}

    def on_restore(self, node: LatticeHost, nodes: Sequence[LatticeHost]) -> None:
        self._slots.pop(node.name, None)  # an old disk may hold lesser values

    def on_commit(self, node: LatticeHost) -> None:
        held = self._slots.setdefault(node.name, {})
        for path, entry in owned_slots(node.lattice, node.data.announced):
            if not isinstance(entry, Signed):
                continue
            place = b"".join(value_hash(key) for key in path)
            before = held.get(place)
            held[place] = entry
            if before is None or value_hash(before) == value_hash(entry):
                continue
            pair = value_hash(before), value_hash(entry)
            if pair not in self._greater:  # each pair is compared once
                self._greater[pair] = self._rises(node, path, before, entry)
            if not self._greater[pair]:
                self.fail(f"{node.name} took a lesser value at {path}")

    def _rises(self, node: LatticeHost, path: tuple[Value, ...], old: Signed, new: Signed) -> bool:
        lattice = node.lattice.path(*path)
        if not isinstance(lattice, SignedLattice) or not lattice.inner.has_order():
            return True  # unsigned slots and lattices without an order have no rank
        hashes = value_hash(new), value_hash(old)
        return is_greater(lattice.inner, new.value, hashes[0], old.value, hashes[1], Walk())


class BoundedWork(SimChecker):
    """One step of a node costs a bounded number of ticks, whatever arrived."""

    def __init__(self, ticks_max: int = TICKS_TURN_MAX) -> None:
        self._max = ticks_max
        self._before: dict[str, int] = {}
        self.most = 0
        """The greatest cost of a step so far."""

    def on_open(self, node: LatticeHost) -> None:
        self._before[node.name] = node.ticks

    def on_turn(self, node: LatticeHost) -> None:
        paid = node.ticks - self._before.get(node.name, 0)
        self._before[node.name] = node.ticks
        self.most = max(self.most, paid)
        if paid > self._max:
            self.fail(
                f"{node.name} paid {paid} ticks in one turn, {self._max} at most are expected"
            )


class BoundedEvidence(SimChecker):
    """Evidence of forks stays within its limits, except that of a node's own owners."""

    def __init__(self, limits: EvidenceLimits) -> None:
        self._limits = limits
        self._seen: dict[str, Sequence[ForkRecord]] = {}

    def on_commit(self, node: LatticeHost) -> None:
        evidence, limits = node.data.evidence, self._limits
        records = evidence.open
        if records is self._seen.get(node.name):  # the same records object: nothing changed
            return
        self._seen[node.name] = records
        slots: dict[bytes, int] = {}
        owners: dict[bytes, int] = {}
        for one in records:
            if evidence.is_mine(one.owner):  # own owners' forks have no limit
                continue
            place = b"".join(value_hash(key) for key in one.path)
            owner = value_hash(one.owner)
            slots[place] = slots.get(place, 0) + 1
            # Count and bytes in one number.
            owners[owner] = owners.get(owner, 0) + (1 << 32) + max(one.bytes, 0)
        self._bound(node, "branches of a slot", slots.values(), limits.records_per_slot)
        # The first two branches of an owner are always kept.
        sizes = [n & 0xFFFFFFFF for n in owners.values() if n >> 32 > 2]
        self._bound(node, "bytes of an owner's branches", sizes, limits.bytes_per_owner)
        # A watched owner's fork may exceed the node's bounds.
        strangers = [one for one in records if not evidence.is_watched(one.owner)]
        if strangers:
            self._bound(node, "branches", [len(records)], limits.records)
            total = sum(max(one.bytes, 0) for one in records)
            self._bound(node, "bytes of branches", [total], limits.bytes)

    def _bound(self, node: LatticeHost, what: str, amounts: Collection[int], most: int) -> None:
        worst = max(amounts, default=0)
        if worst > most:
            self.fail(f"{node.name} keeps {worst} {what}, at most {most} are allowed")


class Blame(SimChecker):
    """No honest node is blamed for unsound data: honest nodes never have any."""

    def __init__(self) -> None:
        self._nodes: Sequence[LatticeHost] = ()

    def on_begin(self, nodes: Sequence[LatticeHost]) -> None:
        self._nodes = nodes

    def on_note(self, node: LatticeHost, kind: str, peer: str) -> None:
        # Malformed data of an honest node would be this node's mistake.
        if kind in (UNSOUND_CELLS, MALFORMED) and any(one.name == peer for one in self._nodes):
            self.fail(f"{node.name} blames {peer} for {kind}")


class Named(SimChecker):
    """The health of a node names every stranger from which it refused data, and says why."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._refused: dict[str, dict[str, set[str]]] = {}  # by node: peers, for what

    def on_begin(self, nodes: Sequence[LatticeHost]) -> None:
        self._known.update(node.name for node in nodes)

    def on_clone(self, node: LatticeHost) -> None:
        self._known.add(node.name)

    def on_open(self, node: LatticeHost) -> None:
        self._refused[node.name] = {}

    def on_note(self, node: LatticeHost, kind: str, peer: str) -> None:
        if kind in _REFUSALS:
            self._remember(node, peer, kind)

    def on_close(self, node: LatticeHost, peer: str, reason: str) -> None:
        if not reason.startswith(LEAVES):  # who left by himself was not refused
            self._remember(node, peer, "")

    def _remember(self, node: LatticeHost, peer: str, kind: str) -> None:
        if peer and peer not in self._known:  # honest nodes and their copies are no strangers
            self._refused[node.name].setdefault(peer, set()).add(kind)

    def at_rest(self, nodes: Sequence[LatticeHost]) -> None:
        for node in nodes:
            noticed = node.noticed
            for peer, kinds in self._refused[node.name].items():
                said = noticed.get(peer, {})
                words = said.get("kinds", ())
                assert isinstance(words, Collection)
                # Each kind of refusal must be named.
                lacking = sorted(kind for kind in kinds if kind and kind not in words)
                is_cut = "" in kinds and not any(word.startswith("closed-") for word in words)
                if lacking or is_cut or not said.get("text"):
                    self.fail(f"{node.name} refused {peer} {sorted(kinds)} and says {said}")


class BoundedHosting(SimChecker):
    """No stranger stores more on a node than its policy allows."""

    def __init__(self) -> None:
        self._sizes: dict[bytes, int] = {}

    def on_commit(self, node: LatticeHost) -> None:
        policy = node.policy
        if policy is None:
            return
        found: dict[Value, int] = {}
        for path, entry in owned_slots(node.lattice, node.data.announced):
            owner = path[-1]
            # Allowed owners have no quota.
            if isinstance(owner, bytes) and owner.hex() not in policy.allow:
                found[owner] = found.get(owner, 0) + self._size(entry)
        for owner, size in found.items():
            if size > policy.owner_bytes:
                self.fail(f"{node.name} hosts {size} bytes of {owner!r}: {policy.owner_bytes}")
        if sum(found.values()) > policy.strangers_bytes:
            self.fail(f"{node.name} hosts {sum(found.values())} bytes of strangers")

    def _size(self, slot: Value) -> int:
        name = value_hash(slot)
        size = self._sizes.get(name)
        if size is None:
            # The slot's cells, embedded values apart.
            size = self._sizes[name] = sum(len(cell) for _, cell, _ in novelty(slot))
        return size


def standard_checkers(limits: EvidenceLimits | None = None) -> list[SimChecker]:
    """Return new checkers of all that holds for lattices.

    limits: of the evidence that the nodes keep.
    """
    return [
        Convergence(),
        ForkedDurability(),
        SentIsDurable(),
        AdmittedOnly(),
        Authority(),
        Completeness(),
        LocalStays(),
        BoundedMemory(),
        Soundness(),
        Ranks(),
        BoundedWork(),
        BoundedEvidence(limits or EvidenceLimits()),
        BoundedHosting(),
        Blame(),
        Named(),
    ]
