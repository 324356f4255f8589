"""Commands `lattice pin ...`: roots that garbage collection keeps under a name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from datalattice.cli.command import FOLDER, Call, command
from datalattice.cli.paths.past import HASH_DIGITS_SHOWN
from datalattice.cli.render import CommandResult, listed
from datalattice.cli.units import duration_ms, time_ms
from datalattice.errors import UsageError
from datalattice.store import time_text
from datalattice.store.kept import Pin

app = typer.Typer(help="Pins: named roots that garbage collection keeps.")


@command(app, "add", FOLDER)
def add(
    call: Call,
    name: Annotated[str, typer.Argument(help="The name, for `lattice show NAME` and others.")],
    ref: Annotated[
        str, typer.Argument(help="HEAD, HEAD~2, another pin, a hash, or a time.")
    ] = "HEAD",
    by: Annotated[str, typer.Option("--by", help="Who wants the pin, as a note.")] = "",
    label: Annotated[str, typer.Option("--label", help="Purpose of the pin.")] = "",
    expires: Annotated[
        str | None, typer.Option("--expires", help="Expiry: a time, or a duration from now: 30d.")
    ] = None,
    move: Annotated[
        bool, typer.Option("--move", help="Move the name from the root that has it.")
    ] = False,
) -> CommandResult:
    """Pin a root under a name: garbage collection keeps it with all its cells.

    A node may be running.
    """
    # Opened for reading: pins are a file of their own, with a lock for the moment of a change.
    store = call.store()
    (hash,) = call.named(store, ref)
    ends_ms = None if expires is None else _expiry(expires, store.clock.now_ms())
    return CommandResult(_document(store.pins.pin(hash, name, by, label, ends_ms, move=move)))


def _expiry(text: str, now_ms: int) -> int:
    """Return the end of a pin: a time, or a duration from now."""
    try:
        # Digits alone are Unix milliseconds here, although elsewhere they are seconds.
        return now_ms + duration_ms(text) if not text.isdecimal() else time_ms(text, now_ms)
    except UsageError:  # not a duration: a time
        return time_ms(text, now_ms)


@command(app, "remove", FOLDER)
def remove(
    call: Call,
    name: Annotated[str | None, typer.Argument(help="The name of the pin.")] = None,
    all: Annotated[
        bool, typer.Option("--all", help="Remove every pin, even if their file is damaged.")
    ] = False,
) -> CommandResult:
    """Remove a pin; cells that only it kept can be collected from then on."""
    if (name is None) != all:
        raise UsageError("give either the name of one pin or --all")
    store = call.store()
    if name is None:
        # The removed pins are not listed, because their file may be damaged.
        store.pins.clear()
        return CommandResult({"removed": "all"}, ["all pins removed"])
    document = _document(store.pins.unpin(name))
    return CommandResult(document, [f"removed  {name}", f"hash     {document['hash']}"])


@command(app, "list", FOLDER)
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
