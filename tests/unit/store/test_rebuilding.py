"""Rebuilding a stored vector hands finished leaves back to its store."""

from __future__ import annotations

from pathlib import Path

import pytest

from datalattice.cells import Blob, Vector, missing, value_hash
from datalattice.store import CellStore

RECORDS = [Vector.of((None, b"%040d" % n, n, None)) for n in range(20_000)]


def stored(store: CellStore) -> Vector:
    store.commit(Vector.of(RECORDS))
    root = store.root()
    assert isinstance(root, Vector)
    return root


@pytest.mark.parametrize("number", [1, 15, 16, 17, 4_097, 19_983, 19_999])
def test_a_cut_is_the_vector_of_what_stays(tmp_path: Path, number: int) -> None:
    with CellStore.open(tmp_path) as store:
        cut = stored(store).drop(number)
        fresh = Vector.of(RECORDS[number:])
        assert value_hash(cut) == value_hash(fresh)
        assert len(store.commit(cut).novelty) <= 200  # the leaves went back before
        assert list(cut) == RECORDS[number:]
    with CellStore.open(tmp_path) as store:
        assert value_hash(store.root()) == value_hash(fresh)
        assert missing(store.root()) == []
        assert store.damage == ()


def test_what_was_appended_and_not_stored_moves_too(tmp_path: Path) -> None:
    with CellStore.open(tmp_path) as store:
        extra = ["x" * 500, Vector.of(["y" * 500]), 7]
        cut = stored(store).extend(extra).drop(5)
        assert value_hash(cut) == value_hash(Vector.of([*RECORDS[5:], *extra]))
        store.commit(cut)
        assert missing(cut) == []
        assert list(cut)[-3:] == extra


@pytest.mark.parametrize("size", [34, 137, 138, 1_024, 1_025, 4_097, 16_384])
def test_strings_of_every_kind_are_whole_after_a_cut(tmp_path: Path, size: int) -> None:
    texts = [b"%d" % n + b"x" * size for n in range(70)]
    with CellStore.open(tmp_path) as store:
        store.commit(Vector.of(texts[:48]))
        root = store.root()
        assert isinstance(root, Vector)
        store.commit(root.extend(texts[48:]).drop(3))
    with CellStore.open(tmp_path) as store:
        root = store.root()
        assert isinstance(root, Vector)
        assert missing(root) == []
        assert value_hash(root) == value_hash(Vector.of(texts[3:]))
        assert [bytes(text) for text in root if isinstance(text, (bytes, Blob))] == texts[3:]


def test_a_reader_s_vector_is_cut_in_memory(tmp_path: Path) -> None:
    with CellStore.open(tmp_path) as store:
        stored(store)
    with CellStore.open(tmp_path, read_only=True) as reader:
        root = reader.root()
        assert isinstance(root, Vector)
        assert value_hash(root.drop(3)) == value_hash(Vector.of(RECORDS[3:]))
