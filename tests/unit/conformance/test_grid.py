"""Grid vectors: a file that was changed anywhere does not pass."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from datalattice.conformance import run_file

VECTORS = Path(__file__).resolve().parents[2] / "vectors"


def run(tmp_path: Path, document: Any) -> Any:
    path = tmp_path / "file.json"
    path.write_text(json.dumps(document))
    return run_file(path)


def read(name: str) -> Any:
    return json.loads((VECTORS / f"grid-{name}.json").read_text())


CHANGES: list[tuple[str, str, int, str, object]] = [
    ("assets", "metadata", 0, "asset_id", "00" * 32),
    ("assets", "metadata", 0, "utf8_bytes", 3),
    ("assets", "rejected_metadata", 0, "metadata", "{}"),
    ("assets", "asset_ids", 1, "canonical", "00" * 32),
    ("assets", "rejected_asset_ids", 0, "text", "00" * 32),
    ("assets", "content", 0, "accept", False),
    ("assets", "content", 1, "accept", True),
    ("assets", "content", 0, "content_sha256", "00" * 32),
    ("assets", "value_ids", 0, "value_id", "00" * 32),
    ("jobs", "records", 0, "expected", None),
    ("jobs", "ties", 0, "own_encoding", "00"),
    ("jobs", "ties", 0, "other_value_id", "00" * 32),
    ("jobs", "job_maps", 0, "expected", {}),
    ("collections", "meta", 7, "rejected_keys", []),
    ("collections", "storage", 0, "rejected_keys", ["00" * 32]),
    ("collections", "assets", 0, "unknown", 1),
    ("merge", "venue", 0, "expected", None),
    ("merge", "grid", 0, "other", None),
    ("merge", "three_way", 0, "c", None),
    ("merge", "venue_key_order", 0, "iterated", []),
    ("orchestrator", "specs", 9, "value", 1),
    ("orchestrator", "specs", 9, "depends_on", [1]),
    ("orchestrator", "invalid_specs", 0, "spec", ["input"]),
    ("orchestrator", "plans", 1, "earliest_round", [0, 1, 2]),
    ("orchestrator", "plans", 3, "valid", True),
    ("orchestrator", "json_merge", 3, "result", {"a": None, "b": 2}),
    ("authority", "keys", 0, "public_key", "00" * 32),
    ("authority", "published_examples", 0, "did", "did:key:z6Mk"),
    ("authority", "did_web_urls", 0, "url", "https://example.com"),
    ("authority", "writes", 0, "allowed", False),
    ("authority", "writes", 1, "allowed", True),
]


@pytest.mark.parametrize(("name", "section", "at", "member", "value"), CHANGES)
def test_a_changed_member_fails_its_case_alone(
    tmp_path: Path, name: str, section: str, at: int, member: str, value: object
) -> None:
    document = copy.deepcopy(read(name))
    case = document[section][at]
    case[member] = value
    report = run(tmp_path, document)
    assert len(report.failures) == 1
    assert report.failures[0].id.startswith(f"{section}: ")
    assert report.skipped == 0


def test_a_bad_did_that_is_good_fails(tmp_path: Path) -> None:
    document = read("authority")
    document["bad_dids"].append("did:web:example.com")
    assert len(run(tmp_path, document).failures) == 1


def test_a_zero_that_is_none_fails(tmp_path: Path) -> None:
    document = read("merge")
    document["zero"]["grid"] = {"venues": {}}
    assert len(run(tmp_path, document).failures) == 1


@pytest.mark.parametrize("member", ["unknown", "vectors"])
def test_a_file_with_another_section_is_no_grid_file(tmp_path: Path, member: str) -> None:
    (failure,) = run(tmp_path, {**read("jobs"), member: []}).failures
    assert "unknown file format" in failure.reason
