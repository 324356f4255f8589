"""Importing: an archive, or a root of another store, into a store: pinned, merged, or both.

The cells come first, staged and complete; nothing is visible until all of them are here. Then the
pin is set, and the root goes through the gate that values of peers go through.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from datalattice.cells import Index, Value, brief, decode
from datalattice.errors import BadFormat, MissingData, StoreFull, UsageError
from datalattice.lattice import EMPTY_CONTEXT, MergeContext, root_lattice
from datalattice.store import CellStore, Store, import_cells, store_in
from datalattice.store.etch import EtchStore, copy_cells
from datalattice.sync import DISK_LOW, Absorbed, LatticeReplica, Offer, bring, is_left_out, offer_of

Bring = Callable[[Offer], Absorbed]
"""Has a replica take in what the operator brings."""

FORKED: Final = "owner-forked"
"""What slots are counted as of which one branch of two stands: the kind of `OwnerForked`."""


def trusting(store: Store, context: MergeContext = EMPTY_CONTEXT) -> Bring:
    """Return what takes in the work of this installation: on a store of its own, unlimited."""
    return partial(bring, LatticeReplica(store, root_lattice(), context))


def import_into(
    store: CellStore,
    source: str | EtchStore,
    *,
    pin: str = "",
    merge: bool = False,
    taking: Bring | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, object]:
    """Take the root of an archive, of a store or of a node's folder; tell what was done.

    It becomes a pin, or is merged into the root as what a peer sends: without `:local`, only what
    its owners have signed, and around what is malformed or not hosted. `taking` does that, on the
    replica of the store; by default one without a hosting policy.
    Raises: UsageError: there is nothing to import, or nothing that can be merged. BadFormat: the
            archive is damaged, or nothing of it can be merged, or what is to be pinned is malformed
            in part. MissingData: cells of it were collected meanwhile. StoreFull: the disk has no
            room for data of others.
    """
    apart: dict[bytes, bytes] | None = {} if merge and not pin else None
    top, cells = _stage(store, source, progress, apart)
    apart = apart or {}
    if merge:
        _check_root(decode(apart[top], store) if top in apart else store.load(top))
    if pin:
        store.pins.pin(top, pin)
    absorbed = Absorbed()
    if merge:
        absorbed = (taking or trusting(store))(offer_of(top, apart))
        _check_taken(absorbed, top)
    root = store.root_hash()
    reports = [one for one in absorbed.reports if is_left_out(one) or one.kind == FORKED]
    return {
        "imported": top.hex(),
        "cells": cells,
        "pin": pin,
        "root": "" if root is None else root.hex(),
        "dropped": sum(one.count for one in reports if is_left_out(one)),
        "forked": sum(one.count for one in reports if one.kind == FORKED),
        "reports": [{"kind": one.kind, "count": one.count, "text": one.text} for one in reports],
    }


def _check_root(value: Value) -> None:
    if not isinstance(value, Index):
        raise UsageError(
            f"only a root, an Index, can be merged, got {brief(value)}; pin it instead"
        )


def _check_taken(absorbed: Absorbed, top: bytes) -> None:
    if absorbed.missing:
        raise MissingData(list(absorbed.missing))
    low = next((one.text for one in absorbed.reports if one.kind == DISK_LOW), None)
    if low is not None:
        raise StoreFull(low)
    refusal = absorbed.refused.get(top)
    if refusal is not None:
        raise BadFormat(refusal)


def _stage(
    store: CellStore,
    source: str | EtchStore,
    progress: Callable[[int], None] | None,
    apart: dict[bytes, bytes] | None,
) -> tuple[bytes, int]:
    """Stage the cells of a source; return the hash of its root, and how many came."""
    if isinstance(source, EtchStore):
        return _copy(source, str(source.path), store, progress, apart)
    path = Path(source)
    folder = store_in(path)
    if folder is not None:
        with CellStore.open(folder, read_only=True) as other:
            return _copy(other, str(folder), store, progress, apart)
    if not path.is_file():
        raise UsageError(f"{path}: no archive, and no folder of a node or store")
    with path.open("rb") as file:
        return import_cells(store, file.read, progress, apart=apart)


def _copy(
    other: Store,
    name: str,
    store: CellStore,
    progress: Callable[[int], None] | None,
    apart: dict[bytes, bytes] | None,
) -> tuple[bytes, int]:
    root = other.root_hash()
    if root is None:
        raise UsageError(f"{name}: nothing was ever committed there")
    cells = copy_cells(other, root, store, progress, apart=apart)
    store.sync()
    return root, cells
