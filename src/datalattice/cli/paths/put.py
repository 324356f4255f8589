"""Command `lattice put`: writes a value at a path of the lattice."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Annotated, Final

import typer

import datalattice.apps  # noqa: F401 - registers the sections of the root
from datalattice.apps.kv import KV_SECTION, Database
from datalattice.cells import EMPTY_INDEX, Index, Keyword, Value, to_text, value_hash
from datalattice.cli.command import WRITES, Call, command
from datalattice.cli.paths.documents import LAYOUTS, checked_layout, is_pipe, read_layout
from datalattice.cli.paths.get import path_keys
from datalattice.cli.render import CommandResult, pair_lines
from datalattice.cli.values import value_json
from datalattice.client import canonical_path, parse_path_key
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import DATA_KEY, MergeContext, OwnerLattice, root_lattice

OWNER_PATH_KEYS: Final = 3
"""Fewest keys of a path below an owner: section, owner, :value."""

KV_PATH_KEYS: Final = 5
"""Keys of a path in :kv: section, owner, :value, database, key."""

_ELSEWHERE: Final = {
    "queue": "a queue only grows: use `lattice queue offer`",
    "fs": "files have their own form: use `lattice fs put`",
    "grid": "assets and content have their own form: use `lattice venue`",
    "p2p": "nodes announce themselves: see `lattice node config`",
}


@command(None, "put", WRITES)
def put(
    call: Call,
    path: Annotated[
        list[str],
        typer.Argument(
            help="Keys from the root, such as: kv own value DATABASE KEY, or: data. "
            "own stands for the folder's key."
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Option("--from", "-f", help="The file. Default: standard input.", show_default=False),
    ] = None,
    value: Annotated[str | None, typer.Option("--value", help="The value itself.")] = None,
    layout: Annotated[
        str,
        typer.Option(
            "--in",
            metavar="json|plain|lines|text|cells",
            help="json with the marks of `lattice get --layout json`; plain JSON; lines: JSON "
            "documents one after another, as one vector; text: the printed form; or cells.",
        ),
    ] = "json",
) -> CommandResult:
    """Write a value at a path of your own data: JSON by default, of any size.

    Under `data` the value is stored under its own hash. In a database it becomes the value of a
    key. Elsewhere it replaces the present value, and is signed if the path is signed.
    """
    if value is not None and source is not None:
        raise UsageError("give the value with --value or with --from, not both")
    checked_layout(layout, LAYOUTS, "--in")
    # All that needs no key is checked before one is made, and before a file is read, which may take
    # long.
    _check_path(canonical_path([parse_path_key(key) for key in path]))
    given = None if value is None else _given(value, layout)
    if source is not None and not is_pipe(source):
        source.stat()  # raises for a missing file; a FIFO can be opened only once
    with call.editing() as editor:
        keys = path_keys(path, call.folder)
        _check_owner(keys, editor.context, editor.key_pair)
        new = read_layout(source, layout, editor.stage) if value is None else given
        where = editor.edit(lambda cursor, _: _write(cursor, keys, new))
    document = {
        "path": [value_json(key) for key in where],
        "hash": value_hash(new).hex(),
    }
    text = {"path": " ".join(to_text(key) for key in where), "hash": document["hash"]}
    return CommandResult(document, pair_lines(text))


def _given(text: str, layout: str) -> Value:
    from datalattice.cells import from_text, read_json
    from datalattice.errors import BadFormat

    if layout == "cells":
        raise UsageError("cells are bytes: give them with --from")
    try:
        if layout == "text":
            return from_text(text)
        return read_json(StringIO(text), marked=layout == "json", lines=layout == "lines")
    except BadFormat as error:
        raise UsageError(f"--value: {error}") from error


def _check_path(keys: list[Value]) -> None:
    """Raise UsageError if no value can be written at a canonical path, whoever its owner is."""
    section = keys[0]
    # Merges drop unknown sections.
    if not isinstance(section, Keyword) or root_lattice().child(section) is None:
        known = ", ".join(sorted(to_text(key) for key in root_lattice().children()))
        raise UsageError(f"there is no section {to_text(section)}; there are: {known}")
    elsewhere = _ELSEWHERE.get(section.name)
    if elsewhere is not None:
        raise UsageError(f"{to_text(section)} accepts no plain values; {elsewhere}")
    if section == DATA_KEY and len(keys) > 1:
        raise UsageError(":data stores values under their own hashes: give no key after data")
    if section == KV_SECTION and len(keys) != KV_PATH_KEYS:
        raise UsageError("in :kv a value goes to: kv own value DATABASE KEY")
    if section == KV_SECTION and not all(isinstance(key, str) for key in keys[3:]):
        raise UsageError("names of databases and their keys are strings; write a number as '\"5\"'")
    if _is_owned(keys) and len(keys) < OWNER_PATH_KEYS:
        raise UsageError(f"in {to_text(section)} a value goes to: {section.name} own value ...")
    if section not in (DATA_KEY, KV_SECTION) and len(keys) < 2:
        raise UsageError(f"{to_text(section)} cannot be replaced as a whole: name a key in it")


def _is_owned(keys: list[Value]) -> bool:
    return len(keys) > 1 and isinstance(root_lattice().child(keys[0]), OwnerLattice)


def _check_owner(keys: list[Value], context: MergeContext, key_pair: KeyPair) -> None:
    # Peers would refuse a value below another owner, so it is refused here.
    owner = keys[1] if _is_owned(keys) else None
    if isinstance(owner, bytes) and not context.holds(owner):
        raise UsageError(
            f"only the owner {to_text(owner)} can write below its key; "
            f"write `own`, or your key {to_text(key_pair.public_key)}"
        )


def _write(cursor: RootLattice, keys: list[Value], new: Value) -> list[Value]:
    section = keys[0]
    if section == DATA_KEY:
        # Under its own hash, so that equal values of two writers have one entry.
        hash = value_hash(new)
        data = cursor.path(DATA_KEY)
        present = data.get()
        whole = present if isinstance(present, Index) else EMPTY_INDEX
        data.set(whole.put(hash, new))
        return [section, hash]
    if section == KV_SECTION:
        name, key = keys[3], keys[4]
        assert isinstance(name, str)
        assert isinstance(key, str)
        Database.at(cursor, keys[1], name, SystemClock()).set(key, new)
        return keys
    cursor.path(*keys).set(new)
    return keys
