"""The flights demo: `make demo`, or in the folder `examples`: python -m flights [--help]."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer
from typer.exceptions import Exit
from typer.main import get_command

from datalattice.cli.main import main
from datalattice.cli.render import notices, print_json
from flights.report import print_report
from flights.run import run_demo

DEFAULT_FOLDER: Final = Path("demo-data")
EXIT_FAILED: Final = 1


def demo(
    dir: Annotated[
        Path, typer.Option("--dir", "-d", help="Where keys, stores, plot and report go.")
    ] = DEFAULT_FOLDER,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over instead of continuing an earlier run.")
    ] = False,
    flights: Annotated[
        int | None,
        typer.Option("--flights", min=1, help="Only the first so many flights of the file."),
    ] = None,
    cores: Annotated[
        int | None, typer.Option("--cores", min=1, help="Cores for Spark. Default: all.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of text.")
    ] = False,
) -> None:
    """Show the whole idea on real data: the flights of 2013 from EWR, JFK and LGA.

    Three airports, cut off from one another, append their flights to signed queues. Then a fourth
    node, hq, is connected; all four converge. Spark reads the queues at hq as a stream, computes
    departure delays, and the figures go back into the lattice, signed by hq. Every claim is
    checked. Run again, it continues where it ended. Exit code 1 when a check fails.
    """
    try:
        report = run_demo(dir, fresh=fresh, limit=flights, cores=cores, quiet=json)
    except KeyboardInterrupt:
        notices().print("lattice: interrupted; run the same command again to continue from here")
        raise
    if json:
        print_json(report.document())
    else:
        print_report(report)
    if not report.holds:
        raise Exit(EXIT_FAILED)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(demo)

if __name__ == "__main__":
    main(get_command(app), "flights")
