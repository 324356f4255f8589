"""Overlay: what was written since a value, joined with what became of that value elsewhere.

A merge of the two says the same, but it looks into all that the other side changed, and that was
judged and paid for before: a writer would pay once more for what strangers sent meanwhile.
"""

from __future__ import annotations

from datalattice.cells import ABSENT, Index, Map, Value, same
from datalattice.lattice import KeyedLattice, Lattice, MergeContext, OwnerLattice

_CONTAINERS = (Index, Map)


def overlaid(
    lattice: Lattice, base: Value, live: Value, root: Value, context: MergeContext
) -> Value:
    """Return `root` with what `live` has changed of `base` joined in.

    live, root: both made of `base` by writes and merges.
    Cost:       sections and slots that differ between `base` and `live`.
    """
    if same(base, live):
        return root
    if same(base, root):
        return live
    if isinstance(lattice, (KeyedLattice, OwnerLattice)):
        for kind in _CONTAINERS:
            if isinstance(base, kind) and isinstance(live, kind) and isinstance(root, kind):
                return _entries(lattice, base, live, root, context)
    return lattice.merge(live, root, context)


def _entries(
    lattice: Lattice, base: Index | Map, live: Index | Map, root: Index | Map, context: MergeContext
) -> Value:
    made = root
    for key, _, before, is_there, mine in base.differences(live):  # type: ignore[arg-type]
        theirs = root.get(key, ABSENT)
        if not is_there or theirs is mine:
            continue  # what a writer took away comes back in a merge, too
        below = lattice.child(key)
        if theirs is ABSENT or below is None:
            made = made.put(key, mine)
        elif isinstance(below, OwnerLattice):
            made = made.put(key, overlaid(below, before, mine, theirs, context.child(key)))
        else:
            # By the container's own merge, so that who may write, and what is left out, is as ever.
            kind = type(root)
            one = lattice.merge(kind.of([(key, mine)]), kind.of([(key, theirs)]), context)
            assert isinstance(one, _CONTAINERS)
            made = made.put(key, one.get(key))
    return made
