"""Commands `lattice kv ...`: keys and values of a weaver store, with their history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from datalattice.cli.command import FOLDER, WRITES, Call, command
from datalattice.cli.render import CommandResult, Listing, Records, print_notice
from datalattice.cli.store.access import (
    RECORD_DIGITS_SHOWN,
    SIGNER_DIGITS_SHOWN,
    ForOption,
    InBytes,
    StoreArgument,
    bytes_json,
    bytes_text,
    handle,
    limited,
    parse_bytes,
    reader,
    writer,
)
from datalattice.cli.units import moment_text
from datalattice.errors import NoSuchPath

if TYPE_CHECKING:
    from datalattice.weaver import KeyUpdate, KVStore, Version

app = typer.Typer(
    help="Keys and values of a weaver store: every write is signed and stays in the history."
)

_KIND = "core:kvstore"  # a store shows its full kind; `kv` is short for it when one is made

StoreKeyArgument = Annotated[str, typer.Argument(help="The key.")]


def _read(call: Call, store: str) -> KVStore[bytes]:
    found: KVStore[bytes] = handle(reader(call), store, None, _KIND)
    return found


@command(app, "put", WRITES)
def put(
    call: Call,
    store: StoreArgument,
    key: StoreKeyArgument,
    value: Annotated[str, typer.Argument(help="The value.")],
    form: InBytes = "text",
) -> CommandResult:
    """Set a key. The first write makes the store."""
    data = parse_bytes(value, form)  # first: what follows makes the store
    kv: KVStore[bytes] = handle(writer(call, store), store, "kv", _KIND)
    kv[key] = data
    return _written(kv, key)


@command(app, "delete", WRITES)
def delete(call: Call, store: StoreArgument, key: StoreKeyArgument) -> CommandResult:
    """Delete a key. Exit code 1 if there is no such key."""
    kv: KVStore[bytes] = handle(call.node_handle(makes_folder=False), store, None, _KIND)
    _present(kv, store, key)
    # Checked, because the deletion of a missing key would be one more write in the history.
    del kv[key]
    return _written(kv, key)


def _written(kv: KVStore[bytes], key: str) -> CommandResult:
    hash = kv.history(key)[0].hash.hex()  # the newest version is this write
    return CommandResult({"key": key, "hash": hash}, [hash])


def _present(kv: KVStore[bytes], store: str, key: str) -> bytes:
    found = kv.get(key)
    if found is None:
        raise NoSuchPath(f"store {store} has no key {key!r}; `lattice kv list {store}` lists them")
    return found


@command(app, "get", FOLDER)
def get(call: Call, store: StoreArgument, key: StoreKeyArgument) -> CommandResult:
    """Print the value of a key. Exit code 1 if there is no such key."""
    kv = _read(call, store)
    value = _present(kv, store, key)
    conflicts = kv.conflicts(key)
    if conflicts:
        # "everything else to standard error" (docs/cli.md "Output"): the output is the value alone.
        print_notice(
            f"{len(conflicts)} concurrent writes; `lattice kv conflicts {store} {key}` lists them"
        )
    document = {"key": key, **bytes_json(value), "conflicted": bool(conflicts)}
    return CommandResult(document, [bytes_text(value)])


@command(app, "list", FOLDER)
def list_(
    call: Call,
    store: StoreArgument,
    prefix: Annotated[str, typer.Argument(help="Only keys that begin with this.")] = "",
) -> CommandResult:
    """List keys and values, in order; a conflict is marked."""
    kv = _read(call, store)
    conflicted = set(kv.conflicted())
    held = list(kv.scan(prefix))
    rows = [
        {"key": key, **bytes_json(value), "conflicted": key in conflicted} for key, value in held
    ]
    shown = [
        (key, bytes_text(value), "conflict" if key in conflicted else "") for key, value in held
    ]
    return CommandResult(rows, [Listing(("key", "value", "state"), shown)])


@command(app, "history", FOLDER)
def history(call: Call, store: StoreArgument, key: StoreKeyArgument) -> CommandResult:
    """List the writes of a key, the newest first."""
    return _versions(_read(call, store).history(key))


@command(app, "conflicts", FOLDER)
def conflicts(
    call: Call,
    store: StoreArgument,
    key: Annotated[str | None, typer.Argument(help="The key. Default: list the keys.")] = None,
) -> CommandResult:
    """List the concurrent writes to a key, the valid one first; or the keys that have some."""
    kv = _read(call, store)
    if key is None:
        keys = kv.conflicted()
        return CommandResult(keys, keys)
    return _versions(kv.conflicts(key))


def _versions(versions: list[Version[bytes]]) -> CommandResult:
    rows: list[dict[str, Any]] = [
        {
            **bytes_json(version.value),
            "author": version.author.hex(),
            "time": moment_text(version.stamp.wall),
            "stamp": str(version.stamp),
            "hash": version.hash.hex(),
        }
        for version in versions
    ]
    shown = [
        (
            row["time"],
            row["author"][:SIGNER_DIGITS_SHOWN],
            bytes_text(version.value),
            row["hash"][:RECORD_DIGITS_SHOWN],
        )
        for row, version in zip(rows, versions, strict=True)
    ]
    return CommandResult(rows, [Listing(("time", "author", "value", "hash"), shown)])


@command(app, "watch", FOLDER)
def watch(
    call: Call,
    store: StoreArgument,
    prefix: Annotated[str, typer.Argument(help="Only keys that begin with this.")] = "",
    pattern: Annotated[
        str, typer.Option("--pattern", help="Only keys in which this regular expression is found.")
    ] = "",
    span: ForOption = None,
    count: Annotated[
        int | None, typer.Option("--count", help="End after this many changes.", min=1)
    ] = None,
) -> Records:
    """Print each key that is written, with its new value, until Ctrl-C."""
    stream = _read(call, store).watch(prefix, pattern)

    def document(change: KeyUpdate[bytes]) -> dict[str, object]:
        return {"key": change.key, **bytes_json(change.value)}

    return Records(
        limited(stream, span, count),
        document,
        lambda change: f"{change.key}\t{bytes_text(change.value)}",
        is_live=True,
    )
