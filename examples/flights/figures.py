"""Figures: departure delays by carrier and by hour of day, exact because they are whole numbers.

A figure sums minutes and counts flights; averages and shares are computed from the sums only for
display.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from datalattice.errors import UsageError
from flights.dataset import CARRIER, DELAY, HOUR, MISSING, ORIGIN

LATE_MINUTES: Final = 15
"""Delay in minutes above which a departure counts as late."""

GROUPS: Final = (CARRIER, HOUR)


@dataclass(frozen=True, slots=True)
class Figure:
    """Departures of one carrier, or of one hour of the day."""

    flights: int = 0
    departed: int = 0
    delay_minutes: int = 0
    """Sum over the departed; early departures count negative."""
    late: int = 0

    def __add__(self, other: Figure) -> Figure:
        return Figure(
            self.flights + other.flights,
            self.departed + other.departed,
            self.delay_minutes + other.delay_minutes,
            self.late + other.late,
        )

    @property
    def cancelled(self) -> int:
        """Flights that never left."""
        return self.flights - self.departed

    @property
    def mean_delay(self) -> float:
        """Minutes of delay for each departure."""
        return self.delay_minutes / self.departed if self.departed else 0.0

    @property
    def late_share(self) -> float:
        """Late departures in percent."""
        return 100 * self.late / self.departed if self.departed else 0.0

    def to_json(self) -> str:
        """Return the figure as the record that is written into the lattice."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Figure:
        """Return the figure in a record.

        Raises: UsageError: the record is not a figure.
        """
        try:
            return cls(**{name: int(number) for name, number in json.loads(text).items()})
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"not a figure: {text[:100]!r}") from error


Figures = Mapping[str, Figure]
"""Figures by key: `carrier:UA`, `hour:07`."""


def figure_key(group: str, member: str | int) -> str:
    """Return the key of a figure's record."""
    # Two digits, so that hours sort as text.
    return f"{group}:{member:02}" if isinstance(member, int) else f"{group}:{member}"


def group_of(figures: Figures, group: str) -> Iterator[tuple[str, Figure]]:
    """Yield (member, figure) of one group in order."""
    for key in sorted(figures):
        name, _, member = key.partition(":")
        if name == group:
            yield member, figures[key]


def total_of(figures: Figures, group: str) -> Figure:
    """Return the sum over one group."""
    return sum((figure for _, figure in group_of(figures, group)), Figure())


@dataclass(frozen=True, slots=True)
class Plain:
    """Counts and figures from the file alone, read with the CSV reader."""

    records: Mapping[str, int]
    """Flights by airport."""
    figures: Figures


def plain(rows: Iterable[Mapping[str, str]]) -> Plain:
    """Return the counts and figures of CSV rows: a check of the queues and of Spark."""
    records: dict[str, int] = {}
    sums: dict[str, list[int]] = {}
    for row in rows:
        records[row[ORIGIN]] = records.get(row[ORIGIN], 0) + 1
        minutes = None if row[DELAY] in {"", MISSING} else int(row[DELAY])
        for key in (figure_key(CARRIER, row[CARRIER]), figure_key(HOUR, int(row[HOUR]))):
            sum_of = sums.setdefault(key, [0, 0, 0, 0])
            sum_of[0] += 1
            if minutes is not None:
                sum_of[1] += 1
                sum_of[2] += minutes
                sum_of[3] += minutes > LATE_MINUTES
    return Plain(records, {key: Figure(*numbers) for key, numbers in sums.items()})


def fold(rows: Iterable[tuple[str, int, Figure]]) -> dict[str, Figure]:
    """Return the figures by carrier and by hour from those by (carrier, hour)."""
    found: dict[str, Figure] = {}
    for carrier, hour, figure in rows:
        for key in (figure_key(CARRIER, carrier), figure_key(HOUR, hour)):
            found[key] = found.get(key, Figure()) + figure
    return found
