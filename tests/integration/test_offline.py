"""Three processes edit one drive and one database offline and come to the same when they meet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "offline.py"


@pytest.mark.once
@pytest.mark.processes
def test_three_processes_agree_whatever_the_order_they_meet_in(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--operations", "500", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    report = json.loads(done.stdout)
    assert done.returncode == 0, report
    assert report["lost"] == 0
    assert report["orders"] == 12
    assert report["writes"]["database"] > 500
    assert report["writes"]["drive"] > 200
    assert all(count > 0 for count in report["reported"].values())
