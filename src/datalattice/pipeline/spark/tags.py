"""Tags: what one thread starts on Spark has a name, by which another thread cancels it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Give what this thread starts on Spark inside the block a tag, without a comma.

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
    # The tags of a local session name only what Spark's own server started.
    spark.sparkContext.addJobTag(tag)
    try:
        yield
    finally:
        spark.sparkContext.removeJobTag(tag)
        module.clearActiveSession()


def cancel_tagged(spark: SparkSession, tag: str) -> None:
    """Cancel what has a tag and runs on Spark now."""
    if _is_remote(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


def _is_remote(spark: SparkSession) -> bool:
    # Recognized by name: importing Connect needs packages that a local Spark does not need.
    return type(spark).__module__.startswith("pyspark.sql.connect")
