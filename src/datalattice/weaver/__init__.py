"""Weaver: signed operations, a log of them on every node, and state machines that fold it."""

from __future__ import annotations

from datalattice.weaver.appendlog import (
    AppendRequest,
    LogMachine,
    ReadRequest,
    ReadResponse,
)
from datalattice.weaver.dag import (
    Branch,
    DagNode,
    NoCommonAncestor,
    branches,
    find_lca,
    is_ancestor,
    path,
)
from datalattice.weaver.events import EVENTS_MAX
from datalattice.weaver.fence import Doubt
from datalattice.weaver.frontier import (
    Observation,
    Unacknowledged,
    ack_deps,
    frontier,
    is_ack_pending,
    observations,
    unacknowledged,
)
from datalattice.weaver.fsck import (
    LogFault,
    fsck,
    rebuild,
)
from datalattice.weaver.graph import GraphNode, draw_graph
from datalattice.weaver.handles import (
    RAW,
    TEXT,
    Codec,
    MachineStore,
    StoreHandle,
    StoreSource,
)
from datalattice.weaver.heads import (
    HeadReader,
    HeadTable,
    Winner,
)
from datalattice.weaver.headvalue import (
    Value,
)
from datalattice.weaver.ingest import (
    FloatingFull,
    Fork,
    Ingested,
    MissingPrev,
)
from datalattice.weaver.intention import (
    LOG_LIMITS,
    ZERO,
    Intention,
    IntentionRefused,
    LogLimits,
    PayloadTooLarge,
    SignedIntention,
    TooManyCausalDeps,
    admission,
    admit,
    name_of,
)
from datalattice.weaver.invite import (
    InviteToken,
)
from datalattice.weaver.kv import (
    DeleteOp,
    DeleteRequest,
    KvMachine,
    KvPayload,
    Operation,
    PutOp,
    PutRequest,
    written_by,
)
from datalattice.weaver.kvstore import (
    KeyUpdate,
    KVStore,
    Version,
    heads_at,
)
from datalattice.weaver.log import (
    Floating,
    IntentionLog,
    NotInChain,
    WitnessEntry,
)
from datalattice.weaver.logstore import LogConsumer, LogRecord, LogStore
from datalattice.weaver.machine import (
    Dag,
    InvalidParams,
    Machine,
    MethodKind,
    Proposal,
    StateReader,
    StateWriter,
    UnknownMethod,
    Written,
    command,
    query,
    stream,
)
from datalattice.weaver.null import (
    NullMachine,
)
from datalattice.weaver.op import Appended, Op
from datalattice.weaver.policy import (
    PeerManager,
    PeerPolicy,
)
from datalattice.weaver.presence import PeerPresence, SeenMatrix, SyncedPeer
from datalattice.weaver.rows import (
    LOG_TABLES,
    Head,
    Tip,
)
from datalattice.weaver.sexpr import SExpr, SymbolWord
from datalattice.weaver.snapshot import (
    SnapshotRefused,
)
from datalattice.weaver.state import (
    START,
    Event,
    PlainLayer,
    Position,
    Projection,
    Stall,
    State,
    StoreIdMismatch,
    StoreTypeMismatch,
)
from datalattice.weaver.store import (
    REQUESTS,
    Once,
    StoreStatus,
    StoreView,
    Subscription,
    WeaverStore,
)
from datalattice.weaver.storeid import (
    STORE_ID_BYTES,
    new_store_id,
    parse_store_id,
    store_id_text,
)
from datalattice.weaver.stores import (
    CORE_MACHINES,
    STORE_TABLES,
    StoreInfo,
    Stores,
)
from datalattice.weaver.summary import Summary, summarize
from datalattice.weaver.system import (
    StorePeer,
    SystemBatch,
    SystemEvent,
    SystemEventKind,
    SystemReader,
    app_payload,
    system_op,
)
from datalattice.weaver.systemops import (
    ChildStatus,
    InviteStatus,
    PeerStatus,
    PeerStrategy,
    UniversalOp,
    synthetic_genesis,
)
from datalattice.weaver.tables import (
    STATE_TABLES,
    Overlay,
)
from datalattice.weaver.witness import (
    ChainBroken,
    ChainEnd,
    WitnessRecord,
    check_chain,
)

__all__ = [
    "CORE_MACHINES",
    "EVENTS_MAX",
    "LOG_LIMITS",
    "LOG_TABLES",
    "RAW",
    "REQUESTS",
    "START",
    "STATE_TABLES",
    "STORE_ID_BYTES",
    "STORE_TABLES",
    "TEXT",
    "ZERO",
    "AppendRequest",
    "Appended",
    "Branch",
    "ChainBroken",
    "ChainEnd",
    "ChildStatus",
    "Codec",
    "Dag",
    "DagNode",
    "DeleteOp",
    "DeleteRequest",
    "Doubt",
    "Event",
    "Floating",
    "FloatingFull",
    "Fork",
    "GraphNode",
    "Head",
    "HeadReader",
    "HeadTable",
    "Ingested",
    "Intention",
    "IntentionLog",
    "IntentionRefused",
    "InvalidParams",
    "InviteStatus",
    "InviteToken",
    "KVStore",
    "KeyUpdate",
    "KvMachine",
    "KvPayload",
    "LogConsumer",
    "LogFault",
    "LogLimits",
    "LogMachine",
    "LogRecord",
    "LogStore",
    "Machine",
    "MachineStore",
    "MethodKind",
    "MissingPrev",
    "NoCommonAncestor",
    "NotInChain",
    "NullMachine",
    "Observation",
    "Once",
    "Op",
    "Operation",
    "Overlay",
    "PayloadTooLarge",
    "PeerManager",
    "PeerPolicy",
    "PeerPresence",
    "PeerStatus",
    "PeerStrategy",
    "PlainLayer",
    "Position",
    "Projection",
    "Proposal",
    "PutOp",
    "PutRequest",
    "ReadRequest",
    "ReadResponse",
    "SExpr",
    "SeenMatrix",
    "SignedIntention",
    "SnapshotRefused",
    "Stall",
    "State",
    "StateReader",
    "StateWriter",
    "StoreHandle",
    "StoreIdMismatch",
    "StoreInfo",
    "StorePeer",
    "StoreSource",
    "StoreStatus",
    "StoreTypeMismatch",
    "StoreView",
    "Stores",
    "Subscription",
    "Summary",
    "SymbolWord",
    "SyncedPeer",
    "SystemBatch",
    "SystemEvent",
    "SystemEventKind",
    "SystemReader",
    "Tip",
    "TooManyCausalDeps",
    "Unacknowledged",
    "UniversalOp",
    "UnknownMethod",
    "Value",
    "Version",
    "WeaverStore",
    "Winner",
    "WitnessEntry",
    "WitnessRecord",
    "Written",
    "ack_deps",
    "admission",
    "admit",
    "app_payload",
    "branches",
    "check_chain",
    "command",
    "draw_graph",
    "find_lca",
    "frontier",
    "fsck",
    "heads_at",
    "is_ack_pending",
    "is_ancestor",
    "name_of",
    "new_store_id",
    "observations",
    "parse_store_id",
    "path",
    "query",
    "rebuild",
    "store_id_text",
    "stream",
    "summarize",
    "synthetic_genesis",
    "system_op",
    "unacknowledged",
    "written_by",
]
