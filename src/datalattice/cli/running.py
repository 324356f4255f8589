"""Running: what commands ask of the node that runs in a folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from datalattice.cells import to_cell
from datalattice.cli.folder import Folder
from datalattice.cli.render import progress_bars, table
from datalattice.cli.values import value_json
from datalattice.client import Progress, connect, replica_of
from datalattice.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from datalattice.client import ControlClient
    from datalattice.sync import LatticeReplica

KEY_DIGITS_SHOWN: Final = 16

_KEY_BEFORE: Final = re.compile(r"[0-9a-fA-F]{64}@")


@contextmanager
def running_node(folder: Folder, remedy: str) -> Iterator[ControlClient]:
    """Give a client of the node that runs in the folder.

    Raises: UsageError: none does; the text ends with what can be done then.
    """
    client = connect(folder.path)
    if client is None:
        raise UsageError(f"no node runs in {folder.path}; {remedy}")
    with client:
        yield client


def status_of(client: ControlClient) -> dict[str, Any]:
    """Return what the node says of itself."""
    document = value_json(client.call("node.status"))
    assert isinstance(document, dict)
    return document


def on_replica(
    folder: Folder,
    operation: str,
    arguments: dict[str, Any],
    alone: Callable[[LatticeReplica], dict[str, object]],
    *,
    fenced: bool = False,
) -> dict[str, Any]:
    """Have the running node do it, or do it on the store when none runs.

    fenced: it writes for owners, so peers are asked first.
    """
    client = connect(folder.path)
    if client is None:
        with replica_of(folder, fenced=fenced) as replica:
            document = value_json(to_cell(alone(replica)))
    else:
        with client:
            document = value_json(client.call(operation, **arguments))
    assert isinstance(document, dict)
    return document


def finish(
    folder: Folder,
    operation: str,
    arguments: dict[str, Any],
    alone: Callable[[Progress], Mapping[str, object]],
    *,
    title: str,
    quiet: bool,
) -> dict[str, Any]:
    """Have the running node run a long operation, or run it here when none runs; return the end.

    alone: runs it in this process and tells how many parts are done, and of how many.
    title: what the progress bar says; `quiet`: there is none.
    Raises: what the operation raises.
    """
    with progress_bars(quiet=quiet) as bars:
        bar = bars.add(title)
        client = connect(folder.path)
        if client is None:
            return dict(alone(bar.to))
        with client:
            document = value_json(client.finish(operation, bar.to, **arguments))
    assert isinstance(document, dict)
    return document


def peers_table(peers: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of peers."""
    columns = ("peer", "key", "source", "proved", "failures", "in", "out", "state")
    return table(columns, [_row(one) for one in peers])


def _row(peer: Mapping[str, Any]) -> tuple[object, ...]:
    key = peer.get("public_key") or ""
    return (
        _KEY_BEFORE.sub("", peer.get("address") or ""),  # it has a column of its own
        key[:KEY_DIGITS_SHOWN],
        peer.get("source") or "",
        peer.get("proved", False),
        peer.get("failures", 0),
        size_text(peer.get("bytes_in", 0)),
        size_text(peer.get("bytes_out", 0)),
        peer_state(peer),
    )


def peer_state(peer: Mapping[str, Any]) -> str:
    """Return how it is with a peer in a few words."""
    if not peer.get("connected"):
        return str(peer.get("reason") or "not connected")
    if peer.get("joined") is False:
        return "client"
    states = {True: "equal", False: "differs", None: "connected"}
    refusal = peer.get("refusal")
    return states[peer.get("equal")] + (f"; not taken: {refusal}" if refusal else "")


def size_text(count: float) -> str:
    """Return a number of bytes for people: three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            return f"{count:.3g} {unit}" if count < 999.5 else f"{count:,.0f} {unit}"
        count /= 1_000
    raise AssertionError(count)
