"""Upgrades: what a newer and an older folder get, and what kill -9 leaves of a migration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import datalattice
from datalattice.client import Folder
from datalattice.client.opening import in_line
from datalattice.client.upgrading import (
    FORMAT_FILE,
    MIGRATIONS,
    PARTS,
    UNNOTED,
    Migration,
    check_format,
    guard_folder,
)
from datalattice.crypto import KeyPair
from datalattice.errors import Corruption, StoreVersion
from datalattice.store import RealDisk, replace_file
from datalattice.testing.children import begin_child
from datalattice.version import VERSION

NEXT = {**PARTS, "settings": PARTS["settings"] + 2}


def double(copies: Path, folder: Path) -> None:
    """Write the text of a file twice, and a second file: made twice, it must not double again."""
    text = (copies / "names.json").read_bytes()
    replace_file(RealDisk(), str(folder / "names.json"), [text, text])
    replace_file(RealDisk(), str(folder / "more.json"), [text])


def upper(copies: Path, folder: Path) -> None:
    replace_file(
        RealDisk(), str(folder / "names.json"), [(copies / "names.json").read_bytes().upper()]
    )


STEPS = (
    Migration("settings", PARTS["settings"] + 1, ("names.json",), double),
    Migration("settings", PARTS["settings"] + 2, ("names.json", "absent"), upper),
)


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def written(folder: Path, parts: dict[str, int], package: str = "9.9") -> Path:
    folder.mkdir()
    (folder / FORMAT_FILE).write_text(json.dumps({"package": package, "parts": parts}))
    return folder


def test_a_folder_is_noted_once(tmp_path: Path) -> None:
    assert guard_folder(tmp_path) == []
    assert json.loads((tmp_path / FORMAT_FILE).read_text()) == {"package": VERSION, "parts": PARTS}
    before = (tmp_path / FORMAT_FILE).stat().st_ino
    assert guard_folder(tmp_path) == []
    assert (tmp_path / FORMAT_FILE).stat().st_ino == before
    assert {step.part for step in MIGRATIONS} <= set(PARTS)


@pytest.mark.parametrize("part", [*PARTS, "venues"])
def test_a_newer_folder_is_refused_with_both_versions_and_untouched(
    part: str, tmp_path: Path
) -> None:
    newer = PARTS.get(part, 0) + 1
    folder = written(tmp_path / "n", {**PARTS, part: newer})
    before = content(folder)
    ours = f"up to {PARTS[part]}" if part in PARTS else "no such part"
    with pytest.raises(
        StoreVersion, match=f"by datalattice 9.9: its {part} has version {newer}.*{ours}"
    ):
        guard_folder(folder)
    for key in (None, KeyPair.generate()):
        with pytest.raises(StoreVersion):
            datalattice.open(folder, key=key)
    with pytest.raises(StoreVersion):
        in_line(Folder(folder), lambda: None, 0.0)
    assert content(folder) == before


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"package": 1, "parts": {"store": "x"}}', "[" * 7_000]
)
def test_a_note_that_cannot_be_read_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / FORMAT_FILE).write_text(text)
    with pytest.raises(Corruption, match=FORMAT_FILE):
        check_format(tmp_path)


def test_an_older_folder_is_copied_migrated_and_noted(tmp_path: Path) -> None:
    folder = written(tmp_path / "n", dict(PARTS))
    (folder / "names.json").write_text("ab")
    assert guard_folder(folder, NEXT, STEPS) == list(STEPS)
    assert (folder / "names.json").read_text() == "ABAB"
    first, second = (folder / f"before-settings-{step.version}" for step in STEPS)
    assert (first / "names.json").read_text() == "ab"
    assert (second / "names.json").read_text() == "abab"
    assert check_format(folder, NEXT) == NEXT
    assert guard_folder(folder, NEXT, STEPS) == []
    with pytest.raises(StoreVersion):  # and the earlier version refuses what was migrated
        guard_folder(folder)


def test_a_folder_without_a_note_has_the_first_versions(tmp_path: Path) -> None:
    assert check_format(tmp_path, NEXT) == NEXT  # it is new: nothing is to be migrated
    (tmp_path / "store").mkdir()
    (tmp_path / "names.json").write_text("ab")
    assert check_format(tmp_path, NEXT) == UNNOTED
    assert guard_folder(tmp_path, NEXT, STEPS) == list(STEPS)


KILLED = """
import os, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from test_upgrading import NEXT, STEPS, guard_folder
left = int(sys.argv[2])
def dying(real):
    def call(*args, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return real(*args, **options)
    return call
os.fsync, os.rename, os.replace = dying(os.fsync), dying(os.rename), dying(os.replace)
os.fdatasync = dying(os.fdatasync)
guard_folder(Path(sys.argv[1]), NEXT, STEPS)
"""


def test_processes_that_begin_a_folder_together_all_write(tmp_path: Path) -> None:
    def offer(number: int) -> int:
        os.read(reader, 1)
        with datalattice.open(path) as node:
            return node.queue("log").offer(number)

    for trial in range(3):
        path = tmp_path / f"{trial}"
        reader, writer = os.pipe()
        results = [begin_child(partial(offer, number)) for number in range(6)]
        os.write(writer, b"!" * len(results))
        assert sorted(result() for result in results) == list(range(6))
        os.close(reader)
        os.close(writer)


@pytest.mark.processes
def test_kill_9_at_any_point_of_a_migration_loses_nothing(tmp_path: Path) -> None:
    code = KILLED.format(paths=[str(Path(__file__).parent)])
    for point in range(0, 60, 3):
        folder = written(tmp_path / str(point), dict(PARTS))
        (folder / "names.json").write_text("ab")
        ran = subprocess.run(
            [sys.executable, "-c", code, str(folder), str(point)], check=False, timeout=60
        )
        left = guard_folder(folder, NEXT, STEPS)
        assert ran.returncode == (-9 if left else ran.returncode)
        assert (folder / "names.json").read_text() == "ABAB"
        assert (folder / "before-settings-3" / "names.json").read_text() == "ab"
        assert check_format(folder, NEXT) == NEXT
        if ran.returncode == 0:
            break
    else:
        raise AssertionError("it was never made to its end")
    assert point > 6
