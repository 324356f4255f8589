"""Commands `lattice store ...`: make, list, archive and check weaver stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datalattice.cli.command import FOLDER, WRITES, Call, command
from datalattice.cli.render import CommandResult, Listing, pair_lines
from datalattice.cli.store.access import (
    RECORD_DIGITS_SHOWN,
    SIGNER_DIGITS_SHOWN,
    StoreArgument,
    found,
    has_stores,
    operation_document,
    peer_document,
    reader,
)
from datalattice.cli.store.convergence import status_of_store, sync_store, watch_store
from datalattice.cli.units import moment_text
from datalattice.client import running
from datalattice.errors import AlreadyExists, UsageError

if TYPE_CHECKING:
    from datalattice.weaver import StoreInfo, Stores, StoreView

app = typer.Typer(
    help="Weaver stores: replicated operations with history. `lattice kv`, `log` and `weave` "
    "read and write their contents."
)


@command(app, "create", WRITES)
def create(
    call: Call,
    name: Annotated[str, typer.Argument(help="The name.")],
    kind: Annotated[
        str, typer.Option("--kind", "-k", help="kv, log, or a registered kind.")
    ] = "kv",
    parent: Annotated[
        str | None, typer.Option("--parent", help="The store that it is a child of.")
    ] = None,
) -> CommandResult:
    """Make a store, signed by this node; it is active at once."""
    stores = call.node_handle(makes_folder=parent is None).weaver
    above = None if parent is None else found(stores, parent).id
    try:
        # Exclusive, because a name that two stores have does not say which of them a command means.
        made = stores.create(kind, name, above, exclusive=True)
    except AlreadyExists:
        raise AlreadyExists(f"there is a store {name!r} already; choose another name") from None
    from datalattice.weaver import store_id_text

    document = {"id": store_id_text(made.id), "name": name, "kind": made.kind, "parent": parent}
    return CommandResult(document, pair_lines({key: document[key] for key in ("id", "kind")}))


@command(app, "list", FOLDER)
def list_(call: Call) -> CommandResult:
    """List the stores as a tree: name, kind, id. Archived ones are marked."""
    node = reader(call)
    if not has_stores(node):  # `node.weaver` would make files
        return CommandResult([], [], notices=["there is no store here yet"])
    rows = list(_tree(node.weaver, None, 0))
    shown = [
        (
            "  " * row["depth"] + (row["name"] or "(no name)"),
            row["kind"],
            row["id"],
            "archived" if row["archived"] else "",
        )
        for row in rows
    ]
    return CommandResult(rows, [Listing(("name", "kind", "id", "state"), shown)])


def _tree(stores: Stores, parent: bytes | None, depth: int) -> Iterator[dict[str, Any]]:
    from datalattice.weaver import store_id_text

    for info in sorted(stores.list(parent), key=lambda info: info.name or ""):
        yield {
            "id": store_id_text(info.id),
            "name": info.name,
            "kind": info.kind,
            "parent": None if parent is None else store_id_text(parent),
            "depth": depth,
            "created": moment_text(info.created_at_ms),
            "archived": info.is_archived,
        }
        # A declared child need not be here. Limited, because a peer may declare a loop.
        if stores.has(info.id) and depth < 32:
            yield from _tree(stores, info.id, depth + 1)


@command(app, "open", FOLDER)
def open_(call: Call, store: StoreArgument) -> CommandResult:
    """Show kind, intentions, authors, state, forks and peers of a store."""
    stores = reader(call).weaver
    info = found(stores, store)
    with stores.view(info.id) as view:  # a view also reads a kind that this program lacks
        document = {**_document(info, view), "doubt": _doubt(stores, info)}
        peers: list[dict[str, Any]] = [peer_document(peer) for peer in view.system.peers().values()]
    rows = [(one["key"][:SIGNER_DIGITS_SHOWN], one["name"] or "", one["status"]) for one in peers]
    text: list[str | Listing] = [*pair_lines(document)]
    text.append(Listing(("peer", "name", "status"), rows))
    return CommandResult({**document, "peers": peers}, text)


def _doubt(stores: Stores, info: StoreInfo) -> str | None:
    """Return why this node's writes are refused, or why no peer could confirm its log; or None."""
    doubt = stores.doubts().get(info.id)
    return None if doubt is None else doubt.text


def _document(info: StoreInfo, view: StoreView) -> dict[str, Any]:
    from datalattice.weaver import store_id_text

    strategy = view.system.strategy()
    status = view.progress()
    return {
        "id": store_id_text(info.id),
        "name": info.name,
        "kind": info.kind,
        "parent": None if info.parent is None else store_id_text(info.parent),
        "peers_are": "its parent's"
        if strategy.inherited
        else "a copy"
        if strategy.snapshot is not None
        else "its own",
        "authors": status.authors,
        "intentions": status.intentions,
        "applied": status.applied,
        "stalled": status.applied < status.intentions,
        "floating": status.floating,
        "forks": status.forks,
        "head": status.head.hex(),
    }


command(app, "status", FOLDER)(status_of_store)
command(app, "sync", FOLDER)(sync_store)
command(app, "watch", FOLDER)(watch_store)


@command(app, "archive", WRITES)
def archive(
    call: Call,
    parent: Annotated[str, typer.Argument(help="The store that has the child.")],
    child: Annotated[str, typer.Argument(help="The child.")],
    restore: Annotated[
        bool, typer.Option("--restore", help="Bring an archived child back.")
    ] = False,
) -> CommandResult:
    """Archive a child and everything below it, on all nodes. The data stays."""
    stores = call.node_handle(makes_folder=False).weaver
    above = found(stores, parent)
    # Under the parent first: a name is unique among its children only.
    below = stores.find(child, above.id) or found(stores, child)
    (stores.restore if restore else stores.archive)(above.id, below.id)
    state = "active" if restore else "archived"
    return CommandResult({"parent": parent, "child": child, "state": state}, [f"{child}  {state}"])


@command(app, "forks", WRITES)
def forks(
    call: Call,
    store: StoreArgument,
    append: Annotated[
        bool,
        typer.Option(
            "--append",
            help="End a fork of this node itself: put the other history into the log, and write "
            "the operations that it lacks again behind it. Stop the node first.",
        ),
    ] = False,
) -> CommandResult:
    """List the operations that are not in the log because their author wrote two histories.

    They are kept, but are not part of the state. A node has in its log the history that it
    received first.
    """
    if append:
        return _append(call, store)
    stores = reader(call).weaver
    info = found(stores, store)
    machine = stores.machine(info.kind)() if info.kind in stores.kinds() else None
    with stores.view(info.id) as view:
        rows = [
            {"after": fork.store_prev.hex(), **operation_document(signed, machine)}
            for fork in view.forks()
            for signed in view.other_branch(fork)
        ]
    columns = ("after", "time", "author", "hash", "operation")
    shown = [
        (
            row["after"][:RECORD_DIGITS_SHOWN],
            row["time"],
            row["author"][:SIGNER_DIGITS_SHOWN],
            row["hash"][:RECORD_DIGITS_SHOWN],
            row["operation"],
        )
        for row in rows
    ]
    return CommandResult(rows, [Listing(columns, shown)])


def _append(call: Call, name: str) -> CommandResult:
    # `rejoin` gives records of the log other hashes, so no node may replicate the store meanwhile.
    if running(call.folder.path) is not None:
        raise UsageError(
            f"a node runs in {call.folder.path}; stop it first (`lattice node stop`): its history "
            "is replaced"
        )
    stores = call.node_handle(makes_folder=False).weaver
    store = stores.open(found(stores, name).id)
    hashes = [hash.hex() for hash in store.rejoin()]
    text = [f"{len(hashes):,} operations written once more"] if hashes else ["no fork of this node"]
    return CommandResult({"store": name, "written": hashes}, text)


@command(app, "fsck", FOLDER)
def fsck(
    call: Call,
    store: StoreArgument,
    level: Annotated[
        int, typer.Option("--level", help="1: links; 2: signatures too; 3: indexes too.")
    ] = 1,
) -> CommandResult:
    """Check the log of a store. Exit code 1 if it is damaged; nothing is changed."""
    stores = reader(call).weaver
    info = found(stores, store)
    with stores.view(info.id) as view:  # not opened, because opening repairs the indexes
        faults = [str(fault) for fault in view.fsck(level)]
        # From the snapshot that was checked: what a node appends meanwhile is in neither.
        count = view.last_seq()
    document = {"store": info.name, "level": level, "intentions": count, "faults": faults}
    text = faults or [f"{count:,} intentions, no fault"]
    return CommandResult(document, text, 1 if faults else 0)
