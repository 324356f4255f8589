"""Etch damage: whatever the bytes of a file are, it ends, and says where and what."""

from __future__ import annotations

import contextlib

import pytest

from datalattice.cells import Map, Vector, value_hash
from datalattice.errors import Corruption, MissingData, StoreError, UsageError
from datalattice.store import DiskFile
from datalattice.store.etch import (
    DATA_START,
    EtchStore,
    check_etch,
    collect_etch,
)
from datalattice.testing.disk import SECTOR_BYTES, SimDisk, SimFile, SimulatedCrash

LONG = "long enough to be a cell of its own, which takes more than 140 bytes " * 3
LEVEL_0 = 44
PATH = "d/f"


def values(number: int) -> Vector:
    return Vector.of([f"{at} {LONG}" for at in range(number)])


def filled(disk: SimDisk, number: int = 12) -> bytes:
    """Make a file with a root and return its bytes."""
    with EtchStore.open(PATH, disk=disk) as store:
        store.commit(Map.of({"a": values(number), "b": 1.5}))
        store.put(Vector.of([LONG * 2, 7]))
    return contents(disk)


def contents(disk: SimDisk) -> bytes:
    file = disk.open(PATH)
    return file.read(0, file.size())


def rewrite(disk: SimDisk, data: bytes) -> None:
    file = disk.open(PATH, create=True)
    file.write(0, data)
    file.sync()
    file.close()


def put(data: bytearray, offset: int, number: int, size: int = 8) -> None:
    data[offset : offset + size] = number.to_bytes(size, "big")


def used_slots(data: bytes | bytearray) -> list[int]:
    """Return where slots of level 0 are used."""
    return [at for at in range(LEVEL_0, DATA_START, 8) if data[at : at + 8] != bytes(8)]


def read_all(disk: SimDisk, hashes: list[bytes]) -> list[bytes | None]:
    """Read cells whatever the file is; damage may only show as a named error."""
    found: list[bytes | None] = []
    try:
        with EtchStore.open(PATH, read_only=True, disk=disk) as store:
            for hash in hashes:
                try:
                    found.append(store.get_encoding(hash))
                except Corruption:
                    found.append(None)
            with contextlib.suppress(Corruption, MissingData):
                store.root()
    except (StoreError, UsageError):
        return [None] * len(hashes)
    return found


def harmless(at: int, records: dict[int, int]) -> bool:
    """Return whether a change of this byte is one that a file may have.

    Labels of records: a higher status, and what is known of embedding and signatures.
    """
    return any(at == offset + 32 for offset in records)


def test_every_damaged_byte_is_noticed_or_may_be_so() -> None:
    disk = SimDisk(1)
    clean = filled(disk, 3)
    with EtchStore.open(PATH, read_only=True, disk=disk) as store:
        records = {record.offset: record.end for record in store.file.records()}
        encodings = {record.key: record.encoding for record in store.file.records()}
    spots = [*range(LEVEL_0), *range(DATA_START, len(clean))]
    for slot in used_slots(clean)[:4]:
        spots += range(slot, slot + 16)
    spots += [LEVEL_0 + 8 * 5_000 + 3, DATA_START - 1]  # of empty slots
    for number, at in enumerate(spots):
        mask = 1 << number % 8
        disk.flip(PATH, at, mask)
        report_clean = False
        try:
            report = check_etch(PATH, disk=disk)
            report_clean = report.is_clean and report.unreached_bytes == 0
        except (StoreError, UsageError):
            pass
        if report_clean:
            assert harmless(at, records), f"byte {at} (mask {mask}) went unnoticed"
        if number % 7 == 0:
            found = read_all(disk, list(encodings))
            for key, encoding in zip(encodings, found, strict=True):
                assert encoding in (None, encodings[key]), "wrong bytes are never given out"
        disk.flip(PATH, at, mask)
    assert contents(disk) == clean
    assert check_etch(PATH, disk=disk).is_clean


@pytest.mark.parametrize("kept", [0, 1, 3, 10, 43, 44, 5_000, DATA_START - 1, DATA_START])
def test_a_cut_file_is_refused_by_name(kept: int) -> None:
    disk = SimDisk(1)
    filled(disk)
    disk.cut(PATH, kept)
    with pytest.raises((UsageError, StoreError)) as caught:
        EtchStore.open(PATH, read_only=True, disk=disk)
    assert PATH in str(caught.value)
    if kept:
        with pytest.raises((UsageError, StoreError)):
            EtchStore.open(PATH, disk=disk)
        assert disk.size(PATH) == kept


def test_any_cut_of_the_data_is_named() -> None:
    disk = SimDisk(1)
    clean = filled(disk, 3)
    for kept in range(DATA_START, len(clean), 17):
        disk.cut(PATH, kept)
        with pytest.raises(Corruption, match=f"the file has {kept} bytes"):
            EtchStore.open(PATH, read_only=True, disk=disk)
        assert not check_etch(PATH, disk=disk).is_clean
        rewrite(disk, clean)


def test_a_block_that_leads_back_ends() -> None:
    disk = SimDisk(1)
    data = bytearray(filled(disk))
    slot = used_slots(data)[0]
    block = len(data)
    data += bytes(2_048)
    put(data, slot, 1 << 62 | block)
    for at in range(256):  # every slot of the new block leads to the block itself
        put(data, block + 8 * at, 1 << 62 | block)
    put(data, 4, len(data))
    rewrite(disk, bytes(data))
    digits = (slot - LEVEL_0) // 8
    hash = digits.to_bytes(2, "big") + bytes(30)
    with EtchStore.open(PATH, read_only=True, disk=disk) as store:
        with pytest.raises(Corruption, match="at byte"):
            store.has(hash)
        with pytest.raises(Corruption, match="overlaps"):
            list(store.file.records())
    report = check_etch(PATH, disk=disk)
    assert report.fault_count >= 256
    assert "cannot be there" in str(report.faults[0]) or "cannot be there" in str(report.faults[-1])


def test_a_chain_all_round_ends() -> None:
    disk = SimDisk(1)
    data = bytearray(filled(disk))
    for at in range(LEVEL_0, DATA_START, 8):
        put(data, at, 3 << 62 | DATA_START)
    put(data, LEVEL_0, 2 << 62 | DATA_START)
    rewrite(disk, bytes(data))
    with EtchStore.open(PATH, read_only=True, disk=disk) as store:
        assert not store.has(bytes(32))
    report = check_etch(PATH, disk=disk)
    assert report.fault_count >= 65_000
    assert len(report.faults) == 1_000
    with (
        EtchStore.open(PATH, disk=disk) as writer,
        pytest.raises(Corruption, match=r"at byte|levels of the index"),
    ):
        writer.put(*(f"{at} more {LONG}" for at in range(20)))


@pytest.mark.parametrize(
    ("slot", "words"),
    [
        (7, "outside the data"),
        (1 << 62 | 50, "cannot be there"),
        (1 << 62 | (1 << 61), "cannot be there"),
        ((1 << 61) | 1, "outside the data"),
        (2 << 62 | DATA_START, "does not go on"),
        (3 << 62 | DATA_START, "never began"),
    ],
)
def test_slots_that_lead_nowhere_are_told_with_their_place(slot: int, words: str) -> None:
    disk = SimDisk(1)
    data = bytearray(filled(disk))
    free = LEVEL_0 + 8 * next(
        at
        for at in range(1, 65_000)
        if all(data[LEVEL_0 + 8 * (at + d) :][:8] == bytes(8) for d in (-1, 0, 1))
    )
    put(data, free, slot)
    rewrite(disk, bytes(data))
    faults = check_etch(PATH, disk=disk).faults
    assert any(fault.offset == free and words in fault.reason for fault in faults), faults


def test_lengths_that_cannot_be_are_told_with_their_place() -> None:
    disk = SimDisk(1)
    data = bytearray(filled(disk))
    for length in (0, 16_384, 65_535):
        put(data, DATA_START + 41, length, 2)
        rewrite(disk, bytes(data))
        faults = check_etch(PATH, disk=disk).faults
        assert any(f"byte {DATA_START}" in fault.reason for fault in faults), faults


def test_a_writer_takes_over_what_a_crash_left_behind_the_data() -> None:
    disk = SimDisk(1)
    before = filled(disk)
    length = len(before)
    with EtchStore.open(PATH, disk=disk) as store:
        store.commit(values(30))
    after = bytearray(contents(disk))
    after[4:12] = length.to_bytes(8, "big")  # the length was not written, the root was
    rewrite(disk, bytes(after))
    with EtchStore.open(PATH, read_only=True, disk=disk) as reader:
        assert reader.root() == values(30)
    with EtchStore.open(PATH, disk=disk) as store:
        assert store.root() == values(30)
        assert store.file.length == len(after)
    assert check_etch(PATH, disk=disk).is_clean
    slots = set(used_slots(after)) - set(used_slots(before))
    for at in list(slots)[::2]:  # nor were half of the slots
        after[at : at + 8] = bytes(8)
    rewrite(disk, bytes(after))
    with EtchStore.open(PATH, disk=disk) as store:
        assert store.root() == values(30)
    report = check_etch(PATH, disk=disk)
    assert (report.is_clean, report.unreached_bytes) == (True, 0)


def test_slots_that_lead_behind_everything_are_refused_for_writing_and_collected() -> None:
    disk = SimDisk(1)
    clean = filled(disk)
    data = bytearray(clean) + b"\x01" * 100  # a torn record
    free = LEVEL_0 + 8 * next(
        at for at in range(65_000) if data[LEVEL_0 + 8 * at :][:16] == bytes(16)
    )
    put(data, free, len(clean))
    rewrite(disk, bytes(data))
    with pytest.raises(Corruption, match=f"at byte {free}.*collect"):
        EtchStore.open(PATH, disk=disk)
    collect_etch(PATH, disk=disk)
    with EtchStore.open(PATH, disk=disk) as store:
        assert store.root() == Map.of({"a": values(12), "b": 1.5})
    assert check_etch(PATH, disk=disk).is_clean


class SectorFile(SimFile):
    """A file on a disk that writes a sector whole or not at all."""

    def write(self, offset: int, data: bytes) -> None:
        if offset // SECTOR_BYTES != (offset + len(data) - 1) // SECTOR_BYTES:
            super().write(offset, data)
            return
        refused = self._disk.step()
        self._disk.check_alive()
        if refused:
            self._disk.refuse()
        self._content.do(offset, data)


class SectorDisk(SimDisk):
    def open(self, path: str, *, create: bool = False, write: bool = False) -> DiskFile:
        file = super().open(path, create=create, write=write)
        assert isinstance(file, SimFile)
        return SectorFile(self, file._content, writable=create or write)


@pytest.mark.parametrize("power_failure", [True, False])
@pytest.mark.parametrize("refuse", [True, False])
def test_whatever_a_crash_cuts_off_acknowledged_roots_stay(
    power_failure: bool, refuse: bool
) -> None:
    """At each operation in turn the process ends, or the operation is refused."""
    at = 0
    finished = False
    while not finished:
        at += 1
        disk = SectorDisk(at)
        acknowledged: list[int] = []
        try:
            with EtchStore.open(PATH, disk=disk) as store:
                store.commit(values(4))
                acknowledged.append(4)
                start = disk.steps
                setattr(disk, "fail_at" if refuse else "crash_at", start + at)
                for number in (8, 12, 16):
                    store.commit(values(number))
                    acknowledged.append(number)
                finished = disk.steps < start + at
        except StoreError:
            assert refuse
        except SimulatedCrash:
            assert not refuse
        disk.restart(power_failure=power_failure)
        with EtchStore.open(PATH, disk=disk) as store:
            root = store.root()
            assert isinstance(root, Vector)
            assert len(root) in (acknowledged[-1], acknowledged[-1] + 4)
            assert root == values(len(root))
            store.commit(values(40))
        report = check_etch(PATH, disk=disk)
        assert report.is_clean, report.faults


def test_a_failed_write_is_the_last_until_the_file_is_opened_again() -> None:
    disk = SimDisk(1)
    filled(disk)
    with EtchStore.open(PATH, disk=disk) as store:
        disk.fail_at = disk.steps + 1
        with pytest.raises(StoreError):
            store.commit(values(50))
        assert store.has_failed
        with pytest.raises(StoreError, match="an earlier write failed"):
            store.commit(values(51))
    with EtchStore.open(PATH, disk=disk) as store:
        store.commit(values(51))
        assert store.root_hash() == value_hash(values(51))


def test_a_chain_through_the_whole_index_is_checked_in_a_moment() -> None:
    disk = SimDisk(0)
    encoding = b"\x31\x01a"
    record = bytes(32) + b"\x11" + bytes(8) + len(encoding).to_bytes(2, "big") + encoding
    count = (DATA_START - LEVEL_0) // 8
    slots = [3 << 62 | DATA_START + at * len(record) for at in range(count)]
    slots[0] ^= 1 << 62  # where it begins
    head = b"\xe7\xc6\x00\x01" + (DATA_START + count * len(record)).to_bytes(8, "big") + bytes(32)
    index = b"".join(slot.to_bytes(8, "big") for slot in slots)
    rewrite(disk, head + index + count * record)
    report = check_etch(PATH, disk=disk)
    assert report.cells == count
    reasons = {fault.reason for fault in report.faults}
    assert reasons == {"the encoding has another hash than the key"}
