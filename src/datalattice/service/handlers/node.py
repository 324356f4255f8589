"""Handlers of the actions on the node itself."""

from __future__ import annotations

from datalattice.actions import (
    AddPeer,
    Empty,
    GetNodeStatus,
    ListPeers,
    ListStoreTypes,
    NodeInfo,
    NodePeer,
    NodePeers,
    RemovePeer,
    StoreTypes,
)
from datalattice.cells import value_hash
from datalattice.client import Folder, read_node_name
from datalattice.errors import NoSigningKey
from datalattice.service.registry import ServiceCall, handles
from datalattice.version import VERSION


@handles(GetNodeStatus)
def get_status(call: ServiceCall, request: GetNodeStatus) -> NodeInfo:
    """Return who the node is."""
    node = call.node
    try:
        owner = node.owner_key("own")
    except NoSigningKey:
        owner = None
    running = node.running
    identity = None if running is None else running.public_key
    return NodeInfo(
        public_key=b"" if identity is None else bytes.fromhex(identity),
        display_name=_display_name(call, has_owner=owner is not None),
        # Where data lies on the disk is nobody's business but the operator's.
        data_path=str(node.path or "") if call.is_operator else "",
        mesh_count=len(node.stores()),
        version=VERSION,
        owner=owner if isinstance(owner, bytes) else b"",
        root_hash=value_hash(node.cursor().get()),
        address=None if running is None else running.address,
        doors=call.doors(),
    )


def _display_name(call: ServiceCall, *, has_owner: bool) -> str:
    named = "" if call.node.path is None else read_node_name(Folder(call.node.path))
    return named or (str(call.node.owner) if has_owner else "")


@handles(ListStoreTypes)
def list_store_types(call: ServiceCall, request: ListStoreTypes) -> StoreTypes:
    """Return the kinds of Weaver stores."""
    return StoreTypes(items=tuple(call.node.weaver.kinds()))


@handles(ListPeers)
def list_peers(call: ServiceCall, request: ListPeers) -> NodePeers:
    """Return the peers of the running node."""
    return NodePeers(
        peers=tuple(
            NodePeer(
                address=str(peer.get("address") or ""),
                public_key=_key(peer.get("public_key")),
                connected=peer.get("connected") is True,
                equal=peer.get("equal") is True,
            )
            for peer in call.node.peers()
        )
    )


def _key(text: object) -> bytes | None:
    return bytes.fromhex(text) if isinstance(text, str) else None


@handles(AddPeer)
def add_peer(call: ServiceCall, request: AddPeer) -> Empty:
    """Have the running node connect to a peer."""
    call.node.add_peer(request.address)
    return Empty()


@handles(RemovePeer)
def remove_peer(call: ServiceCall, request: RemovePeer) -> Empty:
    """Have the running node leave a peer."""
    call.node.remove_peer(request.address)
    return Empty()
