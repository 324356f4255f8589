"""Actions on the node itself: its status, its health, its peers, and to stop it."""

from __future__ import annotations

from typing import Annotated

from datalattice.actions.action import DELETE, GET, POST, PUT, ActionKind, ActionRequest, action
from datalattice.actions.common import Empty
from datalattice.actions.formats import CELL_FORMAT, HASH_FORMAT, HEX_FORMAT, KEY_FORMAT
from datalattice.cells import Value
from datalattice.protobuf import Field, Message

_SERVICE = "lattice.daemon.v1.NodeService"


class DoorStatement(Message, name="lattice.daemon.v1.DoorStatement"):
    """A node's signed statement that the key in a certificate of its doors is its own.

    spki_sha256: of the certificate's SubjectPublicKeyInfo in DER. not_after_ms: its end.
    signature: of `client.network.statement_text`, by the key of the DID.
    """

    did: Annotated[str, Field(1)] = ""
    spki_sha256: Annotated[bytes, Field(2, codec=HASH_FORMAT)] = b""
    not_after_ms: Annotated[int, Field(3, "uint64")] = 0
    signature: Annotated[bytes, Field(4, codec=HEX_FORMAT)] = b""


class DoorStatements(Message, name="lattice.daemon.v1.DoorStatements"):
    """The statements of a node on the certificates of its doors."""

    doors: Annotated[tuple[DoorStatement, ...], Field(1)] = ()


class VenueStats(Message, name="lattice.daemon.v1.VenueStats"):
    """Counts of a venue. users: callers with live jobs. ops: operations that it offers."""

    assets: Annotated[int, Field(1, "uint64")] = 0
    users: Annotated[int, Field(2, "uint64")] = 0
    ops: Annotated[int, Field(3, "uint64")] = 0


class NodeInfo(Message, name="lattice.daemon.v1.NodeStatus"):
    """The identity of a node. mesh_count: the number of Weaver stores without a parent.

    Fields from 16 on are not the reference's; those from `status` on are as a venue answers.
    ts: Unix milliseconds. url: of its first door.
    """

    public_key: Annotated[bytes, Field(1)] = b""
    display_name: Annotated[str, Field(2)] = ""
    data_path: Annotated[str, Field(3)] = ""
    mesh_count: Annotated[int, Field(4, "uint32")] = 0
    version: Annotated[str, Field(16)] = ""
    owner: Annotated[bytes, Field(17)] = b""
    root_hash: Annotated[bytes, Field(18, codec=HASH_FORMAT)] = b""
    address: Annotated[str | None, Field(19)] = None
    doors: Annotated[tuple[DoorStatement, ...], Field(20)] = ()
    status: Annotated[str, Field(21)] = "OK"
    ts: Annotated[int, Field(22, "uint64")] = 0
    did: Annotated[str, Field(23)] = ""
    name: Annotated[str, Field(24)] = ""
    url: Annotated[str, Field(25)] = ""
    stats: Annotated[VenueStats | None, Field(26)] = None


# Open to all: "`/api/v1/status` serve the statements to all callers" (docs/rest.md "TLS"), who know
# by them that they reach this node.
@action(
    "node.status",
    ActionKind.QUERY,
    "r",
    "",
    GET("/status"),
    method=f"{_SERVICE}/GetStatus",
    is_tool=True,
)
class GetNodeStatus(ActionRequest[NodeInfo], name="datalattice.v1.GetNodeStatusRequest"):
    """Return the keys, name, version and root of the node. Open to all; admins see its folder."""


class StoreTypes(Message, name="lattice.daemon.v1.StoreTypes"):
    """Kinds of Weaver stores that the node can create, in order."""

    items: Annotated[tuple[str, ...], Field(1)] = ()


# Open to all: the kinds are those of the program, and say nothing about its data.
@action(
    "node.store_types",
    ActionKind.QUERY,
    "r",
    "",
    GET("/store-types"),
    method=f"{_SERVICE}/ListStoreTypes",
)
class ListStoreTypes(ActionRequest[StoreTypes], name="datalattice.v1.ListStoreTypesRequest"):
    """Return the kinds of Weaver stores that the node can create."""


class NodePeer(Message, name="datalattice.v1.NodePeer"):
    """A peer of the node, or one that connected by itself.

    joined: whether it receives changes. equal: whether it has the same root; None: not known.
    source: from where the node has its address. reason: the error of the last attempt to connect.
    refusal: why a part of its last value was refused. suspicion: what it sent that an honest peer
    does not send. Times are in Unix milliseconds.
    """

    address: Annotated[str | None, Field(1)] = None
    public_key: Annotated[bytes | None, Field(2, codec=KEY_FORMAT)] = None
    connected: Annotated[bool, Field(3)] = False
    equal: Annotated[bool | None, Field(4)] = None
    proved: Annotated[bool, Field(5)] = False
    failures: Annotated[int, Field(6, "uint32")] = 0
    reason: Annotated[str, Field(7)] = ""
    source: Annotated[str, Field(8)] = ""
    connected_since_ms: Annotated[int | None, Field(9, "int64")] = None
    last_seen_ms: Annotated[int | None, Field(10, "int64")] = None
    refusal: Annotated[str | None, Field(11)] = None
    refused_since_ms: Annotated[int | None, Field(12, "int64")] = None
    suspicion: Annotated[str | None, Field(13)] = None
    suspected_ms: Annotated[int | None, Field(14, "int64")] = None
    joined: Annotated[bool | None, Field(15)] = None
    bytes_in: Annotated[int, Field(16, "uint64")] = 0
    bytes_out: Annotated[int, Field(17, "uint64")] = 0


class NodeHealth(Message, name="datalattice.v1.NodeHealth"):
    """The health of a running node. `reasons` is empty if it is healthy.

    reasons, counters: Maps by name. sections: a Map of the hash of each section, in hex, by name.
    unchanged_ms: time since the last new root. guests: peers that connected by themselves.
    """

    pid: Annotated[int, Field(1, "uint32")] = 0
    version: Annotated[str, Field(2)] = ""
    started_ms: Annotated[int, Field(3, "int64")] = 0
    address: Annotated[str | None, Field(4)] = None
    http: Annotated[str | None, Field(5)] = None
    public_key: Annotated[bytes | None, Field(6, codec=KEY_FORMAT)] = None
    owner: Annotated[bytes | None, Field(7, codec=KEY_FORMAT)] = None
    fenced: Annotated[bool, Field(8)] = False
    root_hash: Annotated[bytes, Field(9, codec=HASH_FORMAT)] = b""
    unchanged_ms: Annotated[int, Field(10, "uint64")] = 0
    health: Annotated[str, Field(11)] = ""
    reasons: Annotated[Value, Field(12, codec=CELL_FORMAT)] = None
    damage: Annotated[tuple[str, ...], Field(13)] = ()
    over_quota: Annotated[tuple[str, ...], Field(14)] = ()
    connections: Annotated[int, Field(15, "uint32")] = 0
    bytes_in: Annotated[int, Field(16, "uint64")] = 0
    bytes_out: Annotated[int, Field(17, "uint64")] = 0
    missing_cells: Annotated[int, Field(18, "uint64")] = 0
    store_bytes: Annotated[int | None, Field(19, "uint64")] = None
    memory_bytes: Annotated[int, Field(20, "uint64")] = 0
    sections: Annotated[Value, Field(21, codec=CELL_FORMAT)] = None
    peers: Annotated[tuple[NodePeer, ...], Field(22)] = ()
    guests: Annotated[tuple[NodePeer, ...], Field(23)] = ()
    counters: Annotated[Value, Field(24, codec=CELL_FORMAT)] = None


# For admins, while `node.status` is open: peers, paths and reasons reveal much about a machine.
@action("node.health", ActionKind.QUERY, "r", "admin", GET("/health"))
class GetNodeHealth(ActionRequest[NodeHealth], name="datalattice.v1.GetNodeHealthRequest"):
    """Return the health and the peers of the running node. Raises: PeerUnavailable: none runs."""


class NodeRoot(Message, name="datalattice.v1.NodeRoot"):
    """The hash of the value that the node announces to its peers."""

    root_hash: Annotated[bytes, Field(1, codec=HASH_FORMAT)] = b""


# QUERY: it waits and changes nothing, so a client that lost the connection asks again.
@action("node.wait", ActionKind.QUERY, "r", "admin", GET("/node/root"))
class WaitForRoot(ActionRequest[NodeRoot], name="datalattice.v1.WaitForRootRequest"):
    """Return the root of the running node as soon as it differs from `known`.

    After `timeout_ms`, 30,000 at most, return it unchanged.
    """

    known: Annotated[bytes | None, Field(1, codec=HASH_FORMAT)] = None
    timeout_ms: Annotated[int, Field(2, "uint32")] = 0


# EFFECT: a node that is stopping already answers in the same way.
@action("node.stop", ActionKind.EFFECT, "a", "admin", DELETE("/node"))
class StopNode(ActionRequest[Empty], name="datalattice.v1.StopNodeRequest"):
    """Stop the running node: it finishes requests in flight within seconds and stores all writes.

    It answers first, then stops; its store is closed when the lock of the store is free.
    """


@action("node.drain", ActionKind.EFFECT, "a", "admin", POST("/node/drain", 202))
class DrainNode(ActionRequest[Empty], name="datalattice.v1.DrainNodeRequest"):
    """Close the doors of the running node; the node stays connected to its peers.

    It answers at once. From then on health says "draining" and the doors refuse requests; requests
    in flight have `limits.drain_s` seconds, and streams end with their resume tokens.
    """


class NodePeers(Message, name="datalattice.v1.NodePeers"):
    """The peers of a node."""

    peers: Annotated[tuple[NodePeer, ...], Field(1)] = ()


class ReloadedSettings(Message, name="datalattice.v1.ReloadedSettings"):
    """The changed settings that take effect at the next start."""

    waiting: Annotated[tuple[str, ...], Field(1)] = ()


# EFFECT: to read unchanged settings again changes nothing.
@action("node.reload", ActionKind.EFFECT, "a", "admin", POST("/reload"))
class ReloadSettings(ActionRequest[ReloadedSettings], name="datalattice.v1.ReloadSettingsRequest"):
    """Make the running node read its settings, rules and certificates again.

    Raises: UsageError: one is invalid, and nothing was changed.
    """


# `r` on `admin` shows peers; to change them takes `a`.
@action("peers.list", ActionKind.QUERY, "r", "admin", GET("/peers"))
class ListPeers(ActionRequest[NodePeers], name="datalattice.v1.ListNodePeersRequest"):
    """Return the peers of the running node. Raises: PeerUnavailable: none runs."""


# EFFECT: to merge the same value twice changes nothing.
@action("peers.pull", ActionKind.EFFECT, "a", "admin", POST("/pulls"))
class PullPeers(ActionRequest[NodeRoot], name="datalattice.v1.PullPeersRequest"):
    """Fetch and merge the data of all connected peers, or of one; return the root, on disk.

    Raises: PeerUnavailable: the peer is not connected. Timeout.
    """

    address: Annotated[str | None, Field(1)] = None


# EFFECT: to add a wanted peer again changes nothing.
@action("peers.put", ActionKind.EFFECT, "a", "admin", PUT("/peers/{address}", 201))
class AddPeer(ActionRequest[Empty], name="datalattice.v1.AddPeerRequest"):
    """Keep the running node connected to a peer: `host:port`, a ticket, or a key in hex."""

    address: Annotated[str, Field(1)] = ""


@action("peers.remove", ActionKind.EFFECT, "a", "admin", DELETE("/peers/{address}"))
class RemovePeer(ActionRequest[Empty], name="datalattice.v1.RemovePeerRequest"):
    """Disconnect the running node from a peer, named as it was added or by its key."""

    address: Annotated[str, Field(1)] = ""


@action(
    "node.set_name",
    ActionKind.EFFECT,
    "a",
    "admin",
    PUT("/node/name"),
    method=f"{_SERVICE}/SetName",
)
class NameNode(ActionRequest[Empty], name="lattice.daemon.v1.SetNameRequest"):
    """Name the node, and tell the peers of each Weaver store that has peers of its own."""

    name: Annotated[str, Field(1)] = ""
