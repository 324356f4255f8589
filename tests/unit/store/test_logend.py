"""What was acknowledged and is gone is a loss that is reported, never a tail that is cut."""

from __future__ import annotations

import os
from typing import Any

import pytest

from datalattice.cells import Vector, missing, same, value_hash
from datalattice.crypto import SeededEntropy
from datalattice.errors import Corruption, StoreVersion
from datalattice.store import CellFetcher, CellStore, heal_store, open_damaged
from datalattice.store.files import StoreFolder
from datalattice.store.log import logend
from datalattice.store.log.logend import SLOT_STRIDE, SYNC_PACKS
from datalattice.store.log.packing import PACK_MAGIC
from datalattice.testing.disk import SimDisk

FOLDER = "store"
END = f"{FOLDER}/end"
FIRST = f"{FOLDER}/segments/00000001.seg"
COMMITS = 5
STRIDE = {"quick": 7, "full": 3, "long": 1}[os.environ.get("DATALATTICE_PROFILE", "quick")]
"""Every byte in the long profile, each of so many in the others."""


def opened(disk: SimDisk, **options: Any) -> CellStore:
    return CellStore.open(FOLDER, disk=disk, entropy=SeededEntropy(7), **options)


def value(number: int) -> Vector:
    return Vector.of([f"value {number} record {i} ".ljust(80, "z") for i in range(4)])


def filled(how: str, commits: int = COMMITS) -> SimDisk:
    """Return the disk of a store after some commits, closed, synced or killed."""
    disk = SimDisk(1)
    store = opened(disk)
    for number in range(commits):
        store.commit(value(number))
    if how == "closed":
        store.close()
    elif how == "synced":
        store.sync()
        disk.restart(power_failure=True)
    else:
        disk.restart(power_failure=False)
    return disk


def packs(disk: SimDisk) -> list[int]:
    """Return where each pack of the first segment begins, and where the last one ends."""
    data = disk.open(FIRST).read(0, 1 << 20)
    offsets, at = [], data.find(PACK_MAGIC)
    while at >= 0:
        offsets.append(at)
        at = data.find(PACK_MAGIC, at + 1)
    return [
        *offsets,
        offsets[-1] + int.from_bytes(data[offsets[-1] + 40 : offsets[-1] + 44], "big"),
    ]


def forget_index(disk: SimDisk) -> None:
    """Do what a copy of the folder does, or a power failure."""
    disk.drop(f"{FOLDER}/index.state")


def told_of(disk: SimDisk) -> str:
    """Return what an opening says of a loss, "" for nothing."""
    try:
        opened(disk).close()
    except Corruption as error:
        return str(error)
    return ""


WAYS = ["closed", "synced", "killed"]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("is_copied", [False, True])
def test_a_flipped_bit_in_the_last_pack_is_a_loss_that_is_reported(
    how: str, is_copied: bool
) -> None:
    *_, begin, end = packs(filled(how))
    for offset in sorted({*range(begin, end, STRIDE), end - 1}):
        disk = filled(how)
        if is_copied:
            forget_index(disk)
        size = disk.size(FIRST)
        disk.flip(FIRST, offset, 1 << (offset % 8))
        told = told_of(disk)
        if told:
            assert f"pack {COMMITS} was acknowledged" in told, f"{told} at {offset}"
            assert f"{end - begin} bytes" in told
            assert value_hash(value(COMMITS - 1)).hex() in told
        else:  # the index knows the end, and an opening looks no further
            assert how == "closed"
            assert not is_copied
            with opened(disk) as store:
                report = store.check()
            assert not report.is_clean or report.scars, f"unseen at {offset}"
        assert disk.size(FIRST) == size, f"cut at {offset}"


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("is_copied", [False, True])
def test_a_log_that_ends_too_early_is_a_loss_that_is_reported(how: str, is_copied: bool) -> None:
    offsets = packs(filled(how))
    end = offsets[-1]
    for length in sorted({*range(0, end, STRIDE), *offsets[:-1], end - 1}):
        disk = filled(how)
        if is_copied:
            forget_index(disk)
        disk.cut(FIRST, length)
        good = sum(offset <= length for offset in offsets[1:])  # packs that are whole
        lost = f"pack {COMMITS} was" if good == COMMITS - 1 else f"packs {good + 1} to {COMMITS}"
        with pytest.raises(Corruption, match=lost) as caught:
            opened(disk)
        missed = end - offsets[good]
        assert f" {missed:,} bytes" in str(caught.value) or length < offsets[0], length
        assert disk.size(FIRST) == length, f"cut at {length}"


def test_a_check_tells_a_shortened_store_from_a_whole_one() -> None:
    disk = filled("closed")
    offsets = packs(disk)
    with opened(disk, read_only=True) as reader:
        assert reader.check().is_clean
    for length in [*offsets[:-1], *(offset + 50 for offset in offsets[:-1])]:
        disk = filled("closed")
        disk.cut(FIRST, length)
        with opened(disk, read_only=True) as reader:
            report = reader.check()
            assert not report.is_clean, length
            assert any(one.file == FIRST for one in report.damage)


def test_a_reader_of_a_killed_writer_sees_damage_where_an_acknowledged_pack_was() -> None:
    disk = filled("killed")
    disk.flip(FIRST, packs(disk)[-2] + 100)
    with opened(disk, read_only=True) as reader:
        assert reader.root_hash() == value_hash(value(COMMITS - 2))
        assert [one.offset for one in reader.damage] == [packs(disk)[-2]]
        assert not reader.check().is_clean


def test_a_lost_commit_s_number_and_place_are_not_given_again() -> None:
    disk = filled("closed")
    before = packs(disk)
    disk.cut(FIRST, before[3] + 10)
    with opened(disk, repair=True) as store:
        assert same(store.root(), value(2))
        loss = store.loss
        assert loss is not None
        assert (loss.first, loss.last) == (4, 5)
        assert loss.root == value_hash(value(4))
        done = store.commit(value(9))
        assert done.sequence > loss.last
        assert len(packs(disk)) == 5, "the damaged segment is left as it is"
    forget_index(disk)
    with opened(disk) as store:
        assert same(store.root(), value(9))


def test_a_loss_is_known_until_it_is_accepted() -> None:
    disk = filled("killed")
    disk.cut(FIRST, packs(disk)[-2])
    with pytest.raises(Corruption):
        opened(disk)
    with opened(disk, repair=True) as store:
        loss = store.loss
        assert loss is not None
        assert loss.size_bytes == packs(filled("killed"))[-1] - loss.offset
        assert loss.is_exact
    with opened(disk, read_only=True) as reader:
        assert reader.loss == loss
    with opened(disk) as store:
        assert store.loss == loss
        assert same(store.root(), value(COMMITS - 2))
        store.accept_loss()
    with opened(disk) as store:
        assert store.loss is None
        assert same(store.root(), value(COMMITS - 2))


@pytest.mark.parametrize("crash_at", range(1, 40))
def test_a_crash_while_a_loss_is_written_down_loses_no_more(crash_at: int) -> None:
    disk = filled("closed")
    disk.cut(FIRST, packs(disk)[-2])
    disk.crash_at = disk.steps + crash_at
    has_ended = True
    try:
        opened(disk, repair=True).close()
    except BaseException as crash:  # noqa: BLE001 - a simulated one is no Exception
        has_ended = type(crash).__name__ != "SimulatedCrash"
        assert not has_ended
    disk.restart(power_failure=True)
    try:
        store = opened(disk)
    except Corruption:
        assert not has_ended
        store = opened(disk, repair=True)
    assert same(store.root(), value(COMMITS - 2))
    assert store.loss is not None
    store.close()


def test_what_another_store_has_is_no_loss() -> None:
    supply = opened(filled("closed"))

    def fetch(hashes: Any) -> Any:
        found = [(hash, supply.get_encoding(hash)) for hash in hashes]
        return [(hash, encoding) for hash, encoding in found if encoding is not None]

    for how in WAYS:
        for keep in (-2, -3):
            disk = filled(how)
            disk.cut(FIRST, packs(disk)[keep] + 20)
            with open_damaged(FOLDER, disk=disk, entropy=SeededEntropy(2)) as store:
                assert heal_store(store, CellFetcher(store, fetch)).report.is_clean
            with opened(disk) as store:
                assert store.loss is None
                assert same(store.root(), value(COMMITS - 1)), (how, keep)
                assert missing(store.root()) == []


def test_a_loss_that_nobody_could_heal_stays_known() -> None:
    disk = filled("closed")
    disk.cut(FIRST, packs(disk)[-2] + 20)
    with open_damaged(FOLDER, disk=disk, entropy=SeededEntropy(2)) as store:
        assert not heal_store(store).report.is_clean
        assert store.loss is not None
    with pytest.raises(Corruption, match="pack 5 was acknowledged"):
        opened(disk)
    with opened(disk, repair=True) as store:
        assert same(store.root(), value(COMMITS - 2))
        assert store.loss is not None
    with opened(disk) as store:
        assert same(store.root(), value(COMMITS - 2))
        assert store.loss is not None


# --- the record -------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", range(3))
def test_one_damaged_slot_does_not_hide_a_loss(slot: int) -> None:
    disk = filled("closed")
    disk.flip(END, slot * SLOT_STRIDE + 20)
    forget_index(disk)
    disk.cut(FIRST, packs(disk)[-2])
    with pytest.raises(Corruption, match="acknowledged"):
        opened(disk)


def test_a_record_without_a_readable_slot_is_reported_and_made_again() -> None:
    disk = SimDisk(1)
    for number in range(2):
        with opened(disk) as store:
            store.commit(value(number))
    for slot in range(3):
        disk.flip(END, slot * SLOT_STRIDE + 5)
    with opened(disk) as store:
        assert [one.file for one in store.damage] == [END]
        assert same(store.root(), value(1))
    with opened(disk) as store:
        assert store.damage == ()


@pytest.mark.parametrize("kept", [None, 0, 2 * SLOT_STRIDE])
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_store_without_its_record_says_that_a_loss_cannot_be_excluded(
    kept: int | None, is_cut: bool
) -> None:
    disk = filled("killed")
    if is_cut:
        disk.cut(FIRST, packs(disk)[-2])
    if kept is None:
        disk.drop(END)
    else:
        disk.cut(END, kept)
    reason = "is gone" if kept is None else "is cut"
    with opened(disk, read_only=True) as reader:
        assert f"the record of the log's end {reason}" in str(reader.loss)
        assert "cannot be excluded" in str(reader.loss)
    for _ in range(2):  # it stays known until it is accepted
        with opened(disk) as store:
            assert same(store.root(), value(COMMITS - 1 - is_cut))
            assert store.loss is not None
            assert not store.loss.is_certain
            assert f"{END}: the record of the log's end {reason}" in str(store.loss)
    with opened(disk, read_only=True) as reader:
        assert "cannot be excluded" in str(reader.loss)
    with opened(disk) as store:
        store.accept_loss()
        store.commit(value(9))
    with opened(disk) as store:
        assert store.loss is None


def test_what_the_index_knows_to_be_lost_is_told_without_the_record_too() -> None:
    disk = filled("closed")
    disk.drop(END)
    disk.cut(FIRST, packs(disk)[-2] + 20)
    with pytest.raises(Corruption, match="pack 5 was acknowledged"):
        opened(disk)
    with opened(disk, repair=True) as store:
        assert store.loss is not None


def test_a_new_store_without_commits_needs_no_record() -> None:
    disk = SimDisk(1)
    opened(disk).close()
    disk.drop(END)
    with opened(disk) as store:
        assert store.loss is None


def test_a_record_of_a_newer_version_is_named() -> None:
    disk = filled("closed")
    assert logend.read_end(StoreFolder(disk, FOLDER), b"") is None, (
        "the id of the store is in the checksum"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logend, "END_VERSION", 2)
        with opened(disk) as store:
            store.commit(value(9))
    with pytest.raises(StoreVersion, match="version 2"):
        opened(disk)


def test_the_end_costs_no_sync_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk(1)
    syncs: list[str] = []
    real = SimDisk.open

    def noting(self: SimDisk, path: str, **how: bool) -> Any:
        file = real(self, path, **how)
        sync = file.sync

        def counted() -> None:
            syncs.append(path)
            sync()

        file.sync = counted  # type: ignore[method-assign]
        return file

    monkeypatch.setattr(SimDisk, "open", noting)
    store = opened(disk)
    syncs.clear()
    for number in range(SYNC_PACKS):
        store.commit(value(number))
    assert syncs.count(FIRST) >= SYNC_PACKS
    assert syncs.count(END) == 1, "the first segment was begun, or so many packs are written"
    store.sync()
    store.sync()
    assert syncs.count(END) <= 2
    store.close()
