"""Tags: names for the work that a thread starts on Spark, by which another thread cancels it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Tag all work that this thread starts on Spark inside the block; a tag has no comma.

    The session becomes that of the thread: Spark looks up formats in it.
    """
    if _is_remote(spark):
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    # A thread of Java that Python starts has no session, and formats are registered with sessions.
    module = type(spark)._get_j_spark_session_module(spark._jvm)
    module.setActiveSession(spark._jsparkSession)
    # A local session has tags only for the work of Spark's own server, so the context is tagged.
    spark.sparkContext.addJobTag(tag)
    try:
        yield
    finally:
        spark.sparkContext.removeJobTag(tag)
        module.clearActiveSession()


def cancel_tagged(spark: SparkSession, tag: str) -> None:
    """Cancel the running work on Spark that has a tag."""
    if _is_remote(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


def _is_remote(spark: SparkSession) -> bool:
    # Recognized by name: importing Connect needs packages that a local Spark does not need.
    return type(spark).__module__.startswith("pyspark.sql.connect")
