"""Session: start a local Spark with the settings this package was measured with.

Nothing here is needed to read a lattice with a Spark that is already there: `register(spark)` is
enough. What `spark_session` adds is a quick, quiet, local start: it finds Java (also in a wheel),
makes the workers run this very interpreter, listens on the loopback only, and trades peak JVM speed
for a start in seconds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from datalattice.errors import UsageError
from datalattice.pipeline.java import cached_file, find_java, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"

JVM_END_SECONDS_MAX: Final = 30
"""A JVM that takes longer to end is killed."""

_MEMORY: Final = re.compile(r"[1-9][0-9]*[kmgt]", re.IGNORECASE)

# Serial collector and first compiler only: half the start time, and two cores have no room for more
# threads.
_JVM_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"

# The gateway's logger is named because Spark lowers the root to that logger's level, and says so,
# when the two differ.
_LOG_SETTINGS: Final = """status = error
appenders = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
rootLogger.level = {level}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
rootLogger.appenderRef.console.ref = console
"""

LOG_LEVELS: Final = ("off", "fatal", "error", "warn", "info", "debug")


def spark_session(
    app_name: str = "datalattice",
    *,
    cores: int | None = None,
    memory: str = "2g",
    log_level: str = "off",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a local Spark session on `cores` cores (default: all) whose JVM may use `memory`.

    A session that is already running is returned as it is. `config` adds settings or replaces the
    ones made here. At the log level "off" Spark prints nothing: what fails is raised.

    Units:  memory: a number and k, m, g or t, such as "2g".
    Raises: UsageError: PySpark is not installed, no Java is found, or an argument is not of its
            form.
    """
    settings = session_settings(app_name, cores=cores, memory=memory, log_level=log_level)
    settings.update(config or {})
    spark_type = _spark_type()
    if spark_type.getActiveSession() is None:
        os.environ["JAVA_HOME"] = str(java_home(find_java()))
    # Workers must run this interpreter: another one would lack this package or differ in version.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    builder = spark_type.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def end_session(spark: SparkSession) -> None:
    """Stop Spark and return when its JVM has ended; the next session starts a new one."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    spark.stop()
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    process = getattr(gateway, "proc", None)  # a JVM that somebody else started has none
    if process is None:
        return
    process.stdin.close()  # the JVM takes that for the end of its owner
    try:
        process.wait(JVM_END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _spark_type() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UsageError(
            f"PySpark is not usable ({error}): pip install 'datalattice[spark]'"
        ) from error
    return SparkSession


def session_settings(
    app_name: str, *, cores: int | None, memory: str, log_level: str = "off"
) -> dict[str, str]:
    """Return the Spark settings of a local session.

    Raises: UsageError: an argument is not of its form.
    """
    cores = _usable_cores() if cores is None else cores
    if cores < 1:
        raise UsageError(f"cores is a number of at least 1, got {cores!r}")
    if not _MEMORY.fullmatch(memory):
        raise UsageError(f'memory is a number and k, m, g or t, such as "2g", got {memory!r}')
    if log_level not in LOG_LEVELS:
        raise UsageError(f"log_level is one of {', '.join(LOG_LEVELS)}, got {log_level!r}")
    log_file = cached_file(f"log4j2-{log_level}.properties", _LOG_SETTINGS.format(level=log_level))
    logging = f"-Dlog4j2.configurationFile={log_file.as_uri()}"
    return {
        "spark.app.name": app_name,
        "spark.master": f"local[{cores}]",
        "spark.driver.memory": memory,
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.extraJavaOptions": f"{_JVM_OPTIONS} {logging}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.default.parallelism": str(cores),
        # Times in results must not depend on where a machine stands.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }


def _usable_cores() -> int:
    # A container may be given fewer cores than the machine has.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
