"""The index is derived: whatever became of its file, a writer makes it again from the segments."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from datalattice.cells import Vector, same, value_hash
from datalattice.errors import Corruption, StoreError, StoreFailed
from datalattice.store import CellStore, heal_store, open_damaged

PAGE_BYTES = 4_096
PAGE_KIND = 10
"""Where the flags stand in the header of a page of LMDB."""
LEAF = 2


def value() -> Vector:
    return Vector.of(f"element {n}" for n in range(2_000))


def flipped(data: bytes) -> bytes:
    return bytes(byte ^ 0x55 for byte in data)


@pytest.mark.parametrize(
    "damage",
    [
        flipped,
        lambda data: b"\xff" * 64 + data[64:],
        lambda data: data[:8_192] + flipped(data[8_192:]),
        lambda data: data[:16] + flipped(data[16:24]) + data[24:],
        lambda _: b"",
        lambda _: b"not a database at all",
    ],
    ids=["all", "header", "pages", "version", "empty", "text"],
)
def test_a_damaged_index_is_made_again(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    with CellStore.open(tmp_path / "store") as store:
        store.commit(value())
    file = tmp_path / "store" / "index" / "data.mdb"
    data = damage(file.read_bytes())
    with file.open("r+b") as handle:  # the same file, else it would count as a copy
        handle.write(data)
        handle.truncate(len(data))
    with CellStore.open(tmp_path / "store") as store:
        assert same(store.root(), value())
        assert store.damage == ()
    with CellStore.open(tmp_path / "store", read_only=True) as store:
        assert same(store.root(), value())


def test_a_reader_of_a_damaged_index_says_who_must_act(tmp_path: Path) -> None:
    with CellStore.open(tmp_path / "store") as store:
        store.commit(value())
    file = tmp_path / "store" / "index" / "data.mdb"
    with file.open("r+b") as handle:
        handle.write(b"\xff" * 64)
    with pytest.raises(StoreFailed, match="`lattice disk heal` for example"):
        CellStore.open(tmp_path / "store", read_only=True)


OPEN = """
import sys
from datalattice.errors import StoreFailed
from datalattice.store import CellStore

path = sys.argv[1]
try:
    CellStore.open(path, read_only=True).close()
    print("read", end=" ")
except StoreFailed as error:
    print("writer wanted" if "`lattice disk heal` for example" in str(error) else error, end=" ")
with CellStore.open(path) as store:
    assert store.damage == () and store.loss is None
    assert store.check().is_clean
    print(store.root_hash().hex())
"""


def small_value() -> Vector:
    return Vector.of(f"element {n} ".ljust(150, "x") for n in range(500))


@pytest.mark.parametrize("was_closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("part", [0.2, 0.5])
def test_an_index_that_is_cut_is_made_again_and_ends_no_process(
    tmp_path: Path, was_closed: bool, part: float
) -> None:
    path = tmp_path / "store"
    with CellStore.open(path) as store:
        store.commit(small_value())
    if not was_closed:
        state = path / "index.state"
        state_of_writer = CellStore.open(path)
        text = state.read_text()
        state_of_writer.close()
        state.write_text(text)
    file = path / "index" / "data.mdb"
    os.truncate(file, int(file.stat().st_size * part))
    # In a process of its own: what is mapped and not there ends it with SIGBUS.
    ran = subprocess.run(
        [sys.executable, "-c", OPEN, str(path)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"writer wanted {value_hash(small_value()).hex()}\n"


def damage_pages(path: Path, *, of_the_root: bool) -> None:
    """Flip a bit in each leaf of the index, but for the one that has the root unless it is meant.

    What was a leaf is none any more, which is noticed by whoever reads it.
    """
    with CellStore.open(path, read_only=True) as store:
        hashes = [hash for hash, _ in store._index.entries()]
        root = store.root_hash()
    assert root is not None
    file = path / "index" / "data.mdb"
    data = bytearray(file.read_bytes())
    pages = {data.index(hash) // PAGE_BYTES for hash in hashes}
    if not of_the_root:
        pages.remove(data.index(root) // PAGE_BYTES)
    assert pages
    for page in pages:
        data[page * PAGE_BYTES + PAGE_KIND] ^= LEAF
    with file.open("r+b") as handle:
        handle.write(data)


def large_store(path: Path) -> Vector:
    """Make a store whose index has several pages."""
    large = Vector.of(f"element {n}" for n in range(20_000))
    with CellStore.open(path) as store:
        store.commit(large)
    return large


def test_an_index_that_is_found_damaged_when_a_store_is_opened_is_made_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store"
    large = large_store(path)
    damage_pages(path, of_the_root=True)
    with pytest.raises(StoreError, match="lattice disk heal"):
        CellStore.open(path, read_only=True).check()
    with CellStore.open(path) as store:
        assert store.check().is_clean
        assert same(store.root(), large)


def test_a_page_that_is_found_damaged_later_is_named_and_the_next_writer_makes_the_index_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store"
    large = large_store(path)
    damage_pages(path, of_the_root=False)
    for read_only in (True, False):
        with CellStore.open(path, read_only=read_only) as store:
            with pytest.raises(Corruption, match=r"index: .*`lattice disk heal`"):
                store.check()
            with pytest.raises(Corruption, match=r"index: .*`lattice disk heal`"):
                deque(store._index.entries())
    with CellStore.open(path) as store:
        assert store.check().is_clean
        assert same(store.root(), large)


def test_healing_begins_with_an_index_that_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    large_store(path)
    damage_pages(path, of_the_root=False)
    with open_damaged(path) as store:
        healing = heal_store(store)
        assert healing.report.is_clean
        assert (healing.rescued, healing.fetched, healing.forgotten) == (0, 0, 0)
