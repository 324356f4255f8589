"""Spark reads and writes lattice data. Needs the extra `spark`.

    from datalattice.pipeline import read_queue, register, spark_session

    spark = spark_session("delays", cores=2)
    flights = read_queue(spark, folder, topic="flights")

    register(spark)                                  # the same by hand
    spark.read.format("lattice.queue").option("store", folder).option("topic", "flights").load()

`spark_session` starts Spark or connects to a cluster. For a Spark session of your own, call
`register`.

Source: docs/spark.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import datalattice.pipeline.spark.workers as _workers
from datalattice.arrow import (
    BATCH_RECORDS_MAX as BATCH_RECORDS_MAX,
    Row as Row,
    micros as micros,
    record_batch as record_batch,
    row_bytes as row_bytes,
)
from datalattice.pipeline.formats import register as register
from datalattice.pipeline.reading import (
    read_cells as read_cells,
    read_files as read_files,
    read_grid as read_grid,
    read_kv as read_kv,
    read_queue as read_queue,
    read_weaver as read_weaver,
)
from datalattice.pipeline.spark.failures import clear_errors as clear_errors
from datalattice.pipeline.spark.java import Java as Java, find_java as find_java
from datalattice.pipeline.spark.session import (
    end_session as end_session,
    spark_session as spark_session,
)

if TYPE_CHECKING:
    # Re-exported for annotations, so that packages above need not import Spark.
    from pyspark.sql import DataFrame as DataFrame, SparkSession as SparkSession

# A worker imports this package when it unpickles one of our formats, before any row is sent.
_workers.quiet_own_daemon()
