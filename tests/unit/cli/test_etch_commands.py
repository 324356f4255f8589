"""Etch commands: every one of them, on files of our own and on damaged ones."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from datalattice.cells import Map, Vector, value_hash
from datalattice.store.etch import EtchStore

LONG = "long enough to be a cell of its own, which takes more than 140 bytes " * 3


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with EtchStore.open(tmp_path / "f.etch") as store:
        store.commit(Map.of({"a": Vector.of([LONG + str(at) for at in range(9)])}))
    return tmp_path / "f.etch"


def test_info_says_what_the_file_is(lattice: Any, file: Path, tmp_path: Path) -> None:
    document = lattice("etch", "info", file, "--json").document
    assert (document["version"], document["root_kind"], document["root_count"]) == (1, "map", 1)
    assert document["data_length"] == document["file_bytes"] == file.stat().st_size
    assert lattice("etch", "info", file, "--output", tmp_path / "out").out == ""
    assert "root_kind" in (tmp_path / "out").read_text(encoding="utf-8")
    data = bytearray(file.read_bytes())
    data[12] ^= 1
    file.write_bytes(data)
    assert "root data missing" in lattice("etch", "info", file).out
    assert lattice("etch", "info", tmp_path / "none").code == 2


def test_dump_lists_every_record(lattice: Any, file: Path) -> None:
    rows = list(csv.reader(lattice("etch", "dump", file).out.splitlines()))
    assert rows == sorted(rows)
    assert len(rows) == 11
    assert {row[1] for row in rows} == {"string", "map", "vector"}
    assert len(lattice("etch", "dump", file, "--limit", 3, "--json").document) == 3


def test_write_and_read(lattice: Any, file: Path, tmp_path: Path) -> None:
    hash = lattice("etch", "write", file, "--text", "[1 :k #{2}]").out.strip()
    assert lattice("etch", "read", file, hash, "00" * 32).out == "[1 :k #{2}]\n\n"
    assert lattice("etch", "read", file, hash, "--limit", 4, "--json").document == [
        {"hash": hash, "value": "[1 :"}
    ]
    root = lattice("etch", "info", file, "--json").document["root_hash"]
    assert root != hash
    (tmp_path / "v.json").write_text('{"$keyword":"x"}', encoding="utf-8")
    source = ("--from", tmp_path / "v.json")
    hash = lattice("etch", "write", file, *source, "--root", "--json").document["hash"]
    assert lattice("etch", "info", file, "--json").document["root_hash"] == hash
    assert lattice("etch", "validate", file).out.endswith("clean\n")
    for arguments in ((), ("--text", "1", *source), ("--text", "[1")):
        assert lattice("etch", "write", file, *arguments).code in (1, 2)
    assert lattice("etch", "read", file, "12").code == 2


def test_validate_tells_place_and_reason_and_fails(lattice: Any, file: Path) -> None:
    document = lattice("etch", "validate", file, "--json").document
    assert document["clean"]
    assert (document["cells"], document["statuses"]) == (11, {"persisted": 11})
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    ran = lattice("etch", "validate", file)
    assert ran.code == 1
    assert "another hash than the key" in ran.out
    assert ran.out.endswith("damaged\n")
    document = lattice("etch", "validate", file, "--json").document
    assert document["faults"][0]["offset"] > 524_332


def test_clear_and_gc(lattice: Any, file: Path) -> None:
    hash = value_hash(LONG + "3").hex()
    assert lattice("etch", "clear", file).code == 0
    done = lattice("etch", "gc", file, "--pin", hash, "--json").document
    assert done["freed"] > 1_000
    assert lattice("etch", "read", file, hash).out == f'"{LONG}3"\n'
    assert len(lattice("etch", "dump", file, "--json").document) == 1
    assert lattice("etch", "gc", file, "--pin", "11" * 32).code == 2
    assert lattice("etch", "clear", file.with_name("none")).code == 2


@pytest.mark.usefixtures("owner")
def test_data_moves_out_of_a_folder_and_into_another_with_its_root(
    lattice: Any, tmp_path: Path
) -> None:
    for at in range(3):
        value = '{"a":["' + LONG + str(at) + '"]}'
        assert lattice("put", "kv", "own", "value", "db", f"k{at}", "--value", value).code == 0
    root = lattice("get", "--json").document["hash"]
    etch = tmp_path / "out.etch"
    assert lattice("etch", "export", etch, "--json").document["hash"] == root
    assert lattice("etch", "export", etch).code == 2
    assert lattice("etch", "validate", etch).code == 0
    other = ("--dir", tmp_path / "other")
    assert lattice("etch", "import", etch, *other, "--json").document["root_hash"] == root
    assert lattice("put", "data", "--value", "7").code == 0
    merged = lattice("etch", "import", etch, "--json").document["root_hash"]
    assert merged == lattice("get", "--json").document["hash"] != root
    cells, back = tmp_path / "cells", tmp_path / "back.etch"
    assert lattice("etch", "import", etch, "--cells", cells).code == 0
    assert lattice("etch", "export", back, "--cells", cells, "--json").document["hash"] == root


@pytest.mark.usefixtures("owner")
def test_a_root_that_is_no_root_of_a_node_gets_a_name(lattice: Any, file: Path) -> None:
    assert lattice("put", "data", "--value", "7").code == 0
    ran = lattice("etch", "import", file)
    assert ran.code == 2
    assert "--pin NAME" in ran.line()
    assert lattice("etch", "import", file, "--pin", "convex").code == 0
    assert lattice("show", "convex", "--json").document["kind"] == "map"
