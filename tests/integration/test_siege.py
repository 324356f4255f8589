"""A short siege; `tests/scripts/siege.py --seconds 600` is the long form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "siege.py"


@pytest.mark.once
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_honest_data_converges_under_all_attacks_at_once_and_health_says_who(
    tmp_path: Path,
) -> None:
    # Above the bound of the script, which is for a machine that does nothing else: here other tests
    # run beside it.
    bounds = ["--lag-s", "15", "--times-peace", "10", "--calm-s", "60", "--refused", "0.2"]
    command = [sys.executable, SCRIPT, "--seconds", "20", "--folder", tmp_path, *bounds]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert summary["failed"] == []
    assert summary["records"] > 0
