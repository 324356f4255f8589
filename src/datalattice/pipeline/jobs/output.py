"""The output of a merge: a node, a new store, or a new archive.

A node takes the result like data from a peer: it checks and merges it. The node's root was the
first input, so this merge would read every change only to find that the result contains it.
Therefore, if the store has no other writer, a large database that has not changed since planning is
replaced by the merged one directly; only the rest is merged.

Source: docs/spark-jobs.md "Merge".
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from datalattice.actions import ImportedRoot, ImportRoot, StartTask
from datalattice.cells import Index, Signed, Value, same, value_hash
from datalattice.client import Folder, finish, folder_of, node_or_store, open_store_reader
from datalattice.client.replicas import import_into, taking
from datalattice.crypto import KeyRing
from datalattice.errors import UsageError
from datalattice.lattice import get_in
from datalattice.pipeline.jobs.partials import Seal, UnitMerger, stage, with_databases
from datalattice.store import STORE_FILE, CellStore, OnCells, announce_cells, export_cells
from datalattice.sync import Absorbed, Offer


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The merged root, with what an output needs to take it."""

    root: Value
    merger: UnitMerger
    keys: KeyRing
    """The keys that sign; for a target node, its own."""
    base: CellStore | None = None
    """The target node's store; None for other outputs, and for a node without a root."""
    origin: Value = None
    """The root of `base` that was merged."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where the result goes: a node, a store or an archive."""

    path: Path
    folder: Folder | None
    is_archive: bool

    @classmethod
    def of(cls, into: str | None, store: str | None, archive: str | None) -> Output:
        """Return the output that is named.

        Raises: UsageError: none or several are named, or it exists already.
        """
        given = [one for one in (into, store, archive) if one is not None]
        if len(given) != 1 or not given[0]:
            raise UsageError(
                "name one output for the result: into (the folder of a node), store (a new folder) "
                "or archive (a new file)"
            )
        path = Path(given[0]).expanduser().absolute()
        if into is not None:
            return cls(path, folder_of(path), False)
        # A result never overwrites data; only a node merges it into its own.
        if path.exists():
            raise UsageError(f"{path} exists; name a new path for the result")
        if not path.parent.is_dir():
            raise UsageError(f"{path.parent} is not a folder")
        return cls(path, None, archive is not None)

    @property
    def staging(self) -> Path:
        """The default staging folder."""
        if self.folder is not None:
            return self.path / "staging"
        return self.path.with_name(self.path.name + ".staging")

    def has_root(self) -> bool:
        """Return whether this is a node with a root, which is the first input then."""
        # A new folder of a node has no store yet.
        if self.folder is None or not (self.folder.store_path / STORE_FILE).is_file():
            return False
        with open_store_reader(self.folder) as store:
            return store.root_hash() is not None

    def write(self, result: MergeResult, staging: str, on_progress: OnCells) -> tuple[str, int]:
        """Write the result; return the hash of the root there, and the number of new cells."""
        root = result.root
        if self.folder is not None:
            made = str(Path(staging) / "result")
            with CellStore.open(made) as store:
                # The node checks and merges it like data from a peer.
                stage(root, store, result.base, on_progress)  # without the cells that the node has
                _commit(store, root)
            return _imported(self.folder, made, result, on_progress)
        unfinished = self.path.with_name(self.path.name + ".part")
        if self.is_archive:
            # An archive is exported from a store, which has each cell once.
            with CellStore.open(Path(staging) / "result") as store:
                count = stage(root, store, None, on_progress)
                hash = _commit(store, root)
                _write_archive(store, hash, unfinished)
        else:
            # A killed merge may have left one; the inputs still have all its data.
            shutil.rmtree(unfinished, ignore_errors=True)
            with CellStore.open(unfinished) as store:
                count = stage(root, store, None, on_progress)
                announce_cells(store, [value_hash(root)])
                hash = _commit(store, root)
        unfinished.rename(self.path)
        return hash.hex(), count


def _imported(
    folder: Folder, made: str, result: MergeResult, on_progress: OnCells
) -> tuple[str, int]:
    """Import the result into a node; return its root afterwards, and the number of new cells."""
    found = node_or_store(folder)
    with found:
        if isinstance(found, CellStore):
            # No node runs, so this process holds the store and may replace databases directly.
            gate = partial(_take, found, folder, result)
            done = import_into(found, made, merge=True, taking=gate, progress=on_progress)
        else:
            wanted = StartTask(import_root=ImportRoot(path=made, merge=True))
            answer = finish(found, wanted, lambda done, _=None: on_progress(done))
            assert isinstance(answer, ImportedRoot)
            done = answer
        return "" if done.root is None else done.root.hex(), done.cells


def _take(store: CellStore, folder: Folder, result: MergeResult, offer: Offer) -> Absorbed:
    """Merge a result whose cells are staged in the node's store."""
    if store.root_hash() is not None:
        own = store.root()
        made = adopted(own, replace(result, root=store.load(value_hash(result.root))))
        if made is not own:
            store.commit(made)
    return taking(folder, store)(offer)


def adopted(own: Value, result: MergeResult) -> Value:
    """Return a node's root with the databases that were merged by ranges replaced.

    A database is replaced only if it still equals its input.
    """
    for slot, names in result.merger.split.items():
        cell = get_in(result.root, slot)
        was, now, made = (
            result.merger.databases(one, slot)
            for one in (get_in(result.origin, slot), get_in(own, slot), cell)
        )
        # If intake would reject one of the three, the ordinary merge handles it.
        if was is None or now is None or made is None:
            continue
        taken: dict[Value, Index] = {}
        for name in names:
            before, after = was.get(name), made.get(name)
            if not isinstance(before, Index) or not isinstance(after, Index):
                continue
            # A database that was written since planning is left to the ordinary merge.
            if same(before, now.get(name)):
                taken[name] = after
        if taken and isinstance(cell, Signed):
            own = with_databases(own, slot, taken, [Seal.of(cell)], result.keys)
    return own


def _commit(store: CellStore, root: Value) -> bytes:
    """Commit a staged value as the root; cells that only the base has are not looked up."""
    hash = value_hash(root)
    store.commit(store.load(hash))
    return hash


def _write_archive(store: CellStore, hash: bytes, path: Path) -> None:
    with path.open("wb") as file:
        export_cells(store, hash, file.write)
        # Durable before the rename below makes the archive visible.
        file.flush()
        os.fsync(file.fileno())
