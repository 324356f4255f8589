"""The example of two owners' queues joined: it ends with the plain answer on the dashboard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.once, pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(280)]

FILE = Path(__file__).resolve().parents[2] / "examples" / "weather.py"


def test_the_dashboard_shows_what_plain_python_says() -> None:
    ran = subprocess.run(
        [sys.executable, str(FILE), "--days", "3"],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == "round 1: 2556 flights, 176 reports"
    assert any(line.startswith("  dashboard: 2013-01-") for line in lines)
    assert lines[-1] == "10 lines on the dashboard, the plain-Python answer is the same: True"


@pytest.mark.parametrize("days", ["0", "21"])
def test_days_that_do_not_fit_are_refused(days: str) -> None:
    ran = subprocess.run(
        [sys.executable, str(FILE), "--days", days],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 2
    assert "--days is a number from 1 to 20" in ran.stderr
