"""Pages that map cases and features to tests name tests that exist, and have no row without."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parent.parent
NAMED_MIN: Final = 60
FEATURES: Final = 96
PAGES = pytest.mark.parametrize("page", ["weaver-coverage", "grid-coverage"])


@cache
def names_there() -> frozenset[str]:
    """Return the names of all tests, of functions and of methods."""
    return frozenset(
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def text_of(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def rows_of(page: str) -> list[str]:
    heads = ("| case", "| no.")
    return [
        line
        for line in text_of(page).splitlines()
        if line.startswith("| ") and not line.startswith(heads)
    ]


@PAGES
def test_every_test_that_a_page_names_exists(page: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", text_of(page)))
    assert not sorted(named - names_there())
    assert len(named) > NAMED_MIN


@PAGES
def test_every_row_of_a_page_names_a_test_or_says_why_not(page: str) -> None:
    assert not [row for row in rows_of(page) if "`test_" not in row and "| Not here: " not in row]
    if page == "weaver-coverage":
        assert "Not here: " not in text_of(page)


def test_each_feature_of_the_grid_has_one_row() -> None:
    numbers = [int(row.split("|")[1]) for row in rows_of("grid-coverage")]
    assert numbers == list(range(1, FEATURES + 1))
