"""The first write makes folder and key; a command that is refused makes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.cli.conftest import Lattice

from datalattice.cli.command import Call

REFUSED = [
    # a command, and a part of its error
    ("queue create t --partitions 0", "an integer from 1"),
    ("queue offer t --in json {", "not a JSON value"),
    ("queue offer t --in hex zz", "pairs of hex digits"),
    ('queue offer t a --partition "', "a key in quotes"),
    ("queue offer t", "no values"),
    ('queue tail " --consumer c', "a key in quotes"),
    ("queue tail t --consumer c", "is not a node's folder"),
    ("db zadd d k nan m", "which has no order"),
    ("db incr d k 99999999999999999999", "at most 64 bits"),
    ("db pop d k", "has no elements"),
    ("put kv own value d k --value {", "--value: not JSON"),
    ("put kv own value --value 1", "a value goes to"),
    ("put nosuch own --value 1", "there is no section"),
    ("put queue own value t --value 1", "a queue only grows"),
    ("put kv own value d k --value 1 --in cells", "cells are bytes"),
    ("put kv own value d k --from {none}", "No such file"),
    ("fs mkdir d:/a/b", "is not a node's folder"),
    ("fs sync {none} d:/ --direction to-drive", "is not a directory"),
    ("venue upload abc {file}", "there is no asset"),
    ("store create s --parent p", "is not a node's folder"),
    ("store archive a b", "is not a node's folder"),
    ("store forks a --append", "is not a node's folder"),
    ("kv put a/b k v", "is not a node's folder"),
    ("kv delete s k", "is not a node's folder"),
    ("log append a/b v", "is not a node's folder"),
    ("peer invite s", "is not a node's folder"),
    ("peer revoke s p", "is not a node's folder"),
    ("peer join token", "no node runs"),
    ("disk import {none} --merge", "is neither an archive"),
    ("spark load {file}", "give either a topic or a database"),
    ("spark load {file} --database d", "key is missing"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_a_refused_command_makes_nothing(
    words: str, said: str, lattice: Lattice, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    places = {"{none}": str(tmp_path / "none"), "{file}": str(file)}
    ran = lattice(*[places.get(word, word) for word in words.split()])
    assert ran.code != 0
    assert said in ran.line()
    assert not (tmp_path / "home").exists()


def test_a_malformed_line_of_a_pipe_makes_no_folder(lattice: Lattice, tmp_path: Path) -> None:
    ran = lattice("queue", "offer", "t", "--in", "json", stdin="{\n")
    assert "line 1 of standard input: not a JSON value" in ran.line()
    assert not (tmp_path / "home").exists()


def test_deleting_a_key_of_a_missing_store_makes_no_store(lattice: Lattice) -> None:
    assert lattice("kv", "put", "other", "k", "v").code == 0
    assert "there is no store 's'" in lattice("kv", "delete", "s", "k").line()
    listed = lattice("store", "list", "--json").document
    assert [row["name"] for row in listed] == ["other"]


@pytest.mark.parametrize("option", [("--text", "]"), ("--from", "none.json")])
def test_a_value_that_cannot_be_read_makes_no_etch_file(
    option: tuple[str, str], lattice: Lattice, tmp_path: Path
) -> None:
    made = tmp_path / "new.etch"
    assert lattice("etch", "write", made, *option).code != 0
    assert not made.exists()


def test_a_key_that_another_first_write_made_meanwhile_is_used(
    lattice: Lattice, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lattice("queue", "offer", "t", "one").code == 0
    key = lattice("key", "show").out
    monkeypatch.setattr(Call, "_needs_key", lambda _self: True)  # as if it was made just now
    assert lattice("queue", "offer", "t", "two").code == 0
    assert lattice("key", "show").out == key
