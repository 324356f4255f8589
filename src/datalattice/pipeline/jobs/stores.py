"""Functions of the jobs that read a complete store. Tasks open it read-only, beside its writer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from datalattice.errors import DataLatticeError, UsageError
from datalattice.pipeline.options import bad_option
from datalattice.store import CellStore, store_in
from datalattice.store.gc import Extent, StorePartition, check_extent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS_A_CORE: Final = 2
"""Fewest parts for each of several cores, if the store has as many segments, so that no core waits
for long."""

CORES: Final = 4
"""Cores that are assumed of a Spark Connect server, which does not report them."""

PART_BYTES: Final = 1024 * 1024 * 1024
"""Approximate largest part, which bounds the memory of a task: marks take a byte for 128."""

STORE_PARTS_MAX: Final = 100_000
"""Most parts that Spark manages well."""


def store_folder(path: str) -> str:
    """Return the folder of the store at a path: itself, or `store` in a node's folder.

    Raises: UsageError: there is no store.
    """
    folder = store_in(path)
    if folder is None:
        raise UsageError(f"store={path!r}: no store here; give the folder of a store, or of a node")
    return str(folder.absolute())


def cores_of(spark: SparkSession) -> int:
    """Return how many tasks a session runs at a time."""
    context = getattr(spark, "sparkContext", None)
    return CORES if context is None else int(context.defaultParallelism)


def store_partitions(
    extent: Extent, parts: int | None, cores: int = CORES
) -> tuple[StorePartition, ...]:
    """Return a store divided into `parts`, by default by its size and the cores.

    Raises: UsageError: `parts` is out of range.
    """
    size = sum(segment.size_bytes for segment in extent.segments)
    if parts is None:
        # A task reads its share of the store once; each costs Spark and Python some 40 ms.
        least = PARTS_A_CORE * cores if cores > 1 else 1
        parts = min(STORE_PARTS_MAX, max(least, -(-size // PART_BYTES)))
    if not 1 <= parts <= STORE_PARTS_MAX:
        raise bad_option("parts", parts, f"a whole number from 1 to {STORE_PARTS_MAX}")
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
