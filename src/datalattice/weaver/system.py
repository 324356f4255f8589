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
from typing import Annotated, Final, Self

from datalattice.crypto import PUBLIC_KEY_BYTES
from datalattice.errors import UsageError
from datalattice.protobuf import Field, Message
from datalattice.weaver.heads import HeadReader, HeadTable
from datalattice.weaver.machine import (
    Dag,
    Machine,
    Proposal,
    StateReader,
    StateTables,
    StateWriter,
    Written,
)
from datalattice.weaver.op import Op
from datalattice.weaver.payloads import app_data, app_envelope
from datalattice.weaver.storeid import STORE_ID_BYTES
from datalattice.weaver.systemops import (
    INDEPENDENT,
    AddChild,
    ChildStatus,
    HierarchyOp,
    InviteOp,
    InviteStatus,
    PeerOp,
    PeerStatus,
    PeerStrategy,
    PeerStrategyOp,
    RemoveChild,
    SetChildStatus,
    SetInviteClaimedBy,
    SetInviteInvitedBy,
    SetInviteStatus,
    SetPeerAddedAt,
    SetPeerAddedBy,
    SetPeerName,
    SetPeerStatus,
    SetPeerStrategy,
    SetStoreName,
    StoreOp,
    SystemOp,
    SystemOps,
    UniversalOp,
    final_changes,
    invite_key,
    peer_key,
)

GENESIS_KEY: Final = b"genesis_hash"
"""Key of the table `state_meta`."""


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
        # One event of three: "remove_child writes tombstones to name, status, type"
        kind = SystemEventKind.CHILD_LINK_REMOVED if name == "name" else None
    return None if kind is None else SystemEvent(kind, bytes.fromhex(subject.replace("-", "")))


# --- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StorePeer:
    """The entry of a peer in the system table; None where nothing was written."""

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

    def strategy(self, missing: PeerStrategy = INDEPENDENT) -> PeerStrategy:
        """Return the strategy, `missing` where none was written."""
        found = self.table.get(b"strategy")
        return missing if found is None else PeerStrategy.decode(found)

    def peers(self) -> dict[bytes, StorePeer]:
        """Return the peers by public key, in key order."""
        return {
            key: StorePeer(
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
            # "A child exists when its name key is live." A peer may declare an id of any length; a
            # shorter one could be the key of other rows of this node.
            if "name" in found and len(id) == STORE_ID_BYTES
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
        # "0" follows "/": every key of the section.
        for key, value, _ in self.table.scan(section, section[:-1] + b"0"):
            subject, _, name = key[len(section) :].decode().partition("/")
            id = bytes.fromhex(subject.replace("-", ""))
            if id != current:
                if current is not None and values:
                    yield current, values
                current, values = id, {}
            if value is not None:  # a tombstone leaves the name out
                values[name] = value
        if current is not None and values:
            yield current, values


def _child_status(value: bytes | None) -> ChildStatus:
    if value is None:
        return ChildStatus.ACTIVE  # "default status active"
    try:
        return ChildStatus(int.from_bytes(value, "little", signed=True))
    except ValueError:
        return ChildStatus.UNKNOWN  # a status of a later version


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
        # A row is replicated for good, and a key of another length is no peer's.
        key: object = op.pubkey  # a caller may pass text
        if not isinstance(key, bytes) or len(key) != PUBLIC_KEY_BYTES:
            raise UsageError(f"the key of a peer is {PUBLIC_KEY_BYTES} bytes, got {key!r}")
        return self._add(SystemOp(peer=op))

    def _add(self, op: SystemOp) -> Self:
        self._ops.append(op)
        return self

    def proposal(self, reader: SystemReader) -> Proposal[Written] | None:
        """Return the intention's payload and dependencies; None if there is no operation."""
        if not self._ops:
            return None  # "empty commit does nothing"
        # "one op is sent bare, several as SystemBatch"
        op = self._ops[0]
        if len(self._ops) > 1:
            op = SystemOp(batch=SystemOps(ops=tuple(self._ops)))
        # The heads of every key that is written: a removal supersedes a status set before it.
        deps = {head for key in final_changes(op) for head in reader.table.heads(key)}
        return Proposal(UniversalOp(system=op).encode(), sorted(deps))


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
        found = app_data(op.payload)  # the fast path: nearly every payload is the machine's
        if found is not None:
            return self._apply_app(op, found, tables, dag)
        # "none set / empty payload: only the chain tip moves"
        envelope = UniversalOp.decode(op.payload)
        if envelope.app_data is not None:
            return self._apply_app(op, envelope.app_data, tables, dag)
        if envelope.system is not None:
            return tuple(_apply_system(op, envelope.system, tables.system, dag))
        if envelope.genesis is not None:
            # "store the intention's hash under meta genesis_hash"
            _keep_genesis(op, tables.meta, dag)
        return ()

    def _apply_app(
        self, op: Op, payload: bytes, tables: StateTables, dag: Dag
    ) -> tuple[Message, ...]:
        inner = op.with_payload(payload)
        return tuple(self.machine.apply(inner, tables.data, ScopedDag(dag, app_payload)))

    def execute(
        self, name: str, request: Message, data: StateReader, dag: Dag
    ) -> Proposal[Message]:
        """Run a command of the machine; its payload comes in the envelope.

        Raises: as `Machine.execute`.
        """
        proposal = self.machine.execute(name, request, data, ScopedDag(dag, app_payload))
        # "a writer that wraps each payload as app_data"
        return replace(proposal, payload=app_envelope(proposal.payload))

    def query(self, name: str, request: Message, data: StateReader, dag: Dag) -> Message:
        """Answer a query of the machine. Raises: as `Machine.query`."""
        return self.machine.query(name, request, data, ScopedDag(dag, app_payload))


def app_payload(payload: bytes) -> bytes:
    """Return the machine's part of a payload; empty where it has none."""
    data = app_data(payload)
    return (UniversalOp.decode(payload).app_data or b"") if data is None else data


def system_op(payload: bytes) -> SystemOp | None:
    """Return the system operation in a payload; None where it has none."""
    return UniversalOp.decode(payload).system


class ScopedDag:
    """The operations of a store, each with only the part of its payload that `unwrap` returns."""

    def __init__(self, dag: Dag, unwrap: Callable[[bytes], bytes]) -> None:
        self._dag = dag
        self._unwrap = unwrap

    def intention(self, hash: bytes) -> Op:
        """Return an operation; one of another kind has an empty payload."""
        found = self._dag.intention(hash)
        # "A look-up of an intention of the other kind yields an empty payload"
        return found.with_payload(self._unwrap(found.payload))

    def is_ancestor(self, ancestor: bytes, descendant: bytes) -> bool:
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
