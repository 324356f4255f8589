"""Gossip: to which connections a store pushes, and which of them get hashes in place of intentions.

If every neighbour were sent each new intention, a node would receive it once from each neighbour.
A connection that delivers an intention already stored here is *redundant*: this node tells its
sender, which from then on announces only hashes there. The other connections form a
tree, on which an intention reaches each node once. If an announced intention does not arrive within
`GRAFT_MS`, it is fetched from the announcer, whose connection joins the tree again; this repairs a
broken tree. Nodes that are not neighbours find missing intentions by a comparison.

Source: Weaver specification "Gossip"; Leitão, Pereira, Rodrigues: Epidemic Broadcast Trees (2007).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from datalattice.crypto import Entropy
from datalattice.sync.replica import Offer

NEIGHBOURS_MAX: Final = 8
"""Connections to which a store pushes; its other peers are compared alone."""

GRAFT_MS: Final = 100
"""How long an announced intention may take to come by another way."""

ANNOUNCED_MAX: Final = 1_000
"""Most hashes in an announcement, and most of one peer that wait; a comparison finds the others."""

_DICE_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class GossipOffer(Offer):
    """News with hashes of further intentions.

    announced:    hashes that the sender has too, fetched if they do not come by another way.
    is_redundant: the receiver's intentions had come to the sender by another way.
    """

    announced: tuple[bytes, ...] = ()
    is_redundant: bool = False


class Neighbours:
    """The connections of one store: which are neighbours, and which of those get hashes alone."""

    def __init__(self, entropy: Entropy, limit: int = NEIGHBOURS_MAX) -> None:
        self._entropy = entropy
        self._limit = limit
        self._others: list[str] = []
        self._is_eager: dict[str, bool] = {}
        self._redundant: set[str] = set()

    def __contains__(self, connection: object) -> bool:
        return connection in self._is_eager

    def is_eager(self, connection: str) -> bool:
        """Return whether intentions are pushed on a connection, and not their hashes alone."""
        return self._is_eager.get(connection, False)

    def meet(self, connection: str) -> None:
        """Take up a connection: each one becomes a neighbour with the same chance."""
        # A second draw for the same connection would double its chance.
        if connection in self._is_eager or connection in self._others:
            return
        if len(self._is_eager) < self._limit:
            self._is_eager[connection] = True
            return
        # "Chosen at random": the first ones to connect would be the same for all nodes.
        replaced = self._below(len(self._is_eager) + len(self._others) + 1)
        if replaced < self._limit:
            left = list(self._is_eager)[replaced]
            del self._is_eager[left]
            self._others.append(left)
            self._is_eager[connection] = True
        else:
            self._others.append(connection)

    def leave(self, connection: str) -> None:
        """Forget a connection that has ended; another one replaces a neighbour."""
        self._redundant.discard(connection)
        if connection in self._others:
            self._others.remove(connection)
        elif self._is_eager.pop(connection, None) is not None and self._others:
            # "Replaced when lost."
            self._is_eager[self._others.pop(self._below(len(self._others)))] = True

    def set_eager(self, connection: str, *, is_eager: bool) -> None:
        """Choose whether intentions are pushed to a neighbour, or their hashes alone."""
        if connection in self._is_eager:
            self._is_eager[connection] = is_eager

    def found_redundant(self, connection: str) -> None:
        """Note that pushed intentions were here already: hashes suffice in both directions."""
        self.set_eager(connection, is_eager=False)
        self._redundant.add(connection)

    def take_redundant(self, connection: str) -> bool:
        """Return whether to tell a peer that its intentions are redundant; true once."""
        if connection in self._redundant:
            self._redundant.remove(connection)
            return True
        return False

    def _below(self, count: int) -> int:
        # Of 64 random bits the remainder is even enough for any number of connections.
        return int.from_bytes(self._entropy.bytes(_DICE_BYTES), "big") % count
