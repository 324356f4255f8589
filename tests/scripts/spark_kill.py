"""Kill the processes of a Spark stream at random moments; no record may be lost or come twice.

    spark_kill.py [--rounds 20] [--kinds worker,driver,node,sink] [--sink queue,kv] [--seed 1]
                  [--no-node] [--folder DIR]

A query copies a queue of one folder to another one, through the node that runs there, while records
keep coming. In each round one thing is killed with SIGKILL:

* worker: one of the Python processes that Spark started;
* driver: the driver with its JVM;
* node:   the node of the folder that is written to;
* sink:   the driver again, by the sink itself: in the odd rounds right before it commits, in the
          even ones right after, before Spark learns of the commit.

The killed process is started again, with the same checkpoint. At the end the target must hold
exactly the records of the source, in their order. Prints one JSON document; exit code 0 when it
does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from datalattice.apps.kv import Database
from datalattice.apps.queue import Topics
from datalattice.cells import Value
from datalattice.client import Folder, edit, reading, write_key
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import DataLatticeError
from datalattice.lattice import root_lattice

KINDS = ("worker", "driver", "node", "sink")
SOURCE, TARGET = KeyPair(bytes([1]) * 32), KeyPair(bytes([2]) * 32)
PARTITIONS = 2
RECORDS = 400
"""Records that are offered in a round, to each partition."""
PER_BATCH = 400
WAIT_S = 600.0
"""Longest wait without progress."""
POLL_S = 0.05
PAUSE_S = 0.6
"""Longest time from the first progress of a round to the kill."""


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


# --- sinks, and how they are checked ------------------------------------------------------------


class Sink(Protocol):
    """One format that the query writes to."""

    @property
    def format(self) -> str:
        """Its name."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The written columns, as Spark SQL over those of the source."""
        ...

    @property
    def options(self) -> dict[str, str]:
        """Options of the writer."""
        ...

    def source(self) -> type:
        """Return the class of the format."""
        ...

    def progress(self, folder: Path) -> int:
        """Return how many records of the source the target shows."""
        ...

    def faults(self, folder: Path, count: int) -> list[str]:
        """Return the faults of the target, after `count` records were offered to each partition."""
        ...


class QueueSink:
    """Each partition of the source goes to the one of the same number."""

    format = "lattice.queue"
    columns = ("partition", "value")

    @property
    def options(self) -> dict[str, str]:
        """The topic."""
        return {"topic": "out"}

    def source(self) -> type:
        """Return the class of the format."""
        from datalattice.pipeline.queue.source import QueueSource

        return QueueSource

    def progress(self, folder: Path) -> int:
        """Return the number of records; the last of each partition says how many it must have."""
        if not (folder / "store").exists():
            return 0
        with reading(Folder(folder)) as root:
            topic = Topics.at(RootLattice(root_lattice(), root), TARGET.public_key).topic("out")
            sizes = [topic.partition(number).size() for number in range(PARTITIONS)]
            last = [topic.partition(number).peek_last() for number in range(PARTITIONS)]
        assert all(
            size == (value + 1 if isinstance(value, int) else 0)
            for size, value in zip(sizes, last, strict=True)
        ), f"lost or doubled: {last} are last, and the sizes are {sizes}"
        return sum(sizes)

    def faults(self, folder: Path, count: int) -> list[str]:
        """Return the partitions that do not hold the records of the source in their order."""
        logs = _logs(folder, TARGET, "out")
        return [
            f"partition {number}: {len(found)} records, first wrong at {_first_wrong(found)}"
            for number, found in enumerate(logs)
            if found != list(range(count))
        ]


def _first_wrong(found: list[Any]) -> int:
    return next((at for at, value in enumerate(found) if value != at), len(found))


class KVSink:
    """Each record of the source gets a key, and each partition one with its last record.

    A key written twice does not show. A lost or late batch shows, and so does, at any moment, half
    a
    batch: the last records say how many keys there must be.
    """

    format = "lattice.kv"
    columns = (
        (
            "inline(array("
            "struct(concat('record/', partition, '/', offset) AS key, value),"
            "struct(concat('last/', partition) AS key, value)))"
        ),
    )

    @property
    def options(self) -> dict[str, str]:
        """The database."""
        return {"database": "out"}

    def source(self) -> type:
        """Return the class of the format."""
        from datalattice.pipeline.kv.source import KVSource

        return KVSource

    def progress(self, folder: Path) -> int:
        """Return the number of records that have a key."""
        if not (folder / "store").exists():
            return 0
        with reading(Folder(folder)) as root:
            database = _database(root)
            last = [database.get(f"last/{number}") for number in range(PARTITIONS)]
            keys = len(database.store())
        done: int = sum(value + 1 for value in last if value is not None)
        half = keys - done - sum(value is not None for value in last)
        assert half == 0, f"half a batch is there: {last} are last, and there are {keys} keys"
        return done

    def faults(self, folder: Path, count: int) -> list[str]:
        """Return the partitions that do not have the keys of all records, and the last one last."""
        if not (folder / "store").exists():
            return ["there is no store"]
        with reading(Folder(folder)) as root:
            held = dict(_database(root).items())
        faults = [f"{len(held)} keys"] if len(held) != PARTITIONS * (count + 1) else []
        for number in range(PARTITIONS):
            found = [held.get(f"record/{number}/{offset}") for offset in range(count)]
            if found != list(range(count)):
                faults.append(f"partition {number}: first wrong at {_first_wrong(found)}")
            if held.get(f"last/{number}") != count - 1:
                faults.append(f"partition {number}: {held.get(f'last/{number}')} is last")
        return faults


def _database(root: Value) -> Database:
    return Database.at(RootLattice(root_lattice(), root), TARGET.public_key, "out")


SINKS: dict[str, Sink] = {"queue": QueueSink(), "kv": KVSink()}


def _logs(folder: Path, keys: KeyPair, topic: str) -> list[list[Any]]:
    if not (folder / "store").exists():
        return [[] for _ in range(PARTITIONS)]
    with reading(Folder(folder)) as root:
        mine = Topics.at(RootLattice(root_lattice(), root), keys.public_key).topic(topic)
        return [list(mine.partition(number)) for number in range(PARTITIONS)]


# --- the driver: a process that is killed --------------------------------------------------------


def drive(sink_name: str, base: Path) -> None:
    """Run the query for ever; after a failure start it again, as a service manager would."""
    from datalattice.pipeline import register, spark_session

    sink = SINKS[sink_name]
    # A task that fails is tried again; only the loss of the driver stops the query for long.
    spark = spark_session("kill", memory="1g", master="local[2, 4]")
    register(spark)
    spark.dataSource.register(_dying(sink_name))
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    base.joinpath("pids").write_text(f"{os.getpid()} {jvm}")
    while True:
        rows = (
            spark.readStream.format("lattice.queue")
            .option("topic", "in")
            .option("maxOffsetsPerTrigger", str(PER_BATCH))
            .load(str(base / "source"))
        )
        query = (
            rows.selectExpr(*sink.columns)
            .writeStream.format(sink.format)
            .options(**sink.options)
            .option("checkpointLocation", str(base / "checkpoint"))
            .trigger(processingTime="100 milliseconds")
            .start(str(base / "target"))
        )
        try:
            query.awaitTermination()
        except Exception as failure:  # noqa: BLE001 - whatever was killed, the query runs again
            say(f"the query failed: {str(failure).strip().splitlines()[-1][:300]}")
            time.sleep(POLL_S)


def _dying(sink_name: str) -> type:
    """Return the format with a sink that kills its driver where the file `die` says so."""
    parent: Any = SINKS[sink_name].source()

    class Dying(parent):  # type: ignore[misc]
        """The format with a commit that may kill."""

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's
            """Return a writer that may kill."""
            writer = super().streamWriter(schema, overwrite)
            base = Path(self.options["path"]).parent
            commit = writer.commit

            def deadly(messages: Any, batch: int) -> None:
                when = (base / "die").read_text() if (base / "die").exists() else ""
                if when == "before":
                    _die(base)
                commit(messages, batch)
                if when == "after":
                    _die(base)

            writer.commit = deadly
            return writer

    return Dying


def _die(base: Path) -> None:
    """Kill the driver and its JVM, from within a process of theirs."""
    (base / "die").unlink()
    for pid in map(int, (base / "pids").read_text().split()):
        os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


# --- processes ----------------------------------------------------------------------------------


def descendants(pid: int) -> dict[int, str]:
    """Return the processes below one, with their command lines."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                status = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(status[1])
    found: dict[int, str] = {}
    edge = [pid]
    while edge:
        above = edge.pop()
        for below, parent in parents.items():
            if parent == above and below not in found:
                found[below] = _command(below)
                edge.append(below)
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Service:
    """A process that is started again when it has died."""

    def __init__(self, *command: str) -> None:
        self._command = command
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def ensure(self) -> None:
        """Start the process, unless it runs."""
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            self.starts += 1

    def kill(self) -> None:
        """Kill the process and all below it, and wait until they are gone."""
        if self.process is None:
            return
        below = list(descendants(self.process.pid))
        kill([self.process.pid, *below])
        self.process.wait()
        while any(_command(pid) for pid in below):
            time.sleep(POLL_S)


# --- rounds -------------------------------------------------------------------------------------


@dataclass
class Test:
    """One run: folders, services, and what was offered."""

    base: Path
    sink_name: str
    chance: random.Random
    with_node: bool

    def __post_init__(self) -> None:
        script = str(Path(__file__).resolve())
        node = str(Path(__file__).resolve().parent / "node_process.py")
        for name, keys in (("source", SOURCE), ("target", TARGET)):
            write_key(self.base / name / "key", keys)
        self.sink = SINKS[self.sink_name]
        self.driver = Service(script, "--drive", self.sink_name, "--folder", str(self.base))
        self.node = Service(node, str(self.base / "target"), "2", "-1")
        self.count = 0
        self.offer()

    def ensure(self) -> None:
        """Start those services that do not run."""
        if self.with_node:
            self.node.ensure()
        self.driver.ensure()

    def offer(self) -> None:
        """Append the records of a round to the source."""
        first, self.count = self.count, self.count + RECORDS

        def change(cursor: RootLattice, keys: KeyPair) -> None:
            topic = Topics.at(cursor, keys.public_key).topic("in")
            for number in range(PARTITIONS):
                topic.partition(number).offer_many(range(first, first + RECORDS))

        edit(Folder(self.base / "source"), change)

    def until(self, what: str, done: Callable[[], bool]) -> None:
        """Wait until `done`, and start services that have died meanwhile.

        Raises: TimeoutError: there was no progress for `WAIT_S`.
        """
        give_up_s, seen = time.monotonic() + WAIT_S, self.progress()
        while not done():
            if time.monotonic() > give_up_s:
                before, seen = seen, self.progress()
                if seen <= before:
                    raise TimeoutError(f"waited {WAIT_S:g} s in vain until {what}")
                give_up_s = time.monotonic() + WAIT_S
            self.ensure()
            time.sleep(4 * POLL_S)

    def progress(self) -> int:
        """Return the progress of the target; -1 while it cannot be opened."""
        with contextlib.suppress(DataLatticeError):
            return self.sink.progress(self.base / "target")
        return -1

    def grown(self) -> None:
        """Wait until more was written."""
        before = self.progress()
        self.until("the stream goes on", lambda: self.progress() > max(before, 0))

    def round(self, kind: str, number: int) -> None:
        """Kill one thing."""
        if kind == "sink":
            (self.base / "die").write_text("before" if number % 2 else "after")
            self.offer()
            self.until("the sink killed its driver", lambda: not (self.base / "die").exists())
            self.driver.kill()
            return
        self.offer()
        self.grown()
        time.sleep(self.chance.random() * PAUSE_S)
        if kind == "driver":
            self.driver.kill()
        elif kind == "node":
            self.node.kill()
            time.sleep(self.chance.random() * PAUSE_S)
        else:
            process = self.driver.process
            assert process is not None
            workers = [
                pid for pid, command in descendants(process.pid).items() if "pyspark" in command
            ]
            kill([self.chance.choice(sorted(workers))])

    def finish(self) -> list[str]:
        """Wait until all records are written, end everything, and return the faults."""
        self.offer()
        try:
            self.until(
                "all records are there",
                lambda: (
                    self.progress() >= 0 and not self.sink.faults(self.base / "target", self.count)
                ),
            )
        except TimeoutError as error:
            say(str(error))
        time.sleep(1.0)  # time for a record to come twice, which must not happen
        self.end()
        return self.sink.faults(self.base / "target", self.count)

    def end(self) -> None:
        """End everything."""
        self.driver.kill()
        self.node.kill()


def run(base: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a report for each sink."""
    for sink_name in arguments.sink.split(","):
        begun_s = time.monotonic()
        folder = base / sink_name
        folder.mkdir()
        test = Test(folder, sink_name, random.Random(arguments.seed), not arguments.no_node)
        kinds = [kind for kind in arguments.kinds.split(",") if kind != "node" or test.with_node]
        kills = dict.fromkeys(kinds, 0)
        try:
            for number in range(arguments.first, arguments.first + arguments.rounds):
                for kind in kinds:
                    test.round(kind, number)
                    kills[kind] += 1
                    say(
                        f"{sink_name}: round {number}, {kind}: {test.progress()} of "
                        f"{test.count * PARTITIONS} records"
                    )
            faults = test.finish()
        finally:
            test.end()
        yield {
            "sink": sink_name,
            "kills": kills,
            "records": test.count * PARTITIONS,
            "starts": {"driver": test.driver.starts, "node": test.node.starts},
            "left": sorted(path.name for path in (folder / "target" / "staging").glob("*/*/*")),
            "faults": faults,
            "seconds": round(time.monotonic() - begun_s, 1),
        }


def main() -> int:
    """Run the rounds; print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1, help="number of the first round")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--sink", default="queue")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-node", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        drive(arguments.drive, arguments.folder)
        return 0
    with tempfile.TemporaryDirectory() as made:
        reports = list(run(arguments.folder or Path(made), arguments))
    sys.stdout.write(json.dumps(reports, indent=2) + "\n")
    return 1 if any(report["faults"] for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
