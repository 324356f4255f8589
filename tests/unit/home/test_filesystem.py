"""`dlfs://`: fsspec's own suites over a folder and over one drive, and what programs do with it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
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
from datalattice.crypto import KeyPair
from datalattice.home import Folder, write_key
from datalattice.home.filesystem import DLFSFileSystem

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


class TestCopy(OverAFolder, AbstractCopyTests):  # type: ignore[misc]
    pass


class TestGet(OverAFolder, AbstractGetTests):  # type: ignore[misc]
    pass


class TestPut(OverAFolder, AbstractPutTests):  # type: ignore[misc]
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
