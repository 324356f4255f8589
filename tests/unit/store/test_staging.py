"""Parts that are staged in another thread: in order, all of them, and no failure is lost."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path

import pytest

from datalattice.cells import (
    STAGED_BYTES,
    Blob,
    BlobBuilder,
    Index,
    Value,
    Vector,
    blob_from,
    index_between,
    make_blob,
    missing,
    novelty,
    value_hash,
)
from datalattice.errors import StoreFailed
from datalattice.store import CellStore, MemoryStore, WriteBuffer
from datalattice.store.log.segments import SegmentReader

MIB = 1 << 20


def test_parts_are_staged_in_order_and_before_the_end() -> None:
    staged: list[tuple[Value, int]] = []
    with WriteBuffer(lambda value: staged.append((value, threading.get_ident()))) as staging:
        for number in range(30):
            staging(number)
    assert [value for value, _ in staged] == list(range(30))
    assert threading.get_ident() not in {thread for _, thread in staged}


def test_nothing_to_stage_takes_no_thread() -> None:
    before = threading.active_count()
    staged: list[Value] = []
    with WriteBuffer(staged.append):
        assert threading.active_count() == before


def fail(value: Value) -> None:
    raise StoreFailed(f"no room for {value}")


def stage(count: int, error: type[Exception] | None = None) -> None:
    with WriteBuffer(fail) as staging:
        for number in range(count):
            staging(number)
        if error is not None:
            raise error


@pytest.mark.parametrize("count", [1, 1_000])
def test_a_failure_is_raised_soon_or_at_the_end(count: int) -> None:
    with pytest.raises(StoreFailed, match="no room for 0"):
        stage(count)


def test_a_failure_of_the_maker_goes_first() -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        stage(1, ZeroDivisionError)
    assert threading.active_count() == before


def test_a_file_through_a_store_is_the_file(tmp_path: Path) -> None:
    data = [bytes([number]) * MIB for number in range(20)]
    with CellStore.open(tmp_path) as store:
        with WriteBuffer(store.put) as staging:
            made = blob_from([*data, b"end"], staging)
        store.commit(made)
    with CellStore.open(tmp_path, read_only=True) as store:
        root = store.root()
        assert isinstance(root, Blob)
        assert bytes(root) == b"".join(data) + b"end"
        assert root == blob_from([b"".join(data), b"end"])


def parts_of(count: int, seed: int = 1) -> list[bytes]:
    dice = random.Random(seed)
    return [dice.randbytes(STAGED_BYTES) for _ in range(count)]


def hashes_of(parts: list[bytes]) -> list[bytes]:
    return [hash for hash, _, _ in novelty(blob_from(parts))]


def locations_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the locations of cells that are read from now on."""
    read, read_many = list[int](), SegmentReader.read_many

    def count(
        self: SegmentReader, locations: list[int], hashes: list[bytes] | None = None
    ) -> list[bytes | None]:
        read.extend(location for location in locations if location >= 0)
        return read_many(self, locations, hashes)

    monkeypatch.setattr(SegmentReader, "read_many", count)
    return read


def test_a_large_file_is_announced_without_a_look_at_its_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = parts_of(18)
    hashes = hashes_of(parts)
    with CellStore.open(tmp_path) as store:
        made = blob_from(parts, store.put)
        assert not any(map(store.announced, hashes))
        read = locations_read(monkeypatch)
        store.commit(Vector.of([made]))
        monkeypatch.undo()
        assert len(read) < 20
        assert all(map(store.announced, hashes))
        reader = CellStore.open(tmp_path, read_only=True)
        assert all(map(reader.announced, hashes))
        assert store.stats().staged == 0
    reader.close()
    with CellStore.open(tmp_path) as store:  # the index has it
        assert all(map(store.announced, hashes))
        assert store.check().is_clean
    shutil.rmtree(tmp_path / "index")
    with CellStore.open(tmp_path) as store:  # and the log
        assert all(map(store.announced, hashes))


def tree(count: int, seed: int = 1) -> tuple[bytes, list[tuple[bytes, bytes]], Index]:
    """Return a tree with so many long values: its hash, its cells, children first, and itself."""
    dice = random.Random(seed)
    made = Index.of([(dice.randbytes(32), dice.randbytes(200)) for _ in range(count)])
    return value_hash(made), [(hash, cell) for hash, cell, _ in novelty(made)], made


def test_a_tree_that_was_put_is_announced_without_a_look_at_its_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, cells, _ = tree(5_000)
    with CellStore.open(tmp_path, pending_bytes=400_000) as store:
        assert store.put_tree(top, cells) == len(cells)
        read = locations_read(monkeypatch)
        store.commit(store.load(top))
        monkeypatch.undo()
        assert not read
        assert all(store.announced(hash) for hash, _ in cells)
        assert store.stats().staged == 0
        assert store.check().is_clean
    shutil.rmtree(tmp_path / "index")
    with CellStore.open(tmp_path) as store:
        assert all(store.announced(hash) for hash, _ in cells)


def test_of_a_tree_that_a_commit_does_not_reach_only_what_it_reaches_is_announced(
    tmp_path: Path,
) -> None:
    top, cells, made = tree(5_000)
    with CellStore.open(tmp_path) as store:
        store.put_tree(top, cells)
        stored = store.load(top)
        assert isinstance(stored, Index)
        # Its second half is not in the root, and neither is its top.
        store.commit(index_between(stored, b"\x80", None))
        kept = {hash for hash, _, _ in novelty(index_between(made, b"\x80", None))}
        announced = {hash for hash, _ in cells if store.announced(hash)}
        assert announced == kept & {hash for hash, _ in cells}
        assert len(announced) > 2_000
        assert store.stats().staged >= len(cells) - len(announced)
        store.commit(stored)  # a later commit reaches the rest
        assert all(store.announced(hash) for hash, _ in cells)
        assert store.check().is_clean


def test_a_tree_with_cells_that_were_staged_before_is_followed(tmp_path: Path) -> None:
    top, cells, _ = tree(5_000)
    with CellStore.open(tmp_path) as store:
        store.put_encodings(cells[:100])
        store.put_tree(top, cells)
        store.commit(store.load(top))
        assert all(store.announced(hash) for hash, _ in cells)
        assert store.stats().staged == 0
        assert store.check().is_clean


def test_a_tree_in_memory_is_announced_by_the_commit_that_reaches_it() -> None:
    top, cells, made = tree(500)
    half = {hash for hash, _, _ in novelty(index_between(made, b"\x80", None))}
    hashes = {hash for hash, _ in cells}
    store = MemoryStore()
    store.put_tree(top, cells)
    assert not any(map(store.announced, hashes))
    stored = store.load(top)
    assert isinstance(stored, Index)
    store.commit(index_between(stored, b"\x80", None))
    assert {hash for hash in hashes if store.announced(hash)} == half & hashes
    store.put_tree(top, cells)
    store.commit(stored)
    assert all(map(store.announced, hashes))
    other = MemoryStore()
    other.put_tree(top, cells)
    other.commit(other.load(top))
    assert all(map(other.announced, hashes))


def test_commits_in_the_middle_of_a_long_write_do_not_make_its_own_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datalattice.store.log.stagedspans.SPAN_CELLS_MIN", 200)
    parts = parts_of(18)
    with CellStore.open(tmp_path) as store:
        builder = BlobBuilder(stage=store.put)
        for number, part in enumerate(parts):
            builder.write(part)
            value = Vector.of([bytes([number, other]) * 300 for other in range(8)])
            store.put(value)
            store.commit(Vector.of([value]))
        made = builder.finish()
        read = locations_read(monkeypatch)
        store.commit(Vector.of([made]))
        assert len(read) < 100
        assert all(map(store.announced, hashes_of(parts)))
        assert store.check().is_clean


def test_files_that_are_written_at_a_time_are_announced_each_by_its_commit(
    tmp_path: Path,
) -> None:
    own, other = parts_of(20, 1), parts_of(20, 2)
    other[3] = own[3]
    other[5] = own[5][: STAGED_BYTES // 2] + other[5][STAGED_BYTES // 2 :]
    with CellStore.open(tmp_path) as store:
        mine, theirs = BlobBuilder(stage=store.put), BlobBuilder(stage=store.put)
        for part, another in zip(own, other, strict=True):
            mine.write(part)
            theirs.write(another)
        one = store.commit(Vector.of([mine.finish()]))
        assert all(map(store.announced, hashes_of(own)))
        only_theirs = set(hashes_of(other)) - set(hashes_of(own))
        assert not any(map(store.announced, only_theirs))
        store.commit(Vector.of([store.load(one.root_hash), theirs.finish()]))
        assert all(map(store.announced, only_theirs))
        assert store.check().is_clean


def test_a_part_of_two_files_of_a_commit_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datalattice.store.log.stagedspans.SPAN_CELLS_MIN", 1_000)
    shared, *parts = parts_of(11)
    waits = Vector.of([bytes([number]) * 1_000 for number in range(99)])
    with CellStore.open(tmp_path) as store:
        store.put(waits)  # fewer cells than a part has
        one = blob_from([shared, *parts[:5]], store.put)
        two = blob_from([*parts[5:], shared], store.put)
        store.put(one, two)
        store.commit(Vector.of([one, two]))
        own = [hash for hash, _, _ in novelty(blob_from([shared])) + novelty(Vector.of([*waits]))]
        assert store.stats().staged >= 99
        store.sync()
        store.commit(Vector.of([waits]))
        assert all(map(store.announced, own))
    shutil.rmtree(tmp_path / "index")
    with CellStore.open(tmp_path) as store:
        assert all(map(store.announced, own))


def test_a_cell_that_is_published_in_the_middle_of_a_put_is_not_stored_again(
    tmp_path: Path,
) -> None:
    dice = random.Random(1)
    first, other = dice.randbytes(12 * 4_096), dice.randbytes(20 * 4_096)
    with CellStore.open(tmp_path, pending_bytes=20_000) as store:
        assert store.put(make_blob(first)) == 13
        assert store.put(make_blob(first + other)) == 20 + 3
        store.sync()
        assert store.stats().staged == store.stats().cells == 36


def test_a_collection_in_the_middle_of_a_long_write_moves_what_is_kept_of_it(
    tmp_path: Path,
) -> None:
    parts = parts_of(18)
    with CellStore.open(tmp_path, segment_bytes=1 << 22) as store:
        builder = BlobBuilder(stage=store.put)
        for number, part in enumerate(parts):
            builder.write(part)
            store.put(*[Vector.of([data]) for data in parts_of(4, 100 + number)])  # garbage between
        made = builder.finish()
        store.put(made)
        with store.lease(value_hash(made), 60):
            done = store.collect(grace_ms=0)
        assert done.dropped
        assert done.copied
        builder.write(b"more")
        store.commit(builder.finish())
        assert missing(store.root()) == []
        assert all(map(store.announced, hashes_of([*parts, b"more"])))
        assert store.check().is_clean
