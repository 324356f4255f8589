"""Sweep kit: makes in one process the sweep list that `lattice spark gc` makes in many."""

from __future__ import annotations

import os

from datalattice.clock import SystemClock
from datalattice.store import CellStore, RealDisk
from datalattice.store.gc import (
    StorePartitionMarker,
    StorePartitionReader,
    SweepHead,
    SweptSegment,
    extent_of,
    mark_start,
    sweep_head,
    write_sweep_list,
)
from datalattice.store.log import Gap, LocationSet, locate


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
        reader = StorePartitionReader(store, extent, stretch)
        packs = [pack for pack in reader.packs() if not isinstance(pack, Gap)]
        locations = [place for pack in packs for _, place in reader.cells(pack)]
        dead = LocationSet()
        gone = [place for place in locations if not marker.marks.has(place) and dead.add(place)]
        numbers = sorted({place >> 42 for place in locations})
        segments = [SweptSegment(n, marker.marks.pack(n), dead.pack(n)) for n in numbers]
        head = sweep_head(
            extent,
            beginning.roots,
            time_ms=SystemClock().now_ms(),
            grace_ms=grace_ms,
            cells=(marker.cells, len(gone)),
            bytes_dead=sum(locate(place)[2] for place in gone),
            segments=len(segments),
        )
        write_sweep_list(RealDisk(), os.fspath(path), head, segments)
        return head
