"""The Spark formats of this package; they are imported when they are registered."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource


def sources() -> tuple[type[DataSource], ...]:
    """Return the class of each format."""
    from datalattice.pipeline.cells.source import CellsSource
    from datalattice.pipeline.files.source import FilesSource
    from datalattice.pipeline.grid.source import GridSource
    from datalattice.pipeline.kv.source import KVSource
    from datalattice.pipeline.queue.source import QueueSource
    from datalattice.pipeline.weaver.source import WeaverSource

    return QueueSource, KVSource, GridSource, FilesSource, CellsSource, WeaverSource


def register(spark: SparkSession) -> None:
    """Register this package's formats with a Spark session.

    Afterwards `spark.read.format("lattice.queue")`, `spark.readStream.format("lattice.queue")` and
    so on work. The docstring of each registered class lists its options and columns.
    """
    for source in sources():
        # Registering again replaces a format by itself, so this may be called any number of times.
        spark.dataSource.register(source)
