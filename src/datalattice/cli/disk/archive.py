"""Commands `lattice disk export`, `backup` and `import`: copies of roots and folders."""

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

from datalattice.actions import ImportedRoot, ImportRoot, StartTask
from datalattice.cli.command import FOLDER, Call, command
from datalattice.cli.paths.past import HOLD_SECONDS, WithLocalOption, leaving, short
from datalattice.cli.render import CommandResult, count_text, pair_lines
from datalattice.cli.units import size_text
from datalattice.client import Progress
from datalattice.client.replicas import import_into, taking
from datalattice.errors import BadFormat, UsageError
from datalattice.store import CellStore

app = typer.Typer()

_PIPE: Final = Path("-")
EXIT_INCOMPLETE: Final = 1
"""Exit code of an import that left parts out."""


@command(app, "export", FOLDER)
def export(
    call: Call,
    ref: Annotated[str, typer.Argument(help="HEAD, HEAD~2, a pin, a hash, or a time.")],
    file: Annotated[Path, typer.Argument(help="The file to write; - for standard output.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    with_local: WithLocalOption = False,
) -> CommandResult | None:
    """Write a root with all its cells to one file, with checksums. A node may be running."""
    from datalattice.store import export_cells

    store = call.store()
    (top,) = call.named(store, ref)
    # The lease keeps garbage collection from removing cells that are not written yet.
    with store.lease(top, HOLD_SECONDS):
        hash, made = leaving(store, top, with_local=with_local)
        bar = call.bar(f"export {short(hash)}")
        with _written(file, force=force) as out:
            cells = export_cells(store, hash, out.write, bar.to, made=made)
    if file == _PIPE:
        return None
    size = file.stat().st_size
    document = {"file": str(file), "root": hash.hex(), "cells": cells, "bytes": size}
    return CommandResult(document, pair_lines({**document, "bytes": size_text(size)}))


@command(app, "backup", FOLDER)
def backup(
    call: Call,
    target: Annotated[
        Path, typer.Argument(help="The folder of the copy: a new one, or an earlier copy.")
    ],
    without_keys: Annotated[
        bool, typer.Option("--without-keys", help="Leave the private keys out of the copy.")
    ] = False,
) -> CommandResult:
    """Bring a copy of the folder up to date: data, weaver stores, settings and keys.

    A node and programs may write meanwhile. The copy is a folder like any other: to restore it,
    copy it to its new path. If the copy has data that this folder lacks, it is left unchanged and
    the command fails.
    """
    from datalattice.client.backups import back_up

    bar = call.bar(f"backup {target}")
    document = back_up(call.filled, target, with_keys=not without_keys, progress=bar.to)
    shown = {**document, "files": ", ".join(document["files"])}
    shown["weaver bytes"] = size_text(shown.pop("weaver_bytes"))
    return CommandResult(document, pair_lines(shown))


@command(app, "import", FOLDER)
def import_(
    call: Call,
    source: Annotated[
        Path, typer.Argument(help="An exported file (- for standard input), or a node's folder.")
    ],
    name: Annotated[str | None, typer.Option("--pin", help="Pin it under this name.")] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge it into the data here, as from a peer.")
    ] = False,
) -> CommandResult:
    """Read an exported file: verify every cell, then pin the root or merge it.

    Nothing is visible until the import is complete. A merged value is checked like one from a peer:
    a part that is malformed, unsigned, not hosted or over a quota is left out and reported, and the
    exit code is 1. Works through the running node, or without one.
    """
    if not name and not merge:  # the cells would be garbage at once
        raise UsageError("choose --pin NAME, --merge, or both")
    folder, pin = call.folder, name or ""
    if source != _PIPE and not source.exists():  # first: an import makes the store
        raise UsageError(f"{source} is neither an archive nor the folder of a node or store")
    with _opened(source) as path:

        def alone(progress: Progress) -> ImportedRoot:
            with CellStore.open(folder.store_path) as store:
                gate = taking(folder, store)  # "the same gate as what a peer sends"
                return import_into(
                    store, path, pin=pin, merge=merge, taking=gate, progress=progress
                )

        # Absolute, because the node has another working directory.
        wanted = ImportRoot(path=str(Path(path).absolute()), merge=merge, pin=pin)
        task = StartTask(import_root=wanted)
        return imported(call.finish(task, alone, f"import {source}"))


def imported(document: dict[str, Any]) -> CommandResult:
    """Return the report of `import_into` for printing; exit code 1 if it left parts out."""
    shown = {name: one for name, one in document.items() if one not in (None, "")}
    del shown["reports"]
    lines = pair_lines(shown)
    for one in document["reports"]:
        more = f" (and {one['count'] - 1} more)" if one["count"] > 1 else ""
        lines.append(f"{one['kind']}: {one['text']}{more}")
    notices = []
    if document["forked"]:
        notices.append(
            f"{count_text(document['forked'], 'slot')} forked: one of two branches was chosen; "
            "`lattice forks list` lists the others"
        )
    if document["dropped"]:
        notices.append(f"left out: {count_text(document['dropped'], 'part')}; the rest is merged")
    # The rest stays merged. The exit code tells a script that it is not the complete root.
    return CommandResult(document, lines, EXIT_INCOMPLETE if document["dropped"] else 0, notices)


@contextmanager
def _written(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Yield a file to write; it gets its name, durably, only if the block ends without an error."""
    if path == _PIPE:
        yield sys.stdout.buffer
        # Here rather than at the end of the process: an error of the output then fails the command.
        sys.stdout.buffer.flush()
        return
    if path.exists() and not force:  # an archive may be the only copy of its data
        raise UsageError(f"{path} exists already; --force replaces it")
    # In the same folder, because a file can be renamed only within one file system.
    unfinished = path.with_name(path.name + ".part")
    try:
        with unfinished.open("wb", buffering=io.DEFAULT_BUFFER_SIZE) as out:
            yield out
            out.flush()
            os.fsync(out.fileno())  # before the rename, so that a crash leaves no partial archive
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def _opened(source: Path) -> Iterator[str]:
    """Yield the path to import from; standard input is written to a temporary file first.

    Raises: BadFormat: the file is malformed; the text names it.
    """
    if source != _PIPE:
        try:
            yield str(source)
        except BadFormat as error:
            raise BadFormat(f"{source}: {error}") from error
        return
    # A running node opens the file by its path, which a pipe does not have.
    with tempfile.NamedTemporaryFile(prefix="lattice-", suffix=".archive") as spool:
        shutil.copyfileobj(sys.stdin.buffer, spool)
        spool.flush()
        yield spool.name
