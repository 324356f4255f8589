"""A few rounds of the kill script; `tests/scripts/kill9.py --rounds 50` is the long form."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "kill9.py"


@pytest.mark.once
@pytest.mark.processes
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_nodes_lose_nothing_acknowledged_and_converge(seed: int, tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--rounds", "3", "--seed", seed, "--folder", tmp_path]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["lost"] == 0


@pytest.mark.parametrize("cut", ["", "d", "durable", "durable ", "durable 1"])
def test_a_line_that_the_kill_cut_is_not_read(cut: str) -> None:
    pairs = runpy.run_path(str(SCRIPT))["printed_pairs"](["ready a\n", "durable 12\n", cut])
    assert list(pairs) == [("ready", "a"), ("durable", "12")]
