"""Rows of the benchmark that measure databases: durable puts, gets and merges, beside peers.

Every put is signed, stored as cells and synced before it counts. SQLite and LMDB take turns with
ours in the same run, on the same disk; they hold the same keys and values and keep no history,
sign nothing and cannot be merged. Redis takes part where its server and client are installed.
"""

from __future__ import annotations

import shutil
import socket
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from figures import Row, installed, row

from datalattice.apps.kv import Database, KVStoreLattice
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, root_lattice
from datalattice.store import CellStore

lmdb, redis = installed("lmdb"), installed("redis")

VALUE = "v" * 100
KEYS = KeyPair(bytes(range(32)))
MAP_BYTES = 1 << 30
START_S = 10.0


class Peer(NamedTuple):
    """How one system is written, read and closed."""

    put: Callable[[dict[str, str]], None]
    get: Callable[[str], object]
    close: Callable[[], None]


def keys(first: int, count: int) -> list[str]:
    """Return keys in no order, like those of users."""
    # An odd factor permutes the numbers below 2**32: no key comes twice.
    return [f"user/{i * 2_654_435_761 % 2**32:010d}" for i in range(first, first + count)]


def open_database(store: CellStore) -> Database:
    """Return a database below an owner's signature; its sync commits to `store`."""
    lattice = root_lattice()
    root = RootLattice(
        lattice,
        store.root() or lattice.zero(),
        MergeContext(key_pair=KEYS),
        on_sync=lambda value: (store.commit(value), value)[1],
    )
    return Database.at(root, KEYS.public_key, "bench")


def _ours(folder: Path) -> Peer:
    store = CellStore.open(folder / "store")
    database = open_database(store)

    def put(values: dict[str, str]) -> None:
        database.update(values)
        database.sync()

    return Peer(put, database.get, store.close)


def _sqlite(folder: Path) -> Peer:
    database = sqlite3.connect(folder / "kv.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute(
        "CREATE TABLE IF NOT EXISTS kv (k TEXT PRIMARY KEY, v TEXT NOT NULL) WITHOUT ROWID"
    )

    def put(values: dict[str, str]) -> None:
        database.execute("BEGIN")
        database.executemany("INSERT OR REPLACE INTO kv VALUES (?, ?)", values.items())
        database.execute("COMMIT")

    def get(key: str) -> object:
        return database.execute("SELECT v FROM kv WHERE k = ?", (key,)).fetchone()

    return Peer(put, get, database.close)


def _lmdb(folder: Path) -> Peer:
    environment: Any = lmdb.open(str(folder / "lmdb"), map_size=MAP_BYTES)

    def put(values: dict[str, str]) -> None:
        with environment.begin(write=True) as transaction:
            for key, value in values.items():
                transaction.put(key.encode(), value.encode())

    def get(key: str) -> object:
        with environment.begin() as transaction:
            return transaction.get(key.encode())

    return Peer(put, get, environment.close)


def _redis(folder: Path) -> Peer:
    with socket.create_server(("127.0.0.1", 0)) as free:
        # Redis takes no socket that is open; the port is free again when the server starts.
        port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--appendonly", "yes", "--save", ""]
    options += ["--appendfsync", "always", "--dir", str(folder)]
    server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
    client: Any = redis.Redis(port=port)
    give_up = time.monotonic() + START_S
    while True:
        try:
            client.ping()
            break
        except redis.ConnectionError:
            if time.monotonic() > give_up:
                server.kill()
                raise
            time.sleep(0.05)

    def close() -> None:
        client.close()
        server.terminate()
        server.wait(START_S)

    return Peer(client.mset, client.get, close)


def peers() -> dict[str, Callable[[Path], Peer]]:
    """Return the systems that are installed here, ours first."""
    found: dict[str, Callable[[Path], Peer]] = {"ours": _ours, "sqlite": _sqlite}
    if lmdb is not None:
        found["lmdb"] = _lmdb
    if redis is not None and shutil.which("redis-server"):
        found["redis"] = _redis
    return found


def _put_rate(open_peer: Callable[[Path], Peer], batch: int, batches: int) -> float:
    folder = Path(tempfile.mkdtemp(prefix="datalattice-bench-"))
    try:
        peer = open_peer(folder)
        parts = [dict.fromkeys(keys(i * batch, batch), VALUE) for i in range(batches)]
        peer.put(dict.fromkeys(keys(batch * batches, 1), VALUE))  # the first pays for opening
        start = time.perf_counter()
        for part in parts:
            peer.put(part)
        spent = time.perf_counter() - start
        peer.close()
    finally:
        shutil.rmtree(folder)
    return batch * batches / spent


def _get_rate(open_peer: Callable[[Path], Peer], count: int, again: int) -> float:
    """Return the rate of gets from a store that was just opened, every key `again` times."""
    folder = Path(tempfile.mkdtemp(prefix="datalattice-bench-"))
    try:
        names = keys(0, count)
        writer = open_peer(folder)
        for first in range(0, count, 10_000):
            writer.put(dict.fromkeys(names[first : first + 10_000], VALUE))
        writer.close()
        # Opened anew: caches of the writing must not answer.
        reader = open_peer(folder)
        start = time.perf_counter()
        for _ in range(again):
            for name in names:
                assert reader.get(name) is not None
        spent = time.perf_counter() - start
        reader.close()
    finally:
        shutil.rmtree(folder)
    return count * again / spent


def _row(name: str, unit: str, times: int, measure: Callable[[Any], float]) -> Row:
    figures: dict[str, list[float]] = {kind: [] for kind in peers()}
    for _ in range(times):  # in turns, so that a slow moment of the disk meets all of them
        for kind, open_peer in peers().items():
            figures[kind].append(measure(open_peer))
    rates = {kind: statistics.median(found) for kind, found in figures.items()}
    return row(name, rates.pop("ours"), unit, rates)


def _merge(count: int, changed: int, times: int) -> Row:
    """Measure the merge of a database of `count` keys with a fork that changed some of them."""
    database = Database.create()
    names = keys(0, count)
    database.update(dict.fromkeys(names, VALUE))
    store, lattice = database.store(), KVStoreLattice()
    rates: list[float] = []
    for turn in range(times):
        # The fork is made of the database as it was, so each turn merges keys that only it changed.
        fork = database.fork()
        fork.update(dict.fromkeys(names[turn * changed : (turn + 1) * changed], f"new {turn}"))
        start = time.perf_counter()
        lattice.merge(store, fork.store())
        rates.append(changed / (time.perf_counter() - start))
    return row(f"kv-merge-{changed}-of-{count}", statistics.median(rates), "keys/s")


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows of this file."""
    times = 3 if quick else 5
    singles, batches = (300, 30) if quick else (2_000, 100)
    yield _row("kv-put-durable-1", "keys/s", times, lambda peer: _put_rate(peer, 1, singles))
    yield _row("kv-put-durable-1000", "keys/s", times, lambda peer: _put_rate(peer, 1_000, batches))
    count = 20_000 if quick else 100_000
    yield _row("kv-get-opened", "keys/s", 3, lambda peer: _get_rate(peer, count, 1))
    yield _row("kv-get-again", "keys/s", 3, lambda peer: _get_rate(peer, count // 10, 10))
    yield _merge(count, 1_000, times)
