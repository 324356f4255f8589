"""Pins: names that last, refused when damaged, honoured by whoever removes cells."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from datalattice.cells import Map, Value, Vector, novelty, value_hash
from datalattice.crypto import SeededEntropy
from datalattice.errors import Corruption, MissingData, StoreLocked, UsageError
from datalattice.store import CellStore
from datalattice.store.disk import RealFile
from datalattice.store.files import checked
from datalattice.store.kept import Pin, pins
from datalattice.store.kept.pins import (
    EXPIRY_MS_MAX,
    LABEL_CHARS_MAX,
    NAME_CHARS_MAX,
    OWNER_CHARS_MAX,
    check_name,
    write_pins,
)
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.disk import SimDisk
from datalattice.testing.polling import LIMIT_S

FOLDER = "store"


def open_store(
    disk: SimDisk, clock: StoppedClock | None = None, *, read_only: bool = False
) -> CellStore:
    return CellStore.open(
        FOLDER,
        disk=disk,
        entropy=SeededEntropy(1),
        clock=clock or StoppedClock(),
        read_only=read_only,
    )


def long(number: int) -> Value:
    return Vector.of([f"{number} {part} ".ljust(200, "x") for part in range(20)])


def test_a_pin_is_there_for_everybody_until_it_is_removed_or_expires() -> None:
    disk, clock = SimDisk(1), StoppedClock()
    with open_store(disk, clock) as store, open_store(disk, clock, read_only=True) as reader:
        root = store.commit(long(1)).root_hash
        made = store.pins.pin(root, "release", "me", "the first", expires_ms=2_000)
        assert made == Pin("release", root, "me", "the first", 1_000, 2_000)
        assert reader.pins.all() == [made] == store.pins.all(1_999)
        assert store.pins.all(2_000) == []
        assert reader.pins.get("release") == made
        other = reader.pins.pin(root, "other")
        assert store.pins.all() == [other, made]
        assert reader.pins.unpin("release") == made
        assert store.pins.all() == [other]
        clock.now = 5_000
    with open_store(disk, clock) as store:
        assert store.pins.all() == [other]
        with pytest.raises(UsageError, match="no pin 'release'; there are: other"):
            store.pins.unpin("release")


def test_a_name_moves_only_when_told_and_an_expired_one_is_free() -> None:
    disk, clock = SimDisk(1), StoppedClock()
    with open_store(disk, clock) as store:
        one = store.commit(long(1)).root_hash
        two = store.commit(long(2)).root_hash
        store.pins.pin(one, "name", expires_ms=2_000)
        with pytest.raises(UsageError, match=f"'name' is 0x{one.hex()}"):
            store.pins.pin(two, "name")
        clock.now = 1_500
        renewed = store.pins.pin(one, "name", label="longer", expires_ms=3_000)
        assert (renewed.created_ms, renewed.expires_ms) == (1_000, 3_000)
        assert store.pins.pin(two, "name", move=True).root_hash == two
        store.pins.pin(one, "brief", expires_ms=1_600)
        clock.now = 1_600
        assert store.pins.pin(two, "brief").root_hash == two


def test_only_what_is_whole_is_pinned() -> None:
    disk = SimDisk(1)

    def make() -> Map:
        return Map.of([("a", long(1)), ("b", long(2))])

    value = make()
    with open_store(disk) as store:
        store.commit(Vector.of([1]))
        with pytest.raises(MissingData):
            store.pins.pin(value_hash(value), "absent")
        store.put(value)
        pin = store.pins.pin(value_hash(value), "staged")
    with open_store(disk) as store:  # what was pinned is durable, though no root has it
        assert value_hash(store.load(pin.root_hash)) == value_hash(make())
        store.discard([novelty(make())[0][0]])
        store.pins.unpin("staged")
        with pytest.raises(MissingData):
            store.pins.pin(value_hash(make()), "broken")
        assert store.pins.all() == []
        with pytest.raises(UsageError, match="32 bytes"):
            store.pins.pin(b"short", "name")


def test_bounds_of_what_a_pin_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(SimDisk(1)) as store:
        root = store.commit(long(1)).root_hash
        pin = store.pins.pin
        pin(root, "n" * NAME_CHARS_MAX, "o" * OWNER_CHARS_MAX, "l" * LABEL_CHARS_MAX, EXPIRY_MS_MAX)
        many: tuple[tuple[str, str, str, int | None], ...] = (
            ("n" * (NAME_CHARS_MAX + 1), "", "", None),
            ("n", "o" * (OWNER_CHARS_MAX + 1), "", None),
            ("n", "", "l" * (LABEL_CHARS_MAX + 1), None),
            ("n", "", "two\nlines", None),
            ("n", "", "", EXPIRY_MS_MAX + 1),
            ("n", "", "", 1_000),
        )
        for name, owner, label, expires_ms in many:
            with pytest.raises(UsageError):
                pin(root, name, owner, label, expires_ms)
        pin(root, "n", expires_ms=1_001)
        monkeypatch.setattr(pins, "PINS_MAX", 3)
        pin(root, "third")
        with pytest.raises(UsageError, match="at most 3 pins"):
            pin(root, "fourth")
        pin(root, "third", label="the same again")
        assert len(store.pins.all()) == 3


@pytest.mark.parametrize(
    "name", ["", "HEAD", "a b", "-x", ".x", "a~1", "@1", "a:b", "0x12", "ab" * 32, "a\x00", "é\n"]
)
def test_names_that_read_as_something_else_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="pin"):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "v1.2", "release/2026-03", "HEADS", "beef", "größe"])
def test_other_names_are_taken(name: str) -> None:
    assert check_name(name) == name


def test_a_file_that_is_gone_or_damaged_is_refused_by_name_and_never_read_as_none() -> None:
    disk = SimDisk(1)
    path = f"{FOLDER}/pins"
    with open_store(disk) as store:
        root = store.commit(long(1)).root_hash
        store.pins.pin(root, "release")
    for offset in range(disk.size(path)):
        disk.flip(path, offset)
        with (
            open_store(disk, read_only=True) as store,
            pytest.raises(Corruption, match="store/pins: the file of pins is damaged"),
        ):
            store.pins.all()
        disk.flip(path, offset)
    disk.cut(path, disk.size(path) - 1)
    with open_store(disk) as store:  # commits go on
        store.commit(long(2))
        for call in (store.pins.all, lambda: store.pins.pin(root, "other")):
            with pytest.raises(Corruption, match="store/pins"):
                call()
    disk.drop(path)
    with open_store(disk) as store:
        with pytest.raises(Corruption, match="store/pins: the file of pins is gone"):
            store.pins.all()
        store.pins.clear()
        assert store.pins.all() == []


def test_a_version_that_was_never_released_is_damage() -> None:
    disk = SimDisk(1)
    open_store(disk).close()
    file = disk.open(f"{FOLDER}/STORE", write=True)
    file.write(0, file.read(0, 1_000).replace(b"version 6", b"version 1"))
    for read_only in (True, False):
        with pytest.raises(Corruption, match="there is no format version 1"):
            open_store(disk, read_only=read_only)


def test_changes_wait_for_whoever_removes_cells() -> None:
    disk = SimDisk(1)
    with open_store(disk) as store:
        root = store.commit(long(1)).root_hash
        began = threading.Event()
        done: list[Pin] = []

        def pin() -> None:
            began.set()
            done.append(store.pins.pin(root, "later"))

        thread = threading.Thread(target=pin)
        with store.pins.locked():
            thread.start()
            assert began.wait(LIMIT_S)
            assert store.pins.all() == []
            assert done == []
        thread.join(LIMIT_S)
        assert store.pins.all() == done
        with (
            store.pins.locked(),
            pytest.raises(StoreLocked, match="pins: waited 0 s"),
            store.pins.locked(wait_s=0),
        ):
            raise AssertionError


def test_a_file_of_another_kind_with_a_good_checksum_is_refused(tmp_path: Path) -> None:
    with CellStore.open(tmp_path / "s") as store:
        store.commit(1)
        body = b'{"name": "x"}\n'
        (tmp_path / "s" / "pins").write_bytes(checked(b"datalattice pins 1\n" + body))
        with pytest.raises(Corruption, match="not a file of pins"):
            store.pins.all()
        write_pins(store._folder, [])
        assert store.pins.all() == []


def test_no_more_is_read_of_the_file_than_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CellStore.open(tmp_path / "s") as store:
        store.pins.pin(store.commit(1).root_hash, "one")
        asked: list[int] = []
        read = RealFile.read

        def noting(file: RealFile, offset: int, count: int) -> bytes:
            asked.append(count)
            return read(file, offset, count)

        monkeypatch.setattr(RealFile, "read", noting)
        assert [pin.name for pin in store.pins.all()] == ["one"]
        assert asked == [(tmp_path / "s" / "pins").stat().st_size]
