"""Weaver on the network: messages, conversation, replica."""

from __future__ import annotations

from datalattice.sync.weaver.comparisons import (
    LogComparison,
    LogView,
    RangeComparison,
    ReplicatedStore,
)
from datalattice.sync.weaver.conversation import (
    CHAINS_OPEN,
    FETCH_HASHES_ACCEPTED,
    PROTOCOL,
    SESSIONS_MAX,
    SILENCE_MS,
    NewsMessage,
    WeaverConversation,
    WeaverProtocol,
)
from datalattice.sync.weaver.gaps import CHAIN_MAX, ChainGaps
from datalattice.sync.weaver.joining import JOIN_PROTOCOL, Application, Door, JoinReplica
from datalattice.sync.weaver.messages import (
    ALPN,
    FRAMING,
    BootstrapRequest,
    BootstrapResponse,
    FetchChain,
    FetchIntentions,
    GossipMessage,
    IntentionResponse,
    JoinRequest,
    JoinResponse,
    PeerMessage,
    ReconcilePayload,
    SyncDone,
    topic_of,
)
from datalattice.sync.weaver.replica import SEND_LIMITS, SendLimits, WeaverReplica

__all__ = [
    "ALPN",
    "CHAINS_OPEN",
    "CHAIN_MAX",
    "FETCH_HASHES_ACCEPTED",
    "FRAMING",
    "JOIN_PROTOCOL",
    "PROTOCOL",
    "SEND_LIMITS",
    "SESSIONS_MAX",
    "SILENCE_MS",
    "Application",
    "BootstrapRequest",
    "BootstrapResponse",
    "ChainGaps",
    "Door",
    "FetchChain",
    "FetchIntentions",
    "GossipMessage",
    "IntentionResponse",
    "JoinReplica",
    "JoinRequest",
    "JoinResponse",
    "LogComparison",
    "LogView",
    "NewsMessage",
    "PeerMessage",
    "RangeComparison",
    "ReconcilePayload",
    "ReplicatedStore",
    "SendLimits",
    "SyncDone",
    "WeaverConversation",
    "WeaverProtocol",
    "WeaverReplica",
    "topic_of",
]
