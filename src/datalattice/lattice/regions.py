"""Regions: the sections of a node's standard root, and which of them are replicated.

An application adds its section with `register_section` on import; `datalattice.apps` registers the
sections of this package. `:local` belongs to the node: it is never sent and never accepted, and
`replicable` removes it in both directions.

Source: CAD024 "P2P lattice", "Local lattice", "Root layout"; docs/lattices.md "Standard root";
    docs/design/decisions.md "D-SC", "D6"; docs/design/forks.md "The order".
"""

from __future__ import annotations

from functools import cache
from typing import Final

from datalattice.cells import Index, Keyword, Map, Signed, Value, Vector, same
from datalattice.crypto import KeyPair
from datalattice.errors import BadSignature, TypeMismatch, UsageError
from datalattice.lattice.base import Lattice
from datalattice.lattice.containers import MapLattice, need_lattice
from datalattice.lattice.content import DataLattice
from datalattice.lattice.context import MergeContext, MergeNotice, OwnerForked, QueueForked
from datalattice.lattice.identity import verify_did
from datalattice.lattice.keyed import KeyedLattice
from datalattice.lattice.owned import OwnerLattice
from datalattice.lattice.paths import assoc_in, get_in
from datalattice.lattice.values import TIMESTAMP, LWWLattice

DATA_KEY: Final = Keyword("data")
LOCAL_KEY: Final = Keyword("local")
NODES_KEY: Final = Keyword("nodes")
P2P_KEY: Final = Keyword("p2p")

LOCAL_LATTICE: Final = OwnerLattice(MapLattice(LWWLattice()))
"""`:local`: a node's private data, a Map of last-write-wins registers for each of its keys."""

P2P: Final = KeyedLattice({NODES_KEY: OwnerLattice(LWWLattice())})
"""`:p2p`: the addresses that nodes announce."""

_DATA: Final = DataLattice()
_SECTIONS: Final[dict[Keyword, Lattice]] = {}


def register_section(key: Keyword, lattice: Lattice, *, ordered: bool = True) -> None:
    """Add a section to every root lattice created from now on.

    Registering the same lattice again changes nothing. A lattice below an owner needs an order, so
    that all nodes choose alike between forked values. `ordered=False` accepts one without; nodes
    that hold no key of the owner may then exchange forked values without end.

    Raises: UsageError: the key has another lattice already, or a lattice below an owner has no
            order. TypeMismatch: not a Keyword, not a Lattice.
    """
    if not isinstance(key, Keyword):
        raise TypeMismatch(f"the key of a section is not a Keyword: {type(key).__name__}")
    need_lattice(lattice, f"the section {key.text()}")
    found = _unordered(lattice) if ordered else None
    if found is not None:
        raise UsageError(
            f"the section {key.text()} has {found!r} below an owner, which has no order between "
            "forked values: implement `has_order` and `latest`, or pass ordered=False"
        )
    known = _standard().get(key, _SECTIONS.get(key))
    # A module may be imported twice under test: the same lattice again changes nothing.
    if known is lattice:
        return
    if known is not None:
        raise UsageError(f"the section {key.text()} already has the lattice {known!r}")
    _SECTIONS[key] = lattice
    # Roots made from now on have the section; those made before do not.
    root_lattice.cache_clear()


def _unordered(lattice: Lattice) -> Lattice | None:
    """Return a lattice below an owner that has no order, or None."""
    waiting = [lattice]
    while waiting:
        found = waiting.pop()
        for inner in found.within():
            # "Every third party chooses alike" (docs/design/forks.md "The order") needs a total
            # order.
            if isinstance(found, OwnerLattice) and not inner.has_order():
                return inner
            waiting.append(inner)
    return None


@cache
def root_lattice() -> KeyedLattice:
    """Return the lattice of a node's root: the standard sections and those registered so far."""
    return KeyedLattice({**_standard(), **_SECTIONS})


def _standard() -> dict[Keyword, Lattice]:
    return {DATA_KEY: _DATA, LOCAL_KEY: LOCAL_LATTICE, P2P_KEY: P2P}


def root_contains(root: Value, other: Value) -> bool:
    """Return whether the root `root` contains all data of the root `other`.

    It does if their merge is `root` and nothing forks. Sections without a lattice must be equal. An
    `other` that is not an Index of sections counts as empty.
    Cost:   a merge of the difference.
    """
    # An empty or malformed root has no sections, and nothing to lose.
    if not isinstance(other, Index):
        return True
    if not isinstance(root, Index):
        return False
    lattice = root_lattice()
    for key, value in other.entries():
        is_known = lattice.child(key) is not None
        # Without a lattice nothing can be merged, so only equality proves that nothing is lost.
        if not is_known and not (key in root and same(root.get(key), value)):
            return False
    # A merge that leaves one of two values out may still return `root` itself.
    forks: list[MergeNotice] = []

    def note(report: MergeNotice) -> None:
        # A fork keeps one of two values, so the other value is not contained.
        if isinstance(report, (OwnerForked, QueueForked)):
            forks.append(report)

    merged = lattice.merge(root, other, MergeContext(verifier=verify_did, report=note))
    # Nothing of `other` was missing: the merge changed nothing and left nothing out.
    return same(merged, root) and not forks


def replicable(root: Value) -> Value:
    """Return a root without `:local`, as it is sent and accepted; the same object without one."""
    # "`:local` is never sent and never accepted" (docs/design/decisions.md "D6").
    return root.remove(LOCAL_KEY) if isinstance(root, Index) and LOCAL_KEY in root else root


def local_slot(root: Value, owner: bytes) -> Value:
    """Return the Signed cell in the `:local` slot of `owner`, or None."""
    return get_in(root, [LOCAL_KEY, owner])


def local_value(root: Value, owner: bytes, key: Keyword | None = None) -> Value:
    """Return the value in the `:local` slot of `owner`, or its entry at `key`; None if absent.

    Raises: BadSignature: the slot is not signed by `owner`.
    """
    slot = local_slot(root, owner)
    if slot is None:
        return None
    # Security: `:local` steers this node, so only its own signature counts.
    if not isinstance(slot, Signed) or slot.public_key != owner or not slot.verify():
        raise BadSignature(
            f"the value in the :local slot of 0x{owner.hex()} is not signed by this owner"
        )
    return slot.value if key is None else get_in(slot.value, [key])


def set_local(root: Value, key_pair: KeyPair, value: Value) -> Value:
    """Return the root with `value`, signed, as the full `:local` slot of the key."""
    # Signed although it stays on this node: `local_value` returns nothing else.
    signed = Signed.sign(key_pair, value)
    return assoc_in(root, [LOCAL_KEY, key_pair.public_key], signed, root_lattice())


def node_info(
    timestamp: int,
    transports: list[str],
    kind: str,
    version: str,
    regions: list[str] | None = None,
) -> Map:
    """Return a node's announcement under `:p2p :nodes`.

    A Map with `:timestamp` (Unix milliseconds), `:transports` (URIs), `:type`, `:version`, and
    `:regions` if given.
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
