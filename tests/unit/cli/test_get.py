"""Get: paths, spellings, and what is said where there is nothing."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def filled(lattice: Any, owner: str) -> str:
    assert lattice("queue", "offer", "t", "a", "b", "c").code == 0
    return owner


@pytest.mark.usefixtures("filled")
def test_the_root_lists_its_sections(lattice: Any) -> None:
    ran = lattice("get")
    assert ran.out.startswith("index of 1 ")
    assert ":queue" in ran.out
    document = lattice("get", "--json").document
    assert (document["kind"], document["count"]) == ("index", 1)
    assert "#Signed" in lattice("get", "--full").out


def test_short_spellings_reach_below_the_typed_part(lattice: Any, filled: str) -> None:
    at = ["get", "queue", filled, "value", "t", "partitions", 0]
    assert lattice(*at, 0, 1, 1).out == '"b"\n'
    assert lattice(
        "get", ":queue", "0x" + filled, ":value", "t", ":partitions", 0, 0, 1, 1
    ).out == ('"b"\n')
    document = lattice(*at, 0, "--json").document
    assert (document["kind"], document["count"]) == ("vector", 3)
    assert lattice("get", "queue", filled, "public-key").out == f"0x{filled}\n"
    listed = lattice("get", "queue", filled, "--json").document["entries"]
    assert {"key": "signature", "value": "valid"} in listed


def test_where_there_is_nothing_the_keys_there_are_named(lattice: Any, filled: str) -> None:
    for keys, words in (
        ([":nope"], "there is nothing at :nope; the index there has: :queue"),
        (["queue", "zz"], f"the map there has: 0x{filled}"),
        (["queue", filled, "x"], "the keys value, public-key and signature"),
        (["queue", filled, "value", "t", "partitions", 0, 0, 9], "has positions 0 to 2"),
        (["queue", filled, "value", "t", "partitions", 0, 2, 0], "integer has no keys"),
    ):
        ran = lattice("get", *keys)
        assert ran.code == 1
        assert words in ran.line()
        assert lattice("get", *keys, "--json").error["error"] == "no-such-path"


@pytest.mark.usefixtures("filled")
def test_keys_that_are_none_are_refused(lattice: Any) -> None:
    for key in ("", "0x1", '"'):
        ran = lattice("get", key)
        assert ran.code == 2
        assert ran.line()


def test_own_stands_for_the_folder_s_key(lattice: Any, filled: str) -> None:
    by_name = lattice("get", "queue", "own", "value", "--json")
    assert by_name.document == lattice("get", "queue", filled, "value", "--json").document
    assert lattice("show", "HEAD", "queue", "own", "value", "--json").document["path"][1:2] == [
        f"0x{filled}"
    ]
    assert lattice("audit", "queue", "own", "--json").document["slots"][0]["signer"] == filled
    quoted = lattice("get", "queue", '"own"')
    assert (quoted.code, '"own"' in quoted.line()) == (1, True)
