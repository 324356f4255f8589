"""Commands `lattice node peers ...`: the peers of the running node, outbound and inbound."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from datalattice.actions import AddPeer, GetNodeHealth, RemovePeer, whole_document
from datalattice.cli.command import ANY, NODE_START, Call, command
from datalattice.cli.render import CommandResult, Listing
from datalattice.cli.units import size_text
from datalattice.errors import UsageError

if TYPE_CHECKING:
    from datalattice.client import ControlClient

app = typer.Typer(help="List, add and remove the peers of the running node.")

_KEY_DIGITS_SHOWN: Final = 16

_KEEP: Final = "put it into `peers` of node.toml, or start one with `lattice node start --peer`"
_KEY_BEFORE: Final = re.compile(r"[0-9a-fA-F]{64}@")

PeerArgument = Annotated[
    str,
    typer.Argument(
        metavar="PEER", help="The peer's host:port, its ticket, or its public key in hex."
    ),
]


@command(app, "list", ANY)
def list_(call: Call) -> CommandResult:
    """List the peers, then who connected by itself: address, key, failures, bytes and state.

    A peer is equal when the root it stated last is the one here, or the part of it that is
    replicated with it; else it differs. A client receives no changes.
    """
    status = status_of(call.node(NODE_START))
    found = [*status["peers"], *status["guests"]]
    if not found:  # said, since an empty table looks like an error
        return CommandResult([], ["no peers; add one with `lattice node peers add`"])
    return CommandResult(found, [peers_listing(found)])


@command(app, "add", ANY)
def add(call: Call, peer: PeerArgument) -> CommandResult:
    """Have the running node stay connected to a peer, until it ends or the peer is removed."""
    # The remedy says how to keep it over a restart.
    call.node(_KEEP).call(AddPeer(address=peer))
    return CommandResult({"added": peer}, [f"added {peer}"])


@command(app, "remove", ANY)
def remove(call: Call, peer: PeerArgument) -> CommandResult:
    """Have the running node close its connection to a peer, and not connect to it again."""
    call.node(NODE_START).call(RemovePeer(address=peer))
    return CommandResult({"removed": peer}, [f"removed {peer}"])


def ticket(call: Call) -> CommandResult:
    """Print where others reach the running node, with its key, in one line.

    Give it to `lattice node peers add` or `lattice node start --peer` on another machine.
    """
    from datalattice.client import running

    call.node()  # it raises without one
    found = running(call.folder.path)
    if found is None or found.ticket is None:
        raise UsageError("the running node only dials: it listens at no port")
    return CommandResult({"ticket": found.ticket}, [found.ticket])


def status_of(client: ControlClient) -> dict[str, Any]:
    """Return what the node says of itself."""
    return whole_document(client.call(GetNodeHealth()))


def peers_listing(peers: Sequence[Mapping[str, Any]]) -> Listing:
    """Return peers as rows."""
    columns = ("peer", "key", "source", "proved", "failures", "in", "out", "state")
    return Listing(columns, [_row(one) for one in peers])


def _row(peer: Mapping[str, Any]) -> tuple[object, ...]:
    key = peer.get("public_key") or ""
    return (
        _KEY_BEFORE.sub("", peer.get("address") or ""),  # it has a column of its own
        key[:_KEY_DIGITS_SHOWN],
        peer.get("source") or "",
        peer.get("proved", False),
        peer.get("failures", 0),
        size_text(peer.get("bytes_in", 0)),
        size_text(peer.get("bytes_out", 0)),
        peer_state(peer),
    )


def peer_state(peer: Mapping[str, Any]) -> str:
    """Return how it is with a peer in a few words."""
    if not peer.get("connected"):
        return str(peer.get("reason") or "not connected")  # why is more useful than that
    if peer.get("joined") is False:
        return "client"
    states = {True: "equal", False: "differs", None: "connected"}  # None: nothing stated yet
    refusal = peer.get("refusal")
    return states[peer.get("equal")] + (f"; not taken: {refusal}" if refusal else "")
