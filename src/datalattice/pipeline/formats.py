"""Formats: what Spark is told of them. They are imported when they are registered."""

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

    return QueueSource, KVSource, GridSource, FilesSource, CellsSource


def register(spark: SparkSession) -> None:
    """Make this package's formats known to a Spark session.

    `spark.read.format("lattice.queue")`, `spark.readStream.format("lattice.queue")` and so on work
    then; the classes that are registered say what the options and rows of each are.
    """
    for source in sources():
        spark.dataSource.register(source)
