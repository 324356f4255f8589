"""Commands `lattice log ...`: logs that several nodes append to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from datalattice.cli.command import FOLDER, WRITES, Call, command
from datalattice.cli.render import CommandResult, Records
from datalattice.cli.store.access import (
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

if TYPE_CHECKING:
    from datalattice.weaver import LogRecord, LogStore

app = typer.Typer(help="Logs of a weaver store: entries of several authors, in order of time.")

_KIND = "core:logstore"

_TAIL_COUNT = 10


@command(app, "append", WRITES)
def append(
    call: Call,
    store: StoreArgument,
    values: Annotated[list[str], typer.Argument(help="The entries.")],
    form: InBytes = "text",
) -> CommandResult:
    """Append entries, each signed; all or none. The first entry makes the store."""
    data = [parse_bytes(text, form) for text in values]  # before the store is made
    log: LogStore[bytes] = handle(writer(call, store), store, "log", _KIND)
    hashes = [hash.hex() for hash in log.extend(data)]
    return CommandResult([{"hash": hash} for hash in hashes], hashes)


@command(app, "read", FOLDER)
def read(call: Call, store: StoreArgument) -> Records:
    """Print all entries, the oldest first."""
    log: LogStore[bytes] = handle(reader(call), store, None, _KIND)
    return Records(iter(log), bytes_json, bytes_text)


@command(app, "tail", FOLDER)
def tail(
    call: Call,
    store: StoreArgument,
    number: Annotated[int, typer.Option("-n", help="How many entries.", min=0)] = _TAIL_COUNT,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Wait for more entries, until Ctrl-C.")
    ] = False,
    span: ForOption = None,
    count: Annotated[
        int | None, typer.Option("--count", help="End after this many new entries.", min=1)
    ] = None,
) -> Records:
    """Print the last entries, the oldest first; with -f also new ones."""
    log: LogStore[bytes] = handle(reader(call), store, None, _KIND)
    if not follow:
        return Records(iter(log.tail(number)), bytes_json, bytes_text)
    # Subscribed before the tail is read: an entry between the two is printed twice, not missed.
    stream = log.follow("end")
    last = log.tail(number)

    def entries() -> Iterator[bytes | LogRecord[bytes]]:
        yield from last
        yield from limited(stream, span, count)

    return Records(entries(), _document, _text, is_live=True)


def _document(entry: bytes | LogRecord[bytes]) -> dict[str, object]:
    if isinstance(entry, bytes):
        return dict(bytes_json(entry))
    return {
        **bytes_json(entry.value),
        "author": entry.author.hex(),
        "time": moment_text(entry.stamp.wall),
        "hash": entry.hash.hex(),
    }


def _text(entry: bytes | LogRecord[bytes]) -> str:
    return bytes_text(entry if isinstance(entry, bytes) else entry.value)
