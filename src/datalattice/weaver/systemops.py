"""System operations: what is written to the system table of a store, and in which keys.

Every payload is a `UniversalOp`: data of the store's machine, a `SystemOp`, or the genesis.

Source: docs/weaver.md "The system table"
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Annotated, Final, NamedTuple

from datalattice.clock import HLC_ZERO
from datalattice.crypto import KeyPair, blake3
from datalattice.protobuf import Field, Message
from datalattice.weaver.intention import ZERO_HASH, Intention, SignedIntention
from datalattice.weaver.storeid import store_id_text

SYNTHETIC_SEED: Final = b"lattice-synthetic-genesis"


# --- messages -------------------------------------------------------------------------------------


class ChildStatus(IntEnum):
    """Whether a child store is in use."""

    UNKNOWN = 0
    ACTIVE = 1
    ARCHIVED = 2


class PeerStatus(IntEnum):
    """What a peer may do: an active or dormant one connects, a revoked one is refused."""

    UNKNOWN = 0
    INVITED = 1
    ACTIVE = 2
    DORMANT = 3
    REVOKED = 4


class InviteStatus(IntEnum):
    """Whether the secret of an invite still lets a peer in."""

    UNKNOWN = 0
    VALID = 1
    REVOKED = 2
    CLAIMED = 3


class AddChild(Message, name="lattice.storage.AddChild"):
    """Declares a child store."""

    target_id: Annotated[bytes, Field(1)] = b""
    alias: Annotated[str, Field(2)] = ""
    store_type: Annotated[str, Field(3)] = ""


class RemoveChild(Message, name="lattice.storage.RemoveChild"):
    """Takes the declaration of a child store back."""

    target_id: Annotated[bytes, Field(1)] = b""


class SetChildStatus(Message, name="lattice.storage.SetChildStatus"):
    """Archives a child store, or brings it back."""

    target_id: Annotated[bytes, Field(1)] = b""
    status: Annotated[ChildStatus, Field(2)] = ChildStatus.UNKNOWN


class HierarchyOp(Message, name="lattice.storage.HierarchyOp"):
    """One change of the children."""

    add_child: Annotated[AddChild | None, Field(1, oneof="op")] = None
    remove_child: Annotated[RemoveChild | None, Field(2, oneof="op")] = None
    set_status: Annotated[SetChildStatus | None, Field(3, oneof="op")] = None


class SetPeerStatus(Message, name="lattice.storage.SetPeerStatus"):
    """Also the value of `peer/.../status`."""

    status: Annotated[PeerStatus, Field(1)] = PeerStatus.UNKNOWN


class SetPeerAddedAt(Message, name="lattice.storage.SetPeerAddedAt"):
    """Also the value of `peer/.../added_at`."""

    timestamp: Annotated[int, Field(1, "uint64")] = 0


class SetPeerAddedBy(Message, name="lattice.storage.SetPeerAddedBy"):
    """Also the value of `peer/.../added_by`."""

    pubkey: Annotated[bytes, Field(1)] = b""


class SetPeerName(Message, name="lattice.storage.SetPeerName"):
    """The name that a peer gives itself."""

    name: Annotated[str, Field(1)] = ""


class PeerOp(Message, name="lattice.storage.PeerOp"):
    """One change of the entry of a peer."""

    pubkey: Annotated[bytes, Field(1)] = b""
    set_status: Annotated[SetPeerStatus | None, Field(3, oneof="op")] = None
    set_added_at: Annotated[SetPeerAddedAt | None, Field(4, oneof="op")] = None
    set_added_by: Annotated[SetPeerAddedBy | None, Field(5, oneof="op")] = None
    set_name: Annotated[SetPeerName | None, Field(6, oneof="op")] = None


class PeerStrategy(Message, name="lattice.storage.PeerStrategy"):
    """Whose peers count: the store's own, its parent's, or a copy of another store's."""

    independent: Annotated[bool | None, Field(1, oneof="strategy")] = None
    inherited: Annotated[bool | None, Field(2, oneof="strategy")] = None
    snapshot: Annotated[bytes | None, Field(3, oneof="strategy")] = None


INDEPENDENT: Final = PeerStrategy(independent=True)
"""Also where a store without a parent states no strategy: "missing strategy: independent"."""

INHERITED: Final = PeerStrategy(inherited=True)


class SetPeerStrategy(Message, name="lattice.storage.SetPeerStrategy"):
    """Sets the strategy."""

    strategy: Annotated[PeerStrategy | None, Field(1)] = None


class PeerStrategyOp(Message, name="lattice.storage.PeerStrategyOp"):
    """One change of the strategy."""

    set: Annotated[SetPeerStrategy | None, Field(1, oneof="op")] = None


class SetStoreName(Message, name="lattice.storage.SetStoreName"):
    """Also the value of `name`."""

    name: Annotated[str, Field(1)] = ""


class StoreOp(Message, name="lattice.storage.StoreOp"):
    """One change of the store itself."""

    set_name: Annotated[SetStoreName | None, Field(1, oneof="op")] = None


class SetInviteStatus(Message, name="lattice.storage.SetInviteStatus"):
    """Also the value of `invite/.../status`."""

    status: Annotated[InviteStatus, Field(1)] = InviteStatus.UNKNOWN


class SetInviteInvitedBy(Message, name="lattice.storage.SetInviteInvitedBy"):
    """Also the value of `invite/.../invited_by`."""

    pubkey: Annotated[bytes, Field(1)] = b""


class SetInviteClaimedBy(Message, name="lattice.storage.SetInviteClaimedBy"):
    """Also the value of `invite/.../claimed_by`."""

    pubkey: Annotated[bytes, Field(1)] = b""


class InviteOp(Message, name="lattice.storage.InviteOp"):
    """One change of an invite, which is named by the BLAKE3 hash of its secret."""

    token_hash: Annotated[bytes, Field(1)] = b""
    set_status: Annotated[SetInviteStatus | None, Field(2, oneof="op")] = None
    set_invited_by: Annotated[SetInviteInvitedBy | None, Field(3, oneof="op")] = None
    set_claimed_by: Annotated[SetInviteClaimedBy | None, Field(4, oneof="op")] = None


class SystemOp(Message, name="lattice.storage.SystemOp"):
    """One change of the system table, or several as one."""

    hierarchy: Annotated[HierarchyOp | None, Field(1, oneof="op")] = None
    peer: Annotated[PeerOp | None, Field(2, oneof="op")] = None
    strategy: Annotated[PeerStrategyOp | None, Field(3, oneof="op")] = None
    store: Annotated[StoreOp | None, Field(4, oneof="op")] = None
    invite: Annotated[InviteOp | None, Field(5, oneof="op")] = None
    batch: Annotated[SystemOps | None, Field(6, oneof="op")] = None


class SystemOps(Message, name="lattice.storage.SystemBatch"):
    """Operations that are applied in order, as one."""

    ops: Annotated[tuple[SystemOp, ...], Field(1)] = ()


class GenesisOp(Message, name="lattice.storage.GenesisOp"):
    """The first operation of a store."""

    store_type: Annotated[str, Field(1)] = ""
    nonce: Annotated[int, Field(2, "uint32")] = 0


class UniversalOp(Message, name="lattice.storage.UniversalOp"):
    """The envelope of every payload."""

    app_data: Annotated[bytes | None, Field(10, oneof="op")] = None
    system: Annotated[SystemOp | None, Field(11, oneof="op")] = None
    genesis: Annotated[GenesisOp | None, Field(12, oneof="op")] = None


# --- keys and values of the table -----------------------------------------------------------------


class SystemChange(NamedTuple):
    """One key of the system table and its new value, None for a tombstone."""

    key: bytes
    value: bytes | None


def _changes(op: SystemOp) -> Iterator[SystemChange]:
    """Yield what an operation writes, in order."""
    if op.hierarchy is not None:
        yield from _hierarchy_changes(op.hierarchy)
    elif op.peer is not None:
        yield from _peer_changes(op.peer)
    elif op.strategy is not None and op.strategy.set is not None:
        yield SystemChange(b"strategy", (op.strategy.set.strategy or PeerStrategy()).encode())
    elif op.store is not None and op.store.set_name is not None:
        yield SystemChange(b"name", op.store.set_name.encode())
    elif op.invite is not None:
        yield from _invite_changes(op.invite)
    elif op.batch is not None:
        for inner in op.batch.ops:  # "applied in order as one op"
            yield from _changes(inner)


def _hierarchy_changes(op: HierarchyOp) -> Iterator[SystemChange]:
    if op.add_child is not None:
        target = child_key(op.add_child.target_id)
        # No status ("default active"): an archived child stays so when it is declared anew.
        yield SystemChange(target + b"name", op.add_child.alias.encode())
        yield SystemChange(target + b"type", op.add_child.store_type.encode())
    elif op.remove_child is not None:
        target = child_key(op.remove_child.target_id)
        # All three, so that the child is gone whichever key is read.
        for name in (b"name", b"status", b"type"):
            yield SystemChange(target + name, None)
    elif op.set_status is not None:
        # "child/{uuid}/status: i32 little-endian, 4 bytes"
        status = int(op.set_status.status).to_bytes(4, "little", signed=True)
        yield SystemChange(child_key(op.set_status.target_id) + b"status", status)


def _peer_changes(op: PeerOp) -> Iterator[SystemChange]:
    peer = peer_key(op.pubkey)
    if op.set_status is not None:
        yield SystemChange(peer + b"status", op.set_status.encode())
    elif op.set_added_at is not None:
        yield SystemChange(peer + b"added_at", op.set_added_at.encode())
    elif op.set_added_by is not None:
        yield SystemChange(peer + b"added_by", op.set_added_by.encode())
    elif op.set_name is not None:
        yield SystemChange(peer + b"name", op.set_name.name.encode())  # "UTF-8", not the message


def _invite_changes(op: InviteOp) -> Iterator[SystemChange]:
    invite = invite_key(op.token_hash)
    if op.set_status is not None:
        yield SystemChange(invite + b"status", op.set_status.encode())
    elif op.set_invited_by is not None:
        yield SystemChange(invite + b"invited_by", op.set_invited_by.encode())
    elif op.set_claimed_by is not None:
        yield SystemChange(invite + b"claimed_by", op.set_claimed_by.encode())


def final_changes(op: SystemOp) -> dict[bytes, bytes | None]:
    """Return what an operation leaves in each key: the last of its changes."""
    # "applied in order as one op": of several values for a key the last counts.
    return {change.key: change.value for change in _changes(op)}


def peer_key(public_key: bytes) -> bytes:
    """Return the beginning of the keys of a peer."""
    return b"peer/%s/" % public_key.hex().encode()


def child_key(store_id: bytes) -> bytes:
    """Return the beginning of the keys of a child store."""
    return b"child/%s/" % store_id_text(store_id).encode()


def invite_key(token_hash: bytes) -> bytes:
    """Return the beginning of the keys of an invite."""
    return b"invite/%s/" % token_hash.hex().encode()


# --- genesis --------------------------------------------------------------------------------------


def genesis_payload(kind: str, nonce: int) -> bytes:
    """Return the payload of a store's first intention."""
    return UniversalOp(genesis=GenesisOp(store_type=kind, nonce=nonce)).encode()


def synthetic_genesis(store_id: bytes, kind: str) -> SignedIntention:
    """Return the genesis of a store that was made without one: the same on every node."""
    nonce = int.from_bytes(store_id[:4], "little")
    # Everyone can derive the key of its author, so it authorises nothing.
    author = KeyPair(blake3(SYNTHETIC_SEED + store_id))
    payload = genesis_payload(kind, nonce)
    return Intention(author.public_key, HLC_ZERO, store_id, ZERO_HASH, (), payload).sign(author)
