"""The demo's folder: whose it is, one demo at a time, starting over."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from datalattice.errors import Timeout, UsageError
from flights import demofolder as module
from flights.demofolder import CONTENTS, DemoFolder


def test_a_demo_is_taken_up_again_unless_fresh(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path / "demo")
    for fresh, kept in ((False, True), (True, False)):
        with folder.locked():
            folder.prepare(fresh=False, limit=None)
            for name in CONTENTS:
                (folder.path / name).mkdir(exist_ok=True)
            (folder.path / "mine").write_text("kept")
        with folder.locked():
            folder.prepare(fresh=fresh, limit=None)
        assert [(folder.path / name).exists() for name in CONTENTS] == [kept] * len(CONTENTS)
        assert (folder.path / "mine").exists(), "what is not the demo's stays"


def test_other_flights_need_fresh(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path)
    folder.prepare(fresh=False, limit=10)
    with pytest.raises(UsageError, match="--fresh starts over"):
        folder.prepare(fresh=False, limit=None)
    (tmp_path / "demo.json").write_text("{")
    with pytest.raises(UsageError, match="--fresh starts over"):
        folder.prepare(fresh=False, limit=10)
    folder.prepare(fresh=True, limit=None)
    folder.prepare(fresh=False, limit=None)


def test_a_folder_of_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for folder in (DemoFolder(tmp_path), DemoFolder(tmp_path / "thesis.txt")):
        with pytest.raises(UsageError, match="name another"), folder.locked():
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_two_demos_in_one_folder_are_one_too_many(tmp_path: Path) -> None:
    first, second = DemoFolder(tmp_path), DemoFolder(tmp_path)
    with (
        first.locked(),
        pytest.raises(UsageError, match=r"another demo is running in .+$"),
        second.locked(),
    ):
        pass
    with second.locked():
        pass


def test_a_demo_waits_for_the_nodes_of_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = os.open(tmp_path / "nodes.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(node, fcntl.LOCK_EX)
    monkeypatch.setattr(module, "END_TIMEOUT_S", 0.05)
    with pytest.raises(Timeout, match="do not end"), DemoFolder(tmp_path).locked():
        pass
    os.close(node)
    monkeypatch.setattr(module, "END_TIMEOUT_S", 30.0)
    with DemoFolder(tmp_path).locked() as held:
        os.fstat(held)
