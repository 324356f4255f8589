"""Commands `lattice forks ...`: list, resolve and prove the kept branches of forked values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from datalattice.actions import PAGE, ForkInfo, ResolveFork, whole_document
from datalattice.cells import to_text
from datalattice.cli.command import FOLDER, Call, command
from datalattice.cli.paths.past import path_text
from datalattice.cli.render import (
    CommandResult,
    Listing,
    Records,
    count_text,
    is_json,
    json_text,
    pair_lines,
    print_error,
)
from datalattice.cli.values import value_json
from datalattice.client import FORK_ENTRIES_MAX, Forks, open_store_reader, read_keys_or_none
from datalattice.clock import SystemClock
from datalattice.errors import UsageError
from datalattice.lattice import LOG_BRANCH
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.store import time_text
from datalattice.sync import CHAIN, FORK, INVALID, check_proof, owner_text

app = typer.Typer(
    help="Forks: two devices signed different values with one owner's key. Lists the branches that "
    "were not chosen."
)

ID_SHOWN: Final = 8
_OWNER_SHOWN: Final = 12

# "exits with 0 for a fork, 1 for a chain, 2 for an invalid file, 3 for none that can be read"
# (docs/cli.md "Commands")
_VERDICT_CODES: Final = {FORK: 0, CHAIN: 1, INVALID: 2}
EXIT_UNREADABLE: Final = 3

IdArgument = Annotated[
    str, typer.Argument(help="The fork's id or its first digits, from `lattice forks list`.")
]


def _forks(call: Call) -> Forks:
    keys = read_keys_or_none(call.existing)
    store = call.enter(open_store_reader(call.existing))
    # The keys decide only which forks are called own; a folder without a key has none.
    return Forks(store.root(), store, None if keys is None else keys.context())


@command(app, "list", FOLDER)
def list_forks(call: Call) -> CommandResult:
    """List the branches that are kept here as evidence, the oldest first."""
    rows = [_document(one) for one in _forks(call).list()]
    if not rows:
        return CommandResult(rows, [], notices=["no forks are open here"])
    columns = ("id", "owner", "slot", "kind", "since", "not here", "next")
    return CommandResult(rows, [Listing(columns, map(_list_row, rows))])


@command(app, "show", FOLDER)
def show_fork(call: Call, id: IdArgument) -> CommandResult:
    """Compare a kept branch with the value in its slot, and name the ways to resolve it."""
    shown = _forks(call).show(id, 0, PAGE)
    assert shown.fork is not None
    document = _document(shown.fork)
    document["differences"] = [
        {"text": path_text(one.path), **whole_document(one)} for one in shown.entries
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
        typer.Option(
            "--export", help="Print the contents of the branch as JSON lines; the branch stays."
        ),
    ] = False,
    drop: Annotated[
        bool, typer.Option("--drop", help="Forget the branch here; it does not come back.")
    ] = False,
) -> CommandResult | Records:
    """Append the records of a branch to the log, print them, or forget the branch.

    Works through the running node, or without one. --append needs the owner's key.
    """
    from datalattice.node import resolve_fork

    chosen = [name for name, on in (("append", append), ("export", export), ("drop", drop)) if on]
    if len(chosen) != 1:
        raise UsageError(
            f"choose one of --append, --export and --drop, got {len(chosen) or 'none'} of them"
        )
    forks = _forks(call)
    if export:
        # "prints these records, or the entries that differ, as JSON lines" (docs/node.md "Forks"),
        # whatever the form of the output.
        return Records(map(whole_document, forks.parts(id)), dict, json_text, is_live=True)
    # The full id: another branch with the same first digits may arrive before the action runs.
    request = ResolveFork(id=forks.id(id), how=chosen[0])
    done = call.on_replica(
        request,
        lambda replica: resolve_fork(replica, request, SystemClock()),
        fenced=append,  # appending is a write for the owner: "peers are asked first"
    )
    document = whole_document(done)
    return CommandResult(document, _resolved_lines(document))


@command(app, "export", FOLDER)
def export_proof(
    call: Call, id: IdArgument, file: Annotated[Path, typer.Argument(help="The new file.")]
) -> CommandResult:
    """Write a proof that the owner signed both values, which anyone can check without a store."""
    if file.exists():  # a proof may be the only copy
        raise UsageError(f"{file} exists already; name a new file")
    proof = _forks(call).proof(id)
    file.write_bytes(proof.data)
    return CommandResult({"id": proof.id, "file": str(file), "bytes": len(proof.data)})


@command(app, "verify")
def verify(
    call: Call,
    file: Annotated[Path, typer.Argument(help="A proof that `lattice forks export` wrote.")],
) -> CommandResult:
    """Check a proof: FORK (exit code 0), CHAIN (1), which proves no fork, or INVALID (2).

    Exit code 3: the file cannot be read.
    """
    try:
        with file.open("rb") as source:
            # One byte more than allowed shows `check_proof` that it is too long.
            data = source.read(MESSAGE_BYTES_MAX + 1)
    except OSError as error:
        print_error(f"{file}: {error.strerror or error}", "system", is_json())
        # Not 2, which scripts read as an invalid proof.
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


def _document(fork: ForkInfo) -> dict[str, Any]:
    return {
        **whole_document(fork),
        "section": to_text(fork.path[0]),
        "seen": time_text(fork.seen_ms),
        "next": _next(fork),
    }


def _next(fork: ForkInfo) -> str:
    if not fork.kept:
        return "resolve --drop: the branch was too large to be kept"
    # "Takes a key of the owner" (docs/node.md "Forks"), because new records are signed.
    if fork.kind == LOG_BRANCH and fork.mine:
        return "resolve --append, --export or --drop"
    # Only its owner's node can join the branches.
    return "resolve --export or --drop" if fork.mine else "waits for a node with the owner's key"


# --- text -----------------------------------------------------------------------------------------


def _list_row(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        row["id"][:ID_SHOWN],
        row["owner"][:_OWNER_SHOWN] + (" (own)" if row["mine"] else ""),
        row["section"],
        row["kind"],
        row["seen"],
        _lost_text(row),
        row["next"],
    )


def _lost_text(row: dict[str, Any]) -> str:
    if row["kind"] != LOG_BRANCH:
        more = "+" if row["entries"] == FORK_ENTRIES_MAX else ""  # counting ends there
        return f"{row['entries']}{more} entries differ"
    return ", ".join(
        f"{_name(log)}: {count_text(log['records'], 'record')} from {log['first']}"
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
        records = count_text(one["count"], "record")
        offsets = f"offset {last}" if one["count"] == 1 else f"offsets {one['offset']} to {last}"
        yield f"{name}: appended {records} at {offsets}"
    yield "evidence removed" if document["removed"] else "the evidence is still kept"
