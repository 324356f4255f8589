"""Regions: the standard root of a node's data, section by section, and what of it leaves the node.

An application adds its section with `register_section` when it is imported; `datalattice.apps`
registers those that come with this package.

`:local` belongs to the node. It is never sent and never accepted: both go through `replicable`.
"""

from __future__ import annotations

from typing import Final

from datalattice.cells import Index, Keyword, Map, Signed, Value, Vector, same
from datalattice.crypto import KeyPair
from datalattice.errors import BadSignature, TypeMismatch, UsageError
from datalattice.lattice.base import Lattice
from datalattice.lattice.containers import MapLattice, need_lattice
from datalattice.lattice.content import DataLattice
from datalattice.lattice.context import MergeContext, OwnerForked, QueueForked, Report
from datalattice.lattice.identity import verify_did
from datalattice.lattice.keyed import KeyedLattice
from datalattice.lattice.owned import OwnerLattice
from datalattice.lattice.paths import assoc_in, get_in
from datalattice.lattice.values import TIMESTAMP, LWWLattice

DATA_KEY: Final = Keyword("data")
LOCAL_KEY: Final = Keyword("local")
NODES_KEY: Final = Keyword("nodes")
P2P_KEY: Final = Keyword("p2p")

LOCAL: Final = OwnerLattice(MapLattice(LWWLattice()))
"""`:local`: what a node keeps for itself, a Map of last-write registers for each of its keys.

Source: CAD024 "Root layout"; docs/lattices.md "Standard root".
"""

P2P: Final = KeyedLattice({NODES_KEY: OwnerLattice(LWWLattice())})
"""`:p2p`: how nodes say where they are reached.

Source: CAD024 "Root layout"; docs/lattices.md "Standard root".
"""


_DATA: Final = DataLattice()
_SECTIONS: Final[dict[Keyword, Lattice]] = {}


def register_section(key: Keyword, lattice: Lattice, *, ordered: bool = True) -> None:
    """Add a section to every root lattice made from now on.

    Registering the same lattice again changes nothing. Below an owner a lattice needs an order, so
    that all nodes choose alike between values that fork; with `ordered=False` one without is taken,
    and nodes that hold no key of the owner may then go on exchanging such values for ever.

    Raises: UsageError: the key has another lattice already; or a lattice below an owner has no
            order. TypeMismatch: not a Keyword, not a Lattice.
    Source: CAD024 "Root layout"; docs/lattices.md "Standard root";
            docs/design/forks.md "The order".
    """
    if not isinstance(key, Keyword):
        raise TypeMismatch(f"the key of a section is a Keyword, got {type(key).__name__}")
    need_lattice(lattice, f"the section {key.text()}")
    found = _unordered(lattice) if ordered else None
    if found is not None:
        raise UsageError(
            f"the section {key.text()} has {found!r} below an owner, which has no order between "
            "values that fork: give it `has_order` and `latest`, or pass ordered=False"
        )
    known = _standard().get(key, _SECTIONS.get(key))
    if known is lattice:
        return
    if known is not None:
        raise UsageError(f"the section {key.text()} is taken by {known!r}")
    _SECTIONS[key] = lattice


def _unordered(lattice: Lattice) -> Lattice | None:
    """Return a lattice below an owner that has no order, nil when all have one."""
    waiting = [lattice]
    while waiting:
        found = waiting.pop()
        for inner in found.within():
            if isinstance(found, OwnerLattice) and not inner.has_order():
                return inner
            waiting.append(inner)
    return None


def root_lattice() -> KeyedLattice:
    """Return the lattice of a node's whole data: the standard sections and those registered so far.

    Source: CAD024 "Root layout"; docs/lattices.md "Standard root".
    """
    return KeyedLattice({**_standard(), **_SECTIONS})


def _standard() -> dict[Keyword, Lattice]:
    return {DATA_KEY: _DATA, LOCAL_KEY: LOCAL, P2P_KEY: P2P}


def root_contains(root: Value, other: Value) -> bool:
    """Return whether `root` has all that the root `other` has.

    Then a merge of the two is `root`, and no owner's value or queue forked. A section without a
    lattice has to be equal. What is no Index of sections has nothing to be contained.
    Cost:   a merge of what differs.
    Source: docs/lattices.md "Standard root".
    """
    if not isinstance(other, Index):
        return True
    if not isinstance(root, Index):
        return False
    lattice = root_lattice()
    for key, value in other.entries():
        is_known = lattice.child(key) is not None
        if not is_known and not (key in root and same(root.get(key), value)):
            return False
    forks: list[Report] = []

    def note(report: Report) -> None:
        # A fork keeps one of two values: what the other one has is not in it.
        if isinstance(report, (OwnerForked, QueueForked)):
            forks.append(report)

    merged = lattice.merge(root, other, MergeContext(verifier=verify_did, report=note))
    return same(merged, root) and not forks


def replicable(root: Value) -> Value:
    """Return a root value without `:local`.

    What may be sent, and what is left of what was received.

    The same object where there is none.
    Source: docs/design/decisions.md "D6".
    """
    return root.remove(LOCAL_KEY) if isinstance(root, Index) and LOCAL_KEY in root else root


def local_slot(root: Value, owner: bytes) -> Value:
    """Return the Signed cell in the `:local` slot of `owner`, nil when there is none.

    Source: CAD024 "Local lattice"; docs/lattices.md "Standard root".
    """
    return get_in(root, [LOCAL_KEY, owner])


def local_value(root: Value, owner: bytes, key: Keyword | None = None) -> Value:
    """Return the value in the `:local` slot of `owner`, or what it has under one `key`.

    Nil when there is none.

    Raises: BadSignature: the slot is not signed by `owner`.
    Source: CAD024 "Local lattice"; docs/lattices.md "Standard root";
            docs/design/decisions.md "D-SC".
    """
    slot = local_slot(root, owner)
    if slot is None:
        return None
    if not isinstance(slot, Signed) or slot.public_key != owner or not slot.verify():
        raise BadSignature(
            f"the :local slot of 0x{owner.hex()} does not hold what this owner signed"
        )
    return slot.value if key is None else get_in(slot.value, [key])


def set_local(root: Value, key_pair: KeyPair, value: Value) -> Value:
    """Return the root with `value`, whole and signed, in the `:local` slot of the key.

    Source: CAD024 "Local lattice"; docs/lattices.md "Standard root".
    """
    signed = Signed.sign(key_pair, value)
    return assoc_in(root, [LOCAL_KEY, key_pair.public_key], signed, root_lattice())


def node_info(
    timestamp: int,
    transports: list[str],
    kind: str,
    version: str,
    regions: list[str] | None = None,
) -> Map:
    """Return what a node announces of itself under `:p2p :nodes`.

    Shapes: a Map with `:timestamp`, `:transports` (URIs), `:type`, `:version`, and `:regions` when
            there are any.
    Units:  timestamp in Unix milliseconds.
    Source: CAD024 "P2P lattice"; docs/lattices.md "Standard root".
    """
    fields: list[tuple[Value, Value]] = [
        (TIMESTAMP, timestamp),
        (Keyword("transports"), Vector.of(transports)),
        (Keyword("type"), kind),
        (Keyword("version"), version),
    ]
    if regions:
        fields.append((Keyword("regions"), Vector.of(regions)))
    return Map.of(fields)
