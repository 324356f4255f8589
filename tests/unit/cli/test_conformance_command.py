"""Conformance: one line a file, the totals alone on the last, and failures that fail."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from datalattice.cli import conformance as command

VECTORS = Path(__file__).parents[2] / "vectors"
TOTALS = re.compile(r"[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped")

SMALL = ["cells-signed.json", "lattice-content.json", "lattice-cursors.json", "lattice-paths.json"]


def document_of(name: str) -> Any:
    return json.loads((VECTORS / name).read_text("utf-8"))


def test_each_file_has_a_line_and_the_last_has_the_totals(lattice: Any) -> None:
    paths = [VECTORS / name for name in SMALL]
    ran = lattice("conformance", *paths)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    counts = [len(document_of(name)["vectors"]) for name in SMALL]
    assert lines == [
        *(
            f"{path}: {n} passed, 0 failed, 0 skipped"
            for path, n in zip(paths, counts, strict=True)
        ),
        f"{sum(counts)} passed, 0 failed, 0 skipped",
    ]
    found = lattice("conformance", "--json", *paths).document
    assert (found["passed"], found["failed"], found["skipped"]) == (sum(counts), 0, 0)
    assert [one["passed"] for one in found["files"]] == counts


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("cells-signed.json", "enc"),
        ("cells-signed.json", "hash"),
        ("lattice-content.json", "merged"),
        ("lattice-paths.json", "result"),
    ],
)
def test_a_changed_digit_of_any_vector_fails_the_command(
    lattice: Any, tmp_path: Path, name: str, field: str
) -> None:
    document = document_of(name)
    holding = [n for n, one in enumerate(document["vectors"]) if changeable(one.get(field))]
    assert holding
    for number in holding[:5]:
        changed = document_of(name)
        change_digit(changed["vectors"][number], field)
        path = tmp_path / name
        path.write_text(json.dumps(changed), "utf-8")
        ran = lattice("conformance", path)
        assert ran.code == 1
        last = ran.out.splitlines()[-1]
        assert last == f"{len(changed['vectors']) - 1} passed, 1 failed, 0 skipped"
        assert changed["vectors"][number]["id"] in ran.out


def changeable(value: Any) -> bool:
    if isinstance(value, dict):
        return changeable(value.get("enc"))
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{2,}", value) is not None


def change_digit(holder: Any, field: str) -> None:
    if isinstance(holder[field], dict):
        change_digit(holder[field], "enc")
        return
    text = holder[field]
    holder[field] = text[:-1] + ("0" if text[-1] != "0" else "1")


def test_an_unknown_kind_fails_and_is_named(lattice: Any, tmp_path: Path) -> None:
    document = document_of("lattice-content.json")
    document["vectors"][0]["kind"] = "novel"
    path = tmp_path / "some.json"
    path.write_text(json.dumps(document), "utf-8")
    ran = lattice("conformance", path)
    assert ran.code == 1
    assert "unknown kind 'novel'" in ran.out
    assert ran.out.splitlines()[-1].endswith(" 1 failed, 0 skipped")


@pytest.mark.parametrize("name", ["node-ping.json", "node-two-nodes.json"])
def test_conversations_are_played_and_those_not_to_be_run_are_not_counted(
    lattice: Any, name: str
) -> None:
    ran = lattice("conformance", VECTORS / name)
    count = sum(one["run"] == "server" for one in document_of(name)["transcripts"])
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == f"{count} passed, 0 failed, 0 skipped"


def test_zero_run_is_a_failure(lattice: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "none.json").write_text('{"schema": "datalattice-cells-1", "vectors": []}')
    (tmp_path / "junk.json").write_bytes(b"\xff\x00")
    places = ["empty", "missing.json", "none.json", "junk.json"]
    for place in places:
        ran = lattice("conformance", tmp_path / place)
        assert ran.code == 1
        assert ran.out.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"
    ran = lattice("conformance", *(tmp_path / place for place in places), "--json")
    assert ran.code == 1
    assert ran.document["failed"] == 4
    assert all(one["failures"][0]["reason"] for one in ran.document["files"])


def test_a_file_with_many_failures_lists_some_and_counts_all(
    lattice: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "FAILURES_SHOWN_MAX", 3)
    document = document_of("lattice-content.json")
    for vector in document["vectors"]:
        vector["kind"] = "novel"
    path = tmp_path / "some.json"
    path.write_text(json.dumps(document), "utf-8")
    ran = lattice("conformance", path)
    count = len(document["vectors"])
    assert ran.out.splitlines()[-1] == f"0 passed, {count} failed, 0 skipped"
    assert ran.err.splitlines()[-1] == f"  and {count - 3} more"
    assert len(ran.err.splitlines()) == 4
    assert len(lattice("conformance", path, "--json").document["files"][0]["failures"]) == count
