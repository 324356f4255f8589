"""Commands `lattice etch ...`: read, check, write and copy store files of the reference."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer

from datalattice.actions import whole_document
from datalattice.cells import (
    Index,
    Value,
    decode,
    decode_message,
    encode_message,
    from_text,
    memory_size,
    read_json,
    to_text,
)
from datalattice.cli.command import FOLDER, Call, command
from datalattice.cli.disk.archive import imported
from datalattice.cli.paths.past import WithLocalOption, leaving
from datalattice.cli.render import (
    EXIT_FAILED,
    CommandResult,
    Records,
    pair_lines,
    print_notice,
)
from datalattice.cli.units import size_text
from datalattice.client import Folder, count_of, kind_of
from datalattice.client.replicas import taking
from datalattice.errors import BadFormat, DataLatticeError, MissingData, UsageError
from datalattice.store import CellStore
from datalattice.store.etch import EtchRecord, EtchStore, check_etch, collect_etch

app = typer.Typer(help="Read, check, write and copy Etch files, the reference's stores.")

HASH_DIGITS: Final = 64

FAULTS_SHOWN: Final = 20  # one damaged index block has thousands
"""Most faults that are printed by default; --json has up to 1,000."""

FileArgument = Annotated[Path, typer.Argument(help="The Etch file.")]
EtchOutputOption = Annotated[
    Path | None, typer.Option("--output", help="Write to this file, not standard output.")
]
CellsOption = Annotated[
    Path | None,
    typer.Option("--cells", help="A file with the cells of one value, instead of the folder."),
]


@contextmanager
def _redirected(path: Path | None) -> Iterator[None]:
    """Send standard output to a file in a `with` block, if a path is given."""
    if path is None:
        yield
        return
    # Values may have bytes that are not UTF-8, kept as surrogates.
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        before: TextIO = sys.stdout
        sys.stdout = file
        try:
            yield
        finally:
            sys.stdout = before


def _hash(text: str) -> bytes:
    try:
        hash = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        hash = b""
    if len(hash) * 2 != HASH_DIGITS:
        raise UsageError(f"a hash is {HASH_DIGITS} hex digits, got {text!r}")
    return hash


def _open(path: Path) -> EtchStore:
    _need_file(path)
    # Read only, because the reference may have the file open.
    return EtchStore.open(path, read_only=True)


@command(app, "info")
def info(call: Call, file: FileArgument, output: EtchOutputOption = None) -> CommandResult:
    """Print version, data length and root of the file."""
    store = call.enter(_open(file))  # first: an error must not make the output file
    call.enter(_redirected(output))
    return CommandResult(_info(store))


def _info(store: EtchStore) -> dict[str, Any]:
    document: dict[str, Any] = {
        "file": store.path,
        "version": 1,
        "file_bytes": store.file.size,
        "data_length": store.file.length,
        "root_hash": store.file.root_hash.hex(),
    }
    root_hash = store.root_hash()
    if root_hash is None:
        return {**document, "root": "never set"}
    if not store.has(root_hash):  # the file was damaged, or written in part
        return {**document, "root": "root data missing"}
    root = store.root()
    record = store.file.get(root_hash)
    document["root_kind"] = kind_of(root)
    document["root_count"] = count_of(root)
    document["root_memory_size"] = record.memory_size if record else memory_size(root)
    return document


@command(app, "dump")
def dump(
    call: Call,
    file: FileArgument,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Most records.")] = None,
    output: EtchOutputOption = None,
) -> Records:
    """Print every record in the order of the index, as CSV: hash, kind, memory size, encoding."""
    store = call.enter(_open(file))
    call.enter(_redirected(output))
    return Records(map(_row, islice(store.file.records(), limit)), dict, _csv_line)


def _csv_line(row: dict[str, Any]) -> str:
    line = io.StringIO()
    fields = (row["hash"], row["kind"], row["memory_size"], row["encoding"])
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def _row(record: EtchRecord) -> dict[str, Any]:
    try:
        kind = kind_of(decode(record.encoding))
    except BadFormat:  # a damaged record is listed, so that its offset is known
        kind = "damaged"
    return {
        "hash": record.key.hex(),
        "kind": kind,
        "memory_size": record.memory_size,
        "encoding": record.encoding.hex(),
        "status": record.status,
        "offset": record.offset,
    }


@command(app, "read")
def read(
    call: Call,
    file: FileArgument,
    hash: Annotated[list[str], typer.Argument(help="Hashes of values, 64 hex digits each.")],
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Most characters of each value.")
    ] = None,
    output: EtchOutputOption = None,
) -> Records:
    """Print values in their printed form, one on each line; an empty line for a missing one."""
    wanted = [_hash(text) for text in hash]
    store = call.enter(_open(file))
    call.enter(_redirected(output))
    documents = (
        {
            "hash": one.hex(),
            "value": to_text(store.load(one))[:limit] if store.has(one) else None,
        }
        for one in wanted
    )
    return Records(documents, dict, lambda one: one["value"] or "")


@command(app, "write")
def write(
    call: Call,
    file: FileArgument,
    text: Annotated[
        str | None,
        typer.Option("--text", "--cvx", help="The value in its printed form."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="A file of JSON (marks as in `lattice put`).")
    ] = None,
    root: Annotated[bool, typer.Option("--root", help="Make it the root.")] = False,
) -> CommandResult:
    """Store a value with all its cells, and print its hash. A missing file is made."""
    if (text is None) == (source is None):
        raise UsageError("give either the value with --text, or a file of JSON with --from")
    # The value is read, or its file opened, before the store: opening makes a missing one.
    with ExitStack() as stack:
        if source is None:
            value, store = _printed(str(text)), stack.enter_context(EtchStore.open(file))
        else:
            stream = stack.enter_context(source.open("rb"))
            store = stack.enter_context(EtchStore.open(file))
            # Staged while it is read, because a document may be larger than memory.
            value = read_json(stream, stage=store.put)
        hash = store.commit(value).root_hash if root else store.persist(value)
    return CommandResult({"hash": hash.hex()}, [hash.hex()])


def _printed(text: str) -> Value:
    try:
        return from_text(text)
    except BadFormat as error:
        raise UsageError(f"--text: {error}") from error


@command(app, "validate")
def validate_file(
    call: Call,
    file: FileArgument,
    limit: Annotated[
        int, typer.Option("--max", "-m", min=1, help="Most faults that are printed.")
    ] = FAULTS_SHOWN,
    output: EtchOutputOption = None,
) -> CommandResult:
    """Check every byte of the data. Exit code 1 if anything is damaged."""
    report = check_etch(file, progress=call.bar(f"check {file}").to)
    document: dict[str, Any] = {
        "clean": report.is_clean,
        "faults": [
            {"offset": f.offset, "reason": f.reason, "hash": f.key.hex() if f.key else None}
            for f in report.faults
        ],
        "fault_count": report.fault_count,
        "index_blocks": report.blocks,
        "cells": report.cells,
        "empty_slots": report.empty_slots,
        "data_length": report.length,
        "unreached_bytes": report.unreached_bytes,
        "average_encoding": report.encoding_bytes / report.cells if report.cells else 0,
        "bytes_per_cell": report.length / report.cells if report.cells else 0,
        "statuses": dict(report.statuses),
    }
    lines = [str(fault) for fault in report.faults[:limit]]
    if report.fault_count > limit:
        lines.append(f"... and {report.fault_count - limit} more faults")
    shown = {name: document[name] for name in list(document)[2:-1]}
    lines += pair_lines({**shown, **{f"cells {k}": v for k, v in report.statuses.items()}})
    lines.append("clean" if report.is_clean else "damaged")
    # After the check: an error in it must not empty the report of an earlier one.
    call.enter(_redirected(output))
    return CommandResult(document, lines, 0 if report.is_clean else EXIT_FAILED)


@command(app, "clear")
def clear(call: Call, file: FileArgument) -> CommandResult:
    """Set the root to nil. `lattice etch gc` frees the space afterwards."""
    _need_file(file)  # opening would make a missing file
    with EtchStore.open(file) as store:
        store.commit(None)
    return CommandResult({"root": None}, ["the root is nil"])


def _need_file(file: Path) -> None:
    if not file.is_file():
        raise UsageError(f"{file}: there is no such file")


@command(app, "gc")
def gc(
    call: Call,
    file: FileArgument,
    pin: Annotated[
        list[str] | None, typer.Option("--pin", help="A cell to keep besides the root, by hash.")
    ] = None,
) -> CommandResult:
    """Replace the file by a new one with only the cells that the root and the pins reach."""
    pins = [_hash(text) for text in pin or []]
    before, after = collect_etch(file, pins, progress=call.bar(f"collect {file}").to)
    document = {"before": before, "after": after, "freed": before - after}
    return CommandResult(
        document, pair_lines({name: size_text(one) for name, one in document.items()})
    )


@command(app, "import", FOLDER)
def import_(
    call: Call,
    file: FileArgument,
    cells: CellsOption = None,
    pin: Annotated[
        str | None,
        typer.Option("--pin", help="Keep the root under this name; do not merge it."),
    ] = None,
) -> CommandResult:
    """Import the root of an Etch file, with all its cells, into the node's folder.

    It is merged into the root like a value from a peer, as `lattice disk import --merge`. Exit
    code 1 if parts are left out. Stop the node first.
    """
    with _open(file) as etch:
        hash = etch.root_hash()
        if hash is None:
            raise UsageError(f"{file}: no root was ever set")
        if cells is not None:
            # For another program; the folder is not used.
            cells.write_bytes(encode_message(etch.root()))
            return CommandResult({"hash": hash.hex(), "cells": str(cells)})
        return imported(_into_folder(etch, pin, call.folder, call.bar(f"import {file}").to))


def _into_folder(etch: EtchStore, pin: str | None, folder: Folder, progress: Any) -> dict[str, Any]:
    from datalattice.client.replicas import import_into

    # Only an Index of sections can be merged with the root of a node.
    if pin is None and not isinstance(etch.root(), Index):
        raise UsageError(
            f"the root of {etch.path} is a {kind_of(etch.root())}; only an index of sections can "
            "be merged; pin it with --pin NAME"
        )
    with CellStore.open(folder.store_path) as store:
        made = import_into(
            store,
            etch,
            pin=pin or "",
            merge=pin is None,
            taking=taking(folder, store),
            progress=progress,
        )
    done = whole_document(made)
    head = {
        "hash": done.pop("imported"),
        "new_cells": done.pop("cells"),
        "root_hash": done.pop("root"),
    }
    return {**head, **done}


@command(app, "export", FOLDER)
def export(
    call: Call,
    file: FileArgument,
    cells: CellsOption = None,
    ref: Annotated[
        str, typer.Option("--ref", help="The root: HEAD, HEAD~2, a pin, a hash, or a time.")
    ] = "HEAD",
    with_local: WithLocalOption = False,
) -> CommandResult:
    """Write the root of the node's folder, with all its cells, to a new Etch file."""
    if file.exists():  # an existing store is never overwritten
        raise UsageError(f"{file} exists already; name a new file")
    if cells is not None:
        # A file of the user, so the limit of a message from a peer does not apply.
        value = decode_message(cells.read_bytes(), limit=sys.maxsize)
        with EtchStore.open(file) as etch:
            return CommandResult({"hash": etch.commit(value).root_hash.hex()})
    store = call.store()
    (top,) = call.named(store, ref)
    hash, made = leaving(store, top, with_local=with_local)
    bar = call.bar(f"export {file}")
    done = 0

    def fetch(hash: bytes) -> bytes:
        nonlocal done
        # Cells above the section that was left out are new; all others are in the store.
        found = made.get(hash) or store.get_encoding(hash)
        if found is None:
            raise MissingData([hash])
        done += 1
        if done % 1_000 == 0:
            bar.to(done)
        return found

    try:
        with EtchStore.open(file) as etch:
            new = etch.set_root(hash, fetch)
    # A partial file would look like a complete export.
    except DataLatticeError:
        file.unlink(missing_ok=True)
        print_notice(f"{file} was not written")
        raise
    return CommandResult({"hash": hash.hex(), "new_cells": new, "bytes": file.stat().st_size})
