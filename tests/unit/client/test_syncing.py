"""Syncing: both sides get what the other changed, and nothing that both changed is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from datalattice.client import Folder, write_key
from datalattice.client.drives.drives import DriveOf, Drives
from datalattice.client.drives.syncing import Direction, Side, Sync, SyncResult
from datalattice.client.drives.transfer import walk_local
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError


class SyncPair:
    """A local folder and the directory `/p` of a drive."""

    def __init__(self, place: Path) -> None:
        self.folder = Folder(place / "home")
        write_key(self.folder.key_path, KeyPair(bytes(32)))
        self.local = place / "local"
        self.local.mkdir()

    def sync(self, **options: Any) -> SyncResult:
        with closing(Drives(self.folder)) as drives:
            return Sync(drives, "d", "/p", self.local, **options).run()

    def put(self, name: str, data: bytes) -> None:
        """Write a local file, later than any before."""
        path = self.local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self._stamp = getattr(self, "_stamp", 10**9) + 1
        os.utime(path, ns=(self._stamp, self._stamp))

    def edit(self, name: str, data: bytes | None) -> None:
        """Write a file in the drive; None deletes it."""

        def change(drive_of: DriveOf) -> None:
            path = f"/p/{name}"
            if data is None:
                drive_of("d").delete(path)
            else:
                drive_of("d").makedirs(path.rpartition("/")[0])
                drive_of("d").write(path, data)

        with closing(Drives(self.folder)) as drives, drives.writing() as writer:
            writer.edit(change)

    def here(self) -> dict[str, bytes | None]:
        return {
            "/".join(one.names): None if one.is_dir else one.path.read_bytes()
            for one in walk_local(self.local, len)
        }

    def there(self) -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {}
        with closing(Drives(self.folder)) as drives:
            drive = drives.drive("d")
            for path, directories, files in drive.walk("/p"):
                start = "".join(f"{name}/" for name in path.split("/")[2:])
                found.update({start + name: None for name in directories})
                found.update({start + name: drive.read(f"{path}/{name}") for name in files})
        return found


@pytest.fixture
def pair(tmp_path: Path) -> SyncPair:
    """Return a pair that was synchronised once."""
    made = SyncPair(tmp_path)
    for name in ("a", "b", "deep/c", "deep/er/d"):
        made.put(name, name.encode() * 3)
    outcome = made.sync()
    assert outcome.to_drive == ["a", "b", "deep", "deep/c", "deep/er", "deep/er/d"]
    assert made.there() == made.here()
    return made


def test_what_did_not_change_is_neither_read_nor_written(pair: SyncPair) -> None:
    outcome = pair.sync()
    assert outcome == SyncResult()
    pair.put("a", b"new")
    assert pair.sync().read_bytes == [3]
    assert pair.sync() == SyncResult()


def test_each_side_gets_what_the_other_changed(pair: SyncPair) -> None:
    pair.put("a", b"from here")
    pair.edit("b", b"from there")
    pair.edit("new/n", b"made there")
    outcome = pair.sync()
    assert (outcome.to_drive, outcome.to_local) == (["a"], ["b", "new", "new/n"])
    assert pair.here() == pair.there()
    assert pair.here()["b"] == b"from there"
    assert pair.sync() == SyncResult()


def test_what_both_changed_is_named_and_left_until_one_side_is_preferred(pair: SyncPair) -> None:
    pair.put("a", b"mine")
    pair.edit("a", b"theirs")
    for _ in range(2):
        outcome = pair.sync()
        assert outcome.conflicts == ["a"]
        assert not outcome.is_complete
        assert (pair.here()["a"], pair.there()["a"]) == (b"mine", b"theirs")
    assert pair.sync(prefer=Side.DRIVE).to_local == ["a"]
    assert pair.here()["a"] == b"theirs"
    assert pair.sync() == SyncResult()


def test_equal_changes_on_both_sides_are_no_conflict(pair: SyncPair) -> None:
    pair.put("a", b"same")
    pair.edit("a", b"same")
    assert pair.sync().is_complete
    assert pair.sync() == SyncResult()


def test_what_was_deleted_comes_back_unless_deletions_are_wanted(pair: SyncPair) -> None:
    (pair.local / "a").unlink()
    pair.edit("b", None)
    outcome = pair.sync()
    assert (outcome.to_local, outcome.to_drive) == (["a"], ["b"])
    (pair.local / "a").unlink()
    pair.edit("b", None)
    outcome = pair.sync(delete=True)
    assert (outcome.deleted_in_drive, outcome.deleted_locally) == (["a"], ["b"])
    assert pair.here() == pair.there()
    assert "a" not in pair.here()
    assert pair.sync() == SyncResult()


def test_a_change_outlives_a_deletion(pair: SyncPair) -> None:
    for name in ("deep/er/d", "deep/c"):
        (pair.local / name).unlink()
    (pair.local / "deep/er").rmdir()
    (pair.local / "deep").rmdir()
    pair.edit("deep/er/d", b"changed there")
    outcome = pair.sync(delete=True)
    assert outcome.deleted_in_drive == ["deep/c"]
    assert outcome.to_local == ["deep", "deep/er", "deep/er/d"]
    assert outcome.is_complete
    assert pair.here() == pair.there()


def test_one_way_leaves_the_other_side_as_it_is(pair: SyncPair) -> None:
    pair.put("a", b"from here")
    pair.edit("b", b"from there")
    pair.edit("more", b"only there")
    before = pair.here()
    outcome = pair.sync(direction=Direction.TO_DRIVE)
    assert (outcome.to_drive, outcome.conflicts) == (["a"], ["b"])
    assert pair.here() == before
    assert pair.sync(direction=Direction.TO_DRIVE, prefer=Side.LOCAL).to_drive == ["b"]
    assert pair.there()["b"] == b"bbb"
    outcome = pair.sync(direction=Direction.TO_LOCAL)
    assert outcome.to_local == ["more"]
    assert pair.here() == pair.there()


def test_a_file_here_and_a_directory_there_are_a_conflict(pair: SyncPair) -> None:
    (pair.local / "a").unlink()
    pair.put("a/x", b"x")
    outcome = pair.sync(prefer=Side.LOCAL)
    assert outcome.conflicts == ["a"]
    assert pair.there()["a"] == b"aaa"


def test_a_dry_run_tells_and_does_nothing(pair: SyncPair) -> None:
    pair.put("a", b"from here")
    pair.edit("b", b"from there")
    here, there = pair.here(), pair.there()
    for _ in range(2):
        outcome = pair.sync(dry_run=True)
        assert (outcome.to_drive, outcome.to_local) == (["a"], ["b"])
    assert (pair.here(), pair.there()) == (here, there)


def _meanwhile(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Have something happen between looking and writing."""
    plan = Sync._plan

    def planned(self: Sync, *arguments: Any) -> Any:
        found = plan(self, *arguments)
        do()
        return found

    monkeypatch.setattr(Sync, "_plan", planned)


def test_what_changes_while_it_runs_is_not_written_over(
    pair: SyncPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.put("a", b"from here")
    pair.edit("b", b"from there")

    def do() -> None:
        pair.edit("a", b"meanwhile there")
        pair.put("b", b"meanwhile here")

    with monkeypatch.context() as patch:
        _meanwhile(patch, do)
        outcome = pair.sync()
    assert [one.partition(":")[0] for one in outcome.failed] == ["a", "b"]
    assert (pair.here()["a"], pair.there()["a"]) == (b"from here", b"meanwhile there")
    assert (pair.here()["b"], pair.there()["b"]) == (b"meanwhile here", b"from there")
    assert pair.sync().conflicts == ["b", "a"]


def test_a_damaged_memory_is_named(pair: SyncPair) -> None:
    (memory,) = (pair.folder.path / "sync").iterdir()
    memory.write_text("{")
    with pytest.raises(UsageError, match="is damaged"):
        pair.sync()


def test_a_change_that_set_its_time_back_is_noticed(pair: SyncPair) -> None:
    before = (pair.local / "a").stat()
    (pair.local / "a").write_bytes(b"AAA")
    os.utime(pair.local / "a", ns=(before.st_mtime_ns, before.st_mtime_ns))
    assert pair.sync().to_drive == ["a"]
    (pair.local / "a").write_bytes(b"BBB")
    os.utime(pair.local / "a", ns=(before.st_mtime_ns, before.st_mtime_ns))
    pair.edit("a", b"CCC")
    assert pair.sync().conflicts == ["a"]
    assert (pair.here()["a"], pair.there()["a"]) == (b"BBB", b"CCC")


def test_what_has_no_place_in_a_drive_counts_as_no_deletion(pair: SyncPair, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (pair.local / "deep").rename(elsewhere)
    (pair.local / "deep").symlink_to(elsewhere)
    (pair.local / "a").unlink()
    (pair.local / "a").symlink_to("b")
    pair.edit("deep/new", b"new")
    pair.edit("deep/er/d", None)
    before = pair.there()
    outcome = pair.sync(delete=True)
    assert outcome.is_complete
    assert len(outcome.passed_over) == 2
    assert (outcome.to_local, outcome.to_drive) == ([], [])
    assert (outcome.deleted_in_drive, outcome.deleted_locally) == ([], [])
    assert pair.there() == before
    assert sorted(one.name for one in elsewhere.iterdir()) == ["c", "er"]
    assert (elsewhere / "er" / "d").is_file()
    (pair.local / "deep").unlink()
    elsewhere.rename(pair.local / "deep")
    assert pair.sync(delete=True).deleted_locally == ["deep/er/d"]


def test_nothing_on_one_side_does_not_empty_the_other(pair: SyncPair, tmp_path: Path) -> None:
    before = pair.there()
    pair.local.rename(tmp_path / "unmounted")
    with pytest.raises(UsageError, match="local is missing or empty"):
        pair.sync(delete=True)
    pair.local.mkdir()
    with pytest.raises(UsageError, match="local is missing or empty"):
        pair.sync(delete=True)
    assert pair.there() == before
    pair.local.rmdir()
    (tmp_path / "unmounted").rename(pair.local)
    for name in ("a", "b", "deep/c", "deep/er/d", "deep/er", "deep"):
        pair.edit(name, None)
    with pytest.raises(UsageError, match="d:/p is missing or empty"):
        pair.sync(delete=True)
    assert pair.here() == before
    assert sorted(pair.sync().to_drive) == sorted(before)


def test_what_a_killed_download_left_goes_nowhere(pair: SyncPair) -> None:
    pair.put(".lattice-x1y2z3.part", b"half")
    outcome = pair.sync()
    assert outcome.to_drive == []
    assert "unfinished download" in outcome.passed_over[0]
