"""Place: a folder that was restored is noticed, whatever number its inode got."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from datalattice.store.birthtime import birth_time
from datalattice.store.disk import RealDisk
from datalattice.store.place import PlaceFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = tmp_path / "store"
    (store / "segments").mkdir(parents=True)
    PlaceFile(RealDisk(), str(store)).begun(1)
    return store


def is_moved(folder: Path) -> bool:
    return PlaceFile(RealDisk(), str(folder)).moved


def test_a_folder_that_stays_is_not_moved(folder: Path) -> None:
    (folder / "segments" / "1.seg").touch()
    folder.chmod(0o755)
    (folder / "segments").chmod(0o755)
    renamed = folder.rename(folder.with_name("renamed"))
    assert not is_moved(renamed)


def test_a_restored_folder_is_noticed_even_under_the_inode_of_the_old_one(folder: Path) -> None:
    if not birth_time(str(folder)):
        pytest.skip("this file system does not tell when a folder was made")
    backup = folder.with_name("backup")
    shutil.copytree(folder, backup)
    for _ in range(20):  # some of them get the old number, on ext4 all
        shutil.rmtree(folder)
        shutil.copytree(backup, folder)
        assert is_moved(folder)


def test_a_birth_time_is_of_one_folder_and_stays(tmp_path: Path) -> None:
    first = birth_time(str(tmp_path))
    (tmp_path / "file").touch()
    assert birth_time(str(tmp_path)) == first
    with pytest.raises(FileNotFoundError):
        birth_time(str(tmp_path / "none"))
