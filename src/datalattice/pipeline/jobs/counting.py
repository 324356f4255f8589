"""Counting: how many rows a job wrote, without reading them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def counted(frame: DataFrame) -> tuple[DataFrame, Callable[[], int]]:
    """Return a frame that counts its rows as they pass, and the function that tells how many.

    It knows when the frame has been written, and not before.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    seen = Observation()
    return frame.observe(seen, F.count(F.lit(1)).alias("rows")), lambda: int(seen.get["rows"])
