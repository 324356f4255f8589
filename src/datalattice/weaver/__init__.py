"""Weaver: signed operations, a log of them on every node, and state machines that fold it."""

from __future__ import annotations

from datalattice.weaver.appendlog import (
    AppendRequest as AppendRequest,
    LogMachine as LogMachine,
    ReadRequest as ReadRequest,
    ReadResponse as ReadResponse,
)
from datalattice.weaver.dag import (
    Branch as Branch,
    DagNode as DagNode,
    NoCommonAncestor as NoCommonAncestor,
    branches as branches,
    find_lca as find_lca,
    is_ancestor as is_ancestor,
    path as path,
)
from datalattice.weaver.events import EVENTS_MAX as EVENTS_MAX
from datalattice.weaver.fence import Doubt as Doubt
from datalattice.weaver.frontier import (
    Observation as Observation,
    Unacknowledged as Unacknowledged,
    ack_deps as ack_deps,
    frontier as frontier,
    is_ack_pending as is_ack_pending,
    observations as observations,
    unacknowledged as unacknowledged,
)
from datalattice.weaver.fsck import LogFault as LogFault, fsck as fsck, rebuild as rebuild
from datalattice.weaver.graph import GraphNode as GraphNode, draw_graph as draw_graph
from datalattice.weaver.handles import (
    RAW_CODEC as RAW_CODEC,
    TEXT_CODEC as TEXT_CODEC,
    Codec as Codec,
    MachineStore as MachineStore,
    StoreHandle as StoreHandle,
)
from datalattice.weaver.heads import (
    HeadReader as HeadReader,
    HeadTable as HeadTable,
    Winner as Winner,
)
from datalattice.weaver.headvalue import HeadValue as HeadValue
from datalattice.weaver.ingest import (
    FloatingFull as FloatingFull,
    Fork as Fork,
    Ingested as Ingested,
    MissingPrev as MissingPrev,
)
from datalattice.weaver.intention import (
    LOG_LIMITS as LOG_LIMITS,
    ZERO_HASH as ZERO_HASH,
    Intention as Intention,
    IntentionRefused as IntentionRefused,
    LogLimits as LogLimits,
    PayloadTooLarge as PayloadTooLarge,
    SignedIntention as SignedIntention,
    TooManyCausalDeps as TooManyCausalDeps,
    admission as admission,
    admit as admit,
    envelope_hash as envelope_hash,
)
from datalattice.weaver.invite import InviteToken as InviteToken
from datalattice.weaver.kv import (
    DeleteOp as DeleteOp,
    DeleteRequest as DeleteRequest,
    KvMachine as KvMachine,
    KvPayload as KvPayload,
    Operation as Operation,
    PutOp as PutOp,
    PutRequest as PutRequest,
    written_by as written_by,
)
from datalattice.weaver.kvstore import (
    KeyUpdate as KeyUpdate,
    KVStore as KVStore,
    Version as Version,
    heads_at as heads_at,
)
from datalattice.weaver.log import (
    Floating as Floating,
    IntentionLog as IntentionLog,
    NotInChain as NotInChain,
    WitnessEntry as WitnessEntry,
)
from datalattice.weaver.logstore import (
    LogConsumer as LogConsumer,
    LogRecord as LogRecord,
    LogStore as LogStore,
)
from datalattice.weaver.machine import (
    Dag as Dag,
    InvalidParams as InvalidParams,
    Machine as Machine,
    MethodKind as MethodKind,
    Proposal as Proposal,
    StateReader as StateReader,
    StateWriter as StateWriter,
    UnknownMethod as UnknownMethod,
    Written as Written,
    command as command,
    query as query,
    stream as stream,
)
from datalattice.weaver.null import NullMachine as NullMachine
from datalattice.weaver.op import Appended as Appended, Op as Op
from datalattice.weaver.policy import PeerManager as PeerManager, PeerPolicy as PeerPolicy
from datalattice.weaver.presence import (
    PeerPresence as PeerPresence,
    SeenMatrix as SeenMatrix,
    SyncedPeer as SyncedPeer,
)
from datalattice.weaver.rows import LOG_TABLES as LOG_TABLES, Head as Head, Tip as Tip
from datalattice.weaver.sexpr import SExpr as SExpr, SymbolWord as SymbolWord
from datalattice.weaver.snapshot import SnapshotRefused as SnapshotRefused
from datalattice.weaver.state import (
    LOG_START as LOG_START,
    Event as Event,
    PlainLayer as PlainLayer,
    Position as Position,
    Projection as Projection,
    Stall as Stall,
    State as State,
    StoreIdMismatch as StoreIdMismatch,
    StoreTypeMismatch as StoreTypeMismatch,
)
from datalattice.weaver.store import (
    REQUESTS as REQUESTS,
    Once as Once,
    StoreStatus as StoreStatus,
    StoreView as StoreView,
    Subscription as Subscription,
    WeaverStore as WeaverStore,
)
from datalattice.weaver.storeid import (
    parse_store_id as parse_store_id,
    store_id_text as store_id_text,
)
from datalattice.weaver.stores import (
    CORE_MACHINES as CORE_MACHINES,
    STORE_TABLES as STORE_TABLES,
    StoreInfo as StoreInfo,
    Stores as Stores,
)
from datalattice.weaver.summary import Summary as Summary, summarize as summarize
from datalattice.weaver.system import (
    StorePeer as StorePeer,
    SystemBatch as SystemBatch,
    SystemEvent as SystemEvent,
    SystemEventKind as SystemEventKind,
    SystemReader as SystemReader,
    app_payload as app_payload,
)
from datalattice.weaver.systemops import (
    ChildStatus as ChildStatus,
    InviteStatus as InviteStatus,
    PeerStatus as PeerStatus,
    PeerStrategy as PeerStrategy,
    UniversalOp as UniversalOp,
    synthetic_genesis as synthetic_genesis,
)
from datalattice.weaver.tables import STATE_TABLES as STATE_TABLES, Overlay as Overlay
from datalattice.weaver.witness import (
    ChainBroken as ChainBroken,
    ChainEnd as ChainEnd,
    WitnessRecord as WitnessRecord,
    check_chain as check_chain,
)
