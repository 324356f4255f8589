"""Stores: opening a store whose roots are those of the standard lattice."""

from __future__ import annotations

import os

from datalattice.engine import MEMORY_URL
from datalattice.errors import UsageError
from datalattice.lattice import root_contains
from datalattice.store import CellStore, MemoryStore, Store


def open_store(where: str | os.PathLike[str], *, read_only: bool = False) -> Store:
    """Open the store at `where`: a folder, created if needed, or `"memory://"`.

    A commit of a root that lacks data of the current one raises `NotContained`: start with
    `RootLattice(root_lattice(), store.root(), ...)`, and commit its value.
    Raises: as `CellStore.open`.
    """
    text = os.fspath(where)
    store: Store
    if text == MEMORY_URL:
        if read_only:
            raise UsageError("a store in memory starts empty and cannot be opened with read_only")
        store = MemoryStore()
    elif "://" in text:
        raise UsageError(f"a store is opened at a folder or at {MEMORY_URL!r}, got {text!r}")
    else:
        store = CellStore.open(text, read_only=read_only)
    # A store knows no lattice; this makes its commits refuse roots that would lose data.
    store.root_contains = root_contains
    return store
