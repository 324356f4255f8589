"""System: what a store says about itself (peers, children, invites, its name), as replicated data.

Every payload is a `UniversalOp`: data of the store's machine, a `SystemOp`, or the genesis. The
`SystemLayer` is what the state runs: it keeps the system table and hands the rest to the machine,
which never sees the envelope. A `SystemBatch` collects system operations for one intention, and a
`SystemReader` answers questions about the table.

Source: docs/weaver.md "The system table"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Annotated, Final, NamedTuple, Self

from datalattice.clock import HLC_ZERO
from datalattice.crypto import KeyPair, blake3
from datalattice.protobuf import Field, Message
from datalattice.weaver.heads import HeadReader, HeadTable
from datalattice.weaver.intention import ZERO, Intention, SignedIntention
from datalattice.weaver.machine import (
    Dag,
    Machine,
    Op,
    Proposal,
    StateReader,
    StateTables,
    StateWriter,
    Written,
)
from datalattice.weaver.storeid import store_id_text

GENESIS_KEY: Final = b"genesis_hash"
"""Key of the table `state_meta`."""

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
    """One change of what is known of a peer."""

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


class Change(NamedTuple):
    """One key of the system table and its new value, None for a tombstone."""

    key: bytes
    value: bytes | None


def changes(op: SystemOp) -> Iterator[Change]:
    """Yield what an operation writes, in order."""
    if op.hierarchy is not None:
        yield from _hierarchy_changes(op.hierarchy)
    elif op.peer is not None:
        yield from _peer_changes(op.peer)
    elif op.strategy is not None and op.strategy.set is not None:
        yield Change(b"strategy", (op.strategy.set.strategy or PeerStrategy()).encode())
    elif op.store is not None and op.store.set_name is not None:
        yield Change(b"name", op.store.set_name.encode())
    elif op.invite is not None:
        yield from _invite_changes(op.invite)
    elif op.batch is not None:
        for inner in op.batch.ops:
            yield from changes(inner)


def _hierarchy_changes(op: HierarchyOp) -> Iterator[Change]:
    if op.add_child is not None:
        target = child_key(op.add_child.target_id)
        yield Change(target + b"name", op.add_child.alias.encode())
        yield Change(target + b"type", op.add_child.store_type.encode())
    elif op.remove_child is not None:
        target = child_key(op.remove_child.target_id)
        for name in (b"name", b"status", b"type"):
            yield Change(target + name, None)
    elif op.set_status is not None:
        # "child/{uuid}/status: i32 little-endian, 4 bytes"
        status = int(op.set_status.status).to_bytes(4, "little", signed=True)
        yield Change(child_key(op.set_status.target_id) + b"status", status)


def _peer_changes(op: PeerOp) -> Iterator[Change]:
    peer = peer_key(op.pubkey)
    if op.set_status is not None:
        yield Change(peer + b"status", op.set_status.encode())
    elif op.set_added_at is not None:
        yield Change(peer + b"added_at", op.set_added_at.encode())
    elif op.set_added_by is not None:
        yield Change(peer + b"added_by", op.set_added_by.encode())
    elif op.set_name is not None:
        yield Change(peer + b"name", op.set_name.name.encode())  # "UTF-8", not the message


def _invite_changes(op: InviteOp) -> Iterator[Change]:
    invite = invite_key(op.token_hash)
    if op.set_status is not None:
        yield Change(invite + b"status", op.set_status.encode())
    elif op.set_invited_by is not None:
        yield Change(invite + b"invited_by", op.set_invited_by.encode())
    elif op.set_claimed_by is not None:
        yield Change(invite + b"claimed_by", op.set_claimed_by.encode())


def final_changes(op: SystemOp) -> dict[bytes, bytes | None]:
    """Return what an operation leaves in each key: the last of its changes."""
    return {change.key: change.value for change in changes(op)}


def peer_key(public_key: bytes) -> bytes:
    """Return the beginning of the keys of a peer."""
    return b"peer/%s/" % public_key.hex().encode()


def child_key(store_id: bytes) -> bytes:
    """Return the beginning of the keys of a child store."""
    return b"child/%s/" % store_id_text(store_id).encode()


def invite_key(token_hash: bytes) -> bytes:
    """Return the beginning of the keys of an invite."""
    return b"invite/%s/" % token_hash.hex().encode()


# --- events ---------------------------------------------------------------------------------------


class SystemEventKind(IntEnum):
    """What changed in a system table."""

    UNKNOWN = 0
    PEER_UPDATED = 1
    PEER_NAME_UPDATED = 2
    CHILD_LINK_UPDATED = 3
    CHILD_LINK_REMOVED = 4
    CHILD_STATUS_UPDATED = 5
    STRATEGY_UPDATED = 6
    STORE_NAME_UPDATED = 7
    BOOTSTRAP_COMPLETE = 8


class SystemEvent(Message, name="lattice.storage.SystemEvent"):
    """A change of the system table. subject: a peer's key, a child's id, or empty."""

    kind: Annotated[SystemEventKind, Field(1)] = SystemEventKind.UNKNOWN
    subject: Annotated[bytes, Field(2)] = b""


_EVENT_KINDS: Final = {
    ("peer", "status"): SystemEventKind.PEER_UPDATED,
    ("peer", "name"): SystemEventKind.PEER_NAME_UPDATED,
    ("child", "name"): SystemEventKind.CHILD_LINK_UPDATED,
    ("child", "status"): SystemEventKind.CHILD_STATUS_UPDATED,
    ("strategy", ""): SystemEventKind.STRATEGY_UPDATED,
    ("name", ""): SystemEventKind.STORE_NAME_UPDATED,
}


def event_of(key: bytes, value: bytes | None) -> SystemEvent | None:
    """Return the event of a changed key, None where the change is not reported."""
    section, _, rest = key.decode().partition("/")
    subject, _, name = rest.partition("/")
    kind = _EVENT_KINDS.get((section, name))
    if section == "child" and value is None:
        # Removal writes three tombstones and is one event.
        kind = SystemEventKind.CHILD_LINK_REMOVED if name == "name" else None
    return None if kind is None else SystemEvent(kind, bytes.fromhex(subject.replace("-", "")))


# --- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Peer:
    """What the system table has of a peer; None where nothing was written."""

    public_key: bytes
    status: PeerStatus
    name: str | None = None
    added_at_ms: int | None = None
    added_by: bytes | None = None


@dataclass(frozen=True, slots=True)
class Child:
    """A declared child store."""

    store_id: bytes
    name: str
    kind: str
    status: ChildStatus


@dataclass(frozen=True, slots=True)
class Invite:
    """An invite. Its secret is known to whoever holds the token; here is only its hash."""

    token_hash: bytes
    status: InviteStatus
    invited_by: bytes | None = None
    claimed_by: bytes | None = None


class SystemReader:
    """Answers from the system table of one store, in one transaction."""

    def __init__(self, system: StateReader) -> None:
        self.table: Final = HeadReader(system)

    def name(self) -> str | None:
        """Return the store's name."""
        found = self.table.get(b"name")
        return None if found is None else SetStoreName.decode(found).name

    def strategy(self) -> PeerStrategy:
        """Return the strategy; independent where none was written."""
        found = self.table.get(b"strategy")
        return PeerStrategy(independent=True) if found is None else PeerStrategy.decode(found)

    def peers(self) -> dict[bytes, Peer]:
        """Return the peers by public key, in key order."""
        return {
            key: Peer(
                key,
                # "Peer status unknown reads as invited."
                SetPeerStatus.decode(found.get("status", b"")).status or PeerStatus.INVITED,
                found["name"].decode(errors="replace") if "name" in found else None,
                SetPeerAddedAt.decode(found["added_at"]).timestamp if "added_at" in found else None,
                SetPeerAddedBy.decode(found["added_by"]).pubkey if "added_by" in found else None,
            )
            for key, found in self._subjects(b"peer/")
        }

    def children(self) -> dict[bytes, Child]:
        """Return the declared children by id, in id order, archived ones included."""
        return {
            id: Child(
                id,
                found["name"].decode(errors="replace"),
                found.get("type", b"").decode(errors="replace"),
                _child_status(found.get("status")),
            )
            for id, found in self._subjects(b"child/")
            if "name" in found  # "A child exists when its name key is live."
        }

    def invites(self) -> dict[bytes, Invite]:
        """Return the invites by the hash of their secret."""
        return {hash: _invite(hash, found) for hash, found in self._subjects(b"invite/")}

    def invite(self, token_hash: bytes) -> Invite | None:
        """Return one invite."""
        prefix = invite_key(token_hash)
        names = ("status", "invited_by", "claimed_by")
        found = {name: self.table.get(prefix + name.encode()) for name in names}
        present = {name: value for name, value in found.items() if value is not None}
        return _invite(token_hash, present) if present else None

    def peer_status(self, public_key: bytes) -> PeerStatus:
        """Return the status of one peer; UNKNOWN for a key that is not in the table."""
        found = self.table.get(peer_key(public_key) + b"status")
        return PeerStatus.UNKNOWN if found is None else SetPeerStatus.decode(found).status

    def _subjects(self, section: bytes) -> Iterator[tuple[bytes, dict[str, bytes]]]:
        """Yield each peer, child or invite of the table with its live values by name."""
        current: bytes | None = None
        values: dict[str, bytes] = {}
        for key, value, _ in self.table.scan(section, section[:-1] + b"0"):
            subject, _, name = key[len(section) :].decode().partition("/")
            id = bytes.fromhex(subject.replace("-", ""))
            if id != current:
                if current is not None and values:
                    yield current, values
                current, values = id, {}
            if value is not None:
                values[name] = value
        if current is not None and values:
            yield current, values


def _child_status(value: bytes | None) -> ChildStatus:
    if value is None:
        return ChildStatus.ACTIVE  # "default status active"
    try:
        return ChildStatus(int.from_bytes(value, "little", signed=True))
    except ValueError:
        return ChildStatus.UNKNOWN


def _invite(token_hash: bytes, found: dict[str, bytes]) -> Invite:
    by, claimed = found.get("invited_by"), found.get("claimed_by")
    return Invite(
        token_hash,
        SetInviteStatus.decode(found.get("status", b"")).status,
        None if by is None else SetInviteInvitedBy.decode(by).pubkey,
        None if claimed is None else SetInviteClaimedBy.decode(claimed).pubkey,
    )


# --- writing --------------------------------------------------------------------------------------


class SystemBatch:
    """System operations that become one intention.

    proposal = SystemBatch().set_name("notes").set_peer_name(key, "anna").proposal(reader)
    """

    def __init__(self) -> None:
        self._ops: list[SystemOp] = []

    def set_peer_status(self, public_key: bytes, status: PeerStatus) -> Self:
        """Set what a peer may do."""
        return self._peer(PeerOp(pubkey=public_key, set_status=SetPeerStatus(status=status)))

    def set_added_at(self, public_key: bytes, time_ms: int) -> Self:
        """Set when a peer was added."""
        return self._peer(PeerOp(pubkey=public_key, set_added_at=SetPeerAddedAt(timestamp=time_ms)))

    def set_added_by(self, public_key: bytes, by: bytes) -> Self:
        """Set who added a peer."""
        return self._peer(PeerOp(pubkey=public_key, set_added_by=SetPeerAddedBy(pubkey=by)))

    def set_peer_name(self, public_key: bytes, name: str) -> Self:
        """Set the name of a peer."""
        return self._peer(PeerOp(pubkey=public_key, set_name=SetPeerName(name=name)))

    def set_name(self, name: str) -> Self:
        """Set the store's name."""
        return self._add(SystemOp(store=StoreOp(set_name=SetStoreName(name=name))))

    def add_child(self, store_id: bytes, name: str, kind: str) -> Self:
        """Declare a child store."""
        child = AddChild(target_id=store_id, alias=name, store_type=kind)
        return self._add(SystemOp(hierarchy=HierarchyOp(add_child=child)))

    def remove_child(self, store_id: bytes) -> Self:
        """Take the declaration of a child store back."""
        child = RemoveChild(target_id=store_id)
        return self._add(SystemOp(hierarchy=HierarchyOp(remove_child=child)))

    def set_child_status(self, store_id: bytes, status: ChildStatus) -> Self:
        """Archive a child store, or bring it back."""
        child = SetChildStatus(target_id=store_id, status=status)
        return self._add(SystemOp(hierarchy=HierarchyOp(set_status=child)))

    def set_strategy(self, strategy: PeerStrategy) -> Self:
        """Set whose peers count."""
        op = PeerStrategyOp(set=SetPeerStrategy(strategy=strategy))
        return self._add(SystemOp(strategy=op))

    def set_invite_status(self, token_hash: bytes, status: InviteStatus) -> Self:
        """Set whether an invite is valid."""
        op = InviteOp(token_hash=token_hash, set_status=SetInviteStatus(status=status))
        return self._add(SystemOp(invite=op))

    def set_invite_invited_by(self, token_hash: bytes, by: bytes) -> Self:
        """Set who made an invite."""
        op = InviteOp(token_hash=token_hash, set_invited_by=SetInviteInvitedBy(pubkey=by))
        return self._add(SystemOp(invite=op))

    def set_invite_claimed_by(self, token_hash: bytes, by: bytes) -> Self:
        """Set who used an invite."""
        op = InviteOp(token_hash=token_hash, set_claimed_by=SetInviteClaimedBy(pubkey=by))
        return self._add(SystemOp(invite=op))

    def _peer(self, op: PeerOp) -> Self:
        return self._add(SystemOp(peer=op))

    def _add(self, op: SystemOp) -> Self:
        self._ops.append(op)
        return self

    def proposal(self, reader: SystemReader) -> Proposal[Written] | None:
        """Return the intention's payload and dependencies; None if there is no operation."""
        if not self._ops:
            return None
        # "one op is sent bare, several as SystemBatch"
        op = self._ops[0]
        if len(self._ops) > 1:
            op = SystemOp(batch=SystemOps(ops=tuple(self._ops)))
        # The heads of every key that is written: a removal supersedes a status set before it.
        deps = {head for key in final_changes(op) for head in reader.table.heads(key)}
        return Proposal(UniversalOp(system=op).encode(), sorted(deps))


def genesis_payload(kind: str, nonce: int) -> bytes:
    """Return the payload of a store's first intention."""
    return UniversalOp(genesis=GenesisOp(store_type=kind, nonce=nonce)).encode()


def synthetic_genesis(store_id: bytes, kind: str) -> SignedIntention:
    """Return the genesis of a store that was made without one: the same on every node."""
    nonce = int.from_bytes(store_id[:4], "little")
    # Its author is nobody's key: everyone can derive it, so it authorises nothing.
    author = KeyPair(blake3(SYNTHETIC_SEED + store_id))
    payload = genesis_payload(kind, nonce)
    return Intention(author.public_key, HLC_ZERO, store_id, ZERO, (), payload).sign(author)


# --- routing --------------------------------------------------------------------------------------


class SystemLayer:
    """What the state of a store runs: the system table, and the machine behind the envelope."""

    def __init__(self, machine: Machine) -> None:
        self.machine: Final = machine
        self.kind: Final = machine.kind
        self.schema: Final = machine.schema

    def apply(self, op: Op, tables: StateTables, dag: Dag) -> tuple[Message, ...]:
        """Change the state by one operation; return the events.

        Raises: BadFormat: the payload is no envelope, or no payload of the machine.
        """
        # "none set / empty payload: only the chain tip moves"
        envelope = UniversalOp.decode(op.payload)
        if envelope.app_data is not None:
            inner = op._replace(payload=envelope.app_data)
            return tuple(self.machine.apply(inner, tables.data, ScopedDag(dag, app_payload)))
        if envelope.system is not None:
            return tuple(_apply_system(op, envelope.system, tables.system, dag))
        if envelope.genesis is not None:
            _keep_genesis(op, tables.meta, dag)
        return ()

    def execute(
        self, name: str, request: Message, data: StateReader, dag: Dag
    ) -> Proposal[Message]:
        """Run a command of the machine; its payload comes in the envelope.

        Raises: as `Machine.execute`.
        """
        proposal = self.machine.execute(name, request, data, ScopedDag(dag, app_payload))
        return replace(proposal, payload=UniversalOp(app_data=proposal.payload).encode())

    def query(self, name: str, request: Message, data: StateReader, dag: Dag) -> Message:
        """Answer a query of the machine. Raises: as `Machine.query`."""
        return self.machine.query(name, request, data, ScopedDag(dag, app_payload))


def app_payload(payload: bytes) -> bytes:
    """Return the machine's part of a payload; empty where it has none."""
    return UniversalOp.decode(payload).app_data or b""


def system_op(payload: bytes) -> SystemOp | None:
    """Return the system operation in a payload; None where it has none."""
    return UniversalOp.decode(payload).system


class ScopedDag:
    """A view of the operations in which each has only its payload of one kind."""

    def __init__(self, dag: Dag, unwrap: Callable[[bytes], bytes]) -> None:
        self._dag = dag
        self._unwrap = unwrap

    def intention(self, hash: bytes) -> Op:
        """Return an operation; one of another kind has an empty payload."""
        found = self._dag.intention(hash)
        return found._replace(payload=self._unwrap(found.payload))

    def is_ancestor(self, ancestor: bytes, descendant: bytes) -> bool:
        """Return whether dependencies lead from `descendant` to `ancestor`."""
        return self._dag.is_ancestor(ancestor, descendant)

    def find_lca(self, first: bytes, second: bytes) -> bytes:
        """Return the lowest common ancestor."""
        return self._dag.find_lca(first, second)

    def path(self, start: bytes, to: bytes) -> list[bytes]:
        """Return the operations between two."""
        return self._dag.path(start, to)


def _apply_system(op: Op, system: SystemOp, state: StateWriter, dag: Dag) -> Iterator[SystemEvent]:
    # Each key once, with its last value; "the same op again changes nothing and emits nothing".
    table = HeadTable(state, dag.intention, _values_of)
    for key, winner in table.apply_all(op, final_changes(system)).items():
        event = event_of(key, winner.value)
        if event is not None:
            yield event


def _values_of(payload: bytes) -> dict[bytes, bytes | None]:
    system = system_op(payload)
    return {} if system is None else final_changes(system)


def _keep_genesis(op: Op, meta: StateWriter, dag: Dag) -> None:
    # Only the creator writes one. Where an older node left several, the first by stamp and hash
    # counts, whatever the order of arrival.
    kept = meta.get(GENESIS_KEY)
    if kept is None or (op.stamp, op.hash) < (dag.intention(kept).stamp, kept):
        meta.put(GENESIS_KEY, op.hash)
