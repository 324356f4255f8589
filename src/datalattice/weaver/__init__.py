"""Weaver: signed operations, a log of them on every node, and state machines that fold it."""

from __future__ import annotations

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
from datalattice.weaver.log import Entry, Floating, IntentionLog, NotInChain
from datalattice.weaver.rows import LOG_TABLES, Head, Tip
from datalattice.weaver.storeid import (
    STORE_ID_BYTES,
    new_store_id,
    parse_store_id,
    store_id_text,
)
from datalattice.weaver.witness import ChainBroken, ChainEnd, WitnessRecord, check_chain

__all__ = [
    "LOG_LIMITS",
    "LOG_TABLES",
    "STORE_ID_BYTES",
    "ZERO",
    "Branch",
    "ChainBroken",
    "ChainEnd",
    "Entry",
    "Fault",
    "Floating",
    "FloatingFull",
    "Fork",
    "Head",
    "Ingested",
    "Intention",
    "IntentionLog",
    "IntentionRefused",
    "InviteToken",
    "LogLimits",
    "MissingPrev",
    "NoCommonAncestor",
    "Node",
    "NotInChain",
    "Observation",
    "PayloadTooLarge",
    "SignedIntention",
    "Tip",
    "TooManyCausalDeps",
    "Unacknowledged",
    "WitnessRecord",
    "ack_deps",
    "admit",
    "branches",
    "check_chain",
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
    "rebuild",
    "stable_frontier",
    "store_id_text",
    "unacknowledged",
]
