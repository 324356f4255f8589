"""Place: a folder that was restored is noticed, whatever number its inode got."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from datalattice.store.disk import RealDisk, birth_time
from datalattice.store.files import StoreFolder
from datalattice.store.placefile import PlaceFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = tmp_path / "store"
    (store / "segments").mkdir(parents=True)
    PlaceFile(StoreFolder(RealDisk(), str(store))).begun(1)
    return store


def is_moved(folder: Path) -> bool:
    return PlaceFile(StoreFolder(RealDisk(), str(folder))).moved


def test_a_folder_that_stays_is_not_moved(folder: Path) -> None:
    (folder / "segments" / "1.seg").touch()
    folder.chmod(0o755)
    (folder / "segments").chmod(0o755)
    renamed = folder.rename(folder.with_name("renamed"))
    assert not is_moved(renamed)


def test_a_restored_folder_is_noticed(folder: Path) -> None:
    backup = folder.with_name("backup")
    shutil.copytree(folder, backup)
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    assert is_moved(folder) or not birth_time(str(folder))


def test_a_folder_made_in_the_place_of_another_is_elsewhere_even_under_its_inode(
    tmp_path: Path,
) -> None:
    if not birth_time(str(tmp_path)):
        pytest.skip("this file system does not tell when a folder was made")
    folder, places, times = tmp_path / "segments", set(), set()
    for _ in range(2_000):  # the clock of a file system may be coarse
        folder.mkdir()
        places.add(RealDisk().place(str(folder)))
        times.add(birth_time(str(folder)))
        folder.rmdir()
    assert len(places) >= len(times) > 1


def test_a_birth_time_is_of_one_folder_and_stays(tmp_path: Path) -> None:
    first = birth_time(str(tmp_path))
    (tmp_path / "file").touch()
    assert birth_time(str(tmp_path)) == first
    with pytest.raises(FileNotFoundError):
        birth_time(str(tmp_path / "none"))


def copy_id(folder: Path) -> str:
    return PlaceFile(StoreFolder(RealDisk(), str(folder))).copy_id


def test_each_copy_of_a_folder_has_an_id_of_its_own_and_keeps_it(folder: Path) -> None:
    def copy(source: Path, name: str) -> Path:
        return Path(shutil.copytree(source, source.with_name(name)))

    assert copy_id(folder) == ""
    first = copy(folder, "first")
    before = copy_id(first)
    PlaceFile(StoreFolder(RealDisk(), str(first))).begun(2)  # a start that nobody has answered yet
    second = copy(first, "second")
    PlaceFile(StoreFolder(RealDisk(), str(first))).settle()
    third = copy(first, "third")
    assert copy_id(first) == before
    ids = {copy_id(one) for one in (folder, first, second, third)}
    assert len(ids) == 4
    PlaceFile(StoreFolder(RealDisk(), str(third))).settle()
    assert copy_id(third) in ids


def test_a_note_of_the_place_that_cannot_be_read_counts_as_a_copy(folder: Path) -> None:
    (folder / "place.json").write_text("?")
    assert copy_id(folder)
