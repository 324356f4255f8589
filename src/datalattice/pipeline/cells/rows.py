"""Divides a store among tasks by segments, and reads the cells of a task. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from datalattice.arrow import Row, cell_row, store_cells
from datalattice.pipeline.cells.options import CellReadOptions
from datalattice.store import CellStore
from datalattice.store.gc import (
    Extent,
    StorePartition,
    extent_of,
)

_PART_BYTES: Final = 64 * 1024 * 1024
"""Approximate bytes of a store that one task reads; segments are not divided."""


@dataclass(frozen=True, slots=True)
class SegmentsTask:
    """The segments that one task reads of a store as it was at planning."""

    extent: Extent
    partition: StorePartition


def plan(options: CellReadOptions) -> list[SegmentsTask]:
    """Return the tasks that read every cell of a store.

    Cost:   reads the header of each segment.
    Raises: StoreError: the store cannot be read.
    """
    with CellStore.open(options.folder, read_only=True) as store:
        extent = extent_of(store)
    size = sum(segment.size_bytes for segment in extent.segments)
    # A store that was never written to has no segment, and Spark plans its own empty task.
    if not extent.segments:
        return []
    count = max(options.min_partitions, -(-size // _PART_BYTES), 1)
    small = replace(extent, segments=())  # tasks get their segments from the store
    return [SegmentsTask(small, partition) for partition in extent.partitions(count)]


def rows(part: SegmentsTask, options: CellReadOptions) -> Iterator[Row]:
    """Yield the cells of a task, each once, in storage order. Runs in tasks.

    Cost:   for each cell an index look-up and, with verify, a hash.
    Raises: Corruption: bytes differ from what was written. StoreFailed: cells were removed since
            the plan was made.
    """
    with CellStore.open(options.folder, read_only=True) as store:
        for hash, encoding in store_cells(
            store, part.extent, part.partition, verify=options.verify
        ):
            yield cell_row(hash, encoding, options.columns)
