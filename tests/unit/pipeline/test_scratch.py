"""Scratch: each driver has a folder, and what a killed one left is removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from datalattice.errors import UsageError
from datalattice.pipeline.spark import scratch
from datalattice.pipeline.spark.java import private_folder
from datalattice.pipeline.spark.scratch import FOLDER_CHARS_MAX, remove_scratch, scratch_folder
from datalattice.testing.processes import killing

PATIENCE_S = 50.0

KILLED = """
import os, signal
from datalattice.pipeline.spark.scratch import scratch_folder
folder = scratch_folder()
(folder / "blockmgr").mkdir()
(folder / "blockmgr" / "data").write_text("left")
print(folder, flush=True)
{end}
"""


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a temporary folder with a short path to this process and those that it starts."""
    monkeypatch.setattr(scratch, "_own", {})
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(folder)
        remove_scratch()


def left(base: Path) -> set[Path]:
    return set(base.glob("datalattice-*/spark-*"))


def run(end: str) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-c", KILLED.format(end=end)]
    pipe = subprocess.PIPE
    return killing(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))


def told(driver: subprocess.Popen[str]) -> Path:
    assert driver.stdout is not None
    return Path(driver.stdout.readline().strip())


def test_what_is_not_a_folder_of_a_session_is_left_alone(base: Path) -> None:
    root = base / f"datalattice-{os.getuid()}"
    root.mkdir()
    (root / "spark-notes").write_text("mine")
    folder = scratch_folder()
    assert folder is not None
    assert folder.parent == root
    assert (root / "spark-notes").read_text() == "mine"


def test_a_link_in_the_place_of_the_folder_is_not_followed(base: Path) -> None:
    home = base / "home"
    (home / "spark-4").mkdir(parents=True)  # a folder without a lock, as a killed session leaves it
    (base / f"datalattice-{os.getuid()}").symlink_to(home)
    with pytest.raises(PermissionError, match="not a folder"):
        private_folder(base)
    folder = scratch_folder()
    assert folder is None or home not in folder.resolve().parents
    assert (home / "spark-4").is_dir()


def test_a_process_has_one_folder_until_it_is_removed(base: Path) -> None:
    folder = scratch_folder()
    assert folder is not None
    assert folder.parent == base / f"datalattice-{os.getuid()}"
    assert folder.stat().st_mode & 0o077 == 0
    assert scratch_folder() == folder
    remove_scratch()
    remove_scratch()
    assert left(base) == set()
    assert scratch_folder() not in {None, folder}


@pytest.mark.processes
def test_what_a_killed_driver_left_goes_and_what_a_living_one_has_stays(base: Path) -> None:
    with run("os.kill(os.getpid(), signal.SIGKILL)") as killed, run("input()") as living:
        gone, stays = told(killed), told(living)
        assert killed.wait(PATIENCE_S) == -signal.SIGKILL
        (gone.parent / "spark-without-lock").mkdir()
        own = scratch_folder()
        assert left(base) == {stays, own}
        assert (stays / "blockmgr" / "data").read_text() == "left"
        living.communicate("\n", PATIENCE_S)


@pytest.mark.parametrize(("spare", "used"), [(0, True), (-1, False)])
def test_a_path_is_short_enough_for_sockets(
    base: Path, monkeypatch: pytest.MonkeyPatch, spare: int, used: bool
) -> None:
    need = len(f"{base}//datalattice-{os.getuid()}/spark-12345678")
    long = base / ("x" * (FOLDER_CHARS_MAX - need - spare))
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = scratch_folder()
    assert folder is not None
    assert (long in folder.parents) == used
    assert len(str(folder)) <= FOLDER_CHARS_MAX


def test_without_any_temporary_folder_it_is_said_what_to_do(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = [str(base / "gone"), str(base / "nor here")]
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: nowhere)
    with pytest.raises(
        UsageError, match=r"No usable temporary directory .* set TMPDIR to a writable folder"
    ):
        scratch_folder()


def test_without_a_folder_to_write_to_java_uses_its_own(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_base: Path) -> Path:
        raise PermissionError("not yours")

    monkeypatch.setattr(scratch, "private_folder", refused)
    assert scratch_folder() is None
    assert left(base) == set()
