"""Folder backup: a copy of a folder's data, made while programs and its node write.

    TARGET/store/         the newest root, with the cells that the copy lacked
    TARGET/weaver/        the weaver stores, as they were at one moment
    TARGET/identity.key, keys/, node.toml, names.json

The copy is a folder like any other: to restore it, copy it to its new path. There the store and
the weaver stores detect that they were moved, so a peer is asked before the first write.

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
from datalattice.client.opening import open_store_reader
from datalattice.client.weaverfolder import WEAVER_FOLDER
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair, SystemEntropy
from datalattice.engine import DATA_FILE, JOURNAL_FILE, GroupCommit, copy_tables, open_engine
from datalattice.errors import UsageError
from datalattice.lattice import KeyedLattice, Lattice, replicable, root_lattice
from datalattice.store import PLACE_FILE, STORE_FILE, CellStore, Store, children_first
from datalattice.weaver import STORE_TABLES, Stores, store_id_text

LACKING: Final = (
    "it has data that this node lacks, so it was left unchanged; recover from it, or back up to "
    "another folder"
)

_BATCH_CELLS: Final = 512  # cells stored at a time

CHECK_LEVEL: Final = 2
"""Level of `fsck` that reads every byte: it checks links, hashes and signatures."""

HOLD_S: Final = 24 * 60 * 60
"""Longest lease on the copied root, in seconds; it is released when the copy is complete."""


def back_up(folder: Folder, target: Path, *, with_keys: bool, progress: Progress) -> dict[str, Any]:
    """Bring the copy of a folder at `target` up to date; return its figures.

    Shapes: `target`, `root` in hex or None, `files` with their paths in the folder, and those of
            `weaver_figures`.
    Raises: UsageError: `target` is this folder, or has data that this folder lacks. StoreError.
    """
    copy = Folder(target)
    if target.exists() and target.samefile(folder.path):
        raise UsageError(f"{target} is the folder itself; name another one")
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    document: dict[str, Any] = {"target": str(target), "root": None}
    # The weaver stores first: a refusal comes before anything is replaced.
    document |= _back_up_weaver(folder, copy)
    if (folder.store_path / STORE_FILE).is_file():
        document["root"] = _back_up_cells(folder, copy, progress)
    files = [folder.settings_path, folder.names_path]
    if with_keys:
        files += [folder.identity_path, *folder.named_key_paths()]
    names = [file.relative_to(folder.path) for file in files if file.exists()]
    for name in names:
        _copy_file(folder.path / name, target / name)
    document["files"] = [str(name) for name in names]
    return document


def _back_up_cells(folder: Folder, copy: Folder, progress: Progress) -> str | None:
    """Copy the newest root; return its hash in hex."""
    with open_store_reader(folder) as source:
        top = source.root_hash()
        if top is None:
            return None
        # The lease keeps garbage collection from removing cells that are not copied yet.
        with source.lease(top, HOLD_S), CellStore.open(copy.store_path) as store:
            value = source.load(top)
            if not has_all_of(value, store.root(), root_lattice()):
                raise UsageError(f"{copy.store_path}: {LACKING}")
            copy_value(value, source, store, progress)
    # The record of the original's location makes the copy, and copies of it, count as restored.
    location = folder.store_path / PLACE_FILE
    if location.exists():
        _copy_file(location, copy.store_path / PLACE_FILE)
    return top.hex()


def _copy_file(source: Path, target: Path) -> None:
    """Copy a small file durably; a crash leaves the old content or the new."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = target.with_name(target.name + ".part")
    shutil.copy2(source, fresh)  # copies the mode too: a key stays readable by its user only
    with fresh.open("rb+") as file:
        os.fsync(file.fileno())
    fresh.replace(target)


# --- weaver stores --------------------------------------------------------------------------------


def weaver_figures(folder: Folder, *, check: bool = False) -> dict[str, Any]:
    """Return the figures of a folder's weaver stores; with `check`, their faults too.

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
    with _stores_in(path, KeyPair.generate() if keys is None else keys.identity) as stores:
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
def _stores_in(path: Path, key: KeyPair) -> Iterator[Stores]:
    """Yield the stores in a folder, for reading. key: of the node that wrote them."""
    with closing(open_engine(path, STORE_TABLES, read_only=True)) as engine:
        yield Stores(GroupCommit(engine), key, SystemClock(), SystemEntropy())


def _back_up_weaver(folder: Folder, copy: Folder) -> dict[str, Any]:
    """Replace the weaver stores of a copy by the present ones; return the copy's figures."""
    source, target = folder.path / WEAVER_FOLDER, copy.path / WEAVER_FOLDER
    if not (source / DATA_FILE).exists():
        if (target / DATA_FILE).exists():
            raise UsageError(f"{target}: {LACKING}")
        return weaver_figures(copy)
    key = KeyPair.generate()  # nothing is signed
    with closing(open_engine(source, STORE_TABLES, read_only=True)) as engine:
        if (target / DATA_FILE).exists():
            here = Stores(GroupCommit(engine), key, SystemClock(), SystemEntropy())
            with _stores_in(target, key) as there:
                # A copy is replaced as a whole, so nothing that only it has may be lost.
                if not all(_has_intentions_of(here, there, id) for id in there.ids()):
                    raise UsageError(f"{target}: {LACKING}")
        copy_tables(engine, target)
    return weaver_figures(copy)


def _has_intentions_of(stores: Stores, other: Stores, id: bytes) -> bool:
    """Return whether `stores` has every intention that `other` has in the store `id`."""
    if not stores.has(id):
        return False
    with stores.view(id) as view, other.view(id) as before:
        # An author's intentions form a chain, so the newest one comes with all earlier ones.
        return all(view.get(tip) is not None for tip in before.tips().values())


# --- values ---------------------------------------------------------------------------------------


def has_all_of(value: Value, other: Value, lattice: Lattice) -> bool:
    """Return whether merging `other` into `value` would change nothing but `:local`.

    Cost: that of a merge, proportional to the difference.
    """
    if isinstance(lattice, KeyedLattice):
        value, other = replicable(value), replicable(other)
    return same(lattice.merge(value, other), value)


def copy_value(
    value: Value, source: Store, target: Store, progress: Progress | None = None
) -> None:
    """Make `value`, whose cells are in `source` or in memory, the root of `target`.

    Raises: MissingData, Corruption: a cell is missing or damaged. StoreError: the write failed.
    Cost:   reads the cells that `target` lacks.
    """
    if target.root_hash() == value_hash(value):
        return  # equal hashes are equal values
    made = {hash: encoding for hash, encoding, _ in novelty(value, source)}
    top = encode(value)
    batch: dict[bytes, bytes] = {}
    done = 0

    def encodings_of(hashes: list[bytes]) -> list[bytes | None]:
        found = source.get_encodings(hashes)
        return [made.get(hash, cell) for hash, cell in zip(hashes, found, strict=True)]

    # Children first: a cell in the target has all its descendants there, so the walk stops at it.
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
