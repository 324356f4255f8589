"""Command `lattice get`: prints the value at a path of the lattice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Final

import typer

from datalattice.actions import OWN_NAME
from datalattice.cells import (
    Cell,
    Index,
    List,
    Map,
    Set,
    Signed,
    Value,
    Vector,
    to_text,
    value_hash,
)
from datalattice.cli.command import PAST, Call, command
from datalattice.cli.paths.documents import (
    LayoutOption,
    OutputOption,
    print_document,
    write_document,
)
from datalattice.cli.render import CommandResult, is_json, pair_lines
from datalattice.cli.values import value_json
from datalattice.client import (
    Folder,
    canonical_path,
    count_of,
    kind_of,
    parse_path_key,
    read_key,
    value_at,
)
from datalattice.lattice import LOCAL_KEY, OwnerLattice, root_lattice

SHOWN_MAX: Final = 20
"""Most entries of a container that are listed without --full."""


_TEXT_MAX: Final = 100  # one line of a terminal
"""Most characters of an entry in a list."""

FullOption = Annotated[bool, typer.Option("--full", help="Print the whole value, of any size.")]


@command(None, "get", PAST)
def get(
    call: Call,
    path: Annotated[
        list[str] | None,
        typer.Argument(
            help="Keys from the root, such as: queue own value TOPIC partitions 0. own stands for "
            "the folder's key."
        ),
    ] = None,
    full: FullOption = False,
    layout: LayoutOption = None,
    output: OutputOption = None,
) -> CommandResult | None:
    """Print the value at a path: its kind, hash and first entries, or all of it with --full.

    With --layout or --output only the value is written, and all of it. Exit code 1 if there is no
    value at the path.
    """
    root = call.root()
    keys = path_keys(path, call.existing)
    if layout is None and output is None:
        return value_result(root, keys, full=full)
    write_document(value_at(root, keys), layout or "json", output)
    return None


def value_result(
    root: Value, keys: Sequence[Value], *, full: bool, about: Mapping[str, object] | None = None
) -> CommandResult | None:
    """Return the value at a canonical path for printing, after the pairs of `about`.

    A whole value as JSON is printed here instead, because it may have any size.
    """
    value = value_at(root, keys)
    document: dict[str, object] = {
        **(about or {}),
        "path": [value_json(key) for key in keys],
        "kind": kind_of(value),
        "hash": value_hash(value).hex(),
    }
    count = count_of(value)
    if count is not None:
        document["count"] = count
    is_whole = full or count is None  # a value without entries is printed whole
    # Printed part by part: the value may not fit into memory as text.
    if is_whole and is_json():
        print_document(document, value)
        return None
    head = pair_lines({name: one for name, one in (about or {}).items() if one not in (None, "")})
    if is_whole:
        return CommandResult(document, [*head, to_text(value)])
    shown = list(islice(_entries(value), SHOWN_MAX))  # further entries are not read
    document["entries"] = [{"key": key, "value": text} for key, text in shown]
    return CommandResult(document, [*head, *_lines(document)])


def path_keys(path: Sequence[str] | None, folder: Folder) -> list[Value]:
    """Return the canonical keys that a path on the command line stands for.

    `own` at the position of an owner means the folder's own key; in quotes it is a plain string.
    Raises: UsageError: a key is malformed. NoSigningKey: `own`, and the folder has no key.
    """
    keys = canonical_path([parse_path_key(key) for key in path or []])
    if path is not None and path[1:2] == [OWN_NAME]:
        section = root_lattice().child(keys[0])
        if isinstance(section, OwnerLattice):
            # `:local` is signed with the node's identity, everything else with its owner's key.
            is_local = keys[0] == LOCAL_KEY
            keys[1] = read_key(folder.identity_path if is_local else folder.key_path).public_key
            keys = canonical_path(keys)
    return keys


def _entries(value: Value) -> Iterator[tuple[str, str]]:
    if isinstance(value, Signed):
        yield "public-key", value.public_key.hex()
        # Verified here, because a reader trusts what is printed.
        yield "signature", ("valid" if value.verify() else "NOT VALID")
        yield "value", brief_text(value.value)
    elif isinstance(value, (Map, Index)):
        for key, item in value.entries():
            yield to_text(key), brief_text(item)
    elif isinstance(value, (Vector, List, Set)):
        for position, item in enumerate(value):
            yield str(position), brief_text(item)


def brief_text(value: Value) -> str:
    """Return a short text for a value: the value itself, or its kind and number of entries."""
    count = count_of(value)
    if count is not None and isinstance(value, Cell) and count > 0:
        if isinstance(value, Vector) and count <= SHOWN_MAX and not _holds_containers(value):
            return _cut(to_text(value))
        return f"{kind_of(value)} of {count}" if not isinstance(value, Signed) else "signed"
    return _cut(to_text(value))


def _holds_containers(value: Vector) -> bool:
    return any(count_of(item) for item in value)


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"


def _lines(document: dict[str, object]) -> Iterator[str]:
    count = document["count"]
    yield f"{document['kind']} of {count}   {document['hash']}"
    entries = document["entries"]
    assert isinstance(entries, list)
    width = max((len(entry["key"]) for entry in entries), default=0)
    for entry in entries:
        yield f"  {entry['key']:<{width}}  {entry['value']}"
    assert isinstance(count, int)
    if count > len(entries):
        yield f"  ... and {count - len(entries)} more (--full prints all)"
