"""Start Spark on this machine, on a cluster or through Spark Connect.

If you have a Spark session, `register(spark)` is enough. `spark_session` starts one quickly and
quietly. It finds Java, also in a wheel. It lets workers run this interpreter, and listens on the
loopback interface only, unless the cluster is remote. It starts within seconds, at the price of a
slower JVM.

Source: docs/spark.md; docs/spark-cluster.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from datalattice.errors import PeerUnavailable, Unavailable, UsageError
from datalattice.pipeline.spark.java import cached_file, find_java, java_home
from datalattice.pipeline.spark.scratch import remove_scratch, scratch_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOPBACK: Final = "127.0.0.1"

JVM_END_SECONDS_MAX: Final = 30
"""Longest time that the JVM may take to end; then it is killed."""

ARCHIVE_SUFFIXES: Final = (".tar.gz", ".tgz", ".tar", ".zip")
"""Suffixes of the archives that Spark unpacks."""

PACKAGE_FOLDER: Final = "datalattice-package"
"""Name of the unpacked package in the working folder of each executor."""

_MEMORY: Final = re.compile(r"[1-9][0-9]*[kmgt]", re.IGNORECASE)

# The serial collector, because collector threads would take time from tasks if there are few cores.
# No bounds checks in Arrow, because Spark reads vectors only by index from 0 to their length.
_JVM_OPTIONS: Final = "-XX:+UseSerialGC -XX:-UsePerfData -Darrow.enable_unsafe_memory_access=true"

_QUICK_OPTIONS: Final = "-XX:TieredStopAtLevel=1"
"""Disables the second JIT compiler, which halves the JVM's start time."""

# Without an entry for the gateway's logger, Spark sets the root logger to that logger's level and
# prints a message about it.
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

_LOG_LEVELS: Final = ("off", "fatal", "error", "warn", "info", "debug")


_LOCAL_MASTER: Final = re.compile(r"local(?:\[([1-9][0-9]{0,5}|\*)(?:, *[1-9][0-9]{0,5})?\])?")
_HOST: Final = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
_SERVER: Final = rf"{_HOST}:[0-9]{{1,5}}"
_CLUSTER_MASTER: Final = re.compile(rf"spark://({_SERVER}(?:,{_SERVER})*)")
_CONNECT_MASTER: Final = re.compile(rf"sc://({_HOST}(?::[0-9]{{1,5}})?)(?:/[^\s]*)?")

CONNECT_PORT: Final = 15_002
"""Default port of a Spark Connect server."""

_PORT_MAX: Final = 65_535

REACH_SECONDS_MAX: Final = 5.0
"""Longest time that connecting to a server may take; then the server counts as unreachable."""

_LOOPBACK_HOSTS: Final = frozenset({"localhost", "[::1]"})


@dataclass(frozen=True, slots=True)
class Master:
    """Where tasks run: a parsed Spark master."""

    url: str
    kind: str
    """"local": this process; "cluster": a standalone cluster; "connect": a Connect server."""
    cores: int | None
    """Threads of a local Spark, if the URL gives a number."""
    loopback: bool
    """Whether all processes are on this machine."""
    servers: tuple[tuple[str, int], ...] = ()
    """Host and port of each server; one reachable server is enough."""


def spark_session(
    app_name: str = "datalattice",
    *,
    cores: int | None = None,
    memory: str = "2g",
    log_level: str = "off",
    config: Mapping[str, str] | None = None,
    master: str | None = None,
    package: str | os.PathLike[str] | None = None,
    quick_start: bool = True,
) -> SparkSession:
    """Return a Spark session on `cores` cores (default: all), `memory` for each JVM.

    master: "local[4]", "local[*]" (the default), "spark://host:7077" for a standalone cluster,
        whose executors get `memory` each, or "sc://host:15002" for a Spark Connect server, which
        has its own cores and memory.
    package: archive of this package, for a cluster whose workers lack it (`package_settings`).
    quick_start: disable the JVM's second compiler. The JVM then starts in half the time, and
    processes large data more slowly.
    config: adds to or replaces the settings made here.
    log_level: "off" prints nothing; errors are raised in any case.

    A running session is returned unchanged.

        spark = spark_session("delays", cores=2, memory="1g")
        spark = spark_session("delays", master="spark://127.0.0.1:7077")

    Units:  memory: a number and k, m, g or t, such as "2g".
    Raises: UsageError: PySpark or Java is missing, or an argument is malformed. PeerUnavailable:
            no server listens at `master`. Unavailable: Spark does not start.
    """
    where = parse_master(master)
    settings = session_settings(
        app_name,
        cores=cores,
        memory=memory,
        log_level=log_level,
        master=where,
        quick_start=quick_start,
    )
    if package is not None:
        # Local tasks import this package itself.
        if where.kind != "cluster":
            raise UsageError(
                "a package is for the workers of a cluster (master=spark://host:port), got "
                f"master={where.url}; a Connect server ships packages with its own settings"
            )
        settings |= package_settings(package)
    _give_scratch(settings)
    # Last, so that the caller's settings replace those made here.
    settings.update(config or {})
    spark_type = _spark_type()
    running = spark_type.getActiveSession() is not None
    if where.kind == "connect":
        builder = spark_type.builder.remote(where.url)
    else:
        _prepare_environment(where, running=running)
        builder = spark_type.builder
    # A running session is returned unchanged, wherever it runs.
    if not running:
        check_reachable(where)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _clear_start(where), _driver_imports(where):
        return builder.getOrCreate()


@contextmanager
def _driver_imports(where: Master) -> Iterator[None]:
    """Make this process's packages importable in the JVM's own Python processes on this machine.

    Spark plans queries and commits writes in a process beside the driver. It runs the workers'
    Python, which may have nothing installed.
    """
    before = os.environ.get("PYTHONPATH")
    if where.kind == "cluster" and os.environ.get("PYSPARK_PYTHON") != sys.executable:
        os.environ["PYTHONPATH"] = import_path()
    try:
        yield
    finally:
        # Restored, so that programs started later get the user's own path.
        if before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = before


def import_path() -> str:
    """Return a `PYTHONPATH` that gives another Python of this version the imports of this one."""
    installed = sysconfig.get_paths()
    own = str(Path(__file__).parents[3])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = dict.fromkeys((*given, own, installed["purelib"], installed["platlib"]))
    return os.pathsep.join(folder for folder in folders if folder)


def _give_scratch(settings: dict[str, str]) -> None:
    """Point the JVMs' temporary files to a folder that `remove_scratch` deletes."""
    names = [name for name in _JAVA_OPTIONS if name in settings]
    if names and (folder := scratch_folder()) is not None:
        for name in names:
            settings[name] += f" -Djava.io.tmpdir={folder}"


@contextmanager
def _clear_start(where: Master) -> Iterator[None]:
    """Raise a failed start as one line, without the JVM's stack trace."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        reason = str(getattr(error, "java_exception", "") or error).strip().partition("\n")[0]
        raise Unavailable(f"Spark does not start with master={where.url}: {reason}") from error


def parse_master(text: str | None) -> Master:
    """Parse a Spark master; None means local.

    Raises: UsageError: `text` has none of the accepted forms.
    """
    if text is None:
        return Master("local", "local", None, loopback=True)
    if found := _LOCAL_MASTER.fullmatch(text):
        threads = found[1] if found[1] != "*" else None
        # As in Spark, "local" alone is one thread.
        cores = 1 if text == "local" else int(threads) if threads is not None else None
        return Master(text, "local", cores, loopback=True)
    if found := _CLUSTER_MASTER.fullmatch(text):
        return _served(text, "cluster", found[1])
    if found := _CONNECT_MASTER.fullmatch(text):
        return _served(text, "connect", found[1])
    raise UsageError(
        "master is local[N] or local[*], spark://host:port of a standalone cluster or "
        f"sc://host:port of a Spark Connect server, got {text!r}"
    )


def _served(url: str, kind: str, named: str) -> Master:
    servers = []
    for one in named.split(","):
        host, port = one, str(CONNECT_PORT)
        if re.search(r":[0-9]+$", one):
            host, _, port = one.rpartition(":")
        # Java refuses other ports with a stack trace.
        if not 0 < int(port) <= _PORT_MAX:
            raise UsageError(f"a port is 1 to {_PORT_MAX}, got {port} in master={url}")
        servers.append((host, int(port)))
    return Master(url, kind, None, _is_loopback(servers[0][0]), tuple(servers))


def check_reachable(where: Master) -> None:
    """Return once a server of this master accepts a connection; at once for a local master.

    Spark itself retries an absent master for a minute and an absent Connect server for ten minutes.
    Raises: PeerUnavailable: none of the servers is reachable.
    """
    if not where.servers:
        return
    from datalattice.pipeline.remote import connection_problem

    problems = []
    for host, port in where.servers:
        error = connection_problem(host.strip("[]"), port, REACH_SECONDS_MAX)
        if error is None:
            return
        problems.append(f"{host}:{port}: {error.strerror or error}")
    raise PeerUnavailable(f"no Spark at master={where.url} ({'; '.join(problems)})")


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host.lower() in _LOOPBACK_HOSTS


def _prepare_environment(where: Master, *, running: bool) -> None:
    if not running:
        os.environ["JAVA_HOME"] = str(java_home(find_java()))
    if where.kind == "local":
        # Workers must run this interpreter: another one would lack this package or differ in
        # version.
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        # The interpreter may be elsewhere on other machines; a value set by the user is kept.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if where.loopback:
        os.environ["SPARK_LOCAL_IP"] = _LOOPBACK


def end_session(spark: SparkSession) -> None:
    """Stop Spark and wait until its JVM has ended; the next session starts a new JVM.

    On a Spark Connect server only this session ends, unless PySpark started the server itself.
    """
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    try:
        spark.stop()
    except (ConnectionError, Py4JError):
        # The JVM was killed, and PySpark still counts it as running.
        _forget_session()
    # PySpark sets this for a Connect session. It is removed, because otherwise every later session
    # would use Connect.
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    process = getattr(gateway, "proc", None)  # None for a JVM that PySpark did not start
    if process is None:
        return
    # Its temporary files can be removed only after it has ended.
    process.stdin.close()  # the JVM ends when its standard input closes
    try:
        process.wait(JVM_END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    remove_scratch()


def _forget_session() -> None:
    """Make PySpark forget its session, as `stop` does when the JVM answers."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, SQLContext

    context = SparkContext._active_spark_context
    if context is not None:
        context._jsc = None  # asked again, it would fail again
        context.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SQLContext._instantiatedContext = None


def _spark_type() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UsageError(
            f"PySpark is not usable ({error}): pip install 'datalattice[spark]'"
        ) from error
    return SparkSession


_JAVA_OPTIONS: Final = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")

_WORKER_SETTINGS: Final = {
    "spark.python.daemon.module": "datalattice.pipeline.daemon",
    # Over TCP each of a task's first messages waits 40 ms for a delayed acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
}


def session_settings(
    app_name: str,
    *,
    cores: int | None,
    memory: str,
    log_level: str = "off",
    master: Master | None = None,
    quick_start: bool = True,
) -> dict[str, str]:
    """Return the Spark settings of a session. Raises: UsageError: an argument is malformed."""
    where = parse_master(None) if master is None else master
    if where.cores is not None:
        if cores not in {None, where.cores}:
            raise UsageError(f"cores={cores} and master={where.url} differ; give one of them")
        cores = where.cores
    if cores is not None and cores < 1:
        raise UsageError(f"cores is a number of at least 1, got {cores!r}")
    if not _MEMORY.fullmatch(memory):
        raise UsageError(f'memory is a number and k, m, g or t, such as "2g", got {memory!r}')
    if log_level not in _LOG_LEVELS:
        raise UsageError(f"log_level is one of {', '.join(_LOG_LEVELS)}, got {log_level!r}")
    settings = {
        # Results must not depend on the time zone of the machine.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    # A Connect server has its JVM, memory and cores from its own start.
    if where.kind == "connect":
        return settings
    settings |= _process_settings(app_name, memory, log_level, quick_start=quick_start)
    if where.loopback:
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = _LOOPBACK
    if where.kind == "local":
        cores = _usable_cores() if cores is None else cores
        tasks = where.url if "[" in where.url else "local[*]"
        settings["spark.master"] = tasks.replace("*", str(cores))
        settings |= _WORKER_SETTINGS
    else:
        settings["spark.master"] = where.url
        settings["spark.executor.memory"] = memory
    # Only executors on this machine can read the file of log settings.
    if where.kind == "cluster" and where.loopback:
        settings["spark.executor.extraJavaOptions"] = settings["spark.driver.extraJavaOptions"]
    if cores is not None:
        # With Spark's default of 200 partitions most tasks would have no work on a few cores.
        settings["spark.sql.shuffle.partitions"] = str(cores)
        settings["spark.default.parallelism"] = str(cores)
    if where.kind == "cluster" and cores is not None:
        settings["spark.cores.max"] = str(cores)
    return settings


def _process_settings(
    app_name: str, memory: str, log_level: str, *, quick_start: bool
) -> dict[str, str]:
    """Return the settings of every JVM that this process starts."""
    log_file = cached_file(f"log4j2-{log_level}.properties", _LOG_SETTINGS.format(level=log_level))
    options = [_JVM_OPTIONS, f"-Dlog4j2.configurationFile={log_file.as_uri()}"]
    if quick_start:
        options.append(_QUICK_OPTIONS)
    return {
        "spark.app.name": app_name,
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
    }


def package_settings(archive: str | os.PathLike[str]) -> dict[str, str]:
    """Return the Spark settings that ship this package, given as an archive of importable files.

    Each executor unpacks it into its working folder and puts it first on its Python's path.
    Raises: UsageError: there is no such file, or Spark cannot unpack it.
    """
    path = Path(archive).absolute()
    if not path.name.endswith(ARCHIVE_SUFFIXES):
        raise UsageError(f"a package is a file {', '.join(ARCHIVE_SUFFIXES)}, got {path.name!r}")
    if not path.is_file():
        raise UsageError(f"the package {str(path)!r} does not exist")
    # A Python worker runs in its executor's folder or, in a Connect session, in a folder below it.
    folders = (PACKAGE_FOLDER, str(Path("..", PACKAGE_FOLDER)))
    return {
        "spark.archives": f"{path.as_uri()}#{PACKAGE_FOLDER}",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(folders),
    }


def _usable_cores() -> int:
    # A container may get fewer cores than the machine has.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
