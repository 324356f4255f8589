"""The cells of a store as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from datalattice.arrow.batches import Row
from datalattice.cells import references
from datalattice.errors import Corruption, DataLatticeError
from datalattice.store import CellStore
from datalattice.store.gc import Extent, StorePartition, StorePartitionReader, check_extent
from datalattice.store.log import Gap, locate

CELL_TYPES: Final = {"hash": "BINARY", "encoding": "BINARY", "refs": "ARRAY<BINARY>"}
"""Every column, in order, with its type in Spark's DDL."""

READ_TOGETHER: Final = 256
"""Cells that are read and hashed together."""


def cell_row(hash: bytes, encoding: bytes, columns: Sequence[str]) -> Row:
    """Return the row of a cell with these columns."""
    found: dict[str, object] = {"hash": hash, "encoding": encoding}
    if "refs" in columns:
        found["refs"] = references(encoding)
    return [found[name] for name in columns]


def store_cells(
    store: CellStore, extent: Extent, partition: StorePartition, *, verify: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Yield (hash, encoding) of a partition's cells."""
    reader = StorePartitionReader(store, extent, partition)
    try:
        for pack in reader.packs():
            if isinstance(pack, Gap):
                raise _damaged(reader.path(pack.segment), pack.offset, pack.reason)
            left = iter(reader.cells(pack))
            # Neighbouring cells are read and hashed in one call, which costs less than one by one.
            while batch := list(islice(left, READ_TOGETHER)):
                # "`false` skips the comparison with the hash" (docs/spark-formats.md, Cells).
                found = reader.read_many(batch, verify=verify)
                for (hash, location), encoding in zip(batch, found, strict=True):
                    if encoding is None:
                        reader.read(location)  # raises its own error if the bytes are unreadable
                        segment, offset, _ = locate(location)
                        reason = f"cell 0x{hash.hex()} does not fit its hash"
                        raise _damaged(reader.path(segment), offset, reason)
                    yield hash, encoding
    # "If cells are removed meanwhile, the read fails with `StoreFailed`" (docs/spark-formats.md,
    # Cells): removed cells look like damage.
    except (DataLatticeError, FileNotFoundError):
        check_extent(store, extent)  # reports a removal of cells, if that is the cause
        raise
    check_extent(store, extent)


def _damaged(path: str, offset: int, reason: str) -> Corruption:
    return Corruption(
        f"{path} at byte {offset}: {reason}; `lattice disk check` lists all damage, and "
        "`lattice disk heal` fetches lost cells"
    )
