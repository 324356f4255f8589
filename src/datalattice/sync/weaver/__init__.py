"""Weaver on the network: messages, conversation, replica."""

from __future__ import annotations

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

__all__ = [
    "ALPN",
    "FRAMING",
    "BootstrapRequest",
    "BootstrapResponse",
    "FetchChain",
    "FetchIntentions",
    "GossipMessage",
    "IntentionResponse",
    "JoinRequest",
    "JoinResponse",
    "PeerMessage",
    "ReconcilePayload",
    "SyncDone",
    "topic_of",
]
