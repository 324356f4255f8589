"""Commands `lattice pin add`, `unpin`, `pins`, `export` and `import`: roots that are to stay."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer

from datalattice.cli import past
from datalattice.cli.folder import (
    DirOption,
    JsonOption,
    WithLocalOption,
    existing_folder,
    folder_of,
)
from datalattice.cli.imported import tell_imported
from datalattice.cli.render import (
    print_lines,
    print_pairs,
    progress_bars,
    results,
    show,
    table,
)
from datalattice.cli.running import finish, size_text
from datalattice.client import Progress, connect, root_named
from datalattice.client.replicas import import_into, taking
from datalattice.clock import SystemClock
from datalattice.errors import BadFormat, UsageError
from datalattice.store import CellStore, parse_time, time_text
from datalattice.store.kept import Pin

PIPE: Final = Path("-")

app = typer.Typer(help="Roots that are kept under a name: garbage collection spares them.")


@app.command("add")
def pin(
    name: Annotated[str, typer.Argument(help="The name; `lattice show NAME` and others take it.")],
    ref: Annotated[
        str, typer.Argument(help="HEAD, HEAD~2, another pin, a hash, or @TIME.")
    ] = "HEAD",
    owner: Annotated[str, typer.Option("--owner", help="Who wants it.")] = "",
    label: Annotated[str, typer.Option("--label", help="What it is for.")] = "",
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", help="When it ends: a time, or from now on: 30d (s, m, h, d, w)."
        ),
    ] = None,
    move: Annotated[
        bool, typer.Option("--move", help="Take the name from the root that has it.")
    ] = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Keep a root under a name: garbage collection spares it and all below it.

    Works beside a running node.
    """
    folder = existing_folder(dir)
    with past.reading_past(folder) as store, past.kept(store, ref):
        hash = root_named(store, ref)
        expires_ms = None if expires is None else _expiry(expires, store.clock.now_ms())
        made = store.pins.pin(hash, name, owner, label, expires_ms, move=move)
    document = _pin_document(made)
    show(json, document, lambda: print_pairs({k: v for k, v in document.items() if v}))


def _expiry(text: str, now_ms: int) -> int:
    """Return when a pin ends: a span counts from now on."""
    then_ms = parse_time(text, now_ms)
    is_span = not text[-1:].isdigit() and "-" not in text
    return 2 * now_ms - then_ms if is_span else then_ms


@app.command("remove")
def unpin(
    name: Annotated[str | None, typer.Argument(help="The name of the pin.")] = None,
    all: Annotated[
        bool, typer.Option("--all", help="Remove every pin, also where the file is damaged.")
    ] = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Remove a pin; what only it kept may be collected from then on."""
    folder = existing_folder(dir)
    if (name is None) != all:
        raise UsageError("name one pin, or give --all")
    with past.reading_past(folder) as store:
        if name is None:
            store.pins.clear()
            show(json, {"removed": "all"}, lambda: print_lines(["all pins removed"]))
            return
        document = _pin_document(store.pins.unpin(name))
    show(json, document, lambda: print_pairs({"removed": name, "hash": document["hash"]}))


@app.command("list")
def pins(dir: DirOption = None, json: JsonOption = False) -> None:
    """List the pins, by name."""
    folder = existing_folder(dir)
    with past.reading_past(folder) as store:
        documents = [_pin_document(one) for one in store.pins.all()]
    columns = ("name", "hash", "owner", "label", "created", "expires")
    rows = [
        [one["hash"][: past.HASH_DIGITS_SHOWN] if key == "hash" else one[key] for key in columns]
        for one in documents
    ]
    show(json, documents, lambda: results().print(table(columns, rows)))


def _pin_document(pin: Pin) -> dict[str, Any]:
    return {
        "name": pin.name,
        "hash": pin.root_hash.hex(),
        "owner": pin.owner,
        "label": pin.label,
        "created": time_text(pin.created_ms),
        "expires": None if pin.expires_ms is None else time_text(pin.expires_ms),
    }


def forget(
    before: Annotated[
        str, typer.Argument(help="A time: ISO 8601 in UTC, or how long ago: 7d, 1h.")
    ],
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Forget the roots that were replaced before a time, so that their room can be collected.

    Pins and the present root stay. Works through the running node, or without one.
    """
    folder = existing_folder(dir)
    before_ms = parse_time(before, SystemClock().now_ms())
    client = connect(folder.path)
    if client is None:
        with CellStore.open(folder.store_path) as store:
            count = store.history.forget(before_ms)
    else:
        with client:
            found = client.call("store.forget", before_ms=before_ms)
            count = found if type(found) is int else 0
    document = {"forgotten": count, "before": time_text(before_ms)}
    show(json, document, lambda: print_pairs(document))


def export(
    ref: Annotated[str, typer.Argument(help="HEAD, HEAD~2, a pin, a hash, or @TIME.")],
    file: Annotated[Path, typer.Argument(help="The file to write; - for standard output.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    with_local: WithLocalOption = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Write a root with all below it to one file, with checksums; works beside a running node."""
    from datalattice.store import export_cells

    folder = existing_folder(dir)
    with (
        past.reading_past(folder) as store,
        past.kept(store, ref),
        progress_bars(quiet=json) as bars,
    ):
        top = root_named(store, ref)
        with store.lease(top, past.HOLD_SECONDS):
            hash, made = past.leaving(store, top, with_local=with_local)
            bar = bars.add(f"export {past.short(hash)}")
            with _written(file, force=force) as out:
                cells = export_cells(store, hash, out.write, bar.to, made=made)
    if file == PIPE:
        return
    size = file.stat().st_size
    document = {"file": str(file), "root": hash.hex(), "cells": cells, "bytes": size}
    show(json, document, lambda: print_pairs({**document, "bytes": size_text(size)}))


@contextmanager
def _written(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Give a file to write; it has its name, durably, only when the block ended well."""
    if path == PIPE:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.exists() and not force:
        raise UsageError(f"{path} is there already; --force replaces it")
    unfinished = path.with_name(path.name + ".part")
    try:
        with unfinished.open("wb", buffering=io.DEFAULT_BUFFER_SIZE) as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def import_(
    source: Annotated[
        Path, typer.Argument(help="An exported file (- for standard input), or a node's folder.")
    ],
    name: Annotated[str | None, typer.Option("--pin", help="Keep it under this name.")] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge it into the data here, as from a peer.")
    ] = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Read an exported file: verify every cell, then pin the root or merge it.

    Nothing is visible until all of it is here. What is merged passes the same gate as what a peer
    sends: one part that is malformed, not signed, not hosted or over a quota is left out and told,
    and exit code 1 says so. Works through the running node, or without one.
    """
    if not name and not merge:
        raise UsageError("say what becomes of it: --pin NAME, --merge, or both")
    folder = folder_of(dir)
    pin = name or ""
    with _opened(source) as path:

        def alone(progress: Progress) -> dict[str, object]:
            with CellStore.open(folder.store_path) as store:
                gate = taking(folder, store)
                return import_into(
                    store, path, pin=pin, merge=merge, taking=gate, progress=progress
                )

        arguments = {"path": str(Path(path).absolute()), "merge": merge, "pin": pin}
        title = f"import {source}"
        document = finish(folder, "store.import", arguments, alone, title=title, quiet=json)
    tell_imported(document, json=json)


@contextmanager
def _opened(source: Path) -> Iterator[str]:
    """Give the path to import from; what standard input brings is put into a file first.

    Raises: BadFormat: with the path, where what is read there is malformed.
    """
    if source != PIPE:
        try:
            yield str(source)
        except BadFormat as error:
            raise BadFormat(f"{source}: {error}") from error
        return
    with tempfile.NamedTemporaryFile(prefix="lattice-", suffix=".archive") as spool:
        shutil.copyfileobj(sys.stdin.buffer, spool)
        spool.flush()
        yield spool.name
