"""A few rounds of the script; `tests/scripts/venue_kill.py --rounds 20` is the long form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "venue_kill.py"


@pytest.mark.once
@pytest.mark.processes
def test_a_venue_that_is_killed_loses_no_answer_and_ends_no_job_twice(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--rounds", "3", "--jobs", "30", "--folder", tmp_path]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["lost"] == 0
    assert report["jobs"] >= 3
