"""`dlfs://`: fsspec's own suites over a folder and over one drive, and what programs do with it."""

from __future__ import annotations

import pickle
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from datalattice.apps.dlfs import Drive
from datalattice.client import Folder, write_key
from datalattice.client.drives.drives import Drives
from datalattice.client.drives.filesystem import DLFSFileSystem
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError

MEMORY = Path("/dev/shm")
"""Where waiting for a disk costs nothing: the suites write hundreds of small files."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """Return a folder with a key."""
    place = tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else tmp_path)
    found = Folder(Path(place))
    write_key(found.key_path, KeyPair(bytes(32)))
    yield found
    shutil.rmtree(place)


@pytest.fixture
def dlfs(folder: Folder) -> Iterator[DLFSFileSystem]:
    """Return the file system of a folder."""
    found = fsspec.filesystem("dlfs", folder=folder.path)
    assert isinstance(found, DLFSFileSystem)
    yield found
    found.close()
    DLFSFileSystem.clear_instance_cache()


class OverAFolder(AbstractFixtures):  # type: ignore[misc]
    @pytest.fixture
    def fs(self, dlfs: DLFSFileSystem) -> DLFSFileSystem:
        return dlfs

    @pytest.fixture
    def fs_path(self) -> str:
        return "drive/suite"

    @pytest.fixture
    def fs_join(self) -> Any:
        return lambda *parts: "/".join(parts)


class OverADrive(OverAFolder):
    @pytest.fixture
    def fs(self, dlfs: DLFSFileSystem) -> DLFSFileSystem:
        found = fsspec.filesystem("dlfs", drive=Drive.create())
        assert isinstance(found, DLFSFileSystem)
        return found

    @pytest.fixture
    def fs_path(self) -> str:
        return "suite"


class TestGet(OverAFolder, AbstractGetTests):  # type: ignore[misc]
    pass


class TestOpen(OverAFolder, AbstractOpenTests):  # type: ignore[misc]
    pass


class TestPipe(OverAFolder, AbstractPipeTests):  # type: ignore[misc]
    pass


class TestDriveCopy(OverADrive, AbstractCopyTests):  # type: ignore[misc]
    pass


class TestDriveGet(OverADrive, AbstractGetTests):  # type: ignore[misc]
    pass


class TestDrivePut(OverADrive, AbstractPutTests):  # type: ignore[misc]
    pass


class TestDriveOpen(OverADrive, AbstractOpenTests):  # type: ignore[misc]
    pass


class TestDrivePipe(OverADrive, AbstractPipeTests):  # type: ignore[misc]
    pass


# --- what programs do with it -------------------------------------------------------------------


def test_instances_are_shared_by_what_they_lead_to(
    folder: Folder, dlfs: DLFSFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fsspec.filesystem("dlfs", folder=str(folder.path)) is dlfs
    monkeypatch.setenv("DATALATTICE_HOME", str(folder.path))
    assert fsspec.filesystem("dlfs") is dlfs
    assert fsspec.filesystem("dlfs", folder=folder.path, read_only=True) is not dlfs
    drives = [Drive.create() for _ in range(2)]
    one, two = (fsspec.filesystem("dlfs", drive=drive) for drive in drives)
    one.pipe_file("a", b"x")
    assert two.ls("") == []
    assert pickle.loads(pickle.dumps(dlfs)).fsid == dlfs.fsid


def test_what_is_written_is_durable_when_the_file_is_closed(
    folder: Folder, dlfs: DLFSFileSystem
) -> None:
    with fsspec.open("dlfs://d/deep/a.txt", "w", folder=folder.path) as file:
        file.write("first\n")
        assert not dlfs.exists("d/deep/a.txt")
    with closing(Drives(folder)) as drives:
        assert drives.drive("d").read("/deep/a.txt") == b"first\n"
    with dlfs.open("d/deep/a.txt", "ab") as file:
        assert file.tell() == 6
        file.write(b"second")
    assert dlfs.cat_file("d/deep/a.txt", -6) == b"second"
    assert dlfs.info("d/deep/a.txt")["size"] == 12
    assert dlfs.modified("d/deep/a.txt").year >= 2024


def test_an_open_file_keeps_its_content(dlfs: DLFSFileSystem) -> None:
    dlfs.pipe_file("d/a", b"old" * 200_000)
    with dlfs.open("d/a", "rb") as file:
        dlfs.pipe_file("d/a", b"new")
        assert file.read() == b"old" * 200_000
    assert dlfs.cat_file("d/a") == b"new"


def test_a_transaction_is_one_commit_or_nothing(folder: Folder, dlfs: DLFSFileSystem) -> None:
    dlfs.mkdir("d")
    with dlfs.transaction:
        for name in "abc":
            with dlfs.open(f"d/{name}", "wb") as file:
                file.write(name.encode())
        assert dlfs.ls("d") == []
    assert dlfs.ls("d", detail=False) == ["d/a", "d/b", "d/c"]

    def interrupted() -> None:
        with dlfs.transaction:
            dlfs.pipe_file("d/x", b"x")
            raise ZeroDivisionError

    def too_late() -> None:
        with dlfs.transaction:
            with dlfs.open("d/x", "wb") as file:
                file.write(b"x")
            with dlfs.open("d/z", "xb") as file:
                file.write(b"z")
            _write_beside(folder, "/z")

    for error, attempt in ((ZeroDivisionError, interrupted), (FileExistsError, too_late)):
        with pytest.raises(error):
            attempt()
        assert not dlfs.exists("d/x")
    assert dlfs.cat_file("d/z") == b"faster"
    dlfs.pipe_file("d/x", b"x")  # at once: the transactions are over
    assert dlfs.cat_file("d/x") == b"x"


def _write_beside(folder: Folder, path: str) -> None:
    with closing(Drives(folder)) as drives, drives.writing() as writer:
        writer.edit(lambda drive_of: drive_of("d").write(path, b"faster"))


def test_mistakes_are_those_of_the_operating_system(folder: Folder, dlfs: DLFSFileSystem) -> None:
    dlfs.pipe({"d/a/b": b"x", "d/f": b"y"})
    for error, wrong in (
        (FileNotFoundError, lambda: dlfs.cat_file("d/no")),
        (FileNotFoundError, lambda: dlfs.ls("no")),
        (FileNotFoundError, lambda: dlfs.rm("d/no")),
        (IsADirectoryError, lambda: dlfs.cat_file("d/a")),
        (IsADirectoryError, lambda: dlfs.open("d/a", "wb")),
        (IsADirectoryError, lambda: dlfs.rm("d/a")),
        (FileExistsError, lambda: dlfs.pipe_file("d/f/g", b"")),
        (FileExistsError, lambda: dlfs.mkdir("d/a")),
        (FileExistsError, lambda: dlfs.makedirs("d/a")),
        (OSError, lambda: dlfs.rmdir("d/a")),
        (ValueError, lambda: dlfs.open("d/f", "r+b")),
    ):
        with pytest.raises(error):
            wrong()
    read_only = fsspec.filesystem("dlfs", folder=folder.path, read_only=True)
    with pytest.raises(OSError, match="opened with read_only"):
        read_only.open("d/f", "wb")
    other = fsspec.filesystem("dlfs", folder=folder.path, owner="00" * 32)
    assert other.ls("") == []
    with pytest.raises(OSError, match=r"only the key .* can write to these drives"):
        other.pipe_file("d/f", b"")
    for one in (read_only, other):
        one.close()
    strict = fsspec.filesystem("dlfs", folder=folder.path, auto_mkdir=False)
    with pytest.raises(FileNotFoundError):
        strict.open("d/no/such", "wb")
    strict.close()


def test_moves_between_drives_and_removals(dlfs: DLFSFileSystem) -> None:
    dlfs.pipe({"d/a/b": b"x" * 10_000, "d/a/c/e": b"y"})
    dlfs.mv("d/a", "other/place")
    assert dlfs.find("") == ["other/place/b", "other/place/c/e"]
    dlfs.mv("other/place/b", "other/new")
    dlfs.rm("other/place", recursive=True)
    assert dlfs.find("other") == ["other/new"]
    dlfs.rm("other", recursive=True)
    assert dlfs.ls("other") == []
    assert dlfs.ls("", detail=False) == ["d", "other"]


def test_moves_by_pattern_and_names_that_look_like_one(dlfs: DLFSFileSystem) -> None:
    dlfs.pipe({"d/a/x.txt": b"x", "d/a/y.txt": b"y", "d/a/z": b"z", "d/[x]*": b"odd"})
    dlfs.mkdir("d/b")
    dlfs.mv("d/a/*.txt", "d/b/")
    assert dlfs.find("d") == ["d/[x]*", "d/a/z", "d/b/x.txt", "d/b/y.txt"]
    dlfs.mv("d/[x]*", "d/odd")
    assert dlfs.cat_file("d/odd") == b"odd"


@pytest.mark.parametrize("path", ["../x", "./x", "..", "dlfs://.."])
def test_no_drive_is_named_by_dots(dlfs: DLFSFileSystem, path: str) -> None:
    with pytest.raises(UsageError, match="name of a drive"):
        dlfs.pipe_file(path, b"")
    assert not dlfs.exists(path)
    assert dlfs.ls("") == []


def test_pandas_and_pyarrow(folder: Folder, dlfs: DLFSFileSystem) -> None:
    pandas = pytest.importorskip("pandas")
    dataset = pytest.importorskip("pyarrow.dataset")
    pyarrow_fs = pytest.importorskip("pyarrow.fs")
    options = {"folder": str(folder.path)}
    frame = pandas.DataFrame({"n": range(1_000), "w": [f"w{n % 7}" for n in range(1_000)]})
    frame.to_csv("dlfs://d/t/frame.csv", index=False, storage_options=options)
    assert pandas.read_csv("dlfs://d/t/frame.csv", storage_options=options).equals(frame)
    frame.to_parquet("dlfs://d/t/frame.parquet", storage_options=options)
    assert pandas.read_parquet("dlfs://d/t/frame.parquet", storage_options=options).equals(frame)
    arrow = pyarrow_fs.PyFileSystem(pyarrow_fs.FSSpecHandler(dlfs))
    table = dataset.dataset("d/t/frame.parquet", filesystem=arrow).to_table()
    dataset.write_dataset(
        table,
        "d/set",
        filesystem=arrow,
        format="parquet",
        partitioning=["w"],
        partitioning_flavor="hive",
    )
    found = dataset.dataset("d/set", filesystem=arrow, partitioning="hive", format="parquet")
    assert sorted(found.to_table()["n"].to_pylist()) == list(range(1_000))
    assert len(dlfs.ls("d/set")) == 7
