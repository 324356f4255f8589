"""Identity: makes the keys of a new folder, or a new identity for an existing one.

A node is its identity: peers take two folders with one identity for one device, so a copy of a
folder needs a new identity.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import datalattice.apps  # noqa: F401 - registers the sections of the root lattice
from datalattice.cells import Index, Map, Signed, Value
from datalattice.client.folder import (
    OWNER_NAME,
    Folder,
    OwnKeys,
    read_key,
    read_key_pairs,
    read_keys_or_none,
    take_turn,
    write_key,
)
from datalattice.client.opening import LOCK_WAIT_S, explaining_missing, node_or_store
from datalattice.client.upgrading import check_format
from datalattice.crypto import Entropy, KeyPair, KeyRing
from datalattice.errors import NoSigningKey, UsageError
from datalattice.lattice import (
    LOCAL_KEY,
    NODES_KEY,
    P2P_KEY,
    assoc_in,
    get_in,
    local_value,
    root_lattice,
    set_local,
)
from datalattice.store import CellStore, RealDisk

FRESH_NAME: Final = "identity.new"
"""The file of a new identity until it replaces the old one; one that is found was never used."""


def begin_folder(
    folder: Folder, owner: KeyPair | None = None, entropy: Entropy | None = None
) -> OwnKeys:
    """Make the keys of a new folder: a new identity, and the key of the `owner` it writes for.

    Without `owner` the identity is the owner's key too.
    Raises: UsageError: the folder has keys, or cannot be written to.
    """
    for path in (folder.identity_path, *folder.named_key_paths()):
        if path.exists():  # keys are never replaced: without them the data cannot be signed
            raise UsageError(f"there is a key at {path} already; name a new folder")
    identity = KeyPair.generate(entropy)
    if owner is not None:
        if owner == identity:
            raise UsageError("owner has the new identity's key; give another key, or no owner")
        write_key(folder.named_key_path(OWNER_NAME), owner)
    # The identity is written last: until then the folder has no keys, and the call can be repeated.
    write_key(folder.identity_path, identity)
    return read_key_pairs(folder)


def keys_of(
    folder: Folder, key: str | os.PathLike[str] | KeyPair | None = None, *, create: bool
) -> OwnKeys | None:
    """Return the keys of a folder with the chosen default owner, None if there are none.

    key:    the name of a key of the folder (`keys/NAME.key`), the path of a key file (with a
            separator), or a KeyPair. None: the folder's own.
    create: make the folder's keys if it has none.
    Raises: NoSigningKey: there is no such key. UsageError: as `read_keys` and `begin_folder`.
            StoreVersion: the folder has a newer format.
    """
    if create:
        check_format(folder.path)  # first: nothing is added to a folder of a newer format
    keys = read_keys_or_none(folder)
    if keys is None and create:
        RealDisk().create_folder(str(folder.path))
        # Of two first writers at once, the second must find the key that the first made.
        lock = take_turn(str(folder.edit_lock_path), LOCK_WAIT_S, "process that makes the keys")
        try:
            keys = read_keys_or_none(folder) or begin_folder(folder)
        finally:
            lock.release()
    if key is None:
        return keys
    # "The node's identity key is not touched: only a serving process uses it"
    # (docs/design/front-door.md "Open").
    if isinstance(key, KeyPair):
        owner = key
    else:
        text = os.fspath(key)
        is_path = os.sep in text or not isinstance(key, str)
        path = Path(text) if is_path else folder.named_key_path(text)
        if not is_path and not path.exists():
            how = f"make one with `lattice key new {text} -d {folder.path}`"
            raise NoSigningKey(f"the folder has no key {text!r}; {how}")
        owner = read_key(path)
    if keys is None:
        return OwnKeys.of(owner)
    return OwnKeys(keys.identity, owner, KeyRing(*keys.ring, owner))


def renew_identity(folder: Folder, entropy: Entropy | None = None) -> OwnKeys:
    """Give a folder a new identity, which signs the node's entries in `:local` and `:p2p` anew.

    A key that was identity and owner stays the owner's key, as `keys/owner.key`. Killed at any
    point, the folder has the old identity or the new one, each with all its data.
    Raises: NoSigningKey: there is no identity. UsageError: a node runs in the folder.
    """
    found = node_or_store(folder)
    # A running node has its identity in memory, and peers know it by that.
    if not isinstance(found, CellStore):
        found.close()
        raise UsageError(f"a node runs in {folder.path}; stop it before it becomes another node")
    with found as store, explaining_missing(folder):
        before = read_key_pairs(folder)
        identity = KeyPair.generate(entropy)
        # "in an order in which, whenever it is interrupted, either the old identity has all its
        # data or the new one has all of it" (docs/design/identity.md "Identity and owners")
        owner = folder.named_key_path(OWNER_NAME)
        if not owner.exists():
            write_key(owner, before.owner)  # before the old identity, which may be it, is replaced
        fresh = folder.path / FRESH_NAME
        fresh.unlink(missing_ok=True)  # left by a killed renewal
        write_key(fresh, identity)
        root = store.root()
        if root is not None:
            # The slots of both keys exist until the new key file is in place.
            store.commit(_signed_anew(root, before.identity, identity))
        older = folder.identity_path
        fresh.replace(folder.path / "identity.key")
        if older.name != "identity.key":
            older.unlink()
        RealDisk().sync_folder(str(folder.path))  # makes the new name durable
        if root is not None:
            store.commit(_without(store.root(), before.identity.public_key))
    return read_key_pairs(folder)


def _signed_anew(root: Value, old: KeyPair, new: KeyPair) -> Value:
    local = local_value(root, old.public_key)
    if local is not None:
        root = set_local(root, new, local)
    # The node's published entry, below the old key, is signed by the new one too.
    entry = get_in(root, [P2P_KEY, NODES_KEY, old.public_key])
    if isinstance(entry, Signed) and entry.public_key == old.public_key and entry.verify():
        signed = Signed.sign(new, entry.value)
        root = assoc_in(root, [P2P_KEY, NODES_KEY, new.public_key], signed, root_lattice())
    return root


def _without(root: Value, public_key: bytes) -> Value:
    """Return a root without the `:local` slot of a key.

    The entry in `:p2p` stays: peers have it, and a copy of the folder may still run as that node.
    """
    local = get_in(root, [LOCAL_KEY])
    if not isinstance(root, Index) or not isinstance(local, Map):
        return root
    return root.put(LOCAL_KEY, local.remove(public_key))
