"""`lattice fs`: what goes in comes out, and mistakes are one line each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.dlfs import Drive, make_directory, make_file
from datalattice.cells import Index
from datalattice.client import Folder, editing
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import named


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a local folder with files, an empty directory, and what no drive can hold."""
    root = tmp_path / "tree"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "a.txt").write_bytes(b"first")
    (root / "deep" / "er" / "b.bin").write_bytes(bytes(range(256)) * 40)
    (root / "deep" / "ü \n'\".txt").write_bytes(b"odd")
    (root / "link").symlink_to(root / "a.txt")
    os.mkfifo(root / "pipe")
    return root


def contents(root: Path) -> dict[str, bytes | None]:
    """Return what is below a folder: the bytes of files, None for directories."""
    return {
        path.relative_to(root).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_dir() or path.is_file()
        if not path.is_symlink()
    }


def test_a_tree_goes_in_and_comes_out_as_it_was(
    lattice: Any, owner: str, tree: Path, tmp_path: Path
) -> None:
    ran = lattice("fs", "put", "-r", tree, "d:", "--json")
    assert ran.document == {"files": 3, "bytes": 10_248, "to": ["d:/tree"]}
    assert "link: a symbolic link" in ran.err
    assert "pipe: neither a file nor a directory" in ran.err
    assert lattice("fs", "get", "-r", "d:/tree", tmp_path / "out").code == 0
    assert contents(tmp_path / "out") == contents(tree)
    lattice("fs", "get", "-r", "d:/tree", tmp_path / "out")  # into the directory that is there now
    assert contents(tmp_path / "out" / "tree") == contents(tree)
    assert lattice("fs", "du", "d:tree", "--json").document == {
        "bytes": 10_248,
        "files": 3,
        "directories": 4,
    }
    assert lattice("fs", "drives", "--json").document == [
        {"owner": owner, "drive": "d", "files": 3, "bytes": 10_248}
    ]


@pytest.mark.usefixtures("owner")
def test_what_was_written_is_seen(lattice: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x" * 5)
    assert lattice("fs", "mkdir", "d:", "d:a").code == 0
    assert lattice("fs", "put", tmp_path / "x", "d:a/y").out == "1 file, 5 bytes to d:/a/y\n"
    assert lattice("fs", "cp", "d:a/y", "d:z").code == 0
    assert lattice("fs", "cp", "-r", "d:a", "e:a").code == 0
    assert lattice("fs", "mv", "d:z", "e:").code == 0
    assert lattice("fs", "ls", "d:").out == "a/\n"
    assert lattice("fs", "ls", "e:").out == "a/\nz\n"
    assert lattice("fs", "tree", "e:").out.splitlines() == ["e:", "├─ a/", "│  └─ y  5", "└─ z  5"]
    assert lattice("fs", "rm", "-r", "e:a").code == 0
    found = lattice("fs", "ls", "e:", "--json").document
    assert [(one["name"], one["type"], one["size"]) for one in found] == [("z", "file", 5)]


@pytest.mark.usefixtures("owner")
def test_large_files_come_out_as_they_are(lattice: Any, tmp_path: Path) -> None:
    data = bytes(range(256)) * 5_000
    (tmp_path / "x").write_bytes(data)
    lattice("fs", "put", tmp_path / "x", "d:x")
    assert lattice("fs", "get", "d:x", tmp_path / "back").code == 0
    assert (tmp_path / "back").read_bytes() == data


@pytest.mark.usefixtures("owner")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cp", "a", "b"], "one side is a drive"),
        (["ls", "d"], "a path in a drive is DRIVE:PATH, got 'd'"),
        (["ls", "nix:"], "there is no drive 'nix'"),
        (["cat", "d:nix"], "there is nothing at /nix"),
        (["cat", "d:dir"], "/dir is a directory"),
        (["rm", "d:dir"], "is not empty"),
        (["rm", "-r", "d:"], "the root of a drive"),
        (["mkdir", "d:dir"], "exists already"),
        (["mkdir", "d:no/such"], "there is no directory /no"),
        (["put", "nix", "d:"], "nix does not exist"),
        (["put", ".", "d:"], "copy it with --recursive"),
        (["cp", "d:dir", "d:other"], "copy it with --recursive"),
        (["cp", "-r", "d:dir", "d:dir/below"], "is inside"),
        (["cp", "-r", "d:dir/x", "d:dir/x", "d:new"], "d:/new is not a directory"),
        (["get", "d:dir", "."], "copy it with --recursive"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(
    lattice: Any, arguments: list[str], words: str
) -> None:
    lattice("fs", "mkdir", "-p", "d:dir/x")
    before = lattice("fs", "tree", "d:", "--json").document
    ran = lattice("fs", *arguments)
    is_absent = any(text in words for text in ("there is no", "does not exist"))
    assert ran.code == (1 if is_absent else 2)
    assert words in ran.line()
    assert lattice("fs", "tree", "d:", "--json").document == before


def test_a_drive_of_somebody_else_is_read_by_its_name(lattice: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    homes = [("--dir", tmp_path / name) for name in ("a", "b", "c")]
    owners = [lattice("key", "new", *one, "--json").document["public_key"] for one in homes]
    for one, owner in zip(homes[:2], owners, strict=False):
        assert lattice("fs", "put", tmp_path / "x", f"d:{owner[:4]}", *one).code == 0
    merge = ("--merge", *homes[2])
    assert lattice("disk", "import", tmp_path / "a", *merge).code == 0
    assert lattice("fs", "ls", "d:", *homes[2]).out == f"{owners[0][:4]}\n"
    assert "no drive 'e' here" in lattice("fs", "ls", "e:", *homes[2]).line()
    assert lattice("disk", "import", tmp_path / "b", *merge).code == 0
    several = lattice("fs", "ls", "d:", *homes[2])
    assert (several.code, "--owner" in several.line()) == (2, True)
    assert lattice("fs", "ls", "d:", "-o", owners[1], *homes[2]).out == f"{owners[1][:4]}\n"
    assert lattice("fs", "put", tmp_path / "x", "d:own", *homes[2]).code == 0
    assert lattice("fs", "ls", "d:", *homes[2]).out == "own\n"
    assert lattice("fs", "cat", "d:own", *homes[2]).code == 0


@pytest.mark.usefixtures("owner")
def test_files_go_to_the_present_folder_when_none_is_named(
    lattice: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "xy":
        (tmp_path / name).write_bytes(name.encode())
    assert lattice("fs", "put", tmp_path / "x", tmp_path / "y", "d:").code == 0
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert lattice("fs", "get", "d:x").out == "1 file, 1 byte to x\n"
    assert lattice("fs", "get", "d:x", "d:y").code == 0
    assert sorted(one.name for one in (tmp_path / "here").iterdir()) == ["x", "y"]
    assert "DRIVE:PATH, got 'x'" in lattice("fs", "get", "x").line()
    assert lattice("fs", "get").code == 2


def test_get_passes_over_names_that_no_local_file_can_have(
    lattice: Any, owner: str, tmp_path: Path
) -> None:
    assert owner
    file = make_file(b"x", 5)
    names = ["..", ".", "nul\0", "n" * 256, "n" * 255, "fine", "two"]
    with editing(Folder(tmp_path / "home")) as editor:

        def change(cursor: RootLattice, keys: KeyPair) -> None:
            drive = Drive.at(cursor, keys.public_key, "home")
            entries = named([(name, file) for name in names])
            two = make_directory(Index.of([("f", file)]), 5)
            entries = entries.put_many([("one", two), ("two", two)])
            drive.cursor.set(make_directory(Index.of([("d", make_directory(entries, 5))]), 5))

        editor.edit(change)
    target = tmp_path / "out"
    target.mkdir()
    ran = lattice("fs", "get", "-r", "home:/d", target)
    assert ran.code == 1
    got = target / "d"
    assert sorted(path.name for path in got.iterdir()) == ["fine", "n" * 255, "one", "two"]
    for said in ("'..'", "'.'", r"'nul\x00'", "n" * 256):
        assert said in ran.err
    assert "4 names skipped" in ran.err
    (got / "two" / "f").unlink()
    (got / "two").rmdir()
    (got / "two").symlink_to("one")  # as a file system that takes two names for one
    ran = lattice("fs", "get", "-r", "home:/d", target, "--json")
    assert ran.code == 1
    assert "locally it is the same as 'one'" in ran.err
    assert len(ran.document["skipped"]) == 5


def test_a_target_that_cannot_be_written_to_is_named_as_it_was_given(
    lattice: Any, tmp_path: Path, owner: str
) -> None:
    assert owner
    source, target = tmp_path / "source", tmp_path / "none" / "target"
    source.write_text("text")
    assert lattice("fs", "put", source, "d:/file").code == 0
    ran = lattice("fs", "get", "d:/file", target)
    assert (ran.code, ran.line()) == (1, f"{target}: No such file or directory")
