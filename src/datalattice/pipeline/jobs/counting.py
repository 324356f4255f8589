"""Count the rows that a job writes, without reading them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def counted(frame: DataFrame) -> tuple[DataFrame, Callable[[], int]]:
    """Return a frame that counts its rows as it is written, and a function for the count.

    Call the function after writing the frame only.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    seen = Observation()
    return frame.observe(seen, F.count(F.lit(1)).alias("rows")), lambda: int(seen.get["rows"])
