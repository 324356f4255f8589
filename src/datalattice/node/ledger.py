"""Ledger: what a node's lattice keeps of those it talks to: rights, shares, parts of the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from datalattice.cells import Value
from datalattice.node.host import Acquaintance
from datalattice.sync import LatticeReplica


class LatticeLedger:
    """The ledger of a lattice replica. Used in its lane.

    partial: what is replicated with the peers that have these keys, if not everything is.
    """

    def __init__(
        self, replica: LatticeReplica, partial: Mapping[bytes, Sequence[Sequence[Value]]]
    ) -> None:
        self._replica = replica
        self._partial = dict(partial)

    def introduce(self, who: Acquaintance) -> None:
        """Charge its messages to whom they are of, and replicate with it what is configured."""
        self._replica.intake.introduce(
            who.connection, who.sender, is_wanted=who.is_wanted, is_known=who.is_known
        )
        paths = self._partial.get(who.public_key or who.pinned or b"")
        if paths is not None:
            self._replica.views.restrict(who.connection, paths)

    def leave(self, connection: str) -> None:
        """Forget it."""
        self._replica.views.restrict(connection, None)
        self._replica.intake.leave(connection)

    def wait_ms(self, connection: str) -> int:
        """Return how long what comes next over a connection has to wait, after what came."""
        return self._replica.charges.wait_ms(connection)
