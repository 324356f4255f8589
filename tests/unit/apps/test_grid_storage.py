"""Storage: every place behaves alike, checks what comes in and what goes out, and never lies."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from datalattice.apps.dlfs import Drive
from datalattice.apps.grid import (
    CONTENT_BYTES_MAX,
    STORAGE_LATTICE,
    ContentBackend,
    DriveBackend,
    FileBackend,
    LatticeBackend,
    MemoryBackend,
    Storage,
)
from datalattice.apps.grid.files import PART_SUFFIX
from datalattice.cells import Index
from datalattice.cursors import RootLattice
from datalattice.errors import (
    Corruption,
    LimitExceeded,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreFull,
    UsageError,
)
from datalattice.testing.disk import SimDisk, SimulatedCrash

Make = Callable[[], ContentBackend]


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@pytest.fixture(params=["memory", "lattice", "file", "drive"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ContentBackend:
    places: dict[str, Make] = {
        "memory": MemoryBackend,
        "lattice": LatticeBackend,
        "file": lambda: FileBackend(str(tmp_path)),
        "drive": lambda: DriveBackend(Drive.create()),
    }
    return places[request.param]()


@pytest.fixture
def storage(place: ContentBackend) -> Iterator[Storage]:
    with Storage(place) as storage:
        yield storage


def test_contents_come_back_and_are_kept_once(storage: Storage) -> None:
    contents = [b"", b"one", bytes(range(256)) * 700]
    names = [storage.put(content) for content in contents]
    assert names == [sha(content) for content in contents]
    assert [storage.get(name) for name in names] == contents
    assert [storage.size(name) for name in names] == [len(content) for content in contents]
    assert [storage.put(content) for content in contents] == names
    assert list(storage) == sorted(names)
    assert len(storage) == 3
    assert not storage.is_empty
    assert storage.verify() == []
    pieces = storage.stream(names[2])
    assert pieces is not None
    assert b"".join(pieces) == contents[2]


def test_content_streams_in_and_nothing_else_passes_for_it(storage: Storage) -> None:
    content = b"abc" * 50_000
    storage.store(sha(content), (content[at : at + 1000] for at in range(0, len(content), 1000)))
    assert storage.get(sha(content)) == content
    for wrong in (b"other", iter([b"a", b"b"])):
        with pytest.raises(UsageError, match="is not"):
            storage.store(sha(b"wanted"), wrong)
    with pytest.raises(UsageError, match="is not"):
        storage.store(sha(content), b"something else under a name that is here")
    assert list(storage) == [sha(content)]


def test_a_source_that_breaks_off_leaves_nothing(storage: Storage) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        storage.store(sha(b"half a content"), broken())
    assert storage.is_empty
    assert not storage.exists(sha(b"half a content"))


def test_what_is_absent_is_none_and_deleting_says_so(storage: Storage) -> None:
    name = sha(b"x")
    assert storage.get(name) is None
    assert storage.stream(name) is None
    assert not storage.exists(name)
    assert not storage.exists(None)
    assert not storage.delete(name)
    with pytest.raises(UsageError, match="there is no content"):
        storage.size(name)
    storage.put(b"x")
    assert storage.delete(name)
    assert storage.is_empty


def test_wrong_arguments_are_refused(storage: Storage) -> None:
    for name in (None, b"short", "x" * 32):
        with pytest.raises(UsageError, match="SHA-256"):
            storage.get(name)  # type: ignore[arg-type]
    for content in (None, "text", 7, bytearray(b"x")):
        with pytest.raises(UsageError, match="content is bytes"):
            storage.store(sha(b"x"), content)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a piece"):
        storage.store(sha(b"x"), ["x"])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="content is bytes"):
        storage.put("x")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="content_bytes_max"):
        Storage(MemoryBackend(), -1)


def test_only_an_open_storage_answers(place: ContentBackend) -> None:
    storage = Storage(place)
    assert not is_open(storage)
    assert not storage.exists(sha(b""))
    calls: list[Callable[[], object]] = [
        lambda: storage.put(b""),
        lambda: storage.get(sha(b"")),
        lambda: storage.size(sha(b"")),
        lambda: storage.delete(sha(b"")),
        storage.verify,
        lambda: list(storage),
    ]
    for _ in range(2):
        for call in calls:
            with pytest.raises(StoreClosed, match="initialise"):
                call()
        with storage:
            storage.initialise()
            assert is_open(storage)
        storage.close()


def is_open(storage: Storage) -> bool:
    return storage.is_initialised


@pytest.mark.parametrize("count", [9, 10])
def test_contents_up_to_the_limit_are_taken(place: ContentBackend, count: int) -> None:
    with Storage(place, 10) as storage:
        assert storage.get(storage.put(b"x" * count)) == b"x" * count


def test_a_longer_content_is_refused_before_it_is_read_to_its_end(place: ContentBackend) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"1234"

    with Storage(place, 10) as storage:
        with pytest.raises(LimitExceeded, match="10 bytes"):
            storage.put(b"x" * 11)
        with pytest.raises(LimitExceeded, match="10 bytes"):
            storage.store(sha(b""), endless())
        assert storage.is_empty


def test_the_usual_limit_is_64_mebibytes() -> None:
    assert CONTENT_BYTES_MAX == 64 * 1024 * 1024
    assert Storage(MemoryBackend()).content_bytes_max == CONTENT_BYTES_MAX


def test_damage_in_the_lattice_is_told_and_storing_again_repairs_it() -> None:
    place = LatticeBackend(RootLattice(STORAGE_LATTICE, Index.of({sha(b"true"): b"false"})))
    with Storage(place) as storage:
        check_damage(storage)


def test_damage_in_a_file_is_told_and_storing_again_repairs_it(tmp_path: Path) -> None:
    (tmp_path / sha(b"true").hex()).write_bytes(b"false")
    with Storage(FileBackend(str(tmp_path))) as storage:
        check_damage(storage)


def test_damage_in_a_drive_is_told_and_storing_again_repairs_it() -> None:
    drive = Drive.create()
    drive.write(f"/{sha(b'true').hex()}", b"false")
    with Storage(DriveBackend(drive)) as storage:
        check_damage(storage)


def check_damage(storage: Storage) -> None:
    name = sha(b"true")
    assert [bad.digest for bad in storage.verify()] == [name]
    for call in (storage.get, storage.stream):
        with pytest.raises(Corruption, match=name.hex()):
            call(name)
    assert storage.exists(name)
    storage.put(b"true")
    assert storage.get(name) == b"true"
    assert storage.verify() == []


def test_states_in_the_lattice_join_and_bring_back_what_was_deleted() -> None:
    here, there = LatticeBackend(), LatticeBackend()
    with Storage(here) as one, Storage(there) as two:
        one.put(b"one")
        two.put(b"two")
        there.merge(here.state)
        assert [two.get(sha(b"one")), two.get(sha(b"two"))] == [b"one", b"two"]
        two.delete(sha(b"one"))
        assert len(two) == 1
        there.merge(here.state)
        there.merge(Index.of({sha(b"forged"): b"other"}))
        assert len(two) == 2
        assert two.verify() == []


def test_files_are_named_by_hash_and_other_names_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("mine")
    (tmp_path / sha(b"x").hex().upper()).write_text("upper case is no name of ours")
    (tmp_path / f"{sha(b'y').hex()}.00{PART_SUFFIX}").write_text("half")
    with Storage(FileBackend(str(tmp_path))) as storage:
        assert storage.is_empty
        storage.put(b"one")
        assert (tmp_path / sha(b"one").hex()).read_bytes() == b"one"
        assert len(storage) == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == PART_SUFFIX) == []


@pytest.mark.parametrize("name", ["absent", "file"])
def test_a_folder_has_to_be_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="not a folder for content"):
        Storage(FileBackend(str(tmp_path / name))).initialise()


@pytest.mark.parametrize("folder", ["/absent", "/file"])
def test_a_directory_of_a_drive_has_to_be_one(folder: str) -> None:
    drive = Drive.create()
    drive.create_file("/file")
    with pytest.raises(UsageError, match="not a directory of a drive for content"):
        Storage(DriveBackend(drive, folder)).initialise()


def test_contents_in_a_drive_come_with_the_drive_and_stay_deleted() -> None:
    here, there = Drive.create(), Drive.create()
    for drive in (here, there):
        drive.mkdir("/contents")
        drive.write("/contents/notes.txt", b"not ours")
        drive.mkdir(f"/contents/{sha(b'a directory').hex()}")
    with Storage(DriveBackend(here, "/contents")) as one:
        name = one.put(b"content")
        assert not one.exists(sha(b"a directory"))
        assert not one.delete(sha(b"a directory"))
        assert here.read(f"/contents/{name.hex()}") == b"content"
        assert list(one) == [name]
        there.replicate(here)
        with Storage(DriveBackend(there, "contents/")) as two:
            assert two.get(name) == b"content"
            assert one.delete(name)
            there.replicate(here)
            assert not two.exists(name)
            assert two.is_empty


@pytest.mark.parametrize("power_failure", [False, True])
def test_a_crash_at_any_step_leaves_whole_contents_only(power_failure: bool) -> None:
    content = b"x" * 150_000
    for step in range(1, 40):
        disk = SimDisk(step)
        disk.create_folder("/c")
        disk.sync_folder("/c")
        with Storage(FileBackend("/c", disk)) as storage:
            storage.put(b"before")
            disk.crash_at = disk.steps + step
            done = stored(storage, content)
        disk.restart(power_failure=power_failure)
        with Storage(FileBackend("/c", disk)) as storage:
            assert storage.verify() == []
            assert storage.get(sha(b"before")) == b"before"
            assert storage.exists(sha(content)) or not done
            assert len(storage) == 1 + storage.exists(sha(content))
        if done:
            return
    raise AssertionError("it never got through")


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, StoreFull), (errno.EIO, StoreFailed)])
def test_a_disk_that_refuses_is_named_and_nothing_is_kept(
    code: int, error: type[StoreError]
) -> None:
    content = b"x" * 150_000
    for step in range(1, 40):
        disk = SimDisk(step)
        disk.create_folder("/c")
        with Storage(FileBackend("/c", disk)) as storage:
            disk.fail_at, disk.fail_errno = disk.steps + step, code
            with suppress(error):
                storage.put(content)
                return
            assert storage.verify() == []
    raise AssertionError("it never got through")


def stored(storage: Storage, content: bytes) -> bool:
    try:
        storage.put(content)
    except SimulatedCrash:
        return False
    return True
