"""GC: garbage collection: mark reached cells, copy them out of sparse segments, drop those.

For a store that is too large for one process, several processes mark it, partition by partition
(`partitions`), and the writer collects by their list (`sweeping`).
"""

from __future__ import annotations

from datalattice.store.gc.marking import LOCATION_SHIFT
from datalattice.store.gc.partitions import (
    Extent,
    MarkFrontier,
    MarkStart,
    PartitionPlan,
    StorePartition,
    StorePartitionMarker,
    StorePartitionReader,
    check_extent,
    entry_count,
    extent_of,
    mark_frontier,
    mark_start,
    missing_before,
    record_damage,
    upper_bits,
)
from datalattice.store.gc.sweeping import (
    SweepHead,
    SweepList,
    SweptSegment,
    sweep_head,
    write_sweep_list,
)
from datalattice.store.records import GRACE_MS, Collected

__all__ = [
    "GRACE_MS",
    "LOCATION_SHIFT",
    "Collected",
    "Extent",
    "MarkFrontier",
    "MarkStart",
    "PartitionPlan",
    "StorePartition",
    "StorePartitionMarker",
    "StorePartitionReader",
    "SweepHead",
    "SweepList",
    "SweptSegment",
    "check_extent",
    "entry_count",
    "extent_of",
    "mark_frontier",
    "mark_start",
    "missing_before",
    "record_damage",
    "sweep_head",
    "upper_bits",
    "write_sweep_list",
]
