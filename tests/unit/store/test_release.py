"""A store that gives its lock back reads on, and takes the lock again behind what others wrote."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from datalattice.cells import Value, Vector, missing, same, value_hash
from datalattice.errors import (
    Corruption,
    MissingData,
    ReadOnly,
    StoreFailed,
    StoreLocked,
    UsageError,
)
from datalattice.store import CellStore
from datalattice.store.kept import KEEP_NOTHING
from datalattice.testing.disk import SimDisk

LONG = "a text that stands in a cell of its own " * 8

Make = Callable[[], CellStore]


@pytest.fixture(params=["disk", "simulated"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    disk = SimDisk(1)

    def new() -> CellStore:
        if request.param == "disk":
            return CellStore.open(tmp_path / "store", segment_bytes=8_192)
        return CellStore.open("store", disk=disk, segment_bytes=8_192)

    return new


def grown(store: CellStore, *texts: str) -> Vector:
    root = store.root() if store.root_hash() is not None else Vector.of([])
    assert isinstance(root, Vector)
    for text in texts:
        root = root.append(text.ljust(300, "."))
    return root


def add(store: CellStore, *texts: str) -> None:
    store.commit(grown(store, *texts))


def test_a_store_that_released_is_a_reader_and_its_values_still_load(make: Make) -> None:
    with make() as store, make_reader(store) as reader:
        add(store, *map(str, range(50)))
        value = store.root()
        assert isinstance(value, Vector)
        store.release()
        assert store.read_only
        assert value[49] == "49".ljust(300, "."), "what was read before loads its cells"
        with make() as other:
            add(other, "of another one")
            assert same(store.root(), other.root()), "and it sees what others commit"
        assert same(reader.root(), store.root())
        for call in (lambda: store.commit(1), lambda: store.put(1), store.accept_loss):
            with pytest.raises(ReadOnly, match="has released its lock"):
                call()
        store.sync()
        store.release()


def make_reader(store: CellStore) -> CellStore:
    return CellStore.open(store.path, read_only=True, disk=store._folder.disk)


def test_a_reader_has_no_lock_to_take(make: Make) -> None:
    with make() as store, make_reader(store) as reader:
        for call in (reader.acquire, reader.release):
            with pytest.raises(ReadOnly):
                call()


def test_it_goes_on_behind_its_own_last_pack_without_a_sync(make: Make) -> None:
    with make() as store:
        add(store, "one")
        steps = getattr(store._folder.disk, "steps", 0)
        store.release()
        assert store.acquire() is False
        assert getattr(store._folder.disk, "steps", 0) == steps, "nothing was written or synced"
        add(store, "two")
        assert store.acquire() is False, "it has the lock"
    with make() as after:
        assert same(after.root(), Vector.of([text.ljust(300, ".") for text in ("one", "two")]))
        assert after.damage == ()


def test_two_take_turns(make: Make) -> None:
    first = make()
    first.release()
    second = make()
    with pytest.raises(StoreLocked):
        first.acquire()
    second.release()
    for number in range(60):
        for store in (first, second):
            assert store.acquire() is False
            add(store, f"{number}")
            store.release()
    wanted = [f"{number // 2}".ljust(300, ".") for number in range(120)]
    assert list(first.root()) == list(second.root()) == wanted  # type: ignore[call-overload]
    entries = [moment.root_hash for moment in first.history.entries()]
    assert len(entries) == 120 == len(set(entries)), "each of them wrote its roots down"
    first.close()
    second.close()
    with make() as after:
        assert list(after.root()) == wanted  # type: ignore[call-overload]
        assert missing(after.root()) == []
        assert after.check().is_clean
        assert len(after.history.entries()) == 120


def test_a_turn_behind_anothers_packs_syncs_nothing(make: Make) -> None:
    first = make()
    add(first, "first")
    first.release()
    second = make()
    add(second, "second")
    second.release()
    first.acquire()
    first.release()
    if isinstance(disk := first._folder.disk, SimDisk):
        second.acquire()
        add(second, "third")
        second.release()
        steps = disk.steps
        first.acquire()
        assert disk.steps == steps
    first.close()
    second.close()


def test_what_was_staged_is_durable_when_the_lock_is_given_back(make: Make) -> None:
    with make() as store:
        staged = Vector.of([LONG, LONG + "!"])
        store.put(staged)
        store.release()
        with make() as other:
            assert other.has(value_hash(staged))
            assert not other.announced(value_hash(staged))
        store.acquire()
        store.commit(staged)
        assert store.announced(value_hash(staged))


def test_a_write_of_another_thread_is_refused_or_kept(make: Make) -> None:
    with make() as store:
        kept: list[Value] = []

        def write() -> None:
            try:
                for number in range(1_000):
                    value = Vector.of([LONG + str(number)])
                    store.commit(value)
                    kept.append(value)
            except ReadOnly:
                return

        thread = threading.Thread(target=write)
        thread.start()
        while not kept:
            pass
        store.release()
        thread.join()
        assert same(store.root(), kept[-1])


def test_the_text_of_the_lock_names_who_has_it(tmp_path: Path) -> None:
    store = CellStore.open(tmp_path / "s")
    with pytest.raises(StoreLocked, match=f"process {os.getpid()}, started"):
        CellStore.open(tmp_path / "s")
    store.release()
    other = CellStore.open(tmp_path / "s")
    with pytest.raises(StoreLocked, match=r"waited 0\.01 s in vain"):
        store.acquire(0.01)
    other.close()
    store.acquire(0.01)
    store.close()


def test_a_collection_of_another_writer_is_noticed(make: Make) -> None:
    store = make()
    for number in range(40):
        store.commit(Vector.of([LONG + str(number)] * 3))
    old = store.root()
    store.commit(Vector.of([LONG]))
    store.release()
    other = make()
    other.history._retention = KEEP_NOTHING
    assert other.collect(grace_ms=0).dropped
    other.close()
    assert store.acquire() is True, "what was here may be gone"
    store.commit(Vector.of(["new"]))
    assert isinstance(old, Vector)
    assert store.missing([value_hash(old)]) == [value_hash(old)]
    with pytest.raises(MissingData):
        store.commit(old)  # it leans on cells that the other one removed
    store.close()
    with make() as after:
        assert after.check().is_clean


def test_a_restored_folder_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = CellStore.open(path)
    add(store, "one")
    store.release()
    CellStore.open(path).close()
    assert store.acquire() is False, "somebody had it open, and wrote nothing"
    store.release()
    shutil.copytree(path, tmp_path / "backup")
    store.acquire()
    add(store, "two")
    store.release()
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "backup", path)
    assert store.acquire() is True
    assert len(grown(store)) == 1, "it is as old as the copy"
    add(store, "three")
    store.close()
    with CellStore.open(path) as after:
        assert [str(text).rstrip(".") for text in grown(after)] == ["one", "three"]


def test_a_log_that_was_cut_meanwhile_is_told(make: Make) -> None:
    store = make()
    add(store, "one", "two")
    store.sync()
    store.release()
    disk = store._folder.disk
    path = f"{store.path}/segments/00000001.seg"
    if isinstance(disk, SimDisk):
        disk.cut(path, 200)
    else:
        os.truncate(path, 200)
    with pytest.raises(Corruption, match="acknowledged"):
        store.acquire()
    with pytest.raises(ReadOnly):
        store.commit(1)
    store.close()
    with pytest.raises(Corruption, match="acknowledged"):
        make()


def test_a_folder_that_went_is_not_made_again(tmp_path: Path) -> None:
    store = CellStore.open(tmp_path / "store")
    add(store, "one")
    store.release()
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(StoreFailed):
        store.acquire()
    (tmp_path / "store").mkdir()
    with pytest.raises(UsageError, match="no store here"):
        store.acquire()
    store.close()


def test_a_failed_write_is_overcome_by_taking_the_lock_again() -> None:
    disk = SimDisk(3)
    store = CellStore.open("store", disk=disk)
    add(store, "one")
    disk.fail_at = disk.steps + 2  # its sync
    with pytest.raises(StoreFailed):
        add(store, "two")
    with pytest.raises(StoreFailed):
        store.release()
    assert store.read_only
    other = CellStore.open("store", disk=disk)
    other.close()
    assert store.acquire() is True
    add(store, "three")
    store.close()
    disk.restart(power_failure=True)
    with CellStore.open("store", disk=disk) as after:
        assert same(after.root(), store_root(after))
        assert missing(after.root()) == []


def store_root(store: CellStore) -> Value:
    return store.load(store.root_hash() or b"")


def test_a_pack_that_nobody_acknowledged_is_secured_by_who_takes_the_lock() -> None:
    disk = SimDisk(4)
    first = CellStore.open("store", disk=disk)
    add(first, "one")
    first.release()
    second = CellStore.open("store", disk=disk)
    disk.fail_at = disk.steps + 2  # it is written, and its sync fails: the disk never has it
    with pytest.raises(StoreFailed):
        add(second, "two")
    assert len(grown(first)) == 2, "a reader beside it sees it all the same"
    second._opened.lock.release()  # type: ignore[union-attr]
    first.acquire()
    add(first, "three")
    disk.restart(power_failure=True)
    with CellStore.open("store", disk=disk) as after:
        assert len(grown(after)) == 3
        assert missing(after.root()) == []
        assert after.damage == ()


def test_a_forked_child_writes_nothing_through_it(tmp_path: Path) -> None:
    store = CellStore.open(tmp_path / "s")
    add(store, "one")
    child = os.fork()
    if not child:
        code = 1
        try:
            store.commit(1)
        except UsageError:
            store.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    add(store, "two")
    store.release()
    store.acquire()
    store.close()
    with CellStore.open(tmp_path / "s") as after:
        assert len(grown(after)) == 2
