"""Rows of the benchmark that measure the queue: durable appends, and reading, beside peers.

Every append is signed, stored as cells and synced before it counts. SQLite and a bare file take
turns with ours in the same run, on the same disk.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from figures import Row, row

from datalattice.apps.queue import Queue, Topics
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, root_lattice
from datalattice.store import CellStore

RECORD_BYTES = 100
KEYS = KeyPair(bytes(range(32)))

Append = Callable[[list[bytes]], None]


def records(first: int, count: int) -> list[bytes]:
    """Return `count` records of 100 bytes, all different."""
    return [b"%020d" % i + b"x" * (RECORD_BYTES - 20) for i in range(first, first + count)]


def open_queue(store: CellStore) -> Queue:
    """Return a partition below an owner's signature; its root's sync commits to `store`."""
    lattice = root_lattice()
    root = RootLattice(
        lattice,
        store.root() or lattice.zero(),
        MergeContext(key_pair=KEYS),
        on_sync=lambda value: (store.commit(value), value)[1],
    )
    return Topics.at(root, KEYS.public_key).partition("bench", 0)


def _ours(folder: Path) -> tuple[Append, Callable[[], None]]:
    store = CellStore.open(folder / "store")
    queue = open_queue(store)

    def append(batch: list[bytes]) -> None:
        queue.offer_many(batch)
        queue.sync()

    return append, store.close


def _sqlite(folder: Path) -> tuple[Append, Callable[[], None]]:
    database = sqlite3.connect(folder / "queue.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE queue (offset INTEGER PRIMARY KEY, value BLOB NOT NULL)")

    def append(batch: list[bytes]) -> None:
        database.execute("BEGIN")
        database.executemany("INSERT INTO queue (value) VALUES (?)", [(one,) for one in batch])
        database.execute("COMMIT")

    return append, database.close


def _bare(folder: Path) -> tuple[Append, Callable[[], None]]:
    handle = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def append(batch: list[bytes]) -> None:
        os.write(handle, b"".join(batch))
        os.fdatasync(handle)

    return append, lambda: os.close(handle)


_KINDS = {"ours": _ours, "sqlite": _sqlite, "append+fdatasync": _bare}


def _rate(kind: str, batch: int, batches: int) -> float:
    folder = Path(tempfile.mkdtemp(prefix="datalattice-bench-"))
    try:
        append, close = _KINDS[kind](folder)
        parts = [records(i * batch, batch) for i in range(batches)]
        append(records(batches * batch, batch))  # the first one pays for opening
        start = time.perf_counter()
        for part in parts:
            append(part)
        spent = time.perf_counter() - start
        close()
    finally:
        shutil.rmtree(folder)
    return batch * batches / spent


def _durable(batch: int, batches: int, times: int) -> Row:
    figures: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for _ in range(times):  # in turns, so that a slow moment of the disk meets all of them
        for kind, found in figures.items():
            found.append(_rate(kind, batch, batches))
    rates = {kind: statistics.median(found) for kind, found in figures.items()}
    return row(f"queue-durable-{batch}", rates.pop("ours"), "records/s", rates)


def _read(count: int, times: int) -> Row:
    folder = Path(tempfile.mkdtemp(prefix="datalattice-bench-"))
    try:
        append, close = _ours(folder)
        database, database_close = _sqlite(folder)
        for first in range(0, count, 10_000):
            part = records(first, min(10_000, count - first))
            append(part)
            database(part)
        close()
        database_close()
        ours = statistics.median(_read_ours(folder, count) for _ in range(times))
        theirs = statistics.median(_read_sqlite(folder, count) for _ in range(times))
    finally:
        shutil.rmtree(folder)
    return row("queue-read", ours, "records/s", {"sqlite": theirs})


def _read_ours(folder: Path, count: int) -> float:
    """Consume all records by ranges of 1,000 from a store that was just opened."""
    with CellStore.open(folder / "store", read_only=True) as store:
        queue = open_queue(store)
        start = time.perf_counter()
        seen = sum(len(queue.range(at, at + 999)) for at in range(0, count, 1_000))
        spent = time.perf_counter() - start
    assert seen == count
    return count / spent


def _read_sqlite(folder: Path, count: int) -> float:
    database = sqlite3.connect(folder / "queue.db")
    query = "SELECT value FROM queue WHERE offset BETWEEN ? AND ? ORDER BY offset"
    start = time.perf_counter()
    seen = sum(
        len(database.execute(query, (at + 1, at + 1_000)).fetchall())
        for at in range(0, count, 1_000)
    )
    spent = time.perf_counter() - start
    database.close()
    assert seen == count
    return count / spent


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows of this file."""
    times = 3 if quick else 5
    yield _durable(1, 500 if quick else 2_000, times)
    yield _durable(1_000, 50 if quick else 200, times)
    yield _read(100_000 if quick else 1_000_000, 3)
