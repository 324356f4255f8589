"""Replicas: foreign data into the store of a folder: a gate for it, and the import of archives.

An import stages all cells first; nothing is visible until all of them are here. Then the pin is
set, and the root is merged like a value of a peer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from datalattice.actions import ImportedRoot, LeftOutPart
from datalattice.cells import Index, brief, decode
from datalattice.client.addresses import parse_ticket
from datalattice.client.folder import Folder, read_keys_or_none
from datalattice.client.settings import load_settings
from datalattice.errors import BadFormat, MissingData, StoreFull, UsageError
from datalattice.lattice import EMPTY_CONTEXT, MergeContext, root_lattice
from datalattice.store import CellStore, Store, copy_cells, import_cells, store_in
from datalattice.store.etch import EtchStore
from datalattice.sync import (
    DISK_LOW,
    Absorbed,
    LatticeReplica,
    Offer,
    absorb_import,
    is_left_out,
    offer_of,
)

Bring = Callable[[Offer], Absorbed]
"""Merges a root that the operator brings into a replica."""

_FORKED: Final = "owner-forked"
"""Report kind of slots of which one branch of two was kept, as of `OwnerForked`."""


@contextmanager
def replica_on(folder: Folder, store: CellStore) -> Iterator[LatticeReplica]:
    """Give the replica of a folder on its store, with its keys and its hosting policy.

    The usage of owners is saved if the block ends without an error.
    Raises: UsageError: a setting of the folder or a key file is invalid.
    """
    # The rules of the folder's node hold for imports, too: whose data is kept, and how much.
    config = load_settings(folder.settings_path, os.environ, {}).config
    keys = read_keys_or_none(folder)
    # Counters of a copied folder have a name of their own.
    context = MergeContext() if keys is None else keys.context().of_copy(store.place().copy_id)
    replica = LatticeReplica(
        store,
        root_lattice(),
        context,
        hosting=config.hosting,
        frame_max=config.message_bytes_max,
    )
    assert replica.hosting is not None
    keys_of_peers = [parse_ticket(one)[0].public_key for one in config.peers]
    wanted = [key for key in keys_of_peers if key is not None]
    replica.hosting.rules.wanted = lambda: wanted
    yield replica
    replica.hosting.quotas.usage.save()  # after the merge: an error leaves the usage as it was


def taking(folder: Folder, store: CellStore, *, is_known: bool = False) -> Bring:
    """Return how roots are merged into a folder's store, with the rules of its node.

    is_known: unsigned data counts as a known sender's and has no quota.
    """

    def take(offer: Offer) -> Absorbed:
        with replica_on(folder, store) as replica:
            return absorb_import(replica, offer, is_known=is_known)

    return take


def trusting(store: Store, context: MergeContext = EMPTY_CONTEXT) -> Bring:
    """Return how roots of this installation are merged into a store: without a hosting policy."""
    return partial(absorb_import, LatticeReplica(store, root_lattice(), context))


def import_into(
    store: Store,
    source: str | EtchStore,
    *,
    pin: str = "",
    merge: bool = False,
    taking: Bring | None = None,
    progress: Callable[[int], None] | None = None,
) -> ImportedRoot:
    """Import the root of an archive, of a store or of a node's folder; return what was done.

    The root becomes a pin, or is merged like a value of a peer: without `:local`, only what its
    owners have signed, and without malformed parts and those that are not hosted.

    taking: merges the root; default: `trusting`.
    Raises: UsageError: there is no root, or it is no Index to merge. BadFormat: the archive is
            damaged, nothing of it can be merged, or a part of a pinned value is malformed.
            MissingData: cells of it were collected meanwhile. StoreFull: the disk has no room for
            foreign data.
    """
    # A pinned value is kept as it is, so nothing is staged apart.
    apart: dict[bytes, bytes] | None = {} if merge and not pin else None
    top, cells = _stage(store, source, progress, apart)
    apart = apart or {}
    if merge:
        value = decode(apart[top], store) if top in apart else store.load(top)
        # A value of another kind has no sections to merge; a pin keeps any value.
        if not isinstance(value, Index):
            raise UsageError(
                f"only a root, an Index, can be merged, got {brief(value)}; pin it instead"
            )
    if pin:  # before the merge, so that garbage collection keeps the cells meanwhile
        store.pins.pin(top, pin)
    absorbed = Absorbed()
    if merge:
        absorbed = (taking or trusting(store))(offer_of(top, apart))
        _check_taken(absorbed, top)
    root = store.root_hash()
    reports = [one for one in absorbed.reports if is_left_out(one) or one.kind == _FORKED]
    return ImportedRoot(
        imported=top,
        cells=cells,
        pin=pin,
        root=root,
        dropped=sum(one.count for one in reports if is_left_out(one)),
        forked=sum(one.count for one in reports if one.kind == _FORKED),
        reports=tuple(
            LeftOutPart(kind=one.kind, count=one.count, text=one.text) for one in reports
        ),
    )


def _check_taken(absorbed: Absorbed, top: bytes) -> None:
    # A writer's collection does not wait for an import.
    if absorbed.missing:  # collected between staging and merging
        raise MissingData(list(absorbed.missing))
    low = next((one.text for one in absorbed.reports if one.kind == DISK_LOW), None)
    if low is not None:  # the disk is full: nothing of it was taken
        raise StoreFull(low)
    refusal = absorbed.refused.get(top)
    if refusal is not None:
        raise BadFormat(refusal)


def _stage(
    store: Store,
    source: str | EtchStore,
    progress: Callable[[int], None] | None,
    apart: dict[bytes, bytes] | None,
) -> tuple[bytes, int]:
    """Stage the cells of a source; return the hash of its root, and how many cells there were."""
    if isinstance(source, EtchStore):
        return _copy(source, str(source.path), store, progress, apart)
    path = Path(source)
    folder = store_in(path)
    if folder is not None:
        with CellStore.open(folder, read_only=True) as other:
            # Read only: the other node may run.
            return _copy(other, str(folder), store, progress, apart)
    if not path.is_file():
        raise UsageError(f"{path}: no archive, and no folder of a node or store")
    with path.open("rb") as file:
        return import_cells(store, file.read, progress, apart=apart)


def _copy(
    other: Store,
    name: str,
    store: Store,
    progress: Callable[[int], None] | None,
    apart: dict[bytes, bytes] | None,
) -> tuple[bytes, int]:
    root = other.root_hash()
    if root is None:
        raise UsageError(f"{name}: nothing was ever committed there")
    cells = copy_cells(other, root, store, progress, apart=apart)
    store.sync()  # staged cells are durable before they are named
    return root, cells
