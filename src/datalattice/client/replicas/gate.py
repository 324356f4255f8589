"""Gate: what data of others goes through on the store of a folder in which no node runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from datalattice.client.addresses import parse_address
from datalattice.client.folder import Folder, read_keys_or_none
from datalattice.client.replicas.importing import Bring
from datalattice.client.settings import load_settings
from datalattice.lattice import MergeContext, root_lattice
from datalattice.store import CellStore
from datalattice.sync import Absorbed, LatticeReplica, Offer, bring


@contextmanager
def replica_on(folder: Folder, store: CellStore) -> Iterator[LatticeReplica]:
    """Give the replica of a folder on its store, with its keys and its hosting policy.

    What owners use is written down when the block ends well.
    Raises: UsageError: a setting of the folder or a key file is not what it should be.
    """
    config = load_settings(folder.settings_path, os.environ, {}).config
    keys = read_keys_or_none(folder)
    context = MergeContext() if keys is None else keys.context().of_copy(store.place().copy_id)
    replica = LatticeReplica(
        store,
        root_lattice(),
        context,
        hosting=config.hosting,
        frame_max=config.message_bytes_max,
    )
    assert replica.hosting is not None
    keys_of_peers = [parse_address(one).public_key for one in config.peers]
    wanted = [key for key in keys_of_peers if key is not None]
    replica.hosting.wanted = lambda: wanted
    yield replica
    replica.hosting.usage.save()


def taking(folder: Folder, store: CellStore, *, is_known: bool = False) -> Bring:
    """Return what takes in what is brought to a folder's store, as its node would.

    is_known: its unsigned data comes from a known sender, so that it has no quota.
    """

    def take(offer: Offer) -> Absorbed:
        with replica_on(folder, store) as replica:
            return bring(replica, offer, is_known=is_known)

    return take
