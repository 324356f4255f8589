"""Importing: what may not come in does not, and `:local` stays where it is."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from datalattice.apps.queue import Topics
from datalattice.cells import Index, Keyword, Map, Signed, Value, Vector
from datalattice.client.replicas import import_into
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import LOCAL_KEY, MergeContext, root_lattice, set_local
from datalattice.store import CellStore, export_cells

KEYS, OTHER = KeyPair(bytes([1]) * 32), KeyPair(bytes([2]) * 32)
QUEUE = Keyword("queue")


def archive_of(tmp_path: Path, value: Value) -> str:
    out = io.BytesIO()
    with CellStore.open(tmp_path / "source") as store:
        export_cells(store, store.commit(value).root_hash, out.write)
    path = tmp_path / "archive"
    path.write_bytes(out.getvalue())
    return str(path)


def test_only_what_owners_signed_is_merged_and_the_rest_is_counted(tmp_path: Path) -> None:
    good = Signed.sign(KEYS, Map.of({}))
    forged = Signed(OTHER.public_key, bytes(64), Map.of({}))
    owners: list[tuple[Value, Value]] = [(KEYS.public_key, good), (OTHER.public_key, forged)]
    root = Index.of([(QUEUE, Map.of(owners))])
    with CellStore.open(tmp_path / "target") as store:
        done = import_into(store, archive_of(tmp_path, root), merge=True)
        assert done.dropped == 1
        merged = store.root()
        assert isinstance(merged, Index)
        queues = merged[QUEUE]
        assert isinstance(queues, Map)
        assert list(queues) == [KEYS.public_key]


def test_what_is_local_to_the_source_is_not_merged(tmp_path: Path) -> None:
    root = set_local(Index.of({}), KEYS, Map.of({"secret": "long " * 100}))
    with CellStore.open(tmp_path / "target") as store:
        done = import_into(store, archive_of(tmp_path, root), merge=True, pin="all")
        merged = store.root()
        assert isinstance(merged, Index)
        assert LOCAL_KEY not in merged
        pinned = store.load(store.resolve("all"))
        assert isinstance(pinned, Index)
        assert LOCAL_KEY in pinned, "a pin is the root as it is"
        assert not store.announced(done.imported)


def test_only_roots_are_merged_and_anything_is_pinned(tmp_path: Path) -> None:
    path = archive_of(tmp_path, Vector.of([1, 2]))
    with CellStore.open(tmp_path / "target") as store:
        with pytest.raises(UsageError, match="only a root, an Index, can be merged"):
            import_into(store, path, merge=True, pin="x")
        assert store.pins.all() == []
        assert store.root_hash() is None
        import_into(store, path, pin="x")
        assert store.load(store.resolve("x")) == Vector.of([1, 2])


def test_a_store_and_a_folder_are_sources_and_an_empty_one_is_not(tmp_path: Path) -> None:
    archive_of(tmp_path, Index.of({}))
    CellStore.open(tmp_path / "node" / "store").close()
    with CellStore.open(tmp_path / "target") as store:
        assert import_into(store, str(tmp_path / "source"), merge=True).root
        with pytest.raises(UsageError, match="nothing was ever committed there"):
            import_into(store, str(tmp_path / "node"), merge=True)
        with pytest.raises(UsageError, match="neither an archive nor the folder"):
            import_into(store, str(tmp_path), merge=True)


def test_an_import_counts_slots_that_forked_apart_from_what_is_not_allowed(tmp_path: Path) -> None:
    def log_of(*values: str) -> Value:
        root = RootLattice(root_lattice(), None, MergeContext(key_pair=KEYS))
        Topics.at(root, KEYS.public_key).partition("log", 0).offer_many(values)
        return root.get()

    with CellStore.open(tmp_path / "target") as store:
        store.commit(log_of("here"))
        done = import_into(store, archive_of(tmp_path, log_of("there", "longer")), merge=True)
        assert (done.forked, done.dropped) == (1, 0)
