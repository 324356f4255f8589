"""Stores: open stores for reading, once for each process.

A worker process of Spark runs many tasks one after another; opening a store for each of them would
cost more than a small task. So the last store stays open, and is brought up to date when it is
asked for again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from datalattice.errors import MissingData, UsageError
from datalattice.store import CellStore

Fetch = Callable[[bytes], bytes]
"""Returns the encoding of a cell by its hash; raises MissingData."""

_Place = tuple[int, int, int]

_open: dict[_Place, CellStore] = {}
"""The one open store, by process and folder: a folder made anew at the same path is another."""


def open_for_reading(path: str) -> CellStore:
    """Return the store in a folder, opened read-only.

    Raises: UsageError: there is no store. StoreError: it cannot be read.
    """
    place = _place(path)
    store = _open.get(place)
    if store is not None:
        return store
    for other in list(_open):
        stale = _open.pop(other)
        if other[0] == place[0]:  # what was inherited through a fork is not ours to close
            stale.close()
    store = _open[place] = CellStore.open(Path(path), read_only=True)
    return store


def _place(path: str) -> _Place:
    try:
        found = Path(path).stat()
    except OSError as error:
        raise UsageError(
            f"option store={path!r} is not the folder of a store: {error.strerror}"
        ) from None
    return os.getpid(), found.st_dev, found.st_ino


def encodings(store: CellStore) -> Fetch:
    """Return the function that gets the encoding of a cell from a store by its hash."""

    def fetch(hash: bytes) -> bytes:
        encoding = store.get_encoding(hash)
        if encoding is None:
            raise MissingData([hash])
        return encoding

    return fetch
