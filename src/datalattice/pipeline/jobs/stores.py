"""What jobs that read a complete store have in common.

Tasks open the store read-only, beside its writer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from datalattice.errors import DataLatticeError, UsageError
from datalattice.pipeline.options import bad_option
from datalattice.store import CellStore, store_in
from datalattice.store.gc import Extent, StorePartition, check_extent

PARTS_MIN: Final = 8
"""Least parts of a store with enough segments: tasks for a few cores."""

PART_BYTES: Final = 256 * 1024 * 1024
"""Approximate largest part, which bounds the memory of a task."""

PARTS_MAX: Final = 100_000
"""Most parts that Spark manages well."""


def store_folder(path: str) -> str:
    """Return the folder of the store at a path: itself, or `store` in a node's folder.

    Raises: UsageError: there is no store.
    """
    folder = store_in(path)
    if folder is None:
        raise UsageError(f"store={path!r}: no store here; give the folder of a store, or of a node")
    return str(folder.absolute())


def parts_of(extent: Extent, parts: int | None) -> tuple[StorePartition, ...]:
    """Return a store divided into `parts`, by default by its size.

    Raises: UsageError: `parts` is out of range.
    """
    size = sum(segment.size_bytes for segment in extent.segments)
    if parts is None:
        # By size: a task reads its share of the store once.
        parts = min(PARTS_MAX, max(PARTS_MIN, -(-size // PART_BYTES)))
    if not 1 <= parts <= PARTS_MAX:
        raise bad_option("parts", parts, f"a whole number from 1 to {PARTS_MAX}")
    return tuple(extent.partitions(parts))


def for_tasks(extent: Extent) -> Extent:
    """Return an extent for tasks, without segments: each task finds its own."""
    return replace(extent, segments=())


@contextmanager
def opened(folder: str, extent: Extent) -> Iterator[CellStore]:
    """Yield the planned store, opened for a task.

    Raises: UsageError: it is another store. StoreFailed: cells were removed from it meanwhile; this
            replaces any error that the removal caused.
    """
    with CellStore.open(folder, read_only=True) as store:
        # Another store may have been put at the path since the plan was made.
        check_extent(store, extent)
        with telling_removal(store, extent):
            yield store


@contextmanager
def telling_removal(store: CellStore, extent: Extent) -> Iterator[None]:
    """Raise StoreFailed instead of an error that removed cells caused."""
    try:
        yield
    # Removed cells look like damage; only a changed extent tells that a collection ran.
    except (DataLatticeError, FileNotFoundError):
        check_extent(store, extent)
        raise
