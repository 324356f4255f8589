"""Garbage: a collection of a running node's store, asked for and looked at from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Final

from datalattice.cells import Map, Value, to_cell
from datalattice.errors import UsageError
from datalattice.node.node import Node
from datalattice.store import GRACE_MS, CellStore, Collected, RealDisk, Stats, SweepList

TELL_S: Final = 0.5
"""Whoever asks is told about as often how far it is."""


def collected_document(done: Collected) -> dict[str, object]:
    """Return what a collection did, for tools."""
    return {"done": True, **asdict(done)}


def stats_document(stats: Stats) -> dict[str, object]:
    """Return the figures of a store, for tools."""
    return asdict(stats)


def sweep_by(
    store: CellStore, path: str, *, is_dry: bool, progress: Callable[[str, int, int], None]
) -> Collected:
    """Sweep a store by the list in a file.

    Raises: as `SweepList` and `CellStore.sweep`.
    """
    found = Path(path)
    if found.exists() and not found.is_file() and not found.is_dir():
        raise UsageError(f"{path}: a sweep list is a file, this is none")  # a pipe holds us up
    with closing(SweepList(RealDisk(), path)) as plan:
        return store.sweep(plan, dry_run=is_dry, progress=progress)


class Collection:
    """The collections of one node; there is one at a time."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._task: asyncio.Task[Collected] | None = None
        self._plan: Value = None
        self._progress = ("mark", 0, 0)

    async def perform(self, arguments: Map, timeout_ms: int) -> Value:
        """Begin to collect, or tell how far it is; the answer to `store.gc`.

        `list` names the file of a sweep list to collect by.
        """
        plan = arguments.get("list")
        if self._task is None:
            if not (plan is None or (isinstance(plan, str) and plan)):
                raise UsageError(f"list is the path of a sweep list, got {plan!r}")
            grace_ms = arguments.get("grace_ms", GRACE_MS)
            if type(grace_ms) is not int or grace_ms < 0:
                raise UsageError(f"grace_ms is a number from 0, got {grace_ms!r}")
            store = self._node.store
            if not isinstance(store, CellStore):
                raise UsageError("a store in memory has no garbage to collect")
            is_dry = arguments.get("dry_run") is True
            self._progress = ("mark", 0, 0)
            self._plan = plan
            work = (
                asyncio.to_thread(self._collect, store, grace_ms, is_dry)
                if plan is None
                else asyncio.to_thread(self._sweep, store, plan, is_dry)
            )
            self._task = asyncio.ensure_future(work)
        elif plan != self._plan:
            raise UsageError("another collection is going on already; wait for its end")
        task = self._task
        await asyncio.wait([task], timeout=min(timeout_ms / 1e3, TELL_S))
        if not task.done():
            what, count, total = self._progress
            return to_cell({"done": False, "step": what, "count": count, "total": total})
        self._task = None
        done = task.result()
        if not done.is_dry:
            await self._node.house.collected(done)
        return to_cell(collected_document(done))

    def _collect(self, store: CellStore, grace_ms: int, is_dry: bool) -> Collected:
        return store.collect(grace_ms=grace_ms, dry_run=is_dry, progress=self._tell)

    def _sweep(self, store: CellStore, plan: str, is_dry: bool) -> Collected:
        return sweep_by(store, plan, is_dry=is_dry, progress=self._tell)

    def _tell(self, what: str, count: int, total: int) -> None:
        self._progress = (what, count, total)
