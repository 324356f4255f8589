"""Rows of the benchmark that measure the cell store: writing, reading, opening after a kill.

Reading is from a second process. Peers run in the same process on the same bytes. They are given
hashes and encodings; the time of ours includes encoding and hashing.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
from figures import Row, row

from datalattice.cells import Vector
from datalattice.store import CellStore
from datalattice.store.kept import KEEP_NOTHING

BATCH = 1_000

_READER = """
import random, sys, time
from datalattice.cells import branch_hashes
from datalattice.store import CellStore
path, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = CellStore.open(path, read_only=True, cache_bytes=1)
level, hashes = [store.root_hash()], []
while level:
    hashes += level
    level = [kid for hash in level for kid in branch_hashes(store.get_encoding(hash))]
random.Random(seed).shuffle(hashes)
hashes = (hashes * (count // len(hashes) + 1))[:count]
load = store.load
for hash in hashes[:2000]:
    load(hash)
start = time.perf_counter()
for hash in hashes:
    load(hash)
print(time.perf_counter() - start)
"""

_RAW_READER = """
import random, sys, time, lmdb
path, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
env = lmdb.open(path, readonly=True)
with env.begin() as txn:
    hashes = [key for key, _ in txn.cursor()]
    random.Random(seed).shuffle(hashes)
    hashes = (hashes * (count // len(hashes) + 1))[:count]
    start = time.perf_counter()
    for hash in hashes:
        txn.get(hash)
    print(time.perf_counter() - start)
"""

_WRITER = """
import os, signal, sys
from datalattice.cells import Vector
from datalattice.store import CellStore
store = CellStore.open(sys.argv[1])
records, step = int(sys.argv[2]), 1000
value = store.root() or Vector.of([])
text = "x" * 92
while len(value) < records:
    begin = len(value)
    value = value.extend([text + "%08d" % i for i in range(begin, begin + step)])
    store.commit(value)
print(len(value), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def _cells(batches: int) -> list[Vector]:
    """Return one vector per batch: with its inner nodes about BATCH cells of 150 to 200 bytes."""
    children = BATCH * 15 // 16
    return [
        Vector.of([Vector.of([b * BATCH + i, "x" * 130, i]) for i in range(children)])
        for b in range(batches)
    ]


def _parts(batches: int) -> list[list[tuple[bytes, bytes]]]:
    from datalattice.cells import novelty

    return [[(h, e) for h, e, _ in novelty(value)] for value in _cells(batches)]


def _median(work: Callable[[Path], float], times: int) -> float:
    figures = []
    for _ in range(times):
        folder = Path(tempfile.mkdtemp(prefix="datalattice-bench-"))
        try:
            figures.append(work(folder))
        finally:
            shutil.rmtree(folder)
    return statistics.median(figures)


def _persist(batches: int) -> Callable[[Path], float]:
    def work(folder: Path) -> float:
        values = _cells(batches)
        count = 0
        with CellStore.open(folder / "store") as store:
            start = time.perf_counter()
            for value in values:
                count += len(store.commit(value).novelty)
            return count / (time.perf_counter() - start)

    return work


def _persist_raw(parts: list[list[tuple[bytes, bytes]]]) -> Callable[[Path], float]:
    def work(folder: Path) -> float:
        fd = os.open(folder / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        start = time.perf_counter()
        for batch in parts:
            os.write(fd, b"".join([piece for part in batch for piece in part]))
            os.fdatasync(fd)
        seconds = time.perf_counter() - start
        os.close(fd)
        return sum(map(len, parts)) / seconds

    return work


def _persist_lmdb(parts: list[list[tuple[bytes, bytes]]]) -> Callable[[Path], float]:
    def work(folder: Path) -> float:
        env = lmdb.open(str(folder), map_size=1 << 34)
        start = time.perf_counter()
        for batch in parts:
            with env.begin(write=True) as txn:
                # In order of the keys, the quickest way to fill LMDB.
                txn.cursor().putmulti(sorted(batch))
        seconds = time.perf_counter() - start
        env.close()
        return sum(map(len, parts)) / seconds

    return work


def _persist_sqlite(parts: list[list[tuple[bytes, bytes]]]) -> Callable[[Path], float]:
    def work(folder: Path) -> float:
        db = sqlite3.connect(folder / "db", isolation_level=None)
        db.execute("pragma journal_mode=wal")
        db.execute("pragma synchronous=full")
        db.execute("create table cells(hash blob primary key, encoding blob) without rowid")
        start = time.perf_counter()
        for batch in parts:
            db.execute("begin")
            db.executemany("insert or ignore into cells values (?, ?)", batch)
            db.execute("commit")
        seconds = time.perf_counter() - start
        db.close()
        return sum(map(len, parts)) / seconds

    return work


def persist(quick: bool) -> Row:
    """Store fresh cells in durable batches of 1,000."""
    batches, times = (20, 1) if quick else (100, 3)
    parts = _parts(batches)
    peers = {
        "append+fdatasync": _median(_persist_raw(parts), times),
        "lmdb": _median(_persist_lmdb(parts), times),
        "sqlite-wal-full": _median(_persist_sqlite(parts), times),
    }
    value = _median(_persist(batches), times)
    return row("persist-100k", value, "cells/s", peers)


def read(quick: bool) -> Row:
    """Read random cells by hash from a second process: found, verified, decoded."""
    batches, count, times = (20, 20_000, 1) if quick else (100, 100_000, 3)
    folder = Path(tempfile.mkdtemp(prefix="datalattice-bench-"))
    try:
        with CellStore.open(folder / "store") as store:
            tops = []
            for value in _cells(batches):
                store.commit(value)
                tops.append(value)
            store.commit(Vector.of(tops))
            ours = _child_rates(_READER, folder / "store", count, times)
        env = lmdb.open(str(folder / "lmdb"), map_size=1 << 34)
        with env.begin(write=True) as txn:
            for batch in _parts(batches):
                txn.cursor().putmulti(sorted(batch))
        env.close()
        raw = _child_rates(_RAW_READER, folder / "lmdb", count, times)
    finally:
        shutil.rmtree(folder)
    return row("store-read", ours, "cells/s", {"lmdb, not verified, not decoded": raw})


def _child_rates(program: str, path: Path, count: int, times: int) -> float:
    seconds = []
    for seed in range(times):
        command = [sys.executable, "-c", program, str(path), str(count), str(seed)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        seconds.append(float(done.stdout))
    return count / statistics.median(seconds)


def reopen(quick: bool) -> Row:
    """Open a store of 3 million records again after its writer was killed."""
    records = 100_000 if quick else 3_000_000
    folder = Path(tempfile.mkdtemp(prefix="datalattice-bench-"))
    try:
        command = [sys.executable, "-c", _WRITER, str(folder / "store"), str(records)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != -signal.SIGKILL:
            raise RuntimeError(done.stderr)
        # Once: it is closed cleanly afterwards, and the index of a copy would be made again.
        start = time.perf_counter()
        with CellStore.open(folder / "store") as store:
            seconds = time.perf_counter() - start
            assert store.root_hash() is not None
        start = time.perf_counter()
        (folder / "store" / "index.state").unlink()
        with CellStore.open(folder / "store"):
            rebuilt = time.perf_counter() - start
        peers = {"index made again from the segments": rebuilt}
    finally:
        shutil.rmtree(folder)
    return row("store-reopen", seconds, "s", peers)


def collect(quick: bool) -> Row:
    """Collect a store of which half is garbage: every cell looked at, live ones copied."""
    batches = 4 if quick else 50
    folder = Path(tempfile.mkdtemp(prefix="datalattice-bench-"))
    try:
        with CellStore.open(folder / "store", retention=KEEP_NOTHING) as store:
            live: list[Vector] = []
            for number in range(batches):
                texts = [f"{number} {i}".ljust(150, "x") for i in range(10 * BATCH)]
                live.append(Vector.of(texts[: 5 * BATCH]))
                store.put(Vector.of(texts[5 * BATCH :]))
                store.commit(Vector.of(live))
        with CellStore.open(folder / "store", retention=KEEP_NOTHING) as store:
            start = time.perf_counter()
            done = store.collect(grace_ms=0)
            seconds = time.perf_counter() - start
            # Otherwise it took a way that leaves the garbage, and the row measures something else.
            assert done.bytes_after < 0.6 * done.bytes_before
    finally:
        shutil.rmtree(folder)
    peers = {"live": float(done.cells_live), "dead": float(done.cells_dead)}
    return row("store-gc", (done.cells_live + done.cells_dead) / seconds, "cells/s", peers)


def rows(quick: bool) -> Iterator[Row]:
    """Yield the store's rows."""
    for measure in (persist, read, reopen, collect):
        yield measure(quick)


if __name__ == "__main__":
    random.seed(1)
    for result in rows("--quick" in sys.argv):
        print(result)
