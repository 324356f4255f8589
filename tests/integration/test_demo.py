"""The demo as a user runs it, on a small slice of the flights: once, again, and what goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from datalattice.testing.processes import killing

pytest.importorskip("pyspark")
pytest.importorskip("matplotlib")
pytestmark = [pytest.mark.once, pytest.mark.processes, pytest.mark.spark, pytest.mark.timeout(120)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COMMAND = [sys.executable, "-m", "flights"]
PATHS = os.pathsep.join([str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])])
FLIGHTS = 3_000
PATIENCE_S = 100.0


def demo(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "--dir", str(folder), "--flights", str(FLIGHTS), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": PATHS, "DATALATTICE_DEBUG": "", **environment},
        check=False,
    )


def document(ran: subprocess.CompletedProcess[str]) -> Any:
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return json.loads(ran.stdout)


def processes_over(folder: Path) -> list[str]:
    """Return the processes that name a folder in their arguments."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if str(folder) in line]


def path_without_java(folder: Path) -> str:
    """Return a PATH to everything that PATH leads to, but no Java."""
    links = folder / "bin"
    links.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = links / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    return str(links)


def test_the_demo_proves_what_it_claims_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    first = document(demo(folder, "--json"))
    assert first["passed"]
    assert first["ingested"] == first["records"] == FLIGHTS
    assert first["spark_ran"]
    assert len(set(first["root_hashes_apart"].values())) == 3
    assert set(first["root_hashes"]) == {"EWR", "JFK", "LGA", "hq"}
    assert len(set(first["root_hashes"].values())) == 1
    assert (folder / "delays.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "report.json").read_text()) == first
    assert processes_over(folder) == []
    again = document(demo(folder, "--json"))
    assert again["passed"]
    assert (again["ingested"], again["spark_ran"]) == (0, False)
    for same in ("root_hashes", "figures", "owners"):
        assert again[same] == first[same]


def test_ctrl_c_is_one_line_and_leaves_nothing_running(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    started = subprocess.Popen(
        [*COMMAND, "--dir", str(folder), "--flights", str(FLIGHTS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PATHS},
        start_new_session=True,
    )
    with killing(started) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "converge" in line:  # Spark starts now
                os.killpg(process.pid, signal.SIGINT)
                break
        _, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert error == "lattice: interrupted; run the same command again to continue from here\n"
    assert processes_over(folder) == []


def test_a_demo_that_is_killed_leaves_nothing_running_and_the_next_one_goes_on(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "demo"
    started = subprocess.Popen(
        [*COMMAND, "--dir", str(folder), "--flights", str(FLIGHTS)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PATHS},
    )
    with killing(started) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "flights" in line:  # all are appended, and the sites are about to be connected
                process.kill()
                break
    found = document(demo(folder, "--json", PATH=path_without_java(tmp_path), JAVA_HOME=""))
    assert found["passed"], "with the Java of the wheel, since the machine's is out of sight"
    assert found["ingested"] == 0
    assert processes_over(folder) == []


def test_a_folder_with_something_else_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    ran = demo(tmp_path)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("lattice: ")
    assert "name another folder with --dir" in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
