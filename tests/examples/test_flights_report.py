"""What the demo shows in the end: tables, checks, measured limits, a picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datalattice.errors import UsageError
from flights import plot
from flights.figures import Figure
from flights.memory import peak_memory_mib
from flights.plot import save_plot
from flights.proof import Check
from flights.report import Report, print_report

FIGURES = {
    "carrier:UA": Figure(2_000, 1_990, 3_980, 597),
    "carrier:OO": Figure(3, 0, 0, 0),
    "hour:05": Figure(2_003, 1_990, -1_990, 0),
}


def report(folder: Path, *, holds: bool = True, memory: dict[str, int] | None = None) -> Report:
    return Report(
        folder=folder,
        flights={"EWR": 2_000, "JFK": 3, "LGA": 0},
        owners={"hq": "ab" * 32},
        apart={"EWR": "01" * 32},
        root_hashes={"EWR": "02" * 32},
        figures=FIGURES,
        checks=[Check("a claim", holds, "its detail")],
        seconds={"start": 1.0, "ingest": 20.5, "replicate": 10.0, "total": 61.04},
        ingested=2_003,
        spark_ran=True,
        peak_memory_mib={"java": 500, "demo": 400} if memory is None else memory,
        plot=folder / "delays.png",
    )


def test_the_report_names_figures_checks_and_measured_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(report(tmp_path))
    out = capsys.readouterr().out
    assert "ok    a claim: its detail" in out
    for cells in (
        ["UA", "2,000", "10", "2.00", "30.00"],
        ["all", "2,003", "13", "2.00", "30.00"],
        ["05", "2,003", "13", "-1.00", "0.00"],
        ["the whole demo", "61.00", "300 s"],
        ["appending and replication", "31.50", "90 s"],
        ["memory of the largest process: java", "500", "3,072 MiB"],
    ):
        rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines()]
        assert cells in rows
    assert "--fresh" not in out


def test_a_failed_check_is_shown_and_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = report(tmp_path, holds=False, memory={})
    assert not failed.holds
    print_report(failed)
    out = capsys.readouterr().out
    assert "FAIL  a claim: its detail" in out
    assert "--fresh starts over" in out
    assert "memory" not in out


def test_the_document_is_json_with_every_figure(tmp_path: Path) -> None:
    document = json.loads(json.dumps(report(tmp_path).document()))
    assert document["passed"] is True
    assert document["records"] == 2_003
    assert document["figures"]["carrier:UA"] == {
        "flights": 2_000,
        "departed": 1_990,
        "delay_minutes": 3_980,
        "late": 597,
    }
    assert document["checks"] == [{"claim": "a claim", "holds": True, "detail": "its detail"}]
    assert [one["measured"] for one in document["measures"]] == [61.04, 31.5, 500]


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    path = save_plot(FIGURES, tmp_path / "delays.png")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (1_440, 600)


def test_without_matplotlib_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"pip install 'datalattice\[demo\]'"):
        save_plot(FIGURES, tmp_path / "delays.png")


def test_memory_is_told_of_this_process_and_those_below() -> None:
    found = peak_memory_mib({})
    if Path("/proc/self/status").exists():
        assert found["demo"] > 10
