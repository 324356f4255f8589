"""Command `lattice conformance`: runs golden vector files against this installation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from datalattice.cli.command import Call, command
from datalattice.cli.render import EXIT_FAILED, CommandResult, is_json, print_lines

if TYPE_CHECKING:
    from datalattice.conformance import Failure, FileReport

FAILURES_SHOWN_MAX: Final = 20  # a broken port fails thousands
"""Most failing vectors of one file that are listed; `--json` lists all."""


PathsArgument = Annotated[
    list[Path], typer.Argument(help="Vector files, or folders of them.", show_default=False)
]


@command(None, "conformance")
def conformance(call: Call, paths: PathsArgument) -> CommandResult:
    """Run golden vector files, to check this installation or a port of the format.

    Prints a line for each file, then the totals; failing vectors are listed on standard error.
    Exit code 1 if anything failed. A vector of unknown kind, an unreadable file, and a file or
    folder without vectors are failures.
    """
    from datalattice.conformance import list_files, run_file

    reports: list[FileReport] = []
    files = list_files(paths)
    bar = call.bar("vector files", len(files))
    for file in files:
        report = run_file(file)
        reports.append(report)
        if not is_json():  # JSON is one document at the end
            _print_report(report)
        bar.advance()
    totals = {
        name: sum(getattr(report, name) for report in reports)
        for name in ("passed", "failed", "skipped")
    }
    line = ", ".join(f"{count} {name}" for name, count in totals.items())
    document = {"files": [_document(report) for report in reports], **totals}
    return CommandResult(document, [line], EXIT_FAILED if totals["failed"] else 0)


def _print_report(report: FileReport) -> None:
    counts = f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped"
    line = f"{report.path}: {counts}"
    if report.failures:
        more = f" (and {report.failed - 1} more)" if report.failed > 1 else ""
        line += f": {_one_line(report.failures[0])}{more}"
    print_lines([line])
    if report.failed > 1:
        shown = report.failures[:FAILURES_SHOWN_MAX]
        sys.stdout.flush()  # the file's line comes before its failures
        for failure in shown:
            sys.stderr.write(f"  {_one_line(failure)}\n")
        if report.failed > len(shown):
            sys.stderr.write(f"  and {report.failed - len(shown)} more\n")


def _one_line(failure: Failure) -> str:
    reason = " ".join(failure.reason.split())  # a reason may quote a value with line ends
    return f"{failure.id}: {reason}" if failure.id else reason


def _document(report: FileReport) -> dict[str, object]:
    return {
        "path": str(report.path),
        "passed": report.passed,
        "failed": report.failed,
        "skipped": report.skipped,
        "failures": [{"id": each.id, "reason": each.reason} for each in report.failures],
    }
