"""Commands `lattice disk check`, `heal` and `repair`: find and mend damaged or malformed data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from datalattice.actions import HealedStore, HealStore, StartTask, whole_document
from datalattice.cells import Index, Map, Value, encode, references, to_text, value_hash
from datalattice.cli.command import FOLDER, Call, command
from datalattice.cli.render import EXIT_FAILED, CommandResult, pair_lines, print_notice
from datalattice.cli.units import size_text
from datalattice.client import (
    Folder,
    Progress,
    ask_first,
    open_store_reader,
    read_keys_or_none,
    running,
)
from datalattice.cursors import without_malformed
from datalattice.errors import BadFormat, Corruption, StoreFailed, UsageError
from datalattice.store import CellStore, time_text

app = typer.Typer()


LINES_MAX: Final = 20
"""Most lines that are printed of each kind of finding; --json has all."""


@command(app, "check", FOLDER)
def check(call: Call) -> CommandResult:
    """Verify every byte of the store: checksums, encodings, hashes, index and completeness.

    Also the log of each weaver store: links, hashes and signatures.

    A node may be running. Exit code 1 if anything is damaged, missing or lost.
    """
    from datalattice.client.backups import weaver_figures
    from datalattice.client.network import store_check

    weaver = weaver_figures(call.filled, check=True)
    found = [_WEAVER_DAMAGED] if weaver["faults"] else []
    if not call.folder.store_path.is_dir():
        code = EXIT_FAILED if found else 0
        return CommandResult({"weaver": weaver}, list(_weaver_lines(weaver)), code, found)
    store = call.enter(open_store_reader(call.existing))
    report = store.check(call.bar(f"check {store.path}").to)
    document = _check_document(whole_document(store_check(report)))
    unsound = {hash for hash, _ in report.unsound}
    # The search walks all cells below the root, so only if there is something to find.
    document["malformed"] = malformed_parts(store, unsound) if unsound else []
    document["lost"] = _loss_of(store)
    document["weaver"] = weaver
    advice = ""
    if not document["clean"]:  # first, because damage may cause the other findings
        advice = "the store is damaged; `lattice disk heal` repairs it from peers"
    elif document["malformed"]:
        advice = f"{_MALFORMED}; `lattice disk repair` leaves these parts out"
    elif document["unsound"]:
        advice = f"{_MALFORMED}; only former or pinned roots contain it"
    elif document["lost"]:
        advice = f"{document['lost']}; to go on without it: lattice disk heal --accept-loss"
    elif weaver["faults"]:
        advice = _WEAVER_DAMAGED
    lines = _report_lines(document, verdict="lost" if document["lost"] else "clean")
    return CommandResult(document, lines, *((EXIT_FAILED, [advice]) if advice else ()))


_WEAVER_DAMAGED: Final = (
    "the log of a weaver store is damaged; stop the node and replace the folder weaver/ by that of "
    "a backup: newer intentions come back from peers"
)
_MALFORMED: Final = "the store holds malformed data, accepted by an earlier version"


def _loss_of(store: CellStore) -> str:
    """Return a text about commits that were lost and not accepted, "" without any."""
    try:
        loss = store.loss
    except Corruption as error:
        return str(error)  # the record of the loss is damaged
    return "" if loss is None else str(loss)


@command(app, "heal", ("dir", "offline"))
def heal(
    call: Call,
    address: Annotated[
        list[str] | None,
        typer.Option("--from", help="A node to fetch cells from, host:port. Repeatable."),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option("--from-store", help="Another node's folder, or store, on this machine."),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Go on without acknowledged commits that are gone and no source has.",
        ),
    ] = False,
) -> CommandResult:
    """Repair the store from its own intact bytes, another store, and nodes that have the cells.

    Works through the running node, which asks its peers first, or without one. Exit code 1 if cells
    are still missing. With --accept-loss the store continues from its last good root: let its node
    sync with its peers before you write, because new records take the offsets of lost ones.
    """
    folder = call.existing
    other = None if store is None else str(_store_in(store))
    # A running node would go on with the damaged data in its memory.
    if accept_loss and running(folder.path) is not None:
        raise UsageError(f"a node runs on {folder.path}; stop it before a loss is accepted")

    lost: list[str] = []

    def alone(progress: Progress) -> HealedStore:
        healed, loss = _heal_alone(folder, address or [], other, progress, accept_loss=accept_loss)
        lost.append(loss)
        return healed

    task = StartTask(heal=HealStore(addresses=tuple(address or ()), folder=other or ""))
    document = call.finish(task, alone, f"heal {folder.store_path}")
    document |= _check_document(document.pop("check"))
    if lost:
        document["lost"] = lost[0]
    lines = list(_healing_lines(document))
    if document["clean"]:
        return CommandResult(document, lines)
    advice = (
        "cells are still missing; name a node (--from HOST:PORT) or a store (--from-store DIR) "
        "that has them"
    )
    return CommandResult(document, lines, EXIT_FAILED, [advice])


@command(app, "repair", FOLDER)
def repair(
    call: Call,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply", help="Commit the root that is shown; otherwise nothing is committed."
        ),
    ] = False,
) -> CommandResult:
    """Leave the malformed parts out of the root, each with its reason; other parts stay unchanged.

    The former root is pinned as before-repair-TIME, so its cells stay until you remove the pin.
    Intact copies come back from peers. Stop the node first. Exit code 1 if there are malformed
    parts and --apply is not given.
    """
    folder = call.existing
    # A running node has the store's lock, and in memory the root that is to be replaced.
    if apply and running(folder.path) is not None:
        raise UsageError(f"a node runs on {folder.path}; stop it before the root is repaired")
    store = call.enter(CellStore.open(folder.store_path) if apply else open_store_reader(folder))
    report = store.check(call.bar(f"check {folder.store_path}").to)
    # Healing may bring damaged cells back, so nothing is left out before it.
    if not report.is_clean:
        raise StoreFailed("the store is damaged; `lattice disk heal` comes before a repair")
    found = without_malformed(store, dict(report.unsound))
    parts = [
        {"part": " ".join(to_text(key) for key in one.path), "reason": one.reason}
        for one in found.left_out
    ]
    pin = _commit_repair(store, found.root) if apply and parts else ""
    document = {"left_out": parts, "applied": bool(pin), "pin": pin}
    lines = _some("left out", [f"{one['part']}: {one['reason']}" for one in parts])
    if not parts:
        return CommandResult(document, ["nothing malformed below the root"])
    if pin:
        return CommandResult(document, [*lines, f"the former root is pinned: {pin}"])
    advice = "nothing was changed; `lattice disk repair --apply` commits this"
    return CommandResult(document, lines, EXIT_FAILED, [advice])


def _commit_repair(store: CellStore, root: Value) -> str:
    """Pin the present root, and commit one that lacks parts of it; return the name of the pin."""
    before = store.root_hash()
    assert before is not None
    now_ms = store.clock.now_ms()
    # File systems of some machines allow no colon in a name.
    name = f"before-repair-{time_text(now_ms).replace(':', '')}"
    # Before the commit: if the process ends in between, there is a pin too many. The other way
    # round, the former root could be collected.
    store.pins.pin(before, name, label="the root before malformed parts were left out")
    # `contains=False`: the new root lacks parts of the old one on purpose.
    store.commit(root, contains=False)
    return name


def _store_in(path: Path) -> Path:
    """Return the store in a folder, or the folder if it is one; rebuild the index of a copy.

    Raises: UsageError: there is no store. StoreError: it cannot be read.
    """
    from datalattice.store import store_in

    found = store_in(path)
    if found is None:
        raise UsageError(f"{path} has no store; name a node's folder or a store's")
    try:
        # Opened once now: an error names this store before anything of the damaged one is changed.
        CellStore.open(found, read_only=True).close()
    except StoreFailed:
        CellStore.open(found).close()  # a writer rebuilds the index of a copied store
    return found.absolute()


def _check_document(check: dict[str, Any]) -> dict[str, Any]:
    """Return the findings of a check, with this command's name for the size."""
    return {"bytes" if name == "size_bytes" else name: one for name, one in check.items()}


def _heal_alone(
    folder: Folder,
    addresses: list[str],
    other: str | None,
    progress: Progress,
    *,
    accept_loss: bool,
) -> tuple[HealedStore, str]:
    """Heal a store in which no node runs; return the healing, and a text about a loss, or ""."""
    from datalattice.client.network import HealingSources, healed_store
    from datalattice.store import CellFetcher, heal_store, open_damaged

    # "prove the folder's own key, so that a node which admits only some keys (`allow`) can serve
    # them" (docs/cli.md)
    keys = read_keys_or_none(folder)
    identity = None if keys is None else keys.identity
    with (
        HealingSources(addresses, other, identity) as sources,
        open_damaged(folder.store_path) as store,
    ):
        healing = heal_store(store, CellFetcher(store, sources), progress)
        loss = store.loss
        store.close()  # the lock must be free for the second opening
    if loss is not None and accept_loss:
        with (
            HealingSources(addresses, other, identity) as sources,
            CellStore.open(folder.store_path, repair=not loss.is_given_up) as store,
        ):
            healing = heal_store(store, CellFetcher(store, sources), progress)
            if keys is not None:
                ask_first(folder, store, keys)  # before the loss is accepted: a peer may have it
            store.accept_loss()
    elif loss is not None:
        print_notice(f"{loss}; if no peer and no backup has it, go on without it: --accept-loss")
    return healed_store(healing, sources), "" if loss is None else str(loss)


def _report_lines(
    document: dict[str, Any], done: Mapping[str, object] | None = None, *, verdict: str = "clean"
) -> Iterator[str]:
    counts = {name: document[name] for name in ("segments", "packs", "cells")}
    yield from pair_lines({**(done or {}), **counts, "size": size_text(document["bytes"])})
    yield from _some("damaged", [_location(one) for one in document["damaged"]])
    yield from _some("missing", [_way(one) for one in document["missing"]])
    for name, meaning in (
        ("endangered", "whole, but in a damaged pack or not in the index"),
        ("unserved", "below the root, but not marked as announced"),
    ):
        if document[name]:
            yield f"{name}: {len(document[name])} cells, {meaning}"
    yield from _some("unsound", [f"{one['hash']}: {one['reason']}" for one in document["unsound"]])
    yield from _some("malformed", document.get("malformed", []))
    yield from _some("scar", [_location(one) for one in document["scars"]])
    # The last line is the verdict, which scripts read: the worst finding.
    verdict = "malformed" if document["unsound"] else verdict
    verdict = verdict if document["clean"] else "damaged"
    weaver = document.get("weaver", {"stores": 0})
    if weaver["stores"]:
        *lines, weaver_verdict = _weaver_lines(weaver)
        yield from lines
        verdict = verdict if weaver_verdict == "clean" else weaver_verdict
    yield verdict


def _weaver_lines(figures: dict[str, Any]) -> Iterator[str]:
    yield from pair_lines({name: figures[name] for name in ("stores", "intentions")})
    yield from _some("damaged", figures["faults"])
    yield "damaged" if figures["faults"] else "clean"


def malformed_parts(store: CellStore, unsound: set[bytes]) -> list[str]:
    """Return the paths of the root's entries that contain one of these cells."""
    found: list[str] = []
    root = store.root()
    if not isinstance(root, Index):
        return found
    for section, owners in root.entries():
        try:
            parts = list(owners.entries()) if isinstance(owners, (Map, Index)) else []
        except BadFormat:
            found.append(to_text(section))  # the section itself cannot be read
            continue
        found += [
            f"{to_text(section)} {to_text(key)}"
            for key, one in parts
            if _has_below(store, one, unsound)
        ]
    return found


def _has_below(store: CellStore, value: Value, wanted: set[bytes]) -> bool:
    """Return whether a value contains one of these cells, or is one."""
    seen = {value_hash(value)}  # shared cells are read once
    front = references(encode(value))
    while front and seen.isdisjoint(wanted):
        hash = front.pop()
        if hash not in seen:
            seen.add(hash)
            encoding = store.get_encoding(hash)
            front += [] if encoding is None else references(encoding)
    return not seen.isdisjoint(wanted)


def _some(name: str, lines: list[str]) -> list[str]:
    shown = [f"{name}: {line}" for line in lines[:LINES_MAX]]  # one damaged pack has thousands
    if len(lines) > LINES_MAX:
        shown.append(f"{name}: {len(lines) - LINES_MAX} more; --json lists all")
    return shown


def _location(one: dict[str, Any]) -> str:
    cell = f" (cell 0x{one['hash']})" if one["hash"] else ""
    return f"{one['file']} at byte {one['offset']}: {one['reason']}{cell}"


def _way(one: dict[str, Any]) -> str:
    above = " > ".join(f"0x{hash[:8]}" for hash in one["above"])
    where = "below the root by" if one["below_root"] else "below an old cell,"
    return f"0x{one['hash']}, {where} {above or 'nothing: it is the root'}"


def _healing_lines(document: dict[str, Any]) -> Iterator[str]:
    yield from (f"not asked: {one}: {why}" for one, why in document["unreachable"].items())
    done = {
        "written again": document["rescued"],
        "fetched": document["fetched"],
        "forgotten": document["forgotten"],
    }
    yield from _report_lines(document, done)
