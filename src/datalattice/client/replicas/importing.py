"""Importing: merges or pins the root of an archive, a store or a folder.

An import stages all cells first, so that nothing is visible until it is complete. Then the pin is
set, and the root is merged like a value from a peer.
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
"""A function that merges an imported root into a replica."""

_FORKED: Final = "owner-forked"
"""The kind of `OwnerForked` reports: of two branches of a slot, one became evidence."""


@contextmanager
def replica_on(folder: Folder, store: CellStore) -> Iterator[LatticeReplica]:
    """Yield the replica of a folder on its store, with its keys and its hosting policy.

    The owners' usage is saved if the block ends without an error.
    Raises: UsageError: a setting of the folder or a key file is invalid.
    """
    # The hosting policy of the folder's node limits imports too.
    config = load_settings(folder.settings_path, os.environ, {}).config
    keys = read_keys_or_none(folder)
    # Counters name the copy that counted, so a copied folder counts under its own id.
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
    """Return the merge of roots into a folder's store under its hosting policy.

    is_known: whether unsigned data counts as from a known sender, and so has no quota.
    """

    def take(offer: Offer) -> Absorbed:
        with replica_on(folder, store) as replica:
            return absorb_import(replica, offer, is_known=is_known)

    return take


def trusting(store: Store, context: MergeContext = EMPTY_CONTEXT) -> Bring:
    """Return the merge of trusted roots into a store, without a hosting policy."""
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
    """Import the root of an archive, of a store or of a node's folder; return a report.

    The root is pinned, or merged like a value from a peer: without `:local`, unsigned owners' data,
    malformed parts and parts that are not hosted.

    taking: the merge of the root; default: `trusting`.
    Raises: UsageError: there is no root, or a root to merge is not an Index. BadFormat: the archive
            is damaged, none of it can be merged, or a part of a pinned value is malformed.
            MissingData: imported cells were collected meanwhile. StoreFull: the disk has no room
            for foreign data.
    """
    # Malformed cells are staged apart to be left out; a pin keeps the value unchanged.
    apart: dict[bytes, bytes] | None = {} if merge and not pin else None
    top, cells = _stage(store, source, progress, apart)
    apart = apart or {}
    if merge:
        value = decode(apart[top], store) if top in apart else store.load(top)
        # Only an Index has sections to merge; any value can be pinned.
        if not isinstance(value, Index):
            raise UsageError(
                f"only a root, an Index, can be merged, got {brief(value)}; pin it instead"
            )
    if pin:  # before the merge, so that garbage collection spares the cells
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
    if absorbed.missing:  # garbage collection removed staged cells before the merge
        raise MissingData(list(absorbed.missing))
    low = next((one.text for one in absorbed.reports if one.kind == DISK_LOW), None)
    if low is not None:  # nothing was merged
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
    """Stage the cells of a source; return the hash of its root, and the number of cells."""
    if isinstance(source, EtchStore):
        return _copy(source, str(source.path), store, progress, apart)
    path = Path(source)
    folder = store_in(path)
    if folder is not None:
        # Opened for reading, because a node may run there.
        with CellStore.open(folder, read_only=True) as other:
            return _copy(other, str(folder), store, progress, apart)
    if not path.is_file():
        raise UsageError(f"{path} is neither an archive nor the folder of a node or store")
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
    store.sync()  # cells are durable before a pin or a root refers to them
    return root, cells
