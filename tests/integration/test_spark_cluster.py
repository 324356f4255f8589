"""A cluster of real processes on loopback: tasks run in both workers, with the package shipped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.apps.kv import Database
from datalattice.apps.queue import Topics
from datalattice.cells import to_json
from datalattice.client import Folder, edit, reading, write_key
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, root_lattice
from datalattice.testing.processes import killing

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.once, pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(300)]

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples" / "cluster"
KEYS = KeyPair(bytes([9]) * 32)
PARTITIONS, RECORDS = 4, 500


def environment() -> dict[str, str]:
    """Return this one, with the package that is tested where this process found it."""
    return os.environ | {"PYTHONPATH": str(Path(datalattice.__file__).parents[1])}


class Cluster:
    """What `start.py` started, and where."""

    def __init__(self, folder: Path, package: Path) -> None:
        self.folder = folder
        self.package = package
        arguments = [str(folder), "--cores", "2", "--connect", "2", "--package", str(package)]
        self.process = subprocess.Popen(
            [sys.executable, EXAMPLES / "start.py", *arguments],
            stdout=subprocess.PIPE,
            env=environment(),
            text=True,
        )
        self.master = self.connect = ""

    def wait_ready(self) -> None:
        """Return once all of it serves."""
        assert self.process.stdout is not None
        said = {}
        for line in self.process.stdout:
            name, _, address = line.strip().partition(" ")
            if name == "ready":
                break
            said[name] = address
        self.master, self.connect = said["master"], said["connect"]

    def members(self) -> list[int]:
        """Return the processes of the cluster that there are, executors included."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = entry.read_bytes()
            except OSError:
                continue  # ended meanwhile
            if b"java" in command and bytes(self.folder) in command:
                found.append(int(entry.parent.name))
        return found

    def end(self) -> int:
        with killing(self.process):
            self.process.send_signal(signal.SIGTERM)
            return self.process.wait(60)


def pack(archive: Path) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "pack.py", archive],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    pack(folder / "datalattice.tar.gz")
    started = Cluster(folder / "cluster", folder / "datalattice.tar.gz")
    try:
        started.wait_ready()
        yield started
    finally:
        assert started.end() == 0
        assert started.members() == []


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a node's folder with a topic of four partitions."""
    write_key(tmp_path / "key", KEYS)

    def fill(cursor: RootLattice, keys: KeyPair) -> None:
        for partition in range(PARTITIONS):
            queue = Topics.at(cursor, keys.public_key).partition("t", partition)
            queue.offer_many([f"record {number}" for number in range(RECORDS)])

    edit(Folder(tmp_path), fill)
    return tmp_path


def run(script: Path, *arguments: object) -> Any:
    done = subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def executors(found: dict[str, str], cluster: Cluster) -> dict[str, str]:
    """Return for each worker from where its Python imported the package, below its executor."""
    workers = {}
    for place, package in found.items():
        worker, app, number = Path(place).relative_to(cluster.folder).parts[:3]
        own = cluster.folder / worker / app / number
        workers[worker] = str(Path(package).relative_to(own))
    return workers


SHIPPED = dict.fromkeys(["worker-1", "worker-2"], "datalattice-package/datalattice")


def test_tasks_run_in_both_workers_with_the_package_that_was_shipped(
    cluster: Cluster, home: Path
) -> None:
    arguments = [cluster.master, home, "--cores", 2, "--package", cluster.package]
    found = run(EXAMPLES / "job.py", *arguments)
    assert found["topics"]["t"]["records"] == PARTITIONS * RECORDS
    assert executors(found["executors"], cluster) == SHIPPED


def test_spark_connect_reads_writes_and_runs_jobs_on_the_cluster(
    cluster: Cluster, home: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"name": f"k{number % 5}", "number": number} for number in range(50)
    ]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    script = REPOSITORY / "tests" / "scripts" / "connect_session.py"
    found = run(script, cluster.connect, home, home / "rows.jsonl")
    assert found["session"] == "pyspark.sql.connect.session"
    assert found["numbers"] == [sum(range(100)), 100]
    assert found["load"]["rows"] == 50
    assert set(found["steps"]) <= {"load"}  # a server tells every two seconds, if at all
    assert (found["compact"]["keys"], found["compact"]["deleted"]) == (5, 0)
    assert "the store has no such topic" in found["error"]
    copied = {key: json.loads(value) for key, value in found["streamed"]}
    assert copied == {f"k{number % 5}": rows[number] for number in range(45, 50)}
    assert found["cells"]
    with reading(Folder(home)) as root:
        cursor = RootLattice(root_lattice(), root, MergeContext(key_pair=KEYS))
        latest = Database.at(cursor, KEYS.public_key, "latest")
        shown = {key: json.loads(to_json(latest[key])) for key in latest}
        topic = Topics.at(cursor, KEYS.public_key).topic("numbers")
        numbers = [topic.partition(p).peek(n) for p in topic.partitions() for n in range(100)]
    assert shown == {f"k{number % 5}": rows[number] for number in range(45, 50)}
    assert sorted(str(number) for number in numbers) == sorted(map(str, range(100)))
    assert executors(found["executors"], cluster) == SHIPPED


def test_a_package_holds_this_package_and_what_it_requires(cluster: Cluster) -> None:
    with tarfile.open(cluster.package) as archive:
        names = set(archive.getnames())
    tops = {name.partition("/")[0] for name in names}
    assert {"datalattice", "nacl", "cryptography", "cffi", "lmdb", "librt", "typer"} <= tops
    assert not {"pyspark", "pyarrow", "pandas", "numpy", "pytest"} & tops
    assert "datalattice/pipeline/queue/source.py" in names
    assert "datalattice/py.typed" in names
    assert not any("__pycache__" in name for name in names)


def test_nothing_of_the_cluster_listens_beyond_the_loopback(cluster: Cluster) -> None:
    own = set(cluster.members())
    assert len(own) >= 4  # master, two workers, the Connect server
    sockets = {
        found[1]
        for process in own
        for descriptor in Path(f"/proc/{process}/fd").iterdir()
        if (found := re.fullmatch(r"socket:\[(\d+)\]", _target(descriptor)))
    }
    listening = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                listening.append(fields[1].partition(":")[0])
    assert listening
    # 127.0.0.1, as itself and as an address of version 6.
    assert set(listening) <= {"0100007F", "0000000000000000FFFF00000100007F"}


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""  # closed meanwhile
