"""Short pieces of chaos; `tests/scripts/chaos.py --seconds 600` is the long form, of stores too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.mark.once
@pytest.mark.processes
@pytest.mark.timeout(120)
@pytest.mark.parametrize("script", ["chaos.py", "weaver_chaos.py"])
def test_five_processes_in_trouble_become_equal_and_lose_nothing(
    script: str, tmp_path: Path
) -> None:
    command = [sys.executable, SCRIPTS / script]
    command += ["--seconds", "6", "--topology", "ring", "--folder", tmp_path]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["lost"] == 0
    assert summary["acknowledged"] > 0
