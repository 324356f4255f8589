"""Policy: who may connect to a store, whose news it takes, and who may join; and invites.

A node asks the policy of a store before it answers any request for it. A store of its own peers has
its own policy; a child whose peers are inherited shares the policy of its parent.

Source: docs/weaver.md "Peers and invites"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from datalattice.crypto import Entropy, blake3
from datalattice.errors import DataLatticeError
from datalattice.weaver.invite import SECRET_BYTES
from datalattice.weaver.system import InviteStatus, Peer, PeerStatus, SystemBatch, SystemReader

_CONNECTING: Final = (PeerStatus.ACTIVE, PeerStatus.DORMANT)


class PeerPolicy:
    """The answers of one store, and of the children that share its peers.

    bootstrap: keys that are trusted while a store is fetched for the first time; never stored.
    """

    def __init__(self, peers: Callable[[], Mapping[bytes, Peer]]) -> None:
        """peers: reads the system table as it is now."""
        self._peers = peers
        self.bootstrap: Final[set[bytes]] = set()

    def can_connect(self, peer: bytes) -> bool:
        """Return whether a peer may ask for the store."""
        return peer in self.bootstrap or self._status(peer) in _CONNECTING

    def can_accept_gossip(self, author: bytes) -> bool:
        """Return whether news of an author is taken as it is written.

        History that was written before a peer was revoked goes on spreading by reconciliation.
        """
        return self.can_connect(author)

    def can_join(self, peer: bytes) -> bool:
        """Return whether a peer may join without an invite: it has been a peer before."""
        return self._status(peer) is PeerStatus.ACTIVE

    def authors(self) -> list[bytes]:
        """Return the authors whose news is taken, sorted; none if the table cannot be read."""
        try:
            peers = self._peers()
        except DataLatticeError:
            return []  # "read failure: empty list": nobody is let in by an error
        allowed = {key for key, peer in peers.items() if peer.status in _CONNECTING}
        return sorted(allowed | self.bootstrap)

    def _status(self, peer: bytes) -> PeerStatus:
        found = self._peers().get(peer)
        return PeerStatus.UNKNOWN if found is None else found.status


# --- invites --------------------------------------------------------------------------------------


def secret_hash(secret: bytes) -> bytes:
    """Return what a store keeps of the secret of an invite."""
    # Whoever reads the replicated table must not be able to join with what is written there.
    return blake3(secret)


def new_secret(entropy: Entropy) -> bytes:
    """Return a fresh secret of an invite."""
    return entropy.bytes(SECRET_BYTES)


def invitation(secret: bytes, inviter: bytes) -> SystemBatch:
    """Return the operations that make the secret of an invite valid."""
    hash = secret_hash(secret)
    return (
        SystemBatch()
        .set_invite_status(hash, InviteStatus.VALID)
        .set_invite_invited_by(hash, inviter)
    )


def claim(reader: SystemReader, secret: bytes, peer: bytes) -> SystemBatch | None:
    """Return the operations by which a peer uses an invite; None if the secret lets nobody in."""
    hash = secret_hash(secret)
    found = reader.invite(hash)
    if found is None or found.status is not InviteStatus.VALID:
        return None
    return (
        SystemBatch()
        .set_invite_status(hash, InviteStatus.CLAIMED)
        .set_invite_claimed_by(hash, peer)
    )


def admission(
    reader: SystemReader, secret: bytes, peer: bytes, *, by: bytes, now_ms: int
) -> SystemBatch | None:
    """Return the operations by which a peer joins: the claim and its activation as one intention.

    None: it is refused: the secret is unknown or used, and the peer is not active already.
    """
    batch = claim(reader, secret, peer)
    if batch is None:
        # "otherwise the peer must already be active (re-join); else refuse"
        return SystemBatch() if reader.peer_status(peer) is PeerStatus.ACTIVE else None
    return activation(batch, peer, by=by, now_ms=now_ms)


def activation(batch: SystemBatch, peer: bytes, *, by: bytes, now_ms: int) -> SystemBatch:
    """Add the operations that make a peer active."""
    return (
        batch.set_peer_status(peer, PeerStatus.ACTIVE)
        .set_added_at(peer, now_ms)
        .set_added_by(peer, by)
    )
