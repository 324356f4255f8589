"""The results of jobs: reports, and the number of rows that a job writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class JobReport:
    """Base of the reports."""

    def as_json(self) -> dict[str, object]:
        """Return the report as a JSON document."""
        return asdict(self)


def with_count(frame: DataFrame) -> tuple[DataFrame, Callable[[], int]]:
    """Return a frame that counts its rows as it is written, and a function for the count.

    Call the function only after writing the frame; the rows are not read again.
    """
    from pyspark.sql import (
        Observation,
        functions as F,  # noqa: N812 - its usual name in Spark
    )

    seen = Observation()
    return frame.observe(seen, F.count(F.lit(1)).alias("rows")), lambda: int(seen.get["rows"])
