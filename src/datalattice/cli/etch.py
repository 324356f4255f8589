"""Commands `lattice etch ...`: the reference's store files, read, checked, written and copied."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer
from typer.exceptions import Exit

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
from datalattice.cli.folder import (
    DirOption,
    JsonOption,
    WithLocalOption,
    existing_folder,
    folder_of,
)
from datalattice.cli.get import count_of, kind_of
from datalattice.cli.imported import tell_imported
from datalattice.cli.render import (
    print_json_list,
    print_lines,
    print_notice,
    print_pairs,
    progress_bars,
    show,
)
from datalattice.cli.running import size_text
from datalattice.client import root_named
from datalattice.client.replicas import taking
from datalattice.errors import BadFormat, DataLatticeError, MissingData, UsageError
from datalattice.store import CellStore
from datalattice.store.etch import EtchRecord, EtchStore, check_etch, collect_etch

app = typer.Typer(help="Read, check, write and copy Etch files, the reference's stores.")

EXIT_FAILED: Final = 1
HASH_DIGITS: Final = 64

FAULTS_SHOWN: Final = 20
"""Faults that are printed; --json has up to 1,000."""

FileArgument = Annotated[Path, typer.Argument(help="The Etch file.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file, not standard output.")
]
CellsOption = Annotated[
    Path | None,
    typer.Option("--cells", help="A file of the cells of one value, in place of the folder."),
]


@contextmanager
def _output(path: Path | None) -> Iterator[None]:
    """Send what is printed to a file."""
    if path is None:
        yield
        return
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
    return EtchStore.open(path, read_only=True)


@app.command("info")
def info(file: FileArgument, output: OutputOption = None, json: JsonOption = False) -> None:
    """Print what the file is: version, data length, and its root."""
    with _open(file) as store, _output(output):
        document = _info(store)
        show(json, document, lambda: print_pairs(document))


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
    if not store.has(root_hash):
        return {**document, "root": "root data missing"}
    root = store.root()
    record = store.file.get(root_hash)
    document["root_kind"] = kind_of(root)
    document["root_count"] = count_of(root)
    document["root_memory_size"] = record.memory_size if record else memory_size(root)
    return document


@app.command("dump")
def dump(
    file: FileArgument,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Records at most.")] = None,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Print every record in the order of the index, as CSV: hash, kind, memory size, encoding."""
    with _open(file) as store, _output(output):
        rows = (
            _row(record)
            for number, record in enumerate(store.file.records())
            if limit is None or number < limit
        )
        if json:
            print_json_list(rows)
            return
        writer = csv.writer(sys.stdout, lineterminator="\n")
        for row in rows:
            writer.writerow((row["hash"], row["kind"], row["memory_size"], row["encoding"]))


def _row(record: EtchRecord) -> dict[str, Any]:
    try:
        kind = kind_of(decode(record.encoding))
    except BadFormat:
        kind = "damaged"
    return {
        "hash": record.key.hex(),
        "kind": kind,
        "memory_size": record.memory_size,
        "encoding": record.encoding.hex(),
        "status": record.status,
        "offset": record.offset,
    }


@app.command("read")
def read(
    file: FileArgument,
    hash: Annotated[list[str], typer.Argument(help="Hashes of values, 64 hex digits each.")],
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Characters of each value at most.")
    ] = None,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Print values in their printed form, one a line; an empty line for one that is not here."""
    wanted = [_hash(text) for text in hash]
    with _open(file) as store, _output(output):
        documents = []
        for one in wanted:
            text = to_text(store.load(one))[:limit] if store.has(one) else None
            documents.append({"hash": one.hex(), "value": text})
            if not json:
                print_lines([text or ""])
        if json:
            print_json_list(documents)


@app.command("write")
def write(
    file: FileArgument,
    text: Annotated[
        str | None,
        typer.Option("--text", "--cvx", help="The value in its printed form; else read JSON."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="A file of JSON (marks as in `lattice put`).")
    ] = None,
    root: Annotated[bool, typer.Option("--root", help="Make it the root.")] = False,
    json: JsonOption = False,
) -> None:
    """Store a value and all below it, and print its hash. The file is made when needed."""
    if (text is None) == (source is None):
        raise UsageError("give the value with --text, or a file of JSON with --from")
    with EtchStore.open(file) as store:
        if text is not None:
            try:
                value = from_text(text)
            except BadFormat as error:
                raise UsageError(f"--text: {error}") from error
        else:
            assert source is not None
            with source.open("rb") as stream:
                value = read_json(stream, stage=store.put)
        hash = _persist(store, value, root)
    document = {"hash": hash.hex()}
    show(json, document, lambda: print_lines([document["hash"]]))


def _persist(store: EtchStore, value: Value, root: bool) -> bytes:
    if root:
        return store.commit(value).root_hash
    return store.persist(value)


@app.command("validate")
def validate(
    file: FileArgument,
    limit: Annotated[
        int, typer.Option("--max", "-m", min=1, help="Faults printed at most.")
    ] = FAULTS_SHOWN,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Check every byte of the data; exit code 1 when something is wrong."""
    with progress_bars(quiet=json) as bars:
        report = check_etch(file, progress=bars.add(f"check {file}").to)
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
    with _output(output):
        if json:
            show(True, document, lambda: None)
        else:
            print_lines(str(fault) for fault in report.faults[:limit])
            if report.fault_count > limit:
                print_lines([f"... and {report.fault_count - limit} more faults"])
            shown = {name: document[name] for name in list(document)[2:-1]}
            print_pairs({**shown, **{f"cells {k}": v for k, v in report.statuses.items()}})
            print_lines(["clean" if report.is_clean else "damaged"])
    if not report.is_clean:
        raise Exit(EXIT_FAILED)


@app.command("clear")
def clear(file: FileArgument, json: JsonOption = False) -> None:
    """Set the root to nil. Nothing is given back until `lattice etch gc`."""
    _need_file(file)
    with EtchStore.open(file) as store:
        store.commit(None)
    show(json, {"root": None}, lambda: print_lines(["the root is nil"]))


def _need_file(file: Path) -> None:
    if not file.is_file():
        raise UsageError(f"{file}: there is no such file")


@app.command("gc")
def gc(
    file: FileArgument,
    pin: Annotated[
        list[str] | None, typer.Option("--pin", help="A cell to keep beside the root, by hash.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Copy what the root and the pins reach to a new file, which takes the place of the old one."""
    pins = [_hash(text) for text in pin or []]
    with progress_bars(quiet=json) as bars:
        before, after = collect_etch(file, pins, progress=bars.add(f"collect {file}").to)
    document = {"before": before, "after": after, "freed": before - after}
    shown = {name: size_text(count) for name, count in document.items()}
    show(json, document, lambda: print_pairs(shown))


@app.command("import")
def import_(
    file: FileArgument,
    cells: CellsOption = None,
    pin: Annotated[
        str | None,
        typer.Option("--pin", help="Keep the root under this name; do not merge it."),
    ] = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Take the root of an Etch file, and all below it, into the node's folder.

    It is merged into the root like the state of a peer. Exit code 1 when parts are left out:
    as `lattice disk import --merge`. No node may run.
    """
    with _open(file) as etch, progress_bars(quiet=json) as bars:
        hash = etch.root_hash()
        if hash is None:
            raise UsageError(f"{file}: no root was ever set")
        if cells is not None:
            cells.write_bytes(encode_message(etch.root()))
            document: dict[str, Any] = {"hash": hash.hex(), "cells": str(cells)}
            show(json, document, lambda: print_pairs(document))
            return
        document = _into_folder(etch, pin, dir, bars.add(f"import {file}").to)
    tell_imported(document, json=json)


def _into_folder(
    etch: EtchStore, pin: str | None, dir: Path | None, progress: Any
) -> dict[str, Any]:
    from datalattice.client.replicas import import_into

    if pin is None and not isinstance(etch.root(), Index):
        raise UsageError(
            f"the root of {etch.path} is a {kind_of(etch.root())}, and that of a node is an index "
            "of sections; keep it under a name with --pin NAME"
        )
    folder = folder_of(dir)
    with CellStore.open(folder.store_path) as store:
        done = import_into(
            store,
            etch,
            pin=pin or "",
            merge=pin is None,
            taking=taking(folder, store),
            progress=progress,
        )
    head = {
        "hash": done.pop("imported"),
        "new_cells": done.pop("cells"),
        "root_hash": done.pop("root") or None,
    }
    return {**head, **done}


@app.command("export")
def export(
    file: FileArgument,
    cells: CellsOption = None,
    ref: Annotated[
        str, typer.Option("--ref", help="Which root: HEAD, HEAD~2, a pin, a hash, or @TIME.")
    ] = "HEAD",
    with_local: WithLocalOption = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Write the root of the node's folder, and all below it, to a new Etch file."""
    if file.exists():
        raise UsageError(f"{file} is there already; name a new file")
    if cells is not None:
        value = decode_message(cells.read_bytes(), limit=sys.maxsize)
        with EtchStore.open(file) as etch:
            document: dict[str, Any] = {"hash": etch.commit(value).root_hash.hex()}
        show(json, document, lambda: print_pairs(document))
        return
    document = _from_folder(file, ref, dir, json, with_local=with_local)
    show(json, document, lambda: print_pairs(document))


def _from_folder(
    file: Path, ref: str, dir: Path | None, json: bool, *, with_local: bool
) -> dict[str, Any]:
    from datalattice.cli import past

    folder = existing_folder(dir)
    with (
        past.reading_past(folder) as store,
        past.kept(store, ref),
        progress_bars(quiet=json) as bars,
    ):
        hash, made = past.leaving(store, root_named(store, ref), with_local=with_local)
        bar = bars.add(f"export {file}")
        done = 0

        def fetch(hash: bytes) -> bytes:
            nonlocal done
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
        except DataLatticeError:
            file.unlink(missing_ok=True)
            print_notice(f"{file} was not written")
            raise
    return {"hash": hash.hex(), "new_cells": new, "bytes": file.stat().st_size}
