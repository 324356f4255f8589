"""A full or failing disk: nothing is acknowledged that is not there, and writing goes on later."""

from __future__ import annotations

import errno
import random
import threading
import time

import pytest

from datalattice.cells import (
    STAGED_BYTES,
    Blob,
    Value,
    Vector,
    blob_from,
    missing,
    novelty,
    same,
    value_hash,
)
from datalattice.crypto import SeededEntropy
from datalattice.errors import ReadOnly, StoreFailed, StoreFull
from datalattice.store import CellStore
from datalattice.store.log.segments import SEGMENT_BYTES
from datalattice.testing.disk import SimDisk
from datalattice.testing.polling import LIMIT_S

LONG = "a text that is too long to stand inside its parent " * 4


class FailingDisk(SimDisk):
    """A disk that refuses everything while it is told to."""

    def __init__(self, seed: int, code: int = errno.ENOSPC) -> None:
        super().__init__(seed)
        self.fail_errno = code
        self.is_failing = False

    def step(self) -> bool:
        """Count an operation; return whether it is refused."""
        return super().step() or self.is_failing


def value(number: int) -> Vector:
    return Vector.of([f"{LONG} {number} {i}" for i in range(12)])


def opened(disk: SimDisk, segment_bytes: int = SEGMENT_BYTES) -> CellStore:
    return CellStore.open("store", disk=disk, entropy=SeededEntropy(1), segment_bytes=segment_bytes)


@pytest.mark.parametrize(
    ("code", "error"), [(errno.ENOSPC, StoreFull), (errno.EIO, StoreFailed)], ids=["full", "io"]
)
def test_writing_goes_on_when_the_disk_lets_it(code: int, error: type[Exception]) -> None:
    disk = FailingDisk(1, code)
    store = opened(disk)
    store.commit(value(0))
    disk.is_failing = True
    for _ in range(3):
        with pytest.raises((StoreFull, StoreFailed)):
            store.commit(value(1))
        assert store.has_failed
        with pytest.raises(error):
            store.resume()
        assert same(store.root(), value(0)), "what was acknowledged is there"
    disk.is_failing = False
    with pytest.raises(StoreFailed, match="open the store again"):
        store.commit(value(1))
    store.resume()
    store.resume()
    assert not store.has_failed
    for number in range(1, 6):
        store.commit(value(number))
        assert same(store.root(), value(number))
    assert store.check().is_clean
    disk.restart(power_failure=True)
    with opened(disk) as again:
        assert same(again.root(), value(5))
        assert missing(again.root()) == []
        assert again.check().is_clean
        assert again.damage == ()


@pytest.mark.parametrize("segment_bytes", [4_096, 1 << 20])
def test_each_operation_that_fails_is_survived(segment_bytes: int) -> None:
    probe = SimDisk(0)
    store = opened(probe, segment_bytes=segment_bytes)
    first = probe.steps
    for number in range(4):
        store.put(value(100 + number))
        store.commit(value(number))
    last = probe.steps
    for at in range(first + 1, last + 1):
        for power_failure in (False, True):
            disk = SimDisk(at)
            store = opened(disk, segment_bytes=segment_bytes)
            disk.fail_at = at
            for number in range(4):
                done = False
                while not done:
                    try:
                        store.put(value(100 + number))
                        store.commit(value(number))
                        done = True
                    except (StoreFull, StoreFailed):
                        before = store.root_hash()
                        store.resume()
                        assert store.root_hash() == before
                assert all(store.has(hash) for hash, _, _ in novelty(value(100 + number)))
            assert store.check().is_clean
            disk.restart(power_failure=power_failure)
            with opened(disk, segment_bytes=segment_bytes) as again:
                assert same(again.root(), value(3)), at
                assert missing(again.root()) == []
                assert again.check().is_clean, at
                for number in range(4):
                    assert missing(again.load(value_hash(value(100 + number)))) == []


def test_staged_cells_that_a_failed_commit_took_along_are_still_staged() -> None:
    disk = FailingDisk(3)
    store = opened(disk)
    inner = value(7)
    store.put(inner)
    disk.is_failing = True
    with pytest.raises(StoreFull):
        store.commit(Vector.of([inner, LONG]))
    disk.is_failing = False
    store.resume()
    assert all(store.has(hash) and not store.announced(hash) for hash, _, _ in novelty(inner))
    store.commit(Vector.of([inner, LONG]))
    assert missing(store.root()) == []
    assert all(store.announced(hash) for hash, _, _ in novelty(value(7)))
    assert store.check().is_clean


def test_a_commit_that_waits_while_another_thread_resumes_is_not_acknowledged() -> None:
    disk = FailingDisk(4)
    store = opened(disk)
    store.commit(value(0))
    acknowledged: list[int] = []
    stop = threading.Event()

    def write(first: int) -> None:
        number = first
        while not stop.is_set():
            number += 10
            try:
                done = store.commit(value(number))
            except (StoreFull, StoreFailed):
                continue
            assert all(store.announced(hash) for hash, _, _ in novelty(value(number)))
            assert done.root_hash == value_hash(value(number))
            acknowledged.append(number)

    threads = [threading.Thread(target=write, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        disk.is_failing = True
        while not store.has_failed:
            time.sleep(0)
        disk.is_failing = False
        store.resume()
    stop.set()
    for thread in threads:
        thread.join()
    assert store.check().is_clean
    disk.restart(power_failure=False)
    with opened(disk) as again:
        assert all(again.has(value_hash(value(number))) for number in acknowledged)
        assert again.check().is_clean


def test_who_has_nothing_to_resume() -> None:
    disk = SimDisk(5)
    store = opened(disk)
    store.commit(value(0))
    store.resume()
    store.close()
    with CellStore.open("store", disk=disk, read_only=True) as reader:
        assert not reader.has_failed
        with pytest.raises(ReadOnly):
            reader.resume()


def test_a_reader_forgets_a_commit_that_was_taken_back() -> None:
    disk = FailingDisk(6, errno.EIO)
    store = opened(disk)
    store.commit(value(0))
    with CellStore.open("store", disk=disk, read_only=True) as reader:
        disk.fail_at = disk.steps + 2  # the sync after the write
        with pytest.raises(StoreFailed):
            store.commit(value(1))
        reader._look()
        assert reader.root_hash() == value_hash(value(1)), "it lies there, so it may be seen"
        store.resume()
        assert same(reader.root(), value(0))
        for number in range(2, 5):
            store.commit(value(number))
            assert same(reader.root(), value(number))
            assert missing(reader.root()) == []
        assert reader.damage == ()
    store.close()


def test_a_commit_right_after_the_restart_has_all_its_cells() -> None:
    disk = FailingDisk(7)
    store = opened(disk)
    store.commit(value(0))
    store.put(value(1))
    disk.fail_at = disk.steps + 2  # the sync after the write
    with pytest.raises(StoreFull):
        store.commit(store.load(value_hash(value(1))))
    committer = store._committer
    assert committer is not None
    staged = store.load(value_hash(value(1)))

    def commit_as_soon_as_it_goes_on() -> None:
        while committer.has_failed:
            time.sleep(0)
        store.commit(staged)

    other = threading.Thread(target=commit_as_soon_as_it_goes_on)
    other.start()
    store.resume()
    other.join()
    disk.restart(power_failure=True)
    with opened(disk) as again:
        assert same(again.root(), value(1))
        assert missing(again.root()) == []


def test_an_interrupt_during_a_sync_leaves_a_store_that_goes_on() -> None:
    class Interrupted(SimDisk):
        """A disk during whose next operation somebody presses Ctrl-C."""

        is_pressed = False

        def step(self) -> bool:
            if self.is_pressed and self.steps % 2:
                self.is_pressed = False
                raise KeyboardInterrupt
            return super().step()

    disk = Interrupted(1)
    for turn in range(2):  # in the write, or in the sync behind it
        with opened(disk) as store:
            store.commit(value(0))
            store.commit(value(1))
            disk.steps += turn
            disk.is_pressed = True
            with pytest.raises(KeyboardInterrupt):
                store.commit(value(2))
            ended = threading.Thread(target=lambda store=store: store.commit(value(3)), daemon=True)
            ended.start()
            ended.join(LIMIT_S)
            assert not ended.is_alive(), "nobody waits for a sync that nobody makes"
            assert same(store.root(), value(3))
        with opened(disk) as store:
            assert same(store.root(), value(3))


def test_chunks_of_a_file_are_staged_again_after_a_failed_write() -> None:
    disk = FailingDisk(1)
    data = random.Random(2).randbytes(2 * STAGED_BYTES + 1_000)

    def made_of(blob: object, data: bytes) -> bool:
        return isinstance(blob, Blob) and bytes(blob) == data

    with opened(disk) as store:
        store.commit(value(0))
        parts: list[Value] = []

        def stage(part: Value) -> None:
            store.put(part)
            parts.append(part)

        content = blob_from([data], stage)
        disk.is_failing = True
        with pytest.raises(StoreFull):
            store.commit(content)
        disk.is_failing = False
        store.resume()
        for start, part in zip((0, STAGED_BYTES), parts, strict=True):
            again = store.load(value_hash(part))
            assert made_of(again, data[start : start + STAGED_BYTES]), "staged, in memory"
        store.commit(content)
        assert made_of(store.root(), data)
        assert store.check().is_clean
    with opened(disk) as store:
        assert made_of(store.root(), data)
