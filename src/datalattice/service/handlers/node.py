"""Handlers of the actions on the node itself."""

from __future__ import annotations

from typing import TypeVar

from datalattice.actions import (
    ActionRequest,
    AddPeer,
    CancelTask,
    DecideHosting,
    DrainNode,
    ForgetOwner,
    ForgetRoots,
    GetHosting,
    GetNodeHealth,
    GetNodeStatus,
    GetTask,
    ListPeers,
    ListStoreTypes,
    ListTasks,
    NodeInfo,
    NodePeers,
    PullPeers,
    ReloadSettings,
    RemovePeer,
    ResolveFork,
    StartTask,
    StopNode,
    StoreTypes,
    TaskInfo,
    VenueStats,
    WaitForRoot,
    WatchTask,
)
from datalattice.cells import value_hash
from datalattice.client import Folder, read_node_name
from datalattice.clock import SystemClock
from datalattice.errors import NoSigningKey
from datalattice.lattice import did_of
from datalattice.protobuf import Message
from datalattice.service.registry import ServiceCall, Streamed, handles
from datalattice.service.relay import Relay
from datalattice.service.venue import VenueHost
from datalattice.version import VERSION

M = TypeVar("M", bound=Message)


@handles(GetNodeStatus)
def get_status(call: ServiceCall, request: GetNodeStatus) -> NodeInfo:
    """Return the keys, name, version and root of the node."""
    node = call.node
    try:
        owner = node.owner_key("own")
    except NoSigningKey:
        # A folder without a key has a status, too: reading needs none.
        owner = None
    running = node.running
    identity = None if running is None else running.public_key
    name = _display_name(call, has_owner=owner is not None)
    return NodeInfo(
        public_key=b"" if identity is None else bytes.fromhex(identity),
        display_name=name,
        # Only the operator sees where data lies on the disk.
        data_path=str(node.path or "") if call.is_operator else "",
        mesh_count=len(node.stores()),
        version=VERSION,
        owner=owner if isinstance(owner, bytes) else b"",
        root_hash=value_hash(node.cursor().get()),
        address=None if running is None else running.address,
        doors=call.doors(),
        ts=SystemClock().now_ms(),
        did=did_of(owner) if isinstance(owner, bytes) else "",
        name=name,
        url=next(iter(call.urls()), ""),
        stats=None if call.venue is None else _stats(call, call.venue),
    )


def _stats(call: ServiceCall, venue: VenueHost) -> VenueStats:
    runner = venue.runner
    assets = call.node.venue().asset_count()
    return VenueStats(assets=assets, users=runner.callers, ops=len(runner.operations()))


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
    return NodePeers(peers=call.node.ask(GetNodeHealth()).peers)


# --- done by the running node ---------------------------------------------------------------------


# "The node does the actions that need its writer (`node/operations.py`), each durable when it
# answers" (docs/design/control.md).
@handles(GetNodeHealth)
@handles(WaitForRoot)
@handles(StopNode)
@handles(DrainNode)
@handles(ReloadSettings)
@handles(PullPeers)
@handles(AddPeer)
@handles(RemovePeer)
@handles(GetHosting)
@handles(DecideHosting)
@handles(ForgetOwner)
@handles(ForgetRoots)
@handles(ResolveFork)
@handles(StartTask)
@handles(ListTasks)
@handles(GetTask)
@handles(CancelTask)
def ask_node(call: ServiceCall, request: ActionRequest[M]) -> M:
    """Ask the running node to do the action."""
    return call.node.ask(request, call.asker)


@handles(WatchTask)
def watch_task(call: ServiceCall, request: WatchTask) -> Streamed[TaskInfo]:
    """Return the progress of a task."""
    states: Relay[TaskInfo] = Relay(call.node.follow(request, call.asker))
    return Streamed(states, lambda info: info)
