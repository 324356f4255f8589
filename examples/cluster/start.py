"""Start a Spark cluster on this machine: one master, two workers, each a process of its own.

    python examples/cluster/start.py cluster

The jars of the pyspark package hold the master and the worker, and the Java that `datalattice`
finds runs them, if necessary the one from a wheel. All processes listen on the loopback only. The
addresses are printed when the cluster is ready. Ctrl-C ends it; logs and the workers' folders stay
in the given folder.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

import pyspark

from datalattice.pipeline.spark.java import find_java, java_home
from datalattice.pipeline.spark.session import import_path, package_settings

LOOPBACK: Final = "127.0.0.1"
READY_SECONDS_MAX: Final = 60
END_SECONDS_MAX: Final = 20
POLL_SECONDS: Final = 0.05

MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
CONNECT: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"

# The serial collector and the first compiler save memory and start quickly.
JAVA_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"


class Cluster:
    """Processes of a cluster; each has a log in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.java_options = f'{JAVA_OPTIONS} "-Djava.io.tmpdir={folder / "tmp"}"'
        self.processes: list[subprocess.Popen[bytes]] = []
        self._spark = Path(pyspark.__file__).parent
        self._environment = os.environ | {
            "JAVA_HOME": str(java_home(find_java())),
            "SPARK_HOME": str(self._spark),
            "SPARK_CONF_DIR": str(folder / "conf"),  # an empty folder: no settings of this machine
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_DAEMON_JAVA_OPTS": f"{self.java_options} -Dspark.master.rest.enabled=false",
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        }
        for name in ("conf", "tmp"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def start_master(self) -> str:
        """Start the master; return its address."""
        # Free ports, which the log then names: several clusters can run on one machine.
        arguments = ["--host", LOOPBACK, "--port", "0", "--webui-port", "0"]
        log = self._start("master", "spark-class", [MASTER, *arguments])
        return self._said(log, rb"Starting Spark master at (spark://\S+)")

    def start_workers(self, count: int, master: str, cores: int, memory: str) -> None:
        """Start workers and wait until all are registered with the master."""
        limits = ["--cores", str(cores), "--memory", memory]
        logs = []
        for name in (f"worker-{number}" for number in range(1, count + 1)):
            place = ["--host", LOOPBACK, "--webui-port", "0", "--work-dir", str(self.folder / name)]
            logs.append(self._start(name, "spark-class", [WORKER, *place, *limits, master]))
        for log in logs:
            self._said(log, rb"(Successfully registered with master)")

    def start_connect(self, master: str, cores: int, settings: Mapping[str, str]) -> str:
        """Start a Spark Connect server that runs its tasks on the cluster; return its address."""
        arguments = ["--master", master, "--class", CONNECT]
        for name, value in {
            "spark.driver.host": LOOPBACK,
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.connect.grpc.binding.port": "0",
            "spark.ui.enabled": "false",
            "spark.sql.catalogImplementation": "in-memory",
            "spark.executor.memory": "512m",
            "spark.cores.max": str(cores),
            "spark.sql.shuffle.partitions": str(cores),
            "spark.driver.extraJavaOptions": self.java_options,
            "spark.executor.extraJavaOptions": self.java_options,
            **settings,
        }.items():
            arguments += ["--conf", f"{name}={value}"]
        # The server's own Python, which plans and commits, may have nothing installed.
        self._environment["PYTHONPATH"] = import_path()
        # "spark-internal" stands for a program: the server's class is in Spark's own jars.
        log = self._start("connect", "spark-submit", [*arguments, "spark-internal"], "1g")
        found = self._said(log, rb"Spark Connect server started at: \S*?:([0-9]+)\D")
        return f"sc://{LOOPBACK}:{found}"

    def _start(
        self, name: str, program: str, arguments: Sequence[str], memory: str = "256m"
    ) -> Path:
        log = self.folder / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [self._spark / "bin" / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environment | {"SPARK_DAEMON_MEMORY": memory},
                cwd=self.folder,
                start_new_session=True,  # a worker's executors end with it
            )
        self.processes.append(process)
        return log

    def _said(self, log: Path, pattern: bytes) -> str:
        """Return the text that a process logs, by `pattern`, once it is ready."""
        give_up = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < give_up:
            if found := re.search(pattern, log.read_bytes()):
                return found[1].decode()
            if self.ended() is not None:
                break
            time.sleep(POLL_SECONDS)
        raise SystemExit(f"the process did not become ready; its log is {log}")

    def ended(self) -> str | None:
        """Return a message about a process that ended by itself; None while all run."""
        for process in self.processes:
            if (code := process.poll()) is not None:
                return f"a process of the cluster ended with {code}; see {self.folder}/*.log"
        return None

    def end(self) -> None:
        """End all processes, those that started last first."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # a second one would leave processes running
        for process in reversed(self.processes):
            _signal(process, signal.SIGTERM)
        give_up = time.monotonic() + END_SECONDS_MAX
        for process in reversed(self.processes):
            try:
                process.wait(max(0.0, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                print(f"process {process.pid} did not end and is killed", file=sys.stderr)
            # Also the processes that it started and left running.
            _signal(process, signal.SIGKILL)
            process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return  # every process of the group has ended


def main() -> None:
    """Start a cluster and keep it until a signal comes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="for logs and the workers' folders")
    parser.add_argument("--workers", type=int, default=2, help="default: 2")
    parser.add_argument("--cores", type=int, default=1, help="of each worker, default: 1")
    parser.add_argument("--memory", default="1g", help="of each worker, default: 1g")
    parser.add_argument(
        "--connect",
        type=int,
        metavar="CORES",
        help="start a Spark Connect server, too, that uses this number of the workers' cores",
    )
    parser.add_argument(
        "--package", type=Path, help="the archive made by pack.py, for the Connect server"
    )
    options = parser.parse_args()
    shipped = package_settings(options.package) if options.package else {}
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    cluster = Cluster(options.folder.absolute())
    try:
        master = cluster.start_master()
        cluster.start_workers(options.workers, master, options.cores, options.memory)
        print(f"master {master}", flush=True)
        if options.connect:
            address = cluster.start_connect(master, options.connect, shipped)
            print(f"connect {address}", flush=True)
        print("ready", flush=True)
        while (end := cluster.ended()) is None:
            time.sleep(POLL_SECONDS)
        raise SystemExit(end)
    finally:
        cluster.end()


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
