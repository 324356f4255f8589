"""The page that maps acceptance cases of Weaver to tests names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "weaver-coverage.md"


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text(encoding="utf-8"))
    missing = []
    for file, name in named:
        path = ROOT / file
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
        found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        if name not in found:
            missing.append(f"{file}::{name}")
    assert not missing
    assert len(named) > 60


def test_every_case_of_the_page_names_a_test() -> None:
    rows = [
        line
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| case")
    ]
    assert all("::test_" in row for row in rows)
