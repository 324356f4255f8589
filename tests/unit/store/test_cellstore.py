"""The cell store on real files: locks, wrong folders, shared syncs, readers of the same process."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from datalattice.cells import (
    EMPTY_MAP,
    EMPTY_VECTOR,
    STAGED_BYTES,
    Blob,
    CellRun,
    Index,
    Value,
    Vector,
    blob_from,
    missing,
    novelty,
    same,
)
from datalattice.crypto import sha3_256_many
from datalattice.errors import (
    ReadOnly,
    StoreClosed,
    StoreFailed,
    StoreFull,
    StoreLocked,
    UsageError,
)
from datalattice.limits import CELL_BYTES_MAX
from datalattice.store import (
    PRIVATE_KEY,
    CellStore,
    Disk,
    DiskFile,
    RealDisk,
    announce_cells,
    lockfile,
)
from datalattice.store.cellstore import PENDING_BYTES_MAX, UNSYNCED_PACKS_MAX
from datalattice.store.kept.history import KEEP_NOTHING
from datalattice.store.log.committer import CellBatch
from datalattice.testing.polling import LIMIT_S


def value(number: int, count: int = 10) -> Vector:
    return Vector.of([f"value {number} record {i} ".ljust(200, "z") for i in range(count)])


def test_what_was_committed_is_there_after_reopening(tmp_path: Path) -> None:
    with CellStore.open(tmp_path / "s") as store:
        for number in range(5):
            store.commit(value(number))
    with CellStore.open(tmp_path / "s") as store:
        assert same(store.root(), value(4))
        assert missing(store.root()) == []
        assert store.path == str(tmp_path / "s")
        assert not store.read_only


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_a_path_that_is_none(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for read_only in (False, True):
        with pytest.raises(UsageError, match="path of a folder, got"):
            CellStore.open(path, read_only=read_only)
    assert list(tmp_path.iterdir()) == []


def test_a_path_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "store", tmp_path / "file" / "far" / "store"):
        with pytest.raises(UsageError, match="its path goes through a file"):
            CellStore.open(path)


def test_a_value_of_two_stores_is_read_from_the_one_that_is_open(tmp_path: Path) -> None:
    with CellStore.open(tmp_path / "one") as one:
        one.commit(value(1, 100))
        with CellStore.open(tmp_path / "two") as two:
            two.commit(one.root())
        assert same(one.root(), value(1, 100))
        assert missing(one.root()) == []


def test_values_of_a_closed_store_say_what_to_do(tmp_path: Path) -> None:
    with CellStore.open(tmp_path / "one") as one:
        one.commit(value(1, 100))
        known = one.root()
    with CellStore.open(tmp_path / "two") as two:
        with pytest.raises(StoreClosed, match="use or commit them elsewhere before closing it"):
            two.commit(known)
        assert two.root_hash() is None
        with CellStore.open(tmp_path / "one", read_only=True) as one:
            two.commit(one.root())
        assert missing(two.root()) == []


def test_a_second_writer_is_told_who_holds_the_store(tmp_path: Path) -> None:
    store = CellStore.open(tmp_path)
    with pytest.raises(StoreLocked, match=f"process {os.getpid()}") as caught:
        CellStore.open(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    store.close()
    CellStore.open(tmp_path).close()


def test_a_lock_of_a_dead_process_is_no_lock(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from datalattice.store import CellStore
store = CellStore.open(sys.argv[1])
store.commit(7)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    with CellStore.open(tmp_path) as store:
        assert store.root() == 7


@pytest.mark.parametrize("kind", ["lock", "lock_contents"])
def test_a_lock_is_released_although_a_child_has_its_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    path.touch()
    take = getattr(RealDisk(), kind)
    lock = take(str(path))
    # As while another thread opens or closes the file: the child keeps its descriptor.
    lockfile._held.discard(lock._fd)
    child = os.fork()
    if not child:
        signal.pause()
    try:
        lock.release()
        take(str(path)).release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    program = """
import os, sys, time
from datalattice.store import CellStore
store = CellStore.open(sys.argv[1])
ready, go = os.pipe()
if os.fork() == 0:
    print("forked", flush=True)
    os.close(go)
    os.read(ready, 1)      # until the parent is gone and somebody closes the pipe
    os._exit(0)
sys.stdin.read()
os._exit(0)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "forked\n"
        with pytest.raises(StoreLocked, match=f"process {parent.pid}"):
            CellStore.open(tmp_path)
        parent.kill()
        parent.wait()
        CellStore.open(tmp_path).close()


@pytest.mark.parametrize("text", ["", "x", "12 -"])
def test_an_unreadable_lock_file_still_makes_a_clear_error(tmp_path: Path, text: str) -> None:
    store = CellStore.open(tmp_path)
    (tmp_path / "lock").write_text(text)
    with pytest.raises(StoreLocked, match="process"):
        CellStore.open(tmp_path)
    store.close()


def test_a_lock_is_taken_and_given_back_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CellStore.open(tmp_path).close()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "pwrite", full)
    lock = RealDisk().lock(str(tmp_path / "lock"))
    monkeypatch.undo()
    with pytest.raises(StoreLocked, match="process not known"):
        CellStore.open(tmp_path)
    lock.release()
    CellStore.open(tmp_path).close()
    monkeypatch.setattr(fcntl, "flock", full)  # as on a file system without locks
    gc.collect()  # what earlier tests left open is closed now
    files = len(list(Path("/dev/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(StoreFull):
            CellStore.open(tmp_path)
    assert len(list(Path("/dev/fd").iterdir())) <= files


def test_a_wrong_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for read_only in (False, True):
        with pytest.raises(UsageError, match=r"not a store .*notes\.txt"):
            CellStore.open(tmp_path, read_only=read_only)
    with pytest.raises(UsageError, match="not a folder"):
        CellStore.open(tmp_path / "notes.txt")
    with pytest.raises(UsageError, match="no store here"):
        CellStore.open(tmp_path / "none", read_only=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt"]


def test_an_empty_folder_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("")  # as a crash while making one leaves it
    (tmp_path / "segments").mkdir()
    (tmp_path / "STORE.new").write_text("half")
    CellStore.open(tmp_path).close()
    CellStore.open(tmp_path, read_only=True).close()


def test_a_reader_of_the_same_process_follows_the_writer(tmp_path: Path) -> None:
    CellStore.open(tmp_path).close()
    reader = CellStore.open(tmp_path, read_only=True)
    store = CellStore.open(tmp_path, recent_entries=30, segment_bytes=8_192)
    assert reader.root_hash() is None
    for number in range(30):
        done = store.commit(value(number))
        if number % 3 == 0:
            assert reader.root_hash() == done.root_hash
            assert missing(reader.root()) == []
    assert reader.load(done.root_hash), "a missed cell makes it look again"
    assert reader.refresh() or not reader.refresh()
    assert not store.refresh(), "a writer needs none"
    for call in (lambda: reader.commit(1), lambda: reader.put(1)):
        with pytest.raises(ReadOnly, match="reading only"):
            call()
    reader.sync()
    store.close()
    assert same(reader.root(), value(29))
    reader.close()
    with pytest.raises(StoreClosed):
        reader.refresh()


def test_a_copy_of_an_open_store_makes_its_index_again(tmp_path: Path) -> None:
    store = CellStore.open(tmp_path / "a", recent_entries=10)
    store.commit(value(1))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with pytest.raises(StoreFailed, match="copy"):
        CellStore.open(tmp_path / "b", read_only=True)
    with CellStore.open(tmp_path / "b") as copy:
        assert same(copy.root(), value(1))
        copy.commit(value(2))
    assert same(store.root(), value(1))
    store.close()


def test_a_folder_that_cannot_be_written_gives_a_store_error(tmp_path: Path) -> None:
    class FullDisk(RealDisk):
        def create_folder(self, path: str) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(StoreFull, match="no room"):
        CellStore.open(tmp_path / "s", disk=FullDisk())


def test_a_cell_that_is_too_long_is_refused_before_anything_is_written() -> None:
    CellBatch([bytes(32)], [bytes(CELL_BYTES_MAX)]).check()
    with pytest.raises(UsageError, match=str(CELL_BYTES_MAX)):
        CellBatch([bytes(32)], [bytes(CELL_BYTES_MAX + 1)]).check()


class SlowFile:
    """A file whose syncs are counted, and wait for `gate` once it is set up."""

    def __init__(self, inner: DiskFile, disk: CountingDisk) -> None:
        self._inner = inner
        self._disk = disk
        self.read, self.size = inner.read, inner.size
        self.truncate, self.close = inner.truncate, inner.close

    def write(self, offset: int, data: bytes) -> None:
        self._inner.write(offset, data)
        self._disk.writes.release()

    def begin_write(self, offset: int, parts: list[bytes]) -> None:
        self.write(offset, b"".join(parts))

    def sync(self) -> None:
        self._disk.syncs += 1
        self._disk.begun.set()
        assert self._disk.gate.wait(LIMIT_S)
        self._inner.sync()


class CountingDisk(RealDisk):
    def __init__(self) -> None:
        self.syncs = 0
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.writes = threading.Semaphore(0)

    def open(self, path: str, *, create: bool = False, write: bool = False) -> DiskFile:
        file = super().open(path, create=create, write=write)
        return SlowFile(file, self) if path.endswith(".seg") else file


def test_commits_that_wait_together_share_one_sync(tmp_path: Path) -> None:
    disk: Disk = CountingDisk()
    assert isinstance(disk, CountingDisk)
    store = CellStore.open(tmp_path, disk=disk)
    store.commit(value(0))
    disk.gate.clear()
    disk.begun.clear()
    before = disk.syncs
    first = threading.Thread(target=store.commit, args=(value(1),))
    first.start()
    assert disk.begun.wait(LIMIT_S)
    while disk.writes.acquire(blocking=False):
        pass
    others = [threading.Thread(target=store.commit, args=(value(n),)) for n in range(2, 10)]
    for thread in others:
        thread.start()
    for _ in others:
        assert disk.writes.acquire(timeout=LIMIT_S), "all write while the first one syncs"
    assert same(store.root(), value(0)), "nothing is shown before it is durable"
    assert not store.announced(value(1).hash)
    disk.gate.set()
    for thread in [first, *others]:
        thread.join()
    assert disk.syncs - before == 2, "one for the first, one for the eight others"
    assert store.root_hash() in {value(n).hash for n in range(2, 10)}
    store.close()


def test_a_put_beside_a_commit_does_not_stage_cells_that_this_announces(tmp_path: Path) -> None:
    disk: Disk = CountingDisk()
    assert isinstance(disk, CountingDisk)
    shared = [hash for hash, _, _ in novelty(value(1))]
    with CellStore.open(tmp_path, disk=disk) as store:
        store.commit(value(0))
        disk.gate.clear()
        disk.begun.clear()
        thread = threading.Thread(target=store.commit, args=(value(1),))
        thread.start()
        assert disk.begun.wait(LIMIT_S)
        store.put(Vector.of([value(1), "a" * 200]))
        disk.gate.set()
        thread.join()
        store.sync()
        assert all(map(store.announced, shared))


def test_large_commits_are_split_and_still_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datalattice.store.log.committer.PACK_BYTES_MAX", 5_000)
    with CellStore.open(tmp_path, segment_bytes=16_384) as store:
        done = store.commit(value(1, 300))
        assert done.sequence > 10
        assert all(store.announced(hash) for hash, _, _ in done.novelty)
    assert len(list((tmp_path / "segments").iterdir())) > 3
    (tmp_path / "index.state").unlink()
    with CellStore.open(tmp_path) as store:
        assert same(store.root(), value(1, 300))
        assert missing(store.root()) == []
        assert all(store.announced(hash) for hash, _, _ in done.novelty)


def private_and_open(private: Value, shared: Value) -> Index:
    return Index.of([(PRIVATE_KEY, private), ("data", shared)])


def test_a_long_private_part_is_split_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datalattice.store.log.committer.PACK_BYTES_MAX", 5_000)
    root = private_and_open(value(1, 300), value(2, 300))
    own, shared = ([hash for hash, _, _ in novelty(value(n, 300))] for n in (1, 2))
    with CellStore.open(tmp_path, segment_bytes=16_384) as store:
        done = store.commit(root)
        assert done.sequence > 20
    (tmp_path / "index.state").unlink()
    with CellStore.open(tmp_path) as store:
        assert same(store.root(), root)
        assert missing(store.root()) == []
        assert not any(store.announced(hash) for hash in own)
        assert all(store.announced(hash) for hash in shared)


def test_what_is_private_stays_so_through_a_collection_and_a_new_index(tmp_path: Path) -> None:
    own, shared = ([hash for hash, _, _ in novelty(value(n, 30))] for n in (1, 2))
    with CellStore.open(tmp_path, segment_bytes=16_384, retention=KEEP_NOTHING) as store:
        store.commit(value(0, 100))
        store.commit(private_and_open(value(1, 30), value(2, 30)))
        assert store.collect(grace_ms=0).dropped > 0
    shutil.rmtree(tmp_path / "index")
    with CellStore.open(tmp_path) as store:
        assert missing(store.root()) == []
        assert not any(store.announced(hash) for hash in own)
        assert all(store.announced(hash) for hash in shared)


def test_a_private_cell_that_is_announced_already_is_not_written_again(tmp_path: Path) -> None:
    (top, *_) = [hash for hash, _, _ in reversed(novelty(value(1)))]
    with CellStore.open(tmp_path) as store:
        store.commit(value(1))
    with CellStore.open(tmp_path) as store:  # it is not among the recent ones any more
        store.commit(private_and_open(value(1), 0))
        assert store.announced(top)


def test_announcing_a_root_ahead_leaves_its_private_part_out(tmp_path: Path) -> None:
    root = private_and_open(value(1, 30), value(2, 30))
    own, shared = ([hash for hash, _, _ in novelty(value(n, 30))] for n in (1, 2))
    with CellStore.open(tmp_path) as store:
        store.put(root)
        announce_cells(store, [root.hash])
        assert not any(store.announced(hash) for hash in [*own, root.hash])
        assert all(store.announced(hash) for hash in shared)


def test_staged_cells_beyond_the_bound_are_written_at_once(tmp_path: Path) -> None:
    with CellStore.open(tmp_path, pending_bytes=5_000) as store:
        store.put(value(1, 5))
        assert len(store._pending) == 6
        store.put(value(2, 50))
        assert store._pending_bytes <= 5_000
        assert value(1, 5).hash not in store._pending
        assert store.has(value(1, 5).hash)
        assert not store.announced(value(1, 5).hash)


def test_a_long_value_is_staged_in_many_packs(tmp_path: Path) -> None:
    """A pack that is longer than a segment may be would put cells where no place can name them."""
    with CellStore.open(tmp_path, pending_bytes=5_000, segment_bytes=16_384) as store:
        before = store._committer.written.sequence if store._committer else 0
        assert store.put(value(1, 500)) == len(novelty(value(1, 500)))
        assert store._committer is not None
        assert store._committer.written.sequence - before > 10
        assert missing(store.load(value(1, 500).hash)) == []
        store.commit(value(1, 500))
    with CellStore.open(tmp_path, read_only=True) as store:
        assert missing(store.root()) == []
        assert store.damage == ()


def test_staged_cells_that_exceed_the_bound_fit_one_pack(tmp_path: Path) -> None:
    content = Blob.of(random.Random(1).randbytes(2 * PENDING_BYTES_MAX + 100_000))
    with CellStore.open(tmp_path) as store:
        assert store._committer is not None
        before = store._committer.written.sequence
        store.put(content)
        assert store._committer.written.sequence - before == 2


def test_chunks_that_are_here_already_are_not_stored_again(tmp_path: Path) -> None:
    dice = random.Random(4)
    chunks = [dice.randbytes(4_096) for _ in range(255)]
    first = b"".join([*chunks, chunks[0]])
    other = b"".join([dice.randbytes(4_096), *chunks])  # the same chunks in other nodes
    with CellStore.open(tmp_path) as store:
        staged = []
        blob_from([first], lambda part: staged.append(store.put(part)))
        assert staged == [255 + 17]
        assert sum(CellBatch([], list(store._pending.values())).lengths) == store._pending_bytes
        for _ in range(2):
            blob_from([first], lambda part: staged.append(store.put(part)))
            assert staged.pop() == 0
            store.sync()
        made = blob_from([other], store.put)
        assert len(store._pending) == 1 + 17
        store.commit(made)
        assert store.check().is_clean


def test_a_part_of_a_file_is_readable_before_and_after_it_is_written(tmp_path: Path) -> None:
    data = random.Random(3).randbytes(9 * STAGED_BYTES)
    with CellStore.open(tmp_path) as store:
        made = blob_from([data], store.put)
        assert isinstance(made, Blob)
        assert store._writing
        assert store._pending
        hashes = [*store._writing, *store._pending]
        before = store.get_encodings(hashes)
        assert None not in before
        assert sha3_256_many([one for one in before if one is not None]) == hashes
        assert list(store.lengths(hashes).values()) == [len(one or b"") for one in before]
        store.commit(made)
        assert not store._writing
        assert store.get_encodings(hashes) == before


def test_a_run_is_written_in_one_piece_unless_a_part_of_it_is_written_alone() -> None:
    hashes = [bytes([number]) * 32 for number in range(4)]
    run = CellRun(hashes[:3], b"aabbcc", 2)
    assert run.cells() == list(zip(hashes, (b"aa", b"bb", b"cc"), strict=False))
    batch = CellBatch(hashes, [run, run, run, b"d"])
    assert batch.lengths == [2, 2, 2, 1]
    assert batch.encodings() == [b"aabbcc", b"d"]
    for first, stop, pieces in ((1, 4, [b"bb", b"cc", b"d"]), (0, 2, [b"aa", b"bb"])):
        part = batch.part(first, stop)
        assert (part.hashes, part.encodings()) == (hashes[first:stop], pieces)


def test_staged_cells_are_synced_when_some_packs_wait_and_the_next_one_is_full(
    tmp_path: Path,
) -> None:
    disk = CountingDisk()
    with CellStore.open(tmp_path, disk=disk, pending_bytes=20_000) as store:
        assert store._committer is not None
        store.commit(value(0))
        before, syncs = store._committer.written.sequence, disk.syncs
        store.put(value(1, 500))
        packs = store._committer.written.sequence - before
        assert packs > UNSYNCED_PACKS_MAX
        early = (packs - 1) // UNSYNCED_PACKS_MAX
        assert disk.syncs - syncs == early
        waiting = sum(CellBatch([], list(store._writing.values())).lengths)
        last = packs - early * UNSYNCED_PACKS_MAX
        assert 15_000 < waiting / last <= 20_000 + CELL_BYTES_MAX, "kept until it is durable"
        store.sync()
        assert not store._writing
        assert disk.syncs - syncs == early + 1, "one for the last pack and what was left"
        assert missing(store.load(value(1, 500).hash)) == []


@pytest.mark.parametrize("pending_bytes", [-1, PENDING_BYTES_MAX + 1])
def test_a_bound_of_staged_cells_that_no_pack_can_take(tmp_path: Path, pending_bytes: int) -> None:
    with pytest.raises(UsageError, match=f"0 to {PENDING_BYTES_MAX}, got {pending_bytes}"):
        CellStore.open(tmp_path, pending_bytes=pending_bytes)


def test_encodings_are_staged_like_values(tmp_path: Path) -> None:
    whole = value(1, 50)
    cells = [(hash, encoding) for hash, encoding, _ in novelty(whole)]
    with CellStore.open(tmp_path) as store:
        assert store.put_encodings(cells) == len(cells)
        assert store.put_encodings(cells) == 0
        assert same(store.load(whole.hash), whole)
        assert not store.announced(whole.hash)
        store.commit(store.load(whole.hash))
        assert store.announced(whole.hash)
    with CellStore.open(tmp_path, read_only=True) as store:
        assert missing(store.root()) == []


def test_a_root_that_many_share_does_not_keep_its_store_in_memory(tmp_path: Path) -> None:
    with CellStore.open(tmp_path / "s") as store:
        for value in (EMPTY_MAP, EMPTY_VECTOR, Index.of({}), Vector.of(["short"])):
            store.commit(value)
            assert store.root() == value
            assert value._loader is None
