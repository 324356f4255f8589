"""Sweep kit: makes in one process the sweep list that `lattice spark gc` makes in many."""

from __future__ import annotations

import os

from datalattice.clock import SystemClock
from datalattice.store import CellStore, RealDisk
from datalattice.store.gc import (
    StorePartitionMarker,
    SweepHead,
    SweptSegment,
    extent_of,
    mark_start,
    sweep_head,
    write_sweep_list,
)


def make_sweep_list(
    folder: str | os.PathLike[str], path: str | os.PathLike[str], *, grace_ms: int = 0
) -> SweepHead:
    """Mark the store in a folder and write the list; return its head."""
    with CellStore.open(folder, read_only=True) as store:
        extent = extent_of(store)
        (stretch,) = extent.partitions(1)
        beginning = mark_start(store, extent, store.roots_kept(grace_ms))
        marker = StorePartitionMarker(store, extent, stretch)
        for _ in marker.follow_young(beginning.start):
            pass
        marker.follow(beginning.roots)
        marker.find_dead()
        segments = marker.segments()
        head = sweep_head(
            extent,
            beginning.roots,
            time_ms=SystemClock().now_ms(),
            grace_ms=grace_ms,
            cells=(
                sum(one.cells_live for one in segments),
                sum(one.cells_dead for one in segments),
            ),
            bytes_dead=sum(one.bytes_dead for one in segments),
            segments=len(segments),
        )
        swept = (SweptSegment(*one[:3]) for one in segments)
        write_sweep_list(RealDisk(), os.fspath(path), head, swept)
        return head
