"""Merge of many replicas of one database: Spark on one and two cores beside one process.

    python bench/spark_merge.py --keys 1000000 --replicas 64 --changes 2000

One owner's database of `--keys` keys was copied to `--replicas` devices, and each changed some
keys. One process merges them one after the other; Spark merges them into the folder of a node that
has the database as it was. The hashes must be equal. To save disk, the replicas are roots in
`--stores` stores; tasks read each as an input of its own all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from datalattice.apps.kv import Database
from datalattice.cells import Value, value_hash
from datalattice.client import Folder, write_key
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, root_lattice, verify_did
from datalattice.pipeline import end_session, register, spark_session
from datalattice.pipeline.jobs import merge
from datalattice.store import CellStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
from datalattice.testing.clocks import TickingClock

KEYS = KeyPair(bytes([9]) * 32)
BATCH_KEYS = 50_000


def write(root: Value, entries: dict[str, str], now: int) -> Value:
    """Return a root with these entries in the database."""
    cursor = RootLattice(root_lattice(), root, MergeContext(key_pair=KEYS))
    Database.at(cursor, KEYS.public_key, "main", TickingClock(now)).update(entries)
    return cursor.get()


def build(place: Path, keys: int, replicas: int, changes: int, stores: int) -> list[str]:
    """Make the node's folder and the replicas; return the names of the inputs."""
    folder = Folder(place / "hq")
    write_key(folder.key_path, KEYS)
    with CellStore.open(folder.store_path) as store:
        for first in range(0, keys, BATCH_KEYS):
            some = range(first, min(first + BATCH_KEYS, keys))
            entries = {f"key{i:08}": f"value {i}" for i in some}
            store.commit(write(store.root(), entries, 1_000 + first))
    inputs = []
    for i in range(stores):
        shutil.copytree(folder.store_path, place / f"s{i}")
        with CellStore.open(place / f"s{i}") as store:
            start = store.root()
            for j in range(i, replicas, stores):
                step = max(1, keys // changes)
                entries = {f"key{k:08}": f"from {j}" for k in range(j % step, keys, step)}
                root = write(start, entries, 10_000_000 * (j + 1))
                store.commit(root)
                store.pins.pin(value_hash(root), f"r{j}")
                inputs.append(f"{place / f's{i}'}@r{j}")
    return inputs


def in_sequence(place: Path, inputs: list[str]) -> tuple[str, float]:
    """Merge in this process into a copy of the node's store; return the hash and the seconds."""
    shutil.copytree(place / "hq" / "store", place / "one")
    began = time.monotonic()
    lattice = root_lattice()
    with CellStore.open(place / "one") as store:
        own = store.root()
        sources: dict[str, CellStore] = {}
        for one in inputs:
            path, _, pin = one.rpartition("@")
            if path not in sources:
                sources[path] = CellStore.open(path, read_only=True)
            other = sources[path].load(sources[path].resolve(pin))
            own = lattice.merge(own, other, MergeContext(key_pair=KEYS, verifier=verify_did))
        store.commit(own)
        hash = store.root_hash()
        for source in sources.values():
            source.close()
    assert hash is not None
    return hash.hex(), time.monotonic() - began


@contextmanager
def on_cores(cores: int) -> Iterator[SparkSession]:
    """Give a session with `cores` cores, its workers started.

    One core is one for all of Spark: this process is bound to it, and so is every process that it
    starts, so the threads of driver and JVM have no second one to run on beside the task.
    """

    def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import datalattice.pipeline.jobs.merge  # noqa: F401 - so that it is there when time counts

        yield from batches

    usable = os.sched_getaffinity(0)
    if cores == 1:
        os.sched_setaffinity(0, {min(usable)})
    try:
        spark = spark_session("bench", cores=cores, memory="1g", quick_start=False)
        try:
            register(spark)
            ids = spark.range(0, 4 * cores, 1, 4 * cores)
            # More tasks than cores, so that each worker gets one.
            ids.mapInArrow(unchanged, "id BIGINT").count()
            yield spark
        finally:
            end_session(spark)
    finally:
        os.sched_setaffinity(0, usable)


def by_spark(
    spark: SparkSession, place: Path, inputs: list[str]
) -> tuple[str, float, dict[str, object]]:
    """Merge with Spark into a copy of the node; return the hash, the seconds and the report."""
    target = Path(mkdtemp(dir=place)) / "hq"
    shutil.copytree(place / "hq", target)
    CellStore.open(target / "store").close()  # the index of a copy is made again
    told: dict[str, tuple[float, float]] = {}

    def progress(step: str, _done: int, _total: int | None) -> None:
        now = time.monotonic()
        told[step] = (told.get(step, (now, now))[0], now)

    began = time.monotonic()
    report = merge(spark, inputs, into=str(target), progress=progress)
    spent = time.monotonic() - began
    steps = {step: round(end - begin, 2) for step, (begin, end) in told.items()}
    document = {"steps": steps, "tasks": report.tasks, "staged_cells": report.staged_cells}
    return report.root, spent, document


def main() -> None:
    """Run, and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--changes", type=int, default=2_000)
    parser.add_argument("--stores", type=int, default=4)
    parser.add_argument("--cores", type=int, nargs="*", default=[1, 2])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="merge-") as name:
        place = Path(name)
        began = time.monotonic()
        inputs = build(place, given.keys, given.replicas, given.changes, given.stores)
        found: dict[str, object] = {"built": round(time.monotonic() - began, 1)}
        hash, spent = in_sequence(place, inputs)
        found |= {"hash": hash, "one process": round(spent, 2)}
        for cores in given.cores:
            with on_cores(cores) as spark:
                root, spent, report = by_spark(spark, place, inputs)
            found[f"{cores} cores"] = {"seconds": round(spent, 2), "equal": root == hash, **report}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
