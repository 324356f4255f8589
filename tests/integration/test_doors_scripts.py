"""Short runs of `tests/scripts/doors_soak.py` and `doors_kill.py`."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("grpc")
pytest.importorskip("mcp")

pytestmark = [pytest.mark.once, pytest.mark.timeout(300)]

SCRIPTS = Path(__file__).parents[1] / "scripts"


def run(script: str, function: str, *args: object) -> dict[str, Any]:
    found = runpy.run_path(str(SCRIPTS / script))[function](*args)
    assert isinstance(found, dict)
    return found


def test_what_clients_leave_unfinished_is_given_back(tmp_path: Path) -> None:
    # So few clients do not fill what is bounded: 10 kB for each of a way may stay.
    report = run("doors_soak.py", "soak", tmp_path / "node", 40, 40, 400_000)
    assert report["failed"] is None, report
    assert len(report["ways"]) == 15


def test_what_any_door_answered_survives_kill_9(tmp_path: Path) -> None:
    report = run("doors_kill.py", "kill_rounds", tmp_path / "node", 2, 1)
    assert not report["wrong"], report
