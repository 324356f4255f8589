"""Put and get of whole values: what goes in comes out, in each layout, and where it may go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TRICKY = (
    '{"plain":[1,2.5,null,true,"x"],"set":{"$set":[1]},"$keyword:k":{"$keyword":"v"},'
    '"$int:5":{"$blob":"00ff"},"big":{"$int":"123456789012345678901234567890"},'
    '"nan":{"$double":"NaN"},"$string:$x":{"$index":{"$blob:01":1}},"list":{"$list":[1,2]}}'
)
AT = ("kv", "own", "value", "db")


def test_json_goes_in_and_comes_out_exactly(lattice: Any, owner: str, tmp_path: Path) -> None:
    put = lattice("put", *AT, "k", "--value", TRICKY, "--json").document
    where = ["get", "kv", owner, "value", "db", "k", 0]
    out = lattice(*where, "--layout", "json").out
    assert json.loads(out) == json.loads(TRICKY)
    assert lattice(*where, "--json").document["hash"] == put["hash"]
    for layout in ("json", "text", "cells"):
        file = tmp_path / layout
        assert lattice(*where, "--layout", layout, "--output", file).code == 0
        again = lattice("put", *AT, layout, "--from", file, "--in", layout, "--json").document
        assert again["hash"] == put["hash"]
    assert lattice("put", *AT, "piped", "--json", stdin=out).document["hash"] == put["hash"]
    whole = lattice(*where, "--full", "--json").document
    assert whole["value"] == json.loads(TRICKY)
    assert whole["kind"] == "map"


def test_plain_json_and_lines(lattice: Any, owner: str, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text('{"$ref":"x"}\n{"a":1}\n', encoding="utf-8")
    assert lattice("put", *AT, "k", "--from", file, "--in", "lines").code == 0
    where = ["get", "kv", owner, "value", "db", "k", 0]
    assert lattice(*where, "--layout", "plain").out == '[{"$ref":"x"},{"a":1}]\n'
    assert lattice(*where, "--layout", "json").out == '[{"$string:$ref":"x"},{"a":1}]\n'
    ran = lattice("put", *AT, "k", "--value", '{"$ref":"x"}')
    assert "unknown mark" in ran.line()
    assert lattice("put", *AT, "k", "--value", '{"$ref":"x"}', "--in", "plain").code == 0
    assert lattice(*where, "--layout", "lines").code == 2


@pytest.mark.usefixtures("owner")
def test_a_large_document_is_read_and_written_in_parts(lattice: Any, tmp_path: Path) -> None:
    file, out = tmp_path / "in", tmp_path / "out"
    rows = [{"number": at, "text": f"row {at}"} for at in range(20_000)]
    file.write_text(json.dumps(rows), encoding="utf-8")
    done = lattice("put", "data", "--from", file, "--json").document
    path = [*done["path"]]
    assert (
        lattice("get", *path[:1], "0x" + done["hash"], "--layout", "json", "--output", out).code
        == 0
    )
    assert json.loads(out.read_text(encoding="utf-8")) == rows


@pytest.mark.usefixtures("owner")
def test_values_go_below_data_under_their_hash_and_to_the_node_s_own(lattice: Any) -> None:
    done = lattice("put", "data", "--value", "[1,2]", "--json").document
    assert done["path"][1] == "0x" + done["hash"]
    assert lattice("get", "data", "0x" + done["hash"], "--layout", "text").out == "[1 2]\n"
    value = '{"$keyword:timestamp":5,"x":1}'
    assert lattice("put", "local", "own", "value", ":settings", "--value", value).code == 0


@pytest.mark.usefixtures("owner")
def test_where_nothing_can_be_put_it_says_why(lattice: Any) -> None:
    other = "0x" + "11" * 32
    for path, words in (
        (("queue", "own", "value", "t"), "lattice queue offer"),
        (("fs", "own"), "lattice fs put"),
        (("grid",), "lattice venue"),
        (("p2p",), "announce themselves"),
        (("kv", "own", "value", "db"), "DATABASE KEY"),
        (("kv", "own", "value", "db", 5), "are strings"),
        (("data", "x"), "own hashes"),
        (("local",), "cannot be replaced"),
        (("local", "x"), "local own value"),
        (("local", "own"), "local own value"),
        (("nothing", 1), "no section"),
        (("kv", other, "value", "db", "k"), "1111"),
    ):
        ran = lattice("put", *path, "--value", "1")
        assert ran.code != 0
        assert words in ran.line(), path
    assert lattice("get").out.startswith(("nil", "index of 0"))


@pytest.mark.usefixtures("owner")
def test_input_that_is_no_value_is_refused_with_its_place(lattice: Any, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b'{"a":\xff}')
    for arguments, words in (
        (("--value", "[1,"), "character 4"),
        (("--value", "1", "--from", tmp_path / "f"), "not both"),
        (("--from", tmp_path / "f"), "UTF-8"),
        (("--from", tmp_path / "none"), "No such file"),
        (("--value", "00", "--in", "cells"), "bytes"),
        (("--value", "[1", "--in", "text"), "character 3"),
    ):
        ran = lattice("put", "data", *arguments)
        assert ran.code in (1, 2)
        assert words in ran.line()
