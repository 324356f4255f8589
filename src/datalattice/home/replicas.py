"""Replicas: the gate that data of others goes through, on the store of a folder without a node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from datalattice.home.folder import Folder, read_keys_or_none
from datalattice.home.opening import ask_first
from datalattice.lattice import MergeContext, root_lattice
from datalattice.store import CellStore

if TYPE_CHECKING:
    from datalattice.node import Bring
    from datalattice.sync import Absorbed, LatticeReplica, Offer


@contextmanager
def replica_of(folder: Folder, *, fenced: bool = False) -> Iterator[LatticeReplica]:
    """Open the store of a folder in which no node runs, and give the replica on it.

    fenced: owners are written for, so peers are asked first.
    Raises: as `CellStore.open` and `ask_first`. UsageError: a setting is not what it should be.
    """
    with CellStore.open(folder.store_path) as store:
        keys = read_keys_or_none(folder)
        if fenced and keys is not None:
            ask_first(folder, store, keys)
        with _saved(_replica_on(folder, store)) as replica:
            yield replica


def _replica_on(folder: Folder, store: CellStore) -> LatticeReplica:
    """Return the replica of a folder on its store, with its keys and its hosting policy.

    Raises: UsageError: a setting of the folder or a key file is not what it should be.
    """
    from datalattice.node import load_settings, parse_address
    from datalattice.sync import LatticeReplica

    config = load_settings(folder.settings_path, os.environ, {}).config
    keys = read_keys_or_none(folder)
    context = MergeContext() if keys is None else keys.context()
    replica = LatticeReplica(store, root_lattice(), context, hosting=config.hosting)
    assert replica.hosting is not None
    keys_of_peers = [parse_address(one).public_key for one in config.peers]
    wanted = [key for key in keys_of_peers if key is not None]
    replica.hosting.wanted = lambda: wanted
    return replica


def taking(folder: Folder, store: CellStore, *, is_known: bool = False) -> Bring:
    """Return what takes in what is brought to a folder's store, as its node would.

    is_known: its unsigned data comes from a known sender, so that it has no quota.
    """
    from datalattice.sync import bring

    def take(offer: Offer) -> Absorbed:
        with _saved(_replica_on(folder, store)) as replica:
            return bring(replica, offer, is_known=is_known)

    return take


@contextmanager
def _saved(replica: LatticeReplica) -> Iterator[LatticeReplica]:
    """Give a replica; what owners use is written down when the block ends well."""
    yield replica
    if replica.hosting is not None:
        replica.hosting.usage.save()
