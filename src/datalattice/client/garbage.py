"""Garbage: collects the garbage of a store, for a command or the running node."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from datalattice.client.control import Progress
from datalattice.errors import UsageError
from datalattice.store import CellStore, RealDisk, Store
from datalattice.store.gc import GRACE_MS, Collected, SweepList


def collect(
    store: Store,
    progress: Progress,
    *,
    grace_ms: int = GRACE_MS,
    plan: str | None = None,
    is_dry: bool = False,
) -> Collected:
    """Free the space of unreachable cells; with a `plan`, of the cells in that sweep list.

    grace_ms: cells younger than this stay. plan: the path of a sweep list. is_dry: only count.
    progress: called with the number of cells done and their total.
    Raises: as `SweepList`, `Store.collect` and `CellStore.sweep`.
    """

    def tell(_step: str, done: int, total: int) -> None:
        progress(done, total)

    if plan is None:
        return store.collect(grace_ms=grace_ms, dry_run=is_dry, progress=tell)
    # A sweep list names segments, which only a store in a folder has.
    if not isinstance(store, CellStore):
        raise UsageError("a sweep list is for a store in a folder, and this one is in memory")
    found = Path(plan)
    if found.exists() and not found.is_file() and not found.is_dir():
        # Opening a pipe would wait for its writer.
        raise UsageError(f"{plan}: a sweep list is a file, this is a pipe or device")
    with closing(SweepList(RealDisk(), plan)) as listed:
        return store.sweep(listed, dry_run=is_dry, progress=tell)
