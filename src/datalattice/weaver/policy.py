"""Policy: who may connect to a store, whose news it takes, and who may join; and invites.

A node asks the policy of a store before it answers any request for it. A store of its own peers has
its own policy; a child whose peers are inherited shares the policy of its parent.

Source: docs/weaver.md "Peers and invites"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from datalattice.clock import Clock
from datalattice.crypto import Entropy, KeyPair, blake3
from datalattice.engine import GroupCommit, GroupTxn
from datalattice.errors import DataLatticeError, Unauthorized, UsageError
from datalattice.weaver.invite import SECRET_BYTES, InviteToken
from datalattice.weaver.store import Once, WeaverStore, run_once
from datalattice.weaver.storeid import store_id_text
from datalattice.weaver.system import StorePeer, SystemBatch, SystemReader
from datalattice.weaver.systemops import INHERITED, InviteStatus, PeerStatus

_CONNECTING: Final = (PeerStatus.ACTIVE, PeerStatus.DORMANT)


class PeerPolicy:
    """Decides about the peers of one store, and of the children that share them.

    bootstrap: keys that are trusted while a store is fetched for the first time; never stored.
    """

    def __init__(self, peers: Callable[[], Mapping[bytes, StorePeer]]) -> None:
        """peers: reads the system table as it is now."""
        self._peers = peers
        self.bootstrap: Final[set[bytes]] = set()

    def can_connect(self, peer: bytes) -> bool:
        """Return whether a peer may ask for the store."""
        # "status active or dormant, or in the ephemeral bootstrap set"
        return peer in self.bootstrap or self._status(peer) in _CONNECTING

    def can_accept_gossip(self, author: bytes) -> bool:
        """Return whether gossip of an author's new intentions is accepted.

        What a peer wrote before it was revoked still spreads, by reconciliation.
        """
        return self.can_connect(author)

    def can_join(self, peer: bytes) -> bool:
        """Return whether a peer may join without an invite: it has been a peer before."""
        # Stricter than connecting: a dormant peer needs a fresh invite to join anew.
        return self._status(peer) is PeerStatus.ACTIVE

    def authors(self) -> list[bytes]:
        """Return the authors whose gossip is accepted, sorted; empty if the table is unreadable."""
        try:
            peers = self._peers()
        except DataLatticeError:
            return []  # "read failure: empty list": an error admits no one
        allowed = {key for key, peer in peers.items() if peer.status in _CONNECTING}
        return sorted(allowed | self.bootstrap)

    def _status(self, peer: bytes) -> PeerStatus:
        found = self._peers().get(peer)
        return PeerStatus.UNKNOWN if found is None else found.status


# --- invites --------------------------------------------------------------------------------------


def invitation(secret: bytes, inviter: bytes) -> SystemBatch:
    """Return the operations that make the secret of an invite valid."""
    # "The store keeps only BLAKE3(secret)": the table is replicated, and whoever reads it must not
    # be able to join with what is written there.
    hash = blake3(secret)
    return (
        SystemBatch()
        .set_invite_status(hash, InviteStatus.VALID)
        .set_invite_invited_by(hash, inviter)
    )


def claim(reader: SystemReader, secret: bytes, peer: bytes) -> SystemBatch | None:
    """Return the operations by which a peer uses an invite; None if the secret is not valid."""
    hash = blake3(secret)
    found = reader.invite(hash)
    if found is None or found.status is not InviteStatus.VALID:
        return None
    return (
        SystemBatch()
        .set_invite_status(hash, InviteStatus.CLAIMED)
        .set_invite_claimed_by(hash, peer)
    )


def joining(
    reader: SystemReader, secret: bytes, peer: bytes, *, by: bytes, now_ms: int
) -> SystemBatch | None:
    """Return the operations by which a peer joins: the claim and its activation as one intention.

    None: the peer is refused, because the secret is unknown or used and the peer is not active.
    """
    # "write claim and activation in one batch": no crash uses an invite up for nothing.
    batch = claim(reader, secret, peer)
    if batch is None:
        # "otherwise the peer must already be active (re-join); else refuse"
        return SystemBatch() if reader.peer_status(peer) is PeerStatus.ACTIVE else None
    return activation(batch, peer, by=by, now_ms=now_ms)


def activation(batch: SystemBatch, peer: bytes, *, by: bytes, now_ms: int) -> SystemBatch:
    """Add the operations that make a peer active."""
    return (
        batch.set_peer_status(peer, PeerStatus.ACTIVE)
        .set_added_at(peer, now_ms)  # when and by whom: for the operator, never asked by the policy
        .set_added_by(peer, by)
    )


# --- a node's stores ------------------------------------------------------------------------------


class StoreTree(Protocol):
    """What a peer manager needs of `Stores`."""

    def open(self, id: bytes) -> WeaverStore:
        """Return a store, opened if it is not open yet."""

    def opened(self) -> list[WeaverStore]:
        """Return the open stores."""

    def parent_of(self, id: bytes) -> bytes | None:
        """Return the store that a store is a child of, None for a root."""


class PeerManager:
    """The peers of all stores of a node: `stores.peers`."""

    def __init__(
        self, stores: StoreTree, commits: GroupCommit, key: KeyPair, clock: Clock, entropy: Entropy
    ) -> None:
        self._stores = stores
        self._commits = commits
        self._key = key
        self._clock = clock
        self._entropy = entropy
        self._policies: dict[bytes, PeerPolicy] = {}

    def forget(self, id: bytes) -> None:
        """Drop the policy of a store that was closed."""
        self._policies.pop(id, None)

    def policy(self, id: bytes) -> PeerPolicy:
        """Return the policy of a store: a child that inherits shares that of its parent."""
        holder = self._holder(id)
        found = self._policies.get(holder)
        if found is None:

            def peers() -> dict[bytes, StorePeer]:
                with self._stores.open(holder).read() as view:
                    return view.system.peers()

            found = self._policies.setdefault(holder, PeerPolicy(peers))
        return found

    def peers(self, id: bytes) -> list[StorePeer]:
        """Return the peers of a store, or of the store that it shares them with, in key order."""
        with self._stores.open(self._holder(id)).read() as view:
            return list(view.system.peers().values())

    def _holder(self, id: bytes) -> bytes:
        """Return the store whose peers count here: the store itself or an ancestor."""
        with self._stores.open(id).read() as view:
            # A declared child that is not fetched yet has no strategy here. It counts as
            # inheriting: only peers of its parent can send it, even where own writes are in it
            # already.
            inherits = view.system.strategy(INHERITED).inherited
        parent = self._stores.parent_of(id)
        # Recursion is bounded by the depth limit of the tree.
        return self._holder(parent) if inherits and parent is not None else id

    def set_name(self, name: str) -> None:
        """Publish how this node is called, once for each set of peers."""
        own = self._key.public_key
        for store in self._stores.opened():
            # Children share the peers of their root, so they would repeat it.
            if self._not_independent(store) is None:
                store.write_system(SystemBatch().set_peer_name(own, name))

    def create_invite(
        self, id: bytes, addresses: Sequence[str] = (), once: Once | None = None
    ) -> InviteToken:
        """Return a token with which one peer may join.

        once: makes the invite unless it was made before.
        Raises: UsageError: the store has no peers of its own.
        """
        store = self._independent(id)
        secret = self._entropy.bytes(SECRET_BYTES)  # "32 random bytes"
        made = InviteToken(id, secret, store.author, tuple(addresses))

        def work(txn: GroupTxn) -> InviteToken:
            store.write_system_in(txn, lambda _: invitation(secret, store.author))
            return made

        return run_once(self._commits, work, once)

    def consume_invite(self, id: bytes, secret: bytes, peer: bytes) -> bool:
        """Mark an invite as used by a peer; return whether its secret was valid until now."""
        store = self._independent(id)

        def work(txn: GroupTxn) -> bool:
            # Looked up and marked in one transaction, so a secret is used once.
            return store.write_system_in(txn, lambda found: claim(found, secret, peer)) is not None

        return self._commits.run(work)

    def accept_join(self, id: bytes, peer: bytes, secret: bytes) -> None:
        """Make a peer active that has a valid secret, or was active before.

        Raises: Unauthorized: neither holds. UsageError: the store has no peers of its own.
        """
        store = self._independent(id)
        now_ms = self._clock.now_ms()  # read once, before the transaction

        def make(found: SystemReader) -> SystemBatch:
            batch = joining(found, secret, peer, by=store.author, now_ms=now_ms)
            if batch is None:
                raise Unauthorized("the invite is unknown or was used before")
            return batch

        self._commits.run(lambda txn: store.write_system_in(txn, make))

    def revoke(self, id: bytes, peer: bytes) -> None:
        """Refuse a peer from now on; what it wrote before stays and spreads.

        Raises: UsageError: `peer` is not a public key of 32 bytes.
        """
        store = self._independent(id)
        # "history written before a revocation must still spread": nothing is deleted.
        store.write_system(SystemBatch().set_peer_status(peer, PeerStatus.REVOKED))

    def _not_independent(self, store: WeaverStore) -> str | None:
        """Return why a store has no peers of its own; None if it has some."""
        with store.read() as view:
            strategy = view.system.strategy()
        if strategy.inherited:
            parent = self._stores.parent_of(store.id)
            above = "its parent" if parent is None else f"its parent {store_id_text(parent)}"
            return f"its peers are those of {above}; change them there"
        if strategy.snapshot is not None:
            return "its peers were copied when it was made, and are not changed"
        return None

    def _independent(self, id: bytes) -> WeaverStore:
        store = self._stores.open(id)
        reason = self._not_independent(store)
        if reason is not None:
            raise UsageError(f"store {store_id_text(id)}: {reason}")
        return store
