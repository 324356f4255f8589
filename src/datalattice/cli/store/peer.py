"""Commands `lattice peer ...`: the nodes that replicate a weaver store, and invites to others."""

from __future__ import annotations

from typing import Annotated

import typer

from datalattice.cli.command import FOLDER, WRITES, Call, command
from datalattice.cli.render import CommandResult, Listing, pair_lines
from datalattice.cli.store.access import StoreArgument, handle_of, peer_document, reader
from datalattice.errors import UsageError

app = typer.Typer(
    help="Peers of weaver stores: invite a node, join with an invite, list and revoke."
)

NOT_SERVED = (
    "no node serves this folder, so the invite has no address: start one with `lattice node "
    "start`, or give --address"
)


@command(app, "invite", WRITES)
def invite(
    call: Call,
    store: StoreArgument,
    address: Annotated[
        list[str] | None,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="Address at which others reach this node, host:port or of iroh. Repeatable. "
            "Default: where it listens.",
        ),
    ] = None,
) -> CommandResult:
    """Print a token with which one node may join. Send it in secret, as a password."""
    from datalattice.client import parse_address
    from datalattice.weaver import InviteToken

    given = [one if "://" in one else f"tls://{one}" for one in address or ()]
    for one in given:
        parse_address(one)  # checked here, because else only the node that joins finds it
    text = handle_of(call.node_handle(makes_folder=False), store).invite(*given)
    # Read from the token: these are the addresses at which the joining node looks for this one.
    reached = list(InviteToken.from_text(text).addresses)
    notices = [] if reached else [NOT_SERVED]
    return CommandResult({"token": text, "addresses": reached}, [text], notices=notices)


@command(app, "join", WRITES)
def join(
    call: Call, token: Annotated[str, typer.Argument(help="What `lattice peer invite` printed.")]
) -> CommandResult:
    """Join the store of an invite, through the running node, which fetches it."""
    call.node()  # raises if no node runs: a join then makes no folder and no key
    joined = call.node_handle().join(token)
    document = {"id": joined.id, "kind": joined.store.kind}
    return CommandResult(document, pair_lines(document))


@command(app, "list", FOLDER)
def list_(call: Call, store: StoreArgument) -> CommandResult:
    """List the peers of a store: key, name, status, since when."""
    rows = [peer_document(peer) for peer in handle_of(reader(call), store).peers()]
    columns = ("key", "name", "status", "added")
    shown = [[row[column] or "" for column in columns] for row in rows]
    return CommandResult(rows, [Listing(columns, shown)])


@command(app, "revoke", WRITES)
def revoke(
    call: Call,
    store: StoreArgument,
    peer: Annotated[str, typer.Argument(help="The first digits of the peer's key, or its name.")],
) -> CommandResult:
    """Remove a peer: it gets no new data. Its earlier writes stay."""
    held = handle_of(call.node_handle(makes_folder=False), store)
    peers = held.peers()
    found = [
        one for one in peers if one.name == peer or one.public_key.hex().startswith(peer.lower())
    ]
    # A wrong match would shut out another peer, which then "gets nothing new on any connection"
    # (docs/weaver.md).
    if len(found) != 1:
        known = ", ".join(one.public_key.hex()[:8] for one in found or peers)
        what = "names several peers" if found else "is not a peer of the store; its peers are"
        raise UsageError(f"{peer!r} {what}: {known}")
    held.revoke(found[0].public_key)
    document = {"key": found[0].public_key.hex(), "status": "revoked"}
    return CommandResult(document, pair_lines(document))
