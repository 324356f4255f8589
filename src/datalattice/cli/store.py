"""Commands `lattice store ...`: check a folder's store byte by byte, and heal what is damaged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.exceptions import Exit

from datalattice.cells import Index, Map, Value, encode, references, to_text, value_hash
from datalattice.cli.folder import DirOption, Folder, JsonOption, existing_folder, read_keys_or_none
from datalattice.cli.render import (
    Step,
    print_lines,
    print_notice,
    print_pairs,
    progress_bars,
    show,
)
from datalattice.cli.running import size_text
from datalattice.cli.values import value_json
from datalattice.errors import BadFormat, StoreFailed, UsageError
from datalattice.home import ask_first
from datalattice.store import CellStore

app = typer.Typer(help="Check a folder's store byte by byte, and heal what is damaged.")

EXIT_FAILED: Final = 1

WAIT_MS: Final = 20_000
"""How long the running node is asked to wait with its answer; it is asked again."""

LINES_MAX: Final = 20
"""Damaged places and missing cells that are printed of each kind; --json has all."""


@app.command("check")
def check(dir: DirOption = None, json: JsonOption = False) -> None:
    """Verify every byte of the store: checksums, encodings, hashes, index, and that all is here.

    Works beside a running node. Exit code 1 when anything is damaged or missing.
    """
    from datalattice.cli.access import open_reader
    from datalattice.node import report_document

    folder = existing_folder(dir)
    with progress_bars(quiet=json) as bars, open_reader(folder) as store:
        bar = bars.add(f"check {folder.store_path}")
        report = store.check(bar.to)
        document = report_document(report)
        unsound = {hash for hash, _ in report.unsound}
        document["malformed"] = malformed_parts(store, unsound) if unsound else []
    show(json, document, lambda: _print_report(document))
    if not document["clean"]:
        print_notice("the store is damaged; `lattice store heal` repairs it from peers")
        raise Exit(EXIT_FAILED)
    if document["unsound"]:
        print_notice(
            "the store holds malformed data of others, taken in by an earlier version; "
            "merges leave those parts out until their owners' nodes send sound ones"
        )
        raise Exit(EXIT_FAILED)


@app.command("heal")
def heal(
    address: Annotated[
        list[str] | None,
        typer.Option("--from", help="A node to fetch cells from, host:port. May be repeated."),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option("--from-store", help="Another node's folder, or store, on this machine."),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Go on without acknowledged commits that are gone and could not be had.",
        ),
    ] = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Repair the store: from its own intact bytes, another store, and nodes that have the cells.

    Works through the running node, which asks its peers first, or without one. Exit code 1 when
    something could not be had. With --accept-loss the store goes on at its last good root: let its
    node meet its peers before you write, as new records take the offsets of lost ones.
    """
    from datalattice.node import connect

    folder = existing_folder(dir)
    other = None if store is None else _store_in(store)
    client = connect(folder.path)
    if client is not None and accept_loss:
        client.close()
        raise UsageError(f"a node runs on {folder.path}; stop it before a loss is accepted")
    with progress_bars(quiet=json) as bars:
        bar = bars.add(f"heal {folder.store_path}")
        if client is None:
            document = _heal_alone(folder, address or [], other, bar, accept_loss=accept_loss)
        else:
            with client:
                document = _heal_through(client, address or [], other)
            bar.to(1, 1)
    show(json, document, lambda: _print_healing(document))
    if not document["clean"]:
        print_notice(
            "not everything could be had; name nodes or a store that have it, "
            "with --from or --from-store"
        )
        raise Exit(EXIT_FAILED)


def _store_in(path: Path) -> Path:
    """Return the store that a folder is, or has; a copy's index is made again first.

    Raises: UsageError: there is none. StoreError: it cannot be read.
    """
    from datalattice.store import store_in

    found = store_in(path)
    if found is None:
        raise UsageError(f"{path}: no store here; name a node's folder or a store's")
    try:
        CellStore.open(found, read_only=True).close()
    except StoreFailed:
        CellStore.open(found).close()
    return found.absolute()


def _heal_through(client: object, addresses: list[str], other: Path | None) -> dict[str, Any]:
    from datalattice.node import ControlClient

    assert isinstance(client, ControlClient)
    where = None if other is None else str(other)
    while True:
        found = client.call("store.heal", addresses=addresses, folder=where, timeout_ms=WAIT_MS)
        if found is not None:
            document = value_json(found)
            assert isinstance(document, dict)
            return document


def _heal_alone(
    folder: Folder, addresses: list[str], other: Path | None, bar: Step, *, accept_loss: bool
) -> dict[str, Any]:
    from datalattice.node import HealingSources, healing_document
    from datalattice.store import Fetching, heal_store, open_damaged

    where = None if other is None else str(other)
    keys = read_keys_or_none(folder)
    identity = None if keys is None else keys.identity
    with (
        HealingSources(addresses, where, identity) as sources,
        open_damaged(folder.store_path) as store,
    ):
        healing = heal_store(store, Fetching(store, sources), bar.to)
        loss = store.loss
        store.close()
    if loss is not None and accept_loss:
        with (
            HealingSources(addresses, where, identity) as sources,
            CellStore.open(folder.store_path, repair=not loss.is_given_up) as store,
        ):
            healing = heal_store(store, Fetching(store, sources), bar.to)
            if keys is not None:
                ask_first(folder, store, keys)
            store.accept_loss()
    elif loss is not None:
        print_notice(f"{loss}; if nobody has it, go on without it: --accept-loss")
    return {**healing_document(healing, sources), "lost": "" if loss is None else str(loss)}


def _print_report(document: dict[str, Any], done: Mapping[str, object] | None = None) -> None:
    counts = {name: document[name] for name in ("segments", "packs", "cells")}
    print_pairs({**(done or {}), **counts, "size": size_text(document["bytes"])})
    _print_some("damaged", [_place(one) for one in document["damaged"]])
    _print_some("missing", [_way(one) for one in document["missing"]])
    for name, meaning in (
        ("endangered", "whole, but in a damaged pack or not in the index"),
        ("unserved", "below the root, but not marked as announced"),
    ):
        if document[name]:
            print_lines([f"{name}: {len(document[name])} cells, {meaning}"])
    _print_some("unsound", [f"{one['hash']}: {one['reason']}" for one in document["unsound"]])
    _print_some("malformed", document.get("malformed", []))
    _print_some("scar", [_place(one) for one in document["scars"]])
    verdict = "malformed" if document["unsound"] else "clean"
    print_lines([verdict if document["clean"] else "damaged"])


def malformed_parts(store: CellStore, unsound: set[bytes]) -> list[str]:
    """Return the paths of the root's owners and entries that have one of these cells below them."""
    found: list[str] = []
    root = store.root()
    if not isinstance(root, Index):
        return found
    for section, owners in root.entries():
        try:
            parts = list(owners.entries()) if isinstance(owners, (Map, Index)) else []
        except BadFormat:
            found.append(to_text(section))
            continue
        found += [
            f"{to_text(section)} {to_text(key)}"
            for key, one in parts
            if _has_below(store, one, unsound)
        ]
    return found


def _has_below(store: CellStore, value: Value, wanted: set[bytes]) -> bool:
    """Return whether one of these cells is a value's own, or below it."""
    seen = {value_hash(value)}
    front = references(encode(value))
    while front and seen.isdisjoint(wanted):
        hash = front.pop()
        if hash not in seen:
            seen.add(hash)
            encoding = store.get_encoding(hash)
            front += [] if encoding is None else references(encoding)
    return not seen.isdisjoint(wanted)


def _print_some(name: str, lines: list[str]) -> None:
    print_lines(f"{name}: {line}" for line in lines[:LINES_MAX])
    if len(lines) > LINES_MAX:
        print_lines([f"{name}: {len(lines) - LINES_MAX} more; --json lists all"])


def _place(one: dict[str, Any]) -> str:
    cell = f" (cell 0x{one['hash']})" if one["hash"] else ""
    return f"{one['file']} at byte {one['offset']}: {one['reason']}{cell}"


def _way(one: dict[str, Any]) -> str:
    above = " > ".join(f"0x{hash[:8]}" for hash in one["above"])
    where = "below the root by" if one["below_root"] else "below an old cell,"
    return f"0x{one['hash']}, {where} {above or 'nothing: it is the root'}"


def _print_healing(document: dict[str, Any]) -> None:
    print_lines(f"not asked: {one}: {why}" for one, why in document["unreachable"].items())
    _print_report(
        document,
        {
            "written again": document["rescued"],
            "fetched": document["fetched"],
            "forgotten": document["forgotten"],
        },
    )
