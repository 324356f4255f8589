"""Handlers of the node's events, and of its name, which it sends to peers."""

from __future__ import annotations

import re
from typing import Final

from datalattice.actions import Empty, LaggedEvents, NameNode, NodeEvent, WatchNode
from datalattice.client import Folder, write_node_name
from datalattice.cursors import EventsMissed
from datalattice.errors import PeerUnavailable, UsageError
from datalattice.service.handlers.rings import events_of
from datalattice.service.registry import ServiceCall, Streamed, handles

_NAME_BYTES_MAX: Final = 255
"""Longest name of a node, in bytes of UTF-8."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@handles(WatchNode)
def watch_node(call: ServiceCall, request: WatchNode) -> Streamed[NodeEvent]:
    """Return the events of the node from now on."""
    if call.events is None:
        raise PeerUnavailable("no node runs here; start one with `lattice node start`")
    return events_of(call.events, request, _event)


def _event(event: NodeEvent | EventsMissed) -> NodeEvent:
    if isinstance(event, EventsMissed):
        return NodeEvent(lagged=LaggedEvents(count=event.count))
    return event


@handles(NameNode)
def name_node(call: ServiceCall, request: NameNode) -> Empty:
    """Name the node."""
    name, path = request.name, call.node.path
    # Peers print the name: control characters could change what their terminals show.
    if not name or _CONTROL.search(name) or len(name.encode()) > _NAME_BYTES_MAX:
        raise UsageError(
            f"name: 1 to {_NAME_BYTES_MAX} bytes without control characters, got {name!r:.80}"
        )
    if path is not None:
        write_node_name(Folder(path), name)
    # Peers learn the name through the Weaver stores that they share with this node.
    if call.node.stores():
        call.node.weaver.open_all()
        call.node.weaver.peers.set_name(name)
    return Empty()
