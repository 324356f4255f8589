"""Commands `lattice forks ...`: the kept branches of forked values: list, resolve, prove."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from datalattice.actions import ResolveFork, whole_document
from datalattice.apps.queue import (
    QueueState,
    entry_headers,
    entry_key,
    entry_stamp_ms,
    entry_value,
    read_state,
)
from datalattice.cells import ABSENT, Signed, Value, changes, value_hash
from datalattice.cli.command import ANY, Call, command
from datalattice.cli.paths.past import path_text
from datalattice.cli.render import (
    CommandResult,
    Listing,
    Records,
    counted,
    is_json,
    json_text,
    pair_lines,
    print_error,
)
from datalattice.cli.values import value_json, value_text
from datalattice.client import open_reader, read_keys_or_none
from datalattice.clock import SystemClock
from datalattice.errors import UsageError
from datalattice.lattice import LOG_BRANCH, MergeContext, get_in
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.store import time_text
from datalattice.sync import (
    CHAIN,
    FORK,
    INVALID,
    ForkRecord,
    LogLoss,
    check_proof,
    owner_text,
    partition_of_slot,
    stored_forks,
    write_proof,
)

app = typer.Typer(
    help="Two devices signed different values with one owner's key: the branch that was not chosen."
)

ID_SHOWN: Final = 8
OWNER_SHOWN: Final = 12

DIFFERENCES_MAX: Final = 100
# A value of any size may differ in any number of entries.
"""Differing entries that `list` counts, and `show` names."""

_VERDICT_CODES: Final = {FORK: 0, CHAIN: 1, INVALID: 2}  # "exit code 0 … 1 … 2": for scripts
EXIT_UNREADABLE: Final = 3

IdArgument = Annotated[
    str, typer.Argument(help="The fork's id, or how it begins, as `lattice forks list` has it.")
]


@dataclass(frozen=True, slots=True)
class _Forks:
    """What a folder keeps of forks, and what it has in their slots."""

    root: Value
    records: list[ForkRecord]
    context: MergeContext

    def find(self, text: str) -> ForkRecord:
        """Return the record whose id begins so.

        Raises: UsageError: none does, or several do.
        """
        found = [one for one in self.records if one.id.hex().startswith(text.lower())]
        if not text or not found:  # an empty text begins every id
            raise UsageError(
                f"no fork {text!r} is open here; `lattice forks list` has those that are"
            )
        if len(found) > 1:  # resolving the wrong fork loses a branch
            raise UsageError(f"{len(found)} forks begin with {text!r}; give more digits")
        return found[0]

    def is_mine(self, record: ForkRecord) -> bool:
        """Return whether a key of the folder may sign for its owner."""
        # "An owner's node holds a key that may sign for the owner"
        return self.context.signer(record.owner) is not None

    def slot_of(self, record: ForkRecord) -> Signed | None:
        """Return what is in the record's slot now."""
        slot = get_in(self.root, record.path)
        return slot if isinstance(slot, Signed) else None

    def differences(self, record: ForkRecord) -> Iterator[tuple[tuple[Value, ...], Value, Value]]:
        """Yield (path, value here, value of the branch) of what differs; nothing if not kept."""
        slot = self.slot_of(record)
        if slot is not None and record.loser is not None:
            yield from changes(slot.value, record.loser.value)


def _forks(call: Call) -> _Forks:
    folder = call.existing
    keys = read_keys_or_none(folder)
    context = MergeContext() if keys is None else keys.context()
    store = call.enter(open_reader(folder))
    root = store.root()
    found: dict[bytes, ForkRecord] = {}
    if keys is not None:  # the records are the node's own, signed with its identity
        found, _ = stored_forks(root, keys.identity.public_key)
    records = sorted(found.values(), key=lambda one: (one.seen_ms, one.id))
    return _Forks(root, records, context)


@command(app, "list", ANY)
def list_forks(call: Call) -> CommandResult:
    """List the branches that are kept here as evidence, the oldest first."""
    forks = _forks(call)
    rows = [_document(forks, one) for one in forks.records]
    if not rows:
        return CommandResult(rows, [], notices=["no forks are open here"])
    columns = ("id", "owner", "slot", "kind", "since", "not here", "next")
    return CommandResult(rows, [Listing(columns, map(_list_row, rows))])


@command(app, "show", ANY)
def show_fork(call: Call, id: IdArgument) -> CommandResult:
    """Compare a kept branch with the value in its slot, and name the ways to resolve it."""
    forks = _forks(call)
    record = forks.find(id)
    document = _document(forks, record)
    document["differences"] = [
        {"text": path_text(difference[0]), **_difference(difference)}
        for difference in _first_differences(forks, record)
    ]
    return CommandResult(document, _fork_lines(document))


@command(app, "resolve", ("dir", "offline"))
def resolve(
    call: Call,
    id: IdArgument,
    append: Annotated[
        bool,
        typer.Option("--append", help="Append the records that a log lacks to its end, once."),
    ] = False,
    export: Annotated[
        bool,
        typer.Option("--export", help="Print what the branch has as JSON lines; it stays kept."),
    ] = False,
    drop: Annotated[
        bool, typer.Option("--drop", help="Forget the branch here; it does not come back.")
    ] = False,
) -> CommandResult | Records:
    """Put the records of a lost branch back, print them, or let the branch go.

    Works through the running node, or without one. To append takes a key of the owner.
    """
    from datalattice.node import resolve_fork

    chosen = [name for name, on in (("append", append), ("export", export), ("drop", drop)) if on]
    # The three exclude each other: `--drop` forgets what `--export` would print.
    if len(chosen) != 1:
        raise UsageError("choose one of --append, --export and --drop")
    forks = _forks(call)
    record = forks.find(id)
    if export:
        if record.loser is None:  # only what is kept can be printed
            raise UsageError("this branch was too large to be kept: only its signature is here")
        return Records(_exported(forks, record), dict, json_text, is_live=True)
    request = ResolveFork(id=record.id.hex(), how=chosen[0])
    done = call.on_replica(
        request,
        lambda replica: resolve_fork(replica, request, SystemClock()),
        fenced=append,  # to append is a write of the owner: "peers are asked first"
    )
    document = whole_document(done)
    return CommandResult(document, _resolved_lines(document))


@command(app, "export", ANY)
def export_proof(
    call: Call, id: IdArgument, file: Annotated[Path, typer.Argument(help="The new file.")]
) -> CommandResult:
    """Write a proof that the owner signed both: for anyone, without a store or a network."""
    if file.exists():  # a proof is never replaced
        raise UsageError(f"{file} is there already; name a new file")
    forks, store = _forks(call), call.enter(open_reader(call.existing))
    record = forks.find(id)
    slot = forks.slot_of(record)
    # A proof shows both signed values; a signature alone may be of the same value.
    if record.loser is None or slot is None:
        raise UsageError("this branch was too large to be kept: its signature alone proves no fork")
    data = write_proof(record.path, record.owner, slot, record.loser, store.get_encodings)
    file.write_bytes(data)
    return CommandResult({"id": record.id.hex(), "file": str(file), "bytes": len(data)})


@command(app, "verify")
def verify(
    call: Call,
    file: Annotated[Path, typer.Argument(help="A proof that `lattice forks export` wrote.")],
) -> CommandResult:
    """Check a proof by itself: FORK (exit code 0), CHAIN (1), which proves nothing, INVALID (2).

    Exit code 3: there is no such file, or it cannot be read.
    """
    try:
        with file.open("rb") as source:
            # One byte more than allowed shows that it is too long.
            data = source.read(MESSAGE_BYTES_MAX + 1)
    except OSError as error:
        print_error(f"{file}: {error.strerror or error}", "system", is_json())
        # 3: for a script, not the same as an invalid proof.
        raise typer.Exit(EXIT_UNREADABLE) from None
    found = check_proof(data)
    document = {
        "verdict": found.kind,
        "text": found.text,
        "owner": None if found.owner is None else owner_text(found.owner),
        "path": [value_json(key) for key in found.path],
        "cells": [hash.hex() for hash in found.hashes],
    }
    return CommandResult(document, _verdict_lines(document), _VERDICT_CODES[found.kind])


def _verdict_lines(document: dict[str, Any]) -> Iterator[str]:
    yield f"{document['verdict']}: {document['text']}"
    if document["owner"] is not None:
        yield f"owner  {document['owner']}"
        yield from (f"cell   {hash}" for hash in document["cells"])


# --- documents ------------------------------------------------------------------------------------


def _document(forks: _Forks, record: ForkRecord) -> dict[str, Any]:
    slot = forks.slot_of(record)
    mine = forks.is_mine(record)
    counted_entries = None
    if record.branch != LOG_BRANCH:  # records of a log are counted in `logs`
        counted_entries = sum(1 for _ in _first_differences(forks, record))
    return {
        "id": record.id.hex(),
        "owner": owner_text(record.owner),
        "mine": mine,
        "path": [value_json(key) for key in record.path],
        "section": value_text(record.path[0]),
        "kind": record.branch,
        "seen_ms": record.seen_ms,
        "seen": time_text(record.seen_ms),
        "kept": record.loser is not None,
        "bytes": max(record.bytes, 0),
        "here": None if slot is None else value_hash(slot).hex(),
        "branch": None if record.loser is None else value_hash(record.loser).hex(),
        "logs": [_log_document(slot, record, log) for log in record.logs],
        "entries": counted_entries,
        "next": _next(record, mine=mine),
    }


def _log_document(slot: Signed | None, record: ForkRecord, log: LogLoss) -> dict[str, Any]:
    here = read_state(None if slot is None else partition_of_slot(slot.value, log))
    branch = read_state(
        None if record.loser is None else partition_of_slot(record.loser.value, log)
    )
    return {
        "topic": value_json(log.topic),
        "partition": value_json(log.partition),
        "first": log.first,
        "end": log.end,
        "records": log.end - log.first,
        "here_end": here.end,
        "here_ms": _last_write_ms(here),
        "branch_ms": _last_write_ms(branch),
    }


def _last_write_ms(state: QueueState) -> int:
    """Return when the last record was written; a joined log has the time of its latest side."""
    entries = state.entries
    last_ms = entry_stamp_ms(entries[-1]) if len(entries) else None
    # A log that was joined has the time of its later side.
    return state.stamp_ms if last_ms is None else last_ms


def _next(record: ForkRecord, *, mine: bool) -> str:
    if record.loser is None:  # there is nothing to append or export
        return "resolve --drop: the branch was too large to be kept"
    if record.branch == LOG_BRANCH and mine:
        return "resolve --append, --export or --drop"
    # Only its owner's node can join the branches.
    return "waits for a node with the owner's key" if not mine else "resolve --export or --drop"


def _first_differences(
    forks: _Forks, record: ForkRecord
) -> Iterator[tuple[tuple[Value, ...], Value, Value]]:
    # Bounded: two large values may differ everywhere.
    return islice(forks.differences(record), DIFFERENCES_MAX)


def _difference(found: tuple[tuple[Value, ...], Value, Value]) -> dict[str, object]:
    path, here, branch = found
    return {
        "path": [value_json(key) for key in path],
        "here": None if here is ABSENT else value_json(here),
        "branch": None if branch is ABSENT else value_json(branch),
    }


def _exported(forks: _Forks, record: ForkRecord) -> Iterator[dict[str, object]]:
    """Yield what a branch has: the records of a log, else what differs."""
    for log, branch in record.log_branches():
        for at, entry in enumerate(branch.tail()):  # the records that the log lacks
            yield {
                "topic": value_json(log.topic),
                "partition": value_json(log.partition),
                "offset": branch.first + at,
                "key": value_json(entry_key(entry)),
                "value": value_json(entry_value(entry)),
                "time": entry_stamp_ms(entry),
                "headers": value_json(entry_headers(entry)) or None,
            }
    if record.branch != LOG_BRANCH:
        yield from map(_difference, forks.differences(record))


# --- text -----------------------------------------------------------------------------------------


def _list_row(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        row["id"][:ID_SHOWN],
        row["owner"][:OWNER_SHOWN] + (" (own)" if row["mine"] else ""),
        row["section"],
        row["kind"],
        row["seen"],
        _lost_text(row),
        row["next"],
    )


def _lost_text(row: dict[str, Any]) -> str:
    if row["kind"] != LOG_BRANCH:
        more = "+" if row["entries"] == DIFFERENCES_MAX else ""  # counted up to the bound only
        return f"{row['entries']}{more} entries differ"
    return ", ".join(
        f"{_name(log)}: {counted(log['records'], 'record')} from {log['first']}"
        for log in row["logs"]
    )


def _name(log: dict[str, Any]) -> str:
    return f"{log['topic']}/{log['partition']}"


def _fork_lines(document: dict[str, Any]) -> Iterator[str]:
    owner = document["owner"] + (" (your key)" if document["mine"] else "")
    what = "histories" if document["kind"] == LOG_BRANCH else "values"
    yield f"{owner} signed two {what} in {document['section']}, seen {document['seen']}."
    for log in document["logs"]:
        first = log["first"]
        yield f"{_name(log)}: the two agree before offset {first}."
        for where, end, ms in (
            ("in the log ", log["here_end"], log["here_ms"]),
            ("not in it  ", log["end"], log["branch_ms"]),
        ):
            yield f"  {where}   offsets {first} to {end - 1}, last write {time_text(ms)}"
    if document["kind"] != LOG_BRANCH:
        yield from (f"  differs: {one['text']}" for one in document["differences"])
    yield from pair_lines(
        {
            "cell here": document["here"],
            "cell of the branch": document["branch"] or "not kept",
            "next": document["next"],
        }
    )


def _resolved_lines(document: dict[str, Any]) -> Iterator[str]:
    for one in document["appended"]:
        name = _name(one)
        if not one["count"]:
            yield f"{name}: they were appended before"
            continue
        last = one["offset"] + one["count"] - 1
        records = counted(one["count"], "record")
        offsets = f"offset {last}" if one["count"] == 1 else f"offsets {one['offset']} to {last}"
        yield f"{name}: appended {records} at {offsets}"
    yield "evidence removed" if document["removed"] else "the evidence is still kept"
