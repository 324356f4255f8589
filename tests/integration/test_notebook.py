"""The tutorial notebook: it runs from top to bottom and says what it says in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
nbformat: Any = pytest.importorskip("nbformat")
nbclient: Any = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytestmark = [pytest.mark.once, pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(280)]

FILE = Path(__file__).resolve().parents[2] / "docs" / "notebooks" / "flights.ipynb"
NEW_EVERY_TIME = {5, 6, 14}
"""Cells whose output has keys, signatures or the time."""


def printed(notebook: Any) -> dict[int, str]:
    """Return what the cells say as text; lines may come in one go or in several."""
    said = {}
    for at, cell in enumerate(notebook.cells):
        outputs = cell.get("outputs", [])
        texts = [out.get("text") or out.get("data", {}).get("text/plain") for out in outputs]
        if at not in NEW_EVERY_TIME:
            said[at] = "".join(text for text in texts if text)
    return said


def test_the_notebook_runs_and_its_outputs_are_those_in_the_file() -> None:
    stored = nbformat.read(FILE, 4)
    wanted = printed(stored)
    fresh = nbformat.read(FILE, 4)
    nbclient.NotebookClient(fresh, timeout=240, kernel_name="python3").execute()
    assert printed(fresh) == wanted
    for notebook in (stored, fresh):
        pictures = [
            out.data["image/png"]
            for cell in notebook.cells
            for out in cell.get("outputs", [])
            if "image/png" in out.get("data", {})
        ]
        assert len(pictures) == 2
    assert "<table>" in stored.cells[5].outputs[0].data["text/html"]
