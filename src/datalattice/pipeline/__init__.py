"""Pipeline: Spark reads lattice data where one machine is not enough (needs the extra `spark`).

    from datalattice.pipeline import register, spark_session

    spark = spark_session("delays", cores=2)
    register(spark)
    spark.read.format("lattice.queue").option("store", folder).option("topic", "flights").load()

`spark_session` is for a local start; `register` is all that a Spark of one's own needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from datalattice.pipeline.failures import clear_errors
from datalattice.pipeline.java import Java, find_java
from datalattice.pipeline.session import end_session, spark_session

if TYPE_CHECKING:
    # Named again, so that code above this package can name them and yet knows no Spark.
    from pyspark.sql import DataFrame as DataFrame
    from pyspark.sql import SparkSession as SparkSession

__all__ = ["Java", "clear_errors", "end_session", "find_java", "register", "spark_session"]


def register(spark: SparkSession) -> None:
    """Make this package's formats known to a Spark session.

    `spark.read.format("lattice.queue")`, `spark.readStream.format("lattice.queue")` and so on work
    then; the classes that are registered say what the options and rows of each are.
    """
    from datalattice.pipeline.cells.source import CellsSource
    from datalattice.pipeline.files.source import FilesSource
    from datalattice.pipeline.grid.source import GridSource
    from datalattice.pipeline.kv.source import KVSource
    from datalattice.pipeline.queue.source import QueueSource

    for source in (QueueSource, KVSource, GridSource, FilesSource, CellsSource):
        spark.dataSource.register(source)
