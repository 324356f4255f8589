"""Actions on the node itself: what it is, whom it is connected to."""

from __future__ import annotations

from typing import Annotated

from datalattice.actions.action import DELETE, GET, PUT, ActionKind, ActionRequest, action
from datalattice.actions.common import Empty
from datalattice.actions.formats import HASH, KEY, RAW
from datalattice.protobuf import Field, Message

_SERVICE = "lattice.daemon.v1.NodeService"


class DoorStatement(Message, name="lattice.daemon.v1.DoorStatement"):
    """What a node states of a key in a certificate of its doors: that it is its own.

    spki_sha256: of the certificate's SubjectPublicKeyInfo in DER. not_after_ms: when it ends.
    signature: of `client.network.statement_text`, by the key of the DID.
    """

    did: Annotated[str, Field(1)] = ""
    spki_sha256: Annotated[bytes, Field(2, codec=HASH)] = b""
    not_after_ms: Annotated[int, Field(3, "uint64")] = 0
    signature: Annotated[bytes, Field(4, codec=RAW)] = b""


class DoorStatements(Message, name="lattice.daemon.v1.DoorStatements"):
    """The statements of a node on the certificates of its doors."""

    doors: Annotated[tuple[DoorStatement, ...], Field(1)] = ()


class NodeInfo(Message, name="lattice.daemon.v1.NodeStatus"):
    """Who a node is. mesh_count: Weaver stores without a parent. Fields from 16 on are our own."""

    public_key: Annotated[bytes, Field(1)] = b""
    display_name: Annotated[str, Field(2)] = ""
    data_path: Annotated[str, Field(3)] = ""
    mesh_count: Annotated[int, Field(4, "uint32")] = 0
    version: Annotated[str, Field(16)] = ""
    owner: Annotated[bytes, Field(17)] = b""
    root_hash: Annotated[bytes, Field(18, codec=HASH)] = b""
    address: Annotated[str | None, Field(19)] = None
    doors: Annotated[tuple[DoorStatement, ...], Field(20)] = ()


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
    """Return who the node is, and its root. Open to all; only admins see the folder."""


class StoreTypes(Message, name="lattice.daemon.v1.StoreTypes"):
    """Kinds of Weaver stores that the node can make, in order."""

    items: Annotated[tuple[str, ...], Field(1)] = ()


@action(
    "node.store_types",
    ActionKind.QUERY,
    "r",
    "",
    GET("/store-types"),
    method=f"{_SERVICE}/ListStoreTypes",
)
class ListStoreTypes(ActionRequest[StoreTypes], name="datalattice.v1.ListStoreTypesRequest"):
    """Return the kinds of Weaver stores that the node can make."""


class NodePeer(Message, name="datalattice.v1.NodePeer"):
    """A peer of the node, and whether it has the same root."""

    address: Annotated[str, Field(1)] = ""
    public_key: Annotated[bytes | None, Field(2, codec=KEY)] = None
    connected: Annotated[bool, Field(3)] = False
    equal: Annotated[bool, Field(4)] = False


class NodePeers(Message, name="datalattice.v1.NodePeers"):
    """The peers of a node."""

    peers: Annotated[tuple[NodePeer, ...], Field(1)] = ()


@action("peers.list", ActionKind.QUERY, "r", "admin", GET("/peers"))
class ListPeers(ActionRequest[NodePeers], name="datalattice.v1.ListNodePeersRequest"):
    """Return the peers of the running node. Raises: PeerUnavailable: none runs."""


@action("peers.put", ActionKind.EFFECT, "a", "admin", PUT("/peers/{address}", 201))
class AddPeer(ActionRequest[Empty], name="datalattice.v1.AddPeerRequest"):
    """Have the running node connect to a peer: `host:port` or a ticket."""

    address: Annotated[str, Field(1)] = ""


@action("peers.remove", ActionKind.EFFECT, "a", "admin", DELETE("/peers/{address}"))
class RemovePeer(ActionRequest[Empty], name="datalattice.v1.RemovePeerRequest"):
    """Have the running node leave a peer."""

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
