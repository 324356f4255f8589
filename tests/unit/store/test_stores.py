"""Every store keeps the protocol; open_store says clearly what it cannot open."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from datalattice.cursors import open_store
from datalattice.engine import MEMORY_URL
from datalattice.errors import UsageError
from datalattice.store import CellStore, MemoryStore, Store
from datalattice.testing.disk import SimDisk
from datalattice.testing.store_kit import check_store


@pytest.fixture(params=["memory", "disk", "small", "simulated"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    numbers = count()

    def new() -> Store:
        path = tmp_path / str(next(numbers))
        if request.param == "memory":
            return open_store(MEMORY_URL)
        if request.param == "disk":
            return open_store(path)
        if request.param == "small":  # everything in the second segment, nothing in memory
            return CellStore.open(path, segment_bytes=4_096, recent_entries=5, cache_bytes=1_000)
        return CellStore.open(str(path), disk=SimDisk(1), segment_bytes=8_192)

    return new


def test_every_store_keeps_the_protocol(make: Callable[[], Store]) -> None:
    check_store(make)


@pytest.mark.parametrize(("where", "read_only"), [("redis://x", False), (MEMORY_URL, True)])
def test_other_places_are_refused(where: str, read_only: bool) -> None:
    with pytest.raises(UsageError):
        open_store(where, read_only=read_only)


def test_a_store_in_memory_is_a_context_manager() -> None:
    with MemoryStore() as store:
        store.commit(1)
        assert store.root() == 1


def test_a_store_is_of_its_own_kind_whatever_was_asked_before(tmp_path: Path) -> None:
    # Compiled classes below an ABC answered for each other.
    with MemoryStore() as memory, CellStore.open(tmp_path / "s") as disk:
        assert not isinstance(memory, CellStore)
        assert isinstance(memory, Store)
        assert not isinstance(disk, MemoryStore)
        assert isinstance(disk, CellStore)
        assert isinstance(disk, Store)
        assert not isinstance(memory, CellStore)
