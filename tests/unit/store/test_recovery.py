"""What opening a store makes of damaged, shortened, foreign and half-made files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from datalattice.cells import Value, Vector, missing, novelty, same, value_hash
from datalattice.crypto import SeededEntropy
from datalattice.errors import (
    Corruption,
    MissingData,
    StoreFailed,
    StoreLocked,
    StoreVersion,
    UsageError,
)
from datalattice.store import CellStore
from datalattice.store.files import StoreFolder
from datalattice.store.log import packing, recovery, segments
from datalattice.testing.disk import SimDisk

FOLDER = "store"
FIRST = f"{FOLDER}/segments/00000001.seg"


def open_store(disk: SimDisk, **options: Any) -> CellStore:
    return CellStore.open(
        FOLDER, disk=disk, entropy=SeededEntropy(7), segment_bytes=65_536, **options
    )


def value(number: int) -> Vector:
    return Vector.of([f"value {number} record {i} ".ljust(200, "z") for i in range(10)])


def filled(count: int = 5, *, close: bool = True) -> tuple[SimDisk, list[Vector], list[int]]:
    """Return a disk with a store of `count` commits, their values, and where each pack begins."""
    disk = SimDisk(1)
    store = open_store(disk)
    values = [value(number) for number in range(count)]
    for number in range(count):
        store.commit(value(number))
    if close:
        store.close()
    else:
        disk.restart(power_failure=False)
    offsets = pack_offsets(disk)
    assert len(offsets) == count
    return disk, values, offsets


def pack_offsets(disk: SimDisk) -> list[int]:
    data = disk.open(FIRST).read(0, 1 << 20)
    offsets, at = [], data.find(packing.PACK_MAGIC)
    while at >= 0:
        offsets.append(at)
        at = data.find(packing.PACK_MAGIC, at + 1)
    return offsets


def forget_end(disk: SimDisk) -> None:
    """Take the record of the log's end away: the last packs may never have been acknowledged."""
    disk.drop(f"{FOLDER}/end")


def forget_index(disk: SimDisk) -> None:
    """Make the next opening read all segments."""
    disk.drop(f"{FOLDER}/index.state")


def is_whole(store: CellStore, wanted: Value) -> bool:
    root = store.load(value_hash(wanted))
    return same(root, wanted) and missing(root) == []


# --- damage in the middle ---------------------------------------------------------------------


def test_a_flipped_bit_is_found_by_reading_reported_once_and_then_healed() -> None:
    disk, _, offsets = filled()
    disk.flip(FIRST, offsets[1] + 900)
    store = open_store(disk)
    assert not store.damage, "the index says it was all good, so nothing was read"
    hashes = [hash for hash, _, _ in novelty(value(1))]
    found, texts = [], []
    for hash in hashes:
        try:
            store.load(hash)
        except Corruption as error:
            found.append(hash)
            texts.append(str(error))
    assert len(found) == 1
    assert texts[0].startswith(f"{FIRST} at byte ")
    assert [item.file for item in store.damage] == [FIRST]
    assert offsets[1] < store.damage[0].offset < offsets[2]
    with pytest.raises(MissingData):
        store.load(found[0])
    assert not store.has(found[0])
    store.put(value(1))
    assert is_whole(store, value(1))
    store.close()
    again = open_store(disk)
    assert is_whole(again, value(1)), "the healed copy is the one that counts"


@pytest.mark.parametrize("where", [0, 10, 92, 96, 120, 600, -3])
def test_a_damaged_pack_in_the_middle_is_passed_over(where: int) -> None:
    disk, values, offsets = filled()
    damaged = offsets[2] if where >= 0 else offsets[3]
    disk.flip(FIRST, damaged + where)
    forget_index(disk)
    store = open_store(disk)
    assert [(item.file, item.offset) for item in store.damage] == [(FIRST, offsets[2])]
    assert same(store.root(), values[-1]), "everything after it stays usable"
    for number in (0, 1, 3, 4):
        assert is_whole(store, values[number])
    absent = store.missing([hash for hash, _, _ in novelty(value(2))])
    assert absent, "what the pack held is missing"
    store.put(value(2))
    store.close()
    forget_index(disk)
    again = open_store(disk)
    assert is_whole(again, value(2)), "and can be put back"
    assert len(again.damage) == 1


def test_damage_is_passed_over_by_a_reader_too() -> None:
    disk, values, offsets = filled(close=False)
    disk.flip(FIRST, offsets[2] + 300)
    reader = open_store(disk, read_only=True)
    assert same(reader.root(), values[-1])
    assert [item.offset for item in reader.damage] == [offsets[2]]
    assert is_whole(reader, values[3])


def test_bytes_of_another_log_are_not_taken_for_a_pack() -> None:
    foreign, _, offsets = filled(1)
    pack = foreign.open(FIRST).read(offsets[0], foreign.size(FIRST) - offsets[0])
    disk = SimDisk(3)
    store = CellStore.open(FOLDER, disk=disk, entropy=SeededEntropy(8))
    evil = Vector.of([pack[:3000]])
    wanted = value(1)
    store.commit(evil)
    store.commit(wanted)
    store.close()
    inside = disk.open(FIRST).read(0, disk.size(FIRST)).find(b"DLPK", 60)
    assert inside > 0
    disk.flip(FIRST, packing.SEGMENT_HEADER_BYTES + 9)  # the search begins in front of it
    forget_index(disk)
    again = open_store(disk)
    assert same(again.root(), wanted)
    assert len(again.damage) == 1
    assert not again.has(value_hash(value(0)))


# --- the end of the log -----------------------------------------------------------------------


@pytest.mark.parametrize("where", [0, 30, 100, 500, -1])
def test_a_torn_pack_at_the_end_is_cut(where: int) -> None:
    disk, values, offsets = filled(close=False)
    if where < 0:
        disk.cut(FIRST, offsets[4] + 700)
    else:
        disk.flip(FIRST, offsets[4] + where)
    forget_end(disk)
    store = open_store(disk)
    assert same(store.root(), values[3]), "it was never acknowledged, as far as the log tells"
    assert not store.damage
    assert disk.size(FIRST) == offsets[4]
    store.commit(value(9))
    store.close()
    assert same(open_store(disk).root(), value(9))


@pytest.mark.parametrize("keep", [-1, 4, 0])
def test_a_shorter_log_never_replaces_a_longer_one(keep: int) -> None:
    disk, values, offsets = filled()
    if keep < 0:
        disk.drop(FIRST)
    else:
        disk.cut(FIRST, offsets[keep] + 10 if keep else 20)
    with pytest.raises(Corruption, match="repair=True"):
        open_store(disk)
    store = open_store(disk, repair=True)
    assert same(store.root(), values[3] if keep == 4 else None)
    store.commit(value(9))
    store.close()
    assert same(open_store(disk).root(), value(9))


def test_a_log_whose_end_is_not_the_one_the_index_knows_is_refused() -> None:
    disk, _, _ = filled()
    disk.flip(FIRST, disk.size(FIRST) - 1)
    with pytest.raises(Corruption, match="pack 5 does not end at byte"):
        open_store(disk)


def test_leftovers_of_a_cut_tail_do_not_continue_a_newer_log() -> None:
    disk, _, offsets = filled(3, close=False)
    stale = disk.open(FIRST).read(offsets[2], 1 << 16)
    disk.cut(FIRST, offsets[1] + 100)
    forget_end(disk)
    store = open_store(disk)
    store.commit(Vector.of([f"other {i}".ljust(200, "z") for i in range(10)]))
    end = disk.size(FIRST)
    at = pack_offsets(disk)[-1]
    length = int.from_bytes(disk.open(FIRST).read(at + 40, 4), "big")
    disk.restart(power_failure=False)
    if at + length != offsets[2]:
        pytest.fail("the packs have the same length, so the stale one lies right behind")
    disk.open(FIRST, write=True).write(offsets[2], stale)
    assert end
    again = open_store(disk)
    assert again.root_hash() != value_hash(value(2)), "its predecessor is another pack"


def test_a_segment_that_was_only_begun_is_begun_again() -> None:
    disk, values, _ = filled()
    store = open_store(disk)
    file = disk.open(f"{FOLDER}/segments/00000002.seg", create=True)
    file.write(0, b"DLSG half a header")
    disk.restart(power_failure=False)
    store = open_store(disk)
    assert same(store.root(), values[-1])
    assert not disk.exists(f"{FOLDER}/segments/00000002.seg")


def test_a_missing_segment_in_the_middle_is_reported() -> None:
    disk = SimDisk(1)
    store = CellStore.open(FOLDER, disk=disk, entropy=SeededEntropy(7), segment_bytes=4_096)
    for number in range(6):
        store.commit(value(number))
    store.close()
    numbers = segments.segment_numbers(StoreFolder(disk, FOLDER))
    assert len(numbers) > 3
    disk.drop(segments.segment_path(FOLDER, numbers[1]))
    forget_index(disk)
    again = open_store(disk)
    assert same(again.root(), value(5))
    assert len(again.damage) == 1
    assert "missing" in str(again.damage[0])


# --- the index --------------------------------------------------------------------------------


def test_opening_reads_only_behind_the_watermark() -> None:
    disk, values, offsets = filled()
    disk.flip(FIRST, offsets[0] + 300)
    store = open_store(disk)
    assert not store.damage
    assert same(store.root(), values[-1])


@pytest.mark.parametrize("lose", ["index.state", "index"])
def test_an_index_that_is_gone_is_made_again(lose: str) -> None:
    disk, values, _ = filled()
    if lose == "index":
        disk.remove_folder(f"{FOLDER}/index")
    else:
        forget_index(disk)
    store = open_store(disk)
    assert all(is_whole(store, item) for item in values)


def test_after_a_power_failure_a_reader_asks_for_a_writer_first() -> None:
    disk, values, _ = filled(close=False)
    disk.restart(power_failure=True)
    with pytest.raises((StoreFailed, UsageError), match="a writer does that"):
        open_store(disk, read_only=True)
    open_store(disk).close()
    assert open_store(disk, read_only=True).root_hash() is not None
    assert values


def test_a_reader_follows_an_index_that_was_made_again() -> None:
    disk, values, _ = filled()
    reader = open_store(disk, read_only=True)
    assert same(reader.root(), values[-1])
    store = open_store(disk, repair=True)
    store.commit(value(8))
    assert same(reader.root(), value(8))
    store.close()


def test_staged_cells_stay_staged_when_the_store_is_opened_again() -> None:
    for forget in (False, True):
        disk = SimDisk(1)
        store = open_store(disk)
        loose = value(1)
        store.put(loose)
        store.commit(value(2))
        store.close()
        if forget:
            forget_index(disk)
        store = open_store(disk)
        assert store.has(value_hash(loose))
        assert not store.announced(value_hash(loose))
        assert store.announced(value_hash(value(2)))
        store.commit(Vector.of([store.load(value_hash(loose)), "x" * 200]))
        store.close()
        if forget:
            forget_index(disk)
        store = open_store(disk)
        assert all(store.announced(hash) for hash, _, _ in novelty(value(1)))
        store.close()


def test_parts_of_a_commit_that_never_ended_are_not_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("datalattice.store.log.committer.PACK_BYTES_MAX", 1_000)
    disk = SimDisk(1)
    store = open_store(disk)
    store.commit(value(1))
    store.commit(value(2))
    disk.restart(power_failure=False)
    last = pack_offsets(disk)[-1]
    disk.cut(FIRST, last)
    forget_end(disk)
    store = open_store(disk)
    assert same(store.root(), value(1))
    store.commit(value(3))
    parts = {hash for hash, _, _ in novelty(value(2))} - {hash for hash, _, _ in novelty(value(3))}
    kept = [hash for hash in parts if store.has(hash)]
    assert kept
    assert not any(store.announced(hash) for hash in kept)
    assert all(store.announced(hash) for hash, _, _ in novelty(value(3)))
    store.close()
    forget_index(disk)
    store = open_store(disk)
    assert not any(store.announced(hash) for hash in kept)
    assert all(store.announced(hash) for hash, _, _ in novelty(value(3)))


# --- versions and foreign files ---------------------------------------------------------------


def test_a_newer_store_is_named_in_one_line() -> None:
    disk, _, _ = filled()
    file = disk.open(f"{FOLDER}/STORE", write=True)
    text = file.read(0, 1000).replace(b"version 6", b"version 7")
    file.write(0, text)
    for read_only in (False, True):
        with pytest.raises(StoreVersion, match="format version 7") as caught:
            open_store(disk, read_only=read_only)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", ["segment", "pack"])
def test_a_newer_segment_or_pack_is_named(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, _, _ = filled(2, close=False)
    if what == "segment":
        monkeypatch.setattr(recovery, "FORMAT_VERSION", 0)
    else:
        monkeypatch.setattr(
            recovery.LogReader, "_begin_segment", lambda *_: None
        )  # only packs are looked at
        monkeypatch.setattr(recovery, "FORMAT_VERSION", 0)
    forget_index(disk)
    with pytest.raises(StoreVersion, match=f"{'a pack of ' if what == 'pack' else ''}format"):
        open_store(disk)


def test_a_segment_of_another_store_is_refused() -> None:
    disk, _, _ = filled()
    other = SimDisk(2)
    CellStore.open(FOLDER, disk=other, entropy=SeededEntropy(99)).commit(1)
    data = other.open(FIRST).read(0, 1 << 20)
    disk.cut(FIRST, 0)
    disk.open(FIRST, write=True).write(0, data)
    forget_index(disk)
    with pytest.raises(Corruption, match="another store"):
        open_store(disk)


@pytest.mark.parametrize(
    "text", [b"", b"something else", b"datalattice cell store\nversion x\n", b"\xff" * 50]
)
def test_a_damaged_description_is_refused(text: bytes) -> None:
    disk, _, _ = filled()
    path = f"{FOLDER}/STORE"
    disk.cut(path, 0)
    disk.open(path, write=True).write(0, text)
    with pytest.raises(Corruption, match="STORE"):
        open_store(disk)


def test_a_damaged_id_is_refused() -> None:
    disk, _, _ = filled()
    disk.cut(f"{FOLDER}/STORE", disk.size(f"{FOLDER}/STORE") - 4)
    with pytest.raises(Corruption, match="id"):
        open_store(disk)


def test_a_second_writer_is_refused_on_the_simulated_disk_too() -> None:
    disk = SimDisk(1)
    store = open_store(disk)
    with pytest.raises(StoreLocked):
        open_store(disk)
    store.close()
    open_store(disk).close()


@pytest.mark.parametrize(
    "call",
    [
        lambda disk: CellStore.open("x", disk=disk, read_only=True, repair=True),
        lambda disk: CellStore.open("x", disk=disk, segment_bytes=10),
        lambda disk: CellStore.open("x", disk=disk, segment_bytes=1 << 30),
        lambda disk: CellStore.open("x", disk=disk, read_only=True),
    ],
    ids=["repair", "short", "long", "absent"],
)
def test_bad_options_are_refused(call: Callable[[SimDisk], object]) -> None:
    with pytest.raises(UsageError):
        call(SimDisk(1))
