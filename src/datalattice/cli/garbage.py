"""Commands `lattice store stats`, `gc` and `sweep`: what a store holds, and giving it back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from datalattice.cli.folder import DirOption, Folder, JsonOption, existing_folder
from datalattice.cli.render import Step, print_pairs, progress_bars, show
from datalattice.cli.running import size_text
from datalattice.cli.values import value_json
from datalattice.errors import UsageError
from datalattice.store import time_text

WAIT_MS: Final = 20_000
"""How long the running node is asked to wait with its answer; it is asked again."""

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
    from datalattice.cli.access import open_reader
    from datalattice.node import stats_document

    folder = existing_folder(dir)
    with progress_bars(quiet=json) as bars, open_reader(folder) as store:
        document = stats_document(store.stats())
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
    folder = existing_folder(dir)
    with progress_bars(quiet=json) as bars:
        bar = bars.add(f"gc {folder.store_path}")
        document = collect(folder, bar, grace_ms, dry_run=dry_run)
    show(json, document, lambda: _print_collected(document))


def collect(folder: Folder, bar: Step, grace_ms: int, *, dry_run: bool = False) -> dict[str, Any]:
    """Collect the garbage of a folder's store, through the running node if there is one."""
    from datalattice.client import connect

    client = connect(folder.path)
    if client is None:
        return _collect_alone(folder, grace_ms, dry_run, bar)
    with client:
        return _collect_through(client, bar, grace_ms=grace_ms, dry_run=dry_run)


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
    """Give back the room of what a sweep list says nothing reaches, as `store gc` does.

    What is needed again since stays. A list of another store, or made before another collection,
    is refused. Works through the running node, which goes on meanwhile, or without one.
    """
    from datalattice.client import connect
    from datalattice.node import collected_document, sweep_by
    from datalattice.store import CellStore

    path = str(plan.absolute())
    folder = existing_folder(dir)
    client = connect(folder.path)
    with progress_bars(quiet=json) as bars:
        bar = bars.add(f"sweep {folder.store_path}")
        if client is None:
            with CellStore.open(folder.store_path) as store:
                done = sweep_by(
                    store,
                    path,
                    is_dry=dry_run,
                    progress=lambda _what, count, total: bar.to(count, total),
                )
            document = collected_document(done)
        else:
            with client:
                document = _collect_through(client, bar, dry_run=dry_run, list=path)
    show(json, document, lambda: _print_collected(document))


def duration_ms(text: str) -> int:
    """Return the milliseconds of a duration such as `30s`; a plain number is seconds.

    Raises: UsageError: it is none.
    """
    found = _DURATION.fullmatch(text)
    if found is None or (found[2] is None and len(found[1]) > 9):
        raise UsageError(f"a duration is a number and ms, s, m, h or d, such as 10m; got {text!r}")
    return int(found[1]) * _UNITS[found[2] or "s"]


def _collect_alone(folder: Folder, grace_ms: int, is_dry: bool, bar: Step) -> dict[str, Any]:
    from datalattice.node import collected_document
    from datalattice.store import CellStore

    with CellStore.open(folder.store_path) as store:
        done = store.collect(
            grace_ms=grace_ms,
            dry_run=is_dry,
            progress=lambda _what, count, total: bar.to(count, total),
        )
    return collected_document(done)


def _collect_through(client: object, bar: Step, **arguments: object) -> dict[str, Any]:
    from datalattice.client import ControlClient

    assert isinstance(client, ControlClient)
    while True:
        answer = client.call("store.gc", timeout_ms=WAIT_MS, **arguments)
        document = value_json(answer)
        assert isinstance(document, dict)
        if document["done"]:
            return document
        bar.to(document["count"], document["total"])


def _print_stats(document: dict[str, Any]) -> None:
    pairs = {name.replace("_", " "): value for name, value in document.items()}
    for name in ("bytes", "bytes live"):
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
            "before": size_text(document["bytes_before"]),
            "after": size_text(document["bytes_after"]),
            name: f"{document['dropped']} of {document['segments']}",
            "cells copied": document["copied"],
            "leases ended": document["leases_ended"],
            "seconds": round(document["seconds"], 3),
        }
    )
