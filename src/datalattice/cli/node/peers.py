"""Commands `lattice node peers ...`: the peers of the running node, outbound and inbound."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from datalattice.actions import AddPeer, GetNodeHealth, RemovePeer, whole_document
from datalattice.cli.command import FOLDER, NODE_START, Call, command
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


@command(app, "list", FOLDER)
def list_(call: Call) -> CommandResult:
    """List the peers, then those that connected by themselves, with their state.

    A peer is equal if the root it announced last is the one here, or the replicated part of it;
    otherwise it differs. A client receives no changes.
    """
    status = health_document(call.node(NODE_START))
    found = [*status["peers"], *status["guests"]]
    if not found:
        return CommandResult([], ["no peers; add one with `lattice node peers add`"])
    return CommandResult(found, [peers_listing(found)])


@command(app, "add", FOLDER)
def add(call: Call, peer: PeerArgument) -> CommandResult:
    """Connect the running node to a peer, until the node ends or the peer is removed."""
    # "The changes of `add` and `remove` last until the node ends." (docs/cli.md)
    call.node(_KEEP).call(AddPeer(address=peer))
    return CommandResult({"added": peer}, [f"added {peer}"])


@command(app, "remove", FOLDER)
def remove(call: Call, peer: PeerArgument) -> CommandResult:
    """Disconnect the running node from a peer for good."""
    call.node(NODE_START).call(RemovePeer(address=peer))
    return CommandResult({"removed": peer}, [f"removed {peer}"])


def ticket(call: Call) -> CommandResult:
    """Print the addresses of the running node with its key, as one text.

    Give it to `lattice node peers add` or `lattice node start --peer` on another machine.
    """
    from datalattice.client import running

    call.node()  # raises if no node runs
    found = running(call.folder.path)
    if found is None or found.ticket is None:
        raise UsageError("the running node listens at no port, so it has no ticket")
    return CommandResult({"ticket": found.ticket}, [found.ticket])


def health_document(client: ControlClient) -> dict[str, Any]:
    """Return the status of a node as JSON values."""
    return whole_document(client.call(GetNodeHealth()))


def peers_listing(peers: Sequence[Mapping[str, Any]]) -> Listing:
    """Return a table of peers."""
    columns = ("peer", "key", "source", "proved", "failures", "in", "out", "state")
    return Listing(columns, [_row(one) for one in peers])


def _row(peer: Mapping[str, Any]) -> tuple[object, ...]:
    key = peer.get("public_key") or ""
    return (
        _KEY_BEFORE.sub("", peer.get("address") or ""),  # the key has its own column
        key[:_KEY_DIGITS_SHOWN],
        peer.get("source") or "",
        peer.get("proved", False),
        peer.get("failures", 0),
        size_text(peer.get("bytes_in", 0)),
        size_text(peer.get("bytes_out", 0)),
        peer_state(peer),
    )


def peer_state(peer: Mapping[str, Any]) -> str:
    """Return the state of a peer in a few words."""
    if not peer.get("connected"):
        return str(peer.get("reason") or "not connected")
    # "it asked for no announcements of changes; commands do that" (docs/cli.md)
    if peer.get("joined") is False:
        return "client"
    states = {True: "equal", False: "differs", None: "connected"}  # None: no root announced yet
    refusal = peer.get("refusal")
    return states[peer.get("equal")] + (f"; not taken: {refusal}" if refusal else "")
