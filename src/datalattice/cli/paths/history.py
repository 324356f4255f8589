"""Commands `history`, `show`, `diff`, `checkout` and `audit`: former roots and signatures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from datalattice.cells import ABSENT, Signed, Value, changes, same, value_hash
from datalattice.cli.command import FOLDER, Call, command, explaining_gaps
from datalattice.cli.paths import past
from datalattice.cli.paths.get import FullOption, brief_text, path_keys, value_result
from datalattice.cli.render import CommandResult, Listing
from datalattice.cli.units import time_ms
from datalattice.cli.values import listed_json
from datalattice.client import begin_folder, folder_of, kind_of, read_key, value_at
from datalattice.errors import MissingData, NoSuchPath, UsageError
from datalattice.lattice import slot_changes
from datalattice.store import time_text
from datalattice.store.kept import Moment

if TYPE_CHECKING:
    from datalattice.store import CellStore

HISTORY_COUNT: Final = 20
_DIFF_COUNT: Final = 100
AUDIT_COUNT: Final = 50

SLOTS_SHOWN: Final = 4
"""Most slots of a commit that `history` prints; --json has all."""

RefArgument = Annotated[
    str,
    typer.Argument(
        help="HEAD, HEAD~2, a pin, a hash, or a time: ISO 8601 in UTC, or how long ago: 2h ago."
    ),
]
PathArgument = Annotated[
    list[str] | None, typer.Argument(help="Keys from the root; own for your own key.")
]
CountOption = Annotated[int, typer.Option("--count", "-n", min=0, help="Most entries; 0: all.")]


@command(None, "history", FOLDER)
def history(
    call: Call,
    count: CountOption = HISTORY_COUNT,
    since: Annotated[
        str | None, typer.Option("--since", help="Only roots since this time: ISO, or 2h ago.")
    ] = None,
) -> CommandResult:
    """List the recorded roots, newest first: what changed, and who signed it."""
    store = call.store()
    entries = past.moments(store)
    begin_ms = None if since is None else time_ms(since, store.clock.now_ms())
    wanted = [
        at
        for at in range(len(entries) - 1, -1, -1)
        if begin_ms is None or entries[at].time_ms >= begin_ms
    ]
    # Only the roots to print are loaded, each with the one before.
    shown = wanted[:count] if count else wanted
    names = past.names_of(store)
    rows = [_root_row(store, entries, at, names) for at in shown]
    older = len(wanted) - len(shown)
    notices = [f"{older} older roots are recorded; -n 0 lists all"] if older else []
    return CommandResult(rows, map(_root_line, rows), notices=notices)


def _root_row(
    store: CellStore, entries: list[Moment], at: int, names: dict[bytes, list[str]]
) -> dict[str, Any]:
    moment = entries[at]
    with explaining_gaps(store, past.short(moment.root_hash)):
        after = store.load(moment.root_hash)
        # The oldest recorded root is compared with nothing, so all its slots count as changed.
        before = store.load(entries[at - 1].root_hash) if at else None
        slots = [_slot_row(*change) for change in slot_changes(before, after)]
    return {
        "time": time_text(moment.time_ms),
        "time_ms": moment.time_ms,
        "hash": moment.root_hash.hex(),
        "names": names.get(moment.root_hash, []),
        "changed": slots,
    }


def _slot_row(path: tuple[Value, ...], before: Value, after: Value) -> dict[str, Any]:
    row: dict[str, Any] = {
        "path": [listed_json(key) for key in path],
        "text": past.path_text(path),
        "kind": "fork" if _is_fork(path, before, after) else "change",
        "signer": None,
        "valid": None,
        "hash": None if after is None else value_hash(after).hex(),
    }
    if isinstance(after, Signed):
        row["signer"] = after.public_key.hex()
        row["valid"] = after.verify()
    return row


def _is_fork(path: tuple[Value, ...], before: Value, after: Value) -> bool:
    """Return whether a slot changed to another branch; False if cells to compare are gone."""
    from datalattice.sync import is_descendant

    try:
        return not is_descendant(path, after, before)
    # Cells of former roots may be collected. A fork is reported only if both values can be read.
    except MissingData:
        return False


def _root_line(row: dict[str, Any]) -> str:
    slots = [_slot_text(slot) for slot in row["changed"][:SLOTS_SHOWN]]
    if len(row["changed"]) > SLOTS_SHOWN:
        slots.append(f"and {len(row['changed']) - SLOTS_SHOWN} more")
    names = f" ({', '.join(row['names'])})" if row["names"] else ""
    head = f"{row['time']}  {row['hash'][: past.HASH_DIGITS_SHOWN]}{names}"
    return f"{head}  {'; '.join(slots)}".rstrip()


def _slot_text(slot: dict[str, Any]) -> str:
    if slot["hash"] is None:
        return f"{slot['text']} removed"
    if slot["signer"] is None:
        return str(slot["text"])
    signer = slot["signer"][: past.KEY_DIGITS_SHOWN]
    by = "" if signer in slot["text"] else f" by 0x{signer}"  # the path has the owner's key
    fork = " FORK: another branch of its owner" if slot["kind"] == "fork" else ""
    return f"{slot['text']}{by}{fork}{'' if slot['valid'] else ' SIGNATURE NOT VALID'}"


@command(None, "show", FOLDER)
def show_root(
    call: Call, ref: RefArgument, path: PathArgument = None, full: FullOption = False
) -> CommandResult | None:
    """Print a former root, or the value at a path in it, as `lattice get` does."""
    store = call.store()
    (hash,) = call.named(store, ref)
    about = past.about_root(store, hash)
    keys = path_keys(path, call.existing)
    return value_result(store.load(hash), keys, full=full, about=about)


@command(None, "diff", FOLDER)
def diff(
    call: Call,
    before: RefArgument,
    after: RefArgument = "HEAD",
    path: PathArgument = None,
    count: CountOption = _DIFF_COUNT,
) -> CommandResult:
    """Print the differences between two roots by path, or only those below a given path."""
    keys = path_keys(path, call.existing)
    store = call.store()
    hashes = call.named(store, before, after)
    sides = [_at(store.load(hash), keys) for hash in hashes]
    # A path that both roots lack is probably misspelled.
    if all(side is ABSENT for side in sides):
        raise NoSuchPath(f"there is nothing at {past.path_text(tuple(keys))} in either root")
    found = _differences(sides[0], sides[1])
    rows = [
        {"path": [*keys, *at], "before": mine, "after": theirs}
        for at, mine, theirs in (islice(found, count) if count else found)
    ]
    # A further difference is looked for only if the page is full.
    is_complete = not count or len(rows) < count or next(found, None) is None
    document = {
        "before": hashes[0].hex(),
        "after": hashes[1].hex(),
        "changes": [_change_document(row) for row in rows],
        "complete": is_complete,
    }
    notices = [] if is_complete else [f"there are more than these {count} changes; -n 0 prints all"]
    return CommandResult(document, map(_change_line, rows), notices=notices)


def _at(root: Value, keys: Sequence[Value]) -> object:
    try:
        return value_at(root, keys)
    except NoSuchPath:
        return ABSENT


def _differences(
    before: object, after: object
) -> Iterator[tuple[tuple[Value, ...], object, object]]:
    if before is ABSENT or after is ABSENT:  # the whole value was added or removed
        return iter([((), before, after)])
    return iter(changes(before, after))


def _change_document(row: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "change": _change_kind(row),
        "path": [listed_json(key) for key in row["path"]],
    }
    for name in ("before", "after"):
        value = row[name]
        if value is not ABSENT:
            document[name] = brief_text(value)
            document[f"{name}_kind"] = kind_of(value)
    return document


def _change_kind(row: dict[str, Any]) -> str:
    if row["before"] is ABSENT:
        return "added"
    return "removed" if row["after"] is ABSENT else "changed"


def _change_line(row: dict[str, Any]) -> str:
    path = past.path_text(tuple(row["path"])) or "the value"
    if row["before"] is ABSENT:
        return f"+ {path}  {brief_text(row['after'])}"
    if row["after"] is ABSENT:
        return f"- {path}  {brief_text(row['before'])}"
    return f"~ {path}  {brief_text(row['before'])} -> {brief_text(row['after'])}"


@command(None, "checkout", FOLDER)
def checkout(
    call: Call,
    ref: RefArgument,
    into: Annotated[Path, typer.Option("--into", help="The new folder, without a store.")],
    with_key: Annotated[
        bool,
        typer.Option(
            "--with-key",
            help="Copy the owner's key, to write as the same owner from another node.",
        ),
    ] = False,
) -> CommandResult:
    """Make a new folder from a root, which can be written to and merged back.

    `lattice disk import FOLDER --merge` merges it back, or `lattice node pull` from a node on it.
    """
    target = folder_of(into)
    if target.store_path.exists():  # its data would be lost
        raise UsageError(f"{target.path} has a store already; name a new folder with --into")
    # Read before the copy, so that a missing key leaves nothing behind.
    key_pair = read_key(call.existing.key_path) if with_key else None
    if key_pair is not None and target.identity_path.exists():
        raise UsageError(f"{target.path} has a key already; leave out --with-key")
    store = call.store()
    (hash,) = call.named(store, ref)
    # The lease keeps garbage collection from removing cells that are not copied yet.
    with store.lease(hash, past.HOLD_SECONDS):
        bar = call.bar(f"checkout {past.short(hash)}")
        cells = _copy_root(store, hash, target.store_path, bar.to)
    if key_pair is not None:
        begin_folder(target, key_pair)
    return CommandResult({"folder": str(target.path), "root": hash.hex(), "cells": cells})


def _copy_root(store: CellStore, hash: bytes, path: Path, progress: Any) -> int:
    """Make a store with one root of another; return the number of its cells."""
    from datalattice.store import CellStore, announce_cells, copy_cells

    # Renamed when it is complete, so that an interrupted copy is not taken for a store.
    unfinished = path.with_name(path.name + ".part")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    with CellStore.open(unfinished) as fork:
        cells = copy_cells(store, hash, fork, progress)
        announce_cells(fork, [hash])
        fork.commit(fork.load(hash))
    unfinished.rename(path)
    return cells


@command(None, "audit", FOLDER)
def audit(call: Call, path: PathArgument = None, count: CountOption = AUDIT_COUNT) -> CommandResult:
    """Show who signed each slot, and its recorded changes.

    With a path, only changes below it are listed. Exit code 1 if a signature of the present root is
    not valid.
    """
    keys = path_keys(path, call.existing)
    store = call.store()
    call.enter(explaining_gaps(store, "the history"))
    rows = list(_audit_rows(store, past.moments(store), keys))
    slots = [_slot_row(*change) for change in slot_changes(None, store.root())]
    slots = [slot for slot in slots if _starts(slot["path"], [listed_json(k) for k in keys])]
    for slot in slots:
        own = [row for row in rows if row["path"] == slot["path"]]
        slot["changes"] = len(own)
        slot["last"] = own[-1]["time"] if own else None
    rows.reverse()
    shown = rows[:count] if count else rows
    notices = []
    if len(shown) < len(rows):
        notices.append(f"{len(rows) - len(shown)} older changes are recorded; -n 0 lists all")
    # None: a slot without a signature, which is not invalid.
    is_bad = any(slot["valid"] is False for slot in slots)
    if is_bad:
        notices.append("a signature of the present root is not valid")
    text: list[str | Listing] = [_slots_listing(slots), *map(_audit_line, shown)]
    return CommandResult({"slots": slots, "changes": rows}, text, int(is_bad), notices)


def _audit_rows(
    store: CellStore, entries: list[Moment], keys: Sequence[Value]
) -> Iterator[dict[str, Any]]:
    before: Value = None
    for entry in entries:
        after = store.load(entry.root_hash)
        yield from _audit_entry(entry, before, after, keys)
        before = after


def _audit_entry(
    entry: Moment, before: Value, after: Value, keys: Sequence[Value]
) -> Iterator[dict[str, Any]]:
    if keys and _same_at(before, after, keys):  # compared by hash, without loading the slots
        return
    for path, mine, theirs in slot_changes(before, after):
        shared = min(len(path), len(keys))
        if all(same(a, b) for a, b in zip(path[:shared], keys[:shared], strict=True)):
            row = _slot_row(path, mine, theirs)
            yield {"time": time_text(entry.time_ms), "root": entry.root_hash.hex(), **row}


def _same_at(before: Value, after: Value, keys: Sequence[Value]) -> bool:
    own, other = _at(before, keys), _at(after, keys)
    if own is ABSENT or other is ABSENT:
        return own is other
    return same(own, other)


def _starts(path: list[Any], keys: list[Any]) -> bool:
    # A path below a slot selects the slot, and a path above slots selects them all.
    shared = min(len(path), len(keys))
    return path[:shared] == keys[:shared]


def _slots_listing(slots: list[dict[str, Any]]) -> Listing:
    rows = [
        (
            slot["text"],
            (slot["signer"] or "")[: past.KEY_DIGITS_SHOWN],
            slot["valid"],
            slot["changes"],
            slot["last"],
        )
        for slot in slots
    ]
    return Listing(("slot", "signed by", "valid", "changes", "last change"), rows, "now")


def _audit_line(row: dict[str, Any]) -> str:
    root = str(row["root"])[: past.HASH_DIGITS_SHOWN]
    return f"{row['time']}  {root}  {_slot_text(row)}"
