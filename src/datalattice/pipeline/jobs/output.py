"""Output: where the result of a merge goes - a node, a new store, or a new archive.

A node takes the result as what a peer sends: it checks and merges it. What it has was the first of
the inputs, so the merge would look at all that changed only to find that the result covers it. A
large database that is still as it was merged is replaced by what came of it, where nobody else
writes: then only the rest is merged.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from datalattice.cells import Index, Map, Signed, Value, same, value_hash
from datalattice.client import Folder, folder_of, node_or_store, open_reader
from datalattice.client.replicas import import_into, taking
from datalattice.crypto import KeyRing
from datalattice.errors import UsageError
from datalattice.lattice import get_in
from datalattice.pipeline.jobs.partials import Seal, UnitMerger, stage, with_databases
from datalattice.store import STORE_FILE, CellStore, announce_cells, export_cells
from datalattice.sync import Absorbed, Offer

Told = Callable[[int], None]
"""Told how many cells are written."""


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What a merge made."""

    root: Value
    merger: UnitMerger
    keys: KeyRing
    """Those that sign; of a node which takes it, its own."""
    base: CellStore | None = None
    """The store of the node which takes it; None: the node has nothing yet, or it is no node."""
    origin: Value = None
    """The root of that, as it was merged."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where the result goes: one of three."""

    path: Path
    folder: Folder | None
    is_archive: bool

    @classmethod
    def of(cls, into: str | None, store: str | None, archive: str | None) -> Output:
        """Return the one that is named.

        Raises: UsageError: there is none or more than one, or it is not new.
        """
        given = [one for one in (into, store, archive) if one is not None]
        if len(given) != 1 or not given[0]:
            raise UsageError(
                "name one place for the result: into (the folder of a node), store (a new folder) "
                "or archive (a new file)"
            )
        path = Path(given[0]).expanduser().absolute()
        if into is not None:
            return cls(path, folder_of(path), False)
        if path.exists():
            raise UsageError(f"{path} is there already; name a new place for the result")
        if not path.parent.is_dir():
            raise UsageError(f"{path.parent} is not a folder")
        return cls(path, None, archive is not None)

    @property
    def staging(self) -> Path:
        """Where tasks stage, unless it is said."""
        if self.folder is not None:
            return self.path / "staging"
        return self.path.with_name(self.path.name + ".staging")

    def has_root(self) -> bool:
        """Return whether this is a node that has data of its own: it is the first input then."""
        if self.folder is None or not (self.folder.store_path / STORE_FILE).is_file():
            return False
        with open_reader(self.folder) as store:
            return store.root_hash() is not None

    def write(self, result: MergeResult, staging: str, told: Told) -> tuple[str, int]:
        """Put the result where it belongs; return the hash of the root there, and new cells."""
        root = result.root
        if self.folder is not None:
            made = str(Path(staging) / "result")
            with CellStore.open(made) as store:
                stage(root, store, result.base, told)  # what the node has need not come along
                _commit(store, root)
            return _imported(self.folder, made, result, told)
        unfinished = self.path.with_name(self.path.name + ".part")
        if self.is_archive:
            with CellStore.open(Path(staging) / "result") as store:
                count = stage(root, store, None, told)
                hash = _commit(store, root)
                _write_archive(store, hash, unfinished)
        else:
            shutil.rmtree(unfinished, ignore_errors=True)
            with CellStore.open(unfinished) as store:
                count = stage(root, store, None, told)
                announce_cells(store, [value_hash(root)])
                hash = _commit(store, root)
        unfinished.rename(self.path)
        return hash.hex(), count


def _imported(folder: Folder, made: str, result: MergeResult, told: Told) -> tuple[str, int]:
    """Have a node take the result, as from a peer; return its root then, and new cells."""
    found = node_or_store(folder)
    with found:
        if isinstance(found, CellStore):
            gate = partial(_take, found, folder, result)
            done = import_into(found, made, merge=True, taking=gate, progress=told)
            return str(done["root"]), _number(done["cells"])
        answer = found.finish(
            "store.import", lambda done, _=None: told(done), path=made, merge=True, pin=""
        )
        assert isinstance(answer, Map)
        return str(answer.get("root")), _number(answer.get("cells"))


def _take(store: CellStore, folder: Folder, result: MergeResult, offer: Offer) -> Absorbed:
    """Have a node take in a result whose cells are staged in its store."""
    if store.root_hash() is not None:
        own = store.root()
        made = adopted(own, replace(result, root=store.load(value_hash(result.root))))
        if made is not own:
            store.commit(made)
    return taking(folder, store)(offer)


def adopted(own: Value, result: MergeResult) -> Value:
    """Return a node's root with the databases that were merged by ranges as they came out of it.

    Only a database that is still what it was as an input is taken from the result.
    """
    for slot, names in result.merger.split.items():
        cell = get_in(result.root, slot)
        was, now, made = (
            result.merger.databases(one, slot)
            for one in (get_in(result.origin, slot), get_in(own, slot), cell)
        )
        if was is None or now is None or made is None:
            continue
        taken: dict[Value, Index] = {}
        for name in names:
            before, after = was.get(name), made.get(name)
            if not isinstance(before, Index) or not isinstance(after, Index):
                continue
            if same(before, now.get(name)):
                taken[name] = after
        if taken and isinstance(cell, Signed):
            own = with_databases(own, slot, taken, [Seal.of(cell)], result.keys)
    return own


def _commit(store: CellStore, root: Value) -> bytes:
    """Make a staged value the root; what the base has of it is not looked for."""
    hash = value_hash(root)
    store.commit(store.load(hash))
    return hash


def _write_archive(store: CellStore, hash: bytes, path: Path) -> None:
    with path.open("wb") as file:
        export_cells(store, hash, file.write)
        file.flush()
        os.fsync(file.fileno())


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
