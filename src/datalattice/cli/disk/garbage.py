"""Commands `lattice disk stats`, `gc`, `sweep`, `forget`: the size of a store, and freeing it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from datalattice.actions import CollectedGarbage, CollectGarbage, ForgetRoots, StartTask
from datalattice.cli.command import FOLDER, Call, command
from datalattice.cli.render import CommandResult, pair_lines
from datalattice.cli.units import duration_ms, size_text, time_ms
from datalattice.client import Progress, collect, connect, open_store_reader
from datalattice.clock import SystemClock
from datalattice.store import CellStore, time_text

app = typer.Typer()

GRACE: Final = "1h"  # a writer may refer to cells that it stored within this time
GraceOption = Annotated[
    str, typer.Option("--grace", help="Keep younger cells: 30s, 10m, 1h, 2d; 0 keeps none.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only report the bytes that would be freed.")
]


@command(app, "stats", FOLDER)
def stats(
    call: Call,
    live: Annotated[
        bool, typer.Option("--live", help="Also count live cells, which reads all of them.")
    ] = False,
    grace: GraceOption = GRACE,
) -> CommandResult:
    """Report the size of the store, and what keeps its cells. A node may be running.

    The last figures are those of the weaver stores, which share one file.

    With --live, also count the cells that `disk gc` with the same --grace would find live or dead.
    Dead cells younger than the grace count as live.
    """
    from datalattice.client.backups import weaver_figures

    folder = call.filled
    weaver = weaver_figures(folder)
    if not folder.store_path.is_dir():
        return CommandResult(weaver, _stats_lines(weaver))
    store = call.enter(open_store_reader(folder))
    document = asdict(store.stats())
    if live:
        bar = call.bar(f"count {folder.store_path}")
        # `disk gc` and this "count in the same way" (docs/store.md "Garbage"): it is the same
        # collection, without its removals.
        found = store.collect(
            grace_ms=duration_ms(grace),
            dry_run=True,  # counted, not removed
            progress=lambda _what, done, total: bar.to(done, total),
        )
        document |= {
            "cells_live": found.cells_live,
            "cells_dead": found.cells_dead,
            "bytes_live": found.bytes_live,
            "bytes_dead": found.bytes_dead,
            "bytes_removable": found.bytes_before - found.bytes_after,
        }
    document |= weaver
    return CommandResult(document, _stats_lines(document))


@command(app, "gc", FOLDER)
def gc(call: Call, grace: GraceOption = GRACE, dry_run: DryRunOption = False) -> CommandResult:
    """Free the space of cells that no root, pin, lease or recorded root reaches.

    Works through the running node, which goes on meanwhile, or without one.
    """
    return _collected_result(collected(call, grace_ms=duration_ms(grace), dry_run=dry_run))


@command(app, "sweep", FOLDER)
def sweep(
    call: Call,
    plan: Annotated[
        Path, typer.Argument(metavar="LIST", help="A list that `lattice spark gc` wrote.")
    ],
    dry_run: DryRunOption = False,
) -> CommandResult:
    """Free the cells of a sweep list, as `disk gc` does without one.

    Cells that are in use again stay. A list of another store, or from before another collection, is
    refused. Works through the running node, which goes on meanwhile, or without one.
    """
    # Absolute, because the node has another working directory.
    return _collected_result(collected(call, plan=str(plan.absolute()), dry_run=dry_run))


@command(app, "forget", FOLDER)
def forget(
    call: Call,
    before: Annotated[
        str, typer.Argument(help="A time: ISO 8601 in UTC, or how long ago: 7d, 1h.")
    ],
) -> CommandResult:
    """Forget the roots that were replaced before a time, so that their space can be collected.

    Pins and the present root stay. Works through the running node, or without one.
    """
    folder = call.existing
    before_ms = time_ms(before, SystemClock().now_ms())
    # The history belongs to the writer of the store: the running node, or else this process.
    client = connect(folder.path)
    if client is None:
        with CellStore.open(folder.store_path) as store:
            count = store.history.forget(before_ms)
    else:
        with client:
            count = client.call(ForgetRoots(before_ms=before_ms)).count
    return CommandResult({"forgotten": count, "before": time_text(before_ms)})


def collected(
    call: Call, *, grace_ms: int = 0, plan: str | None = None, dry_run: bool = False
) -> dict[str, Any]:
    """Collect the garbage of a folder's store, or sweep by a list; return the figures."""
    folder = call.existing

    def alone(progress: Progress) -> CollectedGarbage:
        with CellStore.open(folder.store_path) as store:
            done = collect(store, progress, grace_ms=grace_ms, plan=plan, is_dry=dry_run)
            return CollectedGarbage(**asdict(done))

    wanted = CollectGarbage(grace_ms=grace_ms, dry_run=dry_run, plan=plan or "")
    title = f"{'gc' if plan is None else 'sweep'} {folder.store_path}"
    return call.finish(StartTask(collect=wanted), alone, title)


def _stats_lines(document: dict[str, Any]) -> list[str]:
    pairs = {name.replace("_", " "): value for name, value in document.items()}
    for name in ("bytes", "bytes live", "bytes dead", "bytes removable", "weaver bytes"):
        if name in pairs:
            pairs[name] = size_text(pairs[name])
    if "collected ms" not in pairs:
        return pair_lines(pairs)  # the folder has only weaver stores
    last = pairs.pop("collected ms")
    left = pairs.pop("dead left")
    pairs["last gc"] = "never" if last is None else time_text(last)
    # "Where no segment is worth dropping, nothing is removed" (docs/store.md "Garbage"): the line
    # says why dead cells are still there after a collection.
    if left:
        pairs["last gc"] += f", left {left} dead cells in segments that are mostly alive"
    return pair_lines(pairs)


def _collected_result(document: dict[str, Any]) -> CommandResult:
    name = "would be dropped" if document["is_dry"] else "segments dropped"
    pairs = {
        "cells live": document["cells_live"],
        "cells dead": document["cells_dead"],
        "cells removed": document["cells_removed"],
        "bytes live": size_text(document["bytes_live"]),
        "bytes dead": size_text(document["bytes_dead"]),
        "before": size_text(document["bytes_before"]),
        "after": size_text(document["bytes_after"]),
        name: f"{document['dropped']} of {document['segments']}",
        "cells copied": document["copied"],
        "leases ended": document["leases_ended"],
        "seconds": round(document["seconds"], 3),
    }
    return CommandResult(document, pair_lines(pairs))
