"""Memory test: blobs of 64 KiB to 16 MiB, and ten million small records, through Spark with 2 GB.

    python bench/memory_spark.py [--records N] [--bytes N] [--dir FOLDER]

Driver and executors share one JVM of 2 GB here; the Python workers beside it are watched while they
read all records, and while they write them to a queue of another folder. Prints for each length of
records the time and the greatest resident size of a Python worker. Ends with exit code 1 when a
record is missing, or a worker exceeds its limit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

from rows_spark import session

from datalattice.apps.queue import Topics
from datalattice.cells import make_blob
from datalattice.client import Folder, reading, write_key
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, root_lattice
from datalattice.pipeline import end_session
from datalattice.store import CellStore

RECORDS = 10_000_000
BYTES = 512 * 1024 * 1024
BLOB_BYTES = (64 * 1024, 1024 * 1024, 16 * 1024 * 1024)
LIMIT_MB = 600
"""Of one worker: Python, Arrow and pandas take 150, mapped segments 128, a few batches the rest."""
WRITE_RECORDS = 10_000
WRITE_BYTES = 32 * 1024 * 1024


def build(folder: Path, count: int, length: int) -> None:
    """Write `count` different records of `length` bytes, a few at a time."""
    keys = KeyPair(bytes(32))
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=keys))
    queue = Topics.at(root, keys.public_key).partition("bench", 0)
    step = max(1, min(WRITE_RECORDS, WRITE_BYTES // length))
    filler = bytes(range(256)) * (length // 256 + 1)
    with CellStore.open(folder) as store:
        for first in range(0, count, step):
            stop = min(first + step, count)
            queue.offer_many(
                [make_blob(b"%020d" % i + filler[: length - 20]) for i in range(first, stop)]
            )
            store.commit(root.get())


class Watch(threading.Thread):
    """Samples the resident size of the Python processes below this one, ten times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_mb = 0.0
        self.seconds = 0.0
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self.seconds = -time.perf_counter()
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds += time.perf_counter()
        self._over.set()
        self.join()

    def run(self) -> None:
        """Sample until the `with` block ends."""
        while not self._over.wait(0.1):
            for status in Path("/proc").glob("[0-9]*/status"):
                try:
                    lines = dict(
                        line.split(":", 1)
                        for line in status.read_text().splitlines()
                        if ":" in line
                    )
                except OSError:
                    continue  # it has just ended
                if lines["Name"].strip().startswith("python") and self._is_ours(lines):
                    size = int(lines.get("VmRSS", "0 kB").split()[0]) / 1024
                    self.peak_mb = max(self.peak_mb, size)

    def _is_ours(self, lines: dict[str, str]) -> bool:
        pid = int(lines["PPid"])
        while pid > 1 and pid != os.getpid():
            try:
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                return False
        return pid == os.getpid()


def transfer(folder: Path, count: int, length: int) -> bool:
    """Read all records and write them elsewhere; return whether all came, within the limit."""
    home = Folder(folder / "copy")
    write_key(home.key_path, KeyPair(bytes(32)))
    spark = session(2, "2g")
    try:
        frame = (
            spark.read.format("lattice.queue")
            .option("valueFormat", "bytes")
            .load(str(folder / "store"))
        )
        totals = "count(*) AS n", "sum(length(value)) AS bytes", "count(DISTINCT offset) AS offsets"
        with Watch() as watch:
            row = frame.selectExpr(*totals).first()
        whole = row is not None and tuple(row) == (count, count * length, count)
        good = told("read", count, length, watch, whole)
        writer = frame.select("value").write.format("lattice.queue").option("topic", "copy")
        with Watch() as watch:
            writer.option("valueFormat", "bytes").mode("append").save(str(folder / "copy"))
    finally:
        end_session(spark)
    with reading(home) as root:
        owner = KeyPair(bytes(32)).public_key
        size = Topics.at(RootLattice(root_lattice(), root), owner).partition("copy", 0).size()
    return told("write", count, length, watch, size == count) and good


def told(what: str, count: int, length: int, watch: Watch, whole: bool) -> bool:
    """Print a line; return whether all records came and the worker kept within its limit."""
    print(
        f"{what:5} {count:>10,} x {length:>10,} bytes {watch.seconds:>7.1f} s, "
        f"worker {watch.peak_mb:>5.0f} MB, {'all there' if whole else 'NOT ALL THERE'}",
        flush=True,
    )
    return whole and watch.peak_mb < LIMIT_MB


def main() -> None:
    """Build, read and write each queue."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=RECORDS, help="small records")
    parser.add_argument("--bytes", type=int, default=BYTES, help="bytes of each queue of blobs")
    parser.add_argument("--dir", type=Path, help="folder of the stores; default: a temporary one")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="datalattice-memory-", dir=options.dir))
    good = True
    try:
        for count, length in [
            *((max(options.bytes // length, 2), length) for length in BLOB_BYTES),
            (options.records, 100),
        ]:
            place = folder / str(length)
            build(place / "store", count, length)
            good &= transfer(place, count, length)
            shutil.rmtree(place)
    finally:
        shutil.rmtree(folder)
    print("within the limits" if good else "ABOVE the limits, or not all there")
    sys.exit(not good)


if __name__ == "__main__":
    main()
