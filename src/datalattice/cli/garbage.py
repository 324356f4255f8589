"""Commands `lattice disk stats`, `gc` and `sweep`: what a store holds, and giving it back."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from datalattice.cli.folder import DirOption, Folder, JsonOption, existing_folder
from datalattice.cli.render import print_pairs, progress_bars, show
from datalattice.cli.running import finish, size_text
from datalattice.client import Progress, collect, open_reader
from datalattice.errors import UsageError
from datalattice.store import CellStore, time_text

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)?")

GRACE: Final = "1h"
GraceOption = Annotated[
    str, typer.Option("--grace", help="What is younger stays: 30s, 10m, 1h, 2d; 0: nothing.")
]


def stats(
    live: Annotated[
        bool, typer.Option("--live", help="Also count what is alive: reads all of that.")
    ] = False,
    grace: GraceOption = GRACE,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Tell how much the store holds, and what keeps it. Works beside a running node.

    With --live also how much a collection with that grace would find alive and dead.
    """
    folder = existing_folder(dir)
    with progress_bars(quiet=json) as bars, open_reader(folder) as store:
        document = asdict(store.stats())
        if live:
            bar = bars.add(f"count {folder.store_path}")
            found = store.collect(
                grace_ms=duration_ms(grace),
                dry_run=True,
                progress=lambda _what, done, total: bar.to(done, total),
            )
            document |= {
                "cells_live": found.cells_live,
                "cells_dead": found.cells_dead,
                "bytes_live": found.bytes_live,
                "bytes_dead": found.bytes_dead,
                "bytes_removable": found.bytes_before - found.bytes_after,
            }
    show(json, document, lambda: _print_stats(document))


def gc(
    grace: GraceOption = GRACE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be given back.")
    ] = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Give back the room of what nothing reaches: no root, pin, lease, or remembered root.

    Works through the running node, which goes on meanwhile, or without one.
    """
    grace_ms = duration_ms(grace)
    document = collected(existing_folder(dir), quiet=json, grace_ms=grace_ms, dry_run=dry_run)
    show(json, document, lambda: _print_collected(document))


def sweep(
    plan: Annotated[
        Path, typer.Argument(metavar="LIST", help="A list that `lattice spark gc` wrote.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be given back.")
    ] = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Give back the room of what a sweep list says nothing reaches, as `disk gc` does.

    What is needed again since stays. A list of another store, or made before another collection,
    is refused. Works through the running node, which goes on meanwhile, or without one.
    """
    path = str(plan.absolute())
    document = collected(existing_folder(dir), quiet=json, plan=path, dry_run=dry_run)
    show(json, document, lambda: _print_collected(document))


def collected(
    folder: Folder,
    *,
    quiet: bool,
    grace_ms: int = 0,
    plan: str | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Collect the garbage of a folder's store, or sweep by a list; return what was done."""

    def alone(progress: Progress) -> dict[str, object]:
        with CellStore.open(folder.store_path) as store:
            done = collect(store, progress, grace_ms=grace_ms, plan=plan, is_dry=dry_run)
            return asdict(done)

    arguments = {"dry_run": dry_run, **({"grace_ms": grace_ms} if plan is None else {"list": plan})}
    title = f"{'gc' if plan is None else 'sweep'} {folder.store_path}"
    return finish(folder, "store.gc", arguments, alone, title=title, quiet=quiet)


def duration_ms(text: str) -> int:
    """Return the milliseconds of a duration such as `30s`; a plain number is seconds.

    Raises: UsageError: it is none.
    """
    found = _DURATION.fullmatch(text)
    if found is None or (found[2] is None and len(found[1]) > 9):
        raise UsageError(f"a duration is a number and ms, s, m, h or d, such as 10m; got {text!r}")
    return int(found[1]) * _UNITS[found[2] or "s"]


def _print_stats(document: dict[str, Any]) -> None:
    pairs = {name.replace("_", " "): value for name, value in document.items()}
    for name in ("bytes", "bytes live", "bytes dead", "bytes removable"):
        if name in pairs:
            pairs[name] = size_text(pairs[name])
    last = document["collected_ms"]
    pairs.pop("collected ms")
    left = pairs.pop("dead left")
    pairs["last gc"] = "never" if last is None else time_text(last)
    if left:
        pairs["last gc"] += f", left {left} dead cells in segments that are mostly alive"
    print_pairs(pairs)


def _print_collected(document: dict[str, Any]) -> None:
    name = "would be dropped" if document["is_dry"] else "segments dropped"
    print_pairs(
        {
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
    )
