"""Bringing: what the operator of a node brings passes the same gate as what a peer states.

The cells come first, staged in the node's store; those that are not sound, and those above them,
come with the offer. Then the value is merged as the state of an unknown peer: around its holes,
under the hosting policy, with evidence of forks, and the report names everything left out.

Source: docs/design/foreign-data.md "Structure".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from datalattice.cells import MessageCells
from datalattice.lattice import BAD_SIGNATURE, ENTRY_DROPPED, NOT_OWNER
from datalattice.sync.lattice.hosting import DISK_LOW, QuotaExceeded
from datalattice.sync.lattice.incoming import Incoming
from datalattice.sync.lattice.replica import LatticeReplica
from datalattice.sync.replica import Absorbed, Offer, Peer, Probe, Remark

BROUGHT: Final = "import"
"""Stands for the peer."""

NOT_HOSTED: Final = "not-hosted"
"""What parts are counted as that the policy of this node cuts off."""

_LEFT_OUT: Final = frozenset(
    {BAD_SIGNATURE, ENTRY_DROPPED, NOT_OWNER, QuotaExceeded.kind, DISK_LOW, NOT_HOSTED}
)


def offer_of(top: bytes, apart: Mapping[bytes, bytes]) -> Offer:
    """Return the offer of a root by its hash; its cells are staged, but for those kept apart."""
    parts = MessageCells(None)
    for encoding in apart.values():
        parts.add(encoding)
    return Offer(Probe(top, Incoming((), None, parts, top)))


def bring(replica: LatticeReplica, offer: Offer, *, is_known: bool = False) -> Absorbed:
    """Take in what the operator brings; return what became of it. Durable on return.

    is_known: its unsigned data comes from a known sender, so that it has no quota.
    Raises: as `LatticeReplica.absorb`.
    """
    # The operator waits for it, so it may cost what the values of wanted peers may.
    replica.intake.introduce(BROUGHT, BROUGHT, is_wanted=True, is_known=is_known)
    try:
        names = replica.intake.not_hosted(offer, BROUGHT)
        absorbed = replica.absorb(offer, Peer(BROUGHT))
        if absorbed.missing:  # a collection took cells that were staged
            replica.absorb(Offer(lost=absorbed.missing), Peer(BROUGHT))
    finally:
        replica.intake.leave(BROUGHT)
    if not names:
        return absorbed
    text = f"{names[0]}: this node does not host it; `lattice hosting` shows what it hosts"
    remark = Remark(NOT_HOSTED, text, len(names))
    return replace(absorbed, reports=(*absorbed.reports, remark))


def is_left_out(remark: Remark) -> bool:
    """Return whether a report is of something that was not taken."""
    return remark.is_refusal or remark.is_loss or remark.kind in _LEFT_OUT
