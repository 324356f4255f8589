"""What a durable write costs: one sync, one walk from the root, and no read of a stored cell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from datalattice.apps.kv import Database
from datalattice.apps.queue import Queue, Topics
from datalattice.cells import Value
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, root_lattice
from datalattice.store import CellStore
from datalattice.store.disk import DiskFile, FileView, RealDisk

OWNER = KeyPair(bytes(32))
LONG = "v" * 200


class CountedFile:
    """A segment whose writes and syncs are counted."""

    def __init__(self, file: DiskFile, disk: CountingDisk) -> None:
        self._disk = disk
        self.read, self.size = file.read, file.size
        self.truncate, self.close = file.truncate, file.close
        self._file = file

    def write(self, offset: int, data: bytes) -> None:
        self._disk.writes += 1
        self._file.write(offset, data)

    def begin_write(self, offset: int, parts: list[bytes]) -> None:
        self.write(offset, b"".join(parts))

    def sync(self) -> None:
        self._disk.syncs += 1
        self._file.sync()


class CountedView:
    """A segment whose reads are counted."""

    def __init__(self, view: FileView, disk: CountingDisk) -> None:
        self._view, self._disk = view, disk
        self.is_removed = view.is_removed

    def read(self, count: int, offset: int, /) -> bytes:
        self._disk.reads += 1
        return self._view.read(count, offset)


class CountingDisk(RealDisk):
    reads = writes = syncs = 0

    def open(self, path: str, *, create: bool = False, write: bool = False) -> DiskFile:
        file = super().open(path, create=create, write=write)
        return CountedFile(file, self) if path.endswith(".seg") else file

    def view(self, path: str) -> FileView:
        return CountedView(super().view(path), self)

    def counts(self) -> tuple[int, int, int]:
        found = self.reads, self.writes, self.syncs
        self.reads = self.writes = self.syncs = 0
        return found


class CountedRoot(RootLattice):
    """A root that counts the walks which begin at it; those of writes begin at its reference."""

    walks = 0

    def _read(self) -> Value:
        self.walks += 1
        return super()._read()


def root_of(store: CellStore) -> CountedRoot:
    lattice = root_lattice()

    def keep(value: Value) -> Value:
        store.commit(value)
        return value

    context = MergeContext(key_pair=OWNER)
    return CountedRoot(lattice, store.root() or lattice.zero(), context, keep)


def of_database(root: RootLattice) -> tuple[Callable[[int], None], Callable[[int], object]]:
    database = Database.at(root, OWNER.public_key, "shop")

    def write(number: int) -> None:
        database[f"key {number * 7919 % 100_000}"] = f"{LONG} {number}"
        database.sync()

    def read(number: int) -> object:
        return database[f"key {number * 7919 % 100_000}"]

    return write, read


def of_queue(root: RootLattice) -> tuple[Callable[[int], None], Callable[[int], object]]:
    queue: Queue[object] = Topics.at(root, OWNER.public_key).partition("events", 0)

    def write(number: int) -> None:
        queue.offer(f"{LONG} {number}")
        queue.sync()

    return write, lambda _number: queue.peek_last()


@pytest.mark.parametrize("handle", [of_database, of_queue])
def test_a_durable_write_costs_one_sync_one_walk_and_no_read(
    handle: Callable[[RootLattice], tuple[Callable[[int], None], Callable[[int], object]]],
    tmp_path: Path,
) -> None:
    disk = CountingDisk()
    with CellStore.open(tmp_path / "s", disk=disk) as store:
        write, _ = handle(root_of(store))
        for number in range(40):
            write(number)
    with CellStore.open(tmp_path / "s", disk=disk) as store:
        root = root_of(store)
        write, read = handle(root)
        write(40)  # reads the way to the value
        disk.counts()
        for number in range(41, 50):
            root.walks = 0
            write(number)
            # A database has many ways: the cells of one that was not gone yet are read once.
            reads, writes, syncs = disk.counts()
            assert (writes, syncs) == (1, 1)
            assert root.walks == 1, "that of the sync, which passes the root on"
            assert reads <= 3
            assert read(number) == f"{LONG} {number}"
            write(number)
            assert disk.counts() == (0, 1, 1), "all that a commit wrote is still decoded"
