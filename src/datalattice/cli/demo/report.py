"""Report: what a run of the demo did, as a document and as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from datalattice.cli.demo.figures import Figure, Figures, group_of, total_of
from datalattice.cli.demo.flights import CARRIER, HOUR
from datalattice.cli.demo.proof import Check
from datalattice.cli.render import print_lines, results, table


@dataclass(frozen=True, slots=True)
class Report:
    """What was done, how long it took, and whether every check holds."""

    folder: Path
    flights: Mapping[str, int]
    owners: Mapping[str, str]
    root_hashes: Mapping[str, str]
    figures: Figures
    checks: list[Check]
    seconds: Mapping[str, float]
    ingested: int
    """Flights that this run appended; those of earlier runs were there already."""
    spark_ran: bool
    peak_memory_mib: Mapping[str, int]
    plot: Path

    @property
    def holds(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)

    def document(self) -> dict[str, object]:
        """Return the report for `--json` and the report file."""
        return {
            "folder": str(self.folder),
            "flights": dict(self.flights),
            "records": sum(self.flights.values()),
            "owners": dict(self.owners),
            "root_hashes": dict(self.root_hashes),
            "figures": {key: asdict(figure) for key, figure in sorted(self.figures.items())},
            "checks": [asdict(check) for check in self.checks],
            "passed": self.holds,
            "seconds": {name: round(spent, 3) for name, spent in self.seconds.items()},
            "ingested": self.ingested,
            "spark_ran": self.spark_ran,
            "peak_memory_mib": dict(self.peak_memory_mib),
            "plot": str(self.plot),
        }


def print_report(report: Report) -> None:
    """Print the figures, the checks and where the picture is."""
    screen = results()
    for group, title in ((CARRIER, "by carrier"), (HOUR, "by scheduled hour")):
        rows = [_row(member, figure) for member, figure in group_of(report.figures, group)]
        rows.append(_row("all", total_of(report.figures, group)))
        columns = (group, "flights", "cancelled", "mean delay, min", "late, %")
        screen.print(table(columns, rows, title=f"Departures {title}"))
    print_lines(
        f"{'ok  ' if check.holds else 'FAIL'}  {check.claim}: {check.detail}"
        for check in report.checks
    )
    peak = max(report.peak_memory_mib.values(), default=0)
    spent = report.seconds["total"]
    memory = f", the largest process took {peak:,} MiB" if peak else ""
    print_lines([f"plot  {report.plot}", f"{spent:.1f} s in all{memory}"])


def _row(name: str, figure: Figure) -> tuple[object, ...]:
    return (
        name,
        figure.flights,
        figure.cancelled,
        round(figure.mean_delay, 2),
        round(figure.late_share, 2),
    )
