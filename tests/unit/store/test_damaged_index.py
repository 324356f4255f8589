"""The index is derived: whatever became of its file, a writer makes it again from the segments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from datalattice.cells import Vector, same
from datalattice.errors import StoreFailed
from datalattice.store import CellStore


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
    with pytest.raises(StoreFailed, match="`lattice store heal` for example"):
        CellStore.open(tmp_path / "store", read_only=True)
