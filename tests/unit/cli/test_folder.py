"""Folders and keys: what is made, what is refused, and what each mistake says."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest


def test_a_key_is_made_once_and_never_replaced(lattice: Any, tmp_path: Path) -> None:
    made = lattice("key", "new")
    assert made.code == 0
    path = tmp_path / "home" / "identity.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    again = lattice("key", "new")
    assert again.code == 2
    assert again.line() == f"there is a key at {path} already; it was not replaced"
    assert path.read_bytes() == before
    shown = lattice("key", "show")
    assert shown.out.strip() in made.out
    assert lattice("key", "show", "--json").document["public_key"] == shown.out.strip()


def test_the_private_part_is_never_printed(lattice: Any, tmp_path: Path) -> None:
    printed = lattice("key", "new").out
    seed = (tmp_path / "home" / "identity.key").read_text("ascii").strip().rpartition(":")[2]
    for arguments in (["key", "show"], ["key", "list"], ["key", "list", "--json"]):
        printed += lattice(*arguments).out
    assert len(seed) == 64
    assert seed not in printed


def test_further_keys_have_names(lattice: Any, owner: str) -> None:
    made = lattice("key", "new", "alice", "--json").document
    listed = lattice("key", "list", "--json").document
    assert [(one["name"], one["public_key"]) for one in listed] == [
        ("", owner),
        ("alice", made["public_key"]),
    ]
    assert lattice("key", "show", "alice").out.strip() == made["public_key"]
    assert "alice" in lattice("key", "list").out


@pytest.mark.usefixtures("owner")
def test_commands_write_under_the_key_named_owner(lattice: Any) -> None:
    made = lattice("key", "new", "owner")
    assert "commands in this folder write under this key" in made.err
    assert lattice("key", "show").out.strip() in made.out


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "x" * 65, "a b", "ü"])
def test_a_name_that_is_no_name_is_refused(lattice: Any, name: str, tmp_path: Path) -> None:
    ran = lattice("key", "new", name)
    assert ran.code == 2
    assert "a key's name is up to 64" in ran.line()
    assert not (tmp_path / "home").exists()


def test_no_key_is_said_with_its_remedy_and_the_first_write_makes_one(
    lattice: Any, tmp_path: Path
) -> None:
    ran = lattice("key", "show")
    assert ran.code == 2
    assert ran.line() == f"no key at {tmp_path}/home/identity.key; make one with `lattice key new`"
    assert lattice("key", "show", "--json").error["error"] == "no-signing-key"
    assert not (tmp_path / "home").exists()
    assert "no keys" in lattice("key", "list").out
    ran = lattice("queue", "offer", "t", "v")
    made = lattice("key", "show").out.strip()
    assert (ran.code, ran.line()) == (0, f"made the key {made} in {tmp_path}/home")


@pytest.mark.usefixtures("owner")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "junk",
        "ed25519-seed:12",
        "ed25519-seed:" + "g" * 64,
        "\xff",
        ("ed25519-seed:" + "1" * 64).ljust(1_025),
    ],
)
def test_a_file_that_is_no_key_is_said(lattice: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "home" / "identity.key").write_bytes(text.encode("latin-1"))
    for arguments in (["key", "show"], ["queue", "offer", "t", "v"], ["node", "start"]):
        ran = lattice(*arguments)
        assert ran.code == 2
        assert "is not a key file" in ran.line()


@pytest.mark.usefixtures("owner")
def test_a_key_file_has_at_most_1024_bytes(lattice: Any, tmp_path: Path) -> None:
    path = tmp_path / "home" / "identity.key"
    path.write_text(("ed25519-seed:" + "1" * 64).ljust(1_024))
    assert lattice("key", "show").code == 0


@pytest.mark.usefixtures("owner")
def test_a_key_that_others_can_read_is_refused(lattice: Any, tmp_path: Path) -> None:
    path = tmp_path / "home" / "identity.key"
    path.chmod(0o640)
    ran = lattice("queue", "offer", "t", "v")
    assert ran.code == 2
    assert ran.line() == (
        f"the key file {path} can be read by others (mode 0640); run: chmod 600 {path}"
    )


READING = [
    ["queue", "peek", "t"],
    ["queue", "range", "t"],
    ["queue", "info", "t"],
    ["queue", "list"],
    ["queue", "truncate", "t", "1"],
    ["get"],
    ["node", "status"],
]


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_a_wrong_folder_is_said(lattice: Any, tmp_path: Path, arguments: list[str]) -> None:
    ran = lattice(*arguments)
    assert ran.code == 2
    assert f"{tmp_path}/home is not a node's folder: it has no store" in ran.line()
    (tmp_path / "home").write_text("a file")
    for place in (tmp_path / "home", tmp_path / "home" / "below"):
        ran = lattice(*arguments, "--dir", place)
        assert ran.code == 2
        assert f"{tmp_path}/home is not a folder" in ran.line()
    (tmp_path / "other" / "store").mkdir(parents=True)
    (tmp_path / "other" / "store" / "letter.txt").write_text("dear")
    if "truncate" not in arguments:  # which asks for the key first
        ran = lattice(*arguments, "--dir", tmp_path / "other")
        assert ran.code == 2
        assert "not a store (it has 'letter.txt'" in ran.line()


@pytest.mark.parametrize("arguments", [["key", "new"], ["node", "start", "-p", "0"]], ids=" ".join)
def test_a_folder_that_cannot_be_made_is_said(
    lattice: Any, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "file").write_text("")
    ran = lattice(*arguments, "--dir", tmp_path / "file" / "home")
    assert ran.code == 2
    assert "is not a folder" in ran.line()
    ran = lattice(*arguments, "--dir", "/proc/none/home")
    assert ran.code == 2
    assert "/proc/none/home" in ran.line()


@pytest.mark.usefixtures("owner")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not TOML"),
        ("port = [" + "[" * 20_000, "is not TOML"),
        ("# \nnode.prt = 1", "line 2: there is no setting 'prt' in [node]; did you mean port?"),
        ("[zzz]", "line 1: there is no section [zzz]"),
        ('node.port = "x"', "line 1: node.port is a number, got 'x'"),
        ("node.port = true", "node.port is a number, got true"),
        ("node.peers = [1]", "node.peers is a list of texts, got [1]"),
        ('node.peers = ["zz"]', "host:port"),
        ("\n\nnode.port = 65536", "node.toml line 3: a port is a number up to 65535, got 65536"),
        ("node.bind = 1", "node.bind is a text"),
        ("node.strict_paths = 1", "node.strict_paths is true or false, got 1"),
        ('log.level = "loud"', "log_level is debug, info, warning or error, got 'loud'"),
        ("#" * 64_001, "is longer than a settings file's 64000 bytes"),
        ("\xff", "is not UTF-8"),
    ],
)
def test_settings_that_are_wrong_are_said(
    lattice: Any, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "home" / "node.toml").write_bytes(text.encode("latin-1"))
    ran = lattice("node", "start")
    assert ran.code == 2
    assert words in ran.line()


@pytest.mark.usefixtures("owner")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-p", "65536"], "65536"),
        (["--peer", "foo"], "host:port"),
        (["--peer", "127.0.0.1:0"], "1 to 65535"),
        (
            ["--bind", "203.0.113.1"],
            "cannot listen on 203.0.113.1: Cannot assign requested address",
        ),
    ],
)
def test_options_of_a_node_that_are_wrong_are_said(
    lattice: Any, options: list[str], words: str
) -> None:
    ran = lattice("node", "start", *options)
    assert ran.code == 2
    assert words in ran.line()


def test_a_further_device_is_another_node_of_the_same_owner(lattice: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    made = lattice("init", first, "--json").document
    assert made["identity"] == made["owner"]
    device = lattice("init", second, "--owner-key", first / "identity.key", "--json").document
    assert device["owner"] == made["owner"] != device["identity"]
    assert lattice("key", "show", "-d", second).out.strip() == made["owner"]
    assert lattice("key", "identity", "show", "-d", second).out.strip() == device["identity"]
    assert lattice("queue", "offer", "t", "v", "-d", second).code == 0
    (row,) = lattice("queue", "list", "-d", second, "--json").document
    assert row["owner"] == made["owner"]
    again = lattice("init", second)
    assert (again.code, again.out) == (2, "")
    assert "already" in again.line()


def test_a_copied_folder_becomes_another_node_with_a_new_identity(lattice: Any, owner: str) -> None:
    lattice("queue", "offer", "t", "v")
    made = lattice("key", "identity", "new", "--json").document
    assert made["owner"] == owner != made["identity"]
    assert lattice("key", "show").out.strip() == owner
    listed = lattice("key", "list", "--json").document
    assert [(one["name"], one["public_key"]) for one in listed] == [
        ("", made["identity"]),
        ("owner", owner),
    ]
    assert lattice("queue", "offer", "t", "w").code == 0
    assert lattice("queue", "range", "t").out == "v\nw\n"
