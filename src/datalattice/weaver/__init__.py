"""Weaver: signed operations, a log of them on every node, and state machines that fold it."""

from __future__ import annotations

from datalattice.weaver.appendlog import LogMachine
from datalattice.weaver.dag import (
    Branch,
    NoCommonAncestor,
    Node,
    branches,
    find_lca,
    is_ancestor,
    path,
)
from datalattice.weaver.frontier import (
    Observation,
    Unacknowledged,
    ack_deps,
    encode_frontier_message,
    frontier,
    is_ack_pending,
    observations,
    stable_frontier,
    unacknowledged,
)
from datalattice.weaver.fsck import Fault, fsck, rebuild
from datalattice.weaver.heads import HeadReader, HeadTable
from datalattice.weaver.ingest import FloatingFull, Fork, Ingested, MissingPrev
from datalattice.weaver.intention import (
    LOG_LIMITS,
    ZERO,
    Intention,
    IntentionRefused,
    LogLimits,
    PayloadTooLarge,
    SignedIntention,
    TooManyCausalDeps,
    admit,
)
from datalattice.weaver.invite import InviteToken
from datalattice.weaver.kv import KvMachine
from datalattice.weaver.log import Entry, Floating, IntentionLog, NotInChain
from datalattice.weaver.machine import (
    Dag,
    InvalidParams,
    Machine,
    Op,
    Proposal,
    StateReader,
    StateWriter,
    UnknownMethod,
    Written,
    command,
    query,
    stream,
)
from datalattice.weaver.null import NullMachine
from datalattice.weaver.rows import LOG_TABLES, Head, Tip
from datalattice.weaver.snapshot import SnapshotRefused
from datalattice.weaver.state import (
    Event,
    PlainLayer,
    Projection,
    Stall,
    State,
    StoreIdMismatch,
    StoreTypeMismatch,
)
from datalattice.weaver.storeid import (
    STORE_ID_BYTES,
    new_store_id,
    parse_store_id,
    store_id_text,
)
from datalattice.weaver.tables import STATE_TABLES
from datalattice.weaver.witness import ChainBroken, ChainEnd, WitnessRecord, check_chain

__all__ = [
    "LOG_LIMITS",
    "LOG_TABLES",
    "STATE_TABLES",
    "STORE_ID_BYTES",
    "ZERO",
    "Branch",
    "ChainBroken",
    "ChainEnd",
    "Dag",
    "Entry",
    "Event",
    "Fault",
    "Floating",
    "FloatingFull",
    "Fork",
    "Head",
    "HeadReader",
    "HeadTable",
    "Ingested",
    "Intention",
    "IntentionLog",
    "IntentionRefused",
    "InvalidParams",
    "InviteToken",
    "KvMachine",
    "LogLimits",
    "LogMachine",
    "Machine",
    "MissingPrev",
    "NoCommonAncestor",
    "Node",
    "NotInChain",
    "NullMachine",
    "Observation",
    "Op",
    "PayloadTooLarge",
    "PlainLayer",
    "Projection",
    "Proposal",
    "SignedIntention",
    "SnapshotRefused",
    "Stall",
    "State",
    "StateReader",
    "StateWriter",
    "StoreIdMismatch",
    "StoreTypeMismatch",
    "Tip",
    "TooManyCausalDeps",
    "Unacknowledged",
    "UnknownMethod",
    "WitnessRecord",
    "Written",
    "ack_deps",
    "admit",
    "branches",
    "check_chain",
    "command",
    "encode_frontier_message",
    "find_lca",
    "frontier",
    "fsck",
    "is_ack_pending",
    "is_ancestor",
    "new_store_id",
    "observations",
    "parse_store_id",
    "path",
    "query",
    "rebuild",
    "stable_frontier",
    "store_id_text",
    "stream",
    "unacknowledged",
]
