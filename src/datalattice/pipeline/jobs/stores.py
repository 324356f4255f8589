"""Stores: what the jobs that go through a whole store have in common.

Their tasks open the store for themselves, read-only, beside whoever writes to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from datalattice.errors import DataLatticeError, UsageError
from datalattice.pipeline.options import bad_option
from datalattice.store import CellStore, Extent, Stretch, check_extent, store_in

PARTS_MIN: Final = 8
"""A store is cut into so many parts, if it has as many segments: the tasks of a few cores."""

PART_BYTES: Final = 256 * 1024 * 1024
"""A part is about this long at most, which bounds what a task has in memory."""

PARTS_MAX: Final = 100_000
"""More are more than Spark manages well."""


def store_folder(path: str) -> str:
    """Return the folder of the store that a path names: itself, or `store` in a node's folder.

    Raises: UsageError: there is none.
    """
    folder = store_in(path)
    if folder is None:
        raise UsageError(f"store={path!r}: no store here; give the folder of a store, or of a node")
    return str(folder.absolute())


def parts_of(extent: Extent, parts: int | None) -> tuple[Stretch, ...]:
    """Return a store in parts: as many as wanted, else as many as fit its length.

    Raises: UsageError: not a number of parts.
    """
    size = sum(segment.size_bytes for segment in extent.segments)
    if parts is None:
        parts = min(PARTS_MAX, max(PARTS_MIN, -(-size // PART_BYTES)))
    if not 1 <= parts <= PARTS_MAX:
        raise bad_option("parts", parts, f"a whole number from 1 to {PARTS_MAX}")
    return tuple(extent.stretches(parts))


def for_tasks(extent: Extent) -> Extent:
    """Return an extent as it travels to tasks, each of which knows its own segments."""
    return replace(extent, segments=())


@contextmanager
def opened(folder: str, extent: Extent) -> Iterator[CellStore]:
    """Give the store to a task, as it was planned for.

    Raises: UsageError: it is another store. StoreFailed: cells were removed from it meanwhile,
            whatever else this made fail.
    """
    with CellStore.open(folder, read_only=True) as store:
        check_extent(store, extent)
        with telling_removal(store, extent):
            yield store


@contextmanager
def telling_removal(store: CellStore, extent: Extent) -> Iterator[None]:
    """Tell what fails because cells were removed meanwhile from what is damaged.

    Raises: StoreFailed: they were, whatever else this made fail.
    """
    try:
        yield
    except (DataLatticeError, FileNotFoundError):
        check_extent(store, extent)
        raise
