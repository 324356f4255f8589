"""Three venues in three processes, one round of `tests/scripts/three_venues.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "three_venues.py"


@pytest.mark.once
@pytest.mark.processes
def test_three_venues_have_one_grid_and_run_each_others_jobs(tmp_path: Path) -> None:
    for package in ("httpcore", "starlette", "uvicorn"):
        pytest.importorskip(package)
    command = [sys.executable, str(SCRIPT), "--assets", "5", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    kinds = ["bad-asset", "bad-content", "bad-metadata", "bad-signature", "not-owner"]
    assert report["refused"] == kinds
    assert report["result"] == "made there"
    assert report["cancelled"] == "CANCELLED"
    assert report["killed there"]["patient"] == report["killed here"] == "COMPLETE"
