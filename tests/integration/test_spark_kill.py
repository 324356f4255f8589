"""One round of the script; `tests/scripts/spark_kill.py --rounds 20` is the long form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "spark_kill.py"


@pytest.mark.once
@pytest.mark.processes
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_stream_into_a_queue_loses_and_doubles_nothing(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--rounds", "1", "--kinds", "node,sink"]
    done = subprocess.run(
        [*map(str, command), "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = json.loads(done.stdout)
    assert report["kills"] == {"node": 1, "sink": 1}
    assert report["starts"] == {"driver": 2, "node": 2}
    assert (report["faults"], report["left"]) == ([], [])


@pytest.mark.once
@pytest.mark.processes
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_stream_into_a_database_writes_each_batch_whole(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--rounds", "1", "--first", "2", "--kinds", "sink"]
    done = subprocess.run(
        [*map(str, command), "--sink", "kv", "--no-node", "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = json.loads(done.stdout)
    assert report["kills"] == {"sink": 1}
    assert report["starts"]["driver"] == 2
    assert (report["faults"], report["left"]) == ([], [])
