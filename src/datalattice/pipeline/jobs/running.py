"""The Spark session of a job that runs as its own process, such as a command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from datalattice.errors import DataLatticeError, UsageError
from datalattice.pipeline import clear_errors, end_session, register, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def job_session(
    name: str,
    *,
    master: str | None,
    memory: str,
    package: str | os.PathLike[str] | None = None,
) -> Iterator[SparkSession]:
    """Yield a session with this package's formats; end it after the block if it was started here.

    Errors of this package leave the block unchanged, Spark's own errors as one line.
    Raises: UsageError: PySpark or Java is missing, an argument is malformed, or Spark rejects one.
            DataLatticeError: Spark failed.
    """
    # A session that the caller has made stays open.
    began = _active() is None
    spark = spark_session(name, memory=memory, master=master, package=package)
    try:
        register(spark)
        with spark_errors(), clear_errors():
            yield spark
    finally:
        # The JVM would keep a command's process from ending.
        if began:
            end_session(spark)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise Spark's own error as one of ours, in one line; its text is lost with the session.

    Raises: UsageError: Spark refuses an argument. DataLatticeError: it failed.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        reason = str(getattr(error, "java_exception", "") or error).strip().partition("\n")[0]
        # Exit codes tell wrong use from a failure.
        is_wrong_use = isinstance(error, (AnalysisException, IllegalArgumentException))
        raise (UsageError if is_wrong_use else DataLatticeError)(f"Spark: {reason}") from error


def _active() -> SparkSession | None:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        return None  # `spark_session` raises the error for it
    return SparkSession.getActiveSession()
