"""Command `lattice node watch`: shows the state of a running node live."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from datalattice.actions import WaitForRoot
from datalattice.cli.command import Call
from datalattice.cli.node.peers import health_document, peers_listing
from datalattice.cli.render import Records, is_json, results, table, visible
from datalattice.cli.units import duration_s, size_text

if TYPE_CHECKING:
    from rich.console import Group

    from datalattice.client import ControlClient

# "at most ten a second, and at least one each second" (docs/cli.md "Commands")
INTERVAL_S: Final = 1.0
"""Longest time between two samples."""

REST_S: Final = 0.1
"""Shortest time between two samples, however much changes."""

_RECENT_MAX: Final = 8
"""Most changes in the view."""

COUNTERS_MAX: Final = 12  # a screen has few lines
"""Most counters in the view; those that changed last come first."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A sample of a node's state, and the differences from the previous one.

    at_s, seconds: its time on the monotonic clock, and the time since the previous sample.
    """

    status: Mapping[str, Any]
    at_s: float
    seconds: float
    changed: tuple[str, ...]
    moved: Mapping[str, int]
    bytes_in: int
    bytes_out: int

    def rate(self, count: int) -> float:
        """Return a count per second; 0 for the first sample."""
        return count / self.seconds if self.seconds > 0 else 0.0

    def document(self) -> dict[str, object]:
        """Return the sample as JSON values."""
        status = self.status
        return {
            "root_hash": status["root_hash"],
            "health": status["health"],
            "connections": status["connections"],
            "missing_cells": status["missing_cells"],
            "changed": list(self.changed),
            "seconds": round(self.seconds, 3),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "counters": dict(self.moved),
            "peers": status["peers"],
        }


def watch_node(
    call: Call,
    count: Annotated[
        int | None, typer.Option("--count", "-n", help="End after this many samples.", min=1)
    ] = None,
    span: Annotated[str | None, typer.Option("--for", help="End after this time: 90s, 2h.")] = None,
) -> Records | None:
    """Show the running node of the folder live, until Ctrl-C.

    A terminal shows one view that is updated. Otherwise a line is printed at each change and each
    second, with --json as one JSON document. The first shows the present state.
    """
    end_s = None if span is None else time.monotonic() + duration_s(span)
    sights = _sights(call.node(), end_s, count)
    # "`lines` one JSON document a line": a pipe gets lines, a terminal the updated view.
    if is_json() or not sys.stdout.isatty():
        return Records(sights, Sight.document, _line, is_live=True)
    from rich.live import Live

    view = _Screen()
    with Live(console=results(), auto_refresh=False, transient=False) as live:
        for sight in sights:
            live.update(view.drawn(sight), refresh=True)
    return None


def _sights(client: ControlClient, end_s: float | None, count: int | None) -> Iterator[Sight]:
    """Yield samples at each change and at least every `INTERVAL_S`, until `end_s` or `count`."""
    status, at_s = health_document(client), time.monotonic()
    yield Sight(status, at_s, 0.0, (), {}, 0, 0)
    seen = 1
    while seen != count:
        seen += 1
        left_s = INTERVAL_S if end_s is None else min(INTERVAL_S, end_s - time.monotonic())
        if left_s <= 0:
            return
        # A busy node changes all the time, so it is asked every `REST_S` at most.
        time.sleep(min(REST_S, left_s))
        wait_ms = max(0, round((left_s - REST_S) * 1_000))
        # The node answers at a change, or at the end of the time.
        known = bytes.fromhex(status["root_hash"])
        client.call(WaitForRoot(known=known, timeout_ms=wait_ms))
        before, status, before_s, at_s = status, health_document(client), at_s, time.monotonic()
        yield _compared(before, status, before_s, at_s)


def _compared(
    before: Mapping[str, Any], status: Mapping[str, Any], before_s: float, at_s: float
) -> Sight:
    old, new = before["sections"], status["sections"]
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if before["root_hash"] != status["root_hash"] and not changed:
        changed = ["the value"]  # the root has no sections
    counted = before["counters"]
    # A counter exists from its first count on, so a name that was absent before counts from 0.
    moved = {
        name: number - counted.get(name, 0)
        for name, number in sorted(status["counters"].items())
        if number != counted.get(name, 0)
    }
    return Sight(
        status,
        at_s,
        at_s - before_s,
        tuple(sorted(changed)),
        moved,
        status["bytes_in"] - before["bytes_in"],
        status["bytes_out"] - before["bytes_out"],
    )


# --- views --------------------------------------------------------------------------------------


def _line(sight: Sight) -> str:
    status = sight.status
    peers = status["peers"]
    connected = sum(bool(one["connected"]) for one in peers)
    words = [
        str(status["root_hash"])[:16],
        str(status["health"]),
        f"peers {connected}/{len(peers)}",
        _rates(sight),
    ]
    if sight.changed:
        words.append("changed " + ", ".join(sight.changed))
    return "  ".join(words)


def _rates(sight: Sight) -> str:
    received, sent = sight.rate(sight.bytes_in), sight.rate(sight.bytes_out)
    changes = sight.rate(sight.moved.get("changes", 0))
    return f"in {size_text(received)}/s  out {size_text(sent)}/s  changes {changes:.1f}/s"


class _Screen:
    """The terminal view: the present state and the latest changes."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._recent: deque[str] = deque(maxlen=_RECENT_MAX)
        self._moved_at: dict[str, float] = {}

    def drawn(self, sight: Sight) -> Group:
        """Return the view of a sample."""
        from rich.console import Group
        from rich.text import Text

        began_s = self._began_s = sight.at_s if self._began_s is None else self._began_s
        if sight.changed:
            what = ", ".join(sight.changed)
            root = sight.status["root_hash"][:16]
            self._recent.append(visible(f"{sight.at_s - began_s:7.1f} s  {root}  {what}"))
        self._moved_at.update(dict.fromkeys(sight.moved, sight.at_s))
        status = sight.status
        well = status["health"] == "ok"
        lines = [
            Text(f"node {status['address'] or '(does not listen)'}", style="bold"),
            Text(f"root {status['root_hash']}"),
            Text(visible(str(status["health"])), style="green" if well else "red"),
            Text(_rates(sight)),
            Text(
                f"store {size_text(status['store_bytes'] or 0)}  "
                f"memory {size_text(status['memory_bytes'])}  "
                f"connections {status['connections']}  missing cells {status['missing_cells']}"
            ),
        ]
        counters = status["counters"]
        latest = sorted(counters, key=lambda name: (-self._moved_at.get(name, 0.0), name))
        rows = [(name, counters[name], sight.moved.get(name)) for name in latest[:COUNTERS_MAX]]
        parts: list[object] = [*lines]
        if status["peers"]:
            peers = peers_listing(status["peers"])
            parts.append(table(peers.columns, peers.rows))
        if rows:
            parts.append(table(("counter", "total", "new"), rows))
        parts += [Text("changes:"), *(Text(f"  {line}") for line in self._recent or ["none yet"])]
        return Group(*parts)  # type: ignore[arg-type]
