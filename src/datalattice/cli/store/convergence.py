"""Commands `lattice store status/sync/watch`: whether a store and its peers have the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from datalattice.cli.command import Call
from datalattice.cli.render import CommandResult, Listing, Records, pair_lines
from datalattice.cli.store.access import (
    RECORD_DIGITS_SHOWN,
    SIGNER_DIGITS_SHOWN,
    ForOption,
    StoreArgument,
    handle_of,
    reader,
)
from datalattice.cli.units import duration_s, moment_text
from datalattice.clock import SystemClock
from datalattice.errors import PeerUnavailable

if TYPE_CHECKING:
    from datalattice.weaver import PeerPresence, SeenMatrix, StoreHandle, StorePeer

SYNC_TIMEOUT: Final = "30s"
_LOOK_S: Final = 1.0
"""Seconds between two readings of a watched store."""

TimeoutOption = Annotated[str, typer.Option("--timeout", help="Wait this long for the peers.")]

PEER_COLUMNS: Final = ("peer", "name", "status", "online", "state", "compared", "has seen")


def _peer_rows(held: StoreHandle) -> tuple[bool, list[dict[str, Any]]]:
    """Return whether a node runs, and a row for each other peer of a store."""
    try:
        online: dict[bytes, PeerPresence] = {one.public_key: one for one in held.presence()}
        is_running = True
    # Only a running node knows who is connected.
    except PeerUnavailable:
        online, is_running = {}, False
    matrix = held.seen()
    own = held.store.author
    rows = [
        _peer_row(peer, online.get(peer.public_key), matrix)
        for peer in held.peers()
        if peer.public_key != own
    ]
    return is_running, rows


def _peer_row(peer: StorePeer, found: PeerPresence | None, matrix: SeenMatrix) -> dict[str, Any]:
    return {
        "key": peer.public_key.hex(),
        "name": peer.name,
        "status": peer.status.name.lower(),
        "online": found is not None,
        # A peer that is away was not compared, so it is neither equal nor different: None.
        "equal": None if found is None else found.is_equal,
        "dirty": None if found is None else found.is_dirty,
        "lag": None if found is None else found.lag,
        "compared_s": None if found is None else found.compared_s,
        "agreed_s": None if found is None else found.agreed_s,
        "behind": matrix.behind(peer.public_key),
    }


def _state_text(row: dict[str, Any]) -> str:
    """Return the state of a peer compared with this node: equal, behind, ahead, or a difference."""
    if not row["online"]:
        return ""
    if row["equal"]:
        return "equal"
    lag = row["lag"]
    parts = ["dirty"] if row["dirty"] else []
    if lag is not None and lag != 0:
        parts.append(f"{abs(lag):,} {'behind' if lag > 0 else 'ahead'}")
    return ", ".join(parts) or "differs"


def _ago(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f} s ago"


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["key"][:SIGNER_DIGITS_SHOWN],
        row["name"] or "",
        row["status"],
        "online" if row["online"] else "offline",
        _state_text(row),
        _ago(row["compared_s"]),
        "all" if row["behind"] == 0 else f"all but {row['behind']:,}",
    )


def status_of_store(call: Call, store: StoreArgument) -> CommandResult:
    """Show the state of a store and its peers: who is online, equal or behind, and when compared.

    `has seen` counts the contents that the peer's own intentions acknowledge; it is known of
    offline peers as well.
    """
    held = handle_of(reader(call), store)
    status = held.status()
    is_running, peers = _peer_rows(held)
    with held.store.read() as view:
        head = view.head()
    document = {
        "id": held.id,
        "name": status.name,
        "kind": held.store.kind,
        "authors": status.authors,
        "intentions": status.intentions,
        "witness": {"seq": head.seq, "hash": status.head.hex()},
        "projection": {"applied": status.applied, "stall": status.stall},
        "floating": status.floating,
        "forks": status.forks,
        "doubt": status.doubt,
        "running": is_running,
        "peers": peers,
    }
    lines = pair_lines(
        {
            **{key: document[key] for key in ("id", "name", "kind", "authors", "intentions")},
            "witness": f"{head.seq} {status.head.hex()[:RECORD_DIGITS_SHOWN]}",
            "projection": f"{status.applied}/{head.seq}"
            + ("" if status.stall is None else f" STALLED: {status.stall}"),
            "floating": status.floating,
            "forks": status.forks,
        }
    )
    notices = [] if is_running else ["no node runs in this folder, so no peer is online"]
    listing = Listing(PEER_COLUMNS, [_shown(row) for row in peers])
    return CommandResult(document, [*lines, listing], notices=notices)


def sync_store(
    call: Call, store: StoreArgument, timeout: TimeoutOption = SYNC_TIMEOUT
) -> CommandResult:
    """Compare a store with all connected peers, through the running node, and wait for the end.

    Exit code 1 if no peer is connected, or if a comparison was not complete.
    """
    held = handle_of(reader(call), store)
    before = held.status().intentions
    results = held.sync(duration_s(timeout))
    # Counted in the store, so the difference includes what local programs wrote meanwhile.
    after = held.status().intentions
    peers = [{"key": one.public_key.hex(), "error": one.error} for one in results]
    document = {"received": after - before, "intentions": after, "peers": peers}
    rows = [
        (one["key"][:SIGNER_DIGITS_SHOWN], one["error"] or "done") for one in peers if one["key"]
    ]
    text: list[str | Listing] = [f"{after - before:,} intentions received, {after:,} are here"]
    if not peers:
        return CommandResult(document, text, 1, ["no peer of the store is connected"])
    failed = any(one.error is not None for one in results)
    return CommandResult(document, [*text, Listing(("peer", "comparison"), rows)], int(failed))


def watch_store(
    call: Call,
    store: StoreArgument,
    span: ForOption = None,
    count: Annotated[
        int | None, typer.Option("--count", help="End after this many states.", min=1)
    ] = None,
) -> Records:
    """Print the peers (online, equal or behind) and what each has seen of others, at each change.

    The first line is the present state. With --json each state is a document on one line, with
    the matrix `seen` of observers and authors.
    """
    held = handle_of(reader(call), store)
    return Records(_states(held, span, count), lambda state: state, _line, is_live=True)


def _states(held: StoreHandle, span: str | None, count: int | None) -> Iterator[dict[str, Any]]:
    """Yield the present state, and the new one after each change, until `span` is over."""
    # Monotonic, because the clock of the machine may be set meanwhile.
    end_s = None if span is None else time.monotonic() + duration_s(span)
    before: dict[str, Any] | None = None
    clock = SystemClock()
    shown = 0
    while True:
        is_running, peers = _peer_rows(held)
        state = {"intentions": held.status().intentions, "running": is_running, "peers": peers}
        # Ages differ at each reading, so they do not count as a change.
        core = {**state, "peers": [_without_ages(row) for row in peers]}
        if core != before:
            before = core
            shown += 1
            now = moment_text(clock.now_ms())
            yield {"time": now, **state, **_matrix(held.seen())}
        left_s = _LOOK_S if end_s is None else min(_LOOK_S, end_s - time.monotonic())
        if shown == count or left_s <= 0:
            return
        # Polled, because a peer connects and leaves without a change of the store.
        time.sleep(left_s)


def _without_ages(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.endswith("_s")}


def _matrix(found: SeenMatrix) -> dict[str, Any]:
    return {
        "contents": {author.hex(): count for author, count in found.totals.items()},
        "seen": {
            observer.hex(): {author.hex(): count for author, count in sorted(row.items())}
            for observer, row in sorted(found.seen.items())
        },
    }


def _line(state: dict[str, Any]) -> str:
    """Return a state as one line: the time, the intentions, and each peer."""
    peers = [
        f"{row['key'][:SIGNER_DIGITS_SHOWN]} {_state_text(row) or 'offline'}"
        + ("" if row["behind"] == 0 else f" (has seen all but {row['behind']:,})")
        for row in state["peers"]
    ]
    return "\t".join([state["time"], f"{state['intentions']:,} intentions", *peers])
