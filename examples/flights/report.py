"""Report: the results of a run of the demo, as a document and as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from datalattice.cli.render import print_lines, results, table
from flights.dataset import CARRIER, HOUR
from flights.figures import LATE_MINUTES, Figure, Figures, group_of, total_of
from flights.proof import Check

TOTAL_SECONDS_MAX: Final = 300
QUEUES_SECONDS_MAX: Final = 90
MEMORY_MIB_MAX: Final = 3_072

_QUEUE_STEPS: Final = ("start", "ingest", "replicate")


@dataclass(frozen=True, slots=True)
class Measure:
    """A measured figure and its limit on two cores."""

    what: str
    measured: float
    at_most: float
    unit: str


@dataclass(frozen=True, slots=True)
class Report:
    """The results, times and checks of a run."""

    folder: Path
    flights: Mapping[str, int]
    owners: Mapping[str, str]
    apart: Mapping[str, str]
    """Root hashes of the sites before they were connected."""
    root_hashes: Mapping[str, str]
    figures: Figures
    checks: list[Check]
    seconds: Mapping[str, float]
    ingested: int
    """Flights that this run appended, without those of earlier runs."""
    spark_ran: bool
    peak_memory_mib: Mapping[str, int]
    plot: Path

    @property
    def holds(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)

    @property
    def measures(self) -> list[Measure]:
        """Time and memory of this run; memory only if the system reports it."""
        queues = sum(self.seconds.get(step, 0.0) for step in _QUEUE_STEPS)
        found = [
            Measure("the whole demo", self.seconds.get("total", 0.0), TOTAL_SECONDS_MAX, "s"),
            Measure("appending and replication", queues, QUEUES_SECONDS_MAX, "s"),
        ]
        if self.peak_memory_mib:
            name = max(self.peak_memory_mib, key=self.peak_memory_mib.__getitem__)
            peak = self.peak_memory_mib[name]
            found.append(
                Measure(f"memory of the largest process: {name}", peak, MEMORY_MIB_MAX, "MiB")
            )
        return found

    def document(self) -> dict[str, object]:
        """Return the report for `--json` and the report file."""
        return {
            "folder": str(self.folder),
            "flights": dict(self.flights),
            "records": sum(self.flights.values()),
            "owners": dict(self.owners),
            "root_hashes_apart": dict(self.apart),
            "root_hashes": dict(self.root_hashes),
            "figures": {key: asdict(figure) for key, figure in sorted(self.figures.items())},
            "late_minutes": LATE_MINUTES,
            "checks": [asdict(check) for check in self.checks],
            "passed": self.holds,
            "measures": [
                {**asdict(one), "measured": round(one.measured, 3)} for one in self.measures
            ],
            "seconds": {name: round(spent, 3) for name, spent in self.seconds.items()},
            "ingested": self.ingested,
            "spark_ran": self.spark_ran,
            "peak_memory_mib": dict(self.peak_memory_mib),
            "plot": str(self.plot),
        }


def print_report(report: Report) -> None:
    """Print the figures, the checks and the path of the plot."""
    screen = results()
    for group, title in ((CARRIER, "by carrier"), (HOUR, "by scheduled hour")):
        rows = [_row(member, figure) for member, figure in group_of(report.figures, group)]
        rows.append(_row("all", total_of(report.figures, group)))
        columns = (group, "flights", "cancelled", "mean delay, min", f"over {LATE_MINUTES} min, %")
        screen.print(table(columns, rows, title=f"Departures {title}"))
    print_lines(
        f"{'ok  ' if check.holds else 'FAIL'}  {check.claim}: {check.detail}"
        for check in report.checks
    )
    rows = [
        (one.what, round(one.measured, 1), f"{one.at_most:,.0f} {one.unit}")
        for one in report.measures
    ]
    screen.print(table(("this run", "measured", "at most"), rows))
    print_lines([f"plot    {report.plot}", f"report  {report.folder / 'report.json'}"])
    if not report.holds:
        print_lines(["a check does not hold; --fresh starts over"])


def _row(name: str, figure: Figure) -> tuple[object, ...]:
    return (
        name,
        figure.flights,
        figure.cancelled,
        round(figure.mean_delay, 2),
        round(figure.late_share, 2),
    )
