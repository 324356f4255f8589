"""Weaver on the network: messages, conversation, replica."""

from __future__ import annotations

from datalattice.sync.weaver.comparisons import (
    LOT_BYTES as LOT_BYTES,
    LOT_RECORDS as LOT_RECORDS,
    LogComparison as LogComparison,
    LogView as LogView,
    RangeComparison as RangeComparison,
    ReplicatedStore as ReplicatedStore,
    SketchComparison as SketchComparison,
)
from datalattice.sync.weaver.conversation import (
    CHAINS_OPEN as CHAINS_OPEN,
    FETCH_AHEAD_MS as FETCH_AHEAD_MS,
    FETCH_HASHES_MAX as FETCH_HASHES_MAX,
    FETCH_LOT as FETCH_LOT,
    FETCH_LOT_BYTES as FETCH_LOT_BYTES,
    FETCH_LOT_MS as FETCH_LOT_MS,
    FETCH_PART_MS as FETCH_PART_MS,
    SESSIONS_MAX as SESSIONS_MAX,
    SILENCE_MS as SILENCE_MS,
    SKETCHES as SKETCHES,
    WEAVER_PROTOCOL as WEAVER_PROTOCOL,
    NewsMessage as NewsMessage,
    WeaverConversation as WeaverConversation,
    WeaverProtocol as WeaverProtocol,
    probed_count as probed_count,
)
from datalattice.sync.weaver.gaps import CHAIN_MAX as CHAIN_MAX, ChainGaps as ChainGaps
from datalattice.sync.weaver.gossip import (
    ANNOUNCED_MAX as ANNOUNCED_MAX,
    GRAFT_MS as GRAFT_MS,
    NEIGHBOURS_MAX as NEIGHBOURS_MAX,
    GossipOffer as GossipOffer,
    Neighbours as Neighbours,
)
from datalattice.sync.weaver.joining import (
    JOIN_PROTOCOL as JOIN_PROTOCOL,
    Application as Application,
    JoinPolicy as JoinPolicy,
    JoinReplica as JoinReplica,
)
from datalattice.sync.weaver.messages import (
    ALPN as ALPN,
    FRAMING as FRAMING,
    BootstrapRequest as BootstrapRequest,
    BootstrapResponse as BootstrapResponse,
    FetchChain as FetchChain,
    FetchIntentions as FetchIntentions,
    IntentionResponse as IntentionResponse,
    JoinRequest as JoinRequest,
    JoinResponse as JoinResponse,
    NodeMessage as NodeMessage,
    PeerMessage as PeerMessage,
    ReconcilePayload as ReconcilePayload,
    SyncDone as SyncDone,
    topic_of as topic_of,
)
from datalattice.sync.weaver.replica import (
    SEND_LIMITS as SEND_LIMITS,
    SendLimits as SendLimits,
    WeaverReplica as WeaverReplica,
)
