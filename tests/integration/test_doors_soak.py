"""A short run of `tests/scripts/doors_soak.py`."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("grpc")

SCRIPT = Path(__file__).parents[1] / "scripts" / "doors_soak.py"


def test_what_clients_leave_unfinished_is_given_back(tmp_path: Path) -> None:
    soak = runpy.run_path(str(SCRIPT))["soak"]
    report = soak(tmp_path / "node", seconds=0, seed=1, growth_mb=64)
    assert report["failed"] is None, report
    assert report["rounds"] == 2
    assert all(report["left"].values()), report
