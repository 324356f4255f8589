"""Folder backup: a copy of all that a folder holds, made while programs and its node write.

    TARGET/store/         the newest root, with the cells that the copy lacked
    TARGET/weaver/        the weaver stores, as they were at one moment
    TARGET/identity.key, keys/, node.toml, names.json

The copy is a folder like any other: to restore it, copy it to where it is needed. There the store
and the weaver stores detect that they were elsewhere, so a peer is asked before the first write.

Source: docs/guides/backup-and-restore.md
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from datalattice.cells import Value, decode, encode, novelty, references, same, value_hash
from datalattice.client.control import Progress
from datalattice.client.folder import Folder, read_keys_or_none
from datalattice.client.opening import open_reader
from datalattice.client.weaverfolder import WEAVER_FOLDER
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair, SystemEntropy
from datalattice.engine import DATA_FILE, JOURNAL_FILE, GroupCommit, copy_tables, open_engine
from datalattice.errors import UsageError
from datalattice.lattice import KeyedLattice, Lattice, replicable, root_lattice
from datalattice.store import PLACE_FILE, STORE_FILE, CellStore, Store, children_first
from datalattice.weaver import STORE_TABLES, Stores, store_id_text

LACKING: Final = (
    "it has data that this node does not have, and stays as it is; recover from it, or have the "
    "node back up to another folder"
)

_BATCH_CELLS: Final = 512  # cells stored at a time

CHECK_LEVEL: Final = 2
"""Level of `fsck` that looks at every byte: links, hashes and signatures."""

HOLD_S: Final = 24 * 60 * 60
"""The root that is copied is leased for so long; the lease is given back when it is done."""


def back_up(folder: Folder, target: Path, *, with_keys: bool, progress: Progress) -> dict[str, Any]:
    """Bring the copy of a folder at `target` up to date; return what it holds.

    Raises: UsageError: `target` is this folder, or has data that this folder lacks. StoreError.
    """
    copy = Folder(target)
    if target.exists() and target.samefile(folder.path):
        raise UsageError(f"{target} is the folder itself; name another one")
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    document: dict[str, Any] = {"target": str(target), "root": None}
    # The weaver stores first: what refuses the copy does so before anything is replaced.
    document |= _back_up_weaver(folder, copy)
    if (folder.store_path / STORE_FILE).is_file():
        document["root"] = _back_up_cells(folder, copy, progress)
    files = [folder.settings_path, folder.names_path]
    if with_keys:
        files += [folder.identity_path, *folder.named_key_paths()]
    there = [file for file in files if file.exists()]
    for file in there:
        _copy_file(file, target / file.relative_to(folder.path))
    document["files"] = [str(file.relative_to(folder.path)) for file in there]
    return document


def _back_up_cells(folder: Folder, copy: Folder, progress: Progress) -> str | None:
    """Copy the newest root; return its hash in hex."""
    with open_reader(folder) as source:
        top = source.root_hash()
        if top is None:
            return None
        # The lease keeps a collection from taking cells that are still to be copied.
        with source.lease(top, HOLD_S), CellStore.open(copy.store_path) as store:
            value = source.load(top)
            if not has_all_of(value, store.root(), root_lattice()):
                raise UsageError(f"{copy.store_path}: {LACKING}")
            copy_value(value, source, store, progress)
    # With the place of the original, so that the copy, or a copy of it, counts as restored.
    place = folder.store_path / PLACE_FILE
    if place.exists():
        _copy_file(place, copy.store_path / PLACE_FILE)
    return top.hex()


def _copy_file(source: Path, target: Path) -> None:
    """Copy a small file durably; a crash leaves the old one or the new one."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = target.with_name(target.name + ".part")
    shutil.copy2(source, fresh)  # with its mode: a key stays readable by its user only
    with fresh.open("rb+") as file:
        os.fsync(file.fileno())
    fresh.replace(target)


# --- weaver stores --------------------------------------------------------------------------------


def weaver_figures(folder: Folder, *, check: bool = False) -> dict[str, Any]:
    """Return how much the weaver stores of a folder hold; with `check`, what is wrong with them.

    Shapes: `weaver_bytes` on disk, `stores`, `intentions`, and with `check` `faults` as texts.
    """
    found: dict[str, Any] = {"weaver_bytes": 0, "stores": 0, "intentions": 0}
    if check:
        found["faults"] = []
    path = folder.path / WEAVER_FOLDER
    if not (path / DATA_FILE).exists():
        return found
    # The journal is part of the data: its records may not be in the tables yet.
    files = [one for one in (path / DATA_FILE, path / JOURNAL_FILE) if one.exists()]
    found["weaver_bytes"] = sum(one.stat().st_size for one in files)
    keys = read_keys_or_none(folder)
    with _reading(path, KeyPair.generate() if keys is None else keys.identity) as stores:
        ids = stores.ids()
        found["stores"] = len(ids)
        for id in ids:
            with stores.view(id) as view:
                found["intentions"] += view.last_seq()
                if check:
                    text = store_id_text(id)
                    found["faults"] += [f"store {text}: {one}" for one in view.fsck(CHECK_LEVEL)]
    return found


@contextmanager
def _reading(path: Path, key: KeyPair) -> Iterator[Stores]:
    """Give the stores of an engine, for reading. key: of the node that wrote them."""
    with closing(open_engine(path, STORE_TABLES, read_only=True)) as engine:
        yield Stores(GroupCommit(engine), key, SystemClock(), SystemEntropy())


def _back_up_weaver(folder: Folder, copy: Folder) -> dict[str, Any]:
    """Replace the weaver stores of a copy by what they are now; return the figures."""
    source, target = folder.path / WEAVER_FOLDER, copy.path / WEAVER_FOLDER
    if not (source / DATA_FILE).exists():
        if (target / DATA_FILE).exists():
            raise UsageError(f"{target}: {LACKING}")
        return weaver_figures(copy)
    key = KeyPair.generate()  # nothing is signed
    with closing(open_engine(source, STORE_TABLES, read_only=True)) as engine:
        if (target / DATA_FILE).exists():
            here = Stores(GroupCommit(engine), key, SystemClock(), SystemEntropy())
            with _reading(target, key) as there:
                if not all(_has_all_of(here, there, id) for id in there.ids()):
                    raise UsageError(f"{target}: {LACKING}")
        copy_tables(engine, target)
    return weaver_figures(copy)


def _has_all_of(stores: Stores, other: Stores, id: bytes) -> bool:
    """Return whether stores have every intention that others have in one of them."""
    if not stores.has(id):
        return False
    with stores.view(id) as view, other.view(id) as before:
        # Chains: who has an author's newest intention has all of them.
        return all(view.get(tip) is not None for tip in before.tips().values())


# --- values ---------------------------------------------------------------------------------------


def has_all_of(value: Value, other: Value, lattice: Lattice) -> bool:
    """Return whether merging `other` into a value would add nothing, `:local` apart.

    Cost: that of a merge: proportional to the difference.
    """
    if isinstance(lattice, KeyedLattice):
        value, other = replicable(value), replicable(other)
    return same(lattice.merge(value, other), value)


def copy_value(
    value: Value, source: Store, target: Store, progress: Progress | None = None
) -> None:
    """Make `value`, whose cells are in `source` or in memory, the root of `target`.

    Raises: MissingData, Corruption: a cell cannot be had. StoreError: it cannot be written.
    Cost:   reads the cells that `target` does not have.
    """
    if target.root_hash() == value_hash(value):
        return  # stored already: equal hashes are equal values
    made = {hash: encoding for hash, encoding, _ in novelty(value, source)}
    top = encode(value)
    batch: dict[bytes, bytes] = {}
    done = 0

    def encodings_of(hashes: list[bytes]) -> list[bytes | None]:
        found = source.get_encodings(hashes)
        return [made.get(hash, cell) for hash, cell in zip(hashes, found, strict=True)]

    # A cell is stored after all below it, so a cell that the target has is complete there.
    for hash, encoding in children_first(
        references(top), encodings_of, lambda one: one in batch or target.has(one)
    ):
        batch[hash] = encoding
        if len(batch) >= _BATCH_CELLS:
            target.put_encodings(batch.items())
            done += len(batch)
            batch.clear()
            if progress is not None:
                progress(done)
    target.put_encodings(batch.items())
    target.commit(decode(top, target))
