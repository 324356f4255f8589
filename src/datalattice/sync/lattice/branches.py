"""Branches: two cells of one slot compared, on the account of the message that brought one of them.

Source: docs/design/forks.md "Evidence".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from datalattice.cells import Signed, Value, Work, same, value_hash
from datalattice.errors import MissingData, WorkExceeded
from datalattice.lattice import (
    DIDVerifier,
    Lattice,
    MergeContext,
    MergeNotice,
    OwnerForked,
    SignedLattice,
    Walk,
    discard,
    is_greater,
)
from datalattice.sync.lattice.forkrecords import ForkRecord, Path


@dataclass(slots=True)
class SlotChange:
    """What stood in a slot before, and whether what stands there now is greater, once asked."""

    before: Value
    is_rise: bool | None = None


class Branches:
    """The comparisons of one node.

    work:      the account of the message whose forks are looked at just now.
    spent_max: when nothing more is compared on that account.
    """

    def __init__(self, lattice: Lattice, context: MergeContext) -> None:
        self._lattice: Final = lattice
        self._context: Final = context
        self.work = Work()
        self.spent_max = 0

    def is_mine(self, owner: Value) -> bool:
        """Return whether a key of this node may sign for an owner."""
        return self._context.signer(owner) is not None

    def joined(
        self, path: Path, owner: Value, one: Signed, two: Signed, change: SlotChange | None = None
    ) -> tuple[Value, OwnerForked | None]:
        """Return which of two cells of a slot stays, and how it leaves the other one out.

        change: of the slot, when `one` stands there now and `two` is less than what stood there
                before, or is that itself.
        Cost:   a merge; the order is asked once for a change.
        Raises: WorkExceeded: there is too little left on the account.
        """
        lattice = self._lattice.path(*path)
        if not isinstance(lattice, SignedLattice):
            return one, None
        # What this node signed itself costs what it costs.
        work = None if self.is_mine(owner) else self.work
        if work is not None and work.spent > self.spent_max:
            raise WorkExceeded("the message pays for no more comparisons")
        if change is not None:
            if change.is_rise is None:
                change.is_rise = _is_rise(lattice, owner, change.before, one, Walk(work))
            if change.is_rise:
                context = MergeContext(path=path, report=discard, owner=owner, work=work)
                return one, lattice.left_out(one, two, context)
        found: list[OwnerForked] = []

        def note(report: MergeNotice) -> None:
            if isinstance(report, OwnerForked):
                found.append(report)

        verifier = self._context.verifier
        if isinstance(owner, str):
            verifier = DIDVerifier(verifier)
        # Without keys: what a join would be is not asked.
        context = MergeContext(verifier=verifier, path=path, report=note, owner=owner, work=work)
        kept = lattice.merge(one, two, context)
        return kept, found[0] if found else None

    def is_less(self, a: ForkRecord, b: ForkRecord) -> bool:
        """Return whether the branch of a record is the lesser one; one that is not kept is."""
        lattice = self._lattice.path(*a.path)
        if a.loser is None or b.loser is None or not isinstance(lattice, SignedLattice):
            return a.loser is None
        if not _same_path(a.path, b.path) or not lattice.inner.has_order():
            return value_hash(a.loser) < value_hash(b.loser)
        hashes = value_hash(b.loser), value_hash(a.loser)
        inner = lattice.inner
        return is_greater(inner, b.loser.value, hashes[0], a.loser.value, hashes[1], Walk())


def _is_rise(
    lattice: SignedLattice, owner: Value, before: Value, after: Signed, walk: Walk
) -> bool:
    """Return whether a sound cell took the place of a lesser one, in the slot of a key."""
    inner = lattice.inner
    if lattice.whole or not inner.has_order() or not isinstance(before, Signed):
        return False
    if owner != after.public_key or not after.verify():
        return False
    hashes = value_hash(after), value_hash(before)
    try:
        return is_greater(inner, after.value, hashes[0], before.value, hashes[1], walk)
    except MissingData:
        return False  # the former root was collected: each branch is compared for itself


def _same_path(a: Path, b: Path) -> bool:
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
