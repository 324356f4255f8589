"""A reader knows without a look at the log that nothing was written, and never misses a commit."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from datalattice.cells import Vector, value_hash
from datalattice.store import CellStore, RealDisk, lockfile
from datalattice.store.lockfile import MARK_BYTES, is_lock_mark, lock_mark
from datalattice.store.log.locking import GenerationReader


class CountingDisk(RealDisk):
    """Counts the looks at the folder of the log."""

    looks = 0

    def names(self, folder: str) -> list[str]:
        self.looks += 1
        return super().names(folder)


def value(number: int) -> Vector:
    return Vector.of([number, "x" * 300])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CellStore]:
    with CellStore.open(tmp_path / "s") as store:
        store.commit(value(0))
        yield store


@pytest.fixture
def reader(store: CellStore) -> Iterator[CellStore]:
    with CellStore.open(store.path, read_only=True, disk=CountingDisk()) as reader:
        yield reader


def looks(reader: CellStore) -> int:
    disk = reader._folder.disk
    assert isinstance(disk, CountingDisk)
    return disk.looks


def test_a_reader_looks_once_for_each_commit(
    store: CellStore, reader: CellStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datalattice.store.log.locking.RECHECK_S", 1e9)
    for number in range(1, 100):
        store.commit(value(number))
        before = looks(reader)
        for _ in range(5):
            assert reader.root_hash() == value_hash(value(number)), "seen at once"
            assert not reader.has(bytes(32))
        assert looks(reader) == before + 1


def test_a_reader_sees_who_takes_the_lock_after_another(
    store: CellStore, reader: CellStore
) -> None:
    store.release()
    for number in range(1, 20):
        assert reader.root_hash() == store.root_hash()
        with CellStore.open(store.path) as other:
            other.commit(value(number))
        assert reader.root_hash() == store.root_hash() == value_hash(value(number))


@pytest.mark.parametrize("harm", ["cut", "foreign", "gone"])
def test_without_a_generation_a_reader_looks_each_time(store: CellStore, harm: str) -> None:
    lock = Path(store.path, "lock")
    if harm == "cut":
        os.truncate(lock, 0)
    elif harm == "foreign":
        lock.write_bytes(b"something else")
    else:
        lock.unlink()
    store._opened.lock._text = b""  # type: ignore[union-attr]  # nor does the writer raise it
    with CellStore.open(store.path, read_only=True, disk=CountingDisk()) as reader:
        for number in range(1, 5):
            store.commit(value(number))
            before = looks(reader)
            assert reader.root_hash() == value_hash(value(number))
            assert reader.root_hash() == value_hash(value(number))
            assert looks(reader) >= before + 2


def test_a_lock_file_that_is_cut_under_a_reader_ends_no_process(
    store: CellStore, reader: CellStore
) -> None:
    assert reader.root_hash() == value_hash(value(0))
    os.truncate(Path(store.path, "lock"), 0)
    for number in range(1, 5):
        store.commit(value(number))
        assert reader.root_hash() == value_hash(value(number))


def test_a_full_disk_makes_readers_look(
    store: CellStore, reader: CellStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reader.root_hash() == value_hash(value(0))
    real = os.pwrite

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if len(data) == 8:
            raise OSError(errno.ENOSPC, "full")
        return real(fd, data, offset)

    monkeypatch.setattr(lockfile.os, "pwrite", pwrite)  # type: ignore[attr-defined]
    for number in range(1, 4):
        store.commit(value(number))
        assert reader.root_hash() == value_hash(value(number))
    assert Path(store.path, "lock").stat().st_size == 0


def test_a_folder_that_is_replaced_is_noticed(
    store: CellStore, reader: CellStore, tmp_path: Path
) -> None:
    assert reader.root_hash() == value_hash(value(0))
    with CellStore.open(tmp_path / "other") as other:
        other.commit(value(1))
    store.close()
    shutil.rmtree(store.path)
    shutil.copytree(tmp_path / "other", store.path)
    with CellStore.open(store.path):  # which makes the index believable
        while reader.root_hash() != value_hash(value(1)):
            pass


def test_a_mark_has_a_fixed_length_and_an_earlier_holders_is_none() -> None:
    assert len(lock_mark(b"12 34 5".ljust(60) + b"\n", 7)) == MARK_BYTES
    assert is_lock_mark(lock_mark(b"12 34 5".ljust(60) + b"\n", 7))
    assert is_lock_mark(lock_mark(b"12 - 5".ljust(60) + b"\n", 1 << 63))
    earlier = b"12 34".ljust(40) + b"\n"
    assert not is_lock_mark(earlier)
    assert not is_lock_mark(earlier + lock_mark(b"12 34 5".ljust(60) + b"\n", 7)[41:])
    assert not is_lock_mark(b"")


def test_a_generation_reader_without_a_file_knows_nothing(tmp_path: Path) -> None:
    generation = GenerationReader(RealDisk(), str(tmp_path / "none"))
    assert generation.read() == b""
    generation.remember(b"")
    assert not generation.is_unchanged()
