"""GC: garbage collection: mark reached cells, copy them out of sparse segments, drop those.

For a store that is too large for one process, several processes mark it, partition by partition
(`partitions`), and the writer collects by their list (`sweeping`).
"""

from __future__ import annotations

from datalattice.store.gc.marking import LOCATION_SHIFT as LOCATION_SHIFT
from datalattice.store.gc.partition_marking import (
    MarkedSegment as MarkedSegment,
    MarkFrontier as MarkFrontier,
    MarkStart as MarkStart,
    StorePartitionMarker as StorePartitionMarker,
    mark_frontier as mark_frontier,
    mark_start as mark_start,
)
from datalattice.store.gc.partitions import (
    Extent as Extent,
    PartitionPlan as PartitionPlan,
    StorePartition as StorePartition,
    StorePartitionReader as StorePartitionReader,
    check_extent as check_extent,
    entry_count as entry_count,
    extent_of as extent_of,
    missing_before as missing_before,
    record_damage as record_damage,
)
from datalattice.store.gc.sweeping import (
    SweepHead as SweepHead,
    SweepList as SweepList,
    SweptSegment as SweptSegment,
    sweep_head as sweep_head,
    write_sweep_list as write_sweep_list,
)
from datalattice.store.log.packing import upper_bits as upper_bits
from datalattice.store.records import GRACE_MS as GRACE_MS, Collected as Collected
