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
from datalattice.sync.weaver.gossip import (
    ANNOUNCED_MAX,
    GRAFT_MS,
    NEIGHBOURS_MAX,
    GossipOffer,
    Neighbours,
)
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
    "ANNOUNCED_MAX",
    "CHAINS_OPEN",
    "CHAIN_MAX",
    "FETCH_HASHES_ACCEPTED",
    "FRAMING",
    "GRAFT_MS",
    "JOIN_PROTOCOL",
    "NEIGHBOURS_MAX",
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
    "GossipOffer",
    "IntentionResponse",
    "JoinReplica",
    "JoinRequest",
    "JoinResponse",
    "LogComparison",
    "LogView",
    "Neighbours",
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
