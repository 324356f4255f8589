"""Commands `lattice weave ...`: the operations of a weaver store, one by one and as a graph."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datalattice.cli.command import FOLDER, Call, command
from datalattice.cli.render import CommandResult, Listing, pair_lines
from datalattice.cli.store.access import (
    RECORD_DIGITS_SHOWN,
    SIGNER_DIGITS_SHOWN,
    StoreArgument,
    found,
    operation_document,
    operation_summary,
    reader,
)
from datalattice.errors import NoSuchPath, UsageError

if TYPE_CHECKING:
    from datalattice.weaver import Machine, SignedIntention, StoreView, WitnessEntry

app = typer.Typer(help="The signed operations of a weaver store: list, one by one, and as a graph.")

NUMBER_SHOWN = 100

HashArgument = Annotated[str, typer.Argument(help="First digits of an operation's hash.")]
NumberOption = Annotated[int, typer.Option("-n", help="Only this many, the newest.", min=1)]


@contextmanager
def _view(call: Call, store: str) -> Iterator[tuple[StoreView, Machine | None]]:
    """Yield a store and its machine; None: this program has none, and data is shown as bytes."""
    stores = reader(call).weaver
    info = found(stores, store)
    machine = stores.machine(info.kind)() if info.kind in stores.kinds() else None
    with stores.view(info.id) as view:
        yield view, machine


def _last(view: StoreView, number: int) -> list[WitnessEntry]:
    return list(view.entries(max(1, view.last_seq() - number + 1)))


@command(app, "history", FOLDER)
def history(call: Call, store: StoreArgument, number: NumberOption = NUMBER_SHOWN) -> CommandResult:
    """List the operations in the order in which this node witnessed them."""
    with _view(call, store) as (view, machine):
        rows = [
            {"seq": entry.seq, **operation_document(entry.signed, machine)}
            for entry in _last(view, number)
        ]
    shown = [
        (
            row["seq"],
            row["time"],
            row["author"][:SIGNER_DIGITS_SHOWN],
            row["hash"][:RECORD_DIGITS_SHOWN],
            row["operation"],
        )
        for row in rows
    ]
    return CommandResult(rows, [Listing(("seq", "time", "author", "hash", "operation"), shown)])


@command(app, "inspect", FOLDER)
def inspect(call: Call, store: StoreArgument, hash: HashArgument) -> CommandResult:
    """Show one operation, witnessed or floating: its signer, its dependencies, what it does."""
    with _view(call, store) as (view, machine):
        signed = _one(view, hash)
        document = operation_document(signed, machine)
        document |= {"seq": view.seq_of(signed.hash), "signature": signed.signature.hex()}
    shown = {**document, "deps": " ".join(document["deps"]) or "none"}
    if shown["seq"] is None:
        shown["seq"] = "floating"
    return CommandResult(document, pair_lines(shown))


def _one(view: StoreView, digits: str) -> SignedIntention:
    """Return the operation whose hash begins with `digits`.

    Raises: NoSuchPath: no hash begins so. UsageError: several do, or the digits are not hex.
    """
    try:
        # An index of hashes is searched by whole bytes; an odd last digit is compared below.
        prefix = bytes.fromhex(digits[: len(digits) // 2 * 2])
    except ValueError:
        raise UsageError(f"a hash is hex digits, got {digits!r:.80}") from None
    if not prefix:
        raise UsageError(f"a hash is named by 2 or more of its first digits, got {digits!r}")
    matches = [one for one in view.find(prefix) if one.hash.hex().startswith(digits.lower())]
    if not matches:
        raise NoSuchPath(f"no operation here has a hash that begins with {digits}")
    if len(matches) > 1:
        listed = ", ".join(one.hash.hex()[: RECORD_DIGITS_SHOWN + 4] for one in matches)
        raise UsageError(f"{len(matches)} operations begin with {digits}: {listed}")
    return matches[0]


@command(app, "branch", FOLDER)
def branch(
    call: Call,
    store: StoreArgument,
    hashes: Annotated[list[str], typer.Argument(help="Two or more heads, by first digits.")],
) -> CommandResult:
    """Show the lowest common ancestor of operations, and the operations from it to each."""
    if len(hashes) < 2:
        raise UsageError(f"name two operations or more, got {len(hashes)}")
    with _view(call, store) as (view, machine):
        heads = [_one(view, digits).hash for digits in hashes]
        branches = view.branches(heads)
        document = {
            # Each path begins with the common ancestor; the steps to a head follow it.
            "lca": branches[0].path[0].hex(),
            "branches": [
                {
                    "head": one.head.hex(),
                    "path": [
                        operation_document(view.find(hash)[0], machine) for hash in one.path[1:]
                    ],
                }
                for one in branches
            ],
        }
    return CommandResult(document, _branch_lines(document))


def _branch_lines(document: dict[str, Any]) -> Iterator[str]:
    yield f"common ancestor  {document['lca'][:RECORD_DIGITS_SHOWN]}"
    for one in document["branches"]:
        yield f"to {one['head'][:RECORD_DIGITS_SHOWN]}:"
        for step in one["path"]:
            yield (
                f"  {step['hash'][:RECORD_DIGITS_SHOWN]}  {step['time']}  "
                f"{step['author'][:SIGNER_DIGITS_SHOWN]}  {step['operation']}"
            )


@command(app, "graph", FOLDER)
def graph(
    call: Call,
    store: StoreArgument,
    number: NumberOption = NUMBER_SHOWN,
    chains: Annotated[
        bool, typer.Option("--chains", help="Draw the chain of each author too.")
    ] = False,
) -> CommandResult:
    """Draw the operations of a store as a graph, each below those that it follows.

    A line is a dependency: a write that replaced another. A circle with a dot depends on none, an
    empty circle on several.
    """
    from datalattice.weaver import GraphNode, draw_graph

    nodes, rows = {}, []
    with _view(call, store) as (view, machine):
        for entry in _last(view, number):
            intention = entry.signed.intention
            summary = operation_summary(entry.signed, machine)
            # An intention names its author's last one apart from the writes that it replaces.
            deps = (*intention.deps, *((intention.store_prev,) if chains else ()))
            hash = entry.signed.hash
            front = f"{hash.hex()[:8]} {intention.author.hex()[:SIGNER_DIGITS_SHOWN]} "
            detail = (front + summary.lines[0], *summary.lines[1:])
            nodes[hash] = GraphNode(
                front + summary.short, intention.author, intention.stamp, deps, detail
            )
            rows.append({"seq": entry.seq, **operation_document(entry.signed, machine)})
    on_terminal = sys.stdout.isatty()
    # In a pipe no line is cut, because a program may read it.
    width = shutil.get_terminal_size().columns if on_terminal else None
    return CommandResult(rows, list(draw_graph(nodes, width=width)))
