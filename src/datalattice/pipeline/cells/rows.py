"""Divides a store among tasks by segments, and reads the cells of a task. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from datalattice.arrow import Row
from datalattice.cells import references
from datalattice.errors import Corruption, DataLatticeError
from datalattice.pipeline.cells.options import CellReadOptions
from datalattice.store import CellStore
from datalattice.store.gc import (
    Extent,
    StorePartition,
    StorePartitionReader,
    check_extent,
    extent_of,
)
from datalattice.store.log import Gap, locate

PART_BYTES: Final = 64 * 1024 * 1024
"""Approximate bytes of a store that one task reads; segments are not divided."""

READ_TOGETHER: Final = 256
"""Cells that are read and hashed together."""


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
    count = max(options.min_partitions, -(-size // PART_BYTES), 1)
    small = replace(extent, segments=())  # tasks get their segments from the store
    return [SegmentsTask(small, partition) for partition in extent.partitions(count)]


def rows(part: SegmentsTask, options: CellReadOptions) -> Iterator[Row]:
    """Yield the cells of a task, each once, in storage order. Runs in tasks.

    Cost:   for each cell an index look-up and, with verify, a hash.
    Raises: Corruption: bytes differ from what was written. StoreFailed: cells were removed since
            the plan was made.
    """
    columns = options.columns
    with CellStore.open(options.folder, read_only=True) as store:
        for hash, encoding in cells(store, part.extent, part.partition, verify=options.verify):
            found: dict[str, object] = {"hash": hash, "encoding": encoding}
            if "refs" in columns:
                found["refs"] = references(encoding)
            yield [found[name] for name in columns]


def cells(
    store: CellStore, extent: Extent, partition: StorePartition, *, verify: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Yield (hash, encoding) of a partition's cells."""
    reader = StorePartitionReader(store, extent, partition)
    try:
        for pack in reader.packs():
            if isinstance(pack, Gap):
                raise _damaged(reader.path(pack.segment), pack.offset, pack.reason)
            left = iter(reader.cells(pack))
            while batch := list(islice(left, READ_TOGETHER)):
                # "`false` skips the comparison with the hash" (docs/spark-formats.md, Cells).
                found = reader.read_many(batch, verify=verify)
                for (hash, location), encoding in zip(batch, found, strict=True):
                    if encoding is None:
                        reader.read(location)  # raises where it cannot be read
                        segment, offset, _ = locate(location)
                        reason = f"cell 0x{hash.hex()} does not fit its hash"
                        raise _damaged(reader.path(segment), offset, reason)
                    yield hash, encoding
    except (DataLatticeError, FileNotFoundError):
        check_extent(store, extent)  # reports a removal of cells, if that is the cause
        raise
    check_extent(store, extent)


def _damaged(path: str, offset: int, reason: str) -> Corruption:
    return Corruption(
        f"{path} at byte {offset}: {reason}; `lattice disk check` lists all damage, and "
        "`lattice disk heal` fetches lost cells"
    )
