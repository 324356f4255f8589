"""Commands `lattice node peers ...`: whom the running node is connected to, or wants to be."""

from __future__ import annotations

from typing import Annotated

import typer

from datalattice.cli.folder import DirOption, JsonOption, folder_of
from datalattice.cli.render import print_lines, results, show
from datalattice.cli.running import peers_table, running_node, status_of

app = typer.Typer(help="List, add and remove the peers of the running node.")

_START = "start one with `lattice node start`"
_KEEP = "put it into `peers` of node.toml, or start one with `lattice node start --peer`"

PeerArgument = Annotated[
    str,
    typer.Argument(
        metavar="PEER", help="The peer's address, such as host:port, or its public key in hex."
    ),
]


@app.callback(invoke_without_command=True)
def peers(context: typer.Context, dir: DirOption = None, json: JsonOption = False) -> None:
    """List the peers, then who connected by itself: address, key, failures, bytes and state.

    A peer is equal when the root it stated last is the one here, or the part of it that is
    replicated with it; else it differs. A client is not told of changes.
    """
    if context.invoked_subcommand is not None:
        return
    with running_node(folder_of(dir), _START) as client:
        status = status_of(client)
        found = [*status["peers"], *status["guests"]]

    def text() -> None:
        if found:
            results().print(peers_table(found))
        else:
            print_lines(["no peers; add one with `lattice node peers add`"])

    show(json, found, text)


@app.command("add")
def add(peer: PeerArgument, dir: DirOption = None, json: JsonOption = False) -> None:
    """Have the running node stay connected to a peer, until it ends or the peer is removed."""
    with running_node(folder_of(dir), _KEEP) as client:
        client.call("node.add_peer", address=peer)
    show(json, {"added": peer}, lambda: print_lines([f"added {peer}"]))


@app.command("remove")
def remove(peer: PeerArgument, dir: DirOption = None, json: JsonOption = False) -> None:
    """Have the running node close its connection to a peer, and want it no more."""
    with running_node(folder_of(dir), _START) as client:
        client.call("node.remove_peer", address=peer)
    show(json, {"removed": peer}, lambda: print_lines([f"removed {peer}"]))
