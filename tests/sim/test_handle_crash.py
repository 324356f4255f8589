"""A crash at every I/O point of a handle's writes: what was acknowledged is there, nothing half."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.client import Node, begin_folder, openfolder, opening
from datalattice.client.folder import Folder
from datalattice.crypto import SeededEntropy
from datalattice.store import STORE_FILE, CellStore, WriteTurn
from datalattice.store.disk import LastUse
from datalattice.store.log import committer
from datalattice.testing.disk import SimDisk, SimulatedCrash

WRITES = 6


class SimStores:
    """Stands for the class `CellStore` where a folder's store is opened: on a simulated disk."""

    disk: SimDisk

    def open(self, path: Path, **given: Any) -> CellStore:
        # Tiny segments and a tiny index in memory make every kind of step happen often.
        return CellStore.open(
            path,
            disk=self.disk,
            entropy=SeededEntropy(1),
            segment_bytes=4_096,
            recent_entries=20,
            pending_bytes=500,
            **given,
        )


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimStores]:
    made = SimStores()
    monkeypatch.setattr(opening, "CellStore", made)
    monkeypatch.setattr(openfolder, "CellStore", made)
    # The lock is kept for good: a thread that gives it back would add steps at any moment.
    monkeypatch.setattr(openfolder, "WriteTurn", partial(WriteTurn, keep_s=1e6))
    monkeypatch.setattr(committer, "PACK_BYTES_MAX", 1_500)
    # A store that was in use at a crash closes its tables as garbage, on the dead disk, too.
    monkeypatch.setattr(LastUse, "__del__", partialmethod(_end_of_use, LastUse.__del__))
    yield made
    gc.collect()
    assert not openfolder._open


def _end_of_use(use: LastUse, end: Callable[[LastUse], None]) -> None:
    with contextlib.suppress(SimulatedCrash):
        end(use)


class Program:
    """A program that writes by handles, step by step; it notes how many writes were acknowledged.

    Write number N appends one record, sets one key, or does both in a batch.
    """

    def __init__(self, stores: SimStores, path: Path, durable: str) -> None:
        self._stores = stores
        self._path = path
        self._durable = durable
        self.begun = 0
        self.acknowledged = 0

    def run(self, writes: int = WRITES) -> None:
        node = self._open()
        # A process that ended closes nothing: on the dead disk each step of `close` fails, too.
        with contextlib.ExitStack() as stack:
            stack.callback(_leave, node)
            for number in range(self.acknowledged, self.acknowledged + writes):
                self.begun = number + 1
                self.write(node, number)
                if self._durable == "sync":
                    node.sync()
                self.acknowledged = number + 1

    @staticmethod
    def write(node: Node, number: int) -> None:
        log, shop = node.queue("log"), node.database("shop")
        value = f"value {number} ".ljust(300, "x")
        if number % 3 == 0:
            assert log.offer(value) == _records(number)
        elif number % 3 == 1:
            shop[f"key-{number}"] = value
        else:
            with node.batch():
                log.offer_many([value, value])
                shop[f"key-{number}"] = value

    def check(self) -> int:
        """Assert what the reopened folder holds; return how many writes that is."""
        node = self._open(read_only=True)
        try:
            log, shop = node.queue("log"), node.database("shop")
            found = len(shop), log.size()
            writes = self.begun if found == _sizes(self.begun) else self.acknowledged
            assert found == _sizes(writes), (
                f"{self.acknowledged} writes were acknowledged and {self.begun} begun, but there "
                f"are {found} keys and records"
            )
            assert [text.split()[1] for text in log] == [
                str(number) for number in range(writes) for _ in range((1, 0, 2)[number % 3])
            ]
            assert all(shop[key].startswith(f"value {key[4:]} ") for key in shop)
            return writes
        finally:
            _leave(node)

    def _open(self, *, read_only: bool = False) -> Node:
        # The store is simulated; a folder counts as one if this file is in it.
        mark = self._path / "store" / STORE_FILE
        if self._stores.disk.exists(str(mark)):
            mark.touch()
        else:
            mark.unlink(missing_ok=True)
        return datalattice.open(self._path, durable=self._durable, read_only=read_only)


def _records(writes: int) -> int:
    return sum((1, 0, 2)[number % 3] for number in range(writes))


def _sizes(writes: int) -> tuple[int, int]:
    return sum(number % 3 > 0 for number in range(writes)), _records(writes)


def _leave(node: Node) -> None:
    with contextlib.suppress(SimulatedCrash):
        node.close()


@pytest.mark.parametrize("durable", ["each", "sync"])
@pytest.mark.parametrize("power_failure", [False, True])
def test_a_crash_at_any_step_of_a_handles_writes_leaves_each_done_or_not(
    stores: SimStores, tmp_path: Path, durable: str, power_failure: bool
) -> None:
    begin_folder(Folder(tmp_path))
    (tmp_path / "store").mkdir()
    stores.disk = SimDisk(0)
    Program(stores, tmp_path, durable).run()
    steps = stores.disk.steps
    for step in range(1, steps + 1):
        stores.disk = disk = SimDisk(step)
        program = Program(stores, tmp_path, durable)
        disk.crash_at = step
        with contextlib.suppress(SimulatedCrash):
            program.run()
        disk.restart(power_failure=power_failure)
        program.acknowledged = program.begun = program.check()
        program.run(3)
        program.check()
    assert steps > 10 * WRITES, "each write syncs, and now and then a segment ends"
