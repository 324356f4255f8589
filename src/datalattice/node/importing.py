"""Importing: an archive, or a root of another store, into a store: pinned, merged, or both.

The cells come first, staged and complete; nothing is visible until all of them are here. Then the
pin is set, and the root moves by one commit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from datalattice.cells import Index, Value, branch_hashes, brief, encode
from datalattice.errors import UsageError
from datalattice.lattice import (
    Lattice,
    MergeContext,
    OwnerForked,
    QueueForked,
    Report,
    replicable,
    root_lattice,
    verify_did,
)
from datalattice.store import CellStore, announce_cells, import_cells, store_in
from datalattice.store.etch import copy_cells

Progress = Callable[[int], None]
"""Told how many cells are done."""

Merging = Callable[[Lattice, Value, MergeContext], Value]
"""(lattice, present root, context) -> root."""

Join = Callable[[Merging], None]
"""Changes the root, durably."""


def import_into(
    store: CellStore,
    source: str,
    *,
    pin: str = "",
    merge: bool = False,
    context: MergeContext | None = None,
    join: Join | None = None,
    progress: Progress | None = None,
) -> dict[str, object]:
    """Take the root of an archive, of a store or of a node's folder; tell what was done.

    It becomes a pin, or is merged into the root as what a peer sends: without `:local`, and only
    what its owners have signed. `join` makes the merge durable; by default a commit does.
    Raises: UsageError: there is nothing to import, or nothing that can be merged. BadFormat: the
            archive is damaged. MissingData: cells of it were collected meanwhile.
    """
    top, cells = _stage(store, Path(source), progress)
    value = store.load(top)
    if merge and not isinstance(value, Index):
        raise UsageError(
            f"only a root, an Index, can be merged, got {brief(value)}; pin it instead"
        )
    if pin:
        store.pins.pin(top, pin)
    dropped = 0
    forked: set[tuple[Value, ...]] = set()
    if merge:
        other = replicable(value)
        store.put(other)  # the cells on the way to what was left out are others
        # In steps and ahead of the merge: it may be more than one commit can announce.
        announce_cells(store, branch_hashes(encode(other)))

        def count(report: Report) -> None:
            nonlocal dropped
            if isinstance(report, (OwnerForked, QueueForked)):
                forked.add(report.path[:2])  # the slot: both may be said of one
            else:
                dropped += 1

        def joined(lattice: Lattice, own: Value, inner: MergeContext) -> Value:
            nonlocal dropped
            dropped = 0
            forked.clear()
            return lattice.merge(own, other, inner.reporting(count))

        if join is None:
            lattice = root_lattice()
            own = lattice.zero() if store.root_hash() is None else store.root()
            store.commit(joined(lattice, own, context or MergeContext(verifier=verify_did)))
        else:
            join(joined)
    root = store.root_hash()
    return {
        "imported": top.hex(),
        "cells": cells,
        "pin": pin,
        "root": "" if root is None else root.hex(),
        "dropped": dropped,
        "forked": len(forked),
    }


def _stage(store: CellStore, path: Path, progress: Progress | None) -> tuple[bytes, int]:
    """Stage the cells of a source; return the hash of its root, and how many came."""
    folder = store_in(path)
    if folder is not None:
        with CellStore.open(folder, read_only=True) as other:
            root = other.root_hash()
            if root is None:
                raise UsageError(f"{folder}: nothing was ever committed there")
            cells = copy_cells(other, root, store, progress)
        store.sync()
        return root, cells
    if not path.is_file():
        raise UsageError(f"{path}: no archive, and no folder of a node or store")
    with path.open("rb") as file:
        return import_cells(store, file.read, progress)
