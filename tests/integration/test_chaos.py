"""A short piece of chaos; `tests/scripts/chaos.py --seconds 600` is the long form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "chaos.py"


@pytest.mark.once
@pytest.mark.processes
def test_five_processes_in_trouble_come_to_one_root_and_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--seconds", "6", "--topology", "ring", "--folder", tmp_path]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["lost"] == 0
    assert summary["acknowledged"] > 0
