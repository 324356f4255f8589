"""Spark reads beside a node that writes, and from a node: while others write, over its death."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.queue import Topics
from datalattice.cells import value_hash
from datalattice.client import edit, folder_of, reading, write_key
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.pipeline.jobs import audit, gc, merge
from datalattice.testing.processes import killing
from datalattice.testing.replicas import ALICE, BOB, SampleRoot, merged

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.once, pytest.mark.spark, pytest.mark.timeout(120)]

COMMAND = [sys.executable, "-m", "datalattice.cli"]
PATIENCE_S = 120.0


class NodeProcess:
    """A node in a process and a folder of its own, which may be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder_of(folder)
        write_key(self.folder.key_path, KeyPair(bytes([5]) * 32))
        self.count = 0
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self._killing = ExitStack()

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._port}"

    def start(self) -> None:
        self.folder.settings_path.write_text(f"[node]\nplain = true\nport = {self._port}\n")
        process = subprocess.Popen(
            [*COMMAND, "node", "start", "--dir", str(self.folder.path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._process = self._killing.enter_context(killing(process))
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("listening at "), said
        self._port = int(said.rpartition(":")[2])

    def end(self, how: int) -> None:
        assert self._process is not None
        with self._killing:
            self._process.send_signal(how)
            self._process.wait(PATIENCE_S)

    def close(self) -> None:
        self._killing.close()

    def offer(self, count: int) -> None:
        """Append the next records, through the node where one runs."""

        def append(cursor: RootLattice, keys: KeyPair) -> None:
            queue = Topics.at(cursor, keys.public_key).partition("t", 0)
            queue.offer_many(list(range(self.count, self.count + count)))

        edit(self.folder, append)
        self.count += count


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with closing(NodeProcess(tmp_path / "home")) as made:
        made.start()
        yield made
        made.end(signal.SIGTERM)


def values(frame: Any) -> list[int]:
    return sorted(int(row.value) for row in frame.collect())


def test_several_tasks_read_beside_a_node_that_writes(spark: Any, node: NodeProcess) -> None:
    node.offer(4_000)
    options = {"valueFormat": "json", "minPartitions": "4"}
    stopping = threading.Event()

    def write() -> None:
        while not stopping.wait(0.1):
            node.offer(100)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for place in ({"store": str(node.folder.path)}, {"node": node.address}):
            least = node.count
            found = values(spark.read.format("lattice.queue").options(**options, **place).load())
            assert found == list(range(len(found))), "all of one root, each record once"
            assert len(found) >= least, "and all that was acknowledged before"
    finally:
        stopping.set()
        writer.join()


def test_jobs_and_formats_work_beside_a_node_that_runs(
    spark: Any, node: NodeProcess, tmp_path: Path
) -> None:
    node.offer(50)
    forks = [SampleRoot().set(one, {f"k{i}": i for i in range(50)}) for one in (ALICE, BOB)]
    inputs = [fork.save(tmp_path / f"r{number}") for number, fork in enumerate(forks)]
    with reading(node.folder) as own:
        expected = value_hash(merged([fork.root for fork in forks], own=own))
    report = merge(spark, inputs, into=str(node.folder.path))
    assert report.root == expected.hex()
    options = {"node": node.address, "valueFormat": "json", "columns": "owner,key,value"}
    reader = spark.read.format("lattice.kv").options(**options, asOf=f"0x{report.root}")
    rows = {(row.owner, row.key): int(row.value) for row in reader.load().collect()}
    owners = [f"0x{one.public_key.hex()}" for one in (ALICE, BOB)]
    assert rows == {(owner, f"k{i}"): i for owner in owners for i in range(50)}
    listed = tmp_path / "list"
    marked = gc(spark, str(node.folder.path), str(listed), grace_ms=0)
    arguments = ["disk", "sweep", str(listed), "--dir", str(node.folder.path), "--json"]
    swept = subprocess.run([*COMMAND, *arguments], capture_output=True, check=True)
    assert json.loads(swept.stdout)["cells_live"] == marked.cells_live
    assert audit(spark, str(node.folder.path)).is_clean


def test_a_stream_outlives_the_node_it_reads_from(
    spark: Any, node: NodeProcess, tmp_path: Path
) -> None:
    seen: list[int] = []
    query = (
        spark.readStream.format("lattice.queue")
        .options(node=node.address, valueFormat="json", maxOffsetsPerTrigger="300")
        .load()
        .writeStream.foreachBatch(lambda frame, _: seen.extend(values(frame)))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        node.offer(600)
        query.processAllAvailable()
        assert sorted(seen) == list(range(node.count))
        node.offer(600)
        node.end(signal.SIGKILL)  # wherever the stream is with those
        node.start()
        node.offer(100)
        query.processAllAvailable()
        assert sorted(seen) == list(range(node.count)), "nothing lost, nothing twice"
    finally:
        query.stop()
