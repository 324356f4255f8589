"""Stores for the time of one job."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from datalattice.cells import to_cell
from datalattice.pipeline.exactly_once.scratch_store import unsynced_store
from datalattice.store.log.segments import BEHIND_BYTES


@pytest.mark.parametrize("size", [1, BEHIND_BYTES, 3 * BEHIND_BYTES])
def test_an_unsynced_store_keeps_packs_of_any_size(tmp_path: Path, size: int) -> None:
    value = to_cell({"content": random.Random(size).randbytes(size)})
    with unsynced_store(tmp_path) as store:
        store.commit(value)
    with unsynced_store(tmp_path) as store:
        assert store.root() == value
