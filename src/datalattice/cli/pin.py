"""Commands `lattice pin ...`: roots that are kept under a name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from datalattice.cli.command import ANY, Call, command
from datalattice.cli.paths.past import HASH_DIGITS_SHOWN
from datalattice.cli.render import CommandResult, listed
from datalattice.cli.units import duration_ms, time_ms
from datalattice.errors import UsageError
from datalattice.store import time_text
from datalattice.store.kept import Pin

app = typer.Typer(help="Roots that are kept under a name: garbage collection spares them.")


@command(app, "add", ANY)
def add(
    call: Call,
    name: Annotated[str, typer.Argument(help="The name; `lattice show NAME` and others take it.")],
    ref: Annotated[
        str, typer.Argument(help="HEAD, HEAD~2, another pin, a hash, or a time.")
    ] = "HEAD",
    by: Annotated[str, typer.Option("--by", help="Who asks for the pin.")] = "",
    label: Annotated[str, typer.Option("--label", help="Purpose of the pin.")] = "",
    expires: Annotated[
        str | None, typer.Option("--expires", help="Expiry: a time, or a duration from now: 30d.")
    ] = None,
    move: Annotated[
        bool, typer.Option("--move", help="Take the name from the root that has it.")
    ] = False,
) -> CommandResult:
    """Keep a root under a name: garbage collection spares it and all below it.

    Works beside a running node.
    """
    store = call.store()
    (hash,) = call.named(store, ref)
    # The store's clock decides when it ends.
    ends_ms = None if expires is None else _expiry(expires, store.clock.now_ms())
    return CommandResult(_document(store.pins.pin(hash, name, by, label, ends_ms, move=move)))


def _expiry(text: str, now_ms: int) -> int:
    """Return when a pin ends: a duration counts from now on."""
    try:
        # A plain number is a time here: Unix milliseconds or a date. Elsewhere it is seconds.
        return now_ms + duration_ms(text) if not text.isdecimal() else time_ms(text, now_ms)
    except UsageError:  # a date, or Unix milliseconds
        return time_ms(text, now_ms)


@command(app, "remove", ANY)
def remove(
    call: Call,
    name: Annotated[str | None, typer.Argument(help="The name of the pin.")] = None,
    all: Annotated[
        bool, typer.Option("--all", help="Remove every pin, also where the file is damaged.")
    ] = False,
) -> CommandResult:
    """Remove a pin; what only it kept may be collected from then on."""
    if (name is None) != all:  # exactly one of them
        raise UsageError("name one pin, or give --all")
    store = call.store()
    if name is None:
        store.pins.clear()  # "also where the file is damaged"
        return CommandResult({"removed": "all"}, ["all pins removed"])
    document = _document(store.pins.unpin(name))
    return CommandResult(document, [f"removed  {name}", f"hash     {document['hash']}"])


@command(app, "list", ANY)
def list_(call: Call) -> CommandResult:
    """List the pins, by name."""
    columns = ("name", "hash", "owner", "label", "created", "expires")
    rows = [_document(one) for one in call.store().pins.all()]
    return listed(rows, columns, hash=lambda hash: hash[:HASH_DIGITS_SHOWN])


def _document(pin: Pin) -> dict[str, Any]:
    return {
        "name": pin.name,
        "hash": pin.root_hash.hex(),
        "owner": pin.owner,
        "label": pin.label,
        "created": time_text(pin.created_ms),
        "expires": None if pin.expires_ms is None else time_text(pin.expires_ms),
    }
