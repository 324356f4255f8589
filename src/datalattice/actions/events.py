"""Actions on events of a node: a store opened, a join failed, a comparison ended."""

from __future__ import annotations

from typing import Annotated

from datalattice.actions.action import GET, ActionKind, ActionRequest, action
from datalattice.actions.common import RESUME_NUMBER
from datalattice.actions.formats import STORE_ID_FORMAT
from datalattice.protobuf import Field, Message


class LaggedEvents(Message, name="lattice.daemon.v1.LaggedEvents"):
    """The number of events that a slow reader missed; its stream ends with this."""

    count: Annotated[int, Field(1, "uint64")] = 0


class StoreReady(Message, name="lattice.daemon.v1.StoreReady"):
    """A Weaver store was opened, made or joined. root_id: the store without a parent above it."""

    root_id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    store_id: Annotated[bytes, Field(2, codec=STORE_ID_FORMAT)] = b""


class JoinFailed(Message, name="lattice.daemon.v1.JoinFailed"):
    """Joining a store failed for this reason."""

    root_id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    reason: Annotated[str, Field(2)] = ""


class StoreSynced(Message, name="lattice.daemon.v1.SyncResult"):
    """A requested comparison has ended.

    peers_synced: peers with which it was complete. entries_sent, entries_received: intentions sent
    to and received from all peers of the store meanwhile.
    """

    store_id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    peers_synced: Annotated[int, Field(2, "uint32")] = 0
    entries_sent: Annotated[int, Field(3, "uint64")] = 0
    entries_received: Annotated[int, Field(4, "uint64")] = 0


class NodeEvent(Message, name="lattice.daemon.v1.NodeEvent"):
    """An event at a node."""

    store_ready: Annotated[StoreReady | None, Field(2, oneof="event")] = None
    join_failed: Annotated[JoinFailed | None, Field(3, oneof="event")] = None
    sync_result: Annotated[StoreSynced | None, Field(4, oneof="event")] = None
    resume: Annotated[str, Field(RESUME_NUMBER)] = ""
    # Not of the reference, whose fields stay below 15.
    lagged: Annotated[LaggedEvents | None, Field(16, oneof="event")] = None


@action(
    "node.events",
    ActionKind.STREAM,
    "r",
    "admin",
    GET("/node/events"),
    method="lattice.daemon.v1.NodeService/Subscribe",
)
class WatchNode(ActionRequest[NodeEvent], name="datalattice.v1.WatchNodeRequest"):
    """Return the events of the node from now on: stores, joins and comparisons.

    A reader that falls behind by 128 events gets `lagged`, and the stream ends.
    Raises: PeerUnavailable: no node runs. StaleToken: `resume` is of an earlier start.
    """

    resume: Annotated[str, Field(RESUME_NUMBER)] = ""
